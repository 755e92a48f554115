//! Honest traffic beside an attack.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_tests::dialogue::Weir;
use weir_tests::dialogue::http2::Outcome;

use super::connect;

/// Clients that ask one thing after the other and demand an answer to each.
pub struct Honest {
    stop: Arc<AtomicBool>,
    clients: Vec<std::thread::JoinHandle<Vec<Duration>>>,
}

impl Honest {
    /// Starts a few, each on a connection of its own.
    pub fn start(weir: &Weir) -> Honest {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..4).map(|_| {
            let mut client = connect(weir, b"");
            let stop = stop.clone();
            std::thread::spawn(move || {
                let mut times = Vec::new();
                for stream in (1..).step_by(2) {
                    let begun = Instant::now();
                    // Only the first answer of a connection spells out its status; the others are told by
                    // their content.
                    let outcome = client.asks(stream, "/honest");
                    let is_good =
                        matches!(&outcome, Outcome::Answered(0 | 200, content) if content == b"hello");
                    assert!(is_good, "honest request {stream}: {outcome:?}");
                    times.push(begun.elapsed());
                    if stop.load(Ordering::Relaxed) {
                        return times;
                    }
                }
                times
            })
        });
        Honest { stop: stop.clone(), clients: clients.collect() }
    }

    /// Ends them: how many were answered, and the 99th percentile of the times that took.
    pub fn ends(self) -> (usize, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let ended =
            self.clients.into_iter().map(|client| client.join().expect("every honest request succeeds"));
        let mut times: Vec<Duration> = ended.flatten().collect();
        times.sort_unstable();
        (times.len(), times[times.len() * 99 / 100])
    }
}

/// Runs `attack` with honest traffic beside it, every request of which must succeed; prints what it suffered.
pub fn beside<T>(name: &str, weir: &Weir, mut attack: impl FnMut() -> T) -> T {
    let calm = Honest::start(weir);
    std::thread::sleep(Duration::from_millis(300));
    let (calm_count, calm_p99) = calm.ends();
    let honest = Honest::start(weir);
    let begun = Instant::now();
    let result = attack();
    let took = begun.elapsed();
    let (count, p99) = honest.ends();
    println!(
        "{name}: closed after {took:?}; honest p99 {p99:?} of {count}, without {calm_p99:?} of {calm_count}"
    );
    result
}
