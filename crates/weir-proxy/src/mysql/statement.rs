//! One statement of a session: where it runs, what comes back, and what the session has of it afterwards.

use std::rc::Rc;
use std::time::Duration;

use weir_balance::Role;
use weir_io::clock;
use weir_mysql::answer::AnswerReader;
use weir_mysql::capability::StatusFlags;
use weir_mysql::command::ClientCommand;
use weir_mysql::response::{DEFAULT_HEAD_BYTES, PreparedStatement};
use weir_mysql::{
    LeftBehind, OpenTransaction, ReadsBack, Resend, RoleWanted, RouteReason, SplitAccess, StatementKind,
    StatementVerdict, TransactionStep,
};
use weir_stats::table::{End, PIN_REASONS, STATEMENT_REASONS};

use super::acquire::{Attached, take_role_off};
use super::attach::ServerError;
use super::deposed::PrimaryAsked;
use super::exchange::{Answered, Answering, ExchangeError, Forwarding, Rest};
use super::failure::Refusal;
use super::outcome::Outcome;
use super::own;
use super::prepared::{Bound, StatementText};
use super::session::{CLIENT_PATIENCE, Incoming, Session};
use super::upload::{Beginning, Source, done_with};

const _: () = assert!(RouteReason::ALL.len() <= STATEMENT_REASONS && LeftBehind::ALL.len() <= PIN_REASONS);

/// Most servers that a statement is lost with, or refused by as read-only, before its client is told.
const MOST_LOSSES: u32 = 3;

/// A command under way.
pub struct Running<'a> {
    pub incoming: Incoming,
    pub command: ClientCommand,
    pub verdict: StatementVerdict,
    /// The text that is to be prepared, and the client's number for it.
    pub prepares: Option<(&'a Rc<StatementText>, u32)>,
    /// The client's number of the statement that is executed, or whose cursor is read.
    pub executes: Option<u32>,
    /// Whether it is an execution whose rows are to stay with a cursor.
    pub asks_cursor: bool,
}

/// How an attempt ended.
pub enum Attempted {
    /// The client has its answer, which may have been that a statement is prepared.
    Answered(Option<PreparedStatement>),
    /// Nothing has happened, and it is to be tried again.
    Again,
}

/// The servers that a statement was lost with.
#[derive(Default)]
pub struct Losses {
    count: u32,
    last: Option<String>,
}

impl Losses {
    /// The name of the last of them.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Counts one whose connection was lost before the statement was sent; `false` when there were too many.
    pub fn add(&mut self) -> bool {
        self.count += 1;
        self.may_go_on()
    }

    /// Counts one that the statement was lost with, by its name.
    pub fn add_named(&mut self, server: String) {
        (self.count, self.last) = (self.count + 1, Some(server));
    }

    /// Whether another may be tried.
    pub fn may_go_on(&self) -> bool {
        self.count < MOST_LOSSES
    }
}

impl Session {
    /// Runs a statement that is sent as it came, on whatever server it belongs to.
    pub async fn run_statement(&mut self, running: Running<'_>) -> Result<(), End> {
        let mut losses = Losses::default();
        loop {
            if let Err(refusal) = self.attach_for(&running.verdict, losses.last()).await {
                return self.refuse_command(&running.incoming, refusal).await;
            }
            if let Attempted::Answered(_) = self.attempt(&running, Beginning::default(), &mut losses).await? {
                return Ok(());
            }
        }
    }

    /// Refuses a command of which nothing was sent to a server.
    pub async fn refuse_command(&mut self, incoming: &Incoming, refusal: Refusal) -> Result<(), End> {
        let sequence = incoming.header.sequence.wrapping_add(1);
        if !incoming.is_whole {
            // The rest of it is on its way, and would be taken for the next.
            self.refuse(sequence, refusal).await.ok();
            return Err(End::BadRequest);
        }
        self.consume(incoming.packet_bytes());
        self.refuse(sequence, refusal).await
    }

