//! The clients: each in a thread of its own, each checking every byte.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Failures;
use super::backends::{body_of, receipt};
use super::multiplexed::multiplexed;
use crate::dialogue::{Authority, Draws, Response, Wire};
use crate::versions::Front;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Threads that keep their connection for many requests.
    pub keeping: usize,
    /// Threads with a connection for each request.
    pub closing: usize,
    /// Threads that send a line over a TCP relay, a connection each time.
    pub relaying: usize,
    /// Connections of HTTP/2 over TLS, each with some requests at once.
    pub http2: usize,
    /// Connections of HTTP/3, likewise.
    pub http3: usize,
    /// One request in this many is a POST; 0 for none.
    pub one_post_in: u64,
    /// Whether a POST may be answered by 502 or 504 (its backend was killed) without that counting as a
    /// failure.
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

/// Where it is sent.
#[derive(Clone, Debug)]
pub struct Targets {
    /// HTTP/1.1.
    pub web: SocketAddr,
    /// A TCP relay to the same backends.
    pub relay: Option<SocketAddr>,
    /// HTTP/2 and HTTP/3 over TLS, as `storm.test` by this authority.
    pub secure: Option<(SocketAddr, Arc<Authority>)>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) targets: Targets,
    pub(super) traffic: Traffic,
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
pub(super) struct Part {
    pub(super) micros: Vec<u32>,
    pub(super) posts_failed: u64,
    /// Requests sent again because the server had promised that it did nothing with them.
    pub(super) repeated: u64,
}

