//! How the store's books compare with what the kernel says, and how long its longest calls take:
//! `cargo run --release --example memory`.
//!
//! A million small objects in 1 GiB, more than fit, several of each size; then purges of all kinds. Prints
//! one line a step. Calls are timed by the clock and by the processor time of the thread: on a machine that
//! does something else the first says how long others kept it waiting.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "this measures")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use weir_cache::{
    Body, Exchange, KeyBuffer, KeySource, Lookup, Purge, RequestFacts, Rules, Store, Times, judge_response,
};
use weir_http::{Limits, Method, RequestHead, ResponseHead, Scheme, parse_request, parse_response};

/// The allocator that Weir uses.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BUDGET: u64 = 1 << 30;
const OBJECTS: u64 = 1_000_000;
/// Largest piece of a body, bytes.
const PIECE: usize = 64 << 10;

/// Processor time of this thread.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The duration of a call.
#[derive(Clone, Copy, Default)]
struct Took {
    wall: Duration,
    processor: Duration,
}

impl Took {
    fn of<T>(call: impl FnOnce() -> T) -> (T, Took) {
        let (began, processor) = (Instant::now(), processor_time());
        let result = call();
        let took = Took { processor: processor_time().saturating_sub(processor), wall: began.elapsed() };
        (result, took)
    }

