//! What a session may do on a connection that it keeps at a server other than the primary: one that got there
//! by a READ ONLY transaction, or whose primary is none any more.
//!
//! A server that is not the primary may still take writes: `read_only` stops no account with
//! `CONNECTION_ADMIN`. So what only the primary is to do is not left to that server to refuse.

use weir_mysql::{BeyondReadOnly, OpenTransaction, ReadsBack, SplitAccess, StatementVerdict};

use super::failure::{self, Refusal};
use super::session::Session;

impl Session {
    /// Whether a statement may run on the connection that the session keeps, as far as that is at a server
    /// other than the primary: there it has what it has left, and may read that and anything else.
    ///
    /// # Errors
    /// What the client is told of a statement that is the primary's alone. Nothing was sent of it.
    pub fn stay_for(&mut self, verdict: &StatementVerdict) -> Result<(), Refusal> {
        let Some(attached) = &mut self.attached else { return Ok(()) };
        if self.facts.access == SplitAccess::ReadOnly || attached.is_at_primary() {
            return Ok(());
        }
        let is_deposed = attached.was_primary;
        let is_written = self.facts.transaction == OpenTransaction::ReadWrite && is_deposed;
        let is_primarys = match self.facts.transaction {
            OpenTransaction::ReadOnly => verdict.beyond_read_only != BeyondReadOnly::Nothing,
            // It may have written while that was the primary's to do.
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

    /// Ends a transaction without effect whose server is no longer the primary, with its connection: such a
    /// server may answer nothing any more.
    pub fn roll_back(&mut self) -> Refusal {
        self.killable.note(None);
        self.attached = None;
        self.held = ReadsBack::NONE;
        self.end_transaction();
        Refusal::of_server(failure::rolled_back())
    }
}
