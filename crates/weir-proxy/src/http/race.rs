//! A request that two backends may be asked in parallel: what is sent to both, and which may send to the
//! client.

use std::cell::Cell;
use std::mem;

use weir_http::BodyLength;

use crate::http::exchange::{BackendHeads, Exchange};
use crate::seldom::Seldom;

/// The state that both attempts share. The bytes exist only once, however long the body.
pub struct Race {
    /// As [`Exchange::outgoing`].
    pub outgoing: Vec<u8>,
    /// As [`Exchange::heads`].
    pub heads: Seldom<BackendHeads>,
    /// As [`Exchange::body_to_backends`].
    pub body: BodyLength,
    /// Whether both attempts are running.
    is_on: Cell<bool>,
    /// Whether an interim response is being sent to the client, and must not be cut off in the middle.
    is_speaking: Cell<bool>,
}

impl Race {
    /// Takes the request to send out of `exchange`, until [`Self::give_back`].
    pub fn of(exchange: &mut Exchange) -> Race {
        Race {
            body: exchange.body_to_backends(),
            outgoing: mem::take(&mut exchange.outgoing),
            heads: mem::take(&mut exchange.heads),
            is_on: Cell::new(false),
            is_speaking: Cell::new(false),
        }
    }

    /// Puts it back, for whatever comes next. What was framed for the backend that won stays, because some of
    /// it may still have to be sent.
    pub fn give_back(self, exchange: &mut Exchange) {
        exchange.outgoing = self.outgoing;
        let mut of_winner = mem::replace(&mut exchange.heads, self.heads);
        exchange.take_framed(&mut of_winner);
    }

    /// Called when a second backend is asked: from here on, neither response reaches the client before one
    /// has won. `false` while an interim response of the first is being sent to the client.
    pub fn begin(&self) -> bool {
        let begins = !self.is_speaking.get();
        self.is_on.set(begins);
        begins
    }

    /// Called when no second backend is asked after all, or it has failed.
    pub fn end(&self) {
        self.is_on.set(false);
    }

    /// Begins to pass an interim response on; `false` if it must not be.
    pub fn speak(&self) -> bool {
        let may = !self.is_on.get();
        self.is_speaking.set(may);
        may
    }

    /// Called when it has been passed on.
    pub fn spoken(&self) {
        self.is_speaking.set(false);
    }
}
