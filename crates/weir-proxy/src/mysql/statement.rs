//! One statement of a session: where it runs, what is answered, and how it changes the session.

use std::rc::Rc;
use std::time::Duration;

use weir_balance::Role;
use weir_io::clock;
use weir_mysql::answer::AnswerReader;
use weir_mysql::capability::StatusFlags;
use weir_mysql::command::ClientCommand;
use weir_mysql::response::{DEFAULT_HEAD_BYTES, PreparedStatement};
use weir_mysql::{
    LeftBehind, OpenTransaction, ReadsBack, RouteReason, SplitAccess, StatementKind, StatementVerdict,
    TransactionStep,
};
use weir_stats::table::{End, PIN_REASONS, STATEMENT_REASONS};

use super::acquire::Attached;
use super::attach::ServerError;
use super::deposed::PrimaryAsked;
use super::exchange::{Answered, Answering, ExchangeError, Forwarding, Rest};
use super::failure::Refusal;
use super::outcome::Outcome;
use super::own;
use super::prepared::{Bound, StatementText};
use super::room::RoomMade;
use super::session::{CLIENT_PATIENCE, Incoming, Session};
use super::upload::{Beginning, Source, done_with};
use crate::worker::WorkerListener;

const _: () = assert!(RouteReason::ALL.len() <= STATEMENT_REASONS && LeftBehind::ALL.len() <= PIN_REASONS);

/// Most servers that a statement may be lost with, or that may refuse it as read-only, before the client gets
/// an error.
const MOST_LOSSES: u32 = 3;

/// A command that is being served.
pub struct Running<'a> {
    pub incoming: Incoming,
    pub command: ClientCommand,
    pub verdict: StatementVerdict,
    /// For COM_STMT_PREPARE: the text, and the client's id for the statement.
    pub prepares: Option<(&'a Rc<StatementText>, u32)>,
    /// The client's id of the statement that is executed, or whose cursor is read.
    pub executes: Option<u32>,
    /// Whether it is an execution that asks for a cursor.
    pub asks_cursor: bool,
}

/// The result of an attempt.
pub enum Attempted {
    /// The client has its answer; `Some` if a statement was prepared.
    Answered(Option<PreparedStatement>),
    /// Nothing has been executed, and the statement must be tried again.
    Again,
}

/// The servers that a statement was lost with.
#[derive(Default)]
pub struct Losses {
    count: u32,
    last: Option<String>,
}

impl Losses {
    /// The name of the last one.
    pub fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// Counts a server whose connection was lost before the statement was sent; `false` if there were too
    /// many.
    pub fn add(&mut self) -> bool {
        self.count += 1;
        self.may_go_on()
    }

    /// Counts a server that has refused the statement.
    pub fn add_refused(&mut self) {
        (self.count, self.last) = (self.count + 1, None);
    }

    /// Counts a server, by name, that was lost while it ran the statement.
    pub fn add_named(&mut self, server: String) {
        (self.count, self.last) = (self.count + 1, Some(server));
    }

    /// Whether another server may be tried.
    pub fn may_go_on(&self) -> bool {
        self.count < MOST_LOSSES
    }
}

