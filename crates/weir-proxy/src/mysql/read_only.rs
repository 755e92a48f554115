//! What a session on a listener for reads may do on a server that takes writes. The session got there because
//! no secondary is up or has what the session needs, because of the pool's `reads` setting, or because the
//! server became the primary while the session kept its connection.
//!
//! Such a server would execute what a secondary refuses. So Weir refuses statements that are writes by their
//! text, and those that run statements outside of their text, with a secondary's error. Everything else runs
//! in READ ONLY transactions, in which the server itself refuses writes by views, triggers and functions.

use std::rc::Rc;

use weir_balance::Role;
use weir_mysql::capability::StatusFlags;
use weir_mysql::{LeftBehind, OpenTransaction, SplitAccess, StatementKind, StatementVerdict};
use weir_stats::table::End;

use super::failure::Refusal;
use super::own::Own;
use super::session::Session;
use crate::backends::Chosen;

impl Session {
    /// Adjusts the session's state to the chosen server, so that a connection in that state is looked for.
    /// When the session returns to a secondary, its transactions are as its client set them.
    pub fn suit_state_to(&mut self, chosen: &Chosen) {
        if self.facts.access != SplitAccess::ReadOnly {
            return;
        }
        let is_secondary = chosen.backend().shared.balance.role() == Some(Role::Secondary);
        // A session that its client made READ ONLY stays so.
        let is_suited = match is_secondary {
            true => !self.is_made_read_only,
            false => self.is_made_read_only || self.state.is_read_only(),
        };
        if is_suited {
            return;
        }
        self.is_made_read_only = !is_secondary;
        let from = self.state.clone();
        match self.suited.take().filter(|(before, _)| Rc::ptr_eq(before, &from)) {
            // Nothing else that the session derives from its state depends on this variable.
            Some((_, known)) => self.state = known,
            None => self.take_state(&Rc::new(from.with_read_only(!is_secondary))),
        }
        self.suited = Some((self.state.clone(), from));
    }

    /// Whether a statement cannot write anything on the attached connection in its current state.
    pub fn is_kept_from_writing(&self, verdict: &StatementVerdict) -> bool {
        let Some(attached) = &self.attached else { return true };
        attached.role() == Some(Role::Secondary)
            || (verdict.keeps_read_only()
                && attached.server.state.is_read_only()
                && !self.pins.has(LeftBehind::NEXT_TRANSACTION)
                && self.facts.transaction != OpenTransaction::ReadWrite)
    }

    /// Makes sure that a statement writes nothing on the attached server, which may take writes.
    ///
    /// # Errors
    /// The error for a statement that might write. Nothing of it was sent.
    pub async fn keep_from_writing(&mut self, verdict: &StatementVerdict) -> Result<(), Refusal> {
        if !verdict.keeps_read_only() {
            if !self.keeps_connection() {
                self.release_held().await;
            }
            return Err(Refusal::only_reads());
        }
        let is_read_only = self.attached.as_ref().is_some_and(|it| it.server.state.is_read_only());
        if self.is_in_transaction() {
            // A transaction that is only assumed to be open, after an error or because of table locks, began
            // in the connection's current state.
            let is_surely_open = self.told_status.has(StatusFlags::IN_TRANS);
            let may_write = self.facts.transaction != OpenTransaction::ReadOnly
                && (is_surely_open || !is_read_only || self.pins.has(LeftBehind::NEXT_TRANSACTION));
            return match may_write && verdict.kind != StatementKind::End {
                true => Err(self.end_read_write()),
                false => Ok(()),
            };
        }
        if self.pins.has(LeftBehind::NEXT_TRANSACTION) {
            self.ask_attached(Own::Query(b"SET TRANSACTION READ ONLY")).await?;
        }
        if !is_read_only {
            self.make_read_only().await?;
        }
        Ok(())
    }

    /// Makes transactions on the attached connection READ ONLY from now on.
    async fn make_read_only(&mut self) -> Result<(), Refusal> {
        self.ask_attached(Own::Query(b"SET @@SESSION.transaction_read_only = 'ON'")).await?;
        if let Some(attached) = &mut self.attached {
            // The server reports it, but it is also certain without that, because the server did not refuse.
            let state = Rc::new(attached.server.state.with_read_only(true));
            self.take_state(&state);
            if let Some(attached) = &mut self.attached {
                attached.server.state = self.state.clone();
            }
            self.is_made_read_only = true;
        }
        Ok(())
    }

    /// Ends a transaction that began as READ WRITE on a server that refused writes and has become the primary
    /// since. It has written nothing, and is ended before it can.
    fn end_read_write(&mut self) -> Refusal {
        match self.is_transaction_alone() {
            true => self.roll_back(),
            false => Refusal { end: Some(End::BackendClosed), ..Refusal::only_reads() },
        }
    }
}
