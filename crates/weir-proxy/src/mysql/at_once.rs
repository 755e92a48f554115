//! The common case of a statement: it is short, a connection in the session's state is idle, the answer comes
//! in one piece, and afterwards the session is as it was before. What the other cases need is left out here,
//! because a statement takes less of a server's time than of this code's. For the same reason, all waits are
//! in one function, without futures within futures.
//!
//! Whatever turns out to be otherwise goes on in the general way, from the point that was reached:
//! [`Otherwise`], and [`super::unfinished`].

use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use weir_config::MysqlAccess;
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_mysql::answer::WholeAnswer;
use weir_mysql::capability::{Capabilities, StatusFlags};
use weir_mysql::outcome::SessionChanges;
use weir_mysql::{BeyondReadOnly, ReadsBack, SplitAccess, StatementKind, StatementVerdict, TransactionStep};
use weir_stats::table::End;

use super::exchange::ServerFailure;
use super::prepared_commands::{Execution, NotExecuted};
use super::session::{CLIENT_PATIENCE, EXECUTE, Incoming, QUERY, Session, Wait, split_access, wanted_role};
use super::statement::{Running, count_reason};
use super::upload::lost;

/// The longest command (bytes) that is the common case.
const LONGEST_COMMAND: usize = 4 << 10;
/// How long the answer is awaited without looking at anything else, such as whether the client has left.
const PATIENCE: Duration = Duration::from_millis(10);

/// How far a session has come in the common case.
#[derive(Default)]
pub struct AtOnce {
    asked: Option<Asked>,
    /// Whether the wait for the client has begun.
    is_waiting: bool,
    /// Whether the task waits for a bare connection, and so was probably woken by it.
    is_watched: bool,
}

/// A command for which the session is attached to a server.
struct Asked {
    running: Running<'static>,
    /// `None` for a COM_QUERY, which is sent as it was received.
    execution: Option<Box<Execution>>,
    /// Bytes of the command that were sent.
    sent: usize,
    /// Whether the connection took no more bytes at some time.
    is_stuck: bool,
    /// Whether all of it was sent.
    is_sent: bool,
}