impl Session {
    /// Runs a statement that is sent unchanged, on whichever server it belongs to.
    pub async fn run_statement(&mut self, running: Running<'_>) -> Result<(), End> {
        let mut losses = Losses::default();
        loop {
            if !std::mem::take(&mut self.unfinished.is_attached)
                && let Err(refusal) = self.attach_for(&running.verdict, losses.last()).await
            {
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
            // The rest of the command is still arriving and would be taken for the next command.
            self.refuse(sequence, refusal).await.ok();
            return Err(End::BadRequest);
        }
        self.consume(incoming.packet_bytes());
        self.refuse(sequence, refusal).await
    }

    /// Makes one attempt on the attached server: sends the command, forwards the answer, and updates the
    /// session.
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
        let mut made = RoomMade::default();
        while running.prepares.is_some()
            && exchanged.wants_room()
            && Box::pin(self.make_room(&mut made)).await
        {
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
        if forwarded == 0 && Box::pin(self.takes_no_writes(running, &mut outcome)).await {
            if self.is_to_be_sent_again(running, before, losses) {
                return Ok(Attempted::Again);
            }
            if !is_done_with && let Some(refusal) = self.roll_back_refused(running, &outcome) {
                self.refuse_command(&running.incoming, refusal).await?;
                return Ok(Attempted::Answered(None));
            }
        }
        let collation = outcome.opens_collation.then(|| self.named_collation(running));
        if !is_done_with {
            self.consume(running.incoming.packet_bytes());
        }
        if let Some(told) = collation {
            self.take_collation(told, &mut outcome).await?;
        }
        // Earlier statements of the same text have answers, too, which must not be replaced.
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

    /// Sends the command to the attached server and forwards its answer except for the last bytes.
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
        let unfinished = std::mem::take(&mut self.unfinished);
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
        let sent = match unfinished.sent {
            None => source.send_command(server, incoming, beginning, begun).await,
            Some(sent) => sent.map(|()| incoming.header.sequence),
        };
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
        let mut answering = Answering::new(forwarding, reader.ok_or(End::Internal)?, unfinished.answer);
        let mut is_done_with = !incoming.is_whole;
        let answered = match sent {
            Err(error) => Err(error),
            Ok(_) => loop {
                match answering.run(stream, server).await {
                    Ok(Answered::Over(rest)) => break Ok(rest),
                    Ok(Answered::WantsFile) => {
                        // The file follows the command, which from here on cannot be sent again.
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
        server.is_untold |= outcome.is_untold(*command, verdict);
        *now = clock::now();
        if answered.is_ok() {
            chosen.observe_success(*now, now.saturating_sub(begun));
        }
        count_reason(&listener, worker.number, verdict.reason);
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

    /// Updates the session from an answer. Gives the connection back if it has no session state; returns how
    /// the session ends, if it does.
    fn settle(&mut self, running: &Running<'_>, outcome: &Outcome) -> Option<End> {
        let verdict = &running.verdict;
        let pinned_before = self.pins;
        let was_read_only = self.facts.transaction == OpenTransaction::ReadOnly;
        let released = self.released(verdict, outcome);
        let attached = self.attached.as_mut()?;
        attached.server.has_insert_id |= outcome.may_have_insert_id(verdict);
        // Most statements leave the state unchanged.
        let state = &attached.server.state;
        let other_state = (!Rc::ptr_eq(state, &self.state)).then(|| state.clone());
        let is_at_rest = attached.server.is_at_rest;
        if outcome.error.as_ref().is_some_and(ServerError::ends_connection) {
            // Its end may arrive only when another session has the connection.
            attached.server.is_at_rest = false;
        }
        if let Some(status) = outcome.status {
            self.status = StatusFlags(status.0 & StatusFlags::LASTING.0);
            self.told_status = self.status;
        }
        let is_failed = outcome.error.is_some() && !outcome.is_unread(verdict);
        attached.server.note_tables(verdict, self.status, is_failed);
        let may_have_begun = is_failed
            && !self.status.has(StatusFlags::AUTOCOMMIT)
            && running.command != ClientCommand::StmtPrepare;
        // An error packet has no status, even if it follows statements of the same text whose answers had
        // one. The failed statement may have begun a transaction.
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
            // The client was given the id of this very connection.
            self.pins |= LeftBehind::ANYTHING;
            self.killable.note_told();
        }
        // Of all that ends a transaction, only these certainly clear the characteristics for the next one.
        // `SET autocommit = 1` even keeps READ ONLY of this transaction for it.
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

    /// Whether the server closes the connection after a statement, given the session's state before it.
    fn released(&self, verdict: &StatementVerdict, outcome: &Outcome) -> Released {
        let step = verdict.transaction;
        if step == TransactionStep::None {
            return Released::No;
        }
        // A statement that fails ends nothing.
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

    /// Takes what the server reported about the session: the GTIDs that it committed, and whether an answer
    /// to one of Weir's own statements showed unknown state on the connection.
    pub fn take_told(&mut self) {
        let Some(attached) = &mut self.attached else { return };
        let is_unknown = std::mem::take(&mut attached.server.is_unknown);
        if let Some(gtids) = attached.server.gtids.take().filter(|gtids| !gtids.is_empty()) {
            self.note_written(gtids);
        }
        if is_unknown {
            let before = self.pins;
            self.pins |= LeftBehind::ANYTHING;
            self.count_pins(before);
        }
    }

    /// Updates what a prepared statement has left on the session's connection.
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

    /// Notes what the next statement may ask about this one.
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
        // These commands keep what the previous statement left, on whichever connection that is.
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
                let is_read = matches!(verdict.kind, StatementKind::Select | StatementKind::Show);
                self.has_left_rows =
                    is_read && outcome.ends_in_rows && outcome.error.is_none() && !running.asks_cursor;
            }
            // Statements that show diagnostics leave them as they are, but for what GET DIAGNOSTICS adds if a
            // condition does not exist, without an error.
            let only_shows = verdict.reads_back.has(ReadsBack::WARNINGS)
                && matches!(verdict.kind, StatementKind::Show | StatementKind::Diagnostics);
            if !only_shows || outcome.error.is_some() {
                (self.is_without_warnings, self.refused) = (!outcome.has_warnings, None);
            } else {
                self.is_without_warnings &= !outcome.has_warnings;
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

    /// Notes that ROW_COUNT() no longer belongs to the last statement: some commands set it on their
    /// connection.
    pub fn forget_row_count(&mut self) {
        self.has_left_rows = false;
        self.here = self.here.without(ReadsBack::ROW_COUNT);
        if let Some(left_at) = &mut self.left_at {
            left_at.here = left_at.here.without(ReadsBack::ROW_COUNT);
        }
    }

    /// Whether the session is bound to a server that was the primary but no longer takes writes, outside of a
    /// transaction that would end by itself. Its writes would be refused for ever, while a new connection
    /// reaches the new primary. This does not apply to a server that was never the primary for the session:
    /// no writes are expected to succeed there.
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

    /// Whether a write was refused because the server is read-only, in a transaction that is READ ONLY
    /// itself. Weir chose the replica, and the client would take the server's error for a failover.
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

/// Counts a statement that has run, by the reason for where.
pub fn count_reason(listener: &WorkerListener, worker: usize, reason: RouteReason) {
    if let Some(count) = listener.shared.cells.of(worker).statements.get(reason as usize) {
        count.increment();
    }
}

/// The result of an exchange.
struct Exchanged {
    /// The rest of the answer, which must still be sent to the client.
    answered: Result<Rest, ExchangeError>,
    outcome: Outcome,
    /// Bytes of the answer that were sent to the client.
    forwarded: u64,
    /// Whether the command is no longer in the session's buffer.
    is_done_with: bool,
}

/// Whether a server closes a connection after a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Released {
    No,
    /// A routine, or one of several statements, may have ended a transaction. Whether that closes the
    /// connection depends on the present or former value of `completion_type`, so no other session gets it.
    Unknown,
    Yes,
}

impl Exchanged {
    /// Whether the server had no room for the statement to be prepared, and the client has not been told.
    fn wants_room(&self) -> bool {
        let error = self.outcome.error.as_ref().filter(|_| self.answered.is_ok());
        self.forwarded == 0 && !self.is_done_with && error.is_some_and(ServerError::is_for_want_of_room)
    }
}

/// The session's situation before a statement.
#[derive(Clone, Copy)]
pub struct Before {
    pub is_in_transaction: bool,
    pub is_pinned: bool,
}
