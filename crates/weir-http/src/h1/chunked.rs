//! Parses and writes the chunked transfer coding (RFC 9112 §7.1).

use super::encode;
use super::fields::{self, BlockLimits};
use crate::body::BodyStep;
use crate::limits::{Limits, TrailerLimits};
use crate::message::{Cursor, Field, Phase};
use crate::scan::{self, TOKEN};
use crate::trailers::Trailers;
use crate::violation::Violation;

/// Parses one chunked body. Framing may be split in any way; the caller need not store anything.
///
/// Stricter than the grammar in one respect: whitespace is allowed neither around a chunk size nor inside an
/// extension, except in quotes. RFC 9112 §7.1.1 calls it bad but tolerates it; parsers differ on it, so we
/// refuse.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    state: ChunkState,
    /// The size while it is parsed, then the content bytes left of the chunk.
    remaining: u64,
    digits: u8,
    extension_bytes: usize,
    extension_limit: usize,
    trailer_limits: TrailerLimits,
    trailers: Option<Box<PartTrailers>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    Size,
    ExtensionNameStart,
    ExtensionName,
    ExtensionValueStart,
    ExtensionToken,
    ExtensionQuoted,
    ExtensionQuotedPair,
    ExtensionQuotedEnd,
    SizeLineFeed,
    Data,
    DataReturn,
    DataLineFeed,
    TrailerStart,
    TrailerStartLineFeed,
    Trailers,
    Complete,
}

#[derive(Debug, Default)]
struct PartTrailers {
    trailers: Trailers,
    cursor: Cursor,
}

