use super::*;
use crate::digest::Seeds;
use crate::key::Key;
use crate::rate::Rate;
use crate::screen::with_client;
use crate::settings::Checkpoint;

const SEEDS: Seeds = Seeds { own: [1, 2], shared: Some([3, 4]) };
const NOW: Duration = Duration::from_secs(1_000);
const NONE: Range<usize> = 0..0;

fn settings(rate: &str, burst: u32, key: Key) -> RateLimit {
    RateLimit {
        rate: Rate::parse(rate).unwrap(),
        burst,
        statuses: Vec::new(),
        key,
        at: Checkpoint::Edge,
        dry_run: false,
        status: 429,
        keys: 1_000,
        share: true,
    }
}

fn limit(settings: &RateLimit) -> SharedLimit {
    SharedLimit::of(&[Arc::new(RateLimiter::new(settings, &SEEDS))], &["web", "login"]).remove(0)
}

fn client(number: u8) -> std::net::IpAddr {
    [192, 0, 2, number].into()
}

fn take(limit: &SharedLimit, number: u8, now: Duration) -> bool {
    with_client(client(number), |facts| limit.limiter.take(facts, now).is_ok())
}

fn tokens(limit: &SharedLimit, number: u8, now: Duration) -> u64 {
    with_client(client(number), |facts| limit.limiter.tokens(facts, now))
}

/// All that was taken since the last look.
fn counts(limit: &SharedLimit) -> Vec<TokenCount> {
    let mut look = LimitLook::default();
    (0..limit.parts()).for_each(|part| limit.look(part, NONE, NOW, &mut look));
    look.counts.into_iter().map(|(_, count)| count).collect()
}

/// All debts; what was taken until now is in them, and is not counted any more.
fn debts(limit: &SharedLimit, now: Duration) -> Vec<KeyDebt> {
    let mut look = LimitLook::default();
    (0..limit.parts()).for_each(|part| limit.look(part, 0..limit.cells(), now, &mut look));
    look.debts
}

fn hear(limit: &SharedLimit, counts: &[TokenCount]) {
    counts.iter().for_each(|count| limit.merge_count(*count, Duration::ZERO, NOW));
}

#[test]
fn a_client_that_took_its_tokens_from_one_has_none_left_at_the_other() {
    for key in [Key::CLIENT, Key::Route] {
        let (one, other) = (limit(&settings("1/h", 3, key.clone())), limit(&settings("1/h", 3, key.clone())));
        assert_eq!(one.id, other.id);
        assert!((0..3).all(|_| take(&one, 1, NOW)) && !take(&one, 1, NOW));
        assert!(one.is_touched() && !one.is_touched());
        hear(&other, &counts(&one));
        assert!(!take(&other, 1, NOW), "{key}");
        assert_eq!(take(&other, 2, NOW), key == Key::CLIENT);
        assert_eq!(counts(&one), [], "it is told once");
    }
}

#[test]
fn what_is_returned_is_returned_everywhere() {
    let (one, other) = (limit(&settings("1/h", 3, Key::CLIENT)), limit(&settings("1/h", 3, Key::CLIENT)));
    let back = |limit: &SharedLimit| with_client(client(1), |facts| limit.limiter.give_back(facts, NOW));
    assert!(take(&one, 1, NOW));
    back(&one);
    assert_eq!(counts(&one), []);
    assert!(take(&one, 1, NOW));
    hear(&other, &counts(&one));
    assert_eq!(tokens(&other, 1, NOW), 2);
    back(&one);
    hear(&other, &counts(&one));
    assert_eq!(tokens(&other, 1, NOW), 3);
}

#[test]
fn what_another_said_is_not_told_on() {
    let (one, other) = (limit(&settings("1/h", 9, Key::CLIENT)), limit(&settings("1/h", 9, Key::CLIENT)));
    assert!(take(&one, 1, NOW));
    hear(&other, &counts(&one));
    for debt in debts(&one, NOW) {
        other.merge_debt(debt, NOW);
    }
    assert_eq!((counts(&other), tokens(&other, 1, NOW)), (vec![], 8));
}

