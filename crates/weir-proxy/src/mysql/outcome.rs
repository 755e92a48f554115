//! What an answer has reported, and which part of that its client may see.

use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::command::ClientCommand;
use weir_mysql::eof;
use weir_mysql::error_number::{
    ER_CANT_CHANGE_TX_CHARACTERISTICS, ER_MALFORMED_PACKET, ER_PARSE_ERROR, ER_STMT_HAS_NO_OPEN_CURSOR,
    ER_UNKNOWN_STMT_HANDLER, ER_WRONG_ARGUMENTS,
};
use weir_mysql::outcome::{EOF, EofPacket, OkPacket, SessionChanges};
use weir_mysql::response::{AnswerEnd, PreparedStatement};
use weir_mysql::session_track::{TrackedChange, TrackedChanges, write_change};
use weir_mysql::{LeftBehind, StatementKind, StatementVerdict};

use super::attach::ServerError;
use super::exchange::Forwarding;
use super::server::ServerConnection;

/// What an answer reported, over all its results.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The session's status at its end, as far as it was reported; error packets do not have it.
    pub status: Option<StatusFlags>,
    /// The error that it ended with.
    pub error: Option<ServerError>,
    /// Whether any of its results had warnings, or it ended with an error.
    pub has_warnings: bool,
    /// The insert id that it reported: a generated AUTO_INCREMENT value or an explicit one; 0 for none.
    pub insert_id: u64,
    /// Whether untracked or unknown state has changed.
    pub untracked: bool,
    /// Whether the connection's collation may have changed without being reported.
    pub opens_collation: bool,
    /// Whether Weir has sent a query after it, which replaced what it had left for questions of the next
    /// statement.
    pub is_replaced: bool,
    /// The statement that was prepared.
    pub prepared: Option<PreparedStatement>,
    /// Whether it had a result set, even an empty one.
    pub has_rows: bool,
    /// Whether its last result was one. Behind a semicolon, even a comment alone has a result of its own.
    pub ends_in_rows: bool,
}

impl Outcome {
    /// The state that a statement has left, given this outcome.
    pub fn left(&self, verdict: &StatementVerdict) -> LeftBehind {
        let Some(error) = self.error.as_ref().filter(|_| verdict.statements == 1) else {
            return verdict.leaves;
        };
        match error.code {
            _ if self.is_unread(verdict) => LeftBehind::NONE,
            ER_CANT_CHANGE_TX_CHARACTERISTICS => {
                verdict.leaves.without(LeftBehind::OF_SUCCESS.and(LeftBehind::NEXT_TRANSACTION))
            }
            _ => verdict.leaves.without(LeftBehind::OF_SUCCESS),
        }
    }

    /// Whether its error was added to the diagnostics of the previous statement instead of replacing them.
    pub fn adds_error(&self, command: ClientCommand) -> bool {
        let Some(error) = &self.error else { return false };
        match command {
            ClientCommand::InitDb => true,
            ClientCommand::StmtExecute | ClientCommand::StmtFetch | ClientCommand::StmtReset => {
                NOT_BEGUN.contains(&error.code)
            }
            _ => false,
        }
    }

    /// Whether an execution was refused because of what came before it, so that pieces of parameters stay
    /// with the statement on that server until it is reset. Such a piece was for a parameter that does not
    /// exist, or for one whose value was sent as well.
    pub fn is_spoiled(&self) -> bool {
        let code = self.error.as_ref().map(|error| error.code);
        matches!(code, Some(ER_WRONG_ARGUMENTS | ER_MALFORMED_PACKET))
    }

    /// Whether an execution got far enough for the server to store the types of its values.
    pub fn has_taken_types(&self) -> bool {
        let error = self.error.as_ref().filter(|error| NOT_BEGUN.contains(&error.code));
        // ER_WRONG_ARGUMENTS is also the error for a statement that cannot have a cursor, which comes after
        // the types.
        error.is_none_or(|error| error.says(b"with cursor"))
    }

    /// Whether LAST_INSERT_ID() may have changed. If a write failed, earlier rows of it may have received
    /// ids.
    pub fn may_have_insert_id(&self, verdict: &StatementVerdict) -> bool {
        let writes = verdict.kind == StatementKind::Write;
        self.insert_id != 0
            || verdict.leaves.has(LeftBehind::INSERT_ID)
            || (self.error.is_some() && (writes || verdict.statements > 1) && !self.is_unread(verdict))
    }

