//! What a probe sends and expects: bytes written as text.

use std::fmt;
use std::hash::{Hash, Hasher};

use weir_screen::{Case, Pattern};

use super::http::{FRAMING, field_name, method};
use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::units::{Refused, refuse};

/// Longest text to send or to look for, in bytes.
const MOST_BYTES: usize = 4096;

/// Bytes to send.
pub(crate) static SENT: Shape =
    Shape::new("a text to send", "PING\\r\\n", |text| Octets::read(text).map(|octets| octets.written()));

/// The text to wait for in a conversation.
pub(crate) static AWAITED: Shape = Shape::new("a text to wait for", "+PONG", |text| {
    if text.starts_with('!') {
        let hint = "what shall not come cannot be waited for; a `!` itself is written `\\x21`";
        return refuse(format!("{} cannot be waited for", quote(text)), hint);
    }
    Expected::read(text).map(|expected| expected.to_string())
});

/// The text that a body must, or must not, contain.
pub(crate) static EXPECTED: Shape = Shape::new("a text to look for", "\"status\":\"UP\"", |text| {
    Expected::read(text).map(|expected| expected.to_string())
});

/// The method of a probe.
pub(crate) static PROBE_METHOD: Shape = Shape::new("a method", "HEAD", |text| match method(text)?.as_str() {
    "CONNECT" => refuse("a probe cannot have the method CONNECT", "it would ask for a tunnel"),
    method => Ok(method.to_owned()),
});

/// A field of a probe.
pub(crate) static PROBE_FIELD: Shape = Shape::new("a header field", "x-probe", |text| {
    let name = field_name(text)?;
    let hint = match name.as_str() {
        "host" => "use `host` of the health table instead",
        name if FRAMING.contains(&name) => "it describes the connection or the body, which Weir knows better",
        _ => return Ok(name),
    };
    refuse(format!("{} is set by Weir itself", quote(text)), hint)
});

/// A service by its full name, as in gRPC's health protocol.
pub(crate) static GRPC_SERVICE: Shape = Shape::new("a service", "shop.v1.Cart", |text| {
    if text.is_empty() {
        return refuse("a service has a name", "leave `service` out to ask about the server as a whole");
    }
    if text.len() > 256 || text.chars().any(char::is_control) {
        let hint = "expected at most 256 bytes such as \"shop.v1.Cart\"";
        return refuse(format!("{} is not a service", quote(text)), hint);
    }
    Ok(text.to_owned())
});

/// Bytes written as text: `\xHH` is any byte; `\r`, `\n`, `\t` and `\\` have their usual meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Octets(Vec<u8>);

impl Octets {
    /// The bytes; at least one if they come from a file.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn read(text: &str) -> Result<Octets, Refused> {
        let shown = || quote(text);
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('\\') {
            bytes.extend_from_slice(&rest.as_bytes()[..at]);
            let mut escape = rest[at + 1..].chars();
            let hex = rest.get(at + 2..at + 4).filter(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
            let (byte, length) = match (escape.next(), hex) {
                (Some('r'), _) => (b'\r', 2),
                (Some('n'), _) => (b'\n', 2),
                (Some('t'), _) => (b'\t', 2),
                (Some('\\'), _) => (b'\\', 2),
                (Some('x'), Some(hex)) => (u8::from_str_radix(hex, 16).unwrap_or_default(), 4),
                _ => {
                    let hint = "behind a `\\` comes `r`, `n`, `t`, `\\`, or `x` and two hexadecimal digits; in \"…\" TOML wants it twice";
                    return refuse(format!("{} has an escape that is not known", shown()), hint);
                }
            };
            bytes.push(byte);
            rest = &rest[at + length..];
        }
        bytes.extend_from_slice(rest.as_bytes());
        match bytes.len() {
            0 => refuse("an empty text says nothing", "expected one byte at least"),
            length if length > MOST_BYTES => {
                refuse(format!("{length} bytes are too many"), format!("expected at most {MOST_BYTES}"))
            }
            _ => Ok(Octets(bytes)),
        }
    }

    /// The form that [`Self::read`] accepts: line ends as they are, everything that is not printable ASCII as
    /// `\xHH`.
    fn written(&self) -> String {
        let mut text = String::with_capacity(self.0.len());
        for &byte in &self.0 {
            match byte {
                b'\\' => text.push_str("\\\\"),
                b'\r' | b'\n' | b'\t' | b' '..=b'~' => text.push(char::from(byte)),
                _ => text.push_str(&format!("\\x{byte:02x}")),
            }
        }
        text
    }
}

one!(
    Octets,
    Value::Text(text) => Octets::read(text).ok(),
    |it| Value::Text(it.written()),
    Octets::default()
);

/// An expectation: the received text must contain a text, or with a leading `~` match a regular expression,
/// in linear time; a leading `!` negates it.
#[derive(Clone, Debug)]
pub struct Expected {
    is_negated: bool,
    form: Form,
}

#[derive(Clone, Debug)]
enum Form {
    Text(Octets),
    Expression(Pattern),
}

impl Expected {
    /// Longest text to look for, in bytes.
    pub const MOST_BYTES: usize = MOST_BYTES;

