//! What is known about the servers for which Weir greets a client.
//!
//! A client assumes that the greeting's version and flags are those of its server for the whole connection.
//! So the first clients after a start wait until the servers have reported theirs.

use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use weir_config::{Check, PoolMysql};
use weir_io::clock;
use weir_state::ServerFacts;

use super::UnknownClient;
use crate::backends::WorkerPool;
use crate::mysql::talk::TalkError;

/// Longest time that clients wait for the servers' facts, counted from the first client.
const LONGEST: Duration = Duration::from_secs(1);
/// How often the facts are checked meanwhile.
const STEP: Duration = Duration::from_millis(10);

impl UnknownClient<'_> {
    /// The facts about the pool's servers that are known in time.
    pub(super) async fn known_servers(&self) -> Result<Vec<Arc<ServerFacts>>, TalkError> {
        let pool = self.terms.pool;
        loop {
            let servers = pool.shared.backends.iter();
            let known: Vec<_> = servers.filter_map(|server| server.server.load_full()).collect();
            if known.len() == pool.shared.backends.len() || !is_about_to_hear(pool) {
                return Ok(known);
            }
            let mut step = pin!(tokio::time::sleep(STEP));
            poll_fn(|context| match step.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending if self.terms.deadline.has_passed() => Poll::Ready(Err(TalkError::TimedOut)),
                Poll::Pending if self.terms.deadline.is_shed() => Poll::Ready(Err(TalkError::Shed)),
                Poll::Pending => Poll::Pending,
            })
            .await?;
        }
    }
}

/// Whether health checks or the pool's monitor log in to the servers, and have not had time for it yet.
fn is_about_to_hear(pool: &WorkerPool) -> bool {
    let config = &pool.shared.config;
    let is_asked = matches!(config.health.check, Check::Mysql)
        || config.mysql.as_ref().is_some_and(PoolMysql::is_watched);
    if !is_asked {
        return false;
    }
    let now = clock::now();
    let until = pool.unheard_until.get().unwrap_or(now + LONGEST);
    pool.unheard_until.set(Some(until));
    now < until
}
