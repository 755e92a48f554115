//! Entity tags and lists of them (RFC 9110 §8.8.3, §13.1).

use crate::scan;

/// One entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntityTag<'a> {
    /// Whether it is marked with `W/`.
    pub weak: bool,
    /// The text between the quotes.
    pub opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Parses a text that consists of one tag; `None` for anything else, including unquoted tags.
    pub fn parse(text: &'a [u8]) -> Option<EntityTag<'a>> {
        let (tag, rest) = EntityTag::take(text)?;
        rest.is_empty().then_some(tag)
    }

    /// Parses the tag that `text` begins with. Commas and backslashes are ordinary bytes in it.
    fn take(text: &'a [u8]) -> Option<(EntityTag<'a>, &'a [u8])> {
        let (weak, quoted) = match text {
            [b'W', b'/', rest @ ..] => (true, rest),
            _ => (false, text),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let end = inner.iter().position(|&byte| byte == b'"')?;
        let (opaque, rest) = inner.split_at(end);
        let visible = opaque.iter().all(|&byte| byte > b' ' && byte != 0x7f);
        visible.then_some((EntityTag { weak, opaque }, rest.get(1..).unwrap_or_default()))
    }

    /// Strong comparison (RFC 9110 §8.8.3.2): if both are strong and equal, the contents are identical.
    pub fn same_strongly(&self, other: &EntityTag<'_>) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Weak comparison, ignoring strength (RFC 9110 §8.8.3.2): if equal, the contents are equivalent.
    pub fn same_weakly(&self, other: &EntityTag<'_>) -> bool {
        self.opaque == other.opaque
    }
}

/// Whether an `if-none-match` lists the tag, by weak comparison, or is `*`, which matches any (RFC 9110
/// §13.1.2).
///
/// Lines that are not lists of tags match nothing, so that the client gets the whole response. `tag` is that
/// of the stored response, if it has one.
pub fn names<'a>(values: impl Iterator<Item = &'a [u8]>, tag: Option<EntityTag<'_>>) -> bool {
    let mut named = false;
    let (mut lines, mut any) = (0, false);
    for value in values {
        lines += 1;
        if value == b"*" {
            any = true;
            continue;
        }
        match names_in_line(value, tag.as_ref()) {
            Some(found) => named |= found,
            None => return false,
        }
    }
    // `*` must be the only line; otherwise the field matches nothing.
    if any { lines == 1 } else { named }
}

/// `None` when the line is not a list of tags.
fn names_in_line(value: &[u8], tag: Option<&EntityTag<'_>>) -> Option<bool> {
    let mut named = false;
    let mut rest = scan::trim(value);
    loop {
        while let [b',' | b' ' | b'\t', behind @ ..] = rest {
            rest = behind;
        }
        if rest.is_empty() {
            return Some(named);
        }
        let (found, behind) = EntityTag::take(rest)?;
        named |= tag.is_some_and(|tag| tag.same_weakly(&found));
        rest = scan::trim(behind);
        if !rest.is_empty() && !rest.starts_with(b",") {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(text: &str) -> EntityTag<'_> {
        EntityTag::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_examples_of_the_rfc_are_tags() {
        assert_eq!(tag("\"xyzzy\""), EntityTag { weak: false, opaque: b"xyzzy" });
        assert_eq!(tag("W/\"xyzzy\""), EntityTag { weak: true, opaque: b"xyzzy" });
        assert_eq!(tag("\"\""), EntityTag { weak: false, opaque: b"" });
        assert_eq!(tag("\"a,b\\\""), EntityTag { weak: false, opaque: b"a,b\\" });
    }

    #[test]
    fn anything_else_is_no_tag() {
        for bad in [
            "",
            "xyzzy",
            "\"xyzzy",
            "xyzzy\"",
            "w/\"xyzzy\"",
            "W/xyzzy",
            "W /\"x\"",
            "\"a b\"",
            "\"a\"b",
            "'a'",
            "*",
        ] {
            assert_eq!(EntityTag::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn tags_compare_as_in_the_table_of_the_rfc() {
        // RFC 9110 section 8.8.3.2: first, second, strong comparison, weak comparison.
        for (first, second, strong, weak) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
        ] {
            assert_eq!(tag(first).same_strongly(&tag(second)), strong, "{first} {second}");
            assert_eq!(tag(first).same_weakly(&tag(second)), weak, "{first} {second}");
        }
    }

    #[test]
    fn a_list_names_its_tags_and_nothing_else() {
        let names = |values: &[&'static str]| {
            super::names(values.iter().map(|value| value.as_bytes()), Some(tag("\"xyzzy\"")))
        };
        // RFC 9110 section 13.1.2.
        assert!(names(&["\"xyzzy\""]));
        assert!(names(&["W/\"xyzzy\""]));
        assert!(names(&["\"xyzzy\", \"r2d2xxxx\", \"c3piozzzz\""]));
        assert!(names(&["W/\"r2d2xxxx\", W/\"xyzzy\""]));
        assert!(names(&["\"r2d2xxxx\"", "\"xyzzy\""]));
        assert!(names(&[",, \"a,b\" ,\"xyzzy\","]));
        assert!(names(&["*"]));
        for none in [
            &["\"r2d2xxxx\""][..],
            &[],
            &[""],
            &["xyzzy"],
            &["\"a, \"xyzzy\""],
            &["*, \"xyzzy\""],
            &["*", "\"a\""],
            &["\"xyzzy\" \"a\""],
            &["\"xyzzy\", b"],
        ] {
            assert!(!names(none), "{none:?}");
        }
    }

    #[test]
    fn a_star_names_also_what_has_no_tag() {
        let one = |value: &'static [u8]| super::names(std::iter::once(value), None);
        assert!(one(b"*"));
        assert!(!one(b"\"a\""));
    }
}