    fn read(text: &str) -> Result<Expected, Refused> {
        let (is_negated, rest) = match text.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if !rest.starts_with('~') {
            return Ok(Expected { is_negated, form: Form::Text(Octets::read(rest)?) });
        }
        if rest.len() > MOST_BYTES {
            let hint = format!("expected at most {MOST_BYTES}");
            return refuse(format!("{} bytes are too many", rest.len()), hint);
        }
        match Pattern::parse(rest, Case::Sensitive) {
            Ok(pattern) => Ok(Expected { is_negated, form: Form::Expression(pattern) }),
            Err(hint) => refuse(format!("{} cannot be looked for", quote(text)), hint),
        }
    }

    /// Whether the received bytes meet the expectation. Linear in their length.
    pub fn is_met(&self, came: &[u8]) -> bool {
        self.end_in(came).is_some() != self.is_negated
    }

    /// The end of the first match; ignores negation. Linear in the length.
    pub fn end_in(&self, came: &[u8]) -> Option<usize> {
        match &self.form {
            Form::Text(text) => {
                let (length, first) = (text.0.len(), *text.0.first()?);
                let starts = came.iter().enumerate().filter(|(_, byte)| **byte == first);
                starts.map(|(at, _)| at).find(|&at| came[at..].starts_with(&text.0)).map(|at| at + length)
            }
            Form::Expression(pattern) => pattern.end_in(came),
        }
    }

    /// Whether further bytes can change nothing once a match is found.
    pub fn is_settled_when_found(&self) -> bool {
        matches!(self.form, Form::Text(_))
    }

    /// The description of an unmet expectation, to follow "expected …".
    pub fn words(&self) -> String {
        match (self.is_negated, &self.form) {
            (false, Form::Text(text)) => format!("\"{}\" in it", text.0.escape_ascii()),
            (true, Form::Text(text)) => format!("no \"{}\" in it", text.0.escape_ascii()),
            (false, Form::Expression(pattern)) => format!("a match of {pattern}"),
            (true, Form::Expression(pattern)) => format!("no match of {pattern}"),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = if self.is_negated { "!" } else { "" };
        match &self.form {
            Form::Expression(pattern) => write!(out, "{not}{pattern}"),
            Form::Text(text) => {
                let written = text.written();
                match written.strip_prefix(['!', '~']) {
                    // These have a special meaning at the beginning.
                    Some(rest) => write!(out, "{not}\\x{:02x}{rest}", written.as_bytes()[0]),
                    None => write!(out, "{not}{written}"),
                }
            }
        }
    }
}

impl PartialEq for Expected {
    fn eq(&self, other: &Expected) -> bool {
        self.is_negated == other.is_negated
            && match (&self.form, &other.form) {
                (Form::Text(one), Form::Text(two)) => one == two,
                (Form::Expression(one), Form::Expression(two)) => one == two,
                _ => false,
            }
    }
}

impl Eq for Expected {}

impl Hash for Expected {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.to_string().hash(state);
    }
}

one!(
    Expected,
    Value::Text(text) => Expected::read(text).ok(),
    |it| Value::Text(it.to_string()),
    Expected { is_negated: false, form: Form::Text(Octets::default()) }
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_byte_can_be_written_and_is_written_so_again() {
        for (text, bytes) in [
            ("PING\r\n", &b"PING\r\n"[..]),
            (r"PING\r\n", b"PING\r\n"),
            (r"\x00\xff\\a\t", b"\0\xff\\a\t"),
            ("é", b"\xc3\xa9"),
        ] {
            let octets = Octets::read(text).unwrap();
            assert_eq!(octets.bytes(), bytes, "{text}");
            assert_eq!(Octets::read(&octets.written()).unwrap(), octets, "{text}");
        }
        for bad in ["", r"\q", r"\x4", r"\xé", "a\\"] {
            assert!(Octets::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_expected_is_found_and_its_end_is_told() {
        let end = |text: &str, came: &[u8]| Expected::read(text).unwrap().end_in(came);
        assert_eq!(end("+PONG", b"x+PO+PONG\r\n"), Some(9));
        assert_eq!(end("+PONG", b"+PON"), None);
        assert_eq!(end("~^2[0-9]{2} ", b"220 mail ready"), Some(4));
        assert_eq!(end("~^2[0-9]{2} ", b"421 busy"), None);
        assert!(Expected::read("!down").unwrap().is_met(b"all is well"));
        assert!(!Expected::read("!~d[o0]wn").unwrap().is_met(b"it is d0wn"));
    }

    #[test]
    fn what_is_expected_is_written_as_it_is_read() {
        for text in ["OK", "!OK", "~^OK$", "!~^OK$", r"\x21OK", r"!\x7eOK", "a\r\nb"] {
            let expected = Expected::read(text).unwrap();
            assert_eq!(expected.to_string(), text);
            assert_eq!(Expected::read(&expected.to_string()).unwrap(), expected);
        }
        let refused = Expected::read("~(").unwrap_err();
        assert!(refused.hint.contains("not a regular expression of linear time"), "{refused:?}");
    }
}
