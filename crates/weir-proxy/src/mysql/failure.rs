//! Decides which error a MySQL client gets when something fails, and whether its connection stays open.
//!
//! An unknown outcome is never reported as a known one. If a statement may have been committed and its answer
//! is lost, the connection is closed, as a server itself would do.

use std::borrow::Cow;

use weir_mysql::error_number::{
    ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, ER_CLIENT_INTERACTION_TIMEOUT, ER_CLIENT_LOCAL_FILES_DISABLED,
    ER_CON_COUNT_ERROR, ER_KILL_DENIED_ERROR, ER_LOCK_DEADLOCK, ER_MALFORMED_PACKET,
    ER_MAX_PREPARED_STMT_COUNT_REACHED, ER_NEED_REPREPARE, ER_NET_PACKET_TOO_LARGE,
    ER_NET_PACKETS_OUT_OF_ORDER, ER_NET_UNCOMPRESS_ERROR, ER_NO_SUCH_THREAD, ER_OPTION_PREVENTS_STATEMENT,
    ER_OUTOFMEMORY, ER_QUERY_INTERRUPTED, ER_QUERY_TIMEOUT, ER_READ_ONLY_MODE, ER_ROLE_NOT_GRANTED,
    ER_SERVER_SHUTDOWN, ER_STMT_HAS_NO_OPEN_CURSOR, ER_UNKNOWN_COM_ERROR, ER_UNKNOWN_ERROR,
    ER_UNKNOWN_STMT_HANDLER, ER_WRONG_ARGUMENTS,
};
use weir_mysql::outcome::GENERAL_STATE;
use weir_mysql::packet::write_packet_with;
use weir_mysql::parameters::WithoutTypes;
use weir_mysql::{Resend, StatementKind, StatementVerdict, TransactionStep, in_wide_charset};
use weir_stats::table::End;

use super::attach::{AttachError, ServerError};
use super::compress::CompressionError;
use crate::backends::ConnectError;
use crate::reach::Unavailable;

/// Longest MESSAGE_TEXT of SIGNAL (characters).
const SIGNAL_CHARACTERS: usize = 128;

/// An error, and whether the client's connection stays open after it.
#[derive(Debug)]
pub struct Refusal {
    pub error: ServerError,
    /// How the session ends; `None` if it continues.
    pub end: Option<End>,
}

impl ServerError {
    /// An error of Weir's own.
    pub fn new(code: u16, state: [u8; 5], message: impl AsRef<[u8]>) -> ServerError {
        ServerError { code, state, message: message.as_ref().into() }
    }

    /// KILL has interrupted the statement.
    pub fn interrupted() -> ServerError {
        ServerError::new(ER_QUERY_INTERRUPTED, *b"70100", "Query execution was interrupted")
    }

    /// KILL names a connection id that does not exist.
    pub fn unknown_thread(id: u32) -> ServerError {
        ServerError::new(ER_NO_SUCH_THREAD, GENERAL_STATE, format!("Unknown thread id: {id}"))
    }

    /// KILL names a connection of another account.
    pub fn not_owner(id: u32) -> ServerError {
        ServerError::new(ER_KILL_DENIED_ERROR, GENERAL_STATE, format!("You are not owner of thread {id}"))
    }

    /// A prepared statement belongs to a schema that the session has left without entering another one.
    pub fn needs_reprepare() -> ServerError {
        ServerError::new(ER_NEED_REPREPARE, GENERAL_STATE, "Prepared statement needs to be re-prepared")
    }

    /// A server asked for a local file, but Weir does not know the statement as one that makes it do so.
    pub fn unasked_file() -> ServerError {
        let message = "Loading local data is disabled: the statement is not known to ask for it";
        ServerError::new(ER_CLIENT_LOCAL_FILES_DISABLED, *b"42000", message)
    }

