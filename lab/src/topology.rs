//! Topologies: where clients, load balancer and backends stand, and what runs behind it.

use serde::{Deserialize, Serialize};

use crate::addresses::Family;
use crate::backend::BackendKind;

/// Where everything stands. The kind decides which runner does the work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Everything on one loopback device: load and backends on one core, the load balancer on another.
    Loopback {
        /// What each backend speaks.
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
        /// One virtual core whose time goes by instructions: one nanosecond for each. Figures then repeat
        /// whatever else the machine does.
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
    /// Flows of datagrams that are opened before the load and remembered beside it.
    #[serde(default)]
    pub crowd: u32,
    /// How many endpoints there are behind the load balancer.
    #[serde(default = "three")]
    pub endpoints: u8,
    /// What each endpoint speaks at port 7000.
    pub backend: BackendKind,
    /// Each endpoint runs an iperf3 server, too.
    #[serde(default)]
    pub iperf3: bool,
    /// Load balancer on one core, load and endpoints on another; else all go where the scheduler puts them.
    #[serde(default = "yes")]
    pub pinned: bool,
    /// How long packets towards the client are held (milliseconds): what netem on the load balancer's device
    /// does.
    #[serde(default)]
    pub delay_ms: f64,
    /// Share of the packets towards the client that is lost (percent).
    #[serde(default)]
    pub loss_percent: f64,
    /// An emulated or shaped line even where neither delay nor loss is asked for, so that a sweep from 0
    /// compares alike.
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
