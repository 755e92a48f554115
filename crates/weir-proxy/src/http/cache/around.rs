//! What comes before and behind the head and content of a response that is being fetched.

use weir_http::{Field, KnownHeader, ResponseHead};

/// A response that comes before the final one (RFC 9110 §15.2).
pub struct Interim {
    pub head: ResponseHead,
    /// What `head` points into.
    pub text: Box<[u8]>,
}

/// A field behind the content (RFC 9110 §6.5).
pub struct Trailer {
    name: Box<[u8]>,
    value: Box<[u8]>,
    known: KnownHeader,
}

impl Trailer {
    /// Keeps a field.
    pub fn of(field: &Field<'_>) -> Trailer {
        Trailer { name: field.name.into(), value: field.value.into(), known: field.known }
    }

    /// As it is sent.
    pub fn field(&self) -> Field<'_> {
        Field { name: &self.name, value: &self.value, known: self.known }
    }
}
