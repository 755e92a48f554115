use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::answer_status::AnswerStatus;
use crate::key::Key;
use crate::pattern::{Case, Pattern};
use crate::rate::Rate;
use crate::settings::{ConcurrencyLimit, RateLimit};

const SEEDS: Seeds = Seeds { own: [7, 8], shared: None };
const NOW: Duration = Duration::from_secs(100);

fn rate(rate: &str, burst: u32, key: Key) -> RateLimit {
    let rate = Rate::parse(rate).unwrap();
    let (statuses, at) = (Vec::new(), Checkpoint::Edge);
    RateLimit { rate, burst, statuses, key, at, dry_run: false, status: 429, keys: 10_000, share: true }
}

/// Counts answers with 401 and 5xx.
fn of_answers(rate_text: &str, burst: u32, key: Key) -> RateLimit {
    RateLimit {
        statuses: vec![AnswerStatus::One(401), AnswerStatus::Class(5)],
        ..rate(rate_text, burst, key)
    }
}

fn concurrency(max: u32) -> ConcurrencyLimit {
    let (key, at) = (Key::Route, Checkpoint::Edge);
    ConcurrencyLimit { max, adaptive: None, key, at, dry_run: false, status: 503 }
}

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|text| Pattern::parse(text, Case::Ignored).unwrap()).collect()
}

fn facts(client: &str) -> Facts<'static> {
    let client = client.parse().unwrap();
    Facts {
        client,
        path: b"/a",
        method: b"GET",
        user_agent: b"curl/8.5",
        header: &|_| None,
        cookie: &|_| None,
        values: &(),
    }
}

fn screen(settings: &Settings) -> Screen {
    Screen::compile(settings, &SEEDS, None).unwrap()
}

fn admit(screen: &Screen, checkpoint: Checkpoint, now: Duration) -> Result<Passage, Refusal> {
    let mut passage = Passage::default();
    super::admit([Some(screen), None], checkpoint, &facts("192.0.2.1"), now, &mut passage).map(|()| passage)
}

fn reason(settings: &Settings) -> Option<Reason> {
    admit(&screen(settings), Checkpoint::Edge, NOW).err().map(|refusal| refusal.reason)
}

#[test]
fn settings_that_ask_nothing_make_no_screen() {
    assert!(Screen::compile(&Settings::default(), &SEEDS, None).is_none());
}

#[test]
fn each_list_refuses_what_it_denies_and_what_it_does_not_allow() {
    let network = |text: &str| vec![text.parse().unwrap()];
    for (settings, expected) in [
        (Settings { deny_user_agent: patterns(&["CURL/*"]), ..Settings::default() }, Some(Reason::UserAgent)),
        (Settings { deny_user_agent: patterns(&["wget*"]), ..Settings::default() }, None),
        (Settings { allow_user_agent: patterns(&["curl*"]), ..Settings::default() }, None),
        (
            Settings { allow_user_agent: patterns(&["wget*", "x"]), ..Settings::default() },
            Some(Reason::UserAgent),
        ),
        (Settings { deny_path: patterns(&["/a"]), ..Settings::default() }, Some(Reason::Path)),
        (
            Settings { allow_path: patterns(&["/a*"]), deny_path: patterns(&["*b"]), ..Settings::default() },
            None,
        ),
        (Settings { deny_method: patterns(&["!POST"]), ..Settings::default() }, Some(Reason::Method)),
        (Settings { allow_method: patterns(&["GET"]), ..Settings::default() }, None),
        (Settings { deny_address: network("192.0.2.0/24"), ..Settings::default() }, Some(Reason::Address)),
        (Settings { allow_address: network("10.0.0.0/8"), ..Settings::default() }, Some(Reason::Address)),
    ] {
        assert_eq!(reason(&settings), expected, "{settings:?}");
        let screen = screen(&settings);
        let steps = screen.explain(&facts("192.0.2.1"), NOW);
        assert_eq!(steps.iter().all(|step| step.passes), expected.is_none(), "{steps:?}");
        assert!(admit(&screen, Checkpoint::Origin, NOW).is_ok(), "lists are looked at once");
    }
}

#[test]
fn a_refusal_by_rate_says_when_to_come_again() {
    let screen = screen(&Settings { rate_limit: vec![rate("1/10s", 1, Key::CLIENT)], ..Settings::default() });
    assert!(admit(&screen, Checkpoint::Edge, NOW).is_ok());
    let refusal = admit(&screen, Checkpoint::Edge, NOW + Duration::from_millis(6_500)).err().unwrap();
    assert_eq!((refusal.status, refusal.retry_after), (429, Some(Duration::from_millis(3_500))));
    assert_eq!(refusal.retry_after_seconds(), Some(4));
    let at_last = admit(&screen, Checkpoint::Edge, NOW + Duration::from_micros(9_999_999)).err().unwrap();
    assert_eq!(at_last.retry_after_seconds(), Some(1));
    assert!(admit(&screen, Checkpoint::Edge, NOW + Duration::from_secs(10)).is_ok());
}

