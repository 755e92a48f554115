//! Lists and limits as configured.

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
    /// If not empty: the only networks whose clients pass.
    pub allow_address: Vec<IpNet>,
    /// Methods that are refused.
    pub deny_method: Vec<Pattern>,
    /// If not empty: the only methods that pass.
    pub allow_method: Vec<Pattern>,
    /// Normalised paths that are refused.
    pub deny_path: Vec<Pattern>,
    /// If not empty: the only normalised paths that pass.
    pub allow_path: Vec<Pattern>,
    /// User agents that are refused; a request without one counts as having an empty one.
    pub deny_user_agent: Vec<Pattern>,
    /// If not empty: the only user agents that pass.
    pub allow_user_agent: Vec<Pattern>,
    /// Rate limits; all of them apply.
    pub rate_limit: Vec<RateLimit>,
    /// Concurrency limits; all of them apply.
    pub concurrency_limit: Vec<ConcurrencyLimit>,
}

impl Settings {
    /// Whether there are no checks.
    pub fn is_empty(&self) -> bool {
        *self == Settings::default()
    }

    /// The lists of networks and texts by their keys in the config, as written there; empty ones too.
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
    /// Only requests that go to a backend, not those answered from the cache or from the config.
    Origin,
}

impl Checkpoint {
    /// The word in the config.
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
    /// The long-term rate.
    pub rate: Rate,
    /// Requests at once after a pause; at least 1.
    pub burst: u32,
    /// If not empty: counts answers with these statuses instead of requests.
    pub statuses: Vec<AnswerStatus>,
    /// The key of the count.
    pub key: Key,
    /// Which requests are counted; always the edge if answers are counted.
    pub at: Checkpoint,
    /// Only logs and counts what it would refuse.
    pub dry_run: bool,
    /// 429 or 503.
    pub status: u16,
    /// Most keys that it distinguishes at once; 32 bytes each. Further ones share buckets.
    pub keys: u32,
    /// Whether other Weirs are told what it counts, if there are any.
    pub share: bool,
}

impl RateLimit {
    /// Whether answers are counted instead of requests.
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
    /// The limit never falls below this; at least 1. The first measurement is made with this many in
    /// progress.
    pub min: u32,
    /// By what factor answers may exceed the unloaded response time; at least 1.
    pub tolerance: f64,
}

/// `concurrency_limit = { … }`
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyLimit {
    /// Requests in progress at once; at least 1.
    pub max: u32,
    /// Lets the limit adapt itself, up to `max`. Only if all requests are counted together.
    pub adaptive: Option<AdaptiveLimit>,
    /// The key of the count.
    pub key: Key,
    /// Which requests are counted.
    pub at: Checkpoint,
    /// Only logs and counts what it would refuse.
    pub dry_run: bool,
    /// 429 or 503.
    pub status: u16,
}
