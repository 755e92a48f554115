//! The role of a backend in a replicated database: one takes writes, the others hold copies.

/// The role of a server in a replicated database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Takes writes.
    Primary,
    /// Holds a copy to read from.
    Secondary,
}

impl Role {
    /// The role as a word, for logs, `weir status` and hand-over.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Primary => "primary",
            Role::Secondary => "secondary",
        }
    }

    /// The role that a word names; `None` for any other word.
    pub fn from_word(word: &str) -> Option<Role> {
        [Role::Primary, Role::Secondary].into_iter().find(|role| role.word() == word)
    }

    /// The role as a byte for an atomic cell; 0 is none.
    pub(crate) const fn code(role: Option<Role>) -> u8 {
        match role {
            None => 0,
            Some(Role::Primary) => 1,
            Some(Role::Secondary) => 2,
        }
    }

    pub(crate) const fn of_code(code: u8) -> Option<Role> {
        match code {
            1 => Some(Role::Primary),
            2 => Some(Role::Secondary),
            _ => None,
        }
    }
}

/// The role that a choice asks for, in a pool whose backends have roles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WantedRole {
    /// The primary and no other.
    Primary,
    /// A backend to read from, as the pool's [`Readers`] define.
    Read,
}

impl WantedRole {
    /// The wanted role as a word, for logs and metrics.
    pub const fn word(self) -> &'static str {
        match self {
            WantedRole::Primary => "primary",
            WantedRole::Read => "read",
        }
    }
}

/// Which backends serve reads, in a pool whose backends have roles.
///
/// As MySQL Router's `role=SECONDARY` with `routing_strategy = round-robin-with-fallback`, and
/// `role=PRIMARY_AND_SECONDARY` (MySQL Router 8.4 manual, "Routing Configuration").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readers {
    /// Secondaries; the primary only if no secondary takes new work or all were tried in this exchange.
    Secondaries,
    /// Secondaries and the primary alike.
    All,
}