#[test]
fn a_limit_counts_only_at_its_own_place() {
    let limit = RateLimit { at: Checkpoint::Origin, ..rate("1/h", 1, Key::Route) };
    let screen = screen(&Settings { rate_limit: vec![limit], ..Settings::default() });
    assert!(screen.asks_at_origin());
    (0..10).for_each(|_| assert!(admit(&screen, Checkpoint::Edge, NOW).is_ok()));
    assert!(admit(&screen, Checkpoint::Origin, NOW).is_ok());
    assert_eq!(admit(&screen, Checkpoint::Origin, NOW).err().unwrap().reason, Reason::Rate);
}

#[test]
fn a_dry_run_refuses_nothing_and_says_what_it_would_refuse() {
    let limit = RateLimit { dry_run: true, ..rate("1/h", 1, Key::CLIENT) };
    let slots = ConcurrencyLimit { dry_run: true, ..concurrency(1) };
    let settings =
        Settings { rate_limit: vec![limit], concurrency_limit: vec![slots], ..Settings::default() };
    let screen = screen(&settings);
    let first = admit(&screen, Checkpoint::Edge, NOW).unwrap();
    assert_eq!(first.would_refuse().count(), 0);
    let second = admit(&screen, Checkpoint::Edge, NOW).unwrap();
    assert_eq!(second.would_refuse().collect::<Vec<_>>(), [Reason::Rate, Reason::Concurrency]);
}

#[test]
fn what_a_later_limit_refuses_costs_nothing_of_the_earlier_ones() {
    let limits = vec![rate("1/h", 5, Key::CLIENT), rate("1/h", 1, Key::Route)];
    let settings =
        Settings { rate_limit: limits, concurrency_limit: vec![concurrency(9)], ..Settings::default() };
    let screen = screen(&settings);
    let kept = admit(&screen, Checkpoint::Edge, NOW).unwrap();
    (0..10).for_each(|_| assert!(admit(&screen, Checkpoint::Edge, NOW).is_err()));
    assert_eq!(screen.rates[0].tokens(&facts("192.0.2.1"), NOW), 4);
    assert_eq!(screen.concurrencies[0].under_way(&facts("192.0.2.1")), 1);
    drop(kept);
    assert_eq!(screen.concurrencies[0].under_way(&facts("192.0.2.1")), 0);
}

#[test]
fn what_the_route_refuses_costs_nothing_of_the_listener_s_limits() {
    let of_listener = screen(&Settings {
        rate_limit: vec![
            rate("1/h", 5, Key::Listener),
            RateLimit { dry_run: true, ..rate("1/h", 1, Key::CLIENT) },
        ],
        concurrency_limit: vec![concurrency(9)],
        ..Settings::default()
    });
    let of_route = [
        Settings { rate_limit: vec![rate("1/h", 1, Key::Route)], ..Settings::default() },
        Settings { concurrency_limit: vec![concurrency(1)], ..Settings::default() },
        Settings { deny_path: patterns(&["/a"]), ..Settings::default() },
    ];
    let left =
        || (0..2).map(|limit| of_listener.rates[limit].tokens(&facts("192.0.2.1"), NOW)).collect::<Vec<_>>();
    let (mut before, mut under_way) = (left(), 0);
    for settings in of_route {
        let of_route = screen(&settings);
        let mut kept = Vec::new();
        for _ in 0..20 {
            let mut passage = Passage::default();
            let screens = [Some(&of_listener), Some(&of_route)];
            match super::admit(screens, Checkpoint::Edge, &facts("192.0.2.1"), NOW, &mut passage) {
                Ok(()) => {
                    kept.push(passage);
                    before[0] -= 1;
                    before[1] = 0;
                    under_way += 1;
                }
                Err(_) => assert_eq!(left(), before, "{settings:?}"),
            }
            assert_eq!(of_listener.concurrencies[0].under_way(&facts("192.0.2.1")), under_way);
        }
        under_way = 0;
    }
    assert_eq!(before, [3, 0], "one passed of the limit, and one of those under way");
}

#[test]
fn a_limit_of_answers_refuses_after_so_many_of_its_statuses_and_counts_no_others() {
    for key in [Key::Route, Key::CLIENT] {
        let limit = of_answers("1/m", 2, key);
        let screen = screen(&Settings { rate_limit: vec![limit], ..Settings::default() });
        let answered = |status: u16| {
            let mut passage = admit(&screen, Checkpoint::Edge, NOW)?;
            passage.charge(status, NOW);
            assert!(!passage.is_charged());
            Ok::<_, Refusal>(())
        };
        assert!([200, 404, 401, 200, 429, 503].map(answered).iter().all(Result::is_ok));
        let refusal = answered(200).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry_after), (Reason::Rate, Some(Duration::from_secs(60))));
        assert!(answered(401).is_err());
        assert!(admit(&screen, Checkpoint::Edge, NOW + Duration::from_secs(60)).is_ok());
    }
}