    /// A SIGNAL statement that makes a server raise this error, with its state, number, and text up to the
    /// length of MESSAGE_TEXT.
    pub fn signal(&self) -> Vec<u8> {
        let is_state =
            |state: &[u8]| state.iter().all(u8::is_ascii_alphanumeric) && !state.starts_with(b"00");
        let state = if is_state(&self.state) { self.state } else { GENERAL_STATE };
        let text: String = String::from_utf8_lossy(&self.message).chars().take(SIGNAL_CHARACTERS).collect();
        let text: String = text.bytes().map(|byte| format!("{byte:02X}")).collect();
        let (state, code) = (String::from_utf8_lossy(&state).into_owned(), self.code);
        format!("SIGNAL SQLSTATE '{state}' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = _utf8mb4 X'{text}'")
            .into_bytes()
    }

    /// The error for a client whose results are in this character set, if its text is in UTF-8: it is Weir's
    /// own, or a server's from a login. Texts that a server sent in a wide set have zero bytes in them, in
    /// every blank.
    pub fn in_charset(&self, name: Option<&[u8]>) -> Cow<'_, ServerError> {
        let text = std::str::from_utf8(&self.message).ok().filter(|text| !text.contains('\0'));
        let message = name.zip(text).and_then(|(name, text)| in_wide_charset(name, text));
        match message {
            Some(message) => Cow::Owned(ServerError::new(self.code, self.state, message)),
            None => Cow::Borrowed(self),
        }
    }

    /// Appends the ERR packet.
    pub fn write(&self, out: &mut Vec<u8>, sequence: u8) {
        write_packet_with(out, sequence, |out| self.packet().write(out));
    }
}

/// Weir's own errors.
impl Refusal {
    fn goes_on(code: u16, state: &[u8; 5], message: impl AsRef<[u8]>) -> Refusal {
        Refusal { error: ServerError::new(code, *state, message), end: None }
    }

    /// A server's error, unchanged.
    pub fn of_server(error: ServerError) -> Refusal {
        Refusal { error, end: None }
    }

    /// A server's error about the session's state, such as its schema. The session ends if it has a role that
    /// its account no longer has, because it would be refused for ever.
    pub fn of_state(error: ServerError) -> Refusal {
        let end = (error.code == ER_ROLE_NOT_GRANTED).then_some(End::BackendClosed);
        Refusal { error, end }
    }

    /// No server could be chosen.
    pub fn unavailable(why: Unavailable, pool: &str) -> Refusal {
        match why {
            Unavailable::NoneUp => {
                Refusal::goes_on(ER_UNKNOWN_ERROR, &GENERAL_STATE, format!("no server of pool {pool} is up"))
            }
            Unavailable::NoneInRole | Unavailable::ParkFull | Unavailable::ParkTimeout { .. } => {
                let message = format!("Running in read-only mode: pool {pool} has no primary now");
                Refusal::goes_on(ER_READ_ONLY_MODE, &GENERAL_STATE, message)
            }
            Unavailable::QueueFull | Unavailable::QueueTimeout { .. } => Refusal::goes_on(
                ER_CON_COUNT_ERROR,
                b"08004",
                format!("Too many connections: every server of pool {pool} is busy"),
            ),
            Unavailable::ClientGone { .. } => Refusal { end: Some(End::ClientClosed), ..Refusal::draining() },
        }
    }

    /// A server was picked, but the login failed.
    pub fn not_attached(error: &AttachError, pool: &str) -> Refusal {
        match error {
            AttachError::Refused(error) => Refusal::of_server(error.clone()),
            AttachError::Connect(ConnectError::Full { .. }) => Refusal::goes_on(
                ER_CON_COUNT_ERROR,
                b"08004",
                format!("Too many connections: a server of pool {pool} has `max_connections` open"),
            ),
            AttachError::Connect(_) | AttachError::Talk(_) => {
                Refusal::failed("no server could be reached", pool)
            }
            other => Refusal::failed(&other.to_string(), pool),
        }
    }

    /// No server connection could be prepared, for this reason.
    pub fn failed(why: &str, pool: &str) -> Refusal {
        Refusal::goes_on(ER_UNKNOWN_ERROR, &GENERAL_STATE, format!("pool {pool}: {why}"))
    }

