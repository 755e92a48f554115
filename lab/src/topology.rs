//! Topologies: where clients, load balancer and backends run, and which backends there are.

use serde::{Deserialize, Serialize};

use crate::addresses::Family;
use crate::backend::BackendKind;

/// Where everything runs. The kind decides which runner does the work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Everything on one loopback device: load and backends on one core, the load balancer on another.
    Loopback {
        /// The protocol of each backend.
        backend: BackendKind,
        /// How many there are.
        #[serde(default = "one")]
        backends: usize,
    },
    /// Three members of a real InnoDB Cluster on loopback, which the scenarios of a series share.
    Cluster,
    /// Client, load balancer and endpoints each in a network namespace of its own.
    Namespaces(Namespaces),
    /// The same inside a virtual machine whose kernel has what this one lacks.
    Guest {
        /// Whether it has one virtual core whose clock counts instructions, one nanosecond each. Figures then
        /// repeat whatever else the machine does.
        #[serde(default)]
        instructions: bool,
        /// What is built inside.
        inside: Namespaces,
    },
}

/// Network namespaces with veth pairs or an impaired line between them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespaces {
    /// Version of IP.
    #[serde(default)]
    pub family: Family,
    /// Number of UDP flows that are opened before the load and remembered beside it.
    #[serde(default)]
    pub crowd: u32,
    /// How many endpoints there are behind the load balancer.
    #[serde(default = "three")]
    pub endpoints: u8,
    /// The protocol of each endpoint at port 7000.
    pub backend: BackendKind,
    /// Each endpoint runs an iperf3 server, too.
    #[serde(default)]
    pub iperf3: bool,
    /// Whether the load balancer has one core, and load and endpoints another; otherwise the scheduler places
    /// them.
    #[serde(default = "yes")]
    pub pinned: bool,
    /// Delay of packets towards the client (milliseconds), as by netem on the load balancer's device.
    #[serde(default)]
    pub delay_ms: f64,
    /// Share of the packets towards the client that is lost (percent).
    #[serde(default)]
    pub loss_percent: f64,
    /// Whether to use an emulated or shaped line even without delay and loss, so that a sweep from 0 is
    /// comparable.
    #[serde(default)]
    pub line: bool,
}

fn three() -> u8 {
    3
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}
