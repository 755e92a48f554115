//! Look-ups of the proofs of other Weirs with the same store. Workers ask for them, and the control side
//! makes them.
//!
//! All that ask while a look-up is in progress wait for the next one together. So there is only one look-up
//! at a time, however many ask, and each gets all that was stored when it asked.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// What is looked up: [`TOKENS`], [`HANDSHAKES`], both, or nothing.
#[derive(Default)]
pub(super) struct Looks {
    open_for: AtomicU8,
    state: Mutex<LookState>,
}

/// Answers to requests for tokens.
pub(super) const TOKENS: u8 = 1;
/// Certificates for handshakes.
pub(super) const HANDSHAKES: u8 = 2;

#[derive(Default)]
struct LookState {
    /// Numbers of the last look-up that somebody waits for, that has begun, and that has ended.
    wanted: u64,
    begun: u64,
    ended: u64,
    waiting: HashMap<u64, Waker>,
    next_place: u64,
    looker: Option<Waker>,
}

/// Waits for a look-up that begins after it was asked for. Ends at once if nothing is looked up.
#[must_use = "it is to be waited for"]
pub struct Look<'a> {
    looks: &'a Looks,
    number: u64,
    place: u64,
}

/// A look-up in progress; those that wait for it are released when this is dropped.
#[must_use = "it ends the look"]
pub struct BegunLook<'a> {
    looks: &'a Looks,
    number: u64,
}

impl Looks {
    fn lock(&self) -> MutexGuard<'_, LookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets what is looked up from now on. If it is nothing, those that wait are released.
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

    /// Waits until a look-up is asked for.
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
    /// Ready when the look-up is over.
    pub fn poll_ended(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.looks.lock();
        // If look-ups were closed since this one was asked for, the waiting tasks were woken before this task
        // was among them.
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
