//! A request that two backends may be asked for at once: what both are sent, and who may speak to the client.

use std::cell::Cell;
use std::mem;

use weir_http::BodyLength;

use crate::http::exchange::{BackendHeads, Exchange};
use crate::seldom::Seldom;

/// What both attempts share. The bytes are there once, however long the body.
pub struct Race {
    /// As [`Exchange::outgoing`].
    pub outgoing: Vec<u8>,
    /// As [`Exchange::heads`].
    pub heads: Seldom<BackendHeads>,
    /// As [`Exchange::body_to_backends`].
    pub body: BodyLength,
    /// Whether both are under way.
    is_on: Cell<bool>,
    /// Whether an interim response is on its way to the client, which must not be cut off within it.
    is_speaking: Cell<bool>,
}

impl Race {
    /// Takes what is sent out of `exchange`, until [`Self::give_back`].
    pub fn of(exchange: &mut Exchange) -> Race {
        Race {
            body: exchange.body_to_backends(),
            outgoing: mem::take(&mut exchange.outgoing),
            heads: mem::take(&mut exchange.heads),
            is_on: Cell::new(false),
            is_speaking: Cell::new(false),
        }
    }

    /// Puts it back, for what may come next. What was framed for the backend that won stays: some of it may
    /// still be to be sent.
    pub fn give_back(self, exchange: &mut Exchange) {
        exchange.outgoing = self.outgoing;
        let mut of_winner = mem::replace(&mut exchange.heads, self.heads);
        exchange.take_framed(&mut of_winner);
    }

    /// A second backend is asked: from here on the client hears of neither before one has won. `false` while
    /// the client takes an interim response of the first.
    pub fn begin(&self) -> bool {
        let begins = !self.is_speaking.get();
        self.is_on.set(begins);
        begins
    }

    /// No second backend is asked after all, or it has failed.
    pub fn end(&self) {
        self.is_on.set(false);
    }

    /// Begins to pass an interim response on; `false` where it is not to be.
    pub fn speak(&self) -> bool {
        let may = !self.is_on.get();
        self.is_speaking.set(may);
        may
    }

    /// It was passed on.
    pub fn spoken(&self) {
        self.is_speaking.set(false);
    }
}
