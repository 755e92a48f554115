//! Notes when a process of the soak was ready to run and the machine had no processor for it: timers run out
//! then, and rightly so.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::traffic::Shared;

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Shortest wait of a thread between two looks that counts: an answer takes several threads, and the shortest
/// timers of the config are of a second.
const SHORTEST_WAIT: Duration = Duration::from_millis(250);
/// How the threads of this process are named that clients and their backends run in.
const OWN_THREADS: [&str; 2] = ["soak", "tokio"];

/// Looks at all threads that the soak needs, until it is over.
pub(super) fn watches(shared: Arc<Shared>) {
    std::thread::spawn(move || {
        let mut waited: HashMap<(u32, u32), Duration> = HashMap::new();
        let mut last = Instant::now();
        while Arc::strong_count(&shared) > 1 {
            std::thread::sleep(LOOK_EVERY);
            let now = Instant::now();
            let threads = threads_of(&shared.processes());
            let longest = threads
                .iter()
                .filter_map(|(thread, wait)| wait.checked_sub(*waited.get(thread)?))
                .max()
                .unwrap_or_default();
            if longest >= SHORTEST_WAIT {
                // A wait is counted when it ends.
                let from = now.checked_sub(longest).unwrap_or(last).min(last);
                shared.is_stalled(from, now);
            }
            waited = threads;
            last = now;
        }
    });
}

/// How long each thread has waited for a processor so far.
fn threads_of(processes: &[u32]) -> HashMap<(u32, u32), Duration> {
    let own = std::process::id();
    let mut threads = HashMap::new();
    for process in processes.iter().copied().chain([own]) {
        let entries = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for entry in entries {
            let name = || fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if process == own && !OWN_THREADS.iter().any(|prefix| name().starts_with(prefix)) {
                continue;
            }
            let thread = entry.file_name().to_string_lossy().parse().unwrap_or(0);
            if let Some(wait) = wait_of(&entry) {
                threads.insert((process, thread), wait);
            }
        }
    }
    threads
}

/// The second number in `schedstat` (Documentation/scheduler/sched-stats.rst): nanoseconds spent waiting on a
/// run queue.
fn wait_of(thread: &fs::DirEntry) -> Option<Duration> {
    let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
    text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
}
