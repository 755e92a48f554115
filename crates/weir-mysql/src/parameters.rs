//! Values in the binary protocol: query attributes, and the parameters of prepared statements.
//!
//! Source: MySQL internals, "COM_QUERY", "COM_STMT_EXECUTE" and "Binary Protocol Resultset: Binary Value".

use std::ops::Range;

use crate::capability::Capabilities;
use crate::value::{PayloadCursor, write_integer};
use crate::wire_error::WireError;

/// The parts of a COM_QUERY.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryParts<'a> {
    /// The offset of the statement text in the payload (bytes); it ends with the payload.
    pub text_start: usize,
    /// The query attributes, in order.
    pub attributes: Vec<QueryAttribute<'a>>,
}

/// A query attribute (`mysql_bind_param`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryAttribute<'a> {
    /// Its name; names may repeat.
    pub name: &'a [u8],
    /// Its type from `enum_field_types`, plus 0x8000 if it is unsigned.
    pub kind: u16,
    /// Its value as sent, for a string without its length; `None` is NULL.
    pub value: Option<&'a [u8]>,
}

/// The type of a string in the binary protocol (`MYSQL_TYPE_STRING`).
pub const STRING_TYPE: u16 = 0xFE;

impl<'a> QueryParts<'a> {
    /// Parses the payload of a COM_QUERY, or its beginning: then [`WireError::Truncated`] means that more is
    /// needed.
    pub fn parse(payload: &'a [u8], capabilities: Capabilities) -> Result<QueryParts<'a>, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        cursor.u8()?;
        let mut attributes = Vec::new();
        if capabilities.has(Capabilities::QUERY_ATTRIBUTES) {
            let count = cursor.integer()?;
            // "Currently always 1."
            if cursor.integer()? != 1 {
                return Err(WireError::UnexpectedPacket);
            }
            if count > 0 {
                attributes = read_attributes(&mut cursor, count)?;
            }
        }
        Ok(QueryParts { text_start: cursor.position(), attributes })
    }
}

fn read_attributes<'a>(
    cursor: &mut PayloadCursor<'a>,
    count: u64,
) -> Result<Vec<QueryAttribute<'a>>, WireError> {
    let count = usize::try_from(count).map_err(|_| WireError::Truncated)?;
    let nulls = cursor.bytes(count.div_ceil(8))?;
    if cursor.u8()? != 1 {
        // Without types the values cannot be parsed.
        return Err(WireError::UnexpectedPacket);
    }
    // Each attribute takes two bytes of type and one of name length, which limits the allocation to the real
    // size.
    let mut attributes = Vec::with_capacity(count.min(cursor.remaining().len() / 3));
    for _ in 0..count {
        let kind = cursor.u16()?;
        attributes.push(QueryAttribute { name: cursor.string()?, kind, value: None });
    }
    for (index, attribute) in attributes.iter_mut().enumerate() {
        if !is_null(nulls, index) {
            attribute.value = Some(read_value(cursor, attribute.kind)?);
        }
    }
    Ok(attributes)
}

/// Appends the payload of a COM_QUERY. If the connection has [`Capabilities::QUERY_ATTRIBUTES`], it includes
/// the attributes, all of them as strings.
pub fn write_query(
    out: &mut Vec<u8>,
    capabilities: Capabilities,
    attributes: &[QueryAttribute<'_>],
    text: &[u8],
) {
    out.push(0x03);
    if capabilities.has(Capabilities::QUERY_ATTRIBUTES) {
        write_integer(out, attributes.len() as u64);
        out.push(1);
        if !attributes.is_empty() {
            for chunk in attributes.chunks(8) {
                let bits = chunk.iter().enumerate().filter(|(_, attribute)| attribute.value.is_none());
                out.push(bits.fold(0, |byte, (bit, _)| byte | 1 << bit));
            }
            out.push(1);
            for attribute in attributes {
                out.extend_from_slice(&attribute.kind.to_le_bytes());
                crate::value::write_string(out, attribute.name);
            }
            for attribute in attributes {
                let Some(value) = attribute.value else { continue };
                if fixed_bytes(attribute.kind).is_none() {
                    write_integer(out, value.len() as u64);
                }
                out.extend_from_slice(value);
            }
        }
    }
    out.extend_from_slice(text);
}

/// The parts of a COM_STMT_EXECUTE, as ranges of its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecuteParts {
    /// The statement id.
    pub statement_id: u32,
    /// The cursor type (0 is none), plus 0x08 if there are attributes.
    pub flags: u8,
    /// How many parameters and attributes have values here (count).
    pub values_count: usize,
    /// The NULL bitmap.
    pub nulls: Range<usize>,
    /// The position of the byte that says whether types follow, and its value. `None` if there are no values.
    pub types_follow: Option<(usize, bool)>,
    /// The types, with names if attributes are possible. Empty if the types are those of an earlier
    /// execution; a server that did not see that one needs them again.
    pub types: Range<usize>,
    /// All values, up to the payload's end.
    pub values: Range<usize>,
}

