//! What a session may do on a connection that it keeps to a server other than the primary. It got there by a
//! READ ONLY transaction, or the server was the primary before.
//!
//! A server that is not the primary may still take writes: `read_only` does not restrict accounts with
//! `CONNECTION_ADMIN`. So Weir does not rely on that server to refuse statements for the primary.

use weir_mysql::{BeyondReadOnly, OpenTransaction, ReadsBack, SplitAccess, StatementVerdict};

use super::failure::{self, Refusal};
use super::outcome::Outcome;
use super::session::Session;
use super::statement::Running;

impl Session {
    /// Checks whether a statement may run on the connection that the session keeps, if that is not to the
    /// primary. There the session has its state, and may read that and everything else.
    ///
    /// # Errors
    /// The error for a statement that must run on the primary. Nothing of it was sent.
    pub fn stay_for(&mut self, verdict: &StatementVerdict) -> Result<(), Refusal> {
        let Some(attached) = &mut self.attached else { return Ok(()) };
        if self.facts.access == SplitAccess::ReadOnly || attached.is_at_primary() {
            return Ok(());
        }
        let is_deposed = attached.was_primary;
        let is_written = self.facts.transaction == OpenTransaction::ReadWrite && is_deposed;
        let is_primarys = match self.facts.transaction {
            OpenTransaction::ReadOnly => verdict.beyond_read_only != BeyondReadOnly::Nothing,
            // The transaction may have written while its server was the primary.
            OpenTransaction::ReadWrite if is_deposed && failure::commits(verdict) => true,
            _ => verdict.is_for_the_primary_alone(self.pins),
        };
        if !is_primarys {
            return Ok(());
        }
        attached.chosen.pool.cells().failed.increment();
        let is_bound = self.statements.is_any_bound();
        if self.pins.is_empty() && !is_bound {
            return Err(match is_written {
                true => self.roll_back(),
                false => Refusal::read_only_transaction(),
            });
        }
        let pins = self.pins.words().chain(is_bound.then_some("cursor")).collect::<Vec<_>>().join(", ");
        Err(Refusal::kept_away(&pins, is_deposed))
    }

    /// The error for a statement in a transaction whose server was the primary and has just refused it as
    /// read-only. Nothing of the transaction was committed, so it is rolled back, and the session goes on.
    /// `None` if it is not so, or something else binds the session to its connection.
    pub fn roll_back_refused(&mut self, running: &Running<'_>, outcome: &Outcome) -> Option<Refusal> {
        let is_written = self.facts.transaction == OpenTransaction::ReadWrite;
        let may_be = running.incoming.is_whole && running.verdict.statements <= 1;
        if !is_written || !may_be || !self.is_transaction_alone() {
            return None;
        }
        let attached = self.attached.as_ref()?;
        if !attached.was_primary || !attached.is_watched() {
            return None;
        }
        if let Some(id) = running.executes {
            self.statements.keep_types(id, outcome.has_taken_types());
        }
        Some(self.roll_back())
    }

    /// Rolls back a transaction whose server is no longer the primary, by closing its connection: such a
    /// server may never answer.
    pub fn roll_back(&mut self) -> Refusal {
        self.killable.note(None);
        self.attached = None;
        self.held = ReadsBack::NONE;
        self.end_transaction();
        Refusal::of_server(failure::rolled_back())
    }
}
