//! Decides whether and when a second backend is asked in parallel to a slow one; nothing else decides it.
//! Pure.

use std::time::Duration;

use weir_balance::{ResponseTimes, WINDOW_SECONDS};
use weir_config::{HedgeAfter, NEVER, Retry, RouteRetry};
use weir_http::Method;

/// When a second backend is asked, as set by the route, else by the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeRules {
    after: HedgeAfter,
    least: Duration,
    most: Duration,
    idempotent: bool,
}

/// What is known about a request.
#[derive(Clone, Copy, Debug)]
pub struct HedgeAsked {
    /// Its method.
    pub method: Method,
    /// Whether all of it is in memory, so that it can be sent twice.
    pub is_whole: bool,
    /// Whether it asks for a tunnel, which can only end at one backend.
    pub is_tunnel: bool,
    /// Whether it may be a replay (RFC 8470).
    pub is_early: bool,
    /// Whether the client's cookie names its backend.
    pub is_sticky: bool,
}

impl HedgeRules {
    /// The rules for a request to `pool` on `route`; `None` if no second backend is ever asked. Does not
    /// allocate.
    #[inline]
    pub fn of(pool: &Retry, route: Option<&RouteRetry>) -> Option<HedgeRules> {
        let route = route.and_then(|route| route.hedge);
        if pool.hedge.is_none() && route.is_none() {
            return None;
        }
        let (pool, route) = (pool.hedge.unwrap_or_default(), route.unwrap_or_default());
        let rules = HedgeRules {
            after: route.after.unwrap_or(pool.after),
            least: route.least.unwrap_or(pool.least),
            most: route.most.unwrap_or(pool.most),
            idempotent: route.idempotent.unwrap_or(pool.idempotent),
        };
        (rules.after != HedgeAfter::Off).then_some(rules)
    }

