//! `weir drain`, `weir enable`, `weir add` and `weir remove`

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::json;
use weir_admin::status::{BackendStatus, PoolStatus};

use crate::arguments::{Added, Change, Removed};
use crate::client::{Client, block_on, segment};
use crate::exit::Exit;

/// Time between two checks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// Takes a backend out of service. With `wait`, returns when it has nothing in flight.
pub fn drain(change: &Change, wait: bool) -> Result<Exit, Exit> {
    change.to("drain", wait, |backend, has_process_before| match backend.in_flight {
        0 if has_process_before => {
            Err("the process before an upgrade still serves what it had begun, maybe there".to_owned())
        }
        0 => Ok(()),
        left => Err(format!("{left} in flight")),
    })
}

/// Takes a backend back into service. With `wait`, returns when it gets new work.
pub fn enable(change: &Change, wait: bool) -> Result<Exit, Exit> {
    change.to("ready", wait, |backend, _| match backend.state.as_str() {
        "ready" => Ok(()),
        state => Err(format!("{state}: {}", backend.reason)),
    })
}

/// Adds a backend to a pool.
pub fn add(added: &Added) -> Result<Exit, Exit> {
    let Added { pool, backend, weight, max_connections, backup, lasting, running } = added;
    let client = Client::new(running)?;
    let body = json!({
        "address": backend,
        "weight": weight,
        "max_connections": max_connections,
        "backup": backup,
        "lasting": lasting,
    });
    let path = format!("/v1/pools/{}/backends", segment(pool));
    let answer = block_on(client.succeed(Method::POST, &path, Some(&body)))??;
    let note = answer.body["note"].as_str().ok_or_else(|| client.no_weir().report())?;
    say!("{pool}/{backend} is added: {note}");
    Ok(Exit::Done)
}

/// Removes a backend from its pool.
pub fn remove(removed: &Removed) -> Result<Exit, Exit> {
    let Removed { pool, backend, running } = removed;
    let client = Client::new(running)?;
    let path = format!("/v1/pools/{}/backends/{}", segment(pool), segment(backend));
    let answer = block_on(client.succeed(Method::DELETE, &path, None))??;
    let note = answer.body["note"].as_str().ok_or_else(|| client.no_weir().report())?;
    say!("{pool}/{backend} is removed: {note}");
    Ok(Exit::Done)
}

impl Change {
    fn to(
        &self,
        state: &str,
        wait: bool,
        reached: impl Fn(&BackendStatus, bool) -> Result<(), String>,
    ) -> Result<Exit, Exit> {
        let client = Client::new(&self.running)?;
        let Change { pool, backend, .. } = self;
        let path = format!("/v1/pools/{}/backends/{}", segment(pool), segment(backend));
        block_on(async {
            let answer = client.succeed(Method::PATCH, &path, Some(&json!({ "state": state }))).await?;
            if wait {
                return self.wait_until(client.patient(), reached).await;
            }
            let now = answer.body["backend"]["state"].as_str().ok_or_else(|| client.no_weir().report())?;
            say!("{pool}/{backend} is {now}");
            Ok(Exit::Done)
        })?
    }

    async fn wait_until(
        &self,
        client: Client,
        reached: impl Fn(&BackendStatus, bool) -> Result<(), String>,
    ) -> Result<Exit, Exit> {
        let Change { pool, backend: name, timeout, .. } = self;
        let begun = Instant::now();
        let path = format!("/v1/pools/{}", segment(pool));
        loop {
            let answer = client.succeed(Method::GET, &path, None).await?;
            let status: Result<PoolStatus, _> = serde_json::from_value(answer.body);
            let found = status.ok().and_then(|pool| pool.backends.into_iter().find(|it| it.address == *name));
            let Some(backend) = found else {
                return Err(Exit::Failed.saying(format_args!("{pool}/{name} is no longer in the pool")));
            };
            // Only fetched when it matters, because the answer is longer.
            let has_process_before = reached(&backend, false).is_ok()
                && client.succeed(Method::GET, "/v1/status", None).await?.body["process_before"] == true;
            match reached(&backend, has_process_before) {
                Ok(()) => {
                    say!("{pool}/{name} is {}, {} in flight", backend.state, backend.in_flight);
                    return Ok(Exit::Done);
                }
                Err(left) if begun.elapsed() >= *timeout => {
                    let why = format_args!("{pool}/{name} after {timeout:?}: {left}");
                    return Err(Exit::TimedOut.saying(why));
                }
                Err(_) => tokio::time::sleep(LOOK.min(timeout.saturating_sub(begun.elapsed()))).await,
            }
        }
    }
}
