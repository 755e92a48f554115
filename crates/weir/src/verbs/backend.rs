//! `weir drain` and `weir enable`

use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::json;
use weir_admin::status::{BackendStatus, PoolStatus};

use crate::arguments::{BackendArgument, Running};
use crate::client::{Client, block_on, segment};
use crate::exit::Exit;

/// Between two looks while waiting.
const LOOK: Duration = Duration::from_millis(100);

/// Takes a backend out; with `wait`, returns when it has nothing left in flight.
pub fn drain(running: &Running, which: &BackendArgument, wait: Option<Duration>) -> Exit {
    change(running, which, "drain", wait, |backend| match backend.in_flight {
        0 => Ok(()),
        left => Err(format!("{left} in flight")),
    })
}

/// Takes a backend back in; with `wait`, returns when it gets new work.
pub fn enable(running: &Running, which: &BackendArgument, wait: Option<Duration>) -> Exit {
    change(running, which, "ready", wait, |backend| match backend.state.as_str() {
        "ready" => Ok(()),
        state => Err(format!("{state}: {}", backend.reason)),
    })
}

fn change(
    running: &Running,
    which: &BackendArgument,
    state: &str,
    wait: Option<Duration>,
    reached: impl Fn(&BackendStatus) -> Result<(), String>,
) -> Exit {
    let client = match Client::new(running) {
        Ok(client) => client,
        Err(exit) => return exit,
    };
    let work = async {
        let path = format!("/v1/pools/{}/backends/{}", segment(&which.pool), segment(&which.backend));
        let answer = match client.call(Method::PATCH, &path, Some(&json!({ "state": state }))).await {
            Ok(answer) => answer,
            Err(error) => return error.report(),
        };
        if !answer.status.is_success() {
            eprintln!("weir: {}", answer.error());
            return Exit::Failed;
        }
        match wait {
            None => {
                say!(
                    "{}/{} is {}",
                    which.pool,
                    which.backend,
                    answer.body["backend"]["state"].as_str().unwrap_or(state)
                );
                Exit::Done
            }
            Some(limit) => wait_until(&client, which, limit, reached).await,
        }
    };
    block_on(work).unwrap_or_else(|exit| exit)
}

async fn wait_until(
    client: &Client,
    which: &BackendArgument,
    limit: Duration,
    reached: impl Fn(&BackendStatus) -> Result<(), String>,
) -> Exit {
    let begun = Instant::now();
    loop {
        let answer =
            match client.call(Method::GET, &format!("/v1/pools/{}", segment(&which.pool)), None).await {
                Ok(answer) => answer,
                Err(error) => return error.report(),
            };
        let pool: Result<PoolStatus, _> = serde_json::from_value(answer.body);
        let Some(backend) =
            pool.ok().and_then(|pool| pool.backends.into_iter().find(|it| it.address == which.backend))
        else {
            eprintln!("weir: {}/{} is gone", which.pool, which.backend);
            return Exit::Failed;
        };
        match reached(&backend) {
            Ok(()) => {
                say!(
                    "{}/{} is {}, {} in flight",
                    which.pool,
                    which.backend,
                    backend.state,
                    backend.in_flight
                );
                return Exit::Done;
            }
            Err(left) if begun.elapsed() >= limit => {
                eprintln!("weir: {}/{} after {limit:?}: {left}", which.pool, which.backend);
                return Exit::TimedOut;
            }
            Err(_) => tokio::time::sleep(LOOK.min(limit.saturating_sub(begun.elapsed()))).await,
        }
    }
}
