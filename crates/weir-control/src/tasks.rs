//! Tasks that may not end in silence.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

/// Before a task that ended by a panic begins again, at first. What it was about may be a primary that is
/// gone.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The pause doubles up to this: what goes wrong each time says so in the log no more often.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Tasks of the control side that ended by a mistake of Weir's own, since the start of the process (count).
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Counts a task that ended so and does not begin again by itself.
pub(crate) fn count_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Runs what `begin` gives until it ends by itself. Where it ends by a panic, says that of the `task`, and
/// begins again after a pause. Dropped, it takes the task with it.
pub(crate) async fn keep_on<F>(task: String, begin: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let task = &*task;
    run(&PANICS, begin, |count| async move {
        let pause = FIRST_PAUSE.saturating_mul(1 << (count - 1).min(16)).min(LONGEST_PAUSE);
        tracing::error!(task, again_in = ?pause, "a task ended by a panic: a mistake of Weir's own");
        tokio::time::sleep(pause).await;
    })
    .await;
}

/// As [`keep_on`], where a panic is another matter: awaits `pause`, which is told how many there were in this
/// run.
pub(crate) async fn keep_on_after<F, P>(begin: impl Fn() -> F, pause: impl Fn(u32) -> P)
where
    F: Future<Output = ()> + Send + 'static,
    P: Future<Output = ()>,
{
    run(&PANICS, begin, pause).await;
}

async fn run<F, P>(panics: &AtomicU64, begin: impl Fn() -> F, pause: impl Fn(u32) -> P)
where
    F: Future<Output = ()> + Send + 'static,
    P: Future<Output = ()>,
{
    let mut tasks = JoinSet::new();
    let mut count = 0u32;
    loop {
        tasks.spawn(begin());
        match tasks.join_next().await {
            Some(Err(error)) if error.is_panic() => {}
            _ => return,
        }
        panics.fetch_add(1, Ordering::Relaxed);
        count = count.saturating_add(1);
        pause(count).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_counted_and_begins_again_after_a_pause() {
        let (panics, pauses, begun) = (AtomicU64::new(0), AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
        let begin = || {
            let begun = begun.clone();
            async move { assert!(begun.fetch_add(1, Ordering::Relaxed) == 2, "it goes wrong twice") }
        };
        let pause = |count: u32| {
            pauses.fetch_add(u64::from(count), Ordering::Relaxed);
            std::future::ready(())
        };
        run(&panics, begin, pause).await;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!((of(&begun), of(&panics), of(&pauses)), (3, 2, 1 + 2));
    }
}
