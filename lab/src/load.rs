//! The loads a measurement can put on a load balancer, each a process of its own beside the backend.
//!
//! Requests come from the tools the published comparisons used; bodies, bulk streams and idle connections from the
//! modules below, because no packaged tool reads bodies cheaply enough to leave the load balancer as the bottleneck.

pub mod ab;
pub mod bulk;
pub mod fetch;
pub mod h2load;
pub mod idle;
pub mod paced;
pub mod sysbench;
mod wrk;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::clients::CLIENTS;
use crate::cluster::group::Departure;
use crate::cluster::steps::Victim;
use crate::contender::Tools;
use crate::metric::Metric;
use crate::statistics::latency_percentile;

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
    /// So many HTTP/1.0 requests by ab, as fast as answers come back; ends with the last of them.
    Ab {
        requests: u32,
        concurrency: u32,
        /// Whether it asks to use connections again (`-k`).
        keep_alive: bool,
        #[serde(default = "root_path")]
        path: String,
    },
    /// HTTP requests of any version by h2load, as fast as answers come back.
    H2load {
        protocol: h2load::Protocol,
        connections: u32,
        /// Requests in flight on each connection.
        #[serde(default = "one")]
        streams: u32,
        #[serde(default = "root_path")]
        path: String,
    },
    /// HTTP/1.1 requests at a fixed rate per second, whatever the answers do (an open loop).
    Paced { connections: u32, rate: u32 },
    /// HTTP/1.1 requests for long bodies, as fast as they come back.
    Fetch { connections: u32, body_bytes: u64 },
    /// TCP streams read as fast as they come.
    Bulk { connections: u32 },
    /// Connections that each do one request and then stay open, idle.
    Idle { connections: u32 },
    /// SQL by sysbench, as fast as answers come back; only before a cluster.
    Sysbench {
        /// One of its own scripts.
        #[serde(default = "point_select")]
        workload: String,
        /// Connections, each with one query in flight.
        threads: u32,
    },
    /// Writers that keep a ledger and readers, while a member of the cluster goes and comes back. They are threads of
    /// the lab: the event is the measurement, not their rate.
    Ledger {
        /// Who goes.
        victim: Victim,
        /// How.
        departure: Departure,
    },
}

fn point_select() -> String {
    "oltp_point_select".to_owned()
}

fn one() -> u32 {
    1
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
    /// Figures only the load can know, such as latencies, each in its metric's unit.
    #[serde(default)]
    pub figures: BTreeMap<Metric, f64>,
    /// Requests or connections that went wrong, by kind.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// What went wrong, for a person; `None` when nothing did.
    #[serde(default)]
    pub problem: Option<String>,
    /// Curves (x, y) by name.
    #[serde(default)]
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
}

impl LoadResult {
    /// Puts down `count` errors of one kind.
    pub fn fail(&mut self, kind: &str, count: u64) {
        if count > 0 {
            *self.errors.entry(kind.to_owned()).or_default() += count;
        }
    }

    /// How many errors of all kinds there were.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Puts down mean, percentiles and greatest of `latencies` (microseconds); sorts them.
    pub fn put_latencies(&mut self, latencies: &mut [u32]) {
        let fractions = [
            (Metric::LATENCY_P50, 0.5),
            (Metric::LATENCY_P90, 0.9),
            (Metric::LATENCY_P95, 0.95),
            (Metric::LATENCY_P99, 0.99),
            (Metric::LATENCY_P999, 0.999),
            (Metric::LATENCY_MAX, 1.0),
        ];
        for (metric, fraction) in fractions {
            self.figures
                .extend(latency_percentile(latencies, fraction).map(|found| (metric, f64::from(found))));
        }
        if !latencies.is_empty() {
            let sum: f64 = latencies.iter().copied().map(f64::from).sum();
            self.figures.insert(Metric::LATENCY_MEAN, sum / latencies.len() as f64);
        }
    }
}

