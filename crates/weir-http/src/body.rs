//! The one type that checks the declared length of a body against the received bytes.
//!
//! HTTP/1.1, HTTP/2 and HTTP/3 bodies in both directions go through [`BodyReader`], so that a message whose
//! body differs from its declared length is caught in one place (threats A16, C3).

use std::ops::Range;

use crate::body_length::BodyLength;
use crate::h1::chunked::ChunkReader;
use crate::h1::connection::Drained;
use crate::limits::{Limits, TrailerLimits};
use crate::message::Field;
use crate::trailers::Trailers;
use crate::violation::Violation;

/// The result of [`BodyReader::advance`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyStep {
    /// Bytes of input that were consumed, framing included.
    pub consumed: usize,
    /// The range of them that is content; may be empty.
    pub data: Range<usize>,
    /// Whether the body is complete. Input behind `consumed` belongs to the next message.
    pub complete: bool,
}

/// Reads one body.
#[derive(Debug)]
pub struct BodyReader {
    state: BodyState,
}

#[derive(Debug)]
enum BodyState {
    Length { remaining: u64 },
    Chunked(ChunkReader),
    UntilClose { ended: bool },
    Stream(StreamReader),
}

/// Reads a body that ends with its stream, whether or not a length was declared.
#[derive(Debug)]
struct StreamReader {
    /// What is left of the declared length, if there was one.
    declared: Option<u64>,
    ended: bool,
    trailers: Option<Box<Trailers>>,
}

