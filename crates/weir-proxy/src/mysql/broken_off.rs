//! How to continue after a statement whose exchange with its server did not finish.

use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_mysql::command::ClientCommand;
use weir_mysql::{ReadsBack, Resend, TransactionStep};
use weir_stats::table::End;

use super::commands::BehindLoss;
use super::exchange::{ExchangeError, ServerFailure};
use super::failure::{self, Loss, Refusal};
use super::session::Session;
use super::statement::{Attempted, Before, Losses, Running};

impl Session {
    /// Handles an exchange that did not finish.
    pub async fn failed(
        &mut self,
        running: &Running<'_>,
        error: ExchangeError,
        before: Before,
        losses: &mut Losses,
        is_done_with: bool,
    ) -> Result<Attempted, End> {
        let Some(attached) = self.attached.take() else { return Err(End::Internal) };
        self.killable.note(None);
        if self.killable.is_doomed() {
            return Err(End::Killed);
        }
        let sequence = running.incoming.header.sequence.wrapping_add(1);
        let (failure, forwarded) = match error {
            ExchangeError::Client => {
                self.abandon(attached);
                return Err(End::ClientClosed);
            }
            ExchangeError::Unframed => {
                // The server discards a command that it has not received completely.
                drop(attached);
                self.refuse(sequence, Refusal::types_not_named()).await.ok();
                return Err(End::BadRequest);
            }
            ExchangeError::Overtime => {
                self.abandon(attached);
                return self.took_too_long(running, before, is_done_with).await;
            }
            ExchangeError::Drained { forwarded } => {
                self.abandon(attached);
                if forwarded {
                    self.stream.reset_on_close();
                } else {
                    self.refuse(sequence, Refusal::draining()).await.ok();
                }
                return Err(End::Draining);
            }
            ExchangeError::NoRoom => {
                self.abandon(attached);
                // A client that is sending a file waits for no answer before its end.
                let is_file = is_done_with && running.incoming.is_whole;
                return self.has_no_memory(sequence, !is_file).await;
            }
            ExchangeError::Server { failure: ServerFailure::NoMemory, forwarded } => {
                self.abandon(attached);
                let is_read = running.verdict.resend == Resend::Anywhere;
                return self.has_no_memory(sequence, is_read && !forwarded).await;
            }
            ExchangeError::Server { failure, forwarded } => (failure, forwarded),
        };
        let server = attached.address().to_owned();
        tracing::debug!(backend = server, %failure, "MySQL server lost");
        // A single closed connection may be the result of a KILL, or of what the client has sent. If the
        // server is really down, the next connection attempt and the pool's monitor will find out.
        if !matches!(failure, ServerFailure::Closed | ServerFailure::Broken(_)) {
            attached.chosen.observe_failure(&self.worker, clock::now(), || failure.to_string());
        }
        attached.chosen.pool.shared.nudge.ask();
        let pool = attached.chosen.pool.clone();
        drop(attached);
        let loss = match forwarded {
            true => Loss::End,
            false => failure::loss(&running.verdict, before.is_in_transaction, before.is_pinned),
        };
        let is_again = loss == Loss::Again && running.incoming.is_whole && losses.may_go_on();
        if is_again { &pool.cells().moved } else { &pool.cells().failed }.increment();
        match loss {
            Loss::Again if is_again => {
                losses.add_named(server);
                self.report.retries += 1;
                self.listener().shared.cells.of(self.worker.number).rerun_lost.increment();
                Ok(Attempted::Again)
            }
            Loss::RolledBack if running.incoming.is_whole => self.is_rolled_back(running, losses).await,
            _ => {
                self.stream.reset_on_close();
                Err(End::BackendClosed)
            }
        }
    }

    /// Ends the session for want of memory. The client gets the error if it may be told: it waits for an
    /// answer, has none of it, and nothing has changed.
    async fn has_no_memory(&mut self, sequence: u8, may_be_told: bool) -> Result<Attempted, End> {
        if may_be_told {
            self.refuse(sequence, Refusal::overload()).await.ok();
        } else {
            self.stream.reset_on_close();
        }
        Err(End::Overload)
    }

    /// Handles a transaction that has ended with its connection. A ROLLBACK succeeds, as it does if the loss
    /// was noticed before the statement; all other statements get an error.
    async fn is_rolled_back(&mut self, running: &Running<'_>, losses: &Losses) -> Result<Attempted, End> {
        let sequence = running.incoming.header.sequence.wrapping_add(1);
        self.end_transaction();
        self.held = ReadsBack::NONE;
        self.is_without_warnings = false;
        let step = match running.command {
            ClientCommand::Query => running.verdict.transaction,
            _ => TransactionStep::None,
        };
        match self.behind_loss(step) {
            BehindLoss::Done => {
                self.consume(running.incoming.packet_bytes());
                self.answer_ok(sequence).await?;
            }
            BehindLoss::Anew if losses.may_go_on() => return Ok(Attempted::Again),
            BehindLoss::Anew | BehindLoss::Told => {
                self.consume(running.incoming.packet_bytes());
                self.keep_types(running);
                self.refuse(sequence, Refusal::of_server(failure::rolled_back())).await?;
            }
        }
        Ok(Attempted::Answered(None))
    }

    /// Handles an answer that did not begin in time. The statement is killed, and it is unknown whether it
    /// completed before. The client gets the error only if the statement has changed nothing, or its
    /// transaction ends with it.
    async fn took_too_long(
        &mut self,
        running: &Running<'_>,
        before: Before,
        is_done_with: bool,
    ) -> Result<Attempted, End> {
        let verdict = &running.verdict;
        let is_rolled_back = before.is_in_transaction && verdict.transaction == TransactionStep::None;
        if verdict.resend != Resend::Anywhere && !is_rolled_back {
            self.stream.reset_on_close();
            return Err(End::BackendTimeout);
        }
        let goes_on = running.incoming.is_whole && !before.is_in_transaction && !before.is_pinned;
        if !is_done_with {
            self.consume(running.incoming.packet_bytes());
        }
        self.keep_types(running);
        let sequence = running.incoming.header.sequence.wrapping_add(1);
        self.refuse(sequence, Refusal::overtime(!goes_on)).await?;
        Ok(Attempted::Answered(None))
    }

    /// Stores the types of an execution that Weir answers itself: its client omits them from now on.
    fn keep_types(&mut self, running: &Running<'_>) {
        if let (ClientCommand::StmtExecute, Some(id)) = (running.command, running.executes) {
            self.statements.keep_types(id, true);
        }
    }
}
