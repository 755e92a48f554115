//! Finds a server and a connection that fit a statement: the server has the role that the statement needs,
//! and the connection can answer what it asks about earlier statements.

use std::rc::Rc;
use std::time::Duration;

use weir_balance::Role;
use weir_io::clock;
use weir_mysql::capability::StatusFlags;
use weir_mysql::{
    BeyondReadOnly, LeftBehind, OpenTransaction, ReadsBack, RoleWanted, RouteReason, SplitAccess,
    StatementKind, StatementVerdict,
};
use weir_stats::table::End;

use super::acquire::{Attached, Whose, number};
use super::attach::ServerError;
use super::deposed::PrimaryAsked;
use super::exchange::ServerFailure;
use super::failure::{self, Refusal};
use super::outcome::Outcome;
use super::own::{self, NOTHING, Own, OwnAnswer, Waiting};
use super::prepared::StatementText;
use super::room::RoomMade;
use super::session::{Session, wanted_role};

/// How the collation is found that a statement has left on its connection.
pub enum CollationTold {
    /// It was a SET NAMES with this collation; `None` is the default collation of its character set.
    ByNames(Option<Box<[u8]>>),
    /// The server must be asked; `of_results` means that results have the same collation.
    ByServer { of_results: bool },
}

impl Session {
    /// Attaches the session to a server for a statement; that may be the server it is already attached to.
    pub async fn attach_for(&mut self, verdict: &StatementVerdict, but: Option<&str>) -> Result<(), Refusal> {
        self.leave_read_only(verdict).await?;
        let verdict = &verdict.under(&self.facts);
        // A text that cannot be read might ask for anything, but most such texts are syntax errors on the
        // server as well.
        let mut asks = verdict.reads_back.without(ReadsBack::CONNECTION_ID.and(ReadsBack::ANYTHING));
        if verdict.leaves.has(LeftBehind::INSERT_ID) {
            // The statement may leave the value unchanged, so it must be the session's value beforehand.
            asks |= ReadsBack::INSERT_ID;
        }
        // A write may also ask, but still belongs on the primary. So does a statement that binds its session
        // to the connection, because writes may follow. GET DIAGNOSTICS is an exception: it always sets a
        // variable, and only the server of the previous statement has the diagnostics.
        let may_stay = !verdict.leaves.pins()
            || (verdict.kind == StatementKind::Diagnostics
                && !verdict.leaves.has(LeftBehind::ANYTHING)
                && !self.is_without_warnings
                && self.refused.is_none());
        let only_asks = may_stay
            && !verdict.changes
            && !verdict.reads_back.has(ReadsBack::CONNECTION_ID)
            && (verdict.own_reason.wants() == RoleWanted::AnyMember
                || verdict.own_reason == RouteReason::LastResult);
        let mut is_attached = false;
        if let Some(attached) = &self.attached {
            let is_fit = verdict.wants == RoleWanted::Primary && attached.role() == Some(Role::Primary);
            let is_fit = is_fit && !attached.is_leaving();
            is_attached = !self.is_only_holding() || is_fit || (!asks.is_empty() && only_asks);
            match is_attached {
                true => self.stay_for(verdict)?,
                false => {
                    self.release_held().await;
                    if self.attached.is_some() {
                        // It turned out to be the session's own connection.
                        self.stay_for(verdict)?;
                        is_attached = true;
                    }
                }
            }
        }
        is_attached |=
            !asks.is_empty() && !is_attached && self.recall(|role| only_asks || role == Some(Role::Primary));
        if !is_attached {
            let asks_who = verdict.reads_back.has(ReadsBack::CONNECTION_ID);
            let whose = if asks_who { Whose::Own } else { Whose::Shared };
            self.attach(wanted_role(verdict.wants), whose, but).await?;
        }
        if self.facts.access == SplitAccess::ReadOnly && !self.is_kept_from_writing(verdict) {
            Box::pin(self.keep_from_writing(verdict)).await?;
        }
        self.recreate(asks, only_asks).await
    }