impl Load {
    /// How many connections it opens.
    pub fn connections(&self) -> u32 {
        match self {
            Self::Wrk { connections, .. }
            | Self::H2load { connections, .. }
            | Self::Paced { connections, .. }
            | Self::Fetch { connections, .. }
            | Self::Bulk { connections }
            | Self::Idle { connections }
            | Self::Sysbench { threads: connections, .. } => *connections,
            Self::Ab { concurrency, .. } => *concurrency,
            Self::Ledger { .. } => CLIENTS,
        }
    }

    /// The same load made small enough to warm up with.
    pub fn to_warm_up(&self) -> Self {
        const FEW: u32 = 64;
        let mut load = self.clone();
        match &mut load {
            Self::Wrk { connections, .. }
            | Self::H2load { connections, .. }
            | Self::Paced { connections, .. }
            | Self::Fetch { connections, .. }
            | Self::Bulk { connections }
            | Self::Idle { connections } => *connections = FEW.min(*connections),
            Self::Ab { requests, .. } => *requests = 2000.min(*requests),
            // Threads of a load that keeps connections open cost nothing more when they are many.
            Self::Sysbench { .. } | Self::Ledger { .. } => {}
        }
        load
    }

    /// The command that asks once, the way this load does, whether `target` serves; `None` where a plain request tells.
    pub fn probe_command(&self, tools: &Tools, target: SocketAddr) -> Option<Vec<String>> {
        match self {
            Self::H2load { protocol, path, .. } if protocol.is_encrypted() => {
                Some(h2load::command(tools, target, h2load::Extent::Requests(1), *protocol, 1, 1, path))
            }
            _ => None,
        }
    }

    /// The command that puts this load on `target` for `seconds`.
    pub fn command(&self, tools: &Tools, target: SocketAddr, seconds: u32) -> Vec<String> {
        let own = |name: &str, more: &[String]| -> Vec<String> {
            let mut command = vec![tools.lab.clone(), "load".to_owned(), name.to_owned()];
            command.push(format!("--target={target}"));
            command.push(format!("--connections={}", self.connections()));
            command.extend_from_slice(more);
            command
        };
        match self {
            Self::Wrk { connections, path, headers } => {
                wrk::command(tools, target, seconds, *connections, path, headers)
            }
            Self::Ab { requests, concurrency, keep_alive, path } => {
                ab::command(tools, target, *requests, *concurrency, *keep_alive, path)
            }
            Self::H2load { protocol, connections, streams, path } => {
                let extent = h2load::Extent::Seconds(seconds);
                h2load::command(tools, target, extent, *protocol, *connections, *streams, path)
            }
            Self::Fetch { body_bytes, .. } => {
                own("fetch", &[format!("--seconds={seconds}"), format!("--body-bytes={body_bytes}")])
            }
            Self::Paced { rate, .. } => {
                own("paced", &[format!("--seconds={seconds}"), format!("--rate={rate}")])
            }
            Self::Bulk { .. } => own("bulk", &[format!("--seconds={seconds}")]),
            Self::Idle { .. } => own("idle", &[]),
            Self::Sysbench { workload, threads } => {
                sysbench::command(tools, target, seconds, *threads, workload)
            }
            Self::Ledger { .. } => Vec::new(),
        }
    }

    /// Whether clients speak TLS to the load balancer, which then needs a certificate.
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::H2load { protocol, .. } if protocol.is_encrypted())
    }

    /// How long its command may take, after which it is called stuck.
    pub fn patience(&self, seconds: u32) -> Duration {
        match self {
            // A connection that hangs costs ab 30 s before it goes on.
            Self::Ab { .. } => Duration::from_secs(120),
            _ => Duration::from_secs(u64::from(seconds) + 20),
        }
    }

    /// Understands what the load's command printed. Err when it is not what the load prints when all went well.
    pub fn result(&self, printed: &str) -> io::Result<LoadResult> {
        match self {
            Self::Wrk { .. } => wrk::parse(printed),
            Self::Ab { .. } => ab::parse(printed),
            Self::H2load { .. } => h2load::parse(printed),
            Self::Sysbench { .. } => sysbench::parse(printed),
            Self::Ledger { .. } => Err(io::Error::other("a ledger is kept by the lab and prints nothing")),
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