    /// One attempt on the attached server: sends the command, passes the answer on, and settles what follows.
    pub async fn attempt(
        &mut self,
        running: &Running<'_>,
        beginning: Beginning<'_>,
        losses: &mut Losses,
    ) -> Result<Attempted, End> {
        let begun = self.now;
        let before = Before {
            is_in_transaction: self.is_in_transaction(),
            is_pinned: !self.pins.is_empty() || self.statements.is_any_bound(),
        };
        let mut exchanged = self.exchange(running, beginning, begun).await?;
        if running.prepares.is_some() && exchanged.wants_room() && Box::pin(self.make_room()).await {
            exchanged = self.exchange(running, Beginning::default(), begun).await?;
        }
        let Exchanged { answered, mut outcome, forwarded, is_done_with } = exchanged;
        self.note_sent(forwarded);
        let rest = match answered {
            Ok(rest) => rest,
            Err(error) => return self.failed(running, error, before, losses, is_done_with).await,
        };
        if let Some((text, _)) = running.prepares
            && let Some(prepared) = outcome.prepared
            && let Some(attached) = &mut self.attached
        {
            let id = prepared.statement_id;
            if own::note_prepared(&mut attached.server, &self.deadline, text, id).await.is_err() {
                attached.server.is_at_rest = false;
            }
            Box::pin(self.close_beyond_room()).await;
        }
        if forwarded == 0 && self.is_to_be_sent_again(running, &outcome, before, losses) {
            return Ok(Attempted::Again);
        }
        let collation = outcome.opens_collation.then(|| self.named_collation(running));
        if !is_done_with {
            self.consume(running.incoming.packet_bytes());
        }
        if let Some(told) = collation {
            self.take_collation(told, &mut outcome).await?;
        }
        // Of several statements those before have answers too, which stay.
        let is_alone = running.verdict.statements <= 1;
        let is_replicas_word = forwarded == 0 && is_alone && self.is_refused_as_replica(&outcome);
        let mut ends = self.settle(running, &outcome);
        if self.is_stuck(&outcome) {
            ends = ends.or(Some(End::BackendClosed));
        }
        let sent = match is_replicas_word {
            true => {
                let sequence = running.incoming.header.sequence.wrapping_add(1);
                self.refuse(sequence, Refusal::write_in_read_only_transaction()).await
            }
            false => self.send_rest(rest).await,
        };
        if let Some(end) = ends {
            self.attached = None;
            return Err(end);
        }
        sent?;
        Ok(Attempted::Answered(outcome.prepared))
    }

    /// Sends the command to the attached server and passes on what it answers but for its last bytes.
    async fn exchange(
        &mut self,
        running: &Running<'_>,
        beginning: Beginning<'_>,
        begun: Duration,
    ) -> Result<Exchanged, End> {
        let Running { incoming, command, verdict, .. } = running;
        let here = self.received().len().min(incoming.packet_bytes()) as u64;
        let listener = self.slot.current();
        let told_status = self.told_status;
        let Session { worker, slot, stream, buffer, deadline, attached, candidate, now, .. } = &mut *self;
        let Some(Attached { chosen, server, .. }) = attached else { return Err(End::Internal) };
        tracing::trace!(
            backend = chosen.backend().shared.address,
            command = command.name(),
            reason = verdict.reason.word(),
            "statement"
        );
        let cells = chosen.backend().cells();
        cells.requests[0].increment();
        server.is_at_rest = false;
        let mut source = Source::new(&mut *stream, slot, &mut *buffer, &worker.buffers, deadline);
        let sent = source.send_command(server, incoming, beginning, begun).await;
        let mut from_client = source.received;
        let forwarding = Forwarding {
            buffers: &worker.buffers,
            deadline,
            slot,
            capabilities: candidate.capabilities,
            told_status,
            runs_no_stored_code: verdict.runs_no_stored_code(),
            statement_id: running.prepares.map_or(0, |(_, id)| id),
            client_patience: CLIENT_PATIENCE,
            overtime: listener.shared.config.timeout.statement.map(|longest| begun + longest),
            primary: PrimaryAsked::of(chosen, verdict.wants, begun),
            local_infile: verdict.local_infile,
            by_result: stream.has_parts(),
            asks_cursor: running.asks_cursor,
        };
        let sequence = sent.as_ref().copied().unwrap_or_default();
        let reader = AnswerReader::new(*command, sequence, server.capabilities, DEFAULT_HEAD_BYTES);
        let mut answering = Answering::new(forwarding, reader.ok_or(End::Internal)?);
        let mut is_done_with = !incoming.is_whole;
        let answered = match sent {
            Err(error) => Err(error),
            Ok(_) => loop {
                match answering.run(stream, server).await {
                    Ok(Answered::Over(rest)) => break Ok(rest),
                    Ok(Answered::WantsFile) => {
                        // The file comes behind the command, which can not be sent again from here on.
                        if !is_done_with {
                            is_done_with = true;
                            done_with(buffer, incoming.packet_bytes());
                        }
                        let mut source =
                            Source::new(&mut *stream, slot, &mut *buffer, &worker.buffers, deadline);
                        let sent = source.send_file(server, answering.shift_back()).await;
                        from_client += source.received;
                        match sent {
                            Ok(sequence) => answering.reader.infile_sent(sequence),
                            Err(error) => break Err(error),
                        }
                    }
                    Err(error) => break Err(error),
                }
            },
        };
        let Answering { outcome, forwarded, received, .. } = answering;
        server.is_at_rest = answered.is_ok();
        server.is_untold |= outcome.is_untold(*command);
        *now = clock::now();
        if answered.is_ok() {
            chosen.observe_success(*now, now.saturating_sub(begun));
        }
        if let Some(count) = listener.shared.cells.of(worker.number).statements.get(verdict.reason as usize) {
            count.increment();
        }
        cells.bytes_received.add(received);
        cells.bytes_sent.add(here + from_client);
        listener.shared.cells.of(worker.number).bytes_received.add(from_client);
        self.report.from_client += from_client;
        Ok(Exchanged { answered, outcome, forwarded, is_done_with })
    }