#[test]
fn a_late_word_charges_nobody_for_what_has_been_refilled_since() {
    let (one, other) = (limit(&settings("10/s", 10, Key::CLIENT)), limit(&settings("10/s", 10, Key::CLIENT)));
    assert!((0..10).all(|_| take(&one, 1, NOW)));
    let late = NOW + Duration::from_secs(3);
    counts(&one).iter().for_each(|count| other.merge_count(*count, Duration::from_secs(3), late));
    assert_eq!(tokens(&other, 1, late), 10);
}

#[test]
fn what_an_operator_clears_is_cleared_everywhere() {
    let (one, other) = (limit(&settings("1/h", 1, Key::CLIENT)), limit(&settings("1/h", 1, Key::CLIENT)));
    for number in [1, 2] {
        assert!(take(&one, number, NOW));
    }
    hear(&other, &counts(&one));
    assert!(one.limiter.clear(&crate::Debtor::Client(client(1)), NOW));
    one.cleared().into_iter().for_each(|key| other.merge_clear(key, NOW));
    assert!(take(&other, 1, NOW) && !take(&other, 2, NOW));
    assert!(one.limiter.clear(&crate::Debtor::All, NOW));
    one.cleared().into_iter().for_each(|key| other.merge_clear(key, NOW));
    assert!(take(&other, 2, NOW) && one.cleared().is_empty());
}

#[test]
fn a_limit_is_the_same_only_with_the_same_settings_at_the_same_place() {
    let one = settings("1/h", 3, Key::CLIENT);
    let wide = settings("1/h", 3, Key::ClientIp { v4_bits: 24, v6_bits: 64 });
    let limiters = |all: &[&RateLimit]| -> Vec<_> {
        all.iter().map(|settings| Arc::new(RateLimiter::new(settings, &SEEDS))).collect()
    };
    let ids = |all: &[&RateLimit], place: &[&str]| -> Vec<LimitId> {
        SharedLimit::of(&limiters(all), place).iter().map(|limit| limit.id).collect()
    };
    let same = ids(&[&one, &one, &wide], &["web", "a"]);
    assert_eq!(same, ids(&[&one, &one, &wide], &["web", "a"]));
    assert!(same[0] != same[1] && same[0] != same[2]);
    assert_ne!(same[0], ids(&[&one], &["web", "b"])[0]);
    let dry = RateLimit { dry_run: true, keys: 7_000, status: 503, ..one.clone() };
    assert_eq!(same[0], ids(&[&dry], &["web", "a"])[0], "what it does about it is each Weir's own matter");
    let alone = RateLimit { share: false, ..one };
    assert!(ids(&[&alone], &["web", "a"]).is_empty());
}

/// Where the draws of a test begin: they are the same in each run.
const SEED: u64 = 20_261_201;

fn draw(state: &mut u64, below: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % below
}

#[test]
fn weirs_that_have_heard_everything_agree_and_count_each_token_once_in_any_order() {
    let mut state = SEED;
    for _ in 0..200 {
        let weirs: Vec<SharedLimit> = (0..3).map(|_| limit(&settings("1/h", 1_000, Key::CLIENT))).collect();
        let mut on_the_way: Vec<Vec<Vec<TokenCount>>> = (0..9).map(|_| Vec::new()).collect();
        let mut taken = [0_u64; 4];
        for _ in 0..draw(&mut state, 200) {
            let from = draw(&mut state, 3);
            match draw(&mut state, 4) {
                0 | 1 => {
                    let number = draw(&mut state, 4);
                    assert!(take(&weirs[from], number as u8, NOW));
                    taken[number] += 1;
                }
                2 => {
                    let counts = counts(&weirs[from]);
                    let others = (0..3).filter(|to| *to != from);
                    others.for_each(|to| on_the_way[from * 3 + to].push(counts.clone()));
                }
                _ => {
                    // Whichever line is quicker: between two Weirs the order stays.
                    let line = draw(&mut state, 9);
                    if !on_the_way[line].is_empty() {
                        hear(&weirs[line % 3], &on_the_way[line].remove(0));
                    }
                }
            }
        }
        for (from, weir) in weirs.iter().enumerate() {
            let counts = counts(weir);
            let others = (0..3).filter(|to| *to != from);
            others.for_each(|to| on_the_way[from * 3 + to].push(counts.clone()));
        }
        for (line, said) in on_the_way.into_iter().enumerate() {
            said.iter().for_each(|counts| hear(&weirs[line % 3], counts));
        }
        for (number, taken) in taken.iter().enumerate() {
            let left: Vec<u64> = weirs.iter().map(|weir| tokens(weir, number as u8, NOW)).collect();
            assert_eq!(left, [1_000 - taken; 3]);
        }
    }
}

