//! What happens to MySQL's servers while clients come and go.

use std::time::Instant;

use super::chaos::{Chaos, SQL_POOL, Undo};
use super::sql_judge::{SqlCause, SqlChange};

impl Chaos {
    /// Notes that a change begins; a drained server is none, as clients are to see nothing of it.
    pub(super) fn sql_change(&mut self, cause: SqlCause) {
        self.sql_changes.push(SqlChange { cause, from: Instant::now(), until: None });
    }

    /// Notes that changes of this cause are over.
    pub(super) fn sql_change_ends(&mut self, cause: SqlCause) {
        let now = Instant::now();
        let of_it = self.sql_changes.iter_mut().filter(|it| it.cause == cause && it.until.is_none());
        of_it.for_each(|it| it.until = Some(now));
    }

    pub(super) fn sql_kills(&mut self) -> &'static str {
        let place = self.sql_disturbs();
        self.site.sql.server(place).dies();
        self.later(200..2500, Undo::SqlStart(place));
        if self.site.sql.is_primary(place) { "primary killed" } else { "secondary killed" }
    }

    pub(super) fn sql_stops(&mut self) -> &'static str {
        let place = self.sql_disturbs();
        self.site.sql.server(place).freezes();
        self.later(300..7000, Undo::SqlContinue(place));
        if self.site.sql.is_primary(place) { "primary stopped" } else { "secondary stopped" }
    }

    fn sql_disturbs(&mut self) -> usize {
        self.is_sql_disturbed = true;
        self.sql_change(SqlCause::Lost);
        self.draws.below(2) as usize
    }

    /// A server that was killed or stopped serves again.
    pub(super) fn sql_is_back(&mut self) {
        self.is_sql_disturbed = false;
        self.sql_change_ends(SqlCause::Lost);
    }

    pub(super) fn sql_hands_over(&mut self) -> &'static str {
        self.sql_change(SqlCause::HandedOver);
        self.site.sql.hands_over();
        let next = self.site.sql.primary().address.to_string();
        self.waits("the next primary to be known", |chaos| {
            let labels = [("backend", next.as_str()), ("role", "primary")];
            chaos.site.weir.metric("weir_mysql_role", &labels) == 1.0
        });
        self.sql_change_ends(SqlCause::HandedOver);
        "primary handed over"
    }

    pub(super) fn sql_drains(&mut self) -> &'static str {
        let address = self.site.sql.addresses()[self.draws.below(2) as usize];
        self.is_sql_disturbed = true;
        self.sets_state(&[SQL_POOL], address, "drain");
        self.later(500..3000, Undo::SqlEnable(address));
        if self.site.sql.primary().address == address { "primary drained" } else { "secondary drained" }
    }
}