    async fn send_rest(&mut self, rest: Rest) -> Result<(), End> {
        let mut pieces = rest.pieces();
        if let Some(first) = pieces.next() {
            self.send_behind(self.now, first).await?;
        }
        for bytes in pieces {
            self.send(bytes).await?;
        }
        Ok(())
    }

    /// Whether a server has refused a write because it takes none, having done nothing: then the statement
    /// goes to whoever takes writes, once there is one. What the server said of its role is believed at once.
    fn is_to_be_sent_again(
        &mut self,
        running: &Running<'_>,
        outcome: &Outcome,
        before: Before,
        losses: &mut Losses,
    ) -> bool {
        let is_refused = outcome.error.as_ref().is_some_and(|error| error.is_read_only());
        let Some(attached) = self.attached.as_ref().filter(|_| is_refused) else { return false };
        if !attached.is_watched() || running.verdict.wants != RoleWanted::Primary {
            return false;
        }
        take_role_off(&attached.chosen);
        let cells = attached.chosen.pool.cells();
        let is_alone = !before.is_in_transaction && !before.is_pinned;
        let may_be = running.incoming.is_whole && running.verdict.resend != Resend::Never;
        if !is_alone || !may_be || !losses.may_go_on() {
            cells.failed.increment();
            return false;
        }
        cells.moved.increment();
        (losses.count, losses.last) = (losses.count + 1, None);
        self.listener().shared.cells.of(self.worker.number).rerun_read_only.increment();
        self.leave();
        true
    }

    /// Takes what an answer has told. Gives the connection back to others when nothing of the session's is on
    /// it; says how the session ends, where it does.
    fn settle(&mut self, running: &Running<'_>, outcome: &Outcome) -> Option<End> {
        let verdict = &running.verdict;
        let pinned_before = self.pins;
        let was_read_only = self.facts.transaction == OpenTransaction::ReadOnly;
        let released = self.released(verdict, outcome);
        let attached = self.attached.as_mut()?;
        attached.server.has_insert_id |= outcome.may_have_insert_id(verdict);
        // Most statements leave it as it was.
        let state = &attached.server.state;
        let other_state = (!Rc::ptr_eq(state, &self.state)).then(|| state.clone());
        let is_at_rest = attached.server.is_at_rest;
        if let Some(status) = outcome.status {
            self.status = StatusFlags(status.0 & StatusFlags::LASTING.0);
            self.told_status = self.status;
        }
        let is_failed = outcome.error.is_some() && !outcome.is_unread();
        attached.server.note_tables(verdict, self.status, is_failed);
        let may_have_begun = is_failed
            && !self.status.has(StatusFlags::AUTOCOMMIT)
            && running.command != ClientCommand::StmtPrepare;
        // An error does not tell the status, also behind statements of the same text that did, and what
        // failed may have begun a transaction.
        if may_have_begun || attached.server.may_hold_tables {
            self.status.0 |= StatusFlags::IN_TRANS.0;
        }
        if let Some(state) = other_state {
            self.take_state(&state);
            if let Some(attached) = &mut self.attached {
                attached.server.state = self.state.clone();
            }
        }
        self.renew_facts();
        self.pins |= outcome.left(verdict).without(LeftBehind::FOR_THE_NEXT);
        if outcome.untracked || released == Released::Unknown {
            self.pins |= LeftBehind::ANYTHING;
        }
        self.take_told();
        if verdict.reads_back.has(ReadsBack::CONNECTION_ID) {
            // The number that it was told is that of this connection.
            self.pins |= LeftBehind::ANYTHING;
        }
        // Of all that ends a transaction only these surely forget what was said of the next one;
        // `SET autocommit = 1` keeps READ ONLY of this one for it as well.
        let is_ended =
            matches!(verdict.transaction, TransactionStep::Commit { .. } | TransactionStep::Rollback { .. });
        if !self.is_in_transaction() {
            if is_ended && outcome.error.is_none() {
                self.pins = self.pins.without(LeftBehind::NEXT_TRANSACTION);
            } else if was_read_only && verdict.transaction.may_switch_autocommit_on() {
                self.pins |= LeftBehind::NEXT_TRANSACTION;
            }
        }
        tracing::trace!(
            pins = ?self.pins.words().collect::<Vec<_>>(),
            status = ?self.status,
            untracked = outcome.untracked,
            "settled"
        );
        self.count_pins(pinned_before);
        self.note_left_for_next(running, outcome);
        let is_split = self.facts.access == SplitAccess::Auto;
        self.has_untold_writes |= is_split && is_failed && verdict.may_change();
        if released == Released::Yes || !is_at_rest {
            self.attached = None;
            return Some(if released == Released::Yes { End::Done } else { End::BackendClosed });
        }
        self.note_statement(running, outcome);
        if !self.keeps_connection() && self.held.is_empty() {
            self.leave();
        }
        None
    }

