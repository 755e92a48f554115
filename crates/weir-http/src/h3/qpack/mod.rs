//! QPACK: encoding and decoding of field sections (RFC 9204).
//!
//! [`Decoder`] holds a connection's dynamic table and decodes sections; [`SectionWriter`] encodes them.

mod acknowledgements;
mod decoder;
mod encoder;
mod instructions;
mod integer;
mod static_entries;
mod static_table;
mod table;

pub use decoder::{Decoder, SectionLimits, SectionRead};
pub use encoder::SectionWriter;

pub(super) use acknowledgements::Acknowledgements;
