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
use weir_state::{Backend, ServerFacts};

use super::UnknownClient;
use crate::backends::WorkerPool;
use crate::mysql::talk::TalkError;

/// Longest time that clients wait for the servers' facts, counted from the first client.
const LONGEST: Duration = Duration::from_secs(1);

impl UnknownClient<'_> {
    /// The facts about the pool's servers that are known in time.
    pub(super) async fn known_servers(&self) -> Result<Vec<Arc<ServerFacts>>, TalkError> {
        let pool = self.terms.pool;
        let servers = &pool.shared.backends;
        let all_known = || servers.iter().filter_map(|it| it.server.load_full()).collect::<Vec<_>>();
        let mut known = all_known();
        while known.len() < servers.len()
            && let Some(patience) = left_to_hear(pool)
        {
            let mut learns = pin!(Backend::learns());
            // Something may have been learnt just before.
            known = all_known();
            if known.len() == servers.len() {
                break;
            }
            let mut longest = pin!(tokio::time::sleep(patience));
            poll_fn(|context| match learns.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(Ok(())),
                Poll::Pending if longest.as_mut().poll(context).is_ready() => Poll::Ready(Ok(())),
                Poll::Pending if self.terms.deadline.has_passed() => Poll::Ready(Err(TalkError::TimedOut)),
                Poll::Pending if self.terms.deadline.is_shed() => Poll::Ready(Err(TalkError::Shed)),
                Poll::Pending => Poll::Pending,
            })
            .await?;
            known = all_known();
        }
        Ok(known)
    }
}

/// How much time health checks or the pool's monitor still have to log in to the servers; `None` if none do,
/// or the time is over.
fn left_to_hear(pool: &WorkerPool) -> Option<Duration> {
    let config = &pool.shared.config;
    let is_asked = matches!(config.health.check, Check::Mysql)
        || config.mysql.as_ref().is_some_and(PoolMysql::is_watched);
    if !is_asked {
        return None;
    }
    let now = clock::now();
    let until = pool.unheard_until.get().unwrap_or(now + LONGEST);
    pool.unheard_until.set(Some(until));
    until.checked_sub(now).filter(|left| !left.is_zero())
}
