//! Decides whether a stored response may answer a request (RFC 9111 §4).

use std::time::Duration;

use crate::freshness::Freshness;
use crate::object::Object;
use crate::request::RequestFacts;
use crate::rules::Rules;

/// Whether a stored response may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Yes.
    Fresh {
        /// Its age, sent as `age` in whole seconds.
        age: Duration,
        /// How long it stays fresh.
        ttl: Duration,
    },
    /// Yes, although it is stale.
    Stale {
        /// Its age.
        age: Duration,
        /// Refresh it meanwhile (RFC 5861 §3). False if the client has said that it accepts a stale response.
        while_revalidate: bool,
    },
    /// Only after validation with the origin.
    Validate {
        /// Its age.
        age: Duration,
        /// Why not.
        why: Why,
    },
    /// The client wants only what needs no request to the origin: 504 (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

/// Why the origin has to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Why {
    /// It is too old.
    Stale,
    /// It was purged softly.
    Purged,
    /// It says `no-cache`.
    NoCache,
    /// The client says `no-cache`.
    ClientNoCache,
    /// The client wants one that is younger, or that stays fresh for longer.
    ClientAge,
}

impl Why {
    /// The word for `cache-status` and `weir explain`.
    pub const fn word(self) -> &'static str {
        match self {
            Why::Stale => "stale",
            Why::Purged => "purged",
            Why::NoCache => "no-cache",
            Why::ClientNoCache => "client-no-cache",
            Why::ClientAge => "client-age",
        }
    }
}

/// Whether the object may answer the request at `now`. O(1), does not allocate.
#[inline]
pub fn reuse(object: &Object, request: &RequestFacts, now: Duration) -> Reuse {
    verdict(object.freshness(), object.soft_purged_at(), request, now)
}

/// Like [`reuse`], for a response whose content is still arriving.
pub fn reuse_coming(fresh: &Freshness, request: &RequestFacts, now: Duration) -> Reuse {
    verdict(fresh, None, request, now)
}

fn verdict(fresh: &Freshness, purged_at: Option<Duration>, request: &RequestFacts, now: Duration) -> Reuse {
    let age = fresh.age(now);
    let wanted = &request.directives;
    let validate =
        |why| if wanted.only_if_cached { Reuse::OnlyIfCached } else { Reuse::Validate { age, why } };
    if fresh.always_validate {
        return validate(Why::NoCache);
    }
    if wanted.no_cache {
        return validate(Why::ClientNoCache);
    }
    let stale_for = staleness(fresh, purged_at, now);
    let seconds = |count: u32| Duration::from_secs(u64::from(count));
    if wanted.max_age.is_some_and(|most| age > seconds(most)) {
        return validate(Why::ClientAge);
    }
    let Some(stale_for) = stale_for else {
        let ttl = fresh.lifetime().saturating_sub(age);
        if wanted.min_fresh.is_some_and(|least| ttl < seconds(least)) {
            return validate(Why::ClientAge);
        }
        return Reuse::Fresh { age, ttl };
    };
    if wanted.min_fresh.is_none() {
        if stale_for < fresh.stale_while_revalidate() {
            return Reuse::Stale { age, while_revalidate: !wanted.only_if_cached };
        }
        //= https://www.rfc-editor.org/rfc/rfc9111#section-5.2.1.2
        //# The max-stale request directive indicates that the client will accept
        //# a response that has exceeded its freshness lifetime.
        if !fresh.never_stale
            && purged_at.is_none()
            && wanted.max_stale.is_some_and(|most| stale_for <= seconds(most))
        {
            return Reuse::Stale { age, while_revalidate: false };
        }
    }
    validate(if purged_at.is_some() { Why::Purged } else { Why::Stale })
}

/// How long the object is still fresh, in whole seconds. Negative: how long it has been stale, rounded up
/// (RFC 9211 §2.5).
pub fn ttl_seconds(object: &Object, now: Duration) -> i64 {
    let fresh = object.freshness();
    match staleness(fresh, object.soft_purged_at(), now) {
        None => fresh.lifetime().saturating_sub(fresh.age(now)).as_secs() as i64,
        Some(stale_for) => -(stale_for.as_secs() as i64) - i64::from(stale_for.subsec_nanos() > 0),
    }
}

/// How long it has been stale; `None` while it is fresh.
fn staleness(fresh: &Freshness, purged_at: Option<Duration>, now: Duration) -> Option<Duration> {
    let aged = fresh.age(now).checked_sub(fresh.lifetime());
    let purged = purged_at.map(|at| now.saturating_sub(at));
    aged.max(purged)
}

