//! The cookies of a request (RFC 6265 section 4.2.1), parsed in the same way for all uses.

/// Name and value of each cookie of a line.
pub fn pairs(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    line.split(|byte| *byte == b';').filter_map(parts)
}

/// Name and value of the text between two semicolons; `None` if it has no `=`.
pub fn parts(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let pair = pair.trim_ascii();
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..at], &pair[at + 1..]))
}

/// The value of the first cookie with that name; `None` if there is none.
pub fn first<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    of_name(lines, name).next()
}

/// The value of the only cookie with that name; `None` if there is none, or more than one in all lines.
///
/// Use this for credentials: if there are two cookies with one name, a backend may use the one that was not
/// checked.
pub fn only<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    let mut found = of_name(lines, name);
    let value = found.next()?;
    found.next().is_none().then_some(value)
}

fn of_name<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> impl Iterator<Item = &'a [u8]> {
    lines.flat_map(pairs).filter(move |(this, _)| *this == name).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_found_among_others_and_only_by_its_whole_name() {
        let lines = || [&b"a=1; weird=2; weir=00ff"[..], b"weir=3"].into_iter();
        assert_eq!(first(lines(), b"weir"), Some(&b"00ff"[..]));
        assert_eq!(first(lines(), b"wei"), None);
    }

    #[test]
    fn a_second_cookie_of_a_name_leaves_none() {
        let only = |lines: &[&'static str]| only(lines.iter().map(|line| line.as_bytes()), b"t");
        assert_eq!(only(&["a=1; t=x; T=y"]), Some(&b"x"[..]));
        assert_eq!(only(&["t=x; t=y"]), None);
        assert_eq!(only(&["t=x", "a=1;t="]), None);
        assert_eq!(only(&["t=x", "t=x"]), None);
        assert_eq!(only(&["a=1"]), None);
    }
}