    /// Commits a READ ONLY transaction on a server that is not the primary, before a text that would end the
    /// transaction first and then needs the primary.
    async fn leave_read_only(&mut self, verdict: &StatementVerdict) -> Result<(), Refusal> {
        let is_away = |attached: &Attached| attached.role() != Some(Role::Primary);
        let is_movable = self.pins.is_empty() && !self.statements.is_any_bound();
        if verdict.beyond_read_only != BeyondReadOnly::AtOnce
            || !is_movable
            || self.facts.transaction != OpenTransaction::ReadOnly
            || self.facts.access != SplitAccess::Auto
            // The transaction that would begin after it is READ ONLY as well.
            || (verdict.ends_as_set && self.state.chains())
            || !self.attached.as_ref().is_some_and(is_away)
        {
            return Ok(());
        }
        self.ask_attached(Own::Query(b"COMMIT AND NO CHAIN NO RELEASE")).await?;
        self.end_transaction();
        self.leave();
        Ok(())
    }

    /// Records that no transaction is open any more, if no answer has reported this.
    pub fn end_transaction(&mut self) {
        self.status.0 &= !(StatusFlags::IN_TRANS.0 | StatusFlags::IN_TRANS_READONLY.0);
        self.told_status = self.status;
        if let Some(attached) = &mut self.attached {
            attached.server.may_hold_tables = false;
        }
        self.renew_facts();
    }

    /// The server's id of a statement on the attached connection, which prepares it if necessary. The inner
    /// error is the server's. The outer error is a lost connection, with the error for the client, or `None`
    /// if it had no session state and another connection will do.
    pub async fn prepared_on_attached(
        &mut self,
        text: &Rc<StatementText>,
    ) -> Result<Result<u32, Refusal>, Option<Refusal>> {
        let Some(attached) = &mut self.attached else { return Err(None) };
        if let Some(id) = attached.server.statements.find(text) {
            return Ok(Ok(id));
        }
        Box::pin(self.prepare_on_attached(text)).await
    }

    async fn prepare_on_attached(
        &mut self,
        text: &Rc<StatementText>,
    ) -> Result<Result<u32, Refusal>, Option<Refusal>> {
        if !text.is_whole() {
            return Ok(Err(Refusal::text_not_kept()));
        }
        // On the server, counts survive a prepare, but warnings do not. Statements that ask about warnings
        // cannot be prepared.
        let is_untold = self.attached.as_ref().is_some_and(|attached| attached.server.is_untold);
        self.here = self.here.without(match is_untold {
            true => ReadsBack::ABOUT_THE_LAST,
            false => ReadsBack::WARNINGS,
        });
        let mut prepared = self.ask_to_prepare(text).await;
        let mut made = RoomMade::default();
        while matches!(&prepared, Ok(Err(error)) if error.is_for_want_of_room())
            && self.make_room(&mut made).await
        {
            prepared = self.ask_to_prepare(text).await;
        }
        match prepared {
            Ok(Ok(id)) => {
                self.close_beyond_room().await;
                Ok(Ok(id))
            }
            Ok(Err(error)) => Ok(Err(Refusal::of_server(error))),
            Err(failure) => {
                let is_owned = self.keeps_connection();
                let refusal = self.lose_connection(&failure);
                let is_over = self.slot.draining_until().is_some_and(|until| until <= self.now);
                match failure {
                    ServerFailure::TimedOut if is_over => Ok(Err(Refusal::draining())),
                    ServerFailure::TimedOut if !is_owned => Ok(Err(Refusal::overtime(false))),
                    _ => Err(Some(refusal).filter(|_| is_owned)),
                }
            }
        }
    }

