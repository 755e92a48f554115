//! Tests of the store through requests and responses.

mod order;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use weir_http::Scheme;

use super::{Lookup, Purge, Refused, Store, shard};
use crate::tests::{exchange_at, facts, request, response, seconds};
use crate::{Body, Coding, KeyBuffer, KeySource, Object, Rules, freshen, judge_response};

/// A request for a path of host `a` with these field lines, and its key.
struct Asking {
    head: weir_http::RequestHead,
    buffer: Vec<u8>,
    key: KeyBuffer,
}

fn asking(store: &Store, target: &str, lines: &str) -> Asking {
    let (head, buffer) = request(&format!("GET {target} HTTP/1.1\r\nhost: a\r\n{lines}"));
    let mut key = KeyBuffer::new();
    let source = KeySource {
        scope: b"app",
        scheme: Scheme::Http,
        authority: b"a",
        path: head.path(&buffer),
        query: head.query(&buffer),
        head: &head,
        buffer: &buffer,
        trusted: false,
    };
    key.build(&source, &Rules::default(), store.seed());
    Asking { head, buffer, key }
}

fn object(lines: &str, length: usize) -> Object {
    let (head, buffer) = response(&format!("HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\n{lines}"));
    let storing = judge_response(&facts(""), &head, &buffer, &Rules::default(), exchange_at(1000)).unwrap();
    storing.object(&head, &buffer, Body::from(Bytes::from(vec![b'x'; length]))).unwrap()
}

impl Store {
    fn look(&self, target: &str, lines: &str) -> Lookup {
        let mut asking = asking(self, target, lines);
        self.get(&mut asking.key, &asking.head, &asking.buffer)
    }

    fn has(&self, target: &str, lines: &str) -> bool {
        matches!(self.look(target, lines), Lookup::Hit(_))
    }

    fn keep(&self, target: &str, lines: &str, object: Object) -> Result<Arc<Object>, Refused> {
        let Asking { head, buffer, key } = asking(self, target, lines);
        self.insert(&key, &head, &buffer, object, self.purge_sequence())
    }

    /// The bytes that all shards hold together, counted anew.
    fn counted(&self) -> (u64, u64) {
        let mut count = 0;
        let bytes = self.shards.iter().map(|shard| {
            let mut shard = super::lock(shard);
            let mut at = Some(0);
            while let Some(from) = at {
                at = shard.visit(
                    from,
                    |_| true,
                    |_| {
                        count += 1;
                        false
                    },
                    &mut Vec::new(),
                );
            }
            shard.bytes() - shard::Shard::new(7).bytes()
        });
        (bytes.sum(), count)
    }
}

/// Numbers that look random and are the same each time (xorshift64*).
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

#[test]
fn what_was_kept_is_found_under_its_key_only() {
    let store = Store::new(1 << 20, 7);
    assert!(matches!(store.look("/x", ""), Lookup::Absent));
    let kept = store.keep("/x", "", object("", 10)).unwrap();
    match store.look("/x", "") {
        Lookup::Hit(found) => assert!(Arc::ptr_eq(&found, &kept)),
        other => panic!("{other:?}"),
    }
    assert!(!store.has("/x?", "") && !store.has("/y", ""));
    assert_eq!((store.objects(), kept.key().unwrap().path), (1, &b"/x"[..]));
}

#[test]
fn a_newer_response_takes_the_place_of_the_older_one() {
    let store = Store::new(1 << 20, 7);
    let old = store.keep("/x", "", object("", 1000)).unwrap();
    let before = store.bytes();
    let new = store.keep("/x", "", object("", 10)).unwrap();
    assert!(!old.is_current() && new.is_current());
    assert!(store.bytes() < before);
    assert_eq!(store.objects(), 1);
}

