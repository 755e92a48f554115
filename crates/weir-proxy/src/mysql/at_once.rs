//! The common case of a statement: it is short, a connection in the session's state is idle, the answer comes
//! in one piece, and afterwards the session is as it was before. What the other cases need is left out here,
//! because a statement takes less of a server's time than of this code's.
//!
//! Whatever turns out to be otherwise goes on in the general way ([`Session::attempt`]), from the point that
//! was reached: [`Unfinished`].

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use weir_config::MysqlAccess;
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::wait::send_all;
use weir_mysql::answer::WholeAnswer;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::command::{ClientCommand, set_statement_id};
use weir_mysql::outcome::SessionChanges;
use weir_mysql::packet::HEADER_BYTES;
use weir_mysql::{BeyondReadOnly, ReadsBack, SplitAccess, StatementKind, StatementVerdict, TransactionStep};
use weir_stats::table::End;

use super::prepared::StatementText;
use super::session::{CLIENT_PATIENCE, Incoming, Session, split_access, wanted_role};
use super::statement::count_reason;
use super::upload::lost;

/// The longest command (bytes) that is the common case.
const LONGEST_COMMAND: usize = 4 << 10;
/// How long the answer is awaited without looking at anything else, such as whether the client has left.
const PATIENCE: Duration = Duration::from_millis(10);

/// A statement that probably is the common case.
pub struct Statement<'a> {
    pub incoming: Incoming,
    pub command: ClientCommand,
    pub verdict: &'a StatementVerdict,
    /// The client's id of the statement that is executed.
    pub executes: Option<u32>,
}

/// How an execution names its statement.
pub struct Execution<'a> {
    pub text: &'a StatementText,
    /// The command as it goes to a server, apart from the server's id of the statement.
    pub command: &'a mut [u8],
}

impl Session {
    /// Runs a statement that probably is the common case ([`Self::is_common`]). If it turns out not to be,
    /// the result is `None`, and it goes on from [`Self::unfinished`]. `execution` is `None` for a statement
    /// that is sent as it was received.
    pub async fn run_at_once(
        &mut self,
        statement: &Statement<'_>,
        execution: Option<Execution<'_>>,
    ) -> Option<Result<(), End>> {
        if !self.attach_for_common(statement.verdict) {
            return None;
        }
        self.unfinished.is_attached = true;
        let Session { buffer, attached, deadline, now, .. } = self;
        let server = &mut attached.as_mut()?.server;
        let command = match execution {
            None => buffer.as_ref()?.filled().get(..statement.incoming.packet_bytes())?,
            Some(Execution { text, command }) => {
                let id = server.statements.find(text)?;
                set_statement_id(command.get_mut(HEADER_BYTES..)?, id).ok()?;
                command
            }
        };
        server.is_at_rest = false;
        deadline.set(*now + CLIENT_PATIENCE);
        let sent = send_all(&mut *server.connection, command, deadline, || {}).await;
        if let Err(error) = sent {
            self.unfinished.sent = Some(Err(lost(error.into())));
            return None;
        }
        let answer = self.receive_at_once().await;
        if let Some(answer) = &answer
            && self.settle_at_once(statement, answer)
        {
            self.unfinished.is_attached = false;
            return Some(self.send_answer(answer).await);
        }
        (self.unfinished.sent, self.unfinished.answer) = (Some(Ok(())), answer);
        None
    }

    /// Whether a statement probably is the common case.
    pub fn is_common(&self, incoming: &Incoming, verdict: &StatementVerdict) -> bool {
        incoming.is_whole
            && incoming.packet_bytes() <= LONGEST_COMMAND
            && leaves_nothing(verdict)
            && self.status.has(StatusFlags::AUTOCOMMIT)
            && self.insert_id.is_some()
            && !self.has_untold_writes
            && self.candidate.capabilities.has(Capabilities::DEPRECATE_EOF)
            && !self.stream.has_parts()
    }

    /// Attaches the session, if that needs no wait, or stays where an open transaction is.
    fn attach_for_common(&mut self, verdict: &StatementVerdict) -> bool {
        match &mut self.attached {
            None => {
                self.killable.begin_wait();
                if let Err(begun) = self.attach_at_once(wanted_role(verdict.wants)) {
                    self.unfinished.attach = begun;
                    return false;
                }
            }
            Some(attached) => {
                let is_alone = self.status.has(StatusFlags::IN_TRANS)
                    && self.pins.is_empty()
                    && self.held.is_empty()
                    && !self.statements.is_any_bound();
                if !is_alone || !attached.is_at_primary() {
                    return false;
                }
            }
        }
        self.facts.access != SplitAccess::ReadOnly || self.is_kept_from_writing(verdict)
    }