#[test]
fn one_that_comes_learns_everything_and_however_often_it_is_told_counts_nothing_twice() {
    let mut state = SEED;
    for _ in 0..200 {
        let old = limit(&settings("1/h", 1_000, Key::CLIENT));
        let mut taken = [0_u64; 4];
        let mut takes = |state: &mut u64| {
            for _ in 0..draw(state, 50) {
                let number = draw(state, 4);
                assert!(take(&old, number as u8, NOW));
                taken[number] += 1;
            }
        };
        takes(&mut state);
        let new = limit(&settings("1/h", 1_000, Key::CLIENT));
        // Cell by cell in pieces, with counts in between: of a cell not yet scanned they are left out.
        for part in 0..old.parts() {
            let (mut begin, cells) = (0, old.cells());
            while begin < cells {
                takes(&mut state);
                let end = cells.min(begin + 1 + draw(&mut state, cells));
                let mut look = LimitLook::default();
                (0..old.parts()).filter(|other| *other != part).for_each(|other| {
                    let before = look.counts.len();
                    old.look(other, NONE, NOW, &mut look);
                    if other > part {
                        look.counts.truncate(before);
                    }
                });
                let told = std::mem::take(&mut look.counts);
                old.look(part, begin..end, NOW, &mut look);
                told.iter().for_each(|(_, count)| new.merge_count(*count, Duration::ZERO, NOW));
                let scanned = look.counts.iter().filter(|(cell, _)| *cell < begin);
                scanned.for_each(|(_, count)| new.merge_count(*count, Duration::ZERO, NOW));
                for _ in 0..=draw(&mut state, 2) {
                    look.debts.iter().for_each(|debt| new.merge_debt(*debt, NOW));
                }
                begin = end;
            }
        }
        hear(&new, &counts(&old));
        for (number, taken) in taken.iter().enumerate() {
            assert_eq!(tokens(&new, number as u8, NOW), 1_000 - taken);
        }
    }
}

#[test]
fn whatever_is_said_a_debt_has_an_end_and_nothing_overflows() {
    let limit = limit(&settings("1/7d", 10_000_000, Key::CLIENT));
    for tokens in [i32::MAX, i32::MIN, 1, 0, i32::MAX] {
        limit.merge_count(TokenCount { key: [5, 6], tokens }, Duration::MAX, NOW);
        limit.merge_count(TokenCount { key: [5, 6], tokens }, Duration::ZERO, Duration::ZERO);
    }
    limit.merge_debt(KeyDebt { key: [5, 6], owed: Duration::MAX }, NOW);
    limit.merge_debt(KeyDebt { key: WHOLE, owed: Duration::MAX }, NOW);
    let quick = self::limit(&settings("10/s", 10, Key::CLIENT));
    quick.merge_debt(KeyDebt { key: [5, 6], owed: Duration::MAX }, NOW);
    let owed = debts(&quick, NOW)[0].owed;
    assert!(owed <= Duration::from_secs(3_601), "{owed:?}");
}
