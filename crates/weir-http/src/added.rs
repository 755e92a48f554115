//! Fields that Weir adds: from a route's configuration, or a stickiness cookie.

use std::fmt;

use crate::known::{HOP_BY_HOP, KnownHeader, KnownSet};
use crate::scan;

/// A field line checked and rendered once, written as it is with every message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedField {
    /// `name: value` CRLF
    pub(crate) line: Box<[u8]>,
    pub(crate) name_bytes: usize,
    pub(crate) known: KnownHeader,
    pub(crate) replaces: bool,
}

/// Why a field may not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedFieldError {
    /// The name is no token.
    Name,
    /// The value has control bytes, or whitespace at an end.
    Value,
    /// The name frames the message or belongs to the connection; Weir writes those itself.
    Reserved,
}

impl fmt::Display for AddedFieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            AddedFieldError::Name => {
                "found a field name that is no token, expected letters, digits and dashes"
            }
            AddedFieldError::Value => {
                "found a field value with control bytes or outer whitespace, expected neither"
            }
            AddedFieldError::Reserved => {
                "found a field that frames the message, expected one that Weir does not write itself"
            }
        })
    }
}

impl std::error::Error for AddedFieldError {}

impl AddedField {
    /// A field that takes the place of all fields of that name, so that a peer cannot add its own beside it.
    /// In requests names that differ only in `_` for `-` are taken as the same.
    pub fn replacing(name: &[u8], value: &[u8]) -> Result<AddedField, AddedFieldError> {
        AddedField::new(name, value, true)
    }

    /// A field that stands beside others of its name, such as `set-cookie`.
    pub fn appending(name: &[u8], value: &[u8]) -> Result<AddedField, AddedFieldError> {
        AddedField::new(name, value, false)
    }

    fn new(name: &[u8], value: &[u8], replaces: bool) -> Result<AddedField, AddedFieldError> {
        if !scan::is_token(name) {
            return Err(AddedFieldError::Name);
        }
        if !scan::is_field_value(value) || scan::trim(value).len() != value.len() {
            return Err(AddedFieldError::Value);
        }
        let known = KnownHeader::classify(name);
        let framing = matches!(known, KnownHeader::ContentLength | KnownHeader::Trailer);
        if framing || HOP_BY_HOP.has(known) {
            return Err(AddedFieldError::Reserved);
        }
        if known == KnownHeader::Host && !crate::h1::target::is_host(value) {
            return Err(AddedFieldError::Value);
        }
        let line = [name, b": ", value, b"\r\n"].concat().into_boxed_slice();
        // A second Host would be ambiguous (RFC 9112 §3.2), so it can only be replaced.
        let replaces = replaces || known == KnownHeader::Host;
        Ok(AddedField { line, name_bytes: name.len(), known, replaces })
    }

    /// The name as configured.
    pub fn name(&self) -> &[u8] {
        self.line.get(..self.name_bytes).unwrap_or_default()
    }

    /// The value as configured.
    pub fn value(&self) -> &[u8] {
        self.line.get(self.name_bytes + 2..self.line.len() - 2).unwrap_or_default()
    }

    /// Whether a peer's field of this name is one that this field takes the place of.
    pub(crate) fn replaces_name(&self, name: &[u8]) -> bool {
        self.replaces
            && name.len() == self.name_bytes
            && self.name().iter().zip(name).all(|(a, b)| fold(*a) == fold(*b))
    }
}

/// Known names that added fields take the place of.
pub(crate) fn replaced_names(added: &[AddedField]) -> KnownSet {
    let known = added.iter().filter(|field| field.replaces && field.known != KnownHeader::Other);
    known.fold(KnownSet::EMPTY, |names, field| names.with(field.known))
}

fn fold(byte: u8) -> u8 {
    if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}