    async fn ask_to_prepare(
        &mut self,
        text: &Rc<StatementText>,
    ) -> Result<Result<u32, ServerError>, ServerFailure> {
        let longest = self.slot.look().shared.config.timeout.statement;
        let Session { attached, stream, slot, worker, deadline, state, .. } = &mut *self;
        let Some(Attached { server, chosen, .. }) = attached else { return Err(ServerFailure::Closed) };
        let begun = clock::now();
        deadline.set(longest.map_or(Duration::MAX, |longest| begun + longest));
        // Another session's lock on a table may hold it up.
        let waiting = Waiting {
            client: stream,
            slot,
            deadlines: &worker.deadlines,
            deadline,
            primary: PrimaryAsked::of(chosen, RoleWanted::AnyMember, begun),
        };
        let preparing = own::prepare(server, &worker.buffers, deadline, text, state);
        let prepared = own::for_client(waiting, preparing).await;
        self.now = clock::now();
        self.take_told();
        prepared
    }

    /// Restores, on a connection that others have used, what a statement asks about.
    async fn recreate(&mut self, asks: ReadsBack, only_asks: bool) -> Result<(), Refusal> {
        let missing = asks.without(self.here);
        if missing.is_empty() {
            return Ok(());
        }
        // Restoring LAST_INSERT_ID() replaces the rest.
        let lost = if missing.has(ReadsBack::INSERT_ID) { asks } else { missing };
        let of_refusal = ReadsBack::WARNINGS.and(ReadsBack::ROW_COUNT);
        if lost.without(of_refusal).is_empty()
            && let Some(error) = self.refused.clone()
            && self.refuse_anew(&error).await?
        {
            self.here |= asks;
            return Ok(());
        }
        // A read of Weir's own has the same count.
        let reads_anew = lost.has(ReadsBack::ROW_COUNT)
            && self.has_left_rows
            && !asks.has(ReadsBack::FOUND_ROWS)
            && (self.is_without_warnings || !asks.has(ReadsBack::WARNINGS));
        let lost = if reads_anew { lost.without(ReadsBack::ROW_COUNT) } else { lost };
        for (what, name) in [(ReadsBack::FOUND_ROWS, "FOUND_ROWS()"), (ReadsBack::ROW_COUNT, "ROW_COUNT()")] {
            if lost.has(what) {
                return Err(self.not_known(name, only_asks).await);
            }
        }
        if lost.has(ReadsBack::WARNINGS) && !self.is_without_warnings {
            return Err(self.not_known("the warnings of a statement before", only_asks).await);
        }
        if missing.has(ReadsBack::INSERT_ID) {
            self.recreate_insert_id().await?;
        }
        if reads_anew {
            self.ask_attached(Own::Query(b"SELECT 1")).await?;
        } else if lost.has(ReadsBack::WARNINGS) {
            // There were no warnings, and a statement without warnings leaves none.
            self.ask_attached(NOTHING).await?;
        }
        self.here |= asks;
        Ok(())
    }

    /// Restores the session's LAST_INSERT_ID() on the attached connection, which began with 0.
    async fn recreate_insert_id(&mut self) -> Result<(), Refusal> {
        if self.insert_id.is_none() {
            self.learn_insert_id(b"SELECT LAST_INSERT_ID()").await?;
        }
        let Some(id) = self.insert_id else { return Err(Refusal::not_known_any_more("LAST_INSERT_ID()")) };
        let sql = format!("SET last_insert_id = {id}");
        self.ask_attached(Own::Query(sql.as_bytes())).await?;
        if let Some(attached) = &mut self.attached {
            attached.server.has_insert_id = id != 0;
        }
        Ok(())
    }

    /// Asks for LAST_INSERT_ID() after a statement that reported an insert id. The reported id may be an
    /// explicit value from the statement, which LAST_INSERT_ID() does not return.
    pub async fn learn_insert_id(&mut self, sql: &[u8]) -> Result<(), Refusal> {
        let answer = self.ask_attached(Own::Query(sql)).await?;
        if let OwnAnswer::Rows(rows) = answer {
            let is_here = self.here.has(ReadsBack::INSERT_ID);
            self.insert_id = match number(&rows) {
                // This is the connection's initial value.
                Some(0) if !is_here => self.insert_id_before,
                learnt => learnt,
            };
        }
        Ok(())
    }