/// Threat E4.
#[test]
fn each_request_gets_the_variant_that_it_selects() {
    let store = Store::new(1 << 20, 7);
    let (gzip, brotli) = ("accept-encoding: gzip\r\n", "accept-encoding: br\r\n");
    let kept = store.keep("/x", gzip, object("vary: accept-encoding\r\n", 10)).unwrap();
    assert!(
        matches!(store.look("/x", "accept-encoding: GZip;q=1.0\r\n"), Lookup::Hit(found) if Arc::ptr_eq(&found, &kept))
    );
    assert!(matches!(store.look("/x", brotli), Lookup::VariantAbsent));
    assert!(matches!(store.look("/x", ""), Lookup::VariantAbsent));
    store.keep("/x", brotli, object("vary: Accept-Encoding\r\n", 10)).unwrap();
    assert!(store.has("/x", gzip) && store.has("/x", brotli));
    // With other names, nothing stored before is found; nor when the first names come back.
    store.keep("/x", gzip, object("vary: accept-encoding, x-a\r\n", 10)).unwrap();
    assert!(store.has("/x", gzip) && !store.has("/x", brotli));
    store.keep("/x", gzip, object("vary: accept-encoding\r\n", 10)).unwrap();
    assert!(!store.has("/x", brotli));
    // A response without `vary` answers all.
    store.keep("/x", "", object("", 10)).unwrap();
    assert!(store.has("/x", gzip) && store.has("/x", brotli));
}

#[test]
fn removing_a_key_removes_all_its_variants_for_good() {
    let store = Store::new(1 << 20, 7);
    for coding in ["gzip", "br"] {
        store
            .keep("/x", &format!("accept-encoding: {coding}\r\n"), object("vary: accept-encoding\r\n", 10))
            .unwrap();
    }
    assert!(store.remove(&asking(&store, "/x", "").key));
    assert!(matches!(store.look("/x", "accept-encoding: br\r\n"), Lookup::Absent));
    store.keep("/x", "accept-encoding: gzip\r\n", object("vary: accept-encoding\r\n", 10)).unwrap();
    assert!(matches!(store.look("/x", "accept-encoding: br\r\n"), Lookup::VariantAbsent));
    assert!(!store.remove(&asking(&store, "/y", "").key));
}

#[test]
fn a_fetch_that_began_before_a_removal_keeps_nothing() {
    let store = Store::new(1 << 20, 7);
    let Asking { head, buffer, key } = asking(&store, "/x", "");
    let insert = |began| store.insert(&key, &head, &buffer, object("surrogate-key: news\r\n", 10), began);
    let covering = [
        None,
        Some((Purge::All, false)),
        Some((Purge::Tag(b"news".as_slice().into()), false)),
        Some((Purge::Path { host: None, path: b"/x".as_slice().into() }, true)),
        Some((Purge::Prefix { host: None, prefix: b"/".as_slice().into() }, false)),
    ];
    for purge in covering {
        let began = store.purge_sequence();
        match purge {
            Some((purge, soft)) => _ = store.purge(&purge, soft, seconds(0)),
            None => _ = store.remove(&key),
        }
        assert_eq!(insert(began).err(), Some(Refused::Purged));
        assert!(insert(store.purge_sequence()).is_ok());
    }
    let began = store.purge_sequence();
    store.purge(&Purge::Tag(b"sport".as_slice().into()), false, seconds(0));
    store.remove(&asking(&store, "/y", "").key);
    assert!(insert(began).is_ok());
    // More removals than are remembered.
    for _ in 0..5000 {
        store.remove(&asking(&store, "/y", "").key);
    }
    assert_eq!(insert(began).err(), Some(Refused::Purged));
}

