//! Displays keys of limits: in clear if nothing in them is secret, bounded in length, and without anything
//! that a terminal or a line-based reader would interpret.

use std::fmt::Write as _;

use weir_template::{Source, Variable};

use crate::digest::Digest;
use crate::network::Network;

/// Most bytes of a key that are remembered; the beginning of a longer one is kept.
const TEXT_BYTES: usize = 128;

/// Replaces a secret in a text until the key's digest is known.
const HIDDEN: &[u8] = b"[hidden]";

/// Parts of the names of header fields, parameters, maps and claims whose values may be credentials. One too
/// many hides a harmless value; one too few reveals a secret.
const SECRET_NAMES: [&str; 11] =
    ["auth", "cookie", "credential", "jwt", "key", "pass", "secret", "session", "sid", "sig", "token"];

/// Whose key it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// A client: its address, or its network if the limit counts by that.
    Client(String),
    /// A header, cookie or template value.
    Text {
        /// The part that may be shown. Characters that control a terminal are escaped, and possible secrets
        /// are replaced by `[hidden 1f3a9c2e]`: the number distinguishes keys and reveals nothing about the
        /// secret.
        text: String,
        /// Whether anything is hidden.
        hidden: bool,
        /// Whether it was cut off.
        cut: bool,
    },
    /// All requests together.
    All,
}

/// What is remembered to display a key.
#[derive(Clone, Debug)]
pub(crate) enum Remembered {
    Client(Network),
    Text { text: Box<[u8]>, hidden: bool, cut: bool },
    All,
}

impl Remembered {
    /// A text; `hidden` says whether [`Masked`] has hidden anything in it.
    pub fn of_text(text: &[u8], hidden: bool) -> Remembered {
        let cut = text.len() > TEXT_BYTES;
        // Don't cut a character in two.
        let is_inside = |at: &usize| text.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
        let end = match cut {
            true => (TEXT_BYTES - 3..=TEXT_BYTES).rev().find(|at| !is_inside(at)).unwrap_or(TEXT_BYTES),
            false => text.len(),
        };
        Remembered::Text { text: text[..end].into(), hidden, cut }
    }

    /// A text of which nothing may be shown.
    pub fn hidden() -> Remembered {
        Remembered::of_text(HIDDEN, true)
    }

    /// The form for display; `digest` is the key's.
    pub fn whose(&self, digest: Digest) -> Whose {
        match self {
            Remembered::Client(network) => Whose::Client(network.to_string()),
            Remembered::All => Whose::All,
            Remembered::Text { text, hidden, cut } => {
                let mut shown = harmless(text);
                if *hidden {
                    // The seed of the digests is secret, so nobody can test guesses of the secret against
                    // this number.
                    shown = shown.replace("[hidden]", &format!("[hidden {:08x}]", digest[1] >> 32));
                }
                Whose::Text { text: shown, hidden: *hidden, cut: *cut }
            }
        }
    }
}

/// The values of a request, with possible secrets hidden.
pub(crate) struct Masked<'a>(pub &'a dyn Source);

impl Source for Masked<'_> {
    fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
        let before = out.len();
        self.0.put(variable, out);
        if is_secret(variable) && out.len() > before {
            out.truncate(before);
            out.extend_from_slice(HIDDEN);
        }
    }
}

/// Whether the value of this variable may be secret.
pub(crate) fn is_secret(variable: &Variable) -> bool {
    match variable {
        // A query may contain any parameter.
        Variable::Cookie(_) | Variable::Query => true,
        Variable::Header(name)
        | Variable::Parameter(name)
        | Variable::Map(name)
        | Variable::Claim(name)
        | Variable::ResponseHeader(name) => is_secret_name(name),
        _ => false,
    }
}

/// Whether a value with this name may be secret.
pub(crate) fn is_secret_name(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_NAMES.iter().any(|part| name.contains(part))
}

