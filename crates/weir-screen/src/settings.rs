//! Lists and limits, as the config says them.

use ipnet::IpNet;

use crate::answer_status::AnswerStatus;
use crate::key::Key;
use crate::pattern::Pattern;
use crate::rate::Rate;

/// Lists and limits of a listener or a route.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// Networks whose clients are refused.
    pub deny_address: Vec<IpNet>,
    /// Where not empty: the only networks whose clients pass.
    pub allow_address: Vec<IpNet>,
    /// Methods that are refused.
    pub deny_method: Vec<Pattern>,
    /// Where not empty: the only methods that pass.
    pub allow_method: Vec<Pattern>,
    /// Normalised paths that are refused.
    pub deny_path: Vec<Pattern>,
    /// Where not empty: the only normalised paths that pass.
    pub allow_path: Vec<Pattern>,
    /// User agents that are refused; a request without one has the empty one.
    pub deny_user_agent: Vec<Pattern>,
    /// Where not empty: the only user agents that pass.
    pub allow_user_agent: Vec<Pattern>,
    /// All of them hold.
    pub rate_limit: Vec<RateLimit>,
    /// All of them hold.
    pub concurrency_limit: Vec<ConcurrencyLimit>,
}

impl Settings {
    /// Whether nothing is asked.
    pub fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// The lists of networks and texts by their keys in the file, each as it is written there; empty ones
    /// too.
    pub fn lists(&self) -> impl Iterator<Item = (&'static str, Vec<String>)> {
        let written = |patterns: &[Pattern]| patterns.iter().map(Pattern::to_string).collect();
        let networks = |networks: &[IpNet]| networks.iter().map(IpNet::to_string).collect();
        [
            ("deny_address", networks(&self.deny_address)),
            ("allow_address", networks(&self.allow_address)),
            ("deny_method", written(&self.deny_method)),
            ("allow_method", written(&self.allow_method)),
            ("deny_path", written(&self.deny_path)),
            ("allow_path", written(&self.allow_path)),
            ("deny_user_agent", written(&self.deny_user_agent)),
            ("allow_user_agent", written(&self.allow_user_agent)),
        ]
        .into_iter()
    }
}

/// Where a limit counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checkpoint {
    /// Every request.
    #[default]
    Edge,
    /// Only requests that go to a backend; not what is answered from memory or from the config.
    Origin,
}

impl Checkpoint {
    /// As it is written in the config.
    pub fn word(self) -> &'static str {
        match self {
            Checkpoint::Edge => "edge",
            Checkpoint::Origin => "origin",
        }
    }
}

/// `rate_limit = { … }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// In the long run.
    pub rate: Rate,
    /// At once, after a pause; at least 1.
    pub burst: u32,
    /// Where not empty: answers with these statuses are counted, and not requests.
    pub statuses: Vec<AnswerStatus>,
    /// The key of the count.
    pub key: Key,
    /// Which requests are counted; on the edge where answers are.
    pub at: Checkpoint,
    /// Only says what it would refuse.
    pub dry_run: bool,
    /// 429 or 503.
    pub status: u16,
    /// Keys that are told apart at once, at most; 32 bytes each. Those beyond share buckets.
    pub keys: u32,
}

impl RateLimit {
    /// Whether answers are counted, and not requests.
    pub fn counts_answers(&self) -> bool {
        !self.statuses.is_empty()
    }

    /// Whether an answer with this status is counted.
    pub fn counts(&self, status: u16) -> bool {
        self.statuses.iter().any(|it| it.takes(status))
    }
}

/// `adaptive = { … }` of a limit of requests under way.
#[derive(Clone, Debug, PartialEq)]
pub struct AdaptiveLimit {
    /// The limit never falls below; at least 1. The first time, answers are measured with so many under way.
    pub min: u32,
    /// How many times as long as without a wait answers may take; at least 1.
    pub tolerance: f64,
}

/// `concurrency_limit = { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyLimit {
    /// Requests under way at once; at least 1.
    pub max: u32,
    /// The limit finds its size itself, up to `max`. Only where all requests are counted together.
    pub adaptive: Option<AdaptiveLimit>,
    /// The key of the count.
    pub key: Key,
    /// Which requests are counted.
    pub at: Checkpoint,
    /// Only says what it would refuse.
    pub dry_run: bool,
    /// 429 or 503.
    pub status: u16,
}