#[test]
fn purges_take_what_they_cover_and_leave_the_rest() {
    let targets = ["/x", "/x?a=1", "/x/y", "/z"];
    let after = |purge: Purge| {
        let store = Store::new(1 << 20, 7);
        for target in targets {
            store.keep(target, "", object(&format!("cache-tag: {target}, all\r\n"), 10)).unwrap();
        }
        let count = store.purge(&purge, false, seconds(0));
        let left: Vec<&str> = targets.into_iter().filter(|target| store.has(target, "")).collect();
        assert_eq!((count + left.len() as u64, store.objects()), (4, left.len() as u64));
        assert_eq!(store.purged(), count);
        left
    };
    let path =
        |host: Option<&[u8]>, path: &[u8]| Purge::Path { host: host.map(Into::into), path: path.into() };
    assert_eq!(after(path(None, b"/x")), ["/x/y", "/z"]);
    assert_eq!(after(path(Some(b"A"), b"/x")), ["/x/y", "/z"]);
    assert_eq!(after(path(Some(b"b"), b"/x")), targets);
    assert_eq!(after(Purge::Prefix { host: None, prefix: b"/x".as_slice().into() }), ["/z"]);
    assert_eq!(after(Purge::Tag(b"/x?a=1".as_slice().into())), ["/x", "/x/y", "/z"]);
    assert_eq!(after(Purge::Tag(b"all".as_slice().into())), Vec::<&str>::new());
    assert_eq!(after(Purge::All), Vec::<&str>::new());
}

#[test]
fn a_soft_purge_leaves_it_there_and_stale() {
    let store = Store::new(1 << 20, 7);
    let kept = store.keep("/x", "", object("", 10)).unwrap();
    assert_eq!(store.purge(&Purge::All, true, seconds(1005)), 1);
    assert!(store.has("/x", "") && kept.is_current());
    assert_eq!(kept.soft_purged_at(), Some(seconds(1005)));
}

#[test]
fn a_large_object_takes_the_place_of_many_small_ones_bit_by_bit() {
    let store = Store::new(64 << 20, 7);
    for number in 0..80_000 {
        store.keep(&format!("/{number}"), "", object("", 10)).unwrap();
    }
    let (before, full) = (store.evictions(), store.bytes());
    assert!(full > 60 << 20);
    store.keep("/large", "", object("", 12 << 20)).unwrap();
    assert!(store.evictions() - before <= 2048, "{}", store.evictions() - before);
    let mut pieces = 0;
    while store.settle() {
        pieces += 1;
        assert!(pieces < 1000);
    }
    assert!(pieces > 3 && store.bytes() <= store.budget() && store.has("/large", ""));
}

/// Objects with few paths, hosts and tags come and go in all ways, and purges of all kinds remove what a
/// plain list says they should.
#[test]
fn purges_find_what_they_mean_whatever_came_and_went_before() {
    let mut draws = Draws(11);
    let store = Store::new(1 << 20, 7);
    let mut known: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for round in 0..3000 {
        let target = format!("/{}/{}?{}", draws.below(3), draws.below(4), draws.below(12));
        let (path, _) = target.split_once('?').unwrap();
        match draws.below(40) {
            0 => {
                store.remove(&asking(&store, &target, "").key);
                known.remove(&target);
            }
            1 => {
                let count = store.purge(&path_purge(path), false, seconds(0));
                let before = known.len();
                known.retain(|other, _| other.split_once('?').unwrap().0 != path);
                assert_eq!(count as usize, before - known.len(), "round {round}");
            }
            2 => {
                let tag = draws.below(6).to_string();
                let count = store.purge(&Purge::Tag(tag.as_bytes().into()), false, seconds(0));
                let before = known.len();
                known.retain(|_, tags| !tags.contains(&tag));
                assert_eq!(count as usize, before - known.len(), "round {round}");
            }
            3 => {
                let prefix =
                    |host: &[u8]| Purge::Prefix { host: Some(host.into()), prefix: b"/1/".as_slice().into() };
                assert_eq!(store.purge(&prefix(b"b"), false, seconds(0)), 0);
                let count = store.purge(&prefix(b"A:80"), false, seconds(0))
                    + store.purge(&prefix(b"A"), false, seconds(0));
                let before = known.len();
                known.retain(|other, _| !other.starts_with("/1/"));
                assert_eq!(count as usize, before - known.len(), "round {round}");
            }
            _ => {
                let tags: Vec<String> = (0..draws.below(4)).map(|_| draws.below(6).to_string()).collect();
                store
                    .keep(&target, "", object(&format!("surrogate-key: {}\r\n", tags.join(" ")), 10))
                    .unwrap();
                known.insert(target.clone(), tags);
            }
        }
        assert_eq!(store.objects() as usize, known.len(), "round {round}");
    }
    assert!(known.keys().all(|target| store.has(target, "")));
}

