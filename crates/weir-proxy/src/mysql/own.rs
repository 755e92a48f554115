//! Weir's own statements on a connection to a server: they bring it to a session's state, ask what that is,
//! prepare, wait for a transaction. No client sees their answers, and none is sent while a client's statement
//! is under way.

use std::rc::Rc;

use weir_io::buffers::{Buffer, Buffers, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::wait::{WaitError, receive, send_all};
use weir_mysql::WireError;
use weir_mysql::command::ClientCommand;
use weir_mysql::outcome::{EOF, ERR, ErrPacket, OK, OkPacket, SessionChanges};
use weir_mysql::packet::{HEADER_BYTES, PacketHeader, write_packet_with};
use weir_mysql::parameters::write_query;
use weir_mysql::state::{StateStep, TrackedState, settled_sql, trackers_sql};
use weir_mysql::value::{NULL, PayloadCursor};

use super::attach::ServerError;
use super::exchange::ServerFailure;
use super::prepared::StatementText;
use super::server::ServerConnection;

/// Most rows of an answer to Weir itself.
const MOST_ROWS: usize = 16;
/// Most columns of one.
const MOST_COLUMNS: usize = 32;

/// What is asked.
#[derive(Clone, Copy)]
pub enum Own<'a> {
    /// A statement.
    Query(&'a [u8]),
    /// Another default schema, in the client's character set of the connection.
    Schema(&'a [u8]),
    /// A new session of the same account.
    Reset,
    /// A statement to be prepared.
    Prepare(&'a [u8]),
}

/// What changes nothing: its OK packet tells what was not told yet.
pub const NOTHING: Own<'static> = Own::Query(b"DO 0");

/// What is answered.
pub enum OwnAnswer {
    /// Done.
    Done,
    /// Rows; `None` is NULL.
    Rows(Vec<Vec<Option<Box<[u8]>>>>),
    /// The number of a prepared statement.
    Prepared(u32),
    /// The server's error; the connection may go on.
    Refused(ServerError),
}

/// Sends all of `asked` in one piece and gives the answers, in order; what they tell of the connection's
/// state is noted. The deadline is the caller's to set. Behind a statement that has failed, [`NOTHING`] goes
/// first: what is told with the answer to that, nobody has asked for.
///
/// # Errors
/// The connection is of no use.
pub async fn ask_all(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    asked: &[Own<'_>],
) -> Result<Vec<OwnAnswer>, ServerFailure> {
    let mut out = Vec::with_capacity(256);
    let first: &[Own<'_>] = if server.is_untold { &[NOTHING] } else { &[] };
    for own in first.iter().chain(asked) {
        write_packet_with(&mut out, 0, |out| match own {
            Own::Query(sql) => write_query(out, server.capabilities, &[], sql),
            Own::Schema(name) => {
                out.push(ClientCommand::InitDb.byte());
                out.extend_from_slice(name);
            }
            Own::Reset => out.push(ClientCommand::ResetConnection.byte()),
            Own::Prepare(sql) => {
                out.push(ClientCommand::StmtPrepare.byte());
                out.extend_from_slice(sql);
            }
        });
    }
    server.is_at_rest = false;
    send_all(&mut *server.connection, &out, deadline, || {}).await?;
    let mut packets = Packets { buffer: buffers.borrow(SMALL).ok_or(ServerFailure::NoMemory)?, taken: 0 };
    let mut answers = Vec::with_capacity(asked.len());
    for own in first {
        if let OwnAnswer::Refused(error) = packets.answer(server, deadline, own).await? {
            return Err(ServerFailure::Refused(error));
        }
    }
    for own in asked {
        answers.push(packets.answer(server, deadline, own).await?);
    }
    if !packets.is_empty() {
        return Err(ServerFailure::Protocol(WireError::UnexpectedPacket));
    }
    server.is_at_rest = true;
    Ok(answers)
}

/// As [`ask_all`], of one thing.
pub async fn ask(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    asked: Own<'_>,
) -> Result<OwnAnswer, ServerFailure> {
    let mut answers = ask_all(server, buffers, deadline, &[asked]).await?;
    Ok(answers.pop().unwrap_or(OwnAnswer::Done))
}

/// What is learned of a connection beside its state.
#[derive(Clone, Copy)]
pub struct Settled {
    /// Its roles are those that it was known to have: servers keep them over a reset, and a routine may have
    /// set others.
    pub has_own_roles: bool,
    /// Its server runs something for new sessions (`init_connect`), which it does at a new connection, and
    /// neither at a reset nor at a change of user.
    pub has_init_connect: bool,
}

/// Has the server of a connection that was just logged in, or reset, tell of changes, and learns in what
/// state it begins. `first` is asked before, in the same write: that makes it a new session of the same
/// account, or goes to a schema; a connection whose server refuses the schema is settled in none.
pub async fn settle(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    first: Option<Own<'_>>,
) -> Result<Settled, ServerFailure> {
    let reset = matches!(first, Some(Own::Reset));
    let all = [
        first.unwrap_or(Own::Reset),
        Own::Query(trackers_sql().as_bytes()),
        Own::Query(settled_sql().as_bytes()),
    ];
    let asked = if first.is_some() { &all[..] } else { &all[1..] };
    if reset {
        server.note_renewed();
    }
    let mut answers = ask_all(server, buffers, deadline, asked).await?.into_iter();
    let mut state = TrackedState::default();
    let has_init_connect;
    match answers.next_back() {
        Some(OwnAnswer::Rows(rows)) => {
            let mut values = rows.into_iter().next().unwrap_or_default();
            has_init_connect = values.pop().flatten().is_some_and(|sql| !sql.is_empty());
            state.settle(values.iter().map(Option::as_deref));
        }
        Some(OwnAnswer::Refused(error)) => return Err(ServerFailure::Refused(error)),
        _ => return Err(ServerFailure::Protocol(WireError::UnexpectedPacket)),
    }
    let has_own_roles = !reset || server.state.roles() == state.roles();
    server.state = Rc::new(state);
    for answer in answers {
        if let OwnAnswer::Refused(error) = answer {
            return Err(ServerFailure::Refused(error));
        }
    }
    Ok(Settled { has_own_roles, has_init_connect })
}

/// Brings a connection to a state that is reachable from its own.
///
/// `Ok(Err)` is what the server says against it: the schema is gone, say. The connection may go on.
pub async fn synchronise(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    wanted: &Rc<TrackedState>,
) -> Result<Result<(), ServerError>, ServerFailure> {
    if Rc::ptr_eq(&server.state, wanted) {
        return Ok(Ok(()));
    }
    if !wanted.is_reachable_from(&server.state) {
        // It would be taken for one in no schema.
        return Err(ServerFailure::Protocol(WireError::UnexpectedPacket));
    }
    let steps = wanted.steps_from(&server.state);
    let asked = steps.iter().map(|step| match step {
        StateStep::Query(sql) => Own::Query(sql),
        StateStep::Schema(name) => Own::Schema(name),
    });
    let asked: Vec<Own<'_>> = asked.collect();
    if !asked.is_empty() {
        for answer in ask_all(server, buffers, deadline, &asked).await? {
            if let OwnAnswer::Refused(error) = answer {
                return Ok(Err(error));
            }
        }
    }
    // Equal in content from here on, and found so by a comparison of pointers the next time.
    server.state = wanted.clone();
    Ok(Ok(()))
}

/// The server's number of a statement, which is prepared where it is not yet, in the state that it belongs
/// to. The connection is in `wanted` afterwards, and a transaction that is open stays so.
pub async fn prepare(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    text: &Rc<StatementText>,
    wanted: &Rc<TrackedState>,
) -> Result<Result<u32, ServerError>, ServerFailure> {
    if let Some(id) = server.statements.find(text) {
        return Ok(Ok(id));
    }
    let mut state = text.state.with_transactions_of(&server.state);
    if !state.is_reachable_from(&server.state) {
        // A schema can not be left. What was prepared without one means the same in any.
        state = state.in_schema_of(&server.state);
    }
    if !wanted.is_reachable_from(&state) {
        // The session has lost the schema since, and a connection that is in it can not leave it.
        return Ok(Err(ServerError::needs_reprepare()));
    }
    let is_elsewhere = *server.state != state;
    let mut prepared = match is_elsewhere {
        true => synchronise(server, buffers, deadline, &Rc::new(state)).await?.map(|()| 0),
        false => Ok(0),
    };
    if prepared.is_ok() {
        prepared = match ask(server, buffers, deadline, Own::Prepare(text.text())).await? {
            OwnAnswer::Prepared(id) => {
                note_prepared(server, deadline, text, id).await?;
                Ok(id)
            }
            OwnAnswer::Refused(error) => Err(error),
            _ => return Err(ServerFailure::Protocol(WireError::UnexpectedPacket)),
        };
    }
    // Also where it is refused: the session goes on here, or another does.
    if is_elsewhere && let Err(error) = synchronise(server, buffers, deadline, wanted).await? {
        return Err(ServerFailure::Refused(error));
    }
    Ok(prepared)
}

/// Notes that a statement is prepared on a connection, and closes the one that makes room for it.
pub async fn note_prepared(
    server: &mut ServerConnection,
    deadline: &Deadline,
    text: &Rc<StatementText>,
    id: u32,
) -> Result<(), ServerFailure> {
    match server.statements.insert(text, id) {
        Some(closed) => close(server, deadline, &[closed]).await,
        None => Ok(()),
    }
}

/// Closes statements, which has no answer.
pub async fn close(
    server: &mut ServerConnection,
    deadline: &Deadline,
    ids: &[u32],
) -> Result<(), ServerFailure> {
    let out = closing(ids);
    Ok(send_all(&mut *server.connection, &out, deadline, || {}).await?)
}

/// The commands that close statements.
pub fn closing(ids: &[u32]) -> Vec<u8> {
    let mut out = Vec::with_capacity(ids.len() * (HEADER_BYTES + 5));
    for id in ids {
        write_packet_with(&mut out, 0, |out| {
            out.push(ClientCommand::StmtClose.byte());
            out.extend_from_slice(&id.to_le_bytes());
        });
    }
    out
}

/// The packets of a server's answers.
struct Packets {
    buffer: Buffer,
    /// Bytes of the packet given last, which is done with at the next.
    taken: usize,
}

impl Packets {
    fn is_empty(&self) -> bool {
        self.buffer.filled().len() == self.taken
    }

    /// The payload of the next packet, which must fit into a buffer.
    async fn next(
        &mut self,
        server: &mut ServerConnection,
        deadline: &Deadline,
    ) -> Result<&[u8], ServerFailure> {
        self.buffer.consume(self.taken);
        self.taken = 0;
        let payload_bytes = loop {
            if let Some(head) = self.buffer.filled().first_chunk::<HEADER_BYTES>() {
                let payload_bytes = PacketHeader::parse(*head).payload_bytes as usize;
                if self.buffer.filled().len() >= HEADER_BYTES + payload_bytes {
                    break payload_bytes;
                }
            }
            self.buffer.compact();
            if self.buffer.is_full() {
                return Err(ServerFailure::Protocol(WireError::UnexpectedPacket));
            }
            if receive(&mut *server.connection, &mut self.buffer, deadline).await? == 0 {
                return Err(ServerFailure::Closed);
            }
        };
        self.taken = HEADER_BYTES + payload_bytes;
        Ok(self.buffer.filled().get(HEADER_BYTES..self.taken).unwrap_or_default())
    }

    async fn answer(
        &mut self,
        server: &mut ServerConnection,
        deadline: &Deadline,
        asked: &Own<'_>,
    ) -> Result<OwnAnswer, ServerFailure> {
        let first = self.next(server, deadline).await?;
        match first.first() {
            Some(&ERR) => return Ok(OwnAnswer::Refused(ServerError::of(&ErrPacket::parse(first)?))),
            Some(&OK) if matches!(asked, Own::Prepare(_)) => {
                let mut cursor = PayloadCursor::new(first);
                cursor.u8()?;
                let id = cursor.u32()?;
                let (columns, parameters) = (cursor.u16()?, cursor.u16()?);
                for _ in 0..u32::from(columns) + u32::from(parameters) {
                    self.next(server, deadline).await?;
                }
                return Ok(OwnAnswer::Prepared(id));
            }
            Some(&OK) => {
                note_told(server, first, asked)?;
                return Ok(OwnAnswer::Done);
            }
            _ => {}
        }
        let columns = usize::try_from(PayloadCursor::new(first).integer()?).unwrap_or(usize::MAX);
        if columns > MOST_COLUMNS {
            return Err(ServerFailure::Protocol(WireError::ColumnCount));
        }
        for _ in 0..columns {
            self.next(server, deadline).await?;
        }
        let mut rows = Vec::new();
        loop {
            let packet = self.next(server, deadline).await?;
            match packet.first() {
                Some(&EOF) => {
                    note_told(server, packet, asked)?;
                    return Ok(OwnAnswer::Rows(rows));
                }
                Some(&ERR) => return Ok(OwnAnswer::Refused(ServerError::of(&ErrPacket::parse(packet)?))),
                _ if rows.len() == MOST_ROWS => {
                    return Err(ServerFailure::Protocol(WireError::UnexpectedPacket));
                }
                _ => rows.push(row(packet, columns)?),
            }
        }
    }
}

/// Takes what an OK packet tells of the connection. What none of Weir's own SETs explains, a statement of the
/// session's has left.
fn note_told(server: &mut ServerConnection, packet: &[u8], asked: &Own<'_>) -> Result<(), WireError> {
    let ok = OkPacket::parse(packet, server.capabilities)?;
    server.is_untold = false;
    let SessionChanges::Told(told) = ok.changes else { return Ok(()) };
    let is_own = match asked {
        Own::Query(sql) => sql.starts_with(b"SET "),
        Own::Schema(_) | Own::Reset | Own::Prepare(_) => true,
    };
    let is_changed = server.apply(told)?.state_changed;
    server.is_unknown |= is_changed && !is_own;
    Ok(())
}

fn row(packet: &[u8], columns: usize) -> Result<Vec<Option<Box<[u8]>>>, WireError> {
    let mut cursor = PayloadCursor::new(packet);
    let values = (0..columns).map(|_| match cursor.remaining().first() {
        Some(&NULL) => cursor.u8().map(|_| None),
        _ => cursor.string().map(|value| Some(value.into())),
    });
    values.collect()
}

impl From<WaitError> for ServerFailure {
    fn from(error: WaitError) -> ServerFailure {
        match error {
            WaitError::TimedOut => ServerFailure::TimedOut,
            WaitError::Broken(error) => ServerFailure::Broken(error),
        }
    }
}

impl From<WireError> for ServerFailure {
    fn from(error: WireError) -> ServerFailure {
        ServerFailure::Protocol(error)
    }
}

/// When a server has had long enough for a statement of Weir's own.
pub fn until() -> std::time::Duration {
    clock::now() + PATIENCE
}

/// Longest time for a server to answer a statement of Weir's own. None waits for more than a second, and that
/// one for a transaction.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
