//! `cdn-cache-control`: an origin's directives for caches such as Weir only (RFC 9213).
//!
//! It is a structured-fields dictionary (RFC 8941 §3.2), and parsed strictly: with a single mistake the whole
//! field is ignored.

use super::cache_control::{ResponseDirectives, Scope, withhold};
use super::delta_seconds;

/// The field's directives, expressed as those of `cache-control`; they replace `cache-control` and `expires`.
/// `None` when the field is absent, empty, or malformed: then those two apply (RFC 9213 §2.2).
///
/// Members whose type is not that of their directive are ignored. O(length).
pub fn parse<'a>(values: impl Iterator<Item = &'a [u8]>) -> Option<ResponseDirectives> {
    // All lines together are one list (RFC 8941 §4.2).
    let text = values.fold(Vec::new(), |mut text, value| {
        if !text.is_empty() {
            text.push(b',');
        }
        text.extend_from_slice(value);
        text
    });
    let members = Parser { rest: &text }.dictionary()?;
    if members.is_empty() {
        return None;
    }
    let mut said = ResponseDirectives::default();
    for (key, value) in &members {
        take(&mut said, key, value);
    }
    Some(said)
}

fn take(said: &mut ResponseDirectives, key: &[u8], value: &Value) {
    let seconds = match value {
        Value::Integer(number) if *number >= 0 => Some((*number).min(i64::from(delta_seconds::MOST)) as u32),
        _ => None,
    };
    let flag = *value == Value::Boolean(true);
    match key {
        b"no-store" => said.no_store = flag,
        b"must-understand" => said.must_understand = flag,
        b"public" => said.public = flag,
        b"must-revalidate" => said.must_revalidate = flag,
        b"proxy-revalidate" => said.proxy_revalidate = flag,
        b"no-transform" => said.no_transform = flag,
        b"immutable" => said.immutable = flag,
        b"max-age" => said.max_age = seconds,
        b"s-maxage" => said.s_maxage = seconds,
        b"stale-while-revalidate" => said.stale_while_revalidate = seconds,
        b"stale-if-error" => said.stale_if_error = seconds,
        b"private" => said.private = scope(&mut said.withheld, value),
        b"no-cache" => said.no_cache = scope(&mut said.withheld, value),
        _ => {}
    }
}

fn scope(withheld: &mut Vec<Box<[u8]>>, value: &Value) -> Scope {
    match value {
        Value::Boolean(true) => Scope::Whole,
        Value::String(names) => withhold(withheld, Some(names)),
        _ => Scope::Absent,
    }
}

/// A value, in as much detail as any directive needs.
#[derive(Debug, PartialEq, Eq)]
enum Value {
    Integer(i64),
    Boolean(bool),
    String(Vec<u8>),
    /// A decimal, token, byte sequence or inner list.
    Another,
}

