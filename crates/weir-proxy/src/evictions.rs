//! Makes room for new connections at a listener that has reached its limit of connections, or at a backend
//! that has reached its limit of open ones: those that have been idle longest are closed.
//!
//! Sessions and kept connections live on the workers that accepted or opened them, so every worker is asked
//! to close the one that has been idle longest there. The one idle longest of all is among them; the others
//! that are closed make room for the next newcomers.

use std::pin::pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use weir_state::Listener;
use weir_state::connections::ConnectionCount;

use crate::worker::Worker;

/// A session that was asked to close does so when its worker next runs it.
const PATIENCE: Duration = Duration::from_millis(250);
/// An idle session may become active just when it is asked, and another newcomer may take the freed room
/// first.
const ATTEMPTS: u32 = 3;

/// Counts a new connection to a backend that has `most` open, for which an idle one is closed; `false`, at
/// once, if none is idle.
pub async fn of_connection(worker: &Worker, open: &Arc<ConnectionCount>, most: u32) -> bool {
    let Some(newcomer) = open.newcomer() else { return false };
    for _ in 0..ATTEMPTS {
        let mut ended = pin!(newcomer.ended());
        ended.as_mut().enable();
        if open.try_add(most) {
            return true;
        }
        if worker.evict(Idle::Connection { open: open.clone() }).found().await == 0 {
            return open.try_add(most);
        }
        let _ = tokio::time::timeout(PATIENCE, ended).await;
    }
    open.try_add(most)
}

/// Closes the prepared statements of the idle connections to a backend on all workers; gives how many, once
/// every worker has sent that to the server, or those of it that did so in time.
pub async fn of_statements(worker: &Worker, prepared: &Arc<AtomicU32>) -> usize {
    let eviction = worker.evict(Idle::Statements { prepared: prepared.clone() });
    let _ = tokio::time::timeout(PATIENCE, eviction.found()).await;
    eviction.found.load(Ordering::SeqCst)
}

/// Admits a connection at a full listener, for which an idle one is closed; `false`, at once, if none is
/// idle.
pub async fn by_eviction(worker: &Worker, listener: &Listener) -> bool {
    let Some(newcomer) = listener.connections.newcomer() else { return false };
    for _ in 0..ATTEMPTS {
        // Subscribed before the check, so that no connection can end unnoticed in between.
        let mut ended = pin!(newcomer.ended());
        ended.as_mut().enable();
        if listener.admit() {
            return true;
        }
        if worker.evict(Idle::Session { listener: listener.number() }).found().await == 0 {
            return listener.admit();
        }
        // Whether or not it was notified, the next check shows the result.
        let _ = tokio::time::timeout(PATIENCE, ended).await;
    }
    listener.admit()
}

/// What is to be closed, the longest idle first.
pub enum Idle {
    /// A session of a listener, by [`Listener::number`].
    Session { listener: usize },
    /// A connection to the backend that has this count.
    Connection { open: Arc<ConnectionCount> },
    /// The prepared statements of all idle connections to the backend that has this count of them.
    Statements { prepared: Arc<AtomicU32> },
}

/// One request to all workers to close whatever has been idle longest.
pub struct Eviction {
    idle: Idle,
    unanswered: AtomicUsize,
    found: AtomicUsize,
    answered: Notify,
}

impl Eviction {
    /// How many sessions were asked to close, once every worker has answered.
    async fn found(&self) -> usize {
        self.answered.notified().await;
        self.found.load(Ordering::SeqCst)
    }

    fn answer(&self, found: usize) {
        self.found.fetch_add(found, Ordering::SeqCst);
        if self.unanswered.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.answered.notify_one();
        }
    }
}

/// The evictions that one worker is asked for. Never more than there are newcomers.
#[derive(Default)]
pub struct Evictions {
    asked: Mutex<Vec<Arc<Eviction>>>,
    arrived: Notify,
}

impl Evictions {
    /// Asks every worker.
    pub fn ask(all: &[Evictions], idle: Idle) -> Arc<Eviction> {
        let eviction = Arc::new(Eviction {
            idle,
            unanswered: AtomicUsize::new(all.len()),
            found: AtomicUsize::new(0),
            answered: Notify::new(),
        });
        for worker in all {
            worker.asked.lock().unwrap_or_else(PoisonError::into_inner).push(eviction.clone());
            worker.arrived.notify_one();
        }
        eviction
    }

    /// Answers requests for one worker, for ever: `shed` closes what has been idle longest there and gives
    /// how many it closed.
    pub async fn answer(&self, shed: impl Fn(&Idle) -> usize) {
        loop {
            self.arrived.notified().await;
            let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
            for eviction in asked {
                eviction.answer(shed(&eviction.idle));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use weir_balance::PickInput;

    use super::*;
    use crate::backends::{ConnectError, Keep, Reservation};
    use crate::worker::tests::serving;

    /// Idle connections, of which only the count matters.
    #[derive(Default)]
    struct Shelf(RefCell<Vec<Reservation>>);

    impl Keep for Shelf {
        fn hand_over(&self) -> Rc<dyn Keep> {
            Rc::new(Shelf(RefCell::new(self.0.take())))
        }

        fn close_idle(&self, most: usize) -> usize {
            let mut idle = self.0.borrow_mut();
            let closed = most.min(idle.len());
            idle.drain(..closed);
            closed
        }

        fn retire(&self, _: Duration, _: Duration, _: u32) {}
    }

    #[tokio::test(flavor = "local")]
    async fn a_backend_with_as_many_connections_as_it_may_have_gets_one_for_an_idle_one() {
        let (worker, snapshot) = serving(
            "[listener.db]\nprotocol = 'mysql'\nbind = '127.0.0.1:3306'\npool = 'db'\n[pool.db]\n\
             backends = [{ address = '10.0.0.1:3306', max_connections = 2 }]\n[pool.db.mysql]\ntopology = 'static'\n",
        );
        let pool = worker.pool("db").expect("the pool of the config");
        let chosen = pool.choose(&PickInput::default()).expect("room");
        let shelf = chosen.backend().kept::<Shelf>();
        let busy = chosen.reserve(&worker).await.expect("the first");
        let idle = chosen.reserve(&worker).await.expect("the second");
        shelf.0.borrow_mut().push(idle);
        let third = chosen.reserve(&worker).await.expect("for the idle one");
        assert_eq!((shelf.0.borrow().len(), snapshot.pools[0].backends[0].open.open()), (0, 2));
        let refused = chosen.reserve(&worker).await.err();
        assert!(matches!(refused, Some(ConnectError::Full { .. })), "{refused:?}");
        drop((busy, third));
        assert_eq!(snapshot.pools[0].backends[0].open.open(), 0);
    }

    #[tokio::test]
    async fn an_eviction_is_answered_when_the_last_worker_has_looked() {
        let workers: Vec<Evictions> = (0..2).map(|_| Evictions::default()).collect();
        let eviction = Evictions::ask(&workers, Idle::Session { listener: 7 });
        let mut found = pin!(eviction.found());
        let asked_for = |idle: &Idle| {
            assert!(matches!(idle, Idle::Session { listener: 7 }));
            1
        };
        let soon = Duration::from_millis(20);
        let first = tokio::select! {
            () = workers[0].answer(asked_for) => unreachable!("it never ends"),
            found = tokio::time::timeout(soon, found.as_mut()) => found,
        };
        assert!(first.is_err(), "one of two has answered");
        let all = tokio::select! {
            () = workers[1].answer(asked_for) => unreachable!("it never ends"),
            found = found => found,
        };
        assert_eq!(all, 2);
    }
}
