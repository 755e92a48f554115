//! The administrative state of a backend, set by the operator or by the backend's agent.

/// The state that the operator sets for a backend at run time (`weir drain`, `weir enable`, the admin API).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AdminState {
    /// Takes work.
    Ready,
    /// Takes no new work; sticky sessions and work in progress continue.
    Drain,
    /// Takes no work at all, not even for sticky sessions.
    Maintenance,
}

impl AdminState {
    /// The words of the admin API.
    pub const NAMES: [&'static str; 3] = ["ready", "drain", "maintenance"];

    /// The state a word names; `None` for any other word.
    pub fn from_word(word: &str) -> Option<AdminState> {
        [AdminState::Ready, AdminState::Drain, AdminState::Maintenance]
            .into_iter()
            .find(|state| state.word() == word)
    }

    /// The word of the admin API.
    pub const fn word(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    pub(crate) fn of_code(code: u8) -> AdminState {
        match code {
            0 => AdminState::Ready,
            1 => AdminState::Drain,
            _ => AdminState::Maintenance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_words_and_states_match_both_ways() {
        for word in AdminState::NAMES {
            assert_eq!(AdminState::from_word(word).map(AdminState::word), Some(word));
        }
        assert_eq!(AdminState::from_word("up"), None);
    }
}