    /// Takes over the collation that a statement has left on its connection.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn take_collation(&mut self, told: CollationTold, outcome: &mut Outcome) -> Result<(), End> {
        let of_results = match told {
            CollationTold::ByNames(name) => {
                if let Some(attached) = &mut self.attached {
                    Rc::make_mut(&mut attached.server.state).set_names_collation(name.as_deref());
                }
                return Ok(());
            }
            CollationTold::ByServer { of_results } => of_results,
        };
        // A query by Weir would replace the warnings.
        if outcome.has_warnings {
            outcome.untracked = true;
            return Ok(());
        }
        outcome.is_replaced = true;
        let asked = self.ask_attached(Own::Query(b"SELECT CAST(@@collation_connection AS BINARY)")).await;
        let Some(attached) = &mut self.attached else { return Err(End::BackendClosed) };
        let row = match asked {
            Ok(OwnAnswer::Rows(rows)) => rows.into_iter().next(),
            _ => None,
        };
        let state = Rc::make_mut(&mut attached.server.state);
        match row.and_then(|row| row.into_iter().next()?) {
            Some(collation) if of_results => state.set_names_collation(Some(&collation)),
            Some(collation) => state.set_collation(&collation),
            None => outcome.untracked = true,
        }
        Ok(())
    }

    /// Makes the attached server raise one of Weir's own errors, so that its diagnostics are as if the server
    /// had refused the statement. `false` if the server left something else.
    async fn refuse_anew(&mut self, error: &ServerError) -> Result<bool, Refusal> {
        let said = self.ask_attached(Own::Query(&error.signal())).await;
        match said {
            Err(refusal) if self.attached.is_none() => Err(refusal),
            Err(refusal) => Ok(refusal.error.code == error.code),
            Ok(_) => Ok(false),
        }
    }

    async fn not_known(&mut self, what: &str, only_asks: bool) -> Refusal {
        if !self.keeps_connection() {
            self.release_held().await;
        }
        match only_asks {
            true => Refusal::not_known_any_more(what),
            false => Refusal::not_known_where_it_runs(what),
        }
    }

    /// The error for a statement whose connection was lost before it was sent. If the connection had only a
    /// transaction, the transaction is gone; if it had other session state, the session ends.
    fn lose_connection(&mut self, failure: &ServerFailure) -> Refusal {
        if let Some(attached) = self.attached.take() {
            tracing::debug!(backend = attached.address(), %failure, "MySQL server lost");
            match failure {
                // The server is at work on what nobody waits for.
                ServerFailure::TimedOut | ServerFailure::Unwanted => self.abandon(attached),
                _ => attached.chosen.pool.shared.nudge.ask(),
            }
        }
        self.killable.note(None);
        let refusal = match (self.keeps_connection(), self.is_transaction_alone()) {
            (_, true) => Refusal::of_server(failure::rolled_back()),
            (true, false) => Refusal::connection_lost(),
            (false, false) => Refusal::not_known_any_more("what a statement before has left"),
        };
        self.end_transaction();
        refusal
    }

    pub async fn ask_attached(&mut self, asked: Own<'_>) -> Result<OwnAnswer, Refusal> {
        let Some(attached) = &mut self.attached else { return Ok(OwnAnswer::Done) };
        self.here = self.here.without(ReadsBack::ABOUT_THE_LAST);
        self.deadline.set(own::until());
        let answer = own::ask(&mut attached.server, &self.worker.buffers, &self.deadline, asked).await;
        self.now = clock::now();
        self.take_told();
        match answer {
            Ok(OwnAnswer::Refused(error)) => Err(Refusal::of_server(error)),
            Ok(answer) => Ok(answer),
            Err(failure) => Err(self.lose_connection(&failure)),
        }
    }
}
