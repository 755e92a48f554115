//! Reads see the session's own writes, even on servers that replicate them later.

use std::sync::atomic::Ordering;

use weir_balance::Role;
use weir_io::clock;
use weir_mysql::SplitAccess;
use weir_mysql::gtid::GtidSet;

use super::acquire::{Attached, number};
use super::own::{self, Own, OwnAnswer};
use super::server::{IdleServers, ServerConnection};
use super::session::Session;
use super::unfit::Unfit;
use super::written::Written;
use crate::backends::Chosen;

/// Most bytes that are read of a server's executed GTIDs. A group has one source and few intervals.
const EXECUTED_BYTES: usize = 2000;
/// Longest wait (seconds) for a server to execute the session's writes, before the primary is used instead.
const CATCH_UP: &str = "1";

/// Longest GTID set that a session waits for (bytes), enough for some hundred sources.
const SET_BYTES: usize = 8000;

impl Session {
    /// Records the GTIDs of a write of the session.
    pub fn note_written(&mut self, gtids: GtidSet) {
        self.written.doubted.clear();
        if self.facts.access == SplitAccess::Auto
            && let Some(pool) = self.pool()
        {
            let executed = pool.backends.iter().filter(|backend| {
                let role = backend.shared.balance.role();
                role != Some(Role::Primary) && backend.kept::<IdleServers>().has_executed(backend, &gtids)
            });
            self.written.doubted.extend(executed.map(|backend| backend.shared.balance.id()));
        }
        self.written.gtids = Some(gtids);
    }

    /// Finds out which GTIDs reads must see, after the error of a statement that may have committed
    /// something: error packets do not report GTIDs.
    pub async fn learn_writes(&mut self) {
        let Some(pool) = self.pool() else { return };
        if !pool.shared.config.mysql.as_ref().is_some_and(|mysql| mysql.read_your_writes) {
            self.has_untold_writes = false;
            return;
        }
        if !pool.shared.has_primary() {
            return;
        }
        let Some(mut attached) = self.primary_aside().await else { return };
        self.deadline.set(own::until());
        let sql = format!(
            "SELECT CAST(IF(LENGTH(@@GLOBAL.gtid_executed) < {SET_BYTES}, @@GLOBAL.gtid_executed, NULL) AS BINARY)"
        );
        let asked = Own::Query(sql.as_bytes());
        let answer = own::ask(&mut attached.server, &self.worker.buffers, &self.deadline, asked).await;
        self.now = clock::now();
        let Ok(answer) = answer else { return };
        attached.give_back(self.now);
        if let OwnAnswer::Rows(rows) = answer {
            // NULL means that the set is too long to wait for: reads stay on the primary.
            let Some(said) = rows.first().and_then(|row| row.first()?.as_deref()) else { return };
            let said = String::from_utf8_lossy(said).replace('\n', "");
            let executed = GtidSet::parse(&said);
            // Without GTIDs there is nothing to wait for.
            if said.is_empty() || executed.is_some() {
                if let Some(executed) = executed {
                    self.note_written(executed);
                }
                self.has_untold_writes = false;
            }
        }
    }

    /// Forgets the session's writes if the primary does not have them: they were lost with an earlier
    /// primary, and no server would ever have them.
    pub async fn forget_lost_writes(&mut self, attached: &mut Attached) {
        let Some(written) = &self.written.gtids else { return };
        let sql = format!("SELECT GTID_SUBSET(_utf8mb4'{written}', @@GLOBAL.gtid_executed)");
        self.deadline.set(own::until());
        let asked = Own::Query(sql.as_bytes());
        let answer = own::ask(&mut attached.server, &self.worker.buffers, &self.deadline, asked).await;
        self.now = clock::now();
        if let Ok(OwnAnswer::Rows(rows)) = answer
            && is_zero(&rows)
        {
            self.written = Written::default();
        }
    }

    /// Whether reads at the server need no wait: it is known to have executed the session's writes, or the
    /// pool does not promise that reads see them.
    pub fn is_caught_up(&self, idle: &IdleServers, chosen: &Chosen) -> bool {
        let Some(written) = &self.written.gtids else { return true };
        let waits = chosen.pool.shared.config.mysql.as_ref().is_some_and(|mysql| mysql.read_your_writes);
        let backend = chosen.backend();
        let is_doubted = self.written.doubted.contains(&backend.shared.balance.id());
        !waits || (!is_doubted && idle.has_executed(backend, written))
    }

