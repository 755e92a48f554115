//! The clients: each in a thread of its own, each checking every byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Failures;
use super::backends::{body_of, receipt};
use crate::dialogue::{Draws, Response, Wire};

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Threads that keep their connection for many requests.
    pub keeping: usize,
    /// Threads with a connection for each request.
    pub closing: usize,
    /// Threads that send a line over a TCP relay, a connection each time.
    pub relaying: usize,
    /// One request in this many is a POST; 0 for none.
    pub one_post_in: u64,
    /// Whether a POST may be answered 502 or 504 (its backend was killed) without that being a failure.
    pub posts_may_fail: bool,
    /// Seed of all draws.
    pub seed: u64,
}

/// A load in progress.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Part>>,
    begun: Instant,
}

#[derive(Debug)]
struct Shared {
    web: SocketAddr,
    relay: Option<SocketAddr>,
    traffic: Traffic,
    requests: u64,
    begun: AtomicU64,
    done: AtomicU64,
    posts: AtomicUsize,
    stop: AtomicBool,
    failures: Mutex<Failures>,
    /// POSTs answered 200, by number.
    answered: Mutex<Vec<usize>>,
}

#[derive(Debug, Default)]
struct Part {
    micros: Vec<u32>,
    posts_failed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct LoadReport {
    /// Requests (and relayed lines) that ended, well or not.
    pub done: u64,
    /// Failures.
    pub failures: Failures,
    /// POSTs that were answered 502 or 504 where that is allowed.
    pub posts_failed: u64,
    /// Numbers of the POSTs answered 200.
    pub answered_posts: Vec<usize>,
    /// How long it took.
    pub elapsed: Duration,
    /// Latencies, sorted, in microseconds.
    pub micros: Vec<u32>,
}

impl LoadReport {
    /// The latency that this share of the requests (0 to 1) did not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.micros.len().saturating_sub(1);
        let index = ((self.micros.len() as f64 * share) as usize).min(last);
        Duration::from_micros(u64::from(self.micros.get(index).copied().unwrap_or(0)))
    }
}

impl Load {
    /// Starts sending `requests` requests to `web`, and lines to `relay`.
    pub fn start(web: SocketAddr, relay: Option<SocketAddr>, requests: u64, traffic: Traffic) -> Load {
        let shared = Arc::new(Shared {
            web,
            relay,
            traffic,
            requests,
            begun: AtomicU64::new(0),
            done: AtomicU64::new(0),
            posts: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            failures: Mutex::default(),
            answered: Mutex::default(),
        });
        let kinds = [
            (traffic.keeping, keeping as fn(&Shared, &mut Part, u64)),
            (traffic.closing, closing),
            (if relay.is_some() { traffic.relaying } else { 0 }, relaying),
        ];
        let mut threads = Vec::new();
        for (count, client) in kinds {
            for _ in 0..count {
                let (shared, seed) = (shared.clone(), traffic.seed ^ (threads.len() as u64 + 1) << 40);
                threads.push(std::thread::spawn(move || {
                    let mut part = Part::default();
                    client(&shared, &mut part, seed);
                    part
                }));
            }
        }
        Load { shared, threads, begun: Instant::now() }
    }

    /// Requests that ended so far.
    pub fn done(&self) -> u64 {
        self.shared.done.load(Ordering::Relaxed)
    }

    /// Whether all requests were sent.
    pub fn finished(&self) -> bool {
        self.threads.iter().all(JoinHandle::is_finished)
    }

    /// Failures so far.
    pub fn failed(&self) -> u64 {
        self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner).count()
    }

    /// Sends no further requests.
    pub fn stop(&self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }

    /// Waits for the end.
    pub fn report(self) -> LoadReport {
        let mut report = LoadReport::default();
        for thread in self.threads {
            match thread.join() {
                Ok(mut part) => {
                    report.micros.append(&mut part.micros);
                    report.posts_failed += part.posts_failed;
                }
                Err(_) => report.failures.add("a client thread panicked".to_owned()),
            }
        }
        report.elapsed = self.begun.elapsed();
        report.micros.sort_unstable();
        report.done = self.shared.done.load(Ordering::Relaxed);
        let mut failures = self.shared.failures.lock().unwrap_or_else(PoisonError::into_inner);
        report.failures.merge(std::mem::take(&mut failures));
        report.answered_posts =
            std::mem::take(&mut self.shared.answered.lock().unwrap_or_else(PoisonError::into_inner));
        report
    }
}

impl Shared {
    /// Takes the right to send one more request.
    fn takes_one(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.begun.fetch_add(1, Ordering::Relaxed) < self.requests
    }