    /// Whether it has failed after stored code may have changed something that no answer has reported.
    pub fn is_untold(&self, command: ClientCommand, verdict: &StatementVerdict) -> bool {
        match (&self.error, command) {
            (Some(_), ClientCommand::Query) => !self.is_unread(verdict),
            (Some(error), ClientCommand::StmtExecute) => !NOT_BEGUN.contains(&error.code),
            _ => false,
        }
    }

    /// Whether the text was a syntax error (`ER_PARSE_ERROR`), so that the server did nothing. A procedure
    /// may end with the same error after it has taken locks and begun a transaction.
    pub fn is_unread(&self, verdict: &StatementVerdict) -> bool {
        let is_parse_error = self.error.as_ref().is_some_and(|error| error.code == ER_PARSE_ERROR);
        is_parse_error && self.status.is_none() && verdict.runs_nothing_if_unparsed()
    }
}

/// Errors of a prepared statement that did not begin to run.
pub const NOT_BEGUN: [u16; 4] =
    [ER_WRONG_ARGUMENTS, ER_UNKNOWN_STMT_HANDLER, ER_STMT_HAS_NO_OPEN_CURSOR, ER_MALFORMED_PACKET];

impl Outcome {
    /// Takes the end of a result; returns a new payload for the packet if the client must see a different
    /// one.
    pub fn note(
        &mut self,
        end: &AnswerEnd<'_>,
        first: u8,
        server: &mut ServerConnection,
        forwarding: &Forwarding<'_>,
    ) -> Option<Vec<u8>> {
        match end {
            AnswerEnd::Ok(ok) => {
                self.ends_in_rows = first == EOF;
                self.has_rows |= self.ends_in_rows;
                self.status = Some(ok.status);
                self.has_warnings |= ok.warnings > 0;
                if ok.insert_id != 0 {
                    self.insert_id = ok.insert_id;
                }
                let told = match ok.changes {
                    SessionChanges::None => None,
                    SessionChanges::TooLong => {
                        self.untracked = true;
                        None
                    }
                    SessionChanges::Told(told) => {
                        self.take(told, server, forwarding.runs_no_stored_code);
                        Some(told)
                    }
                };
                server.is_untold = false;
                if first == EOF && forwarding.waits_for_eof() {
                    let mut out = Vec::with_capacity(EofPacket::BYTES);
                    EofPacket { warnings: ok.warnings, status: eof::status_of(ok.status) }.write(&mut out);
                    return Some(out);
                }
                told.map(|told| told_to_client(ok, first, told, forwarding.capabilities))
            }
            AnswerEnd::Eof(eof) => {
                self.status = Some(eof.status);
                self.has_warnings |= eof.warnings > 0;
                (self.has_rows, self.ends_in_rows) = (true, true);
                None
            }
            AnswerEnd::Err(error) => {
                self.error = Some(ServerError::of(error));
                self.has_warnings = true;
                None
            }
            AnswerEnd::Prepared(prepared) => {
                self.has_warnings |= prepared.warnings > 0;
                None
            }
            AnswerEnd::Text => None,
        }
    }

    fn take(&mut self, told: &[u8], server: &mut ServerConnection, runs_no_stored_code: bool) {
        // After a failed statement, some of the changes may be its own.
        let says_all = runs_no_stored_code && !server.is_untold;
        match server.apply(told) {
            Ok(changes) => {
                self.untracked |= changes.is_beyond_tracked(says_all);
                self.opens_collation |= changes.opens_collation;
            }
            Err(_) => self.untracked = true,
        }
    }
}

/// The variables that servers track by default (`session_track_system_variables`).
const TOLD_VARIABLES: [&[u8]; 5] = [
    b"time_zone",
    b"autocommit",
    b"character_set_client",
    b"character_set_results",
    b"character_set_connection",
];

/// An OK packet with only the changes that its client would see without Weir.
fn told_to_client(ok: &OkPacket<'_>, first: u8, told: &[u8], capabilities: Capabilities) -> Vec<u8> {
    let mut changes = Vec::new();
    for change in TrackedChanges::new(told).flatten() {
        let is_told = match change {
            TrackedChange::Schema(_) => true,
            TrackedChange::SystemVariable { name, .. } => TOLD_VARIABLES.contains(&name),
            _ => false,
        };
        if is_told {
            write_change(&mut changes, &change);
        }
    }
    let changes = match changes.is_empty() {
        true => SessionChanges::None,
        false => SessionChanges::Told(&changes),
    };
    let mut out = Vec::with_capacity(64);
    OkPacket { changes, ..*ok }.write(&mut out, first, capabilities);
    out
}
