//! The peer's decoder stream, which acknowledges what our encoder inserts: nothing (RFC 9204 §4.4).

use super::integer;
use crate::h3::error::Fault;

/// Parses the decoder stream.
#[derive(Debug, Default)]
pub(in crate::h3) struct Acknowledgements {
    /// An incomplete instruction: at most 10 bytes.
    partial: Vec<u8>,
}

impl Acknowledgements {
    /// Takes bytes of the stream, split in any way. The only valid instruction is a stream cancellation.
    pub(in crate::h3) fn receive(&mut self, input: &[u8]) -> Result<(), Fault> {
        self.partial.extend_from_slice(input);
        let mut at = 0;
        while let Some(&first) = self.partial.get(at) {
            //= https://www.rfc-editor.org/rfc/rfc9204#section-4.4.1
            //# If an encoder receives a Section Acknowledgment instruction referring
            //# to a stream on which every encoded field section with a non-zero
            //# Required Insert Count has already been acknowledged, this MUST be
            //# treated as a connection error of type QPACK_DECODER_STREAM_ERROR.
            //= https://www.rfc-editor.org/rfc/rfc9204#section-4.4.3
            //# An encoder that receives an Increment field equal to zero, or one
            //# that increases the Known Received Count beyond what the encoder has
            //# sent, MUST treat this as a connection error of type
            //# QPACK_DECODER_STREAM_ERROR.
            if first & 0xc0 != 0x40 {
                return Err(Fault::AcknowledgementUnfounded);
            }
            match integer::read(&self.partial, at, 6) {
                Ok((_, end)) => at = end,
                Err(integer::Failure::Short) => break,
                Err(integer::Failure::TooLarge) => return Err(Fault::AcknowledgementInteger),
            }
        }
        self.partial.drain(..at);
        Ok(())
    }
}
