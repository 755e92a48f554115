//! Tasks whose panic must not go unnoticed.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::JoinSet;

/// First pause before a task that panicked is restarted. The task may be needed for a failover.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// The pause doubles up to this: a task that panics each time logs it no more often.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Tasks of the control side that panicked since the start of the process (count).
pub fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Counts a task that panicked and is not restarted.
pub(crate) fn count_panic() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// Runs the future from `begin` until it completes. If it panics, logs that with the name of the `task`, and
/// starts again after a pause. Dropping this also ends the task.
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

/// Spawns what `begin` makes with a receiver, as [`keep_on`] runs it. Messages that were not received when it
/// panics are received after the restart.
pub(crate) fn spawn_hearing<H, F>(
    task: &'static str,
    hears: H,
    begin: impl Fn(OwnedMutexGuard<H>) -> F + Clone + Send + Sync + 'static,
) where
    H: Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let hears = Arc::new(Mutex::new(hears));
    let begin = move || {
        let (hears, begin) = (hears.clone(), begin.clone());
        async move { begin(hears.lock_owned().await).await }
    };
    tokio::spawn(keep_on(task.to_owned(), begin));
}

/// As [`keep_on`], with another reaction to a panic: awaits `pause`, which gets the number of panics in this
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
    use tokio::sync::mpsc;

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

    #[tokio::test]
    async fn a_task_that_panics_hears_afterwards_of_what_was_said_meanwhile() {
        let (say, hears) = mpsc::unbounded_channel();
        let (done, mut outcome) = mpsc::unbounded_channel();
        for word in ["first", "panic", "last"] {
            say.send(word).unwrap();
        }
        spawn_hearing("words", hears, move |mut hears: OwnedMutexGuard<mpsc::UnboundedReceiver<_>>| {
            let done = done.clone();
            async move {
                while let Some(word) = hears.recv().await {
                    assert!(word != "panic", "it goes wrong once");
                    done.send(word).unwrap();
                }
            }
        });
        assert_eq!(outcome.recv().await, Some("first"));
        assert_eq!(outcome.recv().await, Some("last"));
    }
}
