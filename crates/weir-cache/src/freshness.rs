//! How long a response is fresh, and how old it is (RFC 9111 §4.2).

use std::time::Duration;

use weir_http::values::cache_control::{ResponseDirectives, Scope};
use weir_http::values::{delta_seconds, http_date};
use weir_http::{KnownHeader, ResponseHead};

use crate::rules::Rules;

/// The two clocks: ages are measured with the monotonic one, dates are compared with the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Since an arbitrary origin, the same for all calls.
    pub now: Duration,
    /// Seconds since the epoch.
    pub wall_seconds: u64,
}

/// Where a lifetime comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// `cdn-cache-control` (RFC 9213).
    Targeted,
    /// `s-maxage`
    SharedMaxAge,
    /// `max-age`
    MaxAge,
    /// `expires`
    Expires,
    /// The operator's `ttl`.
    Ttl,
    /// The operator's `negative_ttl`.
    NegativeTtl,
    /// A tenth of the time since `last-modified`.
    Heuristic,
    /// It has none, and is validated each time.
    Nothing,
}

/// A time in nanoseconds, in half the space of a `Duration`: a million objects have five each. Ends after
/// some 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Nanos(u64);

impl From<Duration> for Nanos {
    fn from(time: Duration) -> Nanos {
        Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(time: Nanos) -> Duration {
        Duration::from_nanos(time.0)
    }
}

/// The age of a response when it arrived, and how long it stays fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freshness {
    received_at: Nanos,
    initial_age: Nanos,
    lifetime: Nanos,
    stale_while_revalidate: Nanos,
    stale_if_error: Nanos,
    /// Where its lifetime comes from.
    pub source: Source,
    /// Never to be used without validation: `no-cache`.
    pub always_validate: bool,
    /// Never to be used when stale, whatever the client says (RFC 9111 §4.2.4).
    pub never_stale: bool,
    /// Its `date`, or its arrival: seconds since the epoch.
    pub date_seconds: u64,
    /// Its `last-modified`, in seconds since the epoch.
    pub last_modified_seconds: Option<u64>,
}

/// Longest heuristic lifetime.
const HEURISTIC_MOST: Duration = Duration::from_secs(86_400);

impl Freshness {
    /// Whether this response arrived before the other.
    pub(crate) fn came_before(&self, other: &Freshness) -> bool {
        self.received_at.0 < other.received_at.0
    }

    /// The age at which it becomes stale.
    pub fn lifetime(&self) -> Duration {
        self.lifetime.into()
    }

    /// How long a stale response may be served while it is refreshed; zero for not at all.
    pub fn stale_while_revalidate(&self) -> Duration {
        self.stale_while_revalidate.into()
    }

    /// How long a stale response may be served while the origin fails; zero for not at all.
    pub fn stale_if_error(&self) -> Duration {
        self.stale_if_error.into()
    }

    /// The same for a response that has just come from the origin.
    pub(crate) fn begun_at(self, now: Duration) -> Freshness {
        Freshness { received_at: now.into(), initial_age: Nanos::default(), ..self }
    }

    /// Its age.
    pub fn age(&self, now: Duration) -> Duration {
        //= https://www.rfc-editor.org/rfc/rfc9111#section-4.2.3
        //# resident_time = now - response_time;
        //# current_age = corrected_initial_age + resident_time;
        Duration::from(self.initial_age).saturating_add(now.saturating_sub(self.received_at.into()))
    }