impl StreamReader {
    //= https://www.rfc-editor.org/rfc/rfc9113#section-8.1.1
    //# A request or response that is defined as having content when it
    //# contains a Content-Length header field is malformed if the value of
    //# the Content-Length header field does not equal the sum of the DATA
    //# frame payload lengths that form the content
    fn receive(&mut self, count: u64) -> Result<(), Violation> {
        if self.ended && count > 0 {
            return Err(Violation::BodyTooLong);
        }
        if let Some(left) = &mut self.declared {
            *left = left.checked_sub(count).ok_or(Violation::BodyTooLong)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Violation> {
        if self.declared.is_some_and(|left| left > 0) {
            return Err(Violation::BodyTooShort);
        }
        self.ended = true;
        Ok(())
    }
}

impl BodyReader {
    /// A reader for a body on an HTTP/1.x connection, where what follows the body is the next message.
    /// Allocates only when trailers arrive. Their limits are those for requests; for a response use
    /// [`of_response`](Self::of_response).
    pub fn new(length: BodyLength, limits: &Limits) -> BodyReader {
        BodyReader::behind_head(length, limits, limits.trailers_of_requests())
    }

    /// As [`new`](Self::new), for the body of a response.
    pub fn of_response(length: BodyLength, limits: &Limits) -> BodyReader {
        BodyReader::behind_head(length, limits, limits.trailers_of_responses())
    }

    fn behind_head(length: BodyLength, limits: &Limits, trailers: TrailerLimits) -> BodyReader {
        let state = match length {
            BodyLength::None => BodyState::Length { remaining: 0 },
            BodyLength::Length(remaining) => BodyState::Length { remaining },
            BodyLength::Chunked => BodyState::Chunked(ChunkReader::new(limits, trailers)),
            BodyLength::UntilClose => BodyState::UntilClose { ended: false },
        };
        BodyReader { state }
    }

    /// A reader for a body on an HTTP/2 or HTTP/3 stream, which ends with the stream: it is complete only
    /// after [`finish_at_eof`](Self::finish_at_eof) or [`end_stream`](Self::end_stream) reported the end. A
    /// declared length is then compared with what was received (threats B10, C3). For the length that an
    /// HTTP/1.x message on the other side declares, use [`new`](Self::new).
    pub fn of_stream(length: BodyLength) -> BodyReader {
        let declared = match length {
            BodyLength::None => Some(0),
            BodyLength::Length(length) => Some(length),
            BodyLength::Chunked | BodyLength::UntilClose => None,
        };
        BodyReader { state: BodyState::Stream(StreamReader { declared, ended: false, trailers: None }) }
    }

    /// Takes the next received bytes.
    ///
    /// Consumes `input` up to the end of the body or of one run of content, whichever comes first. Call again
    /// with the rest while `consumed` is less than what you have and the body is not complete. Bytes never
    /// need to be passed twice. O(1) unless chunked, where only framing is read byte by byte.
    ///
    /// # Errors
    /// The framing is wrong; close the connection, or reset the stream. Do not use the reader afterwards.
    #[inline]
    pub fn advance(&mut self, input: &[u8]) -> Result<BodyStep, Violation> {
        match &mut self.state {
            BodyState::Length { remaining } => {
                let take = (*remaining).min(input.len() as u64) as usize;
                *remaining -= take as u64;
                Ok(BodyStep { consumed: take, data: 0..take, complete: *remaining == 0 })
            }
            BodyState::Chunked(chunks) => chunks.advance(input),
            BodyState::UntilClose { ended } => {
                Ok(BodyStep { consumed: input.len(), data: 0..input.len(), complete: *ended })
            }
            BodyState::Stream(stream) => {
                stream.receive(input.len() as u64)?;
                Ok(BodyStep { consumed: input.len(), data: 0..input.len(), complete: stream.ended })
            }
        }
    }

    /// Counts `count` content bytes that are delimited by other means: by a DATA frame (RFC 9113 §8.1.1, RFC
    /// 9114 §4.1.2), or because they were moved inside the kernel.
    ///
    /// # Errors
    /// `BodyTooLong` when that is more than was declared, or the body is chunked.
    pub fn receive(&mut self, count: u64) -> Result<(), Violation> {
        match &mut self.state {
            BodyState::Length { remaining } => {
                *remaining = remaining.checked_sub(count).ok_or(Violation::BodyTooLong)?;
                Ok(())
            }
            BodyState::Chunked(_) => Err(Violation::BodyTooLong),
            BodyState::UntilClose { ended: false } => Ok(()),
            BodyState::UntilClose { ended: true } => Err(Violation::BodyTooLong),
            BodyState::Stream(stream) => stream.receive(count),
        }
    }

    /// Whether the body has ended.
    #[inline]
    pub fn is_complete(&self) -> bool {
        match &self.state {
            BodyState::Length { remaining } => *remaining == 0,
            BodyState::Chunked(chunks) => chunks.is_complete(),
            BodyState::UntilClose { ended } => *ended,
            BodyState::Stream(stream) => stream.ended,
        }
    }

    /// Content bytes still to come; `None` when that is not known in advance.
    pub fn remaining(&self) -> Option<u64> {
        match &self.state {
            BodyState::Length { remaining } => Some(*remaining),
            BodyState::Chunked(chunks) => chunks.is_complete().then_some(0),
            BodyState::UntilClose { ended } => ended.then_some(0),
            BodyState::Stream(stream) if stream.ended => Some(0),
            BodyState::Stream(stream) => stream.declared,
        }
    }

    /// Call this when the sender closed, or ended the stream.
    ///
    /// # Errors
    /// `BodyTooShort` when the body is not complete: the message is truncated, and its receiver must be able
    /// to tell (RFC 9112 §8).
    pub fn finish_at_eof(&mut self) -> Result<(), Violation> {
        match &mut self.state {
            BodyState::UntilClose { ended } => *ended = true,
            BodyState::Stream(stream) => return stream.end(),
            _ => {}
        }
        if self.is_complete() { Ok(()) } else { Err(Violation::BodyTooShort) }
    }

    /// Call this when the stream ended with these trailers: [`finish_at_eof`](Self::finish_at_eof) for HTTP/2
    /// and HTTP/3. Readers for HTTP/1.x, where trailers are part of the body, ignore them.
    ///
    /// # Errors
    /// `BodyTooShort` when less was received than declared.
    pub fn end_stream(&mut self, trailers: Option<Box<Trailers>>) -> Result<(), Violation> {
        self.finish_at_eof()?;
        if let BodyState::Stream(stream) = &mut self.state {
            stream.trailers = trailers;
        }
        Ok(())
    }

    /// Trailer fields received with the body, without those that must not be trailers (RFC 9110 §6.5.1).
    /// Empty until the body is complete.
    pub fn trailers(&self) -> impl Iterator<Item = Field<'_>> {
        let trailers = match &self.state {
            BodyState::Chunked(chunks) => chunks.trailers(),
            BodyState::Stream(stream) => stream.trailers.as_deref(),
            _ => None,
        };
        trailers.into_iter().flat_map(Trailers::iter)
    }

    /// Proof that the body was read to its end, for [`crate::h1::connection::Busy::finish`]; `None` if it was
    /// not.
    pub fn drained(self) -> Option<Drained> {
        self.is_complete().then(Drained::proven)
    }
}
