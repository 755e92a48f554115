//! What surrounds a response that is being fetched: interim responses before its head, trailers after its
//! content.

use weir_http::{Field, KnownHeader, ResponseHead};

/// An interim response, before the final one (RFC 9110 §15.2).
pub struct Interim {
    pub head: ResponseHead,
    /// The bytes that `head` points into.
    pub text: Box<[u8]>,
}

/// A trailer field, after the content (RFC 9110 §6.5).
pub struct Trailer {
    name: Box<[u8]>,
    value: Box<[u8]>,
    known: KnownHeader,
}

impl Trailer {
    /// A copy of the field.
    pub fn of(field: &Field<'_>) -> Trailer {
        Trailer { name: field.name.into(), value: field.value.into(), known: field.known }
    }

    /// The field, to be sent.
    pub fn field(&self) -> Field<'_> {
        Field { name: &self.name, value: &self.value, known: self.known }
    }
}