    /// Computes the freshness of a response that arrived at `times` and was requested at `asked_at`.
    pub(crate) fn of(
        head: &ResponseHead,
        buffer: &[u8],
        said: &Said,
        rules: &Rules,
        asked_at: Duration,
        times: Times,
    ) -> Freshness {
        let date_seconds = date(head, buffer, KnownHeader::Date, times).unwrap_or(times.wall_seconds);
        let last_modified_seconds = date(head, buffer, KnownHeader::LastModified, times);
        let dates = Dates { date_seconds, last_modified_seconds, times };
        let age_value = age_value(head, buffer);
        let initial_age = initial_age(age_value, date_seconds, asked_at, times);
        let (lifetime, source) = lifetime(head, buffer, said, rules, &dates);
        // The operator's own lifetimes count from the arrival of the response. The origin's slowness and its
        // clock take nothing off them, only the time the response has already spent in other caches.
        let from_now = |lifetime: Duration| lifetime.saturating_add(initial_age.saturating_sub(age_value));
        let lifetime = match source {
            Source::Ttl | Source::NegativeTtl => from_now(lifetime),
            _ => lifetime,
        };
        let lifetime = rules.ttl_max.map_or(lifetime, |most| lifetime.min(from_now(most)));
        let directives = &said.directives;
        let always_validate = directives.no_cache == Scope::Whole;
        let forbidden = directives.must_revalidate || directives.proxy_revalidate || always_validate;
        //= https://www.rfc-editor.org/rfc/rfc9111#section-4.2.4
        //# A cache MUST NOT generate a stale response if it is prohibited by an
        //# explicit in-protocol directive (e.g., by a no-cache response
        //# directive, a must-revalidate response directive, or an applicable
        //# s-maxage or proxy-revalidate response directive; see Section 5.2.2).
        // If a response has both `s-maxage` and a time for which it may be served stale, the latter applies,
        // as the more specific extension. If it has no such time, nothing that the operator or a client says
        // makes up for it.
        let never_stale = forbidden || directives.s_maxage.is_some();
        let window = |own: Option<u32>, configured: Option<Duration>| match own {
            _ if forbidden => Duration::ZERO,
            Some(seconds) => Duration::from_secs(u64::from(seconds)),
            None if never_stale => Duration::ZERO,
            None => configured.unwrap_or_default(),
        };
        Freshness {
            received_at: times.now.into(),
            initial_age: initial_age.into(),
            lifetime: lifetime.into(),
            stale_while_revalidate: window(directives.stale_while_revalidate, rules.stale_while_revalidate)
                .into(),
            stale_if_error: window(directives.stale_if_error, rules.stale_if_error).into(),
            source,
            always_validate,
            never_stale,
            date_seconds,
            last_modified_seconds,
        }
    }
}

/// The directives of a response, from the field that applies.
pub(crate) struct Said {
    pub directives: ResponseDirectives,
    /// They come from `cdn-cache-control`, so `expires` does not apply.
    pub targeted: bool,
}

impl Said {
    //= https://www.rfc-editor.org/rfc/rfc9213#section-2.2
    //# When a cache that implements this specification receives a response
    //# with one or more of the header field names on its target list, the
    //# cache MUST select the first (in target list order) field with a valid,
    //# non-empty value and use its value to determine the caching policy for
    //# the response, and it MUST ignore the Cache-Control and Expires header
    //# fields in that response, unless no valid, non-empty value is available
    //# from the listed header fields.
    pub fn by(head: &ResponseHead, buffer: &[u8]) -> Said {
        let lines = head.values(KnownHeader::CdnCacheControl, buffer);
        match weir_http::values::cdn_cache_control::parse(lines) {
            Some(directives) => Said { directives, targeted: true },
            None => {
                let directives = ResponseDirectives::of(head.values(KnownHeader::CacheControl, buffer));
                Said { directives, targeted: false }
            }
        }
    }

    /// Whether the response states an explicit lifetime.
    pub fn has_lifetime(&self, head: &ResponseHead, buffer: &[u8]) -> bool {
        self.directives.has_lifetime()
            || (!self.targeted && head.value(KnownHeader::Expires, buffer).is_some())
    }
}

/// Statuses whose lifetime a cache may guess (RFC 9110 §15.1). 206 is one of them too, but is never stored.
pub(crate) fn is_heuristic(status: u16) -> bool {
    matches!(status, 200 | 203 | 204 | 300 | 301 | 308) || is_negative(status)
}

