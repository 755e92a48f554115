//! Whether who waits for the primary waits in vain.
//!
//! A member that leaves its group holds writes that were sent to it until it is down, and one that is frozen
//! or cut off holds them for ever, while the next primary takes writes. Nobody knows what becomes of such a
//! write, and the client is told so: the connection counts as lost.

use std::time::Duration;

use weir_balance::Role;
use weir_mysql::RoleWanted;

use crate::backends::Chosen;

/// How long a statement waits for its answer until it is looked whether its server is still the primary, and
/// between two such looks.
pub const LOOK: Duration = Duration::from_millis(50);

/// A server that was sent a statement as to the primary.
#[derive(Clone, Copy)]
pub struct PrimaryAsked<'a> {
    server: &'a Chosen,
    /// When the statement began.
    pub since: Duration,
}

impl<'a> PrimaryAsked<'a> {
    /// `None` where the statement may as well be on a secondary, or nobody watches who is the primary. A
    /// server without a role has only those who are bound to it: what of theirs is no read is a primary's.
    pub fn of(server: &'a Chosen, wants: RoleWanted, since: Duration) -> Option<PrimaryAsked<'a>> {
        let mysql = server.pool.shared.config.mysql.as_ref()?;
        let is_primarys = match server.backend().shared.balance.role() {
            Some(role) => role == Role::Primary,
            None => wants == RoleWanted::Primary,
        };
        (is_primarys && mysql.is_watched()).then_some(PrimaryAsked { server, since })
    }

    /// Whether it has no role while another one is the primary.
    ///
    /// A primary that hands its role over stays, as a secondary, and ends what is under way there; one that
    /// leaves the group, or is cut off from it, may hold what it was sent for as long as it likes.
    pub fn is_deposed(&self) -> bool {
        self.server.backend().shared.balance.role().is_none() && self.server.pool.shared.has_primary()
    }
}
