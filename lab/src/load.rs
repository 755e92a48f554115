//! The loads that a measurement can put on a load balancer. Each runs as a process of its own, like the
//! backend.
//!
//! Requests come from the tools that the published comparisons used. Bodies, bulk streams and idle
//! connections come from the modules below, because no packaged tool reads bodies cheaply enough to leave the
//! load balancer as the bottleneck.

pub mod ab;
pub mod bulk;
pub mod fetch;
pub mod h2load;
pub mod handshakes;
pub mod idle;
pub mod iperf3;
mod k6;
pub mod mysql;
pub mod netperf;
pub mod paced;
pub mod sysbench;
mod together;
pub mod users;
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
use k6::Room;
use users::plan::Plan;

/// What a load does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// A number of HTTP/1.0 requests by ab, as fast as answers arrive; ends with the last of them.
    Ab {
        requests: u32,
        concurrency: u32,
        /// Whether it asks for connections to be reused (`-k`).
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
        /// Requests that a connection survives. If there are few connections, each makes this many requests,
        /// and not as many as the time allows.
        #[serde(default)]
        connection_requests: Option<u32>,
        #[serde(default = "root_path")]
        path: String,
    },
    /// New TLS connections by openssl's `s_time`, one after another, each with one request.
    Handshakes {
        /// Whether the others resume the session of the first.
        resumed: bool,
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
    /// netperf's request/response tests, one process for each connection at a time.
    Netperf { connections: u32, test: netperf::Test },
    /// iperf3 towards as many endpoints as there are, each at an address of its own; `connections` streams in
    /// all.
    Iperf3 { connections: u32, endpoints: u16 },
    /// SQL by sysbench, as fast as answers come back; only before a cluster.
    Sysbench(sysbench::Work),
    /// SQL by the lab itself, as fast as answers come back; only before the canned MySQL server.
    Mysql {
        connections: u32,
        work: mysql::Work,
        /// Over TLS.
        #[serde(default)]
        tls: bool,
    },
    /// Writers that keep a ledger, and readers, while a member of the cluster leaves and returns. They are
    /// threads of the lab: the event is what is measured, not their rate.
    Ledger {
        /// The member that leaves.
        victim: Victim,
        /// How it leaves.
        departure: Departure,
    },
    /// Virtual users that send a request, pause and repeat, each on its own connection. They arrive in the
    /// first seventh of the time and stay to its end: 5 s and 30 s of the 35 s that were published.
    Users {
        users: u32,
        /// Pause after each answer (milliseconds).
        pause_ms: u32,
        tool: UserTool,
    },
}

/// What simulates the users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum UserTool {
    /// k6 with the published script.
    K6,
    /// The lab's own generator.
    Own,
    /// k6 if this machine has the resources that it needs; otherwise the lab's own.
    Auto,
}

fn one() -> u32 {
    1
}

fn root_path() -> String {
    "/".to_owned()
}

impl UserTool {
    /// The command that runs the users of `plan` against `targets`.
    pub fn command(self, tools: &Tools, targets: &[SocketAddr], plan: &Plan) -> Vec<String> {
        match self {
            Self::K6 => k6::command(tools, targets, plan),
            Self::Own => [vec![tools.lab.clone()], users::arguments(targets, plan)].concat(),
            Self::Auto => {
                let decided = if k6::obstacle(plan, &Room::here()).is_none() { Self::K6 } else { Self::Own };
                decided.command(tools, targets, plan)
            }
        }
    }
}