    /// A command that no server supports.
    pub fn unknown_command() -> Refusal {
        Refusal::goes_on(ER_UNKNOWN_COM_ERROR, b"08S01", "Unknown command")
    }

    /// The session has no prepared statement with this id.
    pub fn unknown_statement(id: u32) -> Refusal {
        let message = format!("Unknown prepared statement handler ({id}) given to mysql_stmt_precheck");
        Refusal::goes_on(ER_UNKNOWN_STMT_HANDLER, &GENERAL_STATE, message)
    }

    /// The text of a prepared statement was too long to be kept, and its connection is gone.
    pub fn text_not_kept() -> Refusal {
        let message = "the statement was prepared on a connection that is gone, and its text is longer than \
             what is kept: prepare it again";
        Refusal::goes_on(ER_UNKNOWN_STMT_HANDLER, &GENERAL_STATE, message)
    }

    /// An execution without types that would be too long for its packet with the types of the previous
    /// execution.
    pub fn types_not_named() -> Refusal {
        let message = "Got a packet bigger than 16 MiB that does not name the types of its values: \
             send them with it, or send long values in pieces";
        let error = ServerError::new(ER_NET_PACKET_TOO_LARGE, *b"08S01", message);
        Refusal { error, end: Some(End::BadRequest) }
    }

    /// The first execution of a statement has no types.
    pub fn types_never_named(without: WithoutTypes) -> Refusal {
        match without {
            WithoutTypes::Malformed => Refusal::malformed(),
            WithoutTypes::NotNamed => {
                let message = "Incorrect arguments to mysqld_stmt_execute";
                Refusal::goes_on(ER_WRONG_ARGUMENTS, &GENERAL_STATE, message)
            }
        }
    }

    /// A command is shorter than it says.
    pub fn malformed() -> Refusal {
        Refusal::goes_on(ER_MALFORMED_PACKET, &GENERAL_STATE, "Malformed communication packet.")
    }

    /// A connection with session state is gone.
    pub fn connection_lost() -> Refusal {
        let error = ServerError::new(ER_SERVER_SHUTDOWN, *b"08S01", "the connection to the server is lost");
        Refusal { error, end: Some(End::BackendClosed) }
    }

    /// A fetch without an open cursor.
    pub fn no_cursor(id: u32) -> Refusal {
        let message = format!("The statement ({id}) has no open cursor.");
        Refusal::goes_on(ER_STMT_HAS_NO_OPEN_CURSOR, &GENERAL_STATE, message)
    }

    /// The session has reached its limit of prepared statements.
    pub fn too_many_statements(most: usize) -> Refusal {
        let message =
            format!("Can't create more than max_prepared_stmt_count statements (current value: {most})");
        Refusal::goes_on(ER_MAX_PREPARED_STMT_COUNT_REACHED, b"42000", message)
    }

    /// The texts of the session's prepared statements would be longer than `prepared_text`, with the types of
    /// their parameters.
    pub fn prepared_too_much(most: u64) -> Refusal {
        let message = format!(
            "the statements that this session has prepared take more than {most} bytes (`prepared_text`): close some"
        );
        Refusal::goes_on(ER_MAX_PREPARED_STMT_COUNT_REACHED, b"42000", message)
    }

    /// The memory budget has no room for the text of another prepared statement.
    pub fn no_memory_to_prepare() -> Refusal {
        let message = "Out of memory: there is no room for the text of another prepared statement";
        Refusal::goes_on(ER_OUTOFMEMORY, b"HY001", message)
    }

    /// A command whose sequence id is not 0. A server closes the connection behind this error, too.
    pub fn out_of_order() -> Refusal {
        let error = ServerError::new(ER_NET_PACKETS_OUT_OF_ORDER, *b"08S01", "Got packets out of order");
        Refusal { error, end: Some(End::BadRequest) }
    }

    /// A statement asks about a connection that other sessions have used since.
    pub fn not_known_any_more(what: &str) -> Refusal {
        let message =
            format!("{what} is not known any more: ask in the statement right behind, or in a transaction");
        Refusal::goes_on(ER_UNKNOWN_ERROR, &GENERAL_STATE, message)
    }

