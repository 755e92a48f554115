//! Tasks that may not end in silence.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

/// Runs what `begin` gives until it ends by itself. Where it ends by a panic, counts that in `panics`, awaits
/// `pause`, which is told how many there were in this run, and begins again. Dropped, it takes the task with
/// it.
pub async fn run<F, P>(panics: &AtomicU64, begin: impl Fn() -> F, pause: impl Fn(u32) -> P)
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
