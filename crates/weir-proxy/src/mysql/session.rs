//! A client's session: one command after another, each on a connection to a server that is the session's only
//! as long as something of the session's is on it.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use weir_balance::WantedRole;
use weir_config::MysqlAccess;
use weir_io::buffers::{Buffer, LARGE, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Sight, Stream};
use weir_io::wait::{receive_ready, send_all};
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::command::ClientCommand;
use weir_mysql::error_number::ER_UNKNOWN_COM_ERROR;
use weir_mysql::gtid::GtidSet;
use weir_mysql::outcome::{OK, OkPacket};
use weir_mysql::packet::{HEADER_BYTES, MAX_PAYLOAD_BYTES, PacketHeader, write_packet_with};
use weir_mysql::state::TrackedState;
use weir_mysql::{LeftBehind, OpenTransaction, ReadsBack, SessionFacts, SplitAccess};
use weir_stats::table::End;

use super::acquire::Attached;
use super::attach::ServerError;
use super::compress;
use super::failure::Refusal;
use super::kill::Killable;
use super::leaving::cut_off_at;
use super::login::Candidate;
use super::outcome::NOT_BEGUN;
use super::prepared::{Bound, ClientStatements};
use super::report::Report;
use super::server::ConnectionKind;
use crate::backends::WorkerPool;
use crate::client::Client;
use crate::worker::{ListenerSlot, Worker, WorkerListener};

/// How long a connection waits for a question about what a statement has left on it, before others get it.
const HOLD: Duration = Duration::from_millis(100);
/// Longest time without progress while a client sends a command, or takes an answer: a server's own default
/// of `net_write_timeout`.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

/// The largest packet of a command that is kept in one piece, in bytes: what is read to its end, and can be
/// sent again. A larger one is passed on as it comes, and is taken for one that may do anything.
const KEPT_BYTES: usize = 1 << 20;
/// The command byte of COM_STMT_EXECUTE.
const EXECUTE: u8 = ClientCommand::StmtExecute.byte();
/// What is read of such a longer one before it is passed on, in bytes: which values of 65,535 are NULL, and
/// the types of all, with room for attributes.
const EXECUTE_FRONT_BYTES: usize = 256 << 10;

/// What the connection that a session used last, and gave back, had of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAt {
    /// The mark of the connection when it was given back.
    pub stamp: u64,
    /// As [`Session::here`] was then.
    pub here: ReadsBack,
}

/// A session of a client that is logged in.
pub struct Session {
    pub worker: Rc<Worker>,
    pub slot: Rc<ListenerSlot>,
    pub client: Client,
    pub stream: Stream,
    /// Received and not done with.
    pub buffer: Option<Buffer>,
    pub deadline: Deadline,
    /// What the clock said when the session had waited last: what it does at once goes by it.
    pub now: Duration,
    /// By which KILL finds the session.
    pub killable: Killable,
    /// As whom the client has logged in, and what was agreed on with it.
    pub candidate: Candidate,
    /// The same, as far as connections go by it.
    pub kind: ConnectionKind,
    /// What the next statement is judged by.
    pub facts: SessionFacts,
    /// As of the last answer.
    pub status: StatusFlags,
    /// The same as a server told it last, without what is assumed behind errors.
    pub told_status: StatusFlags,
    pub state: Rc<TrackedState>,
    /// The longest time between two statements, where the session itself has set it.
    pub longest_idle: Option<Duration>,
    pub attached: Option<Attached>,
    /// Why the session keeps its connection until it is reset.
    pub pins: LeftBehind,
    /// What the statement before has left for a question of the next.
    pub held: ReadsBack,
    pub left_at: Option<LeftAt>,
    /// What the attached connection would answer about the statement before as the session's own statements
    /// have left it. Of all else it has what Weir's statements, or those of others, have left.
    pub here: ReadsBack,
    /// LAST_INSERT_ID(); `None` while only the attached connection knows it.
    pub insert_id: Option<u64>,
    /// LAST_INSERT_ID() as it was when it was known last.
    pub insert_id_before: Option<u64>,
    /// Whether the last statement had neither warnings nor an error.
    pub is_without_warnings: bool,
    /// The error of Weir's own that the last statement had; `None` where a server answered that.
    pub refused: Option<ServerError>,
    /// On a listener for reads: Weir has had the session's transactions be READ ONLY, for its server takes
    /// writes.
    pub is_made_read_only: bool,
    /// The session's state, where it was made so or taken back last, and what it was before that.
    pub suited: Option<(Rc<TrackedState>, Rc<TrackedState>)>,
    pub statements: ClientStatements,
    /// A transaction was lost with its server that the client takes for open.
    pub has_lost_transaction: bool,
    /// A statement has failed that may have committed something, of which no answer has told.
    pub has_untold_writes: bool,
    /// Transactions that the session has committed and reads must see.
    pub written: Option<GtidSet>,
    pub report: Report,
}

