//! The state of names that resolve to several backends, for the admin API.

use serde::{Deserialize, Serialize};

/// A name that resolves to several backends of a pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NameStatus {
    /// The name, as in the config.
    pub name: String,
    /// Backends found by it, including those that are leaving.
    pub backend_count: usize,
    /// Of these, the ones that are leaving.
    pub leaving_count: usize,
    /// Why the last lookup failed, which leaves the backends unchanged; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Remaining validity of the last answer; `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<f64>,
}
