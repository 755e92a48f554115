//! `retry` of pools and routes: when a failed attempt is retried.

use std::time::Duration;

use crate::fields::{Fields, Value};
use crate::hedge::{Hedge, RouteHedge};
use crate::keys::{
    Each, HOUR, Limit, Word, count, factor, flag, list, list_or, millis, seconds, table as below,
    table_or_true, timer, timer_off, yes_or_no,
};
use crate::report::Findings;
use crate::setting::{Section as _, one, table};

table! {
    /// A failed attempt is made again, at another backend where there is one. Never once a byte of a response
    /// has reached the client.
    pub struct Retry at "retry = { … }" {
        /// Further tries after the first; 0 switches retries off.
        attempts: u32 =
            count(Limit::new(2, 0, 10, "each retry multiplies the load on a pool that is in trouble"));
        /// Which failures are tried again.
        on: Vec<RetryOn> = list_or(Each::Word(RETRY_ON), &["connect", "empty"]).instead(OF_OTHERS);
        /// Whether POST and the like may be tried again after they reached a backend: then a backend may do
        /// what they ask for twice.
        non_idempotent: bool = flag(false);
        /// Longest try that another may follow, from its connect to the head of its response; then it is a
        /// `timeout`. The last one has `timeout.backend`.
        per_try_timeout: Duration =
            timer_off(Limit::optional(millis(10), HOUR, PER_TRY_REASON))
                .default("\"off\"")
                .also(&["per_try", "try_timeout", "num_retries_timeout"]);
        /// Longest `retry-after` of a 429, or of a 503 of the last backend there is, that is waited for
        /// before the next try; a longer one is passed on.
        retry_after: Duration =
            timer(Limit::new(seconds(1), millis(0), HOUR, RETRY_AFTER_REASON)).also(&["max_retry_after"]);
        /// How many retries the pool's backends get in all.
        budget: Budget = below(Budget::TABLE).also(&["retry_budget"]);
        /// Asks another backend beside one that takes its time.
        hedge: Option<Hedge> =
            table_or_true(Hedge::TABLE).default("off").also(&["hedging", "hedging_policy", "backup_request"]);
    }
}

/// Conditions of nginx, HAProxy and Envoy for which Weir has no single word.
const OF_OTHERS: &[(&[&str], &str)] = &[
    (&["error"], "did you mean \"connect\" and \"reset\"?"),
    (&["http-429"], "did you mean \"429\"?"),
    (&["http-500"], "did you mean \"500\"?"),
    (&["http-502"], "did you mean \"502\"?"),
    (&["http-503"], "did you mean \"503\"?"),
    (&["http-504"], "did you mean \"504\"?"),
    (&["5xx", "gateway-error"], "say each status: \"500\", \"502\", \"503\", \"504\""),
    (&["non-idempotent", "non_idempotent"], "it is a key of its own: `non_idempotent = true`"),
];

table! {
    /// Retries of the last ten seconds are at most this share of the requests of the same time, and so many
    /// that a pool with little traffic can retry at all.
    #[derive(Copy)]
    pub struct Budget at "budget = { … }" {
        /// Share of the requests.
        share: f64 = factor(Limit::new(0.2, 0.0, 1.0, "1 lets a failing pool have twice its load"))
            .also(&["percent", "ratio", "budget_percent"]);
        /// Retries per second besides, averaged over ten.
        min_per_second: u32 = count(Limit::new(10, 0, 100_000, "0 lets a quiet pool never retry"))
            .also(&["min", "reserve", "min_retry_concurrency", "min_retries_per_second"]);
    }
}

table! {
    /// When requests that the route takes are tried again. What it does not say is as the pool has it; the
    /// pool's `budget` holds for all.
    #[derive(Eq)]
    pub struct RouteRetry at "retry = { … }" {
        /// Further tries after the first; 0 switches retries off.
        attempts: Option<u32> =
            count(Limit::optional(0, 10, "each retry multiplies the load on a pool that is in trouble"))
                .default("as the pool");
        /// Which failures are tried again.
        on: Vec<RetryOn> = list(Each::Word(RETRY_ON)).default("as the pool").instead(OF_OTHERS);
        /// Whether POST and the like may be tried again after they reached a backend.
        non_idempotent: Option<bool> = yes_or_no().default("as the pool");
        /// Longest try that another may follow.
        per_try_timeout: Option<Duration> =
            timer(Limit::optional(millis(10), HOUR, PER_TRY_REASON))
                .default("as the pool")
                .also(&["per_try", "try_timeout"]);
        /// Longest `retry-after` that is waited for.
        retry_after: Option<Duration> =
            timer(Limit::optional(millis(0), HOUR, RETRY_AFTER_REASON))
                .default("as the pool")
                .also(&["max_retry_after"]);
        /// Asks another backend beside one that takes its time.
        hedge: Option<RouteHedge> =
            table_or_true(RouteHedge::TABLE).default("as the pool").also(&["hedging", "hedging_policy"]);
    }
}

