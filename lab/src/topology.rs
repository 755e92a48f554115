//! Topologies: where clients, load balancer and backends stand, and what runs behind it.

use serde::Deserialize;

use crate::backend::BackendKind;

/// Where everything stands. The kind decides which runner does the work.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
}

fn one() -> usize {
    1
}
