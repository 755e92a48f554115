//! Makes room for prepared statements on a server, whose limit counts all clients together
//! (`max_prepared_stmt_count`). Statements stay prepared on connections for sessions that prepare the same
//! text; when there are too many, those with nothing bound to them are closed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_io::clock;

use super::acquire::{Attached, give_back};
use super::own::{self, NOTHING};
use super::server::IdleServers;
use super::session::Session;
use crate::evictions;

/// How often a statement is prepared again on a server that had no room for it.
const ATTEMPTS: u32 = 4;
/// How long a server has at first to close statements of connections whose answer nobody awaits. Doubled each
/// time that it still has no room.
const SOON: Duration = Duration::from_millis(5);

/// How often room was made for one statement.
#[derive(Default)]
pub struct RoomMade {
    attempts: u32,
    /// Whether other workers have closed statements, too.
    is_elsewhere: bool,
}

impl Session {
    /// Makes room on a server that has none for another statement: closes all statements with nothing bound
    /// to them, on the attached connection and on this worker's idle ones, and then on those of the other
    /// workers. Returns whether there may be room now.
    pub async fn make_room(&mut self, made: &mut RoomMade) -> bool {
        made.attempts += 1;
        if made.attempts > ATTEMPTS {
            return false;
        }
        if self.make_room_here().await {
            return true;
        }
        if !made.is_elsewhere {
            let Some(Attached { chosen, .. }) = &self.attached else { return false };
            let count = evictions::of_statements(&self.worker, &chosen.backend().shared.prepared).await;
            chosen.backend().cells().statements_closed.add(count as u64);
            made.is_elsewhere = count > 0;
        }
        if made.is_elsewhere {
            tokio::time::sleep(SOON * (1 << made.attempts)).await;
            self.now = clock::now();
        }
        made.is_elsewhere
    }

    async fn make_room_here(&mut self) -> bool {
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
            // A server handles the commands of one connection in order. On another connection, an answer must
            // confirm that the statements are closed.
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

    /// Closes the statements that exceed the pool's `prepared_statements`, after a statement was prepared.
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