    /// Waits until the server has executed the session's writes, unless it is known to have.
    pub async fn catch_up(
        &mut self,
        server: &mut ServerConnection,
        idle: &IdleServers,
        chosen: &Chosen,
    ) -> Result<(), Unfit> {
        if self.is_caught_up(idle, chosen) {
            return Ok(());
        }
        let Some(written) = &self.written.gtids else { return Ok(()) };
        let backend = chosen.backend();
        let id = backend.shared.balance.id();
        let is_doubted = self.written.doubted.contains(&id);
        // Read before the query: a reset that is noticed meanwhile may be later than the answer.
        let resets = backend.shared.gtid_resets.load(Ordering::Acquire);
        let listener = self.slot.current();
        let cells = listener.shared.cells.of(self.worker.number);
        // The other GTIDs that it has executed are other sessions' writes, for which those need not wait
        // later. The literal names its character set and the result is binary, because servers do not accept
        // GTIDs in utf16, which a session may use.
        let sql = format!(
            "SELECT WAIT_FOR_EXECUTED_GTID_SET(_utf8mb4'{written}', {CATCH_UP}), \
             CAST(LEFT(@@GLOBAL.gtid_executed, {EXECUTED_BYTES}) AS BINARY)"
        );
        self.deadline.set(own::until());
        let answer = own::ask(server, &self.worker.buffers, &self.deadline, Own::Query(sql.as_bytes())).await;
        self.now = clock::now();
        match answer.map_err(Unfit::Server)? {
            OwnAnswer::Rows(rows) if is_zero(&rows) => {
                idle.note_executed(written, resets);
                let said = rows.first().and_then(|row| row.get(1)?.as_deref());
                if let Some(executed) = said.and_then(executed) {
                    idle.note_executed(&executed, resets);
                }
                cells.catch_ups.increment();
                self.written.doubted.retain(|doubted| *doubted != id);
                Ok(())
            }
            // The server has no GTIDs, or did not catch up in time.
            _ => {
                cells.behind.increment();
                if is_doubted {
                    backend.shared.gtid_resets.fetch_add(1, Ordering::Release);
                }
                Err(Unfit::Behind)
            }
        }
    }
}

fn is_zero(rows: &[Vec<Option<Box<[u8]>>>]) -> bool {
    number(rows) == Some(0)
}

/// Parses a server's executed GTIDs, which were cut to [`EXECUTED_BYTES`]; `None` if the text is not a GTID
/// set.
fn executed(text: &[u8]) -> Option<GtidSet> {
    let text = std::str::from_utf8(text).ok()?;
    // If the text was cut, its last number may be cut too and thus be wrong.
    let whole = match text.len() < EXECUTED_BYTES {
        true => text,
        false => text.rsplit_once([':', ',']).map_or("", |(whole, _)| whole),
    };
    GtidSet::parse(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "3e11fa47-71ca-11e1-9e33-c80aa9429562";

    #[test]
    fn what_was_executed_is_read_to_the_last_number_that_is_known_to_be_whole() {
        let set = |text: &str| GtidSet::parse(&text.replace("S", SOURCE)).unwrap();
        let said = |text: &str| executed(text.replace("S", SOURCE).as_bytes());
        assert_eq!(said("S:1-5:7"), Some(set("S:1-5:7")));
        assert_eq!(said("nothing"), None);
        let mut long = SOURCE.to_owned();
        (0..1000).for_each(|number| long += &format!(":{}", 1000 + 2 * number));
        let cut = executed(&long.as_bytes()[..EXECUTED_BYTES]).unwrap();
        assert!(set(&long).contains(&cut), "{cut}");
        let last = (EXECUTED_BYTES - SOURCE.len()) / 5;
        assert!(cut.contains(&set(&format!("S:{}", 1000 + 2 * (last - 1)))), "{cut}");
        assert!(!cut.contains(&set(&format!("S:{}", 1000 + 2 * last))), "{cut}");
    }
}
