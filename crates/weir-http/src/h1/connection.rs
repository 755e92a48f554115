//! A connection is either idle or busy with one exchange, and only a finished exchange makes it idle again.
//!
//! Unread bytes of one message would be taken for the beginning of the next (threats A16, A20). So a pool
//! accepts only [`Idle`] connections, and the only way from [`Busy`] to `Idle` requires proof that both
//! bodies ended.

/// Proof that one body was read to its end. Made only by [`crate::BodyReader::drained`].
#[derive(Debug)]
pub struct Drained {
    _proof: (),
}

impl Drained {
    pub(crate) fn proven() -> Drained {
        Drained { _proof: () }
    }
}

/// A connection without an exchange in progress. The only kind that a pool of idle connections accepts.
#[derive(Debug)]
pub struct Idle<C> {
    connection: C,
}

impl<C> Idle<C> {
    /// Begins an exchange.
    pub fn begin(self) -> Busy<C> {
        Busy { connection: self.connection }
    }

    /// The connection, to check whether the peer closed it or sent unexpected bytes; in both cases close it
    /// (threat A20).
    pub fn connection(&self) -> &C {
        &self.connection
    }
}

/// A connection with an exchange in progress.
#[derive(Debug)]
pub struct Busy<C> {
    connection: C,
}

impl<C> Busy<C> {
    /// A new connection, with its first exchange.
    pub fn first(connection: C) -> Busy<C> {
        Busy { connection }
    }

    /// The connection, to read and write the exchange.
    pub fn connection(&mut self) -> &mut C {
        &mut self.connection
    }

    /// Ends the exchange; the arguments prove that both bodies are complete.
    ///
    /// `Ok` when both sides keep the connection open and no byte followed the response (`unread_bytes` is
    /// what is left in the read buffer). On a client's connection pipelined requests are allowed; pass 0.
    /// `Err` returns the connection, to be closed.
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
}
