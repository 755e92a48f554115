//! Weir's own statements on a server connection. They bring it to a session's state, query that state,
//! prepare statements, or wait for GTIDs. Clients never see their answers, and none is sent while a client's
//! statement is running.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use weir_io::buffers::{Buffer, Buffers, SMALL};
use weir_io::clock;
use weir_io::deadline::{Deadline, Deadlines};
use weir_io::stream::{Sight, Stream};
use weir_io::wait::{WaitError, receive, send_all};
use weir_mysql::WireError;
use weir_mysql::command::ClientCommand;
use weir_mysql::outcome::{EOF, ERR, ErrPacket, OK, OkPacket, SessionChanges};
use weir_mysql::packet::{HEADER_BYTES, PacketHeader, write_packet_with};
use weir_mysql::parameters::write_query;
use weir_mysql::state::{StateStep, TrackedState, settled_sql, trackers_sql};
use weir_mysql::value::{NULL, PayloadCursor};

use super::attach::ServerError;
use super::deposed::{LOOK, PrimaryAsked};
use super::exchange::ServerFailure;
use super::prepared::StatementText;
use super::server::ServerConnection;
use crate::slots::ListenerSlot;

/// Most rows in an answer to one of Weir's own statements.
const MOST_ROWS: usize = 16;
/// Most columns in such an answer.
const MOST_COLUMNS: usize = 32;

/// A command that Weir sends for itself.
#[derive(Clone, Copy)]
pub enum Own<'a> {
    /// A statement.
    Query(&'a [u8]),
    /// A change of the default schema (COM_INIT_DB). The name is in the connection's client character set.
    Schema(&'a [u8]),
    /// COM_RESET_CONNECTION.
    Reset,
    /// Prepares a statement.
    Prepare(&'a [u8]),
}

/// A statement without effect. Its OK packet reports the state changes that were not reported yet.
pub const NOTHING: Own<'static> = Own::Query(b"DO 0");

/// The answer to a command of Weir's own.
pub enum OwnAnswer {
    /// OK.
    Done,
    /// Rows; `None` is NULL.
    Rows(Vec<Vec<Option<Box<[u8]>>>>),
    /// The id of a prepared statement.
    Prepared(u32),
    /// The server's error; the connection stays usable.
    Refused(ServerError),
}

/// Sends all of `asked` in one write and returns the answers, in order. State changes that they report are
/// applied to the connection. The caller sets the deadline. After a failed statement, [`NOTHING`] is sent
/// first; the changes in its answer were not made by `asked`.
///
/// # Errors
/// The connection cannot be used any more.
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

/// As [`ask_all`], for one command.
pub async fn ask(
    server: &mut ServerConnection,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
    asked: Own<'_>,
) -> Result<OwnAnswer, ServerFailure> {
    let mut answers = ask_all(server, buffers, deadline, &[asked]).await?;
    Ok(answers.pop().unwrap_or(OwnAnswer::Done))
}

/// What else is known about a connection after [`settle`].
#[derive(Clone, Copy)]
pub struct Settled {
    /// Whether its roles are those of its login. Servers keep roles over a reset, and a routine may have set
    /// others.
    pub has_own_roles: bool,
    /// Whether its server has an `init_connect`. A server runs it for new connections only, neither after a
    /// reset nor after a change of user.
    pub has_init_connect: bool,
}

/// Runs one of Weir's own statements that may take as long as the client's statement would, for example
/// because of a lock. It ends early if the client leaves, if its server was the primary and no longer is, and
/// at the deadline of a drain.
///
/// # Errors
/// Those of `asked`; [`ServerFailure::Unwanted`] if the client has left, [`ServerFailure::Deposed`].
pub async fn for_client<T>(
    waiting: Waiting<'_>,
    asked: impl Future<Output = Result<T, ServerFailure>>,
) -> Result<T, ServerFailure> {
    let Waiting { client, slot, deadlines, deadline, primary } = waiting;
    let (mut asked, mut look) = (pin!(asked), None);
    poll_fn(|context| {
        if let Some(until) = slot.draining_until() {
            deadline.no_later_than(until);
        }
        if let Poll::Ready(answer) = asked.as_mut().poll(context) {
            return Poll::Ready(answer);
        }
        if matches!(client.poll_present(context), Ok(Sight::Ended) | Err(_)) {
            return Poll::Ready(Err(ServerFailure::Unwanted));
        }
        let is_new = look.is_none();
        let look = look.get_or_insert_with(|| deadlines.register(context.waker().clone()));
        if is_new || look.has_passed() {
            if primary.is_some_and(|it| it.is_deposed()) {
                return Poll::Ready(Err(ServerFailure::Deposed));
            }
            look.set(clock::now() + LOOK);
        }
        Poll::Pending
    })
    .await
}

/// What [`for_client`] watches while a server is at work.
pub struct Waiting<'a> {
    pub client: &'a mut Stream,
    pub slot: &'a ListenerSlot,
    pub deadlines: &'a Rc<Deadlines>,
    /// That of the statement.
    pub deadline: &'a Deadline,
    pub primary: Option<PrimaryAsked<'a>>,
}

/// Turns on the session trackers of a connection that was just logged in or reset, and reads its initial
/// state. `first` is sent before that, in the same write: a reset, or a change to a schema. If the server
/// refuses the schema, the connection is settled without one.
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

/// Brings a connection to a state that is reachable from its current one.
///
/// `Ok(Err)` is a server's error, for example because the schema no longer exists. The connection stays
/// usable.
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
        // Its recorded state would be without a schema.
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
    // The states are equal now; sharing the allocation lets the next comparison be one of pointers.
    server.state = wanted.clone();
    Ok(Ok(()))
}

/// The server's id of a statement. If it is not prepared on this connection yet, it is prepared in the state
/// that belongs to it. Afterwards the connection is in state `wanted`; an open transaction stays open.
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
        // A connection cannot leave its schema. A statement that was prepared without a schema means the same
        // in any.
        state = state.in_schema_of(&server.state);
    }
    if !wanted.is_reachable_from(&state) {
        // The session has lost its schema since then, and the connection could not leave the statement's
        // schema again.
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
    // Even if preparing failed: this session or another one continues on the connection.
    if is_elsewhere && let Err(error) = synchronise(server, buffers, deadline, wanted).await? {
        return Err(ServerFailure::Refused(error));
    }
    Ok(prepared)
}

/// Records that a statement is prepared on a connection, and closes the statement that it displaces.
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

/// Closes statements; there is no answer.
pub async fn close(
    server: &mut ServerConnection,
    deadline: &Deadline,
    ids: &[u32],
) -> Result<(), ServerFailure> {
    let out = closing(ids);
    Ok(send_all(&mut *server.connection, &out, deadline, || {}).await?)
}

/// The COM_STMT_CLOSE packets for these statements.
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

/// Reads the packets of a server's answers.
struct Packets {
    buffer: Buffer,
    /// Bytes of the last returned packet, which are dropped by the next call.
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

/// Applies the state changes in an OK packet to the connection. A change that none of Weir's own SETs
/// explains was made by a statement of the session.
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

/// The deadline for one of Weir's own statements that starts now.
pub fn until() -> std::time::Duration {
    clock::now() + PATIENCE
}

/// Longest time for a server to answer one of Weir's own statements. Only the wait for GTIDs takes long by
/// design, at most one second.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);
