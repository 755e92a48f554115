//! The balancing algorithms and their names in the config.

/// How a pool chooses; the value of `balance` in the config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Algorithm {
    /// Round robin: weighted, smooth, one order shared by all workers. O(1).
    #[default]
    RoundRobin,
    /// Fewest requests in flight per weight. O(n) up to 128 backends; beyond that, the least of 128.
    LeastConnections,
    /// The less loaded of two random backends. O(1).
    RandomTwo,
    /// The lower expected waiting time of two random backends (peak EWMA). O(1).
    LeastTime,
    /// The first in file order that is below its `max_connections`. O(backends that are full).
    First,
    /// Consistent hash of the client's address. O(1) expected.
    Source,
    /// Consistent hash of a key of the request, with bounded load. O(1) expected.
    Hash,
    /// Maglev table lookup. O(1).
    Maglev,
}

impl Algorithm {
    /// Every config word, in the order of the reference page.
    pub const NAMES: [&'static str; 8] =
        ["round-robin", "least-connections", "random-two", "least-time", "first", "source", "hash", "maglev"];

    /// Every algorithm, in the order of [`Algorithm::NAMES`].
    pub const ALL: [Algorithm; 8] = [
        Algorithm::RoundRobin,
        Algorithm::LeastConnections,
        Algorithm::RandomTwo,
        Algorithm::LeastTime,
        Algorithm::First,
        Algorithm::Source,
        Algorithm::Hash,
        Algorithm::Maglev,
    ];

    /// The algorithm an operator's word names; `None` for any other word (the config check says which were
    /// expected).
    pub fn from_word(word: &str) -> Option<Algorithm> {
        Self::NAMES.iter().position(|name| *name == word).map(|at| Self::ALL[at])
    }

    /// The config word.
    pub const fn word(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Whether the choice depends on [`PickInput::key`](crate::PickInput::key), so that the caller must
    /// compute one.
    pub const fn needs_key(self) -> bool {
        matches!(self, Algorithm::Source | Algorithm::Hash | Algorithm::Maglev)
    }
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_is_found_by_its_own_word_and_no_other_word_is_taken() {
        for algorithm in Algorithm::ALL {
            assert_eq!(Algorithm::from_word(algorithm.word()), Some(algorithm));
        }
        for wrong in ["", "roundrobin", "Round-Robin", "round-robin ", "leastconn"] {
            assert_eq!(Algorithm::from_word(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn words_are_those_of_the_config_reference() {
        assert_eq!(Algorithm::LeastTime.word(), "least-time");
        assert_eq!(Algorithm::Maglev.to_string(), "maglev");
        assert_eq!(Algorithm::default().word(), "round-robin");
    }
}