    /// The same for a statement that does more than ask, and therefore runs on another server than a plain
    /// question would.
    pub fn not_known_where_it_runs(what: &str) -> Refusal {
        let message = format!(
            "{what} is not known any more where the statement runs, for it does more than to ask: ask in a \
             statement of its own right behind, or in a transaction"
        );
        Refusal::goes_on(ER_UNKNOWN_ERROR, &GENERAL_STATE, message)
    }

    /// A statement that may write, or whose effects are unknown, on a listener for reads, while the session
    /// is on a server that takes writes. The error is a replica's, because the listener stands for replicas.
    pub fn only_reads() -> Refusal {
        let message = "The MySQL server is running with the --read-only option so it cannot execute this \
             statement";
        Refusal::goes_on(ER_OPTION_PREVENTS_STATEMENT, &GENERAL_STATE, message)
    }

    /// KILL names a connection by Weir's id, in a text with other statements.
    pub fn kill_among_others(id: u32) -> Refusal {
        let message =
            format!("KILL {id} must be sent alone: its connection is known by this id to Weir only");
        Refusal::goes_on(ER_UNKNOWN_ERROR, &GENERAL_STATE, message)
    }

    /// KILL names a connection by a server's id, and it is not known which server is meant.
    pub fn kill_at_which_server() -> Refusal {
        let message = "KILL: it is not known which server's connection is meant, for each server counts its \
             own; send it to that server itself";
        Refusal::goes_on(ER_UNKNOWN_ERROR, &GENERAL_STATE, message)
    }

    /// A statement for the primary, while the session is bound by `pins` to a server that is not the primary.
    /// The session ends if that server was the primary: its writes would be refused for ever, while a new
    /// connection reaches the new primary.
    pub fn kept_away(pins: &str, was_primary: bool) -> Refusal {
        let message = format!(
            "Running in read-only mode: the session is kept at a server that is not the primary, by {pins}; \
             it can write again behind a reset of its connection"
        );
        let error = ServerError::new(ER_READ_ONLY_MODE, GENERAL_STATE, message);
        Refusal { error, end: was_primary.then_some(End::BackendClosed) }
    }

    /// A text would run something in a READ ONLY transaction on a secondary, then end the transaction, and
    /// then write.
    pub fn read_only_transaction() -> Refusal {
        let message = "Running in read-only mode: a READ ONLY transaction is open at a server that is not \
             the primary; end it with a statement of its own";
        Refusal::goes_on(ER_READ_ONLY_MODE, &GENERAL_STATE, message)
    }

    /// A write in a READ ONLY transaction, with the server's own error.
    pub fn write_in_read_only_transaction() -> Refusal {
        let message = "Cannot execute statement in a READ ONLY transaction.";
        Refusal::goes_on(ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION, b"25006", message)
    }

    /// Weir, or the listener, is draining.
    pub fn draining() -> Refusal {
        let error = ServerError::new(ER_SERVER_SHUTDOWN, *b"08S01", "Server shutdown in progress");
        Refusal { error, end: Some(End::Draining) }
    }

    /// The client's compressed packets are invalid.
    pub fn of_compression(error: CompressionError) -> Refusal {
        let (code, message) = match error {
            CompressionError::OutOfOrder => (ER_NET_PACKETS_OUT_OF_ORDER, "Got packets out of order"),
            CompressionError::Content => {
                (ER_NET_UNCOMPRESS_ERROR, "Couldn't uncompress communication packet")
            }
        };
        Refusal { error: ServerError::new(code, *b"08S01", message), end: Some(End::BadRequest) }
    }

    /// The client was idle for too long.
    pub fn idle() -> Refusal {
        let message = "The client was disconnected by the server because of inactivity. \
             See wait_timeout and interactive_timeout for configuring this behavior.";
        let error = ServerError::new(ER_CLIENT_INTERACTION_TIMEOUT, GENERAL_STATE, message);
        Refusal { error, end: Some(End::ClientIdle) }
    }

