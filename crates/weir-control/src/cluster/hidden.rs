//! Searches for stored code with invisible effects on a connection, such as user locks taken in functions
//! behind views. It uses a separate connection, since a large data dictionary takes time.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::time::{sleep, timeout};
use weir_balance::Role;
use weir_mysql::hidden::HiddenSearch;
use weir_mysql::outcome::printable;
use weir_state::{Backend, Pool};

use super::client::{LoginAs, MysqlClient};
use super::member::Manner;
use super::seen::PoolSeen;
use crate::health::probe;

/// Interval between two searches.
const SEARCHES: Duration = Duration::from_secs(60);
/// Interval between attempts to find a primary, and pause after a failed search.
const TRIES: Duration = Duration::from_secs(1);
/// Longest time for one search.
const LONGEST: Duration = Duration::from_secs(20);

/// Searches the primary of a pool, for ever.
pub(super) async fn search(pool: Arc<Pool>, manner: Manner, seen: Arc<PoolSeen>) {
    let name = &*pool.config.name;
    loop {
        let is_primary = |backend: &&Arc<Backend>| backend.balance.role() == Some(Role::Primary);
        let Some(primary) = pool.backends.iter().find(is_primary) else {
            sleep(TRIES).await;
            continue;
        };
        let searched = timeout(LONGEST, search_on(primary, &manner)).await;
        match searched.unwrap_or_else(|_| Err(format!("not done within {LONGEST:?}"))) {
            Ok(search) => {
                let names = search.into_names();
                // Whoever may create a view chooses its name, which could hold lines of its own.
                let mut shown: Vec<String> = names.iter().map(|name| printable(name)).collect();
                shown.sort();
                if !shown.is_empty() && pool.hidden.is_empty() {
                    tracing::info!(
                        pool = name,
                        names = shown.join(", "),
                        "cluster: stored code with user locks or variables"
                    );
                }
                seen.hides(shown);
                pool.hidden.found(names);
                sleep(SEARCHES).await;
            }
            // The earlier result remains in use.
            Err(reason) => {
                tracing::debug!(pool = name, backend = primary.address, reason, "no search for stored code");
                sleep(TRIES).await;
            }
        }
    }
}

async fn search_on(backend: &Backend, manner: &Manner) -> Result<HiddenSearch, String> {
    let at = backend.resolved.at().ok_or("its name is not resolved")?;
    let mut stream = manner.local_end.connect(&at).await.map_err(|error| error.to_string())?;
    if let Some(version) = manner.send_proxy {
        stream.write_all(probe::announcement(version)).await.map_err(|error| error.to_string())?;
    }
    let login = LoginAs {
        account: manner.account.as_deref(),
        tls: backend.tls.as_ref().map(|tls| (tls, manner.requires_tls)),
    };
    let client = MysqlClient::login(stream, login, &mut None).await;
    let mut client = client.map_err(|error| error.to_string())?;
    let mut search = HiddenSearch::default();
    while let Some(sql) = search.next_sql() {
        let rows = client.query(&sql).await.map_err(|error| error.to_string())?;
        search.take(&rows);
    }
    client.quit().await;
    Ok(search)
}