    /// Receives once from the server. `None` if nothing comes for a while, or something else happens.
    async fn receive_at_once(&mut self) -> Option<Buffer> {
        let Session { worker, slot, deadline, attached, now, .. } = self;
        let server = &mut attached.as_mut()?.server;
        deadline.set(*now + PATIENCE);
        // A bare connection that has woken the task is asked for bytes at once.
        let mut is_woken = false;
        poll_fn(|context| {
            if !std::mem::take(&mut is_woken) {
                match server.connection.poll_readable(context) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Poll::Ready(None),
                    Poll::Pending if deadline.has_passed() || slot.draining_until().is_some() => {
                        return Poll::Ready(None);
                    }
                    Poll::Pending => {
                        is_woken = server.connection.bare().is_some();
                        return Poll::Pending;
                    }
                }
            }
            let Some(mut buffer) = worker.buffers.borrow(SMALL) else { return Poll::Ready(None) };
            match server.connection.receive_ready(context, &mut buffer) {
                Poll::Ready(Ok(count)) if count > 0 => Poll::Ready(Some(buffer)),
                // The next call says the same.
                Poll::Ready(_) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Updates the session from the answer and gives the connection back, as [`Self::settle`] does. False,
    /// with nothing done, if the answer is not whole or says more than that the session is as before.
    fn settle_at_once(&mut self, statement: &Statement<'_>, answer: &Buffer) -> bool {
        let Statement { incoming, command, verdict, .. } = statement;
        let Some(attached) = &mut self.attached else { return false };
        let server = &mut attached.server;
        let (sequence, capabilities) = (incoming.header.sequence, server.capabilities);
        let answer = answer.filled();
        let Some(whole) = WholeAnswer::read(*command, sequence, capabilities, answer) else { return false };
        let status = StatusFlags(whole.ok.status.0 & StatusFlags::LASTING.0);
        let is_as_before = status == self.status
            && status == self.told_status
            && whole.ok.warnings == 0
            && whole.ok.insert_id == 0
            && whole.ok.changes == SessionChanges::None
            && Rc::ptr_eq(&server.state, &self.state)
            && server.gtids.is_none()
            && !server.is_unknown
            && !server.may_hold_tables;
        if !is_as_before {
            return false;
        }
        (server.is_at_rest, server.is_untold) = (true, false);
        let begun = std::mem::replace(&mut self.now, clock::now());
        attached.chosen.observe_success(self.now, self.now.saturating_sub(begun));
        let cells = attached.chosen.backend().cells();
        cells.requests[0].increment();
        cells.bytes_received.add(answer.len() as u64);
        cells.bytes_sent.add(incoming.packet_bytes() as u64);
        let listener = self.slot.current();
        count_reason(&listener, self.worker.number, verdict.reason);
        // A reload may have changed it.
        let access = listener.shared.config.mysql().map(|mysql| mysql.access);
        self.facts.access = split_access(access.unwrap_or(MysqlAccess::ReadWrite));
        let is_read = verdict.kind == StatementKind::Select && whole.has_rows;
        self.here |= ReadsBack::WARNINGS.and(ReadsBack::ROW_COUNT);
        if is_read {
            self.here |= ReadsBack::FOUND_ROWS;
        }
        (self.held, self.has_left_rows) = (ReadsBack::NONE, is_read);
        (self.is_without_warnings, self.refused) = (true, None);
        if let Some(id) = statement.executes {
            self.statements.keep_types(id, true);
        }
        self.consume(incoming.packet_bytes());
        if !self.keeps_connection() {
            self.leave();
        }
        true
    }

    async fn send_answer(&mut self, answer: &Buffer) -> Result<(), End> {
        let bytes = answer.filled();
        let sent = match self.stream.poll_send(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Err(End::ClientClosed),
            Poll::Pending => 0,
        };
        self.note_sent(sent as u64);
        match bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            None => {
                self.is_now_fresh = true;
                Ok(())
            }
            Some(rest) => self.send_behind(self.now, rest).await,
        }
    }
}

/// Whether a statement probably leaves the session as it is. What it does besides is seen in its answer.
fn leaves_nothing(verdict: &StatementVerdict) -> bool {
    verdict.statements == 1
        && matches!(verdict.kind, StatementKind::Select | StatementKind::Write)
        && verdict.leaves.is_empty()
        && verdict.reads_back.is_empty()
        && verdict.transaction == TransactionStep::None
        && verdict.beyond_read_only == BeyondReadOnly::Nothing
        && !verdict.local_infile
        && verdict.kill.is_none()
}