/// The results.
#[derive(Debug, Default)]
pub struct LoadReport {
    /// Requests (and relayed lines) that ended, well or not.
    pub done: u64,
    /// Failures.
    pub failures: Failures,
    /// POSTs that were answered 502 or 504 where that is allowed.
    pub posts_failed: u64,
    /// Requests that were sent again because the server had promised that it did nothing with them.
    pub repeated: u64,
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
    /// Starts sending `requests` requests, relayed lines among them.
    pub fn start(targets: Targets, requests: u64, traffic: Traffic) -> Load {
        let (has_relay, has_secure) = (targets.relay.is_some(), targets.secure.is_some());
        let shared = Arc::new(Shared {
            targets,
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
            (if has_relay { traffic.relaying } else { 0 }, relaying),
            (if has_secure { traffic.http2 } else { 0 }, http2),
            (if has_secure { traffic.http3 } else { 0 }, http3),
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
                    report.repeated += part.repeated;
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

/// Pause after a failure, so that failing fast against a proxy that is down is not a busy loop.
pub(super) const AFTER_A_FAILURE: Duration = Duration::from_millis(5);

impl Shared {
    /// Takes the right to send one more request.
    pub(super) fn takes_one(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.begun.fetch_add(1, Ordering::Relaxed) < self.requests
    }

    /// Counts a request that has ended; pauses after a failure.
    fn ends(&self, part: &mut Part, begun: Instant, outcome: Result<(), String>) {
        if self.notes(part, begun, outcome) {
            std::thread::sleep(AFTER_A_FAILURE);
        }
    }

    /// Counts a request that has ended; returns whether it failed.
    pub(super) fn notes(&self, part: &mut Part, begun: Instant, outcome: Result<(), String>) -> bool {
        self.done.fetch_add(1, Ordering::Relaxed);
        part.micros.push(u32::try_from(begun.elapsed().as_micros()).unwrap_or(u32::MAX));
        let Err(what) = outcome else { return false };
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).add(what);
        true
    }
}

/// A request and the required answer.
pub(super) struct Question {
    pub(super) path: String,
    /// What is posted; `None` for a GET.
    pub(super) content: Option<Vec<u8>>,
    /// Whether the length of the content is declared before it.
    pub(super) is_declared: bool,
    expected: Vec<u8>,
    post: Option<usize>,
}

impl Question {
    pub(super) fn draw(shared: &Shared, draws: &mut Draws) -> Question {
        let length = match draws.below(100) {
            0..80 => draws.below(200),
            80..97 => draws.below(8_192),
            _ => draws.below(100_000),
        } as usize;
        let seed = draws.below(1 << 30);
        let one_in = shared.traffic.one_post_in;
        if one_in == 0 || draws.below(one_in) > 0 {
            let (path, expected) = (format!("/r/{seed}/{length}"), body_of(seed, length));
            return Question { path, content: None, is_declared: true, expected, post: None };
        }
        let number = shared.posts.fetch_add(1, Ordering::Relaxed);
        let content = body_of(seed, length);
        Question {
            path: format!("/p/{number}"),
            expected: receipt(&content).into_bytes(),
            content: Some(content),
            is_declared: draws.below(4) > 0,
            post: Some(number),
        }
    }

    pub(super) fn method(&self) -> &'static str {
        if self.content.is_some() { "POST" } else { "GET" }
    }

    /// All of it in HTTP/1.1.
    fn text(&self, close: bool) -> Vec<u8> {
        let connection = if close { "connection: close\r\n" } else { "" };
        let start = format!("{} {} HTTP/1.1\r\nhost: storm.test\r\n{connection}", self.method(), self.path);
        let Some(content) = &self.content else { return format!("{start}\r\n").into_bytes() };
        if self.is_declared {
            let head = format!("{start}content-length: {}\r\n\r\n", content.len());
            return [head.as_bytes(), content].concat();
        }
        let mut text = format!("{start}transfer-encoding: chunked\r\n\r\n").into_bytes();
        for piece in content.chunks(3001) {
            text.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            text.extend_from_slice(piece);
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(b"0\r\n\r\n");
        text
    }

    /// Sends it and checks the answer.
    fn ask(
        &self,
        shared: &Shared,
        part: &mut Part,
        wire: &mut Wire,
        close: bool,
    ) -> Result<Response, String> {
        // A proxy may answer before it has read everything; the answer says more than the broken pipe.
        let sent = wire.tries_to_send(self.text(close));
        let response = match wire.tries_to_receive_response("GET") {
            Ok(response) => response,
            Err((broken, partial)) => {
                let part = partial.map_or("nothing".to_owned(), |partial| format!("{partial:?}"));
                let asked = (self.method(), &self.path);
                return Err(format!(
                    "{asked:?}: {broken}; sent: {sent:?}; got {part}; local {}",
                    wire.local()
                ));
            }
        };
        self.judge(shared, part, response.status, &response.body)
            .map_err(|what| format!("{what}: {response:?}"))?;
        Ok(response)
    }

    /// Fails unless this is the right answer.
    pub(super) fn judge(
        &self,
        shared: &Shared,
        part: &mut Part,
        status: u16,
        content: &[u8],
    ) -> Result<(), String> {
        if self.post.is_some() && shared.traffic.posts_may_fail && matches!(status, 502 | 504) {
            part.posts_failed += 1;
            return Ok(());
        }
        if status != 200 || content != self.expected {
            let (method, path, expected) = (self.method(), &self.path, self.expected.len());
            return Err(format!("{method} {path}: {status} with {} bytes for {expected}", content.len()));
        }
        if let Some(number) = self.post {
            shared.answered.lock().unwrap_or_else(PoisonError::into_inner).push(number);
        }
        Ok(())
    }
}

fn http2(shared: &Shared, part: &mut Part, seed: u64) {
    multiplexed(shared, part, seed, Front::Http2Tls);
}

fn http3(shared: &Shared, part: &mut Part, seed: u64) {
    multiplexed(shared, part, seed, Front::Http3);
}

fn keeping(shared: &Shared, part: &mut Part, seed: u64) {
    let mut draws = Draws::seeded(seed);
    let mut kept: Option<Wire> = None;
    while shared.takes_one() {
        let question = Question::draw(shared, &mut draws);
        let begun = Instant::now();
        let wire = kept.take().map_or_else(|| Wire::try_connect(shared.targets.web), Ok);
        let outcome = match wire {
            Ok(mut wire) => question.ask(shared, part, &mut wire, false).map(|response| {
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
        let question = Question::draw(shared, &mut draws);
        let begun = Instant::now();
        let outcome = match Wire::try_connect(shared.targets.web) {
            Ok(mut wire) => question.ask(shared, part, &mut wire, true).map(drop),
            Err(problem) => Err(format!("can't connect: {problem}")),
        };
        shared.ends(part, begun, outcome);
    }
}

fn relaying(shared: &Shared, part: &mut Part, seed: u64) {
    let Some(address) = shared.targets.relay else { return };
    let mut draws = Draws::seeded(seed);
    while shared.takes_one() {
        // The relay leads to the same backends, so a line is a request here too; but Weir passes it on
        // unread.
        let question = Question::draw(shared, &mut draws);
        let begun = Instant::now();
        let outcome = match Wire::try_connect(address) {
            Ok(mut wire) => question.ask(shared, part, &mut wire, false).map(drop),
            Err(problem) => Err(format!("can't connect to the relay: {problem}")),
        };
        shared.ends(part, begun, outcome);
    }
}