/// See [`ExecuteParts::without_types`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithoutTypes {
    /// That the packet is malformed.
    Malformed,
    /// That the arguments are wrong.
    NotNamed,
}

/// Flags of COM_STMT_EXECUTE that ask for any kind of cursor.
pub const ANY_CURSOR: u8 = 0x07;
/// Flag of COM_STMT_EXECUTE: the number of values is given.
const PARAMETER_COUNT_AVAILABLE: u8 = 0x08;

impl ExecuteParts {
    /// Parses a payload, or its beginning up to the values. `parameter_count` is from the answer to
    /// COM_STMT_PREPARE.
    pub fn parse(
        payload: &[u8],
        parameter_count: u16,
        capabilities: Capabilities,
    ) -> Result<ExecuteParts, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        cursor.u8()?;
        let (statement_id, flags) = (cursor.u32()?, cursor.u8()?);
        cursor.u32()?;
        let has_names = capabilities.has(Capabilities::QUERY_ATTRIBUTES);
        let mut values_count = usize::from(parameter_count);
        // It is also given if the statement has parameters, whatever the flag says.
        if has_names && (parameter_count > 0 || flags & PARAMETER_COUNT_AVAILABLE != 0) {
            values_count = usize::try_from(cursor.integer()?).map_err(|_| WireError::Truncated)?;
        }
        let at = cursor.position();
        let none = at..at;
        let mut parts = ExecuteParts {
            statement_id,
            flags,
            values_count,
            nulls: none.clone(),
            types_follow: None,
            types: none.clone(),
            values: none,
        };
        if values_count == 0 {
            return Ok(parts);
        }
        cursor.bytes(values_count.div_ceil(8))?;
        parts.nulls = at..cursor.position();
        let flag_at = cursor.position();
        let types_follow = cursor.u8()? != 0;
        parts.types_follow = Some((flag_at, types_follow));
        let types_at = cursor.position();
        if types_follow {
            for _ in 0..values_count {
                cursor.u16()?;
                if has_names {
                    cursor.string()?;
                }
            }
        }
        parts.types = types_at..cursor.position();
        parts.values = cursor.position()..payload.len();
        Ok(parts)
    }

    /// What a server says of an execution whose types were never named; `None` if all its values are NULL, so
    /// that it needs none.
    ///
    /// Observed from mysqld 9.7.4: without types it reads each value behind a length, or what is left if that
    /// is less, and misses the types only once that is done.
    pub fn without_types(&self, payload: &[u8]) -> Option<WithoutTypes> {
        let nulls = payload.get(self.nulls.clone()).unwrap_or_default();
        let mut cursor = PayloadCursor::new(payload.get(self.values.clone()).unwrap_or_default());
        let mut said = None;
        for _ in (0..self.values_count).filter(|index| !is_null(nulls, *index)) {
            said = Some(WithoutTypes::NotNamed);
            let Ok(length) = cursor.integer() else { return Some(WithoutTypes::Malformed) };
            let left = cursor.remaining().len();
            cursor.bytes(usize::try_from(length).map_or(left, |length| length.min(left))).ok();
        }
        said
    }

    /// Appends the payload with `types` inserted if it has none, for a server that has not seen the types.
    /// `types` are the bytes in the range [`ExecuteParts::types`] of an earlier payload.
    pub fn write_with_types(&self, out: &mut Vec<u8>, payload: &[u8], types: &[u8]) -> Result<(), WireError> {
        let Some((flag_at, false)) = self.types_follow else {
            out.extend_from_slice(payload);
            return Ok(());
        };
        let before = payload.get(..flag_at).ok_or(WireError::Truncated)?;
        let after = payload.get(self.values.start..).ok_or(WireError::Truncated)?;
        out.extend_from_slice(before);
        out.push(1);
        out.extend_from_slice(types);
        out.extend_from_slice(after);
        Ok(())
    }
}

