//! The state of a backend, and the tier that a choice was made from.

/// Why a backend gets new work or not, as of the last refresh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum State {
    /// Takes new work.
    Ready,
    /// Weight 0: sticky sessions only.
    WeightZero,
    /// Draining: sticky sessions only.
    Draining,
    /// The name it came from no longer resolves to it: its work continues, and no new work comes.
    Leaving,
    /// Ejected, because traffic to it failed.
    Ejected,
    /// Down by its probes or its agent.
    Down,
    /// In maintenance, by the operator or the agent.
    Maintenance,
}

impl State {
    /// The state in a word, for logs, `weir status` and `weir explain`.
    pub const fn word(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::WeightZero => "weight-zero",
            State::Draining => "draining",
            State::Leaving => "leaving",
            State::Ejected => "ejected",
            State::Down => "down",
            State::Maintenance => "maintenance",
        }
    }

    pub(crate) const fn keeps_sticky(self) -> bool {
        matches!(self, State::Ready | State::WeightZero | State::Draining)
    }
}

/// Which group of backends a choice was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TierKind {
    /// The ordinary backends.
    Ordinary,
    /// All ordinary backends, healthy or not, because fewer are healthy than
    /// [`Settings::panic_below`](crate::Settings::panic_below) asks for.
    Panic,
    /// Backends marked `backup`, because no ordinary one is eligible or all were tried.
    Backup,
    /// Backends that are ejected or down, used because nothing else is left
    /// ([`LastResort`](crate::LastResort)).
    LastResort,
}

impl TierKind {
    /// The group in a word, for logs and `weir status`.
    pub const fn word(self) -> &'static str {
        match self {
            TierKind::Ordinary => "ordinary",
            TierKind::Panic => "panic",
            TierKind::Backup => "backup",
            TierKind::LastResort => "last-resort",
        }
    }
}
