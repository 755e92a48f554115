//! A connection is either idle or busy with one exchange, and only a finished exchange makes it idle again.
//!
//! What is left unread of one message would be taken for the beginning of the next (threats A16, A20). So a pool takes
//! only [`Idle`], and the only way from [`Busy`] to `Idle` asks for proof that both bodies ended.

/// Proof that one body was read, or written, to its end. Made only by [`crate::BodyReader::drained`] and
/// [`SentWhole::drained`].
#[derive(Debug)]
pub struct Drained {
    _proof: (),
}

impl Drained {
    pub(crate) fn proven() -> Drained {
        Drained { _proof: () }
    }
}

/// Counts what Weir wrote of a body it announced, so that a message cut short by us is noticed like one cut short by a
/// peer.
#[derive(Debug)]
pub struct SentWhole {
    remaining: Option<u64>,
    ended: bool,
}

impl SentWhole {
    /// For a body of `declared` bytes; `None` where its end is marked (chunked).
    pub fn new(declared: Option<u64>) -> SentWhole {
        SentWhole { remaining: declared, ended: declared == Some(0) }
    }

    /// `count` content bytes were written. False when that is more than was announced; the connection must then be
    /// closed.
    #[must_use]
    pub fn sent(&mut self, count: u64) -> bool {
        let Some(remaining) = self.remaining else { return !self.ended || count == 0 };
        let Some(rest) = remaining.checked_sub(count) else {
            self.ended = false;
            return false;
        };
        self.remaining = Some(rest);
        self.ended = rest == 0;
        true
    }

    /// The mark that ends the body (last chunk) was written. Nothing for bodies with a declared length.
    pub fn end_marked(&mut self) {
        if self.remaining.is_none() {
            self.ended = true;
        }
    }

    /// Proof that all of it was written; `None` when it was not.
    pub fn drained(self) -> Option<Drained> {
        self.ended.then(Drained::proven)
    }
}

/// A connection on which nothing is under way. The only kind that a pool of idle connections accepts.
#[derive(Debug)]
pub struct Idle<C> {
    connection: C,
}

impl<C> Idle<C> {
    /// Begins an exchange.
    pub fn begin(self) -> Busy<C> {
        Busy { connection: self.connection }
    }

    /// Looks at the connection, to see whether the peer closed it or sent bytes nobody asked for; in both cases close
    /// it (threat A20).
    pub fn connection(&self) -> &C {
        &self.connection
    }

    /// Gives the connection up, to be closed.
    pub fn close(self) -> C {
        self.connection
    }
}

/// A connection with an exchange under way.
#[derive(Debug)]
pub struct Busy<C> {
    connection: C,
}

impl<C> Busy<C> {
    /// A connection just made, with its first exchange.
    pub fn first(connection: C) -> Busy<C> {
        Busy { connection }
    }

    /// The connection, to read and write the exchange.
    pub fn connection(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Ends the exchange: both bodies are proven complete.
    ///
    /// `Ok` when both sides keep the connection and no byte beyond the response came (`unread_bytes` is what the read
    /// buffer still holds); on a client's connection pipelined requests are no such bytes, pass 0. `Err` gives the
    /// connection back to be closed.
    pub fn finish(
        self,
        _request: Drained,
        _response: Drained,
        keep_alive: bool,
        unread_bytes: usize,
    ) -> Result<Idle<C>, C> {
        if keep_alive && unread_bytes == 0 {
            Ok(Idle { connection: self.connection })
        } else {
            Err(self.connection)
        }
    }

    /// Breaks the exchange off; the connection can only be closed.
    pub fn abandon(self) -> C {
        self.connection
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyLength, BodyReader, Limits};

    fn reader(length: BodyLength) -> BodyReader {
        BodyReader::new(length, &Limits::default())
    }

    #[test]
    fn a_connection_with_an_undrained_body_yields_no_proof_to_become_idle() {
        let mut body = reader(BodyLength::Length(5));
        body.advance(b"1234").unwrap();
        assert!(body.drained().is_none());
        let mut body = reader(BodyLength::Chunked);
        body.advance(b"0\r\n\r").unwrap();
        assert!(body.drained().is_none());
        assert!(reader(BodyLength::UntilClose).drained().is_none());
    }

    #[test]
    fn a_finished_exchange_makes_the_connection_idle_only_when_both_keep_it_and_nothing_is_left() {
        let proof = || reader(BodyLength::None).drained().unwrap();
        assert!(Busy::first(1).finish(proof(), proof(), true, 0).is_ok());
        assert_eq!(Busy::first(1).finish(proof(), proof(), false, 0).err(), Some(1));
        assert_eq!(Busy::first(1).finish(proof(), proof(), true, 3).err(), Some(1));
    }

    #[test]
    fn a_body_written_short_or_long_is_no_proof() {
        let mut sent = SentWhole::new(Some(5));
        assert!(sent.sent(4));
        assert!(sent.drained().is_none());
        let mut sent = SentWhole::new(Some(5));
        assert!(!sent.sent(6));
        assert!(sent.drained().is_none());
        let mut sent = SentWhole::new(None);
        assert!(sent.sent(100));
        sent.end_marked();
        assert!(!sent.sent(1));
        assert!(sent.drained().is_some());
    }
}
