//! A trailer section from decoded fields (RFC 9113 §8.1, RFC 9114 §4.1).

use super::{Lines, check_name, check_value};
use crate::known::KnownHeader;
use crate::limits::TrailerLimits;
use crate::trailers::Trailers;
use crate::violation::Violation;

/// Builds [`Trailers`] from fields in their order of arrival.
///
/// Pass them to [`crate::BodyReader::end_stream`], which makes all decisions about the end of a body.
#[derive(Debug)]
pub struct TrailerBuilder {
    trailers: Box<Trailers>,
    lines: Lines,
}

impl TrailerBuilder {
    /// Begins a trailer section. Allocates; trailers are rare.
    pub fn new(limits: TrailerLimits) -> TrailerBuilder {
        let mut trailers = Box::<Trailers>::default();
        trailers.fields.clear();
        TrailerBuilder { trailers, lines: Lines::of_trailers(limits) }
    }

    /// Takes the next field.
    ///
    /// # Errors
    /// The section is malformed, or over a limit (`TrailersTooLarge`). Fields that must not be trailers (RFC
    /// 9110 §6.5.1) are not an error: they are left out (threat B13).
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Violation> {
        check_value(value)?;
        //= https://www.rfc-editor.org/rfc/rfc9113#section-8.1
        //# Trailers MUST NOT include pseudo-header fields (Section 8.3).  An
        //# endpoint that receives pseudo-header fields in trailers MUST treat
        //# the request or response as malformed (Section 8.1.1).
        if let [b':', ..] = name {
            return Err(Violation::PseudoFieldLate);
        }
        let (known, flags) = check_name(name)?;
        if known == KnownHeader::Te {
            return Err(Violation::ConnectionField);
        }
        self.lines.pay(name, value)?;
        let Trailers { text, fields } = &mut *self.trailers;
        self.lines.push((name, known, flags), value, fields, text)
    }

    /// The finished section.
    pub fn finish(self) -> Box<Trailers> {
        self.trailers
    }
}