    fn max(self, other: Took) -> Took {
        Took { wall: self.wall.max(other.wall), processor: self.processor.max(other.processor) }
    }
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib =
        line.and_then(|line| line.split_whitespace().nth(1)).and_then(|number| number.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// A request for a number, and its key.
struct Asking {
    head: RequestHead,
    text: Vec<u8>,
    key: KeyBuffer,
}

impl Asking {
    fn of(&mut self, store: &Store, number: u64) {
        self.text.clear();
        self.text.extend_from_slice(
            format!("GET /item/{number} HTTP/1.1\r\nhost: shop.example\r\n\r\n").as_bytes(),
        );
        self.head.clear();
        parse_request(&self.text, &Limits::default(), &mut self.head).expect("a request");
        let source = KeySource {
            scope: b"app",
            scheme: Scheme::Http,
            authority: b"shop.example",
            path: self.head.path(&self.text),
            query: None,
            head: &self.head,
            buffer: &self.text,
            trusted: false,
        };
        self.key.build(&source, &Rules::default(), store.seed());
    }
}

/// Puts a response with content of `length` bytes in; what the store took for it.
fn insert(store: &Store, asking: &Asking, number: u64, length: usize) -> Took {
    let text = format!(
        "HTTP/1.1 200 OK\r\nserver: origin\r\ndate: Sun, 22 Nov 2026 00:00:00 GMT\r\ncontent-type: text/html; charset=utf-8\r\n\
         cache-control: max-age=3600\r\netag: \"{number:016x}\"\r\nsurrogate-key: shop item-{number}\r\ncontent-length: {length}\r\n\r\n"
    );
    let mut head = ResponseHead::new();
    parse_response(text.as_bytes(), &Limits::default(), Method::Get, &mut head).expect("a response");
    let exchange = Exchange {
        asked_at: Duration::ZERO,
        times: Times { now: Duration::ZERO, wall_seconds: 1_795_305_600 },
    };
    let facts = RequestFacts::default();
    let storing = judge_response(&facts, &head, text.as_bytes(), &Rules::default(), exchange).expect("kept");
    // In pieces, as it comes from a backend.
    let piece = |length: usize| Bytes::from(vec![b'x'; length].into_boxed_slice());
    let pieces = (0..length).step_by(PIECE).map(|start| piece(PIECE.min(length - start)));
    let body = Body::new(pieces.collect());
    let object = storing.object(&head, text.as_bytes(), body).expect("kept");
    let insert = || store.insert(&asking.key, &asking.head, &asking.text, object, store.purge_sequence());
    let mut longest = Took::of(|| drop(insert())).1;
    loop {
        let (has_more, took) = Took::of(|| store.settle());
        longest = longest.max(took);
        if !has_more {
            return longest;
        }
    }
}

fn report(what: &str, store: &Store, idle: u64, longest: Took, all: Took) {
    let (books, kernel) = (store.bytes(), resident().saturating_sub(idle));
    println!(
        "{what:<38} objects {:>8}  books {:>6.1} MiB  kernel {:>6.1} MiB ({:+.1} % of budget)  longest call {:>8.1?} (processor {:>8.1?})  all {:>7.1?}",
        store.objects(),
        books as f64 / 1048576.0,
        kernel as f64 / 1048576.0,
        (kernel as f64 - BUDGET as f64) * 100.0 / BUDGET as f64,
        longest.wall,
        longest.processor,
        all.processor,
    );
}

fn main() {
    // As Weir has it (docs/decisions/0017): clearing a huge page is a pause that the cache does not make.
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        println!("with huge pages, for they could not be refused: {error}");
    }
    let idle = resident();
    let store = Store::new(BUDGET, 0x5eed);
    let mut asking = Asking { head: RequestHead::new(), text: Vec::new(), key: KeyBuffer::new() };
    let fill = |asking: &mut Asking, from: u64, to: u64, length: fn(u64) -> usize| {
        let mut longest = Took::default();
        let ((), all) = Took::of(|| {
            for number in from..to {
                asking.of(&store, number);
                longest = longest.max(insert(&store, asking, number, length(number)));
            }
        });
        (longest, all)
    };
    let (longest, took) = fill(&mut asking, 0, OBJECTS, |number| 13 + (number % 64) as usize);
    report("1,000,000 of 13 to 76 bytes", &store, idle, longest, took);
    println!(
        "{:.0} bytes an object, {} objects evicted",
        store.bytes() as f64 / store.objects() as f64,
        store.evictions()
    );
    let (longest, took) = fill(&mut asking, OBJECTS, 2 * OBJECTS, |number| 13 + (number % 64) as usize);
    report("1,000,000 more", &store, idle, longest, took);
    let (longest, took) =
        fill(&mut asking, 2 * OBJECTS, 3 * OBJECTS, |number| (number * 7919 % 8000) as usize);
    report("1,000,000 more of up to 8 kB", &store, idle, longest, took);
    let (longest, took) = fill(&mut asking, 4 * OBJECTS, 4 * OBJECTS + 200, |_| 16 << 20);
    report("200 of 16 MiB", &store, idle, longest, took);
    // The allocator gives back what has been free for a second, when it is called.
    std::thread::sleep(Duration::from_secs(1));
    let (longest, took) = fill(&mut asking, 4 * OBJECTS + 200, 4 * OBJECTS + 260, |_| 16 << 20);
    report("60 more of 16 MiB, a second later", &store, idle, longest, took);
    let (longest, took) = fill(&mut asking, 5 * OBJECTS, 6 * OBJECTS, |number| 13 + (number % 64) as usize);
    report("1,000,000 of 13 to 76 bytes again", &store, idle, longest, took);
    for (what, purge) in [
        ("purge of one path", Purge::Path { host: None, path: b"/item/5999999".as_slice().into() }),
        ("purge of one tag", Purge::Tag(b"item-5999998".as_slice().into())),
        (
            "purge of nothing of another host",
            Purge::Prefix { host: Some(b"b".as_slice().into()), prefix: b"/".as_slice().into() },
        ),
        ("purge of a prefix", Purge::Prefix { host: None, prefix: b"/item/59".as_slice().into() }),
        ("purge of all", Purge::All),
    ] {
        let (count, took) = Took::of(|| store.purge(&purge, false, Duration::ZERO));
        report(&format!("{what}: {count}"), &store, idle, took, took);
    }
    asking.of(&store, 1);
    assert!(matches!(store.get(&mut asking.key, &asking.head, &asking.text), Lookup::Absent));
}
