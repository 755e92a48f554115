//! Tasks that may not end in silence.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};
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

/// Spawns what `begin` gives of where it `hears` of something, as [`keep_on`] runs it. What it has not heard
/// of when it ends by a panic, it hears of when it begins again.
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