fn path_purge(path: &str) -> Purge {
    Purge::Path { host: None, path: path.as_bytes().into() }
}

#[test]
fn what_is_still_read_after_it_had_to_go_is_known() {
    let store = Store::new(1 << 20, 7);
    let read = store.keep("/read", "", object("", 100_000)).unwrap();
    store.keep("/unread", "", object("", 100_000)).unwrap();
    store.purge(&Purge::All, false, seconds(0));
    assert_eq!((store.objects(), store.lingering_bytes()), (0, read.weight()));
    for number in 0..1000 {
        store.keep(&format!("/{number}"), "", object("", 10_000)).unwrap();
    }
    assert_eq!(store.lingering_bytes(), read.weight(), "what is evicted unread is gone");
    drop(read);
    assert_eq!(store.lingering_bytes(), 0);
}

#[test]
fn a_freshened_object_takes_the_place_of_the_one_it_was_made_of_or_none() {
    let store = Store::new(1 << 20, 7);
    let old = store.keep("/x", "", object("etag: \"a\"\r\n", 10)).unwrap();
    let freshened = || {
        let (head, buffer) = response("HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n");
        freshen(&old, &head, &buffer, &facts(""), &Rules::default(), exchange_at(1100)).unwrap().object
    };
    let new = store.freshened(&old, freshened(), store.purge_sequence()).unwrap();
    assert!(matches!(store.look("/x", ""), Lookup::Hit(found) if Arc::ptr_eq(&found, &new)));
    assert!(!old.is_current());
    assert_eq!(store.freshened(&old, freshened(), store.purge_sequence()).err(), Some(Refused::Outdated));
    assert!(!store.discard(&old) && store.discard(&new));
    assert_eq!(store.objects(), 0);
}

#[test]
fn another_coding_is_kept_once_and_counts() {
    let store = Store::new(1 << 20, 7);
    let kept = store.keep("/x", "", object("", 10_000)).unwrap();
    let (before, weight) = (store.bytes(), kept.weight());
    let body = || Body::from(Bytes::from(vec![b'z'; 5000]));
    assert!(kept.encoded(Coding::Gzip).is_none());
    assert!(store.encode(&kept, Coding::Gzip, body()));
    assert!(!store.encode(&kept, Coding::Gzip, body()));
    assert!(!store.encode(&kept, Coding::Identity, body()));
    assert_eq!(kept.encoded(Coding::Gzip).map(Body::len), Some(5000));
    assert!(kept.encoded(Coding::Brotli).is_none());
    assert_eq!(store.bytes() - before, kept.weight() - weight);
    assert!(kept.weight() - weight > 5000);
    store.discard(&kept);
    assert!(!store.encode(&kept, Coding::Brotli, body()));
    assert!(store.counted().0 < 2000);
}

#[test]
fn codings_that_were_made_stay_when_the_origin_confirms_the_object() {
    let store = Store::new(1 << 20, 7);
    let old = store.keep("/x", "", object("etag: \"a\"\r\n", 10_000)).unwrap();
    assert!(store.encode(&old, Coding::Gzip, Body::from(Bytes::from(vec![b'z'; 5000]))));
    let bytes = store.bytes();
    let (head, buffer) = response("HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n");
    let freshened =
        freshen(&old, &head, &buffer, &facts(""), &Rules::default(), exchange_at(1100)).unwrap().object;
    let new = store.freshened(&old, freshened, store.purge_sequence()).unwrap();
    assert_eq!(new.encoded(Coding::Gzip).map(Body::len), Some(5000));
    assert_eq!(store.counted().0, store.bytes());
    assert!(store.bytes().abs_diff(bytes) < 200, "{} of {bytes}", store.bytes());
}

