//! Decides whether a failed attempt is retried; nothing else decides it. Pure.

use std::time::Duration;

use weir_config::{Retry, RetryOn, RouteRetry};
use weir_stats::table::RetryReason;

/// When attempts are retried, as set by the route, else by the pool.
#[derive(Clone, Copy, Debug)]
pub struct RetryRules<'c> {
    /// Most attempts after the first.
    pub attempts: u32,
    /// The failures that are retried.
    pub on: &'c [RetryOn],
    /// Whether POST and other non-idempotent requests may be retried after they reached a backend.
    pub non_idempotent: bool,
    /// Longest attempt that another one may follow; [`weir_config::NEVER`] for as long as the timers allow.
    pub per_try: Duration,
    /// Longest `retry-after` that is waited for.
    pub retry_after: Duration,
}

impl<'c> RetryRules<'c> {
    /// The rules for a request to `pool` on `route`. Does not allocate.
    #[inline]
    pub fn of(pool: &'c Retry, route: Option<&'c RouteRetry>) -> RetryRules<'c> {
        let said = |on: &'c [RetryOn]| Some(on).filter(|on| !on.is_empty());
        RetryRules {
            attempts: route.and_then(|route| route.attempts).unwrap_or(pool.attempts),
            on: route.and_then(|route| said(&route.on)).unwrap_or(&pool.on),
            non_idempotent: route.and_then(|route| route.non_idempotent).unwrap_or(pool.non_idempotent),
            per_try: route.and_then(|route| route.per_try_timeout).unwrap_or(pool.per_try_timeout),
            retry_after: route.and_then(|route| route.retry_after).unwrap_or(pool.retry_after),
        }
    }

    /// Whether failures of this kind are retried. `connect` included refused streams before `refused-stream`
    /// was a word of its own; and `reset` includes connections that end without a byte (`empty`).
    pub fn lists(&self, kind: RetryOn) -> bool {
        let also = match kind {
            RetryOn::RefusedStream => Some(RetryOn::Connect),
            RetryOn::Empty => Some(RetryOn::Reset),
            _ => None,
        };
        self.on.iter().any(|on| *on == kind || Some(*on) == also)
    }

    /// Whether the attempt that is about to be made, of a request that can be sent again, may be cut short
    /// for another one if it takes too long. `made` counts the attempts before it.
    pub fn may_cut_short(&self, made: u32, idempotent: bool) -> bool {
        self.may_follow(made, RetryOn::Timeout, idempotent)
    }

    /// Whether another attempt may follow the one that is about to be made, of a request that can be sent
    /// again, if that fails in this way after the request was sent. `made` counts the attempts before it.
    pub fn may_follow(&self, made: u32, kind: RetryOn, idempotent: bool) -> bool {
        made < self.attempts && self.lists(kind) && (idempotent || self.non_idempotent)
    }
}

/// What is known about an attempt that failed, or whose response may be retried.
#[derive(Clone, Copy)]
pub struct Attempt<'r> {
    /// Whether the method may be repeated (RFC 9110 §9.2.2).
    pub idempotent: bool,
    /// Whether everything that was sent can be sent again.
    pub replayable: bool,
    /// Whether the connection had served an exchange before: the backend may have closed it just when we
    /// sent.
    pub reused: bool,
    /// The kind of failure; `None` if it is none that `on` can name.
    pub kind: Option<RetryOn>,
    /// The `retry-after` of the response.
    pub retry_after: Option<Duration>,
    /// The route's retry settings.
    pub route: Option<&'r RouteRetry>,
}

impl Attempt<'_> {
    /// An attempt in which nothing was sent.
    pub fn unsent(kind: Option<RetryOn>) -> Attempt<'static> {
        Attempt { idempotent: true, replayable: true, reused: false, kind, retry_after: None, route: None }
    }
}