/// Whether the status is an error that a stale response may replace (RFC 5861 §4).
pub fn is_server_error(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

/// Whether the object may answer the request after the origin could not be reached, or answered with an
/// [error](is_server_error) (RFC 5861 §4).
///
/// A client that sends `no-cache` wants nothing that the origin has not confirmed (RFC 9111 §5.2.1.4), and
/// gets the error. `no-store` concerns the storage of the client's own exchange, not the use of what is
/// stored already (RFC 9111 §5.2.1.5).
pub fn may_serve_on_error(object: &Object, request: &RequestFacts, rules: &Rules, now: Duration) -> bool {
    let fresh = object.freshness();
    if fresh.always_validate || request.directives.no_cache {
        return false;
    }
    let Some(stale_for) = staleness(fresh, object.soft_purged_at(), now) else { return true };
    let of_client = request.directives.stale_if_error.filter(|_| rules.honour_client && !fresh.never_stale);
    let window = of_client.map_or(Duration::ZERO, |seconds| Duration::from_secs(u64::from(seconds)));
    // While it may be served during a refresh it may answer anyway.
    let window = window.max(fresh.stale_if_error()).max(fresh.stale_while_revalidate());
    stale_for < window
}

/// Whether the object stays in the store after validation failed with an error, however long the error itself
/// says that it is valid: yes while the object may answer in place of the error, and while it is fresh and
/// only one client's request caused the validation.
pub fn outlasts_error(
    object: &Object,
    status: u16,
    request: &RequestFacts,
    rules: &Rules,
    now: Duration,
) -> bool {
    let fresh = object.freshness();
    let is_fresh = !fresh.always_validate && staleness(fresh, object.soft_purged_at(), now).is_none();
    match status {
        500.. => may_serve_on_error(object, &request.without_demands(), rules, now),
        400.. => is_fresh && object.status() < 400,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{facts, object, seconds};

    #[test]
    fn an_error_takes_the_place_only_of_what_is_too_old_to_answer_in_its_stead() {
        let rules = Rules { stale_if_error: Some(seconds(30)), ..Rules::default() };
        let object = crate::tests::object_by(&rules, "cache-control: max-age=60\r\netag: \"a\"\r\n");
        let of = |status, wanted, at: u64| {
            outlasts_error(&object, status, &facts(wanted), &rules, seconds(1000 + at))
        };
        for wanted in ["", "no-cache", "max-age=0"] {
            assert!(of(404, wanted, 59) && of(503, wanted, 59) && of(503, wanted, 89), "{wanted}");
            assert!(!of(404, wanted, 60) && !of(503, wanted, 90) && !of(200, wanted, 0), "{wanted}");
        }
    }

    /// The verdict on a request with this `cache-control`, `after` this many seconds, for a response with
    /// these field lines.
    fn after(after: u64, response: &str, wanted: &str) -> Reuse {
        reuse(&object(response), &facts(wanted), seconds(1000 + after))
    }

    #[test]
    fn a_response_answers_until_it_is_as_old_as_it_is_fresh() {
        let of = |at| after(at, "cache-control: max-age=60\r\n", "");
        assert_eq!(of(0), Reuse::Fresh { age: seconds(0), ttl: seconds(60) });
        assert_eq!(of(59), Reuse::Fresh { age: seconds(59), ttl: seconds(1) });
        assert_eq!(of(60), Reuse::Validate { age: seconds(60), why: Why::Stale });
    }

    #[test]
    fn the_time_that_is_left_goes_below_zero() {
        let object = object("cache-control: max-age=60\r\n");
        let of = |millis: u64| ttl_seconds(&object, seconds(1000) + Duration::from_millis(millis));
        assert_eq!([of(0), of(59_400), of(60_000), of(60_400), of(70_000)], [60, 0, 0, -1, -10]);
    }

    #[test]
    fn what_it_was_old_when_it_came_counts() {
        let aged = "cache-control: max-age=60\r\nage: 50\r\n";
        assert_eq!(after(9, aged, ""), Reuse::Fresh { age: seconds(59), ttl: seconds(1) });
        assert_eq!(after(10, aged, ""), Reuse::Validate { age: seconds(60), why: Why::Stale });
    }

    #[test]
    fn no_cache_is_validated_each_time() {
        let of = |said: &str| after(0, &format!("cache-control: {said}\r\netag: \"a\"\r\n"), "");
        assert_eq!(of("no-cache, max-age=60"), Reuse::Validate { age: seconds(0), why: Why::NoCache });
        assert_eq!(
            of("no-cache, stale-while-revalidate=60"),
            Reuse::Validate { age: seconds(0), why: Why::NoCache }
        );
        // With field names, `no-cache` concerns only those fields.
        assert!(matches!(of("no-cache=\"x-a\", max-age=60"), Reuse::Fresh { .. }));
    }

    #[test]
    fn a_stale_one_answers_while_it_is_fetched_anew() {
        let of = |at| after(at, "cache-control: max-age=60, stale-while-revalidate=30\r\n", "");
        assert_eq!(of(60), Reuse::Stale { age: seconds(60), while_revalidate: true });
        assert_eq!(of(89), Reuse::Stale { age: seconds(89), while_revalidate: true });
        assert_eq!(of(90), Reuse::Validate { age: seconds(90), why: Why::Stale });
        for never in ["must-revalidate", "proxy-revalidate"] {
            let said =
                format!("cache-control: max-age=60, stale-while-revalidate=30, {never}\r\netag: \"a\"\r\n");
            assert_eq!(after(60, &said, ""), Reuse::Validate { age: seconds(60), why: Why::Stale });
        }
    }

    #[test]
    fn clients_may_want_it_younger_or_fresh_for_longer() {
        let of = |at, wanted| after(at, "cache-control: max-age=60\r\n", wanted);
        let wrong_age = |age| Reuse::Validate { age: seconds(age), why: Why::ClientAge };
        assert_eq!(of(5, "no-cache"), Reuse::Validate { age: seconds(5), why: Why::ClientNoCache });
        assert_eq!(of(5, "max-age=0"), wrong_age(5));
        assert_eq!(of(5, "max-age=4"), wrong_age(5));
        assert!(matches!(of(5, "max-age=5"), Reuse::Fresh { .. }));
        assert_eq!(of(41, "min-fresh=20"), wrong_age(41));
        assert!(matches!(of(40, "min-fresh=20"), Reuse::Fresh { .. }));
    }

    #[test]
    fn clients_may_take_a_stale_one_unless_the_response_forbids_it() {
        let of = |said: &str, wanted| after(70, &format!("cache-control: {said}\r\netag: \"a\"\r\n"), wanted);
        let stale = Reuse::Stale { age: seconds(70), while_revalidate: false };
        let validate = Reuse::Validate { age: seconds(70), why: Why::Stale };
        assert_eq!(of("max-age=60", "max-stale"), stale);
        assert_eq!(of("max-age=60", "max-stale=10"), stale);
        assert_eq!(of("max-age=60", "max-stale=9"), validate);
        assert_eq!(of("max-age=60, must-revalidate", "max-stale"), validate);
        assert_eq!(of("max-age=60, proxy-revalidate", "max-stale"), validate);
        assert_eq!(of("s-maxage=60", "max-stale"), validate);
    }

    #[test]
    fn a_client_that_wants_no_fetch_gets_none() {
        let of = |at, wanted| after(at, "cache-control: max-age=60\r\n", wanted);
        assert!(matches!(of(5, "only-if-cached"), Reuse::Fresh { .. }));
        assert_eq!(of(60, "only-if-cached"), Reuse::OnlyIfCached);
        assert_eq!(of(5, "only-if-cached, no-cache"), Reuse::OnlyIfCached);
    }

    #[test]
    fn a_soft_purge_makes_it_stale_from_then_on() {
        let object = object("cache-control: max-age=60, stale-while-revalidate=30, stale-if-error=40\r\n");
        let request = facts("");
        object.set_soft_purged(seconds(1010));
        // A second soft purge does not restart the times for serving stale.
        object.set_soft_purged(seconds(1020));
        assert!(matches!(
            reuse(&object, &request, seconds(1039)),
            Reuse::Stale { while_revalidate: true, .. }
        ));
        assert_eq!(
            reuse(&object, &request, seconds(1040)),
            Reuse::Validate { age: seconds(40), why: Why::Purged }
        );
        let rules = Rules::default();
        assert!(may_serve_on_error(&object, &request, &rules, seconds(1049)));
        assert!(!may_serve_on_error(&object, &request, &rules, seconds(1050)));
    }

    #[test]
    fn a_failing_origin_is_covered_for_as_long_as_somebody_allows() {
        let of = |said: &str, at: u64, wanted, rules: &Rules| {
            let object = crate::tests::object_by(rules, &format!("cache-control: {said}\r\netag: \"a\"\r\n"));
            may_serve_on_error(&object, &facts(wanted), rules, seconds(1000 + at))
        };
        let rules = Rules::default();
        assert!(of("max-age=60, stale-if-error=30", 89, "", &rules));
        assert!(!of("max-age=60, stale-if-error=30", 90, "", &rules));
        assert!(!of("max-age=60", 60, "", &rules));
        assert!(of("max-age=60", 89, "stale-if-error=30", &rules));
        assert!(!of("max-age=60, must-revalidate, stale-if-error=30", 60, "stale-if-error=30", &rules));
        assert!(!of("max-age=60, stale-if-error=30", 60, "no-cache", &rules));
        let lenient = Rules { stale_if_error: Some(seconds(30)), ..Rules::default() };
        assert!(of("max-age=60", 89, "", &lenient));
        assert!(!of("max-age=60, stale-if-error=0", 60, "", &lenient));
        // A directive against serving stale overrides the operator's time, but not the response's own.
        assert!(!of("s-maxage=60", 60, "", &lenient));
        assert!(of("s-maxage=60, stale-if-error=5", 64, "", &lenient));
    }
}
