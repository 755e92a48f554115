//! Detects that a statement waits for a server that is no longer the primary.
//!
//! A member that leaves its group blocks the writes that were sent to it until it is down. A frozen or
//! partitioned member blocks them for ever, while the new primary takes writes. The outcome of such a write
//! is unknown, and the client is told so: the connection counts as lost.

use std::time::Duration;

use weir_balance::Role;
use weir_mysql::RoleWanted;

use crate::backends::Chosen;

/// How long a statement waits for its answer before Weir checks whether its server is still the primary, and
/// the interval between such checks.
pub const LOOK: Duration = Duration::from_millis(50);

/// A server that was sent a statement as the primary.
#[derive(Clone, Copy)]
pub struct PrimaryAsked<'a> {
    server: &'a Chosen,
    /// When the statement began.
    pub since: Duration,
}

impl<'a> PrimaryAsked<'a> {
    /// `None` if the server is a secondary, or if the primary is not monitored. A server without a role
    /// serves only sessions that are bound to it; then it is `None` unless the statement needs the primary.
    pub fn of(server: &'a Chosen, wants: RoleWanted, since: Duration) -> Option<PrimaryAsked<'a>> {
        let mysql = server.pool.shared.config.mysql.as_ref()?;
        let is_primarys = match server.backend().shared.balance.role() {
            Some(role) => role == Role::Primary,
            None => wants == RoleWanted::Primary,
        };
        (is_primarys && mysql.is_watched()).then_some(PrimaryAsked { server, since })
    }

    /// Whether the server has no role while another server is the primary.
    ///
    /// A primary that hands over its role stays in the group as a secondary and finishes what is running
    /// there. One that leaves the group, or is partitioned from it, may block statements indefinitely.
    pub fn is_deposed(&self) -> bool {
        self.server.backend().shared.balance.role().is_none() && self.server.pool.shared.has_primary()
    }
}
