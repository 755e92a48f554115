//! Whatever can be asked of requests.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use weir_config::Screen;
use weir_screen::{Case, Checkpoint, ConcurrencyLimit, Key, Pattern, Rate, RateLimit};

fn rate() -> impl Strategy<Value = Rate> {
    (1..=10_000_000u32, 1..=7 * 86_400u64)
        .prop_map(|(count, seconds)| Rate { count, per: Duration::from_secs(seconds) })
}

/// What a limit can count by, on a listener or on a route.
fn key(of_route: bool) -> impl Strategy<Value = Key> {
    prop_oneof![
        (8..=32u8, 16..=128u8).prop_map(|(v4_bits, v6_bits)| Key::ClientIp { v4_bits, v6_bits }),
        Just(if of_route { Key::Route } else { Key::Listener }),
        "[a-z-]{1,9}".prop_map(|name| Key::Header(name.into())),
        "[A-Za-z_]{1,9}".prop_map(|name| Key::Cookie(name.into())),
    ]
}

fn checkpoint() -> impl Strategy<Value = Checkpoint> {
    select(vec![Checkpoint::Edge, Checkpoint::Origin])
}

fn rate_limit(of_route: bool) -> impl Strategy<Value = RateLimit> {
    let numbers = (1..=10_000_000u32, select(vec![429u16, 503]), 100..=10_000_000u32);
    (rate(), numbers, key(of_route), checkpoint(), any::<bool>()).prop_map(
        |(rate, (burst, status, keys), key, at, dry_run)| {
            let longest = 7 * 86_400 * u64::from(rate.count) / rate.per.as_secs();
            let burst = u64::from(burst).min(longest.max(1)) as u32;
            let keys = if key.is_whole() { 250_000 } else { keys };
            RateLimit { rate, burst, key, at, dry_run, status, keys }
        },
    )
}

fn concurrency_limit(of_route: bool) -> impl Strategy<Value = ConcurrencyLimit> {
    (1..=10_000_000u32, key(of_route), checkpoint(), any::<bool>(), select(vec![429u16, 503]))
        .prop_map(|(max, key, at, dry_run, status)| ConcurrencyLimit { max, key, at, dry_run, status })
}

/// Entries that are said by this regular expression, and those that are not said by their beginning.
fn patterns(bare: &str, case: Case) -> impl Strategy<Value = Vec<Pattern>> {
    let bare = proptest::string::string_regex(bare).expect("a regular expression");
    let open = prop_oneof!["\\*[a-z./]{1,5}\\*?", "~\\^?(a|b[0-9]\\+)\\{2\\}\\$?", Just("*".to_owned())];
    vec((any::<bool>(), prop_oneof![bare, open]), 0..4).prop_map(move |texts| {
        let parse = |(negated, text): (bool, String)| {
            Pattern::parse(&format!("{}{text}", if negated { "!" } else { "" }), case)
        };
        texts.into_iter().map(|text| parse(text).expect("a pattern")).collect()
    })
}

/// Whatever can be asked of the requests of a listener, or of a route.
pub fn screen(of_route: bool) -> impl Strategy<Value = Screen> {
    let texts = |bare, case| (patterns(bare, case), patterns(bare, case));
    (
        (super::networks(), super::networks()),
        texts("[A-Z]{1,6}\\*?", Case::Sensitive),
        texts("/[a-z0-9/-]{0,6}\\*?", Case::Sensitive),
        texts("[A-Za-z0-9 \"\\\\]{0,6}\\*?", Case::Ignored),
        vec(rate_limit(of_route), 0..3),
        vec(concurrency_limit(of_route), 0..3),
    )
        .prop_map(|(addresses, methods, paths, agents, rate_limit, concurrency_limit)| Screen {
            deny_address: addresses.0,
            allow_address: addresses.1,
            deny_method: methods.0,
            allow_method: methods.1,
            deny_path: paths.0,
            allow_path: paths.1,
            deny_user_agent: agents.0,
            allow_user_agent: agents.1,
            rate_limit,
            concurrency_limit,
        })
}
