//! Room for prepared statements at a server, which has so many for all its clients together
//! (`max_prepared_stmt_count`). Statements stay on connections for whoever prepares the same; where there are
//! too many, those give way that nobody has anything with.

use std::sync::atomic::Ordering;

use weir_io::clock;

use super::acquire::{Attached, give_back};
use super::own::{self, NOTHING};
use super::server::IdleServers;
use super::session::Session;

impl Session {
    /// Makes room at a server that has none for one statement more: closes all that nobody has anything with,
    /// on the attached connection and on those of this worker that are idle. Gives whether there is some now.
    pub async fn make_room(&mut self) -> bool {
        let Some(Attached { chosen, server, .. }) = &mut self.attached else { return false };
        self.deadline.set(own::until());
        let ids = server.statements.take_all();
        if own::close(server, &self.deadline, &ids).await.is_err() {
            server.is_at_rest = false;
            return false;
        }
        let backend = chosen.backend();
        let idle = backend.kept::<IdleServers>();
        let mut count = ids.len();
        if ids.is_empty()
            && let Some(mut other) = idle.take_with_statements(backend)
        {
            // On its own connection a server does one thing behind the other. Of another's it is asked.
            let ids = other.statements.take_all();
            let closed = own::close(&mut other, &self.deadline, &ids).await;
            if closed.is_ok()
                && own::ask(&mut other, &self.worker.buffers, &self.deadline, NOTHING).await.is_ok()
            {
                count += ids.len();
                give_back(chosen, other, clock::now());
            }
        }
        count += idle.close_statements(|| true);
        backend.cells().statements_closed.add(count as u64);
        self.now = clock::now();
        count > 0
    }

    /// Closes what is beyond `prepared_statements` of the pool, behind a statement that was prepared.
    pub async fn close_beyond_room(&mut self) {
        let Some(Attached { chosen, server, .. }) = &mut self.attached else { return };
        let config = chosen.pool.shared.config.mysql.as_ref();
        let most = config.map_or(u32::MAX, |mysql| mysql.prepared_statements);
        if server.statements.at_server() <= most {
            return;
        }
        let backend = chosen.backend();
        let at_server = || backend.shared.prepared.load(Ordering::Relaxed);
        let mut count = backend.kept::<IdleServers>().close_statements(|| at_server() > most);
        if at_server() > most
            && let Some(id) = server.statements.take_oldest()
        {
            count += 1;
            self.deadline.set(own::until());
            if own::close(server, &self.deadline, &[id]).await.is_err() {
                server.is_at_rest = false;
            }
        }
        backend.cells().statements_closed.add(count as u64);
    }
}
