//! The loads a measurement can put on a load balancer, each a process of its own beside the backend.
//!
//! Requests come from wrk; bodies, bulk streams and idle connections from the modules below, because no packaged tool
//! reads bodies cheaply enough to leave the load balancer as the bottleneck.

pub mod bulk;
pub mod fetch;
pub mod idle;
pub mod paced;
mod wrk;

use std::io;

use serde::{Deserialize, Serialize};

use crate::contender::Tools;

/// What a load does.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Load {
    /// HTTP/1.1 requests by wrk, as fast as answers come back (a closed loop).
    Wrk {
        connections: u32,
        #[serde(default = "root_path")]
        path: String,
        /// Further request header lines, `name: value`.
        #[serde(default)]
        headers: Vec<String>,
    },
    /// HTTP/1.1 requests at a fixed rate per second, whatever the answers do (an open loop).
    Paced { connections: u32, rate: u32 },
    /// HTTP/1.1 requests for long bodies, as fast as they come back.
    Fetch { connections: u32, body_bytes: u64 },
    /// TCP streams read as fast as they come.
    Bulk { connections: u32 },
    /// Connections that each do one request and then stay open, idle.
    Idle { connections: u32 },
}

fn root_path() -> String {
    "/".to_owned()
}

/// What a load reports when it is done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Requests answered in full; for bulk streams, connections.
    pub requests: u64,
    /// Bytes received, heads included.
    pub bytes: u64,
    /// How long the load ran.
    pub seconds: f64,
    /// Median time from request to the end of its answer (microseconds), where the load measures it.
    pub p50_us: Option<f64>,
    /// 99th percentile of the same.
    pub p99_us: Option<f64>,
    /// The latency that one request in a thousand exceeds.
    pub p999_us: Option<f64>,
    /// Requests or connections that went wrong in any way.
    pub errors: u64,
    /// What went wrong, for a person; `None` when nothing did.
    pub problem: Option<String>,
}

impl Load {
    /// How many connections it opens.
    pub fn connections(&self) -> u32 {
        match self {
            Self::Wrk { connections, .. }
            | Self::Paced { connections, .. }
            | Self::Fetch { connections, .. }
            | Self::Bulk { connections }
            | Self::Idle { connections } => *connections,
        }
    }

    /// The same load with at most `connections` connections.
    pub fn with_at_most(&self, limit: u32) -> Self {
        let mut load = self.clone();
        match &mut load {
            Self::Wrk { connections, .. }
            | Self::Paced { connections, .. }
            | Self::Fetch { connections, .. }
            | Self::Bulk { connections }
            | Self::Idle { connections } => *connections = limit.min(*connections),
        }
        load
    }

    /// The command that puts this load on 127.0.0.1:`port` for `seconds`.
    pub fn command(&self, tools: &Tools, port: u16, seconds: u32) -> Vec<String> {
        let own = |name: &str, more: &[String]| -> Vec<String> {
            let mut command = vec![tools.lab.clone(), "load".to_owned(), name.to_owned()];
            command.push(format!("--port={port}"));
            command.push(format!("--connections={}", self.connections()));
            command.extend_from_slice(more);
            command
        };
        match self {
            Self::Wrk { connections, path, headers } => {
                wrk::command(tools, port, seconds, *connections, path, headers)
            }
            Self::Fetch { body_bytes, .. } => {
                own("fetch", &[format!("--seconds={seconds}"), format!("--body-bytes={body_bytes}")])
            }
            Self::Paced { rate, .. } => {
                own("paced", &[format!("--seconds={seconds}"), format!("--rate={rate}")])
            }
            Self::Bulk { .. } => own("bulk", &[format!("--seconds={seconds}")]),
            Self::Idle { .. } => own("idle", &[]),
        }
    }

    /// Understands what the load's command printed. Err when it is not what the load prints when all went well.
    pub fn result(&self, printed: &str) -> io::Result<LoadResult> {
        match self {
            Self::Wrk { .. } => wrk::parse(printed),
            Self::Paced { .. } | Self::Fetch { .. } | Self::Bulk { .. } | Self::Idle { .. } => {
                serde_json::from_str(printed.trim()).map_err(|error| {
                    io::Error::other(format!(
                        "a load printed `{printed}` where its result was expected: {error}"
                    ))
                })
            }
        }
    }
}
