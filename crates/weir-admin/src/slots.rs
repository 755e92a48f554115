//! Decides who may hold a connection to the admin API, and who must give it up when all are taken.
//!
//! An operator has to get in even while somebody else holds every connection. So a new connection is always
//! let in, and a less useful one is closed: first those that have not sent a whole request, then those whose
//! request came without the token. A call with the token is never closed for another. Among equals, the
//! address with the most connections loses its oldest.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use hyper::body::{Frame, SizeHint};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Most connections at once.
pub(crate) const CONNECTIONS: usize = 256;

/// How harmful it would be to close a connection; the least harmful is closed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Its first or next request head is incomplete.
    Waiting,
    /// A request without the token is being answered.
    Answered,
    /// A request with the token is being answered.
    Trusted,
}

#[derive(Debug)]
struct Seat {
    peer: IpAddr,
    rank: Rank,
    task: Option<AbortHandle>,
}

/// All connections, by number; older ones have lower numbers.
#[derive(Default)]
pub(crate) struct Slots {
    table: Mutex<Table>,
    freed: Notify,
}

#[derive(Default)]
struct Table {
    seats: BTreeMap<u64, Seat>,
    next_number: u64,
}

impl Slots {
    /// A slot for a connection from `peer`; waits only while every slot is held by a call with the token.
    /// Also returns whether another connection was closed for it.
    pub(crate) async fn take(self: &Arc<Self>, peer: IpAddr) -> (Slot, bool) {
        loop {
            if let Some(taken) = self.try_take(peer) {
                return taken;
            }
            self.freed.notified().await;
        }
    }

    fn try_take(self: &Arc<Self>, peer: IpAddr) -> Option<(Slot, bool)> {
        let mut table = self.lock();
        let is_full = table.seats.len() >= CONNECTIONS;
        if is_full {
            let number = victim(&table.seats)?;
            if let Some(task) = table.seats.remove(&number).and_then(|seat| seat.task) {
                task.abort();
            }
        }
        let number = table.next_number;
        table.next_number += 1;
        table.seats.insert(number, Seat { peer, rank: Rank::Waiting, task: None });
        Some((Slot { slots: self.clone(), number }, is_full))
    }

    fn set_rank(&self, number: u64, rank: Rank) {
        if let Some(seat) = self.lock().seats.get_mut(&number) {
            seat.rank = rank;
        }
        if rank < Rank::Trusted {
            self.freed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connection to close when room is needed; `None` when every one is a call with the token.
fn victim(seats: &BTreeMap<u64, Seat>) -> Option<u64> {
    let rank = seats.values().map(|seat| seat.rank).min().filter(|rank| *rank < Rank::Trusted)?;
    let mut held: BTreeMap<IpAddr, (usize, u64)> = BTreeMap::new();
    for (number, seat) in seats.iter().filter(|(_, seat)| seat.rank == rank) {
        let (count, _oldest) = held.entry(seat.peer).or_insert((0, *number));
        *count += 1;
    }
    let most = held.into_values().max_by_key(|&(count, oldest)| (count, std::cmp::Reverse(oldest)))?;
    Some(most.1)
}

/// The slot of one connection; given back when dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    number: u64,
}

impl Slot {
    /// Sets the task to abort when the slot is needed.
    pub(crate) fn belongs_to(&self, task: AbortHandle) {
        if let Some(seat) = self.slots.lock().seats.get_mut(&self.number) {
            seat.task = Some(task);
        } else {
            // The slot was taken away before the task was set.
            task.abort();
        }
    }

    /// Records that a whole request has arrived; it is in progress until the result is dropped.
    pub(crate) fn begin(&self, trusted: bool) -> Call {
        self.slots.set_rank(self.number, if trusted { Rank::Trusted } else { Rank::Answered });
        Call { slots: self.slots.clone(), number: self.number }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().seats.remove(&self.number);
        self.slots.freed.notify_one();
    }
}

/// A request that is being answered.
pub(crate) struct Call {
    slots: Arc<Slots>,
    number: u64,
}

impl Drop for Call {
    fn drop(&mut self) {
        self.slots.set_rank(self.number, Rank::Waiting);
    }
}

/// A response body that keeps its call in progress until the body has been handed over.
pub(crate) struct During {
    body: Body,
    _call: Call,
}

impl During {
    pub(crate) fn new(body: Body, call: Call) -> During {
        During { body, _call: call }
    }
}

impl hyper::body::Body for During {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATOR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const FLOOD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn full(slots: &Arc<Slots>, peer: IpAddr) -> Vec<Slot> {
        (0..CONNECTIONS).map(|_| slots.try_take(peer).expect("a slot").0).collect()
    }

    fn has(slots: &Slots, slot: &Slot) -> bool {
        slots.lock().seats.contains_key(&slot.number)
    }

    #[test]
    fn a_newcomer_takes_the_slot_of_the_oldest_that_sent_no_whole_head() {
        let slots = Arc::new(Slots::default());
        let held = full(&slots, FLOOD);
        let first_is_answered = held[0].begin(false);
        let (newcomer, evicted) = slots.try_take(FLOOD).unwrap();
        assert!(evicted && has(&slots, &newcomer));
        assert!(has(&slots, &held[0]) && !has(&slots, &held[1]) && has(&slots, &held[2]));
        drop(first_is_answered);
        slots.try_take(FLOOD).unwrap();
        assert!(!has(&slots, &held[0]), "between two requests it is as good as silent");
    }

    #[test]
    fn the_address_that_holds_most_gives_one_up_so_that_an_operator_elsewhere_is_not_hurried() {
        let slots = Arc::new(Slots::default());
        let (operator, _) = slots.try_take(OPERATOR).unwrap();
        let _flood: Vec<Slot> = (0..2 * CONNECTIONS).map(|_| slots.try_take(FLOOD).unwrap().0).collect();
        assert!(has(&slots, &operator), "it is the oldest, but one against hundreds");
    }

    #[test]
    fn calls_without_the_token_go_before_calls_with_it_which_are_never_closed() {
        let slots = Arc::new(Slots::default());
        let held = full(&slots, FLOOD);
        let mut calls: Vec<Call> = held.iter().map(|slot| slot.begin(true)).collect();
        assert!(slots.try_take(OPERATOR).is_none());
        drop(calls.remove(9));
        let _without_token = held[9].begin(false);
        assert!(slots.try_take(OPERATOR).is_some());
        assert!(!has(&slots, &held[9]) && has(&slots, &held[8]));
    }

    #[tokio::test]
    async fn when_all_hold_the_token_a_newcomer_waits_for_the_first_to_end() {
        let slots = Arc::new(Slots::default());
        let mut held = full(&slots, OPERATOR);
        let _calls: Vec<Call> = held.iter().map(|slot| slot.begin(true)).collect();
        let waiting = tokio::spawn({
            let slots = slots.clone();
            async move { slots.take(OPERATOR).await.1 }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        held.pop();
        assert!(!waiting.await.unwrap(), "nobody was closed for it");
    }
}
