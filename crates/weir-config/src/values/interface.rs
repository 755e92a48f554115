//! Network interfaces, by name or by pattern.

use std::fmt;

use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::units::{Refused, refuse};

/// Longest name of an interface in bytes (`IFNAMSIZ` of Linux, without its NUL).
const NAME_BYTES: usize = 15;

/// Interfaces with one name, or with any name that matches a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfacePattern(String);

/// A name of an interface, or a pattern with `*`.
pub(crate) static INTERFACE: Shape =
    Shape::new("an interface", "eth0", |text| interface(text).map(|pattern| pattern.to_string()));

one!(InterfacePattern, Value::Text(text) => interface(text).ok(), |it| Value::Text(it.to_string()), InterfacePattern(String::new()));

impl fmt::Display for InterfacePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl InterfacePattern {
    /// Whether it is a name, not a pattern.
    pub fn is_name(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether it matches an interface with this name. A `*` stands for any characters, or none.
    pub fn matches(&self, name: &str) -> bool {
        let Some((first, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut name) = name.strip_prefix(first) else { return false };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost match of each part leaves the most text for the parts after it.
        for part in middle.split('*') {
            let Some(at) = name.find(part) else { return false };
            name = &name[at + part.len()..];
        }
        name.ends_with(last)
    }
}

fn interface(text: &str) -> Result<InterfacePattern, Refused> {
    let message = format!("{} is not an interface", quote(text));
    if let Some((name, _)) = text.split_once(':') {
        return refuse(message, format!("an alias is an address of its interface: did you mean \"{name}\"?"));
    }
    let literal = text.len() - text.matches('*').count();
    if text.is_empty() || literal > NAME_BYTES {
        return refuse(
            message,
            format!("expected a name of 1 to {NAME_BYTES} bytes, or a pattern such as \"eth*\""),
        );
    }
    let is_bad = |c: char| c == '/' || c.is_whitespace() || c.is_control();
    if text.contains(is_bad) || matches!(text, "." | "..") {
        return refuse(
            message,
            "expected a name as `ip link` shows it, such as \"eth0\", or a pattern such as \"eth*\"",
        );
    }
    Ok(InterfacePattern(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_characters_or_none() {
        for (pattern, name, expected) in [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("eth*", "eth0", true),
            ("eth*", "eth", true),
            ("eth*", "veth0", false),
            ("*", "lo", true),
            ("en*s0", "enp1s0", true),
            ("en*s0", "ens0", true),
            ("en*s0", "enp1s1", false),
            // The last part must match after the others.
            ("ab*ba", "aba", false),
            ("a*b*c*", "axbxcx", true),
            ("a*b*c", "axcxb", false),
            ("v*0.*", "vlan0.100", true),
            ("**", "x", true),
        ] {
            assert_eq!(interface(pattern).unwrap().matches(name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn what_no_interface_is_called_is_refused_with_what_was_probably_meant() {
        for (text, hint) in [
            ("eth0:1", "an alias is an address of its interface: did you mean \"eth0\"?"),
            ("", "expected a name of 1 to 15 bytes, or a pattern such as \"eth*\""),
            ("a-name-of-16-byt", "expected a name of 1 to 15 bytes, or a pattern such as \"eth*\""),
        ] {
            assert_eq!(interface(text).unwrap_err().hint, hint);
        }
        for text in ["/sys", "eth 0", "eth0\n", ".", ".."] {
            assert!(interface(text).is_err(), "{text}");
        }
        assert!(interface("a-name-of-15-by*").is_ok());
    }
}