#[test]
fn answers_that_were_under_way_together_are_owed_and_paid_for() {
    let limit = of_answers("1/m", 2, Key::CLIENT);
    let screen = screen(&Settings { rate_limit: vec![limit], ..Settings::default() });
    let under_way: Vec<_> =
        (0..5).map(|_| admit(&screen, Checkpoint::Edge, NOW).unwrap_or_default()).collect();
    under_way.into_iter().for_each(|mut passage| passage.charge(500, NOW));
    let refusal = admit(&screen, Checkpoint::Edge, NOW).err().unwrap();
    assert_eq!(refusal.retry_after, Some(Duration::from_secs(4 * 60)));
}

#[test]
fn refusals_by_lists_are_answers_and_make_no_debts() {
    let limit = RateLimit { statuses: vec![AnswerStatus::One(403)], ..rate("1/m", 3, Key::CLIENT) };
    let of_listener = Settings { rate_limit: vec![limit], ..Settings::default() };
    let denied = Settings { deny_path: patterns(&["/a"]), ..Settings::default() };
    let both = screen(&Settings { rate_limit: of_listener.rate_limit.clone(), ..denied.clone() });
    let (of_listener, of_route) = (screen(&of_listener), screen(&denied));
    for screens in [[Some(&both), None], [Some(&of_listener), Some(&of_route)]] {
        let mut reasons = Vec::new();
        for _ in 0..10 {
            let mut passage = Passage::default();
            let refusal = super::admit(screens, Checkpoint::Edge, &facts("192.0.2.1"), NOW, &mut passage);
            reasons.extend(refusal.err().map(|refusal| refusal.reason));
            passage.charge(403, NOW);
        }
        assert_eq!(reasons[..3], [Reason::Path; 3]);
        let after = screens[0].unwrap().rates[0].foresee(&facts("192.0.2.1"), NOW).err();
        assert_eq!(after, Some(Duration::from_secs(60)), "no more than the burst is taken");
    }
}

#[test]
fn a_limit_that_is_unchanged_goes_on_where_it_is() {
    let limits = vec![rate("1/h", 1, Key::CLIENT), rate("1/h", 1, Key::CLIENT), rate("2/h", 2, Key::Route)];
    let old = screen(&Settings { rate_limit: limits.clone(), ..Settings::default() });
    assert!(admit(&old, Checkpoint::Edge, NOW).is_ok());
    let by = |seeds: &Seeds, rate_limit: Vec<RateLimit>| {
        Screen::compile(&Settings { rate_limit, ..Settings::default() }, seeds, Some(&old)).unwrap()
    };
    let with = |rate_limit: Vec<RateLimit>| by(&SEEDS, rate_limit);
    let same = with(limits.clone());
    assert!((0..3).all(|number| Arc::ptr_eq(&same.rates[number], &old.rates[number])));
    let shared = by(&Seeds { shared: Some([1, 2]), ..SEEDS }, limits.clone());
    assert!((0..3).all(|number| !Arc::ptr_eq(&shared.rates[number], &old.rates[number])), "other digests");
    assert!(admit(&with(vec![limits[2].clone(), limits[0].clone()]), Checkpoint::Edge, NOW).is_err());
    assert!(admit(&with(vec![rate("1/h", 2, Key::CLIENT)]), Checkpoint::Edge, NOW).is_ok());
}

/// Threads that send ten times the allowed rate for a minute, by a clock that all of them advance.
fn admitted_of_ten_times(limit: RateLimit, per_second: u64) -> u64 {
    let screen = screen(&Settings { rate_limit: vec![limit], ..Settings::default() });
    let step = 1_000_000_000 / (10 * per_second);
    let (clock, admitted) = (AtomicU64::new(1_000_000_000), AtomicU64::new(0));
    let end = 61_000_000_000;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut passage = Passage::default();
                loop {
                    let now = clock.fetch_add(step, Relaxed);
                    if now >= end {
                        break;
                    }
                    let now = Duration::from_nanos(now);
                    let client = facts("2001:db8::7");
                    if super::admit([Some(&screen), None], Checkpoint::Edge, &client, now, &mut passage)
                        .is_ok()
                    {
                        admitted.fetch_add(1, Relaxed);
                    }
                }
            });
        }
    });
    admitted.load(Relaxed)
}

#[test]
fn a_minute_of_ten_times_the_rate_lets_exactly_the_rate_pass_whoever_counts() {
    for key in [Key::Route, Key::CLIENT] {
        for (text, per_second) in [("100/s", 100), ("1000/s", 1_000), ("6000/m", 100)] {
            let burst = 20;
            let admitted = admitted_of_ten_times(rate(text, burst, key.clone()), per_second);
            let exact = 60 * per_second + u64::from(burst);
            let error = admitted as f64 / exact as f64 - 1.0;
            assert!(
                error.abs() <= 0.01,
                "{text} by {key}: {admitted} of {exact}, {:.3} % off",
                error * 100.0
            );
        }
    }
}
