//! A statement that its server has refused because it takes no writes.

use weir_io::clock;
use weir_mysql::{Resend, RoleWanted};

use super::acquire::take_role_off;
use super::outcome::Outcome;
use super::own::{self, Own, OwnAnswer};
use super::session::Session;
use super::statement::{Before, Losses, Running};

/// Asks a server whether it takes writes of accounts without privileges.
const IS_READ_ONLY: Own<'static> = Own::Query(b"SELECT @@GLOBAL.read_only OR @@GLOBAL.super_read_only");

impl Session {
    /// Whether the server takes no writes now and has refused the statement for that, without executing
    /// anything.
    ///
    /// SIGNAL ends with any error that its text says, in a trigger as well, and needs no privilege. So the
    /// server is asked: what it answers affects all sessions. One that cannot be asked any more is believed.
    pub async fn takes_no_writes(&mut self, running: &Running<'_>, outcome: &mut Outcome) -> bool {
        let is_said = outcome.error.as_ref().is_some_and(|error| error.is_read_only());
        let Some(attached) = self.attached.as_mut().filter(|attached| is_said && attached.is_watched())
        else {
            return false;
        };
        if running.verdict.wants != RoleWanted::Primary && !attached.was_primary {
            return false;
        }
        self.deadline.set(own::until());
        let answer = own::ask(&mut attached.server, &self.worker.buffers, &self.deadline, IS_READ_ONLY).await;
        self.now = clock::now();
        outcome.is_replaced = true;
        match answer {
            Ok(OwnAnswer::Rows(rows)) => {
                rows.first().and_then(|row| row.first()?.as_deref()).is_some_and(|value| value == b"1")
            }
            Ok(_) => false,
            Err(_) => true,
        }
    }

    /// Whether a statement is to be sent again, to the primary once there is one, because this server
    /// [takes no writes](Self::takes_no_writes). It loses its role at once.
    pub fn is_to_be_sent_again(
        &mut self,
        running: &Running<'_>,
        before: Before,
        losses: &mut Losses,
    ) -> bool {
        let Some(attached) = &self.attached else { return false };
        if running.verdict.wants != RoleWanted::Primary {
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
        losses.add_refused();
        self.listener().shared.cells.of(self.worker.number).rerun_read_only.increment();
        self.leave();
        true
    }
}