/// `users` who come in the first seventh of `seconds` and stay for the rest.
pub fn plan_of(users: u32, pause_ms: u32, seconds: u32) -> Plan {
    let (all, ramp) = (Duration::from_secs(seconds.into()), Duration::from_secs(seconds.into()) / 7);
    Plan { users, ramp, hold: all - ramp, pause: Duration::from_millis(pause_ms.into()) }
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
    /// Processor time of the whole machine meanwhile, in seconds, for a load that spends much on its
    /// preparations; `None` for others, which the caller measures.
    #[serde(default)]
    pub machine_seconds: Option<f64>,
    /// Figures that only the load knows, such as latencies, each in its metric's unit.
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
    /// Records `count` errors of one kind.
    pub fn fail(&mut self, kind: &str, count: u64) {
        if count > 0 {
            *self.errors.entry(kind.to_owned()).or_default() += count;
        }
    }

    /// How many errors of all kinds there were.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Records the mean, percentiles and maximum of `latencies` (microseconds); sorts them.
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
            | Self::Netperf { connections, .. }
            | Self::Iperf3 { connections, .. }
            | Self::Mysql { connections, .. }
            | Self::Sysbench(sysbench::Work { threads: connections, .. })
            | Self::Users { users: connections, .. } => *connections,
            Self::Ab { concurrency, .. } => *concurrency,
            Self::Handshakes { .. } => 1,
            Self::Ledger { .. } => CLIENTS,
        }
    }

    /// The same load made small enough to warm up with.
    fn to_warm_up(&self) -> Self {
        const FEW: u32 = 64;
        let mut load = self.clone();
        match &mut load {
            Self::Wrk { connections, .. }
            | Self::H2load { connections, .. }
            | Self::Paced { connections, .. }
            | Self::Fetch { connections, .. }
            | Self::Bulk { connections }
            | Self::Idle { connections }
            | Self::Netperf { connections, .. }
            | Self::Iperf3 { connections, .. } => *connections = FEW.min(*connections),
            Self::Ab { requests, .. } => *requests = 2000.min(*requests),
            Self::Mysql { connections, work: mysql::Work::Idle, .. } => *connections = FEW.min(*connections),
            // The threads of a load that keeps connections open cost nothing more if they are many.
            Self::Sysbench(_) | Self::Mysql { .. } | Self::Ledger { .. } | Self::Handshakes { .. } => {}
            // As many requests as fit a warm-up of a second or two, so that every worker has cached the
            // answer.
            Self::Users { users, pause_ms, tool } => {
                (*users, *pause_ms, *tool) = (FEW.min(*users), 1, UserTool::Own);
            }
        }
        load
    }

    /// The command that checks once, in the way of this load, whether `target` serves; `None` if a plain
    /// request shows that.
    pub fn probe_command(&self, tools: &Tools, target: SocketAddr) -> Option<Vec<String>> {
        match self {
            Self::H2load { protocol, path, .. } if protocol.is_encrypted() => {
                Some(h2load::command(tools, target, h2load::Extent::Requests(1), *protocol, 1, 1, path))
            }
            Self::Handshakes { path, .. } => Some(handshakes::command(target, 1, false, path)),
            _ => None,
        }
    }

    /// The command that warms `targets` up with this load for about `seconds`.
    pub fn warm_up_command(&self, tools: &Tools, targets: &[SocketAddr], seconds: u32) -> Vec<String> {
        const FEW: u32 = 2000;
        let few = self.to_warm_up();
        match (&few, targets) {
            // Pools fill with the first requests; a full second would only make a sweep longer.
            (Self::H2load { protocol, connections, streams, path, .. }, [target, ..]) => {
                let extent = h2load::Extent::Requests(FEW);
                h2load::command(tools, *target, extent, *protocol, *connections, *streams, path)
            }
            _ => few.command_on_all(tools, targets, seconds),
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
            Self::H2load { protocol, connections, streams, connection_requests, path } => {
                let extent = h2load::Extent::of(seconds, *connections, *connection_requests);
                h2load::command(tools, target, extent, *protocol, *connections, *streams, path)
            }
            Self::Handshakes { resumed, path } => handshakes::command(target, seconds, *resumed, path),
            Self::Fetch { body_bytes, .. } => {
                own("fetch", &[format!("--seconds={seconds}"), format!("--body-bytes={body_bytes}")])
            }
            Self::Paced { rate, .. } => {
                own("paced", &[format!("--seconds={seconds}"), format!("--rate={rate}")])
            }
            Self::Bulk { .. } => own("bulk", &[format!("--seconds={seconds}")]),
            Self::Idle { .. } => own("idle", &[]),
            Self::Netperf { test, .. } => own(
                "netperf",
                &[
                    format!("--test={}", test.argument()),
                    format!("--seconds={seconds}"),
                    format!("--peers={}", tools.peers),
                ],
            ),
            Self::Iperf3 { endpoints, .. } => own(
                "iperf3",
                &[
                    format!("--endpoints={endpoints}"),
                    format!("--seconds={seconds}"),
                    format!("--peers={}", tools.peers),
                ],
            ),
            Self::Sysbench(work) => sysbench::command(tools, target, seconds, work),
            Self::Mysql { work, tls, .. } => {
                let mut more = vec![format!("--seconds={seconds}"), format!("--work={}", work.argument())];
                more.extend(tls.then(|| "--tls".to_owned()));
                own("mysql", &more)
            }
            Self::Ledger { .. } => Vec::new(),
            Self::Users { users, pause_ms, tool } => {
                tool.command(tools, &[target], &plan_of(*users, *pause_ms, seconds))
            }
        }
    }

    /// The command that puts this load on several load balancers at once. Only virtual users can be split,
    /// and only they can be too many for one process; any other load goes to the first.
    pub fn command_on_all(&self, tools: &Tools, targets: &[SocketAddr], seconds: u32) -> Vec<String> {
        match (self, targets) {
            (Self::Users { users, pause_ms, tool }, _) => {
                tool.command(tools, targets, &plan_of(*users, *pause_ms, seconds))
            }
            (_, [first, ..]) => self.command(tools, *first, seconds),
            (_, []) => Vec::new(),
        }
    }

    /// What a reader must know about how the load was made.
    pub fn remark(&self) -> Option<String> {
        match self {
            Self::Users { users, pause_ms, tool: UserTool::Auto } => {
                let obstacle = k6::obstacle(&plan_of(*users, *pause_ms, 1), &Room::here())?;
                Some(format!("The lab's own generator took over from k6 at {users} users: {obstacle}."))
            }
            _ => None,
        }
    }

    /// Number of processes that the load balancer needs to hold its clients' connections if each process is
    /// limited to `descriptors`.
    pub fn proxies_needed(&self, descriptors: u64) -> u32 {
        match self {
            Self::Users { users, .. } => users::plan::processes(*users, descriptors),
            _ => 1,
        }
    }

    /// Whether clients speak TLS to the load balancer, which then needs a certificate.
    pub fn is_encrypted(&self) -> bool {
        match self {
            Self::H2load { protocol, .. } => protocol.is_encrypted(),
            Self::Handshakes { .. } => true,
            Self::Mysql { tls, .. } => *tls,
            _ => false,
        }
    }

    /// Whether its connections stay open, idle, once all have had an answer. Its command then prints its
    /// result and runs until its standard input ends.
    pub fn stays(&self) -> bool {
        matches!(self, Self::Idle { .. } | Self::Mysql { work: mysql::Work::Idle, .. })
    }

    /// How long its command may take before it counts as stuck.
    pub fn patience(&self, seconds: u32) -> Duration {
        match self {
            // A connection that hangs costs ab 30 s before it goes on.
            Self::Ab { .. } => Duration::from_secs(120),
            // Users begin once all processes are ready, and wait long for outstanding answers at the end.
            Self::Users { .. } => Duration::from_secs(u64::from(seconds) + 60),
            _ => Duration::from_secs(u64::from(seconds) + 20),
        }
    }

    /// Parses the output of the load's command. Err if it is not the output of a successful run.
    pub fn result(&self, printed: &str) -> io::Result<LoadResult> {
        match self {
            Self::Wrk { .. } => wrk::parse(printed),
            Self::Ab { .. } => ab::parse(printed),
            Self::H2load { .. } => h2load::parse(printed),
            Self::Handshakes { resumed, .. } => handshakes::parse(printed, *resumed),
            Self::Sysbench(_) => sysbench::parse(printed),
            Self::Ledger { .. } => Err(io::Error::other("a ledger is kept by the lab and prints nothing")),
            Self::Users { .. } if k6::printed_it(printed) => k6::parse(printed),
            Self::Paced { .. }
            | Self::Fetch { .. }
            | Self::Bulk { .. }
            | Self::Idle { .. }
            | Self::Netperf { .. }
            | Self::Iperf3 { .. }
            | Self::Mysql { .. }
            | Self::Users { .. } => serde_json::from_str(printed.trim()).map_err(|error| {
                io::Error::other(format!("a load printed `{printed}` where its result was expected: {error}"))
            }),
        }
    }
}
