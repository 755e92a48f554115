//! The thread on which certificates are ordered. Their store may be on a disk or behind a network that hangs,
//! for as long as it likes, and probes, reloads and the admin API must not wait for it.

use std::future::Future;
use std::io;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::lock;

/// How long the end of the process waits for claims and proofs to be removed from the stores.
const LEAVE: Duration = Duration::from_secs(2);

/// The thread, which is started for the first order. When this is dropped, so are its tasks.
#[derive(Default)]
pub(super) struct OrderThread(Mutex<Option<Started>>);

struct Started {
    handle: Handle,
    /// The thread ends when this is dropped.
    end: oneshot::Sender<()>,
    ended: mpsc::Receiver<()>,
}

impl OrderThread {
    /// Runs a task on the thread. Must be called on the control runtime, which runs the task if no thread can
    /// be started.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let mut started = lock(&self.0);
        if started.is_none() {
            match start() {
                Ok(new) => *started = Some(new),
                Err(error) => tracing::error!(
                    %error,
                    "no thread to order certificates on: a store that hangs holds up everything but traffic"
                ),
            }
        }
        match &*started {
            Some(started) => started.handle.spawn(task),
            None => tokio::spawn(task),
        }
    }
}

impl Drop for OrderThread {
    fn drop(&mut self) {
        if let Some(Started { end, ended, .. }) = lock(&self.0).take() {
            drop(end);
            let _ = ended.recv_timeout(LEAVE);
        }
    }
}

fn start() -> io::Result<Started> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (end, until) = oneshot::channel::<()>();
    let (alive, ended) = mpsc::channel::<()>();
    std::thread::Builder::new().name("weir-orders".to_owned()).spawn(move || {
        let _ = runtime.block_on(until);
        drop(runtime);
        drop(alive);
    })?;
    Ok(Started { handle, end, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_blocks_holds_up_nobody_else_and_is_not_waited_for_without_end() {
        let thread = OrderThread::default();
        let (sender, receiver) = mpsc::channel::<()>();
        let hangs = thread.spawn(async move {
            let _ = receiver.recv();
        });
        let other = tokio::spawn(async { 7 });
        assert_eq!((other.await.unwrap(), hangs.is_finished()), (7, false));
        drop(thread);
        drop(sender);
    }

    #[tokio::test]
    async fn what_tasks_hold_is_given_back_when_the_thread_ends() {
        let thread = OrderThread::default();
        let (held, released) = mpsc::channel::<()>();
        let task = thread.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        drop(thread);
        assert!(released.recv().is_err() && task.await.is_err());
    }
}