    /// Whether the server closes the connection behind a statement, as the session's state was before it.
    fn released(&self, verdict: &StatementVerdict, outcome: &Outcome) -> Released {
        let step = verdict.transaction;
        if step == TransactionStep::None {
            return Released::No;
        }
        // One that is refused ends nothing.
        if outcome.error.is_none() && step.releases(self.state.releases()) {
            return Released::Yes;
        }
        let server = self.attached.as_ref().map(|attached| &attached.server);
        let may = self.state.releases() || server.is_some_and(|server| server.state.releases());
        match step {
            TransactionStep::Unclear { .. } if may => Released::Unknown,
            _ => Released::No,
        }
    }

    /// Takes what the server has told of the session: the transactions that it has committed, and, where Weir
    /// itself was told so, that something is on the connection which nobody knows.
    pub fn take_told(&mut self) {
        let Some(attached) = &mut self.attached else { return };
        if let Some(gtids) = attached.server.gtids.take().filter(|gtids| !gtids.is_empty()) {
            self.written = Some(gtids);
        }
        if std::mem::take(&mut attached.server.is_unknown) {
            let before = self.pins;
            self.pins |= LeftBehind::ANYTHING;
            self.count_pins(before);
        }
    }

    /// Takes what is left of a statement by number on the session's connection.
    fn note_statement(&mut self, running: &Running<'_>, outcome: &Outcome) {
        let Some(id) = running.executes else { return };
        if running.command == ClientCommand::StmtExecute {
            self.statements.keep_types(id, outcome.has_taken_types());
        }
        let status = outcome.status.unwrap_or_default();
        let has_cursor = status.has(StatusFlags::CURSOR_EXISTS);
        let is_at_end = status.has(StatusFlags::LAST_ROW_SENT) || outcome.error.is_some();
        self.set_bound(id, |bound| match running.command {
            ClientCommand::StmtExecute => {
                *bound = Bound { has_cursor, has_pieces: bound.has_pieces && outcome.is_spoiled() };
            }
            ClientCommand::StmtFetch => bound.has_cursor &= !is_at_end,
            _ => *bound = Bound::NONE,
        });
    }