/// A command of which the beginning is in the session's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    pub header: PacketHeader,
    /// Its first byte; `None` for a packet without one.
    pub command: Option<u8>,
    /// Whether all of it is in the buffer.
    pub is_whole: bool,
}

impl Incoming {
    /// Bytes of the first packet.
    pub fn packet_bytes(&self) -> usize {
        HEADER_BYTES + self.header.payload_bytes as usize
    }

    /// What `received` begins with; `None` when that is not known yet.
    fn of(received: &[u8]) -> Option<Incoming> {
        let header = PacketHeader::parse(*received.first_chunk()?);
        let command = received.get(HEADER_BYTES).copied().filter(|_| header.payload_bytes > 0);
        if command.is_none() && header.payload_bytes > 0 {
            return None;
        }
        let packet_bytes = HEADER_BYTES + header.payload_bytes as usize;
        let is_whole = received.len() >= packet_bytes && (header.payload_bytes as usize) < MAX_PAYLOAD_BYTES;
        Some(Incoming { header, command, is_whole })
    }
}

impl Session {
    /// Serves commands until there are no more.
    pub async fn run(&mut self) -> End {
        loop {
            let incoming = match self.next_command().await {
                Ok(incoming) => incoming,
                Err(end) => return self.tell_what_broke(end).await,
            };
            if let Err(end) = self.serve(incoming).await {
                return self.tell_what_broke(end).await;
            }
        }
    }

    /// Says what is wrong with what the client has compressed, if that is why the session ends.
    async fn tell_what_broke(&mut self, end: End) -> End {
        if !matches!(end, End::ClientClosed | End::Done) || self.candidate.compression.is_none() {
            return end;
        }
        let readable = poll_fn(|context| Poll::Ready(self.stream.poll_readable(context))).await;
        let Poll::Ready(Err(error)) = readable else { return end };
        match compress::cause(&error) {
            Some(cause) => {
                let refused = self.refuse(1, Refusal::of_compression(cause)).await;
                refused.err().unwrap_or(End::BadRequest)
            }
            None if error.kind() == io::ErrorKind::OutOfMemory => End::Overload,
            None => end,
        }
    }

    /// The listener as it is configured now.
    pub fn listener(&self) -> Rc<WorkerListener> {
        self.slot.current()
    }

    /// The pool of the listener; `None` when its last reload has left it without one.
    pub fn pool(&self) -> Option<Rc<WorkerPool>> {
        let listener = self.slot.current();
        listener.pools.get(listener.compiled.routes.default_pool()?).cloned()
    }

