//! How the memory budget is used, for the admin API.

use serde::{Deserialize, Serialize};
use weir_control::control::Control;

/// The budget of the buffers of all connections, as the workers last reported it; they do so every 2 s.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// Bytes in use.
    pub in_use_bytes: u64,
    /// The budget, in bytes.
    pub budget_bytes: u64,
    /// Most bytes that one client may have (`memory_share_per_client`).
    pub client_max_bytes: u64,
    /// How often a client was refused memory because of its share.
    pub client_refusals: u64,
    /// The client that has most in use: an address, or that of an IPv6 /64. `None` while little is in use.
    pub largest_client: Option<String>,
    /// How many bytes it has in use.
    pub largest_client_bytes: u64,
}

/// The state of the budget.
pub(crate) fn of(control: &Control) -> MemoryStatus {
    let usage = control.proxy().memory();
    MemoryStatus {
        in_use_bytes: usage.in_use_bytes,
        budget_bytes: usage.budget_bytes,
        client_max_bytes: usage.client_bytes,
        client_refusals: usage.client_refusals,
        largest_client: usage.largest.map(|(client, _)| client.to_string()),
        largest_client_bytes: usage.largest.map_or(0, |(_, bytes)| bytes),
    }
}