/// Those of them that say that there is nothing.
pub(crate) fn is_negative(status: u16) -> bool {
    matches!(status, 404 | 405 | 410 | 414 | 501)
}

/// When a response was generated, when it arrived, and when its content last changed.
struct Dates {
    date_seconds: u64,
    last_modified_seconds: Option<u64>,
    times: Times,
}

fn lifetime(
    head: &ResponseHead,
    buffer: &[u8],
    said: &Said,
    rules: &Rules,
    dates: &Dates,
) -> (Duration, Source) {
    let Dates { date_seconds, last_modified_seconds, times } = *dates;
    let seconds = |count: u32| Duration::from_secs(u64::from(count));
    let directives = &said.directives;
    if let Some(count) = directives.s_maxage {
        return (seconds(count), if said.targeted { Source::Targeted } else { Source::SharedMaxAge });
    }
    if let Some(count) = directives.max_age {
        return (seconds(count), if said.targeted { Source::Targeted } else { Source::MaxAge });
    }
    if !said.targeted && head.value(KnownHeader::Expires, buffer).is_some() {
        return (expires(head, buffer, date_seconds, times), Source::Expires);
    }
    let status = head.status();
    if is_negative(status) {
        return rules
            .negative_ttl
            .map_or((Duration::ZERO, Source::Nothing), |ttl| (ttl, Source::NegativeTtl));
    }
    if !is_heuristic(status) && !directives.public {
        return (Duration::ZERO, Source::Nothing);
    }
    if let Some(ttl) = rules.ttl {
        return (ttl, Source::Ttl);
    }
    let unchanged_for = last_modified_seconds.map(|modified| date_seconds.saturating_sub(modified));
    match unchanged_for {
        //= https://www.rfc-editor.org/rfc/rfc9111#section-4.2.2
        //# If the response has a Last-Modified header field (Section 8.8.2 of
        //# [HTTP]), caches are encouraged to use a heuristic expiration value
        //# that is no more than some fraction of the interval since that time.
        //# A typical setting of this fraction might be 10%.
        Some(seconds) => (Duration::from_secs(seconds / 10).min(HEURISTIC_MOST), Source::Heuristic),
        None => (Duration::ZERO, Source::Nothing),
    }
}

/// RFC 9111 §5.3: an unreadable value, `0` in particular, lies in the past. Of several lines the earliest
/// applies.
fn expires(head: &ResponseHead, buffer: &[u8], date_seconds: u64, times: Times) -> Duration {
    let moments = head.values(KnownHeader::Expires, buffer);
    let earliest = moments.map(|text| http_date::parse(text, times.wall_seconds).unwrap_or(0)).min();
    Duration::from_secs(earliest.unwrap_or(0).saturating_sub(date_seconds))
}

/// `None` if the field is missing, repeated or unreadable.
fn date(head: &ResponseHead, buffer: &[u8], name: KnownHeader, times: Times) -> Option<u64> {
    let mut lines = head.values(name, buffer);
    let text = lines.next()?;
    if lines.next().is_some() { None } else { http_date::parse(text, times.wall_seconds) }
}

//= https://www.rfc-editor.org/rfc/rfc9111#section-4.2.3
//# apparent_age = max(0, response_time - date_value);
//#
//# response_delay = response_time - request_time;
//# corrected_age_value = age_value + response_delay;
//#
//# corrected_initial_age = max(apparent_age, corrected_age_value);
fn initial_age(age_value: Duration, date_seconds: u64, asked_at: Duration, times: Times) -> Duration {
    let apparent = Duration::from_secs(times.wall_seconds.saturating_sub(date_seconds));
    let delay = times.now.saturating_sub(asked_at);
    apparent.max(age_value.saturating_add(delay))
}

/// The value of the response's `age` field.
fn age_value(head: &ResponseHead, buffer: &[u8]) -> Duration {
    let seconds = delta_seconds::age(head.values(KnownHeader::Age, buffer)).unwrap_or(0);
    Duration::from_secs(u64::from(seconds))
}
