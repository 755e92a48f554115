//! Comma-separated lists (RFC 9110 §5.6.1), whose elements may contain quoted strings with commas.

use crate::scan;

/// The elements of all lines of a field, trimmed, without empty ones, which recipients must ignore.
pub(crate) fn elements<'a>(values: impl Iterator<Item = &'a [u8]>) -> impl Iterator<Item = &'a [u8]> {
    values.flat_map(|value| Elements { rest: Some(value) }).filter(|element| !element.is_empty())
}

struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Iterator for Elements<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.rest.take()?;
        let end = end_of_element(text);
        let (element, rest) = text.split_at(end);
        self.rest = rest.get(1..);
        Some(scan::trim(element))
    }
}

/// Position of the comma after the first element, or the end. All text after an unclosed quote is part of one
/// element: it must not be taken for separate directives.
fn end_of_element(text: &[u8]) -> usize {
    let (mut quoted, mut escaped) = (false, false);
    for (at, &byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return at,
            _ => {}
        }
    }
    text.len()
}

/// The text between the quotes of a quoted string (RFC 9110 §5.6.4); `None` when `text` is not exactly one,
/// or has escapes, which no field that Weir parses needs.
pub(crate) fn unquoted(text: &[u8]) -> Option<&[u8]> {
    let [b'"', inner @ .., b'"'] = text else { return None };
    inner.iter().all(|&byte| byte != b'"' && byte != b'\\').then_some(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&'static str]) -> Vec<&'static str> {
        let values = values.iter().map(|value| value.as_bytes());
        elements(values).map(|element| str::from_utf8(element).unwrap()).collect()
    }

    #[test]
    fn empty_elements_are_ignored_and_quotes_hide_commas() {
        // RFC 9110 section 5.6.1.2 has the first three.
        assert_eq!(of(&["foo,bar"]), ["foo", "bar"]);
        assert_eq!(of(&["foo ,bar,"]), ["foo", "bar"]);
        assert_eq!(of(&["foo , ,bar,charlie"]), ["foo", "bar", "charlie"]);
        assert_eq!(of(&["", ",", ",   ,"]), Vec::<&str>::new());
        assert_eq!(of(&["a=\"b, c\", d", "e"]), ["a=\"b, c\"", "d", "e"]);
        assert_eq!(of(&["a=\"b\\\", c\", d"]), ["a=\"b\\\", c\"", "d"]);
        assert_eq!(of(&["a=\"b, c", "d"]), ["a=\"b, c", "d"]);
    }
}