fn is_null(nulls: &[u8], index: usize) -> bool {
    nulls.get(index / 8).is_some_and(|byte| byte & 1 << (index % 8) != 0)
}

/// The bit of [`QueryAttribute::kind`] that says that a number is unsigned.
const UNSIGNED: u16 = 0x8000;

/// Bytes of a value of a fixed-size type; `None` for types with a length prefix.
fn fixed_bytes(kind: u16) -> Option<usize> {
    match kind & !UNSIGNED {
        0x01 => Some(1),
        0x02 => Some(2),
        0x03 | 0x04 => Some(4),
        0x05 | 0x08 => Some(8),
        _ => None,
    }
}

fn read_value<'a>(cursor: &mut PayloadCursor<'a>, kind: u16) -> Result<&'a [u8], WireError> {
    if let Some(bytes) = fixed_bytes(kind) {
        return cursor.bytes(bytes);
    }
    match kind & !UNSIGNED {
        // Dates and times begin with a length byte, which is a valid length-encoded integer. DECIMAL,
        // VARCHAR, BIT, JSON, VECTOR, NEWDECIMAL, ENUM, SET, BLOBs, strings and GEOMETRY are length-encoded
        // strings.
        0x00 | 0x07 | 0x0A..=0x0C | 0x0F | 0x10 | 0xF2 | 0xF5..=0xFF => cursor.string(),
        // Of the other types, INT24, YEAR and NULL have a size in results. But mysqld 9.7 reads an attribute
        // of such a type as a string, so that another text would follow for it. No client has them.
        _ => Err(WireError::ValueType),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTRIBUTES: Capabilities = Capabilities::QUERY_ATTRIBUTES;

    #[test]
    fn a_statement_without_attributes_is_the_rest_of_its_packet() {
        let parts = QueryParts::parse(b"\x03SELECT 1", Capabilities::NONE).expect("it is a COM_QUERY");
        assert_eq!((parts.text_start, parts.attributes.len()), (1, 0));
        let parts = QueryParts::parse(b"\x03\0\x01SELECT 1", ATTRIBUTES).expect("no attributes are sent");
        assert_eq!((parts.text_start, parts.attributes.len()), (3, 0));
    }

    #[test]
    fn attributes_are_read_as_they_were_written() {
        let number = 7_u64.to_le_bytes();
        let mut attributes = vec![
            QueryAttribute { name: b"role", kind: STRING_TYPE, value: Some(b"primary") },
            QueryAttribute { name: b"n", kind: 0x8008, value: Some(&number) },
            QueryAttribute { name: b"none", kind: STRING_TYPE, value: None },
        ];
        for index in 0..9 {
            let value = (index % 2 == 0).then_some(&b"x"[..]);
            attributes.push(QueryAttribute { name: b"", kind: STRING_TYPE, value });
        }
        let mut out = Vec::new();
        write_query(&mut out, ATTRIBUTES, &attributes, b"SELECT 1");
        let parts = QueryParts::parse(&out, ATTRIBUTES).expect("it is a COM_QUERY");
        assert_eq!(parts.attributes, attributes);
        assert_eq!(&out[parts.text_start..], b"SELECT 1");
        for cut in 0..parts.text_start {
            assert_eq!(QueryParts::parse(&out[..cut], ATTRIBUTES), Err(WireError::Truncated), "{cut}");
        }
        out.clear();
        write_query(&mut out, Capabilities::NONE, &attributes, b"SELECT 1");
        assert_eq!(out, b"\x03SELECT 1");
    }

    #[test]
    fn more_attributes_than_bytes_take_no_room() {
        let huge = b"\x03\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x01";
        assert_eq!(QueryParts::parse(huge, ATTRIBUTES), Err(WireError::Truncated));
    }

    #[test]
    fn values_of_types_that_servers_read_otherwise_are_refused() {
        for kind in [0x06, 0x09, 0x0D, 0x0E, 0xF1, 0x0101, 0x01FE, 0x4008] {
            let [low, high] = u16::to_le_bytes(kind);
            let packet = [b"\x03\x01\x01\0\x01", &[low, high][..], b"\0\x03xxxSELECT 1 -- SELECT 2"].concat();
            assert_eq!(QueryParts::parse(&packet, ATTRIBUTES), Err(WireError::ValueType), "{kind:x}");
            let null = [b"\x03\x01\x01\x01\x01", &[low, high][..], b"\0SELECT 1"].concat();
            let parts = QueryParts::parse(&null, ATTRIBUTES).expect("NULL has no value");
            assert_eq!(&null[parts.text_start..], b"SELECT 1");
        }
    }

    #[test]
    fn an_execution_gets_the_types_that_its_server_has_not_seen() {
        let first = b"\x17\x01\0\0\0\0\x01\0\0\0\x02\x01\x08\0\xfe\0\x05\0\0\0\0\0\0\0";
        let parts = ExecuteParts::parse(first, 2, Capabilities::NONE).expect("it has types");
        assert_eq!(parts.types_follow, Some((11, true)));
        let types = &first[parts.types.clone()];
        assert_eq!(types, b"\x08\0\xfe\0");
        let second = b"\x17\x01\0\0\0\0\x01\0\0\0\x02\0\x06\0\0\0\0\0\0\0";
        let parts = ExecuteParts::parse(second, 2, Capabilities::NONE).expect("it has none");
        assert_eq!((parts.types_follow, parts.types.len()), (Some((11, false)), 0));
        let mut out = Vec::new();
        parts.write_with_types(&mut out, second, types).expect("both are whole");
        assert_eq!(out, b"\x17\x01\0\0\0\0\x01\0\0\0\x02\x01\x08\0\xfe\0\x06\0\0\0\0\0\0\0");
    }

    #[test]
    fn what_a_server_says_of_values_without_types_depends_on_their_lengths() {
        let said = |count: u16, nulls: u8, values: &[u8]| {
            let payload = [b"\x17\x01\0\0\0\0\x01\0\0\0", &[nulls, 0][..], values].concat();
            let parts = ExecuteParts::parse(&payload, count, Capabilities::NONE).expect("it is whole");
            parts.without_types(&payload)
        };
        let (malformed, not_named) = (Some(WithoutTypes::Malformed), Some(WithoutTypes::NotNamed));
        for (count, nulls, values, expected) in [
            (1, 0, &b""[..], malformed),
            (1, 0, b"\x01", not_named),
            (1, 0, b"\x01x", not_named),
            (1, 1, b"", None),
            (2, 0, b"\x01", malformed),
            (2, 0, b"\x01x", malformed),
            (2, 0, b"\x01\0\0\0\0\0\0\0", not_named),
            (2, 2, b"", malformed),
            (2, 3, b"", None),
        ] {
            assert_eq!(said(count, nulls, values), expected, "{count} {nulls} {values:?}");
        }
    }

    #[test]
    fn an_execution_with_attributes_says_how_many_values_it_has() {
        let payload = b"\x17\x02\0\0\0\x08\x01\0\0\0\x02\0\x01\x08\0\0\xfe\0\x04role\x05\0\0\0\0\0\0\0\x01x";
        let parts = ExecuteParts::parse(payload, 1, ATTRIBUTES).expect("a parameter and an attribute");
        assert_eq!(parts.values_count, 2);
        assert_eq!(&payload[parts.types.clone()], b"\x08\0\0\xfe\0\x04role");
        assert_eq!(&payload[parts.values.clone()], b"\x05\0\0\0\0\0\0\0\x01x");
        for cut in 0..parts.types.end {
            let cut = ExecuteParts::parse(&payload[..cut], 1, ATTRIBUTES);
            assert_eq!(cut, Err(WireError::Truncated));
        }
        let plain = b"\x17\x02\0\0\0\0\x01\0\0\0\x01\0\x01\x08\0\0\x05\0\0\0\0\0\0\0";
        let plain_parts =
            ExecuteParts::parse(plain, 1, ATTRIBUTES).expect("the flag is not set, the count is there");
        assert_eq!((plain_parts.values_count, &plain[plain_parts.types]), (1, &b"\x08\0\0"[..]));
        let none = ExecuteParts::parse(b"\x17\x02\0\0\0\x01\x01\0\0\0", 0, ATTRIBUTES);
        assert_eq!(none.map(|parts| (parts.flags & ANY_CURSOR, parts.types_follow)), Ok((1, None)));
    }
}
