//! What is known of the servers in whose name a client is greeted.
//!
//! A client takes the version and the flags of the greeting for those of its server for as long as it stays.
//! So the first ones behind a start wait for what the servers are about to say of themselves.

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

/// How long clients wait at most for servers to be heard of, from the first client on.
const LONGEST: Duration = Duration::from_secs(1);
/// How often it is looked whether they have been.
const STEP: Duration = Duration::from_millis(10);

impl UnknownClient<'_> {
    /// What the pool's servers have said of themselves, those that have in time.
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

/// Whether somebody logs in to the servers to see whether they are there, and has had no time for it yet.
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
