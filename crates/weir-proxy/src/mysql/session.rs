//! A client's session. It runs one command after another, each on a connection to a server. The connection
//! belongs to the session only as long as it holds session state.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use weir_balance::WantedRole;
use weir_config::MysqlAccess;
use weir_io::buffers::{Buffer, Held, LARGE, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::{Duplex as _, Sight, Stream};
use weir_io::wait::{receive_ready, send_all};
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::command::ClientCommand;
use weir_mysql::error_number::ER_UNKNOWN_COM_ERROR;
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
use super::unfinished::Unfinished;
use super::written::Written;
use crate::backends::WorkerPool;
use crate::client::Client;
use crate::worker::{ListenerSlot, Worker, WorkerListener};

/// How long an idle session keeps its connection for a question about its last statement, before others may
/// use it.
const HOLD: Duration = Duration::from_millis(100);
/// Longest time without progress while a client sends a command or takes an answer. It is a server's own
/// default for `net_write_timeout`.
pub const CLIENT_PATIENCE: Duration = Duration::from_secs(60);

/// The largest packet of a command that is buffered whole (bytes). Such a command is fully classified and can
/// be sent again. A larger one is forwarded as it arrives, and is treated as if it could do anything.
const KEPT_BYTES: usize = 1 << 20;
/// The command byte of COM_QUERY.
pub const QUERY: u8 = ClientCommand::Query.byte();
/// The command byte of COM_STMT_EXECUTE.
pub const EXECUTE: u8 = ClientCommand::StmtExecute.byte();
/// How much of a larger COM_STMT_EXECUTE is read before it is forwarded (bytes): room for the NULL bitmap and
/// types of 65,535 values, and for attributes.
const EXECUTE_FRONT_BYTES: usize = 256 << 10;

/// The state of the connection that a session used last and gave back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftAt {
    /// The connection's stamp when it was given back.
    pub stamp: u64,
    /// The value of [`Session::here`] at that time.
    pub here: ReadsBack,
}

/// The session of a client that has logged in.
pub struct Session {
    pub worker: Rc<Worker>,
    pub slot: Rc<ListenerSlot>,
    pub client: Client,
    pub stream: Stream,
    /// Bytes that were received and not yet consumed.
    pub buffer: Option<Buffer>,
    pub deadline: Deadline,
    /// The time after the session's last wait; work that needs no wait uses it instead of the clock.
    pub now: Duration,
    /// Whether no time has passed since `now`, except for what takes no wait.
    pub is_now_fresh: bool,
    /// The entry by which KILL finds the session.
    pub killable: Killable,
    /// The client's login: its account and what was negotiated with it.
    pub candidate: Candidate,
    /// The memory of its connection attributes, of which a client may send 64 KiB.
    pub attributes_held: Held,
    /// The part of the login that decides which server connections the session may use.
    pub kind: ConnectionKind,
    /// The facts by which the next statement is classified.
    pub facts: SessionFacts,
    /// The session's status after the last answer.
    pub status: StatusFlags,
    /// The status that a server reported last, without what Weir assumes after errors.
    pub told_status: StatusFlags,
    pub state: Rc<TrackedState>,
    /// The longest time between two statements, if the session itself has set it (`wait_timeout`).
    pub longest_idle: Option<Duration>,
    pub attached: Option<Attached>,
    /// What the current statement has reached at once, for the general way to continue from.
    pub unfinished: Unfinished,
    /// Why the session must keep its connection until it is reset.
    pub pins: LeftBehind,
    /// What the previous statement left that the next one may ask about.
    pub held: ReadsBack,
    pub left_at: Option<LeftAt>,
    /// The questions about previous statements that the attached connection answers correctly for this
    /// session. For all other questions, statements of Weir or of other sessions have replaced the answer.
    pub here: ReadsBack,
    /// LAST_INSERT_ID(); `None` while only the attached connection knows it.
    pub insert_id: Option<u64>,
    /// The last known LAST_INSERT_ID().
    pub insert_id_before: Option<u64>,
    /// Whether the last statement had neither warnings nor an error.
    pub is_without_warnings: bool,
    /// Whether the last statement was a read that succeeded: ROW_COUNT() is -1, wherever it is asked for.
    pub has_left_rows: bool,
    /// Weir's own error for the last statement; `None` if a server answered it.
    pub refused: Option<ServerError>,
    /// On a listener for reads: whether Weir has made the session's transactions READ ONLY, because its
    /// server takes writes.
    pub is_made_read_only: bool,
    /// The session's state after Weir last did or undid that, and the state before.
    pub suited: Option<(Rc<TrackedState>, Rc<TrackedState>)>,
    pub statements: ClientStatements,
    /// Whether a transaction was lost with its server while the client believes that it is open.
    pub has_lost_transaction: bool,
    /// Whether a statement has failed that may have committed something that no answer reported.
    pub has_untold_writes: bool,
    pub written: Written,
    pub report: Report,
}

