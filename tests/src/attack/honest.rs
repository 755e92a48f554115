//! Honest clients: each sends its requests on schedule, however long the one before took, and requires a
//! correct answer.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::scene::Scene;
use crate::dialogue::http2::{Http2, Outcome};
use crate::dialogue::http3::{self, Http3};
use crate::dialogue::{PATIENCE, Wire, quic};

/// Clients, each with a connection of its own.
const CLIENTS: u64 = 4;
/// A request over QUIC is sent again after this time without an answer: packets are lost if a queue is full.
const RESEND: Duration = Duration::from_millis(50);

/// How long answers took, from when their requests were due; sorted.
#[derive(Clone, Debug, Default)]
pub struct Latencies(Vec<Duration>);

impl Latencies {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The time that this share of the answers did not exceed.
    pub fn quantile(&self, share: f64) -> Duration {
        let last = self.0.len().saturating_sub(1);
        self.0.get((last as f64 * share) as usize).copied().unwrap_or_default()
    }
}

/// Honest clients at work.
pub struct Honest {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Duration>>>,
}

impl Honest {
    /// Starts them, with `rate` requests per second in total.
    pub fn start(scene: &Scene, is_http3: bool, rate: u64) -> Honest {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..CLIENTS).map(|_| {
            let (address, authority, stop) = (scene.address(is_http3), scene.authority(), stop.clone());
            let interval = Duration::from_secs(CLIENTS) / rate.max(1) as u32;
            std::thread::spawn(move || match is_http3 {
                false => over_http2(address, interval, &stop),
                true => over_http3(address, authority, interval, &stop),
            })
        });
        Honest { stop: stop.clone(), clients: clients.collect() }
    }

    /// Lets them run for `time` and ends them. Panics if a request was not answered correctly.
    pub fn ends_after(self, time: Duration) -> Latencies {
        std::thread::sleep(time);
        self.stop.store(true, Ordering::Relaxed);
        let ended =
            self.clients.into_iter().map(|client| client.join().expect("every honest request is answered"));
        let mut all: Vec<Duration> = ended.flatten().collect();
        all.sort_unstable();
        Latencies(all)
    }
}

/// Calls `ask` with the number of each request at its time.
fn paced(interval: Duration, stop: &AtomicBool, mut ask: impl FnMut(u64)) -> Vec<Duration> {
    let begun = Instant::now();
    let mut took = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let due = begun + interval * number as u32;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        ask(number);
        took.push(due.elapsed());
    }
    took
}

fn over_http2(address: SocketAddr, interval: Duration, stop: &AtomicBool) -> Vec<Duration> {
    let mut client = Http2::client(Wire::connect(address), b"");
    paced(interval, stop, |number| {
        // Only the first answer has its status in a form that this client reads; the others are checked by
        // their content.
        let outcome = client.asks(2 * number as u32 + 1, "/honest");
        let is_good = matches!(&outcome, Outcome::Answered(0 | 200, content) if content == b"hello");
        assert!(is_good, "honest request {number}: {outcome:?}");
    })
}

fn over_http3(
    address: SocketAddr,
    authority: PathBuf,
    interval: Duration,
    stop: &AtomicBool,
) -> Vec<Duration> {
    let trust = quic::trusting(&authority);
    let mut client = Http3::connect(address, "shop.example", &trust);
    let request = http3::headers(&http3::request("GET", "/honest"));
    paced(interval, stop, |number| {
        let stream = 4 * number;
        let deadline = Instant::now() + PATIENCE;
        client.requests(stream, &request);
        let mut again = Instant::now() + RESEND;
        while !client.quic.stream(stream).is_over() {
            assert!(Instant::now() < deadline, "honest request {number}: no answer");
            if client.quic.receives_datagram(again).is_err() {
                client.requests(stream, &request);
                again = Instant::now() + RESEND;
            }
        }
        let outcome = client.outcome_of(stream);
        assert_eq!(outcome, http3::Outcome::Answered(200, b"hello".to_vec()), "honest request {number}");
        client.quic.forgets(stream);
    })
}
