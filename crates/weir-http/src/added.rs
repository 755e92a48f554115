//! Fields that Weir itself adds: a stickiness cookie, the media type of an answer.

use std::fmt;

use crate::known::{HOP_BY_HOP, KnownHeader};
use crate::scan;

/// A field line that is checked and rendered once, and written unchanged with every message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedField {
    /// `name: value` CRLF
    pub(crate) line: Box<[u8]>,
    pub(crate) name_bytes: usize,
    pub(crate) known: KnownHeader,
}

/// A cookie that Weir sets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetCookie {
    /// Its `set-cookie`.
    pub field: AddedField,
    /// Whether caches are told that the response is for this client only.
    pub is_private: bool,
}

/// Why a field may not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddedFieldError {
    /// The name is not a token.
    Name,
    /// The value has control bytes, or begins or ends with whitespace.
    Value,
    /// The name is that of a framing or connection-specific field; Weir writes those itself.
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
    /// A field that may occur besides others with its name, such as `set-cookie`.
    pub fn new(name: &[u8], value: &[u8]) -> Result<AddedField, AddedFieldError> {
        if !scan::is_token(name) {
            return Err(AddedFieldError::Name);
        }
        if !scan::is_field_value(value) || scan::trim(value).len() != value.len() {
            return Err(AddedFieldError::Value);
        }
        let known = KnownHeader::classify(name);
        let framing = matches!(known, KnownHeader::Host | KnownHeader::ContentLength | KnownHeader::Trailer);
        if framing || HOP_BY_HOP.has(known) {
            return Err(AddedFieldError::Reserved);
        }
        let line = [name, b": ", value, b"\r\n"].concat().into_boxed_slice();
        Ok(AddedField { line, name_bytes: name.len(), known })
    }

    /// The name as configured.
    pub fn name(&self) -> &[u8] {
        self.line.get(..self.name_bytes).unwrap_or_default()
    }

    /// The value as configured.
    pub fn value(&self) -> &[u8] {
        self.line.get(self.name_bytes + 2..self.line.len() - 2).unwrap_or_default()
    }
}