/// A command whose beginning is in the session's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Incoming {
    pub header: PacketHeader,
    /// Its command byte; `None` for an empty packet.
    pub command: Option<u8>,
    /// Whether all of it is in the buffer.
    pub is_whole: bool,
}

impl Incoming {
    /// Bytes of the first packet, including its header.
    pub fn packet_bytes(&self) -> usize {
        HEADER_BYTES + self.header.payload_bytes as usize
    }

    /// The command at the front of `received`; `None` while too little has arrived.
    #[inline]
    pub fn of(received: &[u8]) -> Option<Incoming> {
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
    /// Sends an error to the client if the session ends because its compressed packets are invalid.
    pub async fn tell_what_broke(&mut self, end: End) -> End {
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

    /// The listener with its current configuration.
    pub fn listener(&self) -> Rc<WorkerListener> {
        self.slot.current()
    }

    /// The listener's pool; `None` if a reload has left it without one.
    pub fn pool(&self) -> Option<Rc<WorkerPool>> {
        let listener = self.slot.look();
        listener.pools.get(listener.compiled.routes.default_pool()?).cloned()
    }

    /// The bytes that were received and not yet consumed.
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

    /// Waits until the next command is complete, or as much of it as is buffered.
    pub async fn next_command(&mut self) -> Result<Incoming, End> {
        loop {
            if let Some(incoming) = Incoming::of(self.received()) {
                let enough = if incoming.command == Some(EXECUTE) { EXECUTE_FRONT_BYTES } else { LARGE };
                let is_too_long = incoming.packet_bytes() > KEPT_BYTES && self.received().len() >= enough;
                if incoming.is_whole || is_too_long {
                    self.begin_command();
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

    /// Notes that the session is not idle any more, and since when.
    #[inline]
    pub fn begin_command(&mut self) {
        (self.now, self.is_now_fresh) = (clock::now(), false);
        self.deadline.set_idle(None);
    }

    /// How a session ends when its client has gone: normally, if nothing was under way.
    pub fn client_left(&self) -> End {
        if self.attached.is_none() && self.buffer.is_none() { End::Done } else { End::ClientClosed }
    }

    /// Gets more room for a packet once there is none left, up to the limit: twice as much as has come, for a
    /// client that announces a long command may never send it.
    fn grow(&mut self, incoming: &Incoming) -> Result<(), End> {
        let most = match incoming.packet_bytes() {
            short @ ..=KEPT_BYTES => short,
            _ if incoming.command == Some(EXECUTE) => EXECUTE_FRONT_BYTES,
            _ => LARGE,
        };
        let is_used_up = |held: &&Buffer| held.filled().len() == held.capacity() && held.capacity() < most;
        let Some(held) = self.buffer.as_ref().filter(is_used_up) else { return Ok(()) };
        let wanted = most.min((2 * held.capacity()).max(LARGE));
        let mut larger = self.worker.buffers.borrow(wanted).ok_or(End::Overload)?;
        larger.append(held.filled());
        self.buffer = Some(larger);
        Ok(())
    }

    #[inline]
    pub fn note_received(&mut self, count: usize) {
        self.report.from_client += count as u64;
        self.slot.look().shared.cells.of(self.worker.number).bytes_received.add(count as u64);
    }

    /// Waits until the client sends something.
    async fn wait_for_client(&mut self) -> Result<(), End> {
        loop {
            self.begin_wait();
            match poll_fn(|context| self.poll_client(context)).await {
                Wait::Speaks => return Ok(()),
                wait => self.end_wait(wait).await?,
            }
        }
    }

    /// Begins a wait for the client. A connection that is only held for a possible question of the next
    /// statement is given back after a while. A session without a connection may be shed.
    #[inline]
    pub fn begin_wait(&mut self) {
        let now = if std::mem::take(&mut self.is_now_fresh) { self.now } else { clock::now() };
        self.now = now;
        let is_between = self.buffer.is_none();
        let longest = match is_between {
            true if self.is_only_holding() => HOLD,
            true => {
                let most = self.slot.look().shared.config.timeout.client_idle;
                self.longest_idle.map_or(most, |asked| asked.min(most))
            }
            false => CLIENT_PATIENCE,
        };
        self.deadline.set(now + longest);
        self.deadline.set_idle((is_between && self.attached.is_none()).then_some(now));
    }

    /// Handles the end of a wait. Err is the end of the session.
    pub async fn end_wait(&mut self, wait: Wait) -> Result<(), End> {
        let is_between = self.buffer.is_none();
        match wait {
            Wait::Speaks => {}
            Wait::Killed => return Err(End::Killed),
            // The client gets the error with its next statement: nothing of the transaction was committed.
            Wait::ServerLeft if self.is_transaction_alone() => self.lose_transaction(),
            // It was only kept for a question that may never come.
            Wait::ServerLeft if self.is_only_holding() => {
                self.killable.note(None);
                (self.attached, self.left_at) = (None, None);
            }
            Wait::ServerLeft => return Err(self.tell_server_left().await),
            Wait::Drained | Wait::Shed => return Err(self.refuse_and_end(Refusal::draining()).await),
            Wait::Overtime if is_between && self.is_only_holding() => self.release_held().await,
            Wait::Overtime if is_between => return Err(self.refuse_and_end(Refusal::idle()).await),
            Wait::Overtime => return Err(End::ClientBody),
        }
        Ok(())
    }

    /// Why a wait for the client ends whatever the client does: it was killed, or cut off by a drain.
    #[inline]
    pub fn is_stopped(&mut self) -> Option<Wait> {
        if self.killable.is_killed() {
            return Some(Wait::Killed);
        }
        let until = cut_off_at(&self.worker, &self.slot, self.attached.as_ref())?;
        // The deadline also applies to a client that always has another statement.
        if until <= clock::now() {
            return Some(Wait::Drained);
        }
        self.deadline.no_later_than(until);
        None
    }

    /// Ready once the client sends something, or the wait for it ends.
    pub fn poll_client(&mut self, context: &mut Context<'_>) -> Poll<Wait> {
        if let Some(wait) = self.is_stopped() {
            return Poll::Ready(wait);
        }
        if self.stream.poll_readable(context).is_ready() {
            return Poll::Ready(Wait::Speaks);
        }
        if let Some(attached) = &mut self.attached {
            if !matches!(attached.server.connection.poll_present(context), Ok(Sight::Quiet)) {
                return Poll::Ready(Wait::ServerLeft);
            }
        } else if self.buffer.is_none() && self.slot.draining_until().is_some() {
            return Poll::Ready(Wait::Drained);
        }
        if self.deadline.has_passed() {
            return Poll::Ready(Wait::Overtime);
        }
        if self.deadline.is_shed() {
            return Poll::Ready(Wait::Shed);
        }
        Poll::Pending
    }

    /// Whether the only session state on its connection is a transaction.
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

    /// Forwards what a server sent unasked on the session's own connection: it is closing it.
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

    /// Whether the session holds its connection only for a possible question of its next statement.
    pub fn is_only_holding(&self) -> bool {
        self.attached.is_some() && !self.keeps_connection()
    }

    /// Whether the connection has session state that exists nowhere else.
    pub fn keeps_connection(&self) -> bool {
        self.is_in_transaction() || !self.pins.is_empty() || self.statements.is_any_bound()
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.status.has(StatusFlags::IN_TRANS)
    }

    /// Sends Weir's own bytes to the client.
    pub async fn send(&mut self, bytes: &[u8]) -> Result<(), End> {
        self.send_behind(clock::now(), bytes).await
    }

    /// The same with a known time `now`, after work that took no time.
    pub async fn send_behind(&mut self, now: Duration, bytes: &[u8]) -> Result<(), End> {
        self.deadline.set(now + CLIENT_PATIENCE);
        let renew = || self.deadline.set(clock::now() + CLIENT_PATIENCE);
        send_all(&mut self.stream, bytes, &self.deadline, renew).await.map_err(|_| End::ClientClosed)?;
        self.note_sent(bytes.len() as u64);
        Ok(())
    }

    /// Counts bytes that the client has taken.
    #[inline]
    pub fn note_sent(&mut self, count: u64) {
        self.report.to_client += count;
        self.slot.look().shared.cells.of(self.worker.number).bytes_sent.add(count);
    }

    /// Answers with an OK packet that has only the session's status.
    pub async fn send_ok(&mut self, sequence: u8) -> Result<(), End> {
        let mut out = Vec::with_capacity(16);
        let capabilities = self.candidate.capabilities;
        write_packet_with(&mut out, sequence, |out| {
            OkPacket::of(self.told_status).write(out, OK, capabilities)
        });
        self.send(&out).await
    }

    /// Notes that a statement which no server has seen replaced the warnings and the count of the one before.
    fn note_replaced(&mut self) {
        self.has_left_rows = false;
        let replaced = ReadsBack::WARNINGS.and(ReadsBack::ROW_COUNT);
        self.here = self.here.without(replaced);
        if let Some(left_at) = &mut self.left_at {
            left_at.here = left_at.here.without(replaced);
        }
    }

    /// Answers a statement that Weir itself has run, as [`Session::send_ok`] does. It had no warnings.
    pub async fn answer_ok(&mut self, sequence: u8) -> Result<(), End> {
        (self.is_without_warnings, self.refused) = (true, None);
        self.note_replaced();
        self.send_ok(sequence).await
    }

    /// Answers a command with an error; `sequence` is the id of the error packet. Err if the refusal ends the
    /// session.
    pub async fn refuse(&mut self, sequence: u8, refusal: Refusal) -> Result<(), End> {
        let mut out = Vec::with_capacity(128);
        refusal.error.in_charset(self.state.variable("character_set_results")).write(&mut out, sequence);
        // A server would add such an error to the diagnostics of the previous statement, which are unknown
        // here.
        let adds = NOT_BEGUN.contains(&refusal.error.code) || refusal.error.code == ER_UNKNOWN_COM_ERROR;
        (self.is_without_warnings, self.refused) = (false, Some(refusal.error).filter(|_| !adds));
        self.note_replaced();
        match refusal.end {
            None => self.send(&out).await,
            Some(end) => {
                self.send(&out).await.ok();
                Err(end)
            }
        }
    }

    /// Starts the session, or restarts it, in this initial state of a server connection.
    pub fn begin(&mut self, state: &Rc<TrackedState>) {
        let is_on = state.variable("autocommit") != Some(b"OFF");
        self.status = if is_on { StatusFlags::AUTOCOMMIT } else { StatusFlags::default() };
        self.told_status = self.status;
        self.take_state(state);
        self.renew_facts();
        (self.pins, self.held, self.insert_id) = (LeftBehind::NONE, ReadsBack::NONE, Some(0));
        self.insert_id_before = Some(0);
        (self.is_without_warnings, self.left_at, self.here) = (true, None, ReadsBack::NONE);
        (self.refused, self.is_made_read_only, self.has_left_rows) = (None, false, false);
        self.statements.clear();
        self.has_lost_transaction = false;
        self.attributes_held.set(self.candidate.attributes.len() as u64);
    }

    /// Updates what a prepared statement has bound to the session's connection.
    pub fn set_bound(&mut self, id: u32, change: impl FnOnce(&mut Bound)) {
        self.statements.set_bound(id, change);
        if let (Some(statement), Some(attached)) = (self.statements.get(id), &mut self.attached) {
            attached.server.statements.bind(&statement.text, statement.bound.is_any());
        }
    }

    /// Derives the session facts from its status and state.
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

    /// Takes over the state of the connection that the session has used.
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

/// How a wait for the client ended.
pub enum Wait {
    Speaks,
    Killed,
    ServerLeft,
    Drained,
    Shed,
    Overtime,
}

/// The classifier's type for a listener's `access`.
pub fn split_access(access: MysqlAccess) -> SplitAccess {
    match access {
        MysqlAccess::Auto => SplitAccess::Auto,
        MysqlAccess::ReadWrite => SplitAccess::ReadWrite,
        MysqlAccess::ReadOnly => SplitAccess::ReadOnly,
    }
}

/// The balancer's type for a role.
pub fn wanted_role(wants: weir_mysql::RoleWanted) -> WantedRole {
    match wants {
        weir_mysql::RoleWanted::Primary => WantedRole::Primary,
        weir_mysql::RoleWanted::AnyMember => WantedRole::Read,
    }
}