    /// The bytes that were received and not done with.
    pub fn received(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Buffer::filled)
    }

    /// Drops the first `count` received bytes.
    pub fn consume(&mut self, count: usize) {
        if let Some(buffer) = &mut self.buffer {
            buffer.consume(count);
            if buffer.is_empty() {
                self.buffer = None;
            }
        }
    }

    /// Waits until the next command is whole, or as much of it as is kept in one piece.
    async fn next_command(&mut self) -> Result<Incoming, End> {
        loop {
            if let Some(incoming) = Incoming::of(self.received()) {
                let enough = if incoming.command == Some(EXECUTE) { EXECUTE_FRONT_BYTES } else { LARGE };
                let is_too_long = incoming.packet_bytes() > KEPT_BYTES && self.received().len() >= enough;
                if incoming.is_whole || is_too_long {
                    self.now = clock::now();
                    self.deadline.set_idle(None);
                    return Ok(incoming);
                }
                self.grow(&incoming)?;
            }
            self.wait_for_client().await?;
            let worker = self.worker.clone();
            let mut buffer = match self.buffer.take() {
                Some(mut buffer) => {
                    buffer.compact();
                    buffer
                }
                None => worker.buffers.borrow(SMALL).ok_or(End::Overload)?,
            };
            match receive_ready(&mut self.stream, &mut buffer).await {
                Ok(0) | Err(_) => return Err(self.client_left()),
                Ok(count) => self.note_received(count),
            }
            self.buffer = Some(buffer);
        }
    }

    /// The end of a session whose client is gone: in order, when nothing was under way.
    fn client_left(&self) -> End {
        if self.attached.is_none() && self.buffer.is_none() { End::Done } else { End::ClientClosed }
    }

    /// Makes room for all of a packet at once, where that is not too much.
    fn grow(&mut self, incoming: &Incoming) -> Result<(), End> {
        let wanted = match incoming.packet_bytes() {
            short @ ..=KEPT_BYTES => short,
            _ if incoming.command == Some(EXECUTE) => EXECUTE_FRONT_BYTES,
            _ => LARGE,
        };
        let Some(held) = self.buffer.as_ref().filter(|held| held.capacity() < wanted) else { return Ok(()) };
        let mut larger = self.worker.buffers.borrow(wanted).ok_or(End::Overload)?;
        larger.append(held.filled());
        self.buffer = Some(larger);
        Ok(())
    }

    fn note_received(&mut self, count: usize) {
        self.report.from_client += count as u64;
        self.listener().shared.cells.of(self.worker.number).bytes_received.add(count as u64);
    }

    /// Waits until the client has said something. Meanwhile what only a question of the next statement would
    /// need is given back, and a session that holds nothing may be asked to make room.
    async fn wait_for_client(&mut self) -> Result<(), End> {
        loop {
            let now = clock::now();
            self.now = now;
            let is_between = self.buffer.is_none();
            let idle = match is_between {
                true => {
                    let most = self.listener().shared.config.timeout.client_idle;
                    self.longest_idle.map_or(most, |asked| asked.min(most))
                }
                false => CLIENT_PATIENCE,
            };
            let is_holding = is_between && self.is_only_holding();
            let until = now + if is_holding { HOLD } else { idle };
            self.deadline.set(until);
            self.deadline.set_idle((is_between && self.attached.is_none()).then_some(now));
            match self.client_speaks().await {
                Wait::Speaks => return Ok(()),
                Wait::Killed => return Err(End::Killed),
                // The client hears of it at its next statement: nothing that it did was committed.
                Wait::ServerLeft if self.is_transaction_alone() => self.lose_transaction(),
                // It was kept for a question that may never come.
                Wait::ServerLeft if self.is_only_holding() => {
                    self.killable.note(None);
                    (self.attached, self.left_at) = (None, None);
                }
                Wait::ServerLeft => return Err(self.tell_server_left().await),
                Wait::Drained => return Err(self.refuse_and_end(Refusal::draining()).await),
                Wait::Shed => return Err(self.refuse_and_end(Refusal::draining()).await),
                Wait::Overtime if is_holding => self.release_held().await,
                Wait::Overtime if is_between => return Err(self.refuse_and_end(Refusal::idle()).await),
                Wait::Overtime => return Err(End::ClientBody),
            }
        }
    }

    async fn client_speaks(&mut self) -> Wait {
        let is_at_boundary = self.buffer.is_none() && self.attached.is_none();
        let Session { stream, attached, deadline, slot, killable, worker, .. } = self;
        poll_fn(|context| {
            if killable.is_killed() {
                return Poll::Ready(Wait::Killed);
            }
            if let Some(until) = cut_off_at(worker, slot, attached.as_ref()) {
                // Also one that always has a next statement.
                if until <= clock::now() {
                    return Poll::Ready(Wait::Drained);
                }
                deadline.no_later_than(until);
            }
            if stream.poll_readable(context).is_ready() {
                return Poll::Ready(Wait::Speaks);
            }
            if let Some(attached) = attached
                && !matches!(attached.server.connection.poll_present(context), Ok(Sight::Quiet))
            {
                return Poll::Ready(Wait::ServerLeft);
            }
            if is_at_boundary && slot.draining_until().is_some() {
                return Poll::Ready(Wait::Drained);
            }
            if deadline.has_passed() {
                return Poll::Ready(Wait::Overtime);
            }
            if deadline.is_shed() {
                return Poll::Ready(Wait::Shed);
            }
            Poll::Pending
        })
        .await
    }

    /// Whether all that the session has on its connection is a transaction.
    pub fn is_transaction_alone(&self) -> bool {
        self.is_in_transaction() && self.pins.is_empty() && !self.statements.is_any_bound()
    }

    fn lose_transaction(&mut self) {
        self.killable.note(None);
        if let Some(mut attached) = self.attached.take() {
            attached.server.is_at_rest = false;
            attached.chosen.pool.shared.nudge.ask();
            attached.chosen.pool.cells().failed.increment();
            self.has_lost_transaction = true;
        }
        self.end_transaction();
    }

    /// Passes on what a server said unasked on the session's own connection: it closes that.
    async fn tell_server_left(&mut self) -> End {
        if let Some(attached) = &self.attached {
            attached.chosen.pool.cells().failed.increment();
        }
        if let Some(mut attached) = self.attached.take()
            && let Some(mut buffer) = self.worker.buffers.borrow(SMALL)
        {
            attached.server.is_at_rest = false;
            let said = poll_fn(|context| attached.server.connection.poll_receive(context, &mut buffer)).await;
            if said.is_ok_and(|count| count > 0) {
                self.send(buffer.filled()).await.ok();
            }
        }
        End::BackendClosed
    }

    /// Whether the session is attached for nothing but a question of its next statement.
    pub fn is_only_holding(&self) -> bool {
        self.attached.is_some() && !self.keeps_connection()
    }

    /// Whether something of the session's is on its connection that no other has.
    pub fn keeps_connection(&self) -> bool {
        self.is_in_transaction() || !self.pins.is_empty() || self.statements.is_any_bound()
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.status.has(StatusFlags::IN_TRANS)
    }

    /// Sends bytes of Weir's own to the client.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.send_behind(clock::now(), bytes).await
    }

    /// The same, behind what was done at `now` and took no time.
    pub async fn send_behind(&mut self, now: Duration, bytes: &[u8]) -> Result<(), End> {
        self.deadline.set(now + CLIENT_PATIENCE);
        let renew = || self.deadline.set(clock::now() + CLIENT_PATIENCE);
        send_all(&mut self.stream, bytes, &self.deadline, renew).await.map_err(|_| End::ClientClosed)?;
        self.note_sent(bytes.len() as u64);
        Ok(())
    }

    /// Counts bytes that the client has taken.
    pub fn note_sent(&mut self, count: u64) {
        self.report.to_client += count;
        self.listener().shared.cells.of(self.worker.number).bytes_sent.add(count);
    }

    /// Answers with an OK packet that says nothing but the session's status.
    pub async fn send_ok(&mut self, sequence: u8) -> Result<(), End> {
        let mut out = Vec::with_capacity(16);
        let capabilities = self.candidate.capabilities;
        write_packet_with(&mut out, sequence, |out| {
            OkPacket::of(self.told_status).write(out, OK, capabilities)
        });
        self.send(&out).await
    }

    /// Answers a command with an error, behind `sequence`; the session ends where the refusal says so.
    pub async fn refuse(&mut self, sequence: u8, refusal: Refusal) -> Result<(), End> {
        let mut out = Vec::with_capacity(128);
        refusal.error.write(&mut out, sequence);
        // At a server such an error comes to what the statement before has left, of which nothing is known.
        let adds = NOT_BEGUN.contains(&refusal.error.code) || refusal.error.code == ER_UNKNOWN_COM_ERROR;
        (self.is_without_warnings, self.refused) = (false, Some(refusal.error).filter(|_| !adds));
        let replaced = ReadsBack::WARNINGS.and(ReadsBack::ROW_COUNT);
        self.here = self.here.without(replaced);
        if let Some(left_at) = &mut self.left_at {
            left_at.here = left_at.here.without(replaced);
        }
        match refusal.end {
            None => self.send(&out).await,
            Some(end) => {
                self.send(&out).await.ok();
                Err(end)
            }
        }
    }

    /// Begins a session, or begins it anew, in this state of a server.
    pub fn begin(&mut self, state: &Rc<TrackedState>) {
        let is_on = state.variable("autocommit") != Some(b"OFF");
        self.status = if is_on { StatusFlags::AUTOCOMMIT } else { StatusFlags::default() };
        self.told_status = self.status;
        self.take_state(state);
        self.renew_facts();
        (self.pins, self.held, self.insert_id) = (LeftBehind::NONE, ReadsBack::NONE, Some(0));
        self.insert_id_before = Some(0);
        (self.is_without_warnings, self.left_at, self.here) = (true, None, ReadsBack::NONE);
        (self.refused, self.is_made_read_only) = (None, false);
        self.statements.clear();
        self.has_lost_transaction = false;
    }

    /// Notes what a statement has on the session's connection.
    pub fn set_bound(&mut self, id: u32, change: impl FnOnce(&mut Bound)) {
        self.statements.set_bound(id, change);
        if let (Some(statement), Some(attached)) = (self.statements.get(id), &mut self.attached) {
            attached.server.statements.bind(&statement.text, statement.bound.is_any());
        }
    }

    /// Takes the facts that follow from status and state.
    pub fn renew_facts(&mut self) {
        self.facts.transaction = match self.status {
            status if !status.has(StatusFlags::IN_TRANS) => OpenTransaction::None,
            status if status.has(StatusFlags::IN_TRANS_READONLY) => OpenTransaction::ReadOnly,
            _ => OpenTransaction::ReadWrite,
        };
        self.facts.autocommit = self.status.has(StatusFlags::AUTOCOMMIT);
        let access = self.listener().shared.config.mysql().map(|mysql| mysql.access);
        self.facts.access = split_access(access.unwrap_or(MysqlAccess::ReadWrite));
    }

    /// Takes the state of the connection that the session has used.
    pub fn take_state(&mut self, state: &Rc<TrackedState>) {
        if !Rc::ptr_eq(&self.state, state) {
            self.state = self.worker.mysql_states.shared(state);
            let ignores_space = self.kind.capabilities.has(Capabilities::IGNORE_SPACE);
            self.facts.dialect = state.dialect(ignores_space);
            self.facts.is_in_own_schema = state.is_in_own_schema();
            self.longest_idle = state.longest_idle();
        }
    }
}

/// What became of a wait for the client.
enum Wait {
    Speaks,
    Killed,
    ServerLeft,
    Drained,
    Shed,
    Overtime,
}

/// The classifier's word for what a listener's `access` says.
pub fn split_access(access: MysqlAccess) -> SplitAccess {
    match access {
        MysqlAccess::Auto => SplitAccess::Auto,
        MysqlAccess::ReadWrite => SplitAccess::ReadWrite,
        MysqlAccess::ReadOnly => SplitAccess::ReadOnly,
    }
}

/// The role in the balancer's terms.
pub fn wanted_role(wants: weir_mysql::RoleWanted) -> WantedRole {
    match wants {
        weir_mysql::RoleWanted::Primary => WantedRole::Primary,
        weir_mysql::RoleWanted::AnyMember => WantedRole::Read,
    }
}