    /// Takes what the next statement may ask about this one.
    fn note_left_for_next(&mut self, running: &Running<'_>, outcome: &Outcome) {
        let verdict = &running.verdict;
        self.held = ReadsBack::NONE;
        if verdict.leaves.has(LeftBehind::FOUND_ROWS) {
            self.held |= ReadsBack::FOUND_ROWS;
        }
        if outcome.may_have_insert_id(verdict) {
            self.insert_id_before = self.insert_id.or(self.insert_id_before);
            self.insert_id = None;
        }
        // These leave what the statement before has left, wherever that is.
        let passes_over = matches!(
            running.command,
            ClientCommand::Ping
                | ClientCommand::InitDb
                | ClientCommand::Statistics
                | ClientCommand::StmtReset
                | ClientCommand::SetOption
        ) && outcome.error.is_none();
        if passes_over {
            self.forget_row_count();
        } else {
            if !outcome.adds_error(running.command) {
                self.here |= ReadsBack::WARNINGS;
            }
            let keeps_count =
                running.command == ClientCommand::StmtPrepare || verdict.kind == StatementKind::Diagnostics;
            if !keeps_count || outcome.error.is_some() {
                self.here |= ReadsBack::ROW_COUNT;
            }
            // What shows them leaves them as they are.
            let only_shows = verdict.reads_back.has(ReadsBack::WARNINGS)
                && matches!(verdict.kind, StatementKind::Show | StatementKind::Diagnostics);
            if !only_shows || outcome.error.is_some() {
                (self.is_without_warnings, self.refused) = (!outcome.has_warnings, None);
            }
        }
        if outcome.is_replaced {
            self.here = self.here.without(ReadsBack::ABOUT_THE_LAST);
        }
        if outcome.has_rows && verdict.kind == StatementKind::Select {
            self.here |= ReadsBack::FOUND_ROWS;
        }
        if self.insert_id.is_none() {
            self.held |= ReadsBack::INSERT_ID;
        }
        if !self.is_without_warnings && self.here.has(ReadsBack::WARNINGS) {
            self.held |= ReadsBack::WARNINGS;
        }
    }

    /// Notes that ROW_COUNT() is not what the last statement has left: some commands set it where they run.
    pub fn forget_row_count(&mut self) {
        self.here = self.here.without(ReadsBack::ROW_COUNT);
        if let Some(left_at) = &mut self.left_at {
            left_at.here = left_at.here.without(ReadsBack::ROW_COUNT);
        }
    }

    /// Whether the session keeps its connection to a server that was the primary and takes no writes any
    /// more, and is not in a transaction that would end by itself: it would be refused for ever, and finds
    /// the primary with a new connection. At a server that was none, its writes are not expected to be taken.
    fn is_stuck(&self, outcome: &Outcome) -> bool {
        let is_refused = outcome.error.as_ref().is_some_and(|error| error.is_read_only());
        let is_deposed = |attached: &Attached| {
            attached.is_watched() && attached.was_primary && attached.role() != Some(Role::Primary)
        };
        is_refused
            && self.facts.access != SplitAccess::ReadOnly
            && self.keeps_connection()
            && !self.is_in_transaction()
            && self.attached.as_ref().is_some_and(is_deposed)
    }

    /// Whether a write was refused because its server takes none, in a transaction that takes none itself.
    /// That it is at a replica is Weir's doing, and a client would take the server's word for a failover.
    fn is_refused_as_replica(&self, outcome: &Outcome) -> bool {
        self.facts.transaction == OpenTransaction::ReadOnly
            && outcome.error.as_ref().is_some_and(|error| error.is_read_only())
            && self.attached.as_ref().is_some_and(|attached| attached.role() == Some(Role::Secondary))
    }

    fn count_pins(&self, before: LeftBehind) {
        let added = self.pins.without(before);
        if added.is_empty() {
            return;
        }
        let listener = self.slot.current();
        let counts = &listener.shared.cells.of(self.worker.number).pins;
        for ((flag, ..), count) in LeftBehind::ALL.iter().zip(counts) {
            if added.has(*flag) {
                count.increment();
            }
        }
    }
}

/// What an exchange has come to.
struct Exchanged {
    /// What is left to be sent to the client.
    answered: Result<Rest, ExchangeError>,
    outcome: Outcome,
    /// Bytes that the client has of the answer.
    forwarded: u64,
    /// Whether the command is no longer in the session's buffer.
    is_done_with: bool,
}

/// Whether a server closes a connection behind a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Released {
    No,
    /// A routine, or one of several statements, may have ended a transaction, which closes it by what
    /// `completion_type` is, or was: nobody else gets it.
    Unknown,
    Yes,
}

impl Exchanged {
    /// Whether the server had no room for the statement that was to be prepared, and nobody knows that yet.
    fn wants_room(&self) -> bool {
        let error = self.outcome.error.as_ref().filter(|_| self.answered.is_ok());
        self.forwarded == 0 && !self.is_done_with && error.is_some_and(ServerError::is_for_want_of_room)
    }
}

/// What a session was in before a statement.
#[derive(Clone, Copy)]
pub struct Before {
    pub is_in_transaction: bool,
    pub is_pinned: bool,
}