const PER_TRY_REASON: &str = "a try that is cut short was work for nothing";
const RETRY_AFTER_REASON: &str = "the client waits as well, and may do so better";

impl RouteRetry {
    /// This table, if it sets anything.
    pub fn if_any(&self) -> Option<&RouteRetry> {
        (*self != RouteRetry::default()).then_some(self)
    }
}

/// A failure that may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryOn {
    /// No connection was established: nothing was sent.
    Connect,
    /// The backend promised that it has not processed the request.
    RefusedStream,
    /// The backend closed the connection without sending a byte of the response.
    Empty,
    /// The backend closed or reset the connection before the head of its response was complete.
    Reset,
    /// The backend did not answer in time.
    Timeout,
    /// The backend answered with this status: 429, 500, 502, 503 or 504.
    Status(u16),
}

const RETRY_ON: &[Word] = &[
    Word::new("connect", "no connection came about: nothing was sent")
        .also(&["conn-failure", "connect-failure"]),
    Word::new(
        "refused-stream",
        "the backend promised not to have looked at it (HTTP/2); a part of `connect`, too",
    ),
    Word::new("empty", "the backend closed without one byte of response").also(&["empty-response"]),
    Word::new(
        "reset",
        "the backend broke off before the head of its response was whole; `empty` is a part of it",
    ),
    Word::new("timeout", "the backend did not answer in time").also(&["response-timeout"]),
    Word::new("429", "the backend answered 429"),
    Word::new("500", "the backend answered 500"),
    Word::new("502", "the backend answered 502"),
    Word::new("503", "the backend answered 503"),
    Word::new("504", "the backend answered 504"),
];

impl RetryOn {
    /// The lowest status that [`RetryOn::Status`] can have.
    pub const FIRST_STATUS: u16 = 429;

    /// As written in the file.
    pub const fn word(self) -> &'static str {
        match self {
            RetryOn::Connect => "connect",
            RetryOn::RefusedStream => "refused-stream",
            RetryOn::Empty => "empty",
            RetryOn::Reset => "reset",
            RetryOn::Timeout => "timeout",
            RetryOn::Status(429) => "429",
            RetryOn::Status(500) => "500",
            RetryOn::Status(502) => "502",
            RetryOn::Status(503) => "503",
            RetryOn::Status(_) => "504",
        }
    }

    fn from_word(word: &str) -> Option<RetryOn> {
        Some(match word {
            "connect" => RetryOn::Connect,
            "refused-stream" => RetryOn::RefusedStream,
            "empty" => RetryOn::Empty,
            "reset" => RetryOn::Reset,
            "timeout" => RetryOn::Timeout,
            status => RetryOn::Status(status.parse().ok()?),
        })
    }
}

one!(RetryOn, Value::Word(word) => RetryOn::from_word(word), |it| Value::Word(it.word()), RetryOn::Connect);

/// Reports parts of a `retry` table that have no effect.
pub(crate) fn check(retry: &Fields, findings: &mut Findings<'_>) {
    let Some(on) = retry.holds("on") else { return };
    let Value::List(list) = &*on else { return };
    let listed = |wanted: &[&str]| {
        list.iter().any(|(_, value)| matches!(value, Value::Word(word) if wanted.contains(word)))
    };
    let mut needs = |name: &str, wanted: &[&str], hint: &str| {
        if let Some(entry) = retry.get(name).filter(|entry| !matches!(entry.value, Value::Off | Value::Bad))
            && !listed(wanted)
        {
            findings.warning(entry.key, format!("`{name}` has no effect"), hint);
        }
    };
    needs("per_try_timeout", &["timeout"], "what took too long is tried again only with \"timeout\" in `on`");
    needs("retry_after", &["429", "503"], "it is for 429 and 503, and neither is in `on`");
}