#[test]
fn a_coding_is_made_by_one_at_a_time() {
    let kept = object("", 10);
    assert!(kept.claim(Coding::Gzip) && !kept.claim(Coding::Gzip) && kept.claim(Coding::Zstd));
    kept.give_back(Coding::Gzip);
    assert!(kept.claim(Coding::Gzip) && !kept.claim(Coding::Zstd));
}

#[test]
fn what_is_too_large_is_refused_and_sweeps_nothing_out() {
    let store = Store::new(1 << 20, 7);
    store.keep("/x", "", object("", 10)).unwrap();
    assert_eq!(store.keep("/y", "", object("", 300_000)).err(), Some(Refused::TooLarge));
    assert!(store.has("/x", ""));
}

#[test]
fn a_smaller_budget_holds_at_once() {
    let store = Store::new(8 << 20, 7);
    for number in 0..4000 {
        store.keep(&format!("/{number}"), "", object("", 1000)).unwrap();
    }
    assert!(store.bytes() > 6 << 20);
    store.resize(2 << 20);
    assert!(store.bytes() <= 2 << 20 && store.objects() > 500, "{} {}", store.bytes(), store.objects());
    assert_eq!(store.objects() + store.evictions(), 4000);
}

#[test]
fn the_books_balance_whatever_happens() {
    let store = Store::new(3 << 20, 7);
    let mut draws = Draws(1);
    for step in 0..20_000 {
        let target = format!("/{}", draws.below(3000));
        let lines = format!("x-a: {}\r\n", draws.below(3));
        match draws.below(40) {
            0 => _ = store.remove(&asking(&store, &target, &lines).key),
            1 => {
                if let Lookup::Hit(found) = store.look(&target, &lines) {
                    store.encode(&found, Coding::Zstd, Body::from(Bytes::from(vec![0; draws.below(5000)])));
                }
            }
            2 => {
                if let Lookup::Hit(found) = store.look(&target, &lines) {
                    store.discard(&found);
                }
            }
            3 if step % 10 == 0 => {
                store.purge(
                    &Purge::Prefix { host: None, prefix: target.as_bytes().into() },
                    draws.below(2) == 0,
                    seconds(1),
                );
            }
            4 => store.resize((2 + draws.below(3) as u64) << 20),
            _ => {
                let vary = if draws.below(2) == 0 { "vary: x-a\r\n" } else { "" };
                let bits = 4 + draws.below(12);
                let length = draws.below(1 << bits);
                drop(store.keep(&target, &lines, object(vary, length)));
            }
        }
        assert!(store.bytes() <= store.budget(), "step {step}");
    }
    assert_eq!(store.counted(), (store.bytes(), store.objects()));
    assert!(store.evictions() > 1000);
}