/// A text in which every character is escaped that controls a terminal, ends a line, or changes how a line
/// reads; invalid bytes are escaped too.
fn harmless(text: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c.is_control() || is_invisible(c) {
                true => out.extend(c.escape_unicode()),
                false => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string can't fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use weir_template::Template;

    use super::*;
    use crate::key::Key;
    use crate::screen::{Facts, FieldLookup};

    /// Gives each variable `secret` and its own name as its value.
    struct Named;

    impl Source for Named {
        fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
            out.extend_from_slice(format!("secret-{}", variable.name()).as_bytes());
        }
    }

    fn facts<'a>(header: &'a FieldLookup<'a>) -> Facts<'a> {
        Facts {
            client: "192.0.2.7".parse().unwrap(),
            path: b"/",
            method: b"GET",
            user_agent: b"",
            header,
            cookie: &|_| Some(b"secret"),
            values: &Named,
        }
    }

    fn shown(key: &Key, value: &'static [u8]) -> Whose {
        let header = |_: &[u8]| Some(Cow::Borrowed(value));
        key.remembered(&facts(&header)).whose([1, 0x1f3a_9c2e_0000_0000])
    }

    fn by_text(text: &str) -> Key {
        Key::Value { template: Template::parse(text, 0).unwrap(), v4_bits: 24, v6_bits: 64 }
    }

    fn text(whose: Whose) -> String {
        match whose {
            Whose::Text { text, .. } => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_client_is_shown_by_its_network_and_who_has_no_value_by_its_address() {
        let wide = Key::ClientIp { v4_bits: 24, v6_bits: 64 };
        assert_eq!(shown(&wide, b""), Whose::Client("192.0.2.0/24".to_owned()));
        assert_eq!(shown(&Key::CLIENT, b""), Whose::Client("192.0.2.7".to_owned()));
        let lacking = Key::Header("x-user".into()).remembered(&facts(&|_| None));
        assert_eq!(lacking.whose([0; 2]), Whose::Client("192.0.2.7".to_owned()));
        assert_eq!(shown(&Key::Route, b""), Whose::All);
    }

    /// Threat D44.
    #[test]
    fn d44_what_may_prove_who_somebody_is_is_not_even_remembered() {
        let of_header = |name: &str| shown(&Key::Header(name.into()), b"Bearer secret");
        let hidden = Whose::Text { text: "[hidden 1f3a9c2e]".to_owned(), hidden: true, cut: false };
        for name in
            ["authorization", "proxy-authorization", "cookie", "x-api-key", "x-auth-token", "X-Session"]
        {
            assert_eq!(of_header(name), hidden, "{name}");
        }
        assert_eq!(shown(&Key::Cookie("user".into()), b""), hidden);
        let secret = by_text("$client_ip $header.authorization $cookie.a $query $query.api_key $claim.token");
        let remembered = secret.remembered(&facts(&|_| None));
        assert!(!format!("{remembered:?}").contains("secret"), "{remembered:?}");
        let mark = "[hidden 1f3a9c2e]";
        assert_eq!(text(shown(&secret, b"")), format!("192.0.2.0/24 {mark} {mark} {mark} {mark} {mark}"));
        assert_eq!(text(shown(&by_text("$header.x-user $user"), b"")), "secret-header.x-user secret-user");
        assert_eq!(text(of_header("x-user")), "Bearer secret");
    }

    /// Threat D44.
    #[test]
    fn d44_no_key_steers_a_terminal_or_makes_a_line() {
        let of = |value| text(shown(&Key::Header("x-user".into()), value));
        assert_eq!(of(b"\x1b]0;title\x07a\r\nb\tc"), r"\u{1b}]0;title\u{7}a\u{d}\u{a}b\u{9}c");
        assert_eq!(of("a\u{202e}b\u{9b}31m\u{2028}é".as_bytes()), r"a\u{202e}b\u{9b}31m\u{2028}é");
        assert_eq!(of(b"\xff\xfe[hidden]"), r"\xff\xfe[hidden]");
    }

    #[test]
    fn a_long_key_is_cut_between_two_characters_and_says_so() {
        let long: &'static [u8] = "é".repeat(1_000).leak().as_bytes();
        let Whose::Text { text, cut, .. } = shown(&Key::Header("x-user".into()), long) else { panic!() };
        assert_eq!((text, cut), ("é".repeat(TEXT_BYTES / 2), true));
        let odd: &'static [u8] = format!("a{}", "é".repeat(1_000)).leak().as_bytes();
        let Whose::Text { text, .. } = shown(&Key::Header("x-user".into()), odd) else { panic!() };
        assert_eq!(text, format!("a{}", "é".repeat(TEXT_BYTES / 2 - 1)));
        let whole: &'static [u8] = "a".repeat(TEXT_BYTES).leak().as_bytes();
        let Whose::Text { text, cut, .. } = shown(&Key::Header("x-user".into()), whole) else { panic!() };
        assert_eq!((text.len(), cut), (TEXT_BYTES, false));
    }
}
