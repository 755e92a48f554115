//! Work that may block on a disk or a resolver, on a separate thread.
//!
//! The runtime's own threads for blocking work are not used: if the system can't start a thread, the runtime
//! panics, which would end the calling task. This is only a shortage, which may be over when the work is
//! tried again.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

/// Most threads at once: with a resolver that hangs, each question occupies one more.
const MOST_THREADS: usize = 512;
static THREADS: AtomicUsize = AtomicUsize::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);

/// How often work was not begun because there was no thread, since the start of the process (count).
pub fn refused() -> u64 {
    REFUSED.load(Ordering::Relaxed)
}

/// A place among the limited number of threads.
struct ThreadPlace(&'static AtomicUsize);

impl ThreadPlace {
    fn take(threads: &'static AtomicUsize, most: usize) -> io::Result<ThreadPlace> {
        let more = |count: usize| (count < most).then(|| count + 1);
        match threads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(ThreadPlace(threads)),
            Err(_) => Err(io::Error::other(format!("{most} threads wait for a disk or a resolver already"))),
        }
    }
}

impl Drop for ThreadPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs `work`, and waits for its result. Once begun it runs to the end, even if nobody waits any more.
///
/// # Errors
/// No thread could be started, the limit is reached, or the work has panicked.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, outcome) = oneshot::channel();
    let work = move || {
        // The task that waited may have ended.
        drop(done.send(work()));
    };
    begin(work).inspect_err(|_| _ = REFUSED.fetch_add(1, Ordering::Relaxed))?;
    outcome.await.map_err(|_| io::Error::other("it panicked"))
}

/// Longest time to read what a config names, on a busy machine with thousands of certificates too.
const LONGEST_READ: Duration = Duration::from_secs(60);

/// Reads the files of a config on a separate thread: they may be on a disk that hangs, or behind a network
/// that is down. If there is no thread, reads them at once, since a shortage of threads is no reason to
/// refuse a reload.
///
/// # Errors
/// It took too long, or panicked.
pub(crate) async fn reading<T: Send + 'static>(
    read: impl Fn() -> T + Send + Sync + 'static,
) -> io::Result<T> {
    let read = Arc::new(read);
    let (done, outcome) = oneshot::channel();
    let on_thread = {
        let read = read.clone();
        move || drop(done.send(read()))
    };
    if begin(on_thread).is_err() {
        return Ok(read());
    }
    match tokio::time::timeout(LONGEST_READ, outcome).await {
        Ok(outcome) => outcome.map_err(|_| io::Error::other("reading the files of the config panicked")),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!(
                "not all files of the config could be read within {LONGEST_READ:?}: a disk, or a server of \
                 files, does not answer"
            ),
        )),
    }
}

fn begin(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let place = ThreadPlace::take(&THREADS, MOST_THREADS)?;
    let on_thread = move || {
        let _place = place;
        work();
    };
    let thread = std::thread::Builder::new().name("weir-blocking".to_owned());
    let started = thread.spawn(on_thread).map(drop);
    started.map_err(|error| io::Error::new(error.kind(), format!("no thread could be started: {error}")))
}

/// The addresses that the system has for a host and port.
///
/// # Errors
/// It has none, or could not be asked.
pub(crate) async fn addresses(
    of: impl ToSocketAddrs<Iter = std::vec::IntoIter<SocketAddr>> + Send + 'static,
) -> io::Result<Vec<SocketAddr>> {
    blocking(move || of.to_socket_addrs().map(Vec::from_iter)).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_threads_than_may_be_and_one_that_ends_makes_room() {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        let take = || ThreadPlace::take(&THREADS, 2);
        let first = take().unwrap();
        let _second = take().unwrap();
        let refused = take().err().map(|error| error.to_string());
        assert_eq!(refused.as_deref(), Some("2 threads wait for a disk or a resolver already"));
        drop(first);
        assert!(take().is_ok());
    }

    #[tokio::test]
    async fn what_comes_of_the_work_is_given_and_a_panic_in_it_is_an_error() {
        assert_eq!(blocking(|| 7).await.unwrap(), 7);
        let error = blocking(|| {
            if true {
                panic!("on purpose")
            }
        })
        .await
        .unwrap_err();
        assert_eq!(error.to_string(), "it panicked");
        let found = addresses(("127.0.0.1".to_owned(), 80)).await.unwrap();
        assert_eq!(found, ["127.0.0.1:80".parse().unwrap()]);
    }
}