/// Parses the rest of the text (RFC 8941 §4.2).
struct Parser<'a> {
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn skip(&mut self, byte: u8) -> bool {
        let rest = self.rest.strip_prefix(&[byte]);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn take_while(&mut self, mut is: impl FnMut(u8) -> bool) -> &'a [u8] {
        let end = self.rest.iter().position(|&byte| !is(byte)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    fn dictionary(mut self) -> Option<Vec<(Vec<u8>, Value)>> {
        let mut members: Vec<(Vec<u8>, Value)> = Vec::new();
        self.take_while(|byte| byte == b' ');
        while !self.rest.is_empty() {
            let key = self.key()?;
            let value = if self.skip(b'=') { self.member()? } else { Value::Boolean(true) };
            self.parameters()?;
            // The last of several members with the same key counts.
            members.retain(|(before, _)| before != key);
            members.push((key.to_vec(), value));
            self.take_while(|byte| byte == b' ' || byte == b'\t');
            if self.rest.is_empty() {
                break;
            }
            self.skip(b',').then_some(())?;
            self.take_while(|byte| byte == b' ' || byte == b'\t');
            // A comma at the end is an error.
            (!self.rest.is_empty()).then_some(())?;
        }
        Some(members)
    }

    fn key(&mut self) -> Option<&'a [u8]> {
        let first = self.peek()?;
        (first.is_ascii_lowercase() || first == b'*').then_some(())?;
        Some(self.take_while(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-' | b'.' | b'*')
        }))
    }

    /// An item, or an inner list of them.
    fn member(&mut self) -> Option<Value> {
        if !self.skip(b'(') {
            return self.bare_item();
        }
        loop {
            self.take_while(|byte| byte == b' ');
            if self.skip(b')') {
                return Some(Value::Another);
            }
            self.bare_item()?;
            self.parameters()?;
            matches!(self.peek()?, b' ' | b')').then_some(())?;
        }
    }

    fn parameters(&mut self) -> Option<()> {
        while self.skip(b';') {
            self.take_while(|byte| byte == b' ');
            self.key()?;
            if self.skip(b'=') {
                self.bare_item()?;
            }
        }
        Some(())
    }

    fn bare_item(&mut self) -> Option<Value> {
        match self.peek()? {
            b'-' | b'0'..=b'9' => self.number(),
            b'"' => self.string(),
            b'?' => {
                self.skip(b'?');
                let truth = self.skip(b'1');
                (truth || self.skip(b'0')).then_some(Value::Boolean(truth))
            }
            b':' => {
                self.skip(b':');
                self.take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='));
                self.skip(b':').then_some(Value::Another)
            }
            first if first.is_ascii_alphabetic() || first == b'*' => {
                self.take_while(|byte| {
                    crate::scan::is(byte, crate::scan::TOKEN) || matches!(byte, b':' | b'/')
                });
                Some(Value::Another)
            }
            _ => None,
        }
    }

    fn number(&mut self) -> Option<Value> {
        let negative = self.skip(b'-');
        let whole = self.take_while(|byte| byte.is_ascii_digit());
        if self.skip(b'.') {
            let fraction = self.take_while(|byte| byte.is_ascii_digit());
            let fits = (1..=12).contains(&whole.len()) && (1..=3).contains(&fraction.len());
            return fits.then_some(Value::Another);
        }
        (1..=15).contains(&whole.len()).then_some(())?;
        let number = whole.iter().fold(0, |number, byte| number * 10 + i64::from(byte - b'0'));
        Some(Value::Integer(if negative { -number } else { number }))
    }

    fn string(&mut self) -> Option<Value> {
        self.skip(b'"');
        let mut text = Vec::new();
        loop {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            match byte {
                b'"' => return Some(Value::String(text)),
                b'\\' => {
                    let (&escaped, rest) = self.rest.split_first()?;
                    self.rest = rest;
                    matches!(escaped, b'"' | b'\\').then_some(())?;
                    text.push(escaped);
                }
                0x20..=0x7e => text.push(byte),
                _ => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(values: &[&str]) -> Option<ResponseDirectives> {
        parse(values.iter().map(|value| value.as_bytes()))
    }

    #[test]
    fn the_examples_of_the_rfc_are_read() {
        // RFC 9213 sections 2.3 and 3.1.
        assert_eq!(of(&["max-age=600"]).unwrap().max_age, Some(600));
        let said = of(&["max-age=600, stale-while-revalidate=5", "must-revalidate"]).unwrap();
        assert_eq!(
            (said.max_age, said.stale_while_revalidate, said.must_revalidate),
            (Some(600), Some(5), true)
        );
        assert!(of(&["no-store"]).unwrap().no_store);
        // RFC 9213 section 2.1: parameters are ignored.
        assert_eq!(of(&["max-age=60;a=1;b;c=\"x, y\""]).unwrap().max_age, Some(60));
    }

    #[test]
    fn members_are_structured_fields() {
        let said = of(&[
            "no-cache=\"Set-Cookie\", private=?0, public=?1, no-store=?0, x=(a \"b\" 1;y), z=:aGk=:, w=1.5",
        ])
        .unwrap();
        assert_eq!((said.no_cache, said.private), (Scope::Fields, Scope::Absent));
        assert_eq!(said.withheld, [b"set-cookie".as_slice().into()]);
        assert!(said.public && !said.no_store);
        assert_eq!(of(&["private"]).unwrap().private, Scope::Whole);
        // The last one holds, and members of another type are as if they were not there.
        assert_eq!(of(&["max-age=1, max-age=2"]).unwrap().max_age, Some(2));
        for other in ["max-age=\"60\"", "max-age=sixty", "max-age=1.5", "max-age", "max-age=-1"] {
            assert_eq!(of(&[other]), Some(ResponseDirectives::default()), "{other}");
        }
        assert_eq!(of(&["max-age=999999999999999"]).unwrap().max_age, Some(delta_seconds::MOST));
    }

    #[test]
    fn one_mistake_and_it_was_not_there() {
        for wrong in [
            "",
            "  ",
            "max-age=",
            "max-age=60,",
            "max-age=60,,public",
            "Max-Age=60",
            "max-age=60; private x",
            "max-age 60",
            "max-age=60 public",
            "no-cache=\"a",
            "=5",
            "max-age=1234567890123456",
            "x=(1 2",
            "x=?2",
            "x=:a",
            "x=1.",
            "x=(1\"a\")",
            "x=\"\\a\"",
            "é",
        ] {
            assert_eq!(of(&[wrong]), None, "{wrong:?}");
        }
        assert_eq!(of(&[]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(std::iter::once(bytes.as_slice()));
        }

        #[test]
        fn no_text_of_its_letters_makes_it_panic(text in "[a-c0-9 ,;=()?:\"\\\\.*-]{0,40}") {
            let _ = parse(std::iter::once(text.as_bytes()));
        }
    }
}
