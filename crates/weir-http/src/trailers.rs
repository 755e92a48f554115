//! Trailer fields, which follow a body (RFC 9110 §6.5).

use crate::known::NOT_IN_TRAILERS;
use crate::message::{Field, Fields, UNDERSCORE_TWIN};

/// A trailer section, with the text it was parsed from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    pub(crate) text: Vec<u8>,
    pub(crate) fields: Fields,
}

impl Trailers {
    /// The fields in order, without those that must not be trailers: fields for framing, routing,
    /// authentication or control have no effect after the message, and merging them into the head is an
    /// attack (RFC 9110 §6.5.1, threat B13).
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        let lines = self.fields.lines.iter();
        lines.filter(|line| !NOT_IN_TRAILERS.has(line.known) && line.flags & UNDERSCORE_TWIN == 0).map(
            |line| Field {
                name: line.name.of(&self.text),
                value: line.value.of(&self.text),
                known: line.known,
            },
        )
    }
}