/// What is not the common case, for the general way to continue with.
pub enum Otherwise {
    /// The wait for the client has ended like this.
    Waited(Wait),
    /// Something was received that is not a whole command, or a command of another kind.
    Received,
    /// A COM_QUERY.
    Query(Running<'static>),
    /// A COM_STMT_EXECUTE.
    Execution(Incoming, Result<(Running<'static>, Box<Execution>), NotExecuted>),
    /// A common statement whose answer the client has not taken whole: these bytes remain.
    Unsent(Buffer),
    /// The end of the session.
    Over(End),
}

impl Otherwise {
    #[cold]
    fn than_common(running: Running<'static>, execution: Option<Box<Execution>>) -> Box<Otherwise> {
        Box::new(match execution {
            None => Otherwise::Query(running),
            Some(mut execution) => {
                execution.front.uncomplete();
                Otherwise::Execution(running.incoming, Ok((running, execution)))
            }
        })
    }
}

impl Session {
    /// Serves common statements, one after another, until something else is to be done.
    pub fn poll_at_once(&mut self, context: &mut Context<'_>, at_once: &mut AtOnce) -> Poll<Box<Otherwise>> {
        loop {
            let served = match &mut at_once.asked {
                Some(asked) => {
                    let answer_at = ready!(self.poll_answer(context, asked, &mut at_once.is_watched));
                    self.end_at_once(&mut at_once.asked, answer_at)
                }
                None => {
                    let received = match self.buffer {
                        Some(_) => Ok(()),
                        None => ready!(self.poll_received(context, at_once)),
                    };
                    received.and_then(|()| self.begin_at_once(&mut at_once.asked))
                }
            };
            if let Err(otherwise) = served {
                return Poll::Ready(otherwise);
            }
        }
    }

    /// Waits for the client's next command, and receives once.
    #[inline]
    fn poll_received(
        &mut self,
        context: &mut Context<'_>,
        at_once: &mut AtOnce,
    ) -> Poll<Result<(), Box<Otherwise>>> {
        if !std::mem::replace(&mut at_once.is_waiting, true) {
            self.begin_wait();
            at_once.is_watched = false;
        }
        let mut received = Poll::Pending;
        if std::mem::take(&mut at_once.is_watched) {
            if let Some(wait) = self.is_stopped() {
                return Poll::Ready(Err(Box::new(Otherwise::Waited(wait))));
            }
            if let Some(mut buffer) = self.worker.buffers.borrow(SMALL) {
                received = self.stream.receive_now(&mut buffer).map_ok(|count| (count, buffer));
            }
        }
        if received.is_pending() {
            match self.poll_client(context) {
                Poll::Ready(Wait::Speaks) => {}
                Poll::Ready(wait) => return Poll::Ready(Err(Box::new(Otherwise::Waited(wait)))),
                Poll::Pending => {
                    at_once.is_watched = self.stream.bare().is_some();
                    return Poll::Pending;
                }
            }
            let Some(mut buffer) = self.worker.buffers.borrow(SMALL) else {
                return Poll::Ready(Err(Box::new(Otherwise::Over(End::Overload))));
            };
            received = self.stream.receive_ready(context, &mut buffer).map_ok(|count| (count, buffer));
        }
        match ready!(received) {
            Ok((count, buffer)) if count > 0 => {
                self.note_received(count);
                (self.buffer, at_once.is_waiting) = (Some(buffer), false);
                Poll::Ready(Ok(()))
            }
            _ => Poll::Ready(Err(Box::new(Otherwise::Over(self.client_left())))),
        }
    }

    /// Attaches the session for the command that was received, if it probably is the common case.
    #[inline]
    fn begin_at_once(&mut self, asked: &mut Option<Asked>) -> Result<(), Box<Otherwise>> {
        let is_usual = |incoming: &Incoming| incoming.is_whole && incoming.header.sequence == 0;
        let incoming = Incoming::of(self.received()).filter(is_usual);
        let (running, mut execution) = match incoming {
            Some(incoming) if incoming.command == Some(QUERY) && !self.has_lost_transaction => {
                self.begin_command();
                (self.query_of(incoming), None)
            }
            Some(incoming) if incoming.command == Some(EXECUTE) => {
                self.begin_command();
                match self.execution_of(&incoming) {
                    Ok((running, execution)) => (running, Some(execution)),
                    Err(refused) => return Err(Box::new(Otherwise::Execution(incoming, Err(refused)))),
                }
            }
            _ => return Err(Box::new(Otherwise::Received)),
        };
        let is_reframed = execution.as_ref().is_some_and(|execution| execution.front.is_reframed);
        if is_reframed || !self.is_common(&running) || !self.attach_for_common(&running.verdict) {
            return Err(Otherwise::than_common(running, execution));
        }
        self.unfinished.is_attached = true;
        if execution.as_mut().is_some_and(|execution| !self.complete(&running, execution)) {
            return Err(Otherwise::than_common(running, execution));
        }
        *asked = Some(Asked { running, execution, sent: 0, is_stuck: false, is_sent: false });
        Ok(())
    }

    /// Whether a statement probably is the common case.
    #[inline]
    fn is_common(&self, running: &Running<'_>) -> bool {
        running.incoming.packet_bytes() <= LONGEST_COMMAND
            && !running.asks_cursor
            && leaves_nothing(&running.verdict)
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

    /// Completes the command of an execution for the attached server, if the statement is prepared there.
    fn complete(&mut self, running: &Running<'_>, execution: &mut Execution) -> bool {
        let Execution { text, front, .. } = execution;
        let Some(attached) = &mut self.attached else { return false };
        let Some(id) = attached.server.statements.find(text) else { return false };
        let behind = self.received().get(front.replaced..running.incoming.packet_bytes());
        front.complete(id, behind.unwrap_or_default())
    }

    /// Sends the command and receives once, into the buffer that has the command: `Some` is where the answer
    /// begins there. `None` if nothing comes for a while, or something else happens.
    #[inline]
    fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
        asked: &mut Asked,
        is_watched: &mut bool,
    ) -> Poll<Option<usize>> {
        let Session { buffer, attached, slot, deadline, unfinished, now, .. } = self;
        let (Some(buffer), Some(attached)) = (buffer, attached) else { return Poll::Ready(None) };
        let server = &mut *attached.server;
        while !asked.is_sent {
            let command = match &asked.execution {
                None => buffer.filled().get(..asked.running.incoming.packet_bytes()).unwrap_or_default(),
                Some(execution) => &execution.front.bytes,
            };
            server.is_at_rest = false;
            match server.connection.poll_send(context, command.get(asked.sent..).unwrap_or_default()) {
                Poll::Ready(Ok(count)) => {
                    asked.sent += count;
                    asked.is_sent = asked.sent >= command.len();
                    if asked.is_sent {
                        deadline.set(*now + PATIENCE);
                        *is_watched = false;
                    }
                }
                Poll::Ready(Err(error)) => {
                    unfinished.sent = Some(Err(lost(ServerFailure::Broken(error))));
                    return Poll::Ready(None);
                }
                Poll::Pending if !std::mem::replace(&mut asked.is_stuck, true) => {
                    deadline.set(*now + CLIENT_PATIENCE);
                    return Poll::Pending;
                }
                Poll::Pending if deadline.has_passed() => {
                    unfinished.sent = Some(Err(lost(ServerFailure::TimedOut)));
                    return Poll::Ready(None);
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let answer_at = buffer.filled().len();
        if buffer.free().is_empty() {
            return Poll::Ready(None);
        }
        let mut received = Poll::Pending;
        if std::mem::take(is_watched) {
            received = server.connection.receive_now(buffer);
        }
        if received.is_pending() {
            match server.connection.poll_readable(context) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Pending if deadline.has_passed() || slot.draining_until().is_some() => {
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    *is_watched = server.connection.bare().is_some();
                    return Poll::Pending;
                }
            }
            received = server.connection.receive_ready(context, buffer);
        }
        // The next call says the same.
        received.map(|received| received.is_ok_and(|count| count > 0).then_some(answer_at))
    }

    /// Updates the session from the answer, which begins at `answer_at` of its buffer, and sends it.
    #[inline]
    fn end_at_once(
        &mut self,
        asked: &mut Option<Asked>,
        answer_at: Option<usize>,
    ) -> Result<(), Box<Otherwise>> {
        let (Some(mut buffer), Some(Asked { running, is_sent, .. })) = (self.buffer.take(), asked.as_ref())
        else {
            return Err(Box::new(Otherwise::Over(End::Internal)));
        };
        let answer_at = answer_at.unwrap_or(buffer.filled().len());
        let answer = buffer.filled().get(answer_at..).unwrap_or_default();
        if self.settle_at_once(running, answer) {
            self.unfinished.is_attached = false;
            let unsent = self.send_answer(answer)?;
            buffer.truncate(answer_at);
            buffer.consume(running.incoming.packet_bytes());
            if !buffer.is_empty() {
                self.buffer = Some(buffer);
            }
            *asked = None;
            return match unsent {
                None => Ok(()),
                Some(rest) => Err(Box::new(Otherwise::Unsent(rest))),
            };
        }
        self.set_aside(answer, *is_sent);
        buffer.truncate(answer_at);
        self.buffer = Some(buffer);
        match asked.take() {
            Some(Asked { running, execution, .. }) => Err(Otherwise::than_common(running, execution)),
            None => Err(Box::new(Otherwise::Over(End::Internal))),
        }
    }

    /// Notes how far a statement came, with the beginning of its answer.
    #[cold]
    fn set_aside(&mut self, answer: &[u8], is_sent: bool) {
        if is_sent {
            self.unfinished.sent = Some(Ok(()));
        }
        if answer.is_empty() {
            return;
        }
        self.unfinished.answer = Some(self.worker.buffers.with_received(answer));
    }

    /// Updates the session from the answer and gives the connection back, as [`Self::settle`] does. False,
    /// with nothing done, if the answer is not whole or says more than that the session is as before.
    fn settle_at_once(&mut self, running: &Running<'_>, answer: &[u8]) -> bool {
        let Running { incoming, command, verdict, .. } = running;
        let Some(attached) = &mut self.attached else { return false };
        let server = &mut attached.server;
        let (sequence, capabilities) = (incoming.header.sequence, server.capabilities);
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
        {
            let listener = self.slot.look();
            count_reason(&listener, self.worker.number, verdict.reason);
            // A reload may have changed it.
            let access = listener.shared.config.mysql().map(|mysql| mysql.access);
            self.facts.access = split_access(access.unwrap_or(MysqlAccess::ReadWrite));
        }
        let is_read = verdict.kind == StatementKind::Select && whole.has_rows;
        self.here |= ReadsBack::WARNINGS.and(ReadsBack::ROW_COUNT);
        if is_read {
            self.here |= ReadsBack::FOUND_ROWS;
        }
        (self.held, self.has_left_rows) = (ReadsBack::NONE, is_read);
        (self.is_without_warnings, self.refused) = (true, None);
        if let Some(id) = running.executes {
            self.statements.keep_types(id, true);
        }
        if !self.keeps_connection() {
            self.leave();
        }
        true
    }

    /// Sends an answer; `Some` is what the client has not taken of it yet.
    #[inline]
    fn send_answer(&mut self, answer: &[u8]) -> Result<Option<Buffer>, Box<Otherwise>> {
        let sent = match self.stream.poll_send(&mut Context::from_waker(Waker::noop()), answer) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Err(Box::new(Otherwise::Over(End::ClientClosed))),
            Poll::Pending => 0,
        };
        self.note_sent(sent as u64);
        let unsent = answer.get(sent..).filter(|rest| !rest.is_empty());
        self.is_now_fresh = unsent.is_none();
        Ok(unsent.map(|rest| self.worker.buffers.with_received(rest)))
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
