//! What a session of a listener for reads may do at a server that takes writes: one that was chosen because
//! no secondary has what the session needs, or is up, or because `reads` says so; or one that has become the
//! primary while the session kept its connection.
//!
//! The server would carry out what a secondary refuses. So what says that it writes, and what runs statements
//! that are not in its text, is refused in a secondary's words. All else runs in transactions that are READ
//! ONLY, by which views, triggers and functions that write are refused by the server itself.

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
    /// Brings the session's state to what it is to be at the chosen server: the connection that is looked for
    /// is one in that. A session that goes back to a secondary has its transactions as they were.
    pub fn suit_state_to(&mut self, chosen: &Chosen) {
        if self.facts.access != SplitAccess::ReadOnly {
            return;
        }
        let is_secondary = chosen.backend().shared.balance.role() == Some(Role::Secondary);
        // What is READ ONLY by its client's own word stays so.
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
            // Nothing that a session takes from its state but this goes by it.
            Some((_, known)) => self.state = known,
            None => self.take_state(&Rc::new(from.with_read_only(!is_secondary))),
        }
        self.suited = Some((self.state.clone(), from));
    }

    /// Whether a statement can write nothing on the attached connection as it is.
    pub fn is_kept_from_writing(&self, verdict: &StatementVerdict) -> bool {
        let Some(attached) = &self.attached else { return true };
        attached.role() == Some(Role::Secondary)
            || (verdict.keeps_read_only()
                && attached.server.state.is_read_only()
                && !self.pins.has(LeftBehind::NEXT_TRANSACTION)
                && self.facts.transaction != OpenTransaction::ReadWrite)
    }

    /// Sees to it that a statement writes nothing at the attached server, which may take writes.
    ///
    /// # Errors
    /// What the client is told of one that might. Nothing was sent of it.
    pub async fn keep_from_writing(&mut self, verdict: &StatementVerdict) -> Result<(), Refusal> {
        if !verdict.keeps_read_only() {
            if !self.keeps_connection() {
                self.release_held().await;
            }
            return Err(Refusal::only_reads());
        }
        let is_read_only = self.attached.as_ref().is_some_and(|it| it.server.state.is_read_only());
        if self.is_in_transaction() {
            // What is only assumed to be open, behind an error or for the sake of a table, began in the state
            // that the connection is in.
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

    /// Has transactions on the attached connection be READ ONLY from here on.
    async fn make_read_only(&mut self) -> Result<(), Refusal> {
        self.ask_attached(Own::Query(b"SET @@SESSION.transaction_read_only = 'ON'")).await?;
        if let Some(attached) = &mut self.attached {
            // As the server has told, and in any case: it has not refused.
            let state = Rc::new(attached.server.state.with_read_only(true));
            self.take_state(&state);
            if let Some(attached) = &mut self.attached {
                attached.server.state = self.state.clone();
            }
            self.is_made_read_only = true;
        }
        Ok(())
    }

    /// A transaction that began as one that may write, where that was refused, and whose server is the
    /// primary by now: it has written nothing, and ends before it does.
    fn end_read_write(&mut self) -> Refusal {
        match self.is_transaction_alone() {
            true => self.roll_back(),
            false => Refusal { end: Some(End::BackendClosed), ..Refusal::only_reads() },
        }
    }
}