    /// Why such a request is never sent to two backends at once; `None` if it may be.
    ///
    /// A retry follows a failure, but a hedge leaves a copy in progress that may be executed when its client
    /// has long gone on: if it changes something, it may undo what came after it.
    pub fn hindrance(&self, asked: &HedgeAsked) -> Option<&'static str> {
        let HedgeAsked { method, is_whole, is_tunnel, is_early, is_sticky } = *asked;
        match () {
            () if !method.is_idempotent() => Some("the method may not be repeated"),
            () if !method.is_safe() && !self.idempotent => {
                Some("the method changes something, and `idempotent` is false")
            }
            () if is_tunnel => Some("it asks for a tunnel"),
            () if is_early => Some("it came before the handshake was over"),
            () if is_sticky => Some("its cookie names its backend"),
            () if !is_whole => Some("its body is not all here"),
            () => None,
        }
    }

    /// Whether the delay depends on measured response times.
    pub fn is_measured(&self) -> bool {
        matches!(self.after, HedgeAfter::Percentile(_))
    }

    /// How long to wait for the first backend; `None` if too few response times are known.
    pub fn delay(&self, times: &ResponseTimes, now: Duration) -> Option<Duration> {
        match self.after {
            HedgeAfter::Percentile(per_mille) => {
                let most = if self.most == NEVER { Duration::MAX } else { self.most };
                Some(times.percentile(now, per_mille)?.max(self.least).min(most))
            }
            HedgeAfter::Time(time) => Some(time),
            HedgeAfter::Off => None,
        }
    }

    /// The rules in words, for a request with the facts `asked`.
    pub fn words(&self, asked: &HedgeAsked, times: &ResponseTimes, now: Duration) -> String {
        if let Some(why) = self.hindrance(asked) {
            return format!("none: {why}");
        }
        let shown =
            |delay: Duration| format!("a second backend after {:.1} ms", delay.as_secs_f64() * 1000.0);
        match (self.after, self.delay(times, now)) {
            (HedgeAfter::Percentile(per_mille), delay) => {
                let (counted, needed) = (times.counted(now), ResponseTimes::needed(per_mille));
                let word = self.after.word();
                match delay {
                    Some(delay) => format!(
                        "{}, by {word} of {counted} answers of the last {WINDOW_SECONDS} s",
                        shown(delay)
                    ),
                    None => format!(
                        "none yet: {word} takes {needed} answers of the last {WINDOW_SECONDS} s, and there are {counted}"
                    ),
                }
            }
            (_, Some(delay)) => shown(delay),
            (_, None) => "none".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use weir_config::{Hedge, RouteHedge};

    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn pool(hedge: Hedge) -> Retry {
        Retry { hedge: Some(hedge), ..Retry::default() }
    }

    fn asked(method: Method) -> HedgeAsked {
        HedgeAsked { method, is_whole: true, is_tunnel: false, is_early: false, is_sticky: false }
    }

    #[test]
    fn a_route_says_what_it_says_and_the_pool_the_rest() {
        let route = |hedge: RouteHedge| RouteRetry { hedge: Some(hedge), ..RouteRetry::default() };
        assert_eq!(HedgeRules::of(&Retry::default(), None), None);
        assert_eq!(HedgeRules::of(&Retry::default(), Some(&RouteRetry::default())), None);
        let most = route(RouteHedge { most: Some(ms(70)), ..RouteHedge::default() });
        let of_pool = pool(Hedge { after: HedgeAfter::Percentile(990), least: ms(5), ..Hedge::default() });
        let rules = HedgeRules::of(&of_pool, Some(&most)).unwrap();
        assert_eq!((rules.after, rules.least, rules.most), (HedgeAfter::Percentile(990), ms(5), ms(70)));
        let alone = HedgeRules::of(&Retry::default(), Some(&most)).unwrap();
        assert_eq!(alone.after, HedgeAfter::Percentile(950));
        let off = route(RouteHedge { after: Some(HedgeAfter::Off), ..RouteHedge::default() });
        assert_eq!(HedgeRules::of(&of_pool, Some(&off)), None);
    }

    #[test]
    fn a_percentile_waits_for_enough_answers_and_keeps_within_its_bounds() {
        let times = ResponseTimes::default();
        let rules = |least, most| {
            let hedge = Hedge { least: ms(least), most: ms(most), ..Hedge::default() };
            HedgeRules::of(&pool(hedge), None).unwrap()
        };
        assert_eq!(rules(1, 1000).delay(&times, NOW), None);
        (0..100).for_each(|_| times.record(NOW, ms(40)));
        let later = NOW + ms(500);
        let free = rules(1, 1000).delay(&times, later).unwrap();
        assert!(free >= ms(40) && free < ms(44), "{free:?}");
        assert_eq!(rules(60, 1000).delay(&times, later), Some(ms(60)));
        assert_eq!(rules(1, 20).delay(&times, later), Some(ms(20)));
        assert_eq!(rules(60, 20).delay(&times, later), Some(ms(20)), "no panic, whatever a route adds");
    }

    #[test]
    fn what_changes_something_is_asked_for_once_unless_it_is_idempotent_and_said() {
        let rules =
            |idempotent| HedgeRules::of(&pool(Hedge { idempotent, ..Hedge::default() }), None).unwrap();
        let hinders = |rules: HedgeRules, method| rules.hindrance(&asked(method)).is_some();
        for method in [Method::Get, Method::Head, Method::Options] {
            assert!(!hinders(rules(false), method));
        }
        for method in [Method::Put, Method::Delete] {
            assert!(hinders(rules(false), method) && !hinders(rules(true), method));
        }
        assert!(hinders(rules(true), Method::Post));
    }

    #[test]
    fn tunnels_early_data_cookies_and_bodies_on_their_way_go_to_one_backend() {
        let rules = HedgeRules::of(&pool(Hedge::default()), None).unwrap();
        let get = asked(Method::Get);
        assert_eq!(rules.hindrance(&get), None);
        for odd in [
            HedgeAsked { is_whole: false, ..get },
            HedgeAsked { is_tunnel: true, ..get },
            HedgeAsked { is_early: true, ..get },
            HedgeAsked { is_sticky: true, ..get },
        ] {
            assert!(rules.hindrance(&odd).is_some(), "{odd:?}");
        }
    }
}