/// A trace of numbers in which smaller ones occur more often: the n-th in proportion to n^-exponent.
fn zipf(exponent: f64, numbers: usize, length: usize, seed: u64) -> Vec<u32> {
    let mut sums: Vec<f64> = Vec::with_capacity(numbers);
    let mut sum = 0.0;
    for number in 1..=numbers {
        sum += (number as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut draws = Draws(seed);
    let mut draw = || {
        let at = (draws.next() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        sums.partition_point(|sum| *sum < at).min(numbers - 1) as u32
    };
    (0..length).map(|_| draw()).collect()
}

/// The hits of an LRU cache in a trace of numbers, each with this weight.
fn least_recently_used(trace: &[u32], weight: u64, budget: u64) -> usize {
    let (mut when, mut order, mut hits) = (HashMap::new(), BTreeMap::new(), 0);
    for (now, number) in trace.iter().enumerate() {
        if let Some(before) = when.insert(*number, now) {
            hits += 1;
            order.remove(&before);
        }
        order.insert(now, *number);
        if order.len() as u64 * weight > budget
            && let Some((_, oldest)) = order.pop_first()
        {
            when.remove(&oldest);
        }
    }
    hits
}

/// The hits of the store in a trace.
fn found(store: &Store, trace: &[u32]) -> usize {
    let mut hits = 0;
    for number in trace {
        let target = format!("/{number}");
        let Asking { head, buffer, mut key } = asking(store, &target, "");
        match store.get(&mut key, &head, &buffer) {
            Lookup::Hit(_) => hits += 1,
            _ => drop(store.insert(&key, &head, &buffer, object("", 2000), store.purge_sequence())),
        }
    }
    hits
}

#[test]
fn it_finds_five_points_more_than_the_least_recently_used_would_leave() {
    let trace = zipf(0.9, 100_000, 300_000, 0x5eed);
    let budget = 16 << 20;
    let store = Store::new(budget, 7);
    let ours = found(&store, &trace);
    // The same number of objects of the same size, with as much memory for its own data.
    let least = least_recently_used(&trace, store.bytes() / store.objects(), budget);
    let percent = |hits: usize| hits as f64 * 100.0 / trace.len() as f64;
    println!("ours {:.2} %, least recently used {:.2} %", percent(ours), percent(least));
    assert!(
        percent(ours) >= percent(least) + 5.0,
        "ours {}, least recently used {}",
        percent(ours),
        percent(least)
    );
}

/// Threat E6.
#[test]
fn a_flood_of_what_comes_once_leaves_what_is_asked_for() {
    let store = Store::new(8 << 20, 7);
    let hot: Vec<String> = (0..1000).map(|number| format!("/hot/{number}")).collect();
    for _ in 0..3 {
        for target in &hot {
            if !store.has(target, "") {
                store.keep(target, "", object("", 2000)).unwrap();
            }
        }
    }
    // Ten times as many as fit.
    for number in 0..40_000 {
        store.keep(&format!("/flood/{number}"), "", object("", 2000)).unwrap();
    }
    let left = hot.iter().filter(|target| store.has(target, "")).count();
    assert_eq!(left, hot.len());
    assert!(store.evictions() > 35_000);
}

#[test]
fn no_lock_is_held_for_more_than_a_bounded_number_of_moves() {
    let mut shard = shard::Shard::new(7);
    let store = Store::new(64 << 20, 7);
    for number in 0..5000 {
        let Asking { key, .. } = asking(&store, &format!("/{number}"), "");
        let mut object = object("", 10);
        object.key = key.bytes().into();
        object.hash = key.hash();
        object.weigh();
        object.touch();
        shard.put(Arc::new(object));
    }
    let (mut before, mut rounds) = (5000, 0);
    while before > 0 {
        let mut evicted = Vec::new();
        assert!(shard.evict(u64::MAX, &mut evicted));
        assert!(evicted.len() <= shard::STEPS);
        before -= evicted.len();
        rounds += 1;
        assert!(rounds < 1000);
    }
    for number in 0..5000 {
        let Asking { key, .. } = asking(&store, &format!("/{number}"), "");
        let mut object = object("", 10);
        object.key = key.bytes().into();
        object.hash = key.hash();
        shard.put(Arc::new(object));
    }
    let (mut at, mut seen) = (Some(0), 0);
    while let Some(from) = at {
        let mut visited = 0;
        at = shard.visit(
            from,
            |_| true,
            |_| {
                visited += 1;
                true
            },
            &mut Vec::new(),
        );
        assert!(visited <= shard::VISITS);
        seen += visited;
    }
    assert_eq!(seen, 5000);
}

#[test]
#[allow(clippy::disallowed_methods, reason = "several threads are what is tested")]
fn threads_that_work_on_one_store_leave_it_whole() {
    let store = Store::new(2 << 20, 7);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                let mut draws = Draws(thread + 1);
                for _ in 0..4000 {
                    let target = format!("/{}", draws.below(2000));
                    if !store.has(&target, "") {
                        drop(store.keep(&target, "", object("cache-tag: a\r\n", draws.below(3000))));
                    }
                    if draws.below(500) == 0 {
                        store.purge(&Purge::Tag(b"a".as_slice().into()), draws.below(2) == 0, seconds(1));
                    }
                }
            });
        }
    });
    assert_eq!(store.counted(), (store.bytes(), store.objects()));
    assert!(store.bytes() <= store.budget());
}