/// What to do after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryVerdict {
    /// Try again, on another backend where there is one.
    Again,
    /// Try again on the same backend with a new connection. This costs neither an attempt nor retry budget,
    /// since the old connection's age is to blame and not the backend.
    Reconnect,
    /// Do not try again.
    Leave,
}

/// Decides after `made` attempts, the last one included.
pub fn decide(rules: &RetryRules<'_>, made: u32, attempt: &Attempt<'_>) -> RetryVerdict {
    let Some(kind) = attempt.kind else { return RetryVerdict::Leave };
    if !attempt.replayable {
        return RetryVerdict::Leave;
    }
    // If no connection could be made, nothing was sent, whatever the method; and a request that a backend
    // guarantees not to have looked at was not processed (RFC 9113 §8.7).
    let is_untouched = matches!(kind, RetryOn::Connect | RetryOn::RefusedStream);
    if !(is_untouched || attempt.idempotent || rules.non_idempotent) {
        return RetryVerdict::Leave;
    }
    if kind == RetryOn::Empty && attempt.reused {
        return RetryVerdict::Reconnect;
    }
    if made <= rules.attempts && rules.lists(kind) { RetryVerdict::Again } else { RetryVerdict::Leave }
}

/// How long to wait before the next attempt. 429 is about the client, whichever backend is asked; 503 is
/// about the backend that sent it, so it does not matter if the next attempt goes `elsewhere`.
pub fn pause(attempt: &Attempt<'_>, elsewhere: bool) -> Option<Duration> {
    match attempt.kind? {
        RetryOn::Status(429) => attempt.retry_after,
        RetryOn::Status(503) if !elsewhere => attempt.retry_after,
        _ => None,
    }
}