    fn ends(&self, part: &mut Part, begun: Instant, outcome: Result<(), String>) {
        self.done.fetch_add(1, Ordering::Relaxed);
        part.micros.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
        if let Err(what) = outcome {
            self.failures.lock().unwrap_or_else(PoisonError::into_inner).add(what);
            // A proxy that is down answers nothing quickly; do not turn that into a busy loop.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A request and what must come back.
struct Question {
    head: String,
    body: Vec<u8>,
    expected: Vec<u8>,
    post: Option<usize>,
}

impl Question {
    fn draw(shared: &Shared, draws: &mut Draws, close: bool) -> Question {
        let connection = if close { "connection: close\r\n" } else { "" };
        let length = match draws.below(100) {
            0..80 => draws.below(200),
            80..97 => draws.below(8_192),
            _ => draws.below(100_000),
        } as usize;
        let seed = draws.below(1 << 30);
        let one_in = shared.traffic.one_post_in;
        if one_in == 0 || draws.below(one_in) > 0 {
            let head = format!("GET /r/{seed}/{length} HTTP/1.1\r\nhost: storm.test\r\n{connection}\r\n");
            return Question { head, body: Vec::new(), expected: body_of(seed, length), post: None };
        }
        let number = shared.posts.fetch_add(1, Ordering::Relaxed);
        let content = body_of(seed, length);
        let expected = receipt(&content).into_bytes();
        let start = format!("POST /p/{number} HTTP/1.1\r\nhost: storm.test\r\n{connection}");
        if draws.below(4) > 0 {
            let head = format!("{start}content-length: {length}\r\n\r\n");
            return Question { head, body: content, expected, post: Some(number) };
        }
        let head = format!("{start}transfer-encoding: chunked\r\n\r\n");
        let mut body = Vec::with_capacity(length + 64);
        for piece in content.chunks(3001) {
            body.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            body.extend_from_slice(piece);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"0\r\n\r\n");
        Question { head, body, expected, post: Some(number) }
    }

    /// Sends it and checks the answer.
    fn ask(&self, shared: &Shared, part: &mut Part, wire: &mut Wire) -> Result<Response, String> {
        let line = self.head.lines().next().unwrap_or_default();
        let mut all = self.head.clone().into_bytes();
        all.extend_from_slice(&self.body);
        // A proxy may answer before it has read everything; the answer tells more than the broken pipe.
        let sent = wire.tries_to_send(&all);
        let response = match wire.tries_to_receive_response("GET") {
            Ok(response) => response,
            Err((broken, partial)) => {
                let part = partial.map_or("nothing".to_owned(), |partial| format!("{partial:?}"));
                return Err(format!("{line}: {broken}; sent: {sent:?}; got {part}; local {}", wire.local()));
            }
        };
        if self.post.is_some() && shared.traffic.posts_may_fail && matches!(response.status, 502 | 504) {
            part.posts_failed += 1;
            return Ok(response);
        }
        if response.status != 200 || response.body != self.expected {
            return Err(format!("{line}: expected {} bytes, got {response:?}", self.expected.len()));
        }
        if let Some(number) = self.post {
            shared.answered.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
        Ok(response)
    }
}

fn keeping(shared: &Shared, part: &mut Part, seed: u64) {
    let mut draws = Draws::seeded(seed);
    let mut kept: Option<Wire> = None;
    while shared.takes_one() {
        let question = Question::draw(shared, &mut draws, false);
        let begun = Instant::now();
        let wire = kept.take().map_or_else(|| Wire::try_connect(shared.web), Ok);
        let outcome = match wire {
            Ok(mut wire) => question.ask(shared, part, &mut wire).map(|response| {
                // Now and then a client goes on with a fresh connection.
                if !response.closes() && draws.below(500) > 0 {
                    kept = Some(wire);
                }
            }),
            Err(problem) => Err(format!("can't connect: {problem}")),
        };
        shared.ends(part, begun, outcome);
    }
}

fn closing(shared: &Shared, part: &mut Part, seed: u64) {
    let mut draws = Draws::seeded(seed);
    while shared.takes_one() {
        let question = Question::draw(shared, &mut draws, true);
        let begun = Instant::now();
        let outcome = match Wire::try_connect(shared.web) {
            Ok(mut wire) => question.ask(shared, part, &mut wire).map(drop),
            Err(problem) => Err(format!("can't connect: {problem}")),
        };
        shared.ends(part, begun, outcome);
    }
}

fn relaying(shared: &Shared, part: &mut Part, seed: u64) {
    let Some(address) = shared.relay else { return };
    let mut draws = Draws::seeded(seed);
    while shared.takes_one() {
        // The relay leads to the same backends, so a line is a request here too; but Weir passes it on unread.
        let question = Question::draw(shared, &mut draws, false);
        let begun = Instant::now();
        let outcome = match Wire::try_connect(address) {
            Ok(mut wire) => question.ask(shared, part, &mut wire).map(drop),
            Err(problem) => Err(format!("can't connect to the relay: {problem}")),
        };
        shared.ends(part, begun, outcome);
    }
}