    /// A statement exceeded `timeout.statement` and was killed. The session ends too (`ends`) if it was in a
    /// transaction or the connection had session state.
    pub fn overtime(ends: bool) -> Refusal {
        let message = "Query execution was interrupted, maximum statement execution time exceeded";
        let error = ServerError::new(ER_QUERY_TIMEOUT, GENERAL_STATE, message);
        Refusal { error, end: ends.then_some(End::BackendTimeout) }
    }

    /// Weir has no memory left.
    pub fn overload() -> Refusal {
        let message = "Out of memory; restart server and try again (needed a buffer of Weir)";
        Refusal { error: ServerError::new(ER_OUTOFMEMORY, *b"HY001", message), end: Some(End::Overload) }
    }
}

/// How to continue after a server was lost during a statement, if none of its answer was forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It runs again on another server.
    Again,
    /// The client gets error 1213: its transaction was rolled back, because no COMMIT was sent.
    RolledBack,
    /// The connection ends: the outcome is unknown, or session state is lost.
    End,
}

/// Decides how to continue. `is_in_transaction` is the session's state before the statement; `is_pinned`
/// means that the connection had session state that exists nowhere else.
pub fn loss(verdict: &StatementVerdict, is_in_transaction: bool, is_pinned: bool) -> Loss {
    if is_pinned {
        return Loss::End;
    }
    if is_in_transaction {
        return if commits(verdict) { Loss::End } else { Loss::RolledBack };
    }
    // A transaction that was only just begun has done nothing.
    let only_begins = verdict.kind == StatementKind::Begin;
    if verdict.resend == Resend::Anywhere || only_begins { Loss::Again } else { Loss::End }
}

/// Whether a statement may commit the transaction that is open when it arrives.
pub fn commits(verdict: &StatementVerdict) -> bool {
    matches!(
        verdict.transaction,
        TransactionStep::Commit { .. }
            | TransactionStep::ImplicitCommit
            | TransactionStep::Unclear { .. }
            | TransactionStep::Autocommit(_)
            | TransactionStep::Begin { .. }
    )
}

/// The error for [`Loss::RolledBack`].
pub fn rolled_back() -> ServerError {
    let message = "Deadlock found when trying to get lock; try restarting transaction (its server was lost)";
    ServerError::new(ER_LOCK_DEADLOCK, *b"40001", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_mysql::{OpenTransaction, SessionFacts, classify};

    fn loss_of(sql: &str, in_transaction: bool, pinned: bool) -> Loss {
        let transaction = if in_transaction { OpenTransaction::ReadWrite } else { OpenTransaction::None };
        let facts = SessionFacts { transaction, ..SessionFacts::default() };
        loss(&classify(sql.as_bytes(), &facts), in_transaction, pinned)
    }

    #[test]
    fn what_may_have_been_committed_is_never_run_again() {
        for sql in ["UPDATE t SET a = 1", "INSERT INTO t VALUES (1)", "SELECT f(1)", "CALL p()", "COMMIT"] {
            assert_eq!(loss_of(sql, false, false), Loss::End, "{sql}");
        }
        for sql in ["SELECT a FROM t", "SHOW TABLES", "BEGIN", "START TRANSACTION READ ONLY"] {
            assert_eq!(loss_of(sql, false, false), Loss::Again, "{sql}");
        }
    }

    #[test]
    fn a_transaction_is_rolled_back_unless_the_statement_commits_it() {
        for sql in ["UPDATE t SET a = 1", "SELECT a FROM t", "SELECT f(1)", "ROLLBACK"] {
            assert_eq!(loss_of(sql, true, false), Loss::RolledBack, "{sql}");
        }
        for sql in ["COMMIT", "BEGIN", "CREATE TABLE t (a INT)", "SET autocommit = 1", "CALL p()"] {
            assert_eq!(loss_of(sql, true, false), Loss::End, "{sql}");
        }
        assert_eq!(loss_of("SELECT a FROM t", true, true), Loss::End);
    }
}