impl ChunkReader {
    pub(crate) fn new(limits: &Limits, trailer_limits: TrailerLimits) -> ChunkReader {
        ChunkReader {
            state: ChunkState::Size,
            remaining: 0,
            digits: 0,
            extension_bytes: 0,
            extension_limit: limits.chunk_extension_bytes,
            trailer_limits,
            trailers: None,
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.state == ChunkState::Complete
    }

    pub(crate) fn trailers(&self) -> Option<&Trailers> {
        let part = if self.is_complete() { self.trailers.as_deref() } else { None };
        part.map(|part| &part.trailers)
    }

    /// Parses framing up to the next content, that content, and the framing after it.
    pub(crate) fn advance(&mut self, input: &[u8]) -> Result<BodyStep, Violation> {
        let mut at = 0;
        let mut data = 0..0;
        while self.state != ChunkState::Complete {
            if self.state == ChunkState::Data {
                if !data.is_empty() {
                    break;
                }
                let available = (input.len() - at) as u64;
                if available == 0 {
                    break;
                }
                let take = available.min(self.remaining) as usize;
                data = at..at + take;
                at += take;
                self.remaining -= take as u64;
                if self.remaining == 0 {
                    self.state = ChunkState::DataReturn;
                }
            } else if self.state == ChunkState::Trailers {
                at += self.read_trailers(input.get(at..).unwrap_or_default())?;
                if self.state == ChunkState::Trailers {
                    break;
                }
            } else {
                let Some(&byte) = input.get(at) else { break };
                self.state = self.framing_byte(byte)?;
                // The first byte of a trailer line is part of the trailer text.
                at += usize::from(self.state != ChunkState::Trailers);
            }
        }
        Ok(BodyStep { consumed: at, data, complete: self.is_complete() })
    }

    fn framing_byte(&mut self, byte: u8) -> Result<ChunkState, Violation> {
        match (self.state, byte) {
            (ChunkState::Size, _) => self.size_byte(byte),
            (ChunkState::SizeLineFeed, b'\n') => {
                let size_was_zero = self.remaining == 0;
                self.digits = 0;
                Ok(if size_was_zero { ChunkState::TrailerStart } else { ChunkState::Data })
            }
            (ChunkState::SizeLineFeed | ChunkState::TrailerStartLineFeed, _) if byte != b'\n' => {
                Err(Violation::BareCarriageReturn)
            }
            (ChunkState::DataReturn, b'\r') => Ok(ChunkState::DataLineFeed),
            (ChunkState::DataLineFeed, b'\n') => Ok(ChunkState::Size),
            (ChunkState::DataReturn | ChunkState::DataLineFeed, _) => Err(Violation::ChunkEnd),
            (ChunkState::TrailerStart, b'\r') => Ok(ChunkState::TrailerStartLineFeed),
            (ChunkState::TrailerStart, b'\n') => Err(Violation::BareLineFeed),
            (ChunkState::TrailerStart, _) => {
                self.trailers = Some(Box::default());
                Ok(ChunkState::Trailers)
            }
            (ChunkState::TrailerStartLineFeed, _) => Ok(ChunkState::Complete),
            _ => self.extension_byte(byte),
        }
    }

    fn size_byte(&mut self, byte: u8) -> Result<ChunkState, Violation> {
        if let Some(digit) = scan::hex_value(byte) {
            //= https://www.rfc-editor.org/rfc/rfc9112#section-7.1
            //# A recipient MUST anticipate potentially large hexadecimal numerals and prevent parsing errors due to
            //# integer conversion overflows or precision loss due to integer representation.
            self.digits += 1;
            if self.digits > 16 || self.remaining >> 59 != 0 {
                return Err(Violation::ChunkSizeSyntax);
            }
            self.remaining = self.remaining << 4 | u64::from(digit);
            return Ok(ChunkState::Size);
        }
        match byte {
            _ if self.digits == 0 => Err(Violation::ChunkSizeSyntax),
            b'\r' => Ok(ChunkState::SizeLineFeed),
            b'\n' => Err(Violation::BareLineFeed),
            b';' => {
                self.count_extension_byte()?;
                Ok(ChunkState::ExtensionNameStart)
            }
            _ => Err(Violation::ChunkSizeSyntax),
        }
    }

    fn count_extension_byte(&mut self) -> Result<(), Violation> {
        self.extension_bytes += 1;
        if self.extension_bytes > self.extension_limit {
            return Err(Violation::ChunkExtensionsTooLarge);
        }
        Ok(())
    }

    //= https://www.rfc-editor.org/rfc/rfc9112#section-7.1.1
    //# A server ought to limit the total length of chunk extensions received
    //# in a request to an amount reasonable for the services provided
    fn extension_byte(&mut self, byte: u8) -> Result<ChunkState, Violation> {
        let token = scan::is(byte, TOKEN);
        let next = match (self.state, byte) {
            (ChunkState::ExtensionNameStart | ChunkState::ExtensionName, _) if token => {
                ChunkState::ExtensionName
            }
            (ChunkState::ExtensionName, b'=') => ChunkState::ExtensionValueStart,
            (ChunkState::ExtensionValueStart | ChunkState::ExtensionToken, _) if token => {
                ChunkState::ExtensionToken
            }
            (ChunkState::ExtensionValueStart, b'"') => ChunkState::ExtensionQuoted,
            (ChunkState::ExtensionQuoted, b'"') => ChunkState::ExtensionQuotedEnd,
            (ChunkState::ExtensionQuoted, b'\\') => ChunkState::ExtensionQuotedPair,
            (ChunkState::ExtensionQuoted | ChunkState::ExtensionQuotedPair, b'\t' | b' '..=b'~' | 0x80..) => {
                ChunkState::ExtensionQuoted
            }
            (
                ChunkState::ExtensionName | ChunkState::ExtensionToken | ChunkState::ExtensionQuotedEnd,
                b';',
            ) => ChunkState::ExtensionNameStart,
            (
                ChunkState::ExtensionName | ChunkState::ExtensionToken | ChunkState::ExtensionQuotedEnd,
                b'\r',
            ) => {
                return Ok(ChunkState::SizeLineFeed);
            }
            (_, b'\n') => return Err(Violation::BareLineFeed),
            _ => return Err(Violation::ChunkExtensionSyntax),
        };
        self.count_extension_byte()?;
        Ok(next)
    }

    /// Stores trailer lines up to the empty one; returns how many bytes it consumed.
    fn read_trailers(&mut self, input: &[u8]) -> Result<usize, Violation> {
        let Some(part) = self.trailers.as_deref_mut() else { return Ok(0) };
        let PartTrailers { trailers: Trailers { text, fields }, cursor } = part;
        if text.is_empty() {
            fields.clear();
            cursor.phase = Phase::FieldStart;
        }
        let most_bytes = self.trailer_limits.bytes as usize;
        let limits = BlockLimits {
            bytes: most_bytes,
            count: self.trailer_limits.count as usize,
            too_large: Violation::TrailersTooLarge,
            too_many: Violation::TrailersTooLarge,
        };
        let mut taken = 0;
        // Goes line by line, so that no byte after the empty line is consumed.
        while let Some(rest) = input.get(taken..).filter(|rest| !rest.is_empty()) {
            let line = rest.iter().position(|&byte| byte == b'\n').map_or(rest.len(), |end| end + 1);
            // Never stores more than the limit: the parser refuses a text that reaches it without ending.
            let line = line.min(most_bytes.max(1).saturating_sub(text.len()).max(1));
            text.extend_from_slice(rest.get(..line).unwrap_or_default());
            taken += line;
            if fields::parse_fields(text, cursor, fields, &limits)?.is_some() {
                self.state = ChunkState::Complete;
                break;
            }
        }
        Ok(taken)
    }
}

/// Writes the head of a chunk of `length` bytes, which must not be 0; content and [`write_chunk_end`] follow.
pub fn write_chunk_head(out: &mut Vec<u8>, length: u64) {
    encode::write_hexadecimal(out, length);
    out.extend_from_slice(b"\r\n");
}

/// Writes what follows the content of a chunk.
pub fn write_chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk, and `trailers` if there are any.
pub fn write_last_chunk<'a>(out: &mut Vec<u8>, trailers: impl IntoIterator<Item = Field<'a>>) {
    out.extend_from_slice(b"0\r\n");
    for field in trailers {
        encode::write_field(out, field.name, field.value);
    }
    out.extend_from_slice(b"\r\n");
}