/// The reason under which a retry for such a failure is counted.
pub fn counted_as(kind: RetryOn) -> RetryReason {
    match kind {
        RetryOn::Connect => RetryReason::Connect,
        RetryOn::RefusedStream => RetryReason::RefusedStream,
        RetryOn::Empty => RetryReason::Empty,
        RetryOn::Reset => RetryReason::Reset,
        RetryOn::Timeout => RetryReason::Timeout,
        RetryOn::Status(429) => RetryReason::TooManyRequests,
        RetryOn::Status(500) => RetryReason::InternalError,
        RetryOn::Status(502) => RetryReason::BadGateway,
        RetryOn::Status(503) => RetryReason::Unavailable,
        RetryOn::Status(_) => RetryReason::GatewayTimeout,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn retry(on: &[RetryOn]) -> Retry {
        Retry { attempts: 2, on: on.to_vec(), ..Retry::default() }
    }

    fn attempt(kind: RetryOn) -> Attempt<'static> {
        Attempt::unsent(Some(kind))
    }

    fn decide(retry: &Retry, made: u32, attempt: &Attempt<'_>) -> RetryVerdict {
        super::decide(&RetryRules::of(retry, None), made, attempt)
    }

    #[test]
    fn a_refused_connection_is_tried_again_even_for_a_post() {
        let post = Attempt { idempotent: false, ..attempt(RetryOn::Connect) };
        assert_eq!(decide(&retry(&[RetryOn::Connect]), 1, &post), RetryVerdict::Again);
    }

    #[test]
    fn a_post_that_reached_a_backend_is_not_sent_twice() {
        let on = [RetryOn::Empty, RetryOn::Timeout, RetryOn::Status(503)];
        for kind in on {
            let post = Attempt { idempotent: false, ..attempt(kind) };
            assert_eq!(decide(&retry(&on), 1, &post), RetryVerdict::Leave);
            assert_eq!(decide(&Retry { non_idempotent: true, ..retry(&on) }, 1, &post), RetryVerdict::Again);
        }
    }

    #[test]
    fn a_body_that_is_gone_can_not_be_sent_again() {
        let gone = Attempt { replayable: false, ..attempt(RetryOn::Connect) };
        assert_eq!(decide(&retry(&[RetryOn::Connect]), 1, &gone), RetryVerdict::Leave);
    }

    #[test]
    fn attempts_are_bounded_and_only_listed_failures_count() {
        let on = [RetryOn::Connect];
        assert_eq!(decide(&retry(&on), 2, &attempt(RetryOn::Connect)), RetryVerdict::Again);
        assert_eq!(decide(&retry(&on), 3, &attempt(RetryOn::Connect)), RetryVerdict::Leave);
        assert_eq!(decide(&retry(&on), 1, &attempt(RetryOn::Status(503))), RetryVerdict::Leave);
    }

    #[test]
    fn a_kept_connection_that_proves_closed_is_replaced_without_charge() {
        let stale = Attempt { reused: true, ..attempt(RetryOn::Empty) };
        assert_eq!(decide(&retry(&[]), 1, &stale), RetryVerdict::Reconnect);
    }

    #[test]
    fn a_route_says_what_it_says_and_the_pool_the_rest() {
        let pool = retry(&[RetryOn::Connect]);
        let route = RouteRetry { attempts: Some(5), on: vec![RetryOn::Status(500)], ..RouteRetry::default() };
        let rules = RetryRules::of(&pool, Some(&route));
        assert_eq!((rules.attempts, rules.on), (5, &[RetryOn::Status(500)][..]));
        assert_eq!((rules.non_idempotent, rules.retry_after), (false, pool.retry_after));
        assert_eq!(super::decide(&rules, 5, &attempt(RetryOn::Status(500))), RetryVerdict::Again);
        assert_eq!(super::decide(&rules, 1, &attempt(RetryOn::Connect)), RetryVerdict::Leave);
    }

    #[test]
    fn a_stream_that_was_refused_is_tried_again_even_for_a_post_by_either_word() {
        let post = Attempt { idempotent: false, ..attempt(RetryOn::RefusedStream) };
        for on in [RetryOn::Connect, RetryOn::RefusedStream] {
            assert_eq!(decide(&retry(&[on]), 1, &post), RetryVerdict::Again);
        }
        assert_eq!(
            decide(&retry(&[RetryOn::RefusedStream]), 1, &attempt(RetryOn::Connect)),
            RetryVerdict::Leave
        );
    }

    #[test]
    fn who_breaks_off_without_a_byte_has_broken_off() {
        let reset = retry(&[RetryOn::Reset]);
        assert_eq!(decide(&reset, 1, &attempt(RetryOn::Empty)), RetryVerdict::Again);
        assert_eq!(decide(&retry(&[RetryOn::Empty]), 1, &attempt(RetryOn::Reset)), RetryVerdict::Leave);
        let post = Attempt { idempotent: false, ..attempt(RetryOn::Reset) };
        assert_eq!(decide(&reset, 1, &post), RetryVerdict::Leave);
    }

    #[test]
    fn a_try_is_cut_short_only_where_another_may_follow() {
        let timed = retry(&[RetryOn::Timeout]);
        let rules = RetryRules::of(&timed, None);
        assert!(rules.may_cut_short(0, true) && rules.may_cut_short(1, true));
        assert!(!rules.may_cut_short(2, true), "the third is the last");
        assert!(!rules.may_cut_short(0, false), "a POST is not tried again");
        let other = retry(&[RetryOn::Connect]);
        assert!(!RetryRules::of(&other, None).may_cut_short(0, true));
    }

    #[test]
    fn a_429_is_waited_for_everywhere_and_a_503_only_where_there_is_no_elsewhere() {
        let wait = Some(Duration::from_secs(3));
        let told = |status| Attempt { retry_after: wait, ..attempt(RetryOn::Status(status)) };
        for elsewhere in [true, false] {
            assert_eq!(pause(&told(429), elsewhere), wait);
            assert_eq!(pause(&told(503), elsewhere), wait.filter(|_| !elsewhere));
            assert_eq!(pause(&told(502), elsewhere), None);
        }
    }
}
