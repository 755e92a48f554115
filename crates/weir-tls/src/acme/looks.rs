//! Looks for what other Weirs with the same store have to prove, asked for by workers and made by the control
//! side.
//!
//! All that ask while a look is under way wait for the next one together, so that however many ask, there is
//! one look at a time, and each of them learns all that there was when it asked.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What is looked for: [`TOKENS`], [`HANDSHAKES`], both, or nothing.
#[derive(Default)]
pub(super) struct Looks {
    open_for: AtomicU8,
    state: Mutex<LookState>,
}

/// Answers to requests.
pub(super) const TOKENS: u8 = 1;
/// Certificates of handshakes.
pub(super) const HANDSHAKES: u8 = 2;

#[derive(Default)]
struct LookState {
    /// Number of the last look that anybody waits for, has begun, and has ended.
    wanted: u64,
    begun: u64,
    ended: u64,
    waiting: HashMap<u64, Waker>,
    next_place: u64,
    looker: Option<Waker>,
}

/// The wait for a look that begins after it was asked for. Ends at once where nobody looks.
#[must_use = "it is to be waited for"]
pub struct Look<'a> {
    looks: &'a Looks,
    number: u64,
    place: u64,
}

/// A look that is being made; whoever waits for it waits no longer than this is kept.
#[must_use = "it ends the look"]
pub struct BegunLook<'a> {
    looks: &'a Looks,
    number: u64,
}

impl Looks {
    fn lock(&self) -> MutexGuard<'_, LookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it looked for these from now on; who waits where nothing is any more waits no longer.
    pub fn open_for(&self, what: u8) {
        self.open_for.store(what, Ordering::Release);
        if what == 0 {
            let waiting = std::mem::take(&mut self.lock().waiting);
            waiting.into_values().for_each(Waker::wake);
        }
    }

    #[inline]
    pub fn is_open_for(&self, what: u8) -> bool {
        self.open_for.load(Ordering::Acquire) & what != 0
    }

    pub fn ask(&self) -> Look<'_> {
        let mut state = self.lock();
        let (number, place) = (state.begun + 1, state.next_place);
        state.next_place += 1;
        state.wanted = number;
        let looker = state.looker.take();
        drop(state);
        looker.into_iter().for_each(Waker::wake);
        Look { looks: self, number, place }
    }

    /// Waits until somebody asks.
    pub async fn asked(&self) -> BegunLook<'_> {
        poll_fn(|context| {
            let mut state = self.lock();
            if state.wanted > state.begun {
                state.begun = state.wanted;
                return Poll::Ready(BegunLook { looks: self, number: state.begun });
            }
            state.looker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Look<'_> {
    /// Whether it is over.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.looks.lock();
        // Where it was closed behind this question, all that waited were woken before they were here.
        if state.ended >= self.number || self.looks.open_for.load(Ordering::Acquire) == 0 {
            return Poll::Ready(());
        }
        state.waiting.insert(self.place, context.waker().clone());
        Poll::Pending
    }
}

impl Future for Look<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.poll_ended(context)
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        self.looks.lock().waiting.remove(&self.place);
    }
}

impl Drop for BegunLook<'_> {
    fn drop(&mut self) {
        let mut state = self.looks.lock();
        state.ended = state.ended.max(self.number);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_values().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn has_ended(look: &mut Look<'_>) -> bool {
        look.poll_ended(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn begun(looks: &Looks) -> Option<BegunLook<'_>> {
        match pin!(looks.asked()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(begun) => Some(begun),
            Poll::Pending => None,
        }
    }

    /// Threat J34.
    #[test]
    fn j34_however_many_ask_one_look_answers_all_who_asked_before_it_began() {
        let looks = Looks::default();
        looks.open_for(TOKENS);
        assert!(begun(&looks).is_none(), "nobody has asked");
        let mut first: Vec<_> = (0..1_000).map(|_| looks.ask()).collect();
        let under_way = begun(&looks).unwrap();
        assert!(begun(&looks).is_none(), "one look is for all of them");
        let mut late: Vec<_> = (0..1_000).map(|_| looks.ask()).collect();
        assert!(!first.iter_mut().chain(&mut late).any(has_ended));
        drop(under_way);
        assert!(first.iter_mut().all(has_ended), "it was for them");
        assert!(!late.iter_mut().any(has_ended), "what there was when they asked, nobody has looked for yet");
        drop(begun(&looks).unwrap());
        assert!(late.iter_mut().all(has_ended) && begun(&looks).is_none());
        drop((first, late));
        assert!(looks.lock().waiting.is_empty(), "nothing is kept of who has gone");
    }

    #[test]
    fn who_waits_where_nobody_looks_any_more_waits_no_longer() {
        let looks = Looks::default();
        assert!(has_ended(&mut looks.ask()), "it was never open");
        looks.open_for(TOKENS | HANDSHAKES);
        let mut look = looks.ask();
        assert!(!has_ended(&mut look) && looks.is_open_for(HANDSHAKES));
        looks.open_for(0);
        assert!(has_ended(&mut look) && !looks.is_open_for(HANDSHAKES));
    }
}
