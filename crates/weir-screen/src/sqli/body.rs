//! The kind of body that a request declares, and whether the body can be read as that kind.
//!
//! A screen that reads a body differently from the application sees nothing of what the application sees. So
//! anything that readers are known to interpret differently is [`Unreadable`] here; nothing is guessed.

use std::fmt;

use crate::sqli::media_type::{Malformed, Parameterized};

/// A kind of body that the screen reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyKind {
    /// `application/x-www-form-urlencoded`.
    Form,
    /// `multipart/form-data` and its like, with the boundary.
    Multipart(Box<[u8]>),
    /// `application/json`, everything ending in `+json`, and other names for it.
    Json,
    /// No type, an invalid type, or plain text, which browsers may send across sites without asking:
    /// applications then guess.
    Unstated,
}

/// Why a body cannot be read as its type declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It has a content coding.
    Encoded,
    /// It is in a character set that encodes ASCII in other bytes.
    Charset,
    /// Its type is given twice, or malformed.
    Type,
    /// The boundaries of its parts are not where they must be.
    Multipart,
    /// The head of a part is malformed, or its content is encoded.
    Part,
    /// It is not JSON.
    Json,
}

impl Unreadable {
    /// One word, for logs.
    pub fn word(self) -> &'static str {
        match self {
            Unreadable::Encoded => "content-encoding",
            Unreadable::Charset => "charset",
            Unreadable::Type => "content-type",
            Unreadable::Multipart => "multipart",
            Unreadable::Part => "part",
            Unreadable::Json => "json",
        }
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unreadable::Encoded => "the body has a content coding",
            Unreadable::Charset => "the body is in a character set that writes ASCII in other bytes",
            Unreadable::Type => "the type of the body is given twice, or is malformed",
            Unreadable::Multipart => "a boundary of the body stands where none may be",
            Unreadable::Part => "a part of the body is malformed, or encoded",
            Unreadable::Json => "the body is not JSON",
        })
    }
}

impl From<Malformed> for Unreadable {
    fn from(_: Malformed) -> Unreadable {
        Unreadable::Type
    }
}

impl BodyKind {
    /// The kind declared by all `content-type` and `content-encoding` lines of a request; `None` for a kind
    /// that is not examined.
    ///
    /// # Errors
    /// The body would have to be examined, but cannot be read.
    pub fn of<'b>(
        mut types: impl Iterator<Item = &'b [u8]>,
        mut codings: impl Iterator<Item = &'b [u8]>,
    ) -> Result<Option<BodyKind>, Unreadable> {
        let kind = match (types.next(), types.next()) {
            (None, _) => Some(BodyKind::Unstated),
            (Some(only), None) => one(only)?,
            (Some(first), Some(second)) => {
                for each in [first, second].into_iter().chain(types) {
                    if !matches!(one(each), Ok(None)) {
                        return Err(Unreadable::Type);
                    }
                }
                None
            }
        };
        let is_identity = |coding: &[u8]| coding.is_empty() || coding.eq_ignore_ascii_case(b"identity");
        if kind.is_some() && !codings.all(|coding| is_identity(coding.trim_ascii())) {
            return Err(Unreadable::Encoded);
        }
        Ok(kind)
    }
}

/// The kind declared by one `content-type`.
fn one(content_type: &[u8]) -> Result<Option<BodyKind>, Unreadable> {
    let Ok(read) = Parameterized::of(content_type) else { return of_no_type(content_type) };
    let kind = read.value.to_ascii_lowercase();
    let Some((of, subtype)) = split_once(&kind, b'/') else { return of_no_type(content_type) };
    let kind = if of == b"multipart" {
        BodyKind::Multipart(boundary(content_type, &read)?.into())
    } else if holds(subtype, b"urlencoded") || holds(subtype, b"url-encoded") {
        BodyKind::Form
    } else if holds(subtype, b"json") {
        BodyKind::Json
    } else if kind == b"text/plain" {
        BodyKind::Unstated
    } else if read.parameters().any(|parameter| parameter.is_err()) {
        return of_no_type(content_type);
    } else {
        return Ok(None);
    };
    charset(&read)?;
    Ok(Some(kind))
}

/// An invalid media type leaves the kind to the application, unless it contains the name of a type that is
/// read here.
fn of_no_type(content_type: &[u8]) -> Result<Option<BodyKind>, Unreadable> {
    let text = content_type.to_ascii_lowercase();
    let names: [&[u8]; 3] = [b"json", b"multipart", b"urlencoded"];
    if names.into_iter().any(|name| holds(&text, name)) {
        return Err(Unreadable::Type);
    }
    Ok(Some(BodyKind::Unstated))
}

/// Longest boundary (RFC 2046 §5.1.1), bytes.
const LONGEST_BOUNDARY: usize = 70;

/// The boundary of a multipart type.
///
/// Some readers undo escapes in quotes and some don't, some stop at a comma, some take the first of two, and
/// some search for the word anywhere (PHP). If they would differ, this is an error.
fn boundary<'b>(content_type: &[u8], read: &Parameterized<'b>) -> Result<&'b [u8], Unreadable> {
    let mut found = None;
    for parameter in read.parameters() {
        let parameter = parameter?;
        if parameter.name.eq_ignore_ascii_case(b"boundary") && found.replace(parameter.value).is_some() {
            return Err(Unreadable::Type);
        }
    }
    let is_good = |byte: &u8| byte.is_ascii_alphanumeric() || b"'()+_-./:=?".contains(byte);
    let boundary = found.ok_or(Unreadable::Type)?;
    if boundary.is_empty() || boundary.len() > LONGEST_BOUNDARY || !boundary.iter().all(is_good) {
        return Err(Unreadable::Type);
    }
    if is_first_said(content_type, boundary) { Ok(boundary) } else { Err(Unreadable::Type) }
}

/// Whether a reader that searches for the word `boundary` anywhere finds this one. (The boundary itself often
/// contains the word, too.)
fn is_first_said(content_type: &[u8], boundary: &[u8]) -> bool {
    let word = b"boundary";
    let first = content_type.windows(word.len()).position(|text| text.eq_ignore_ascii_case(word));
    let Some((before, behind)) = first.and_then(|first| content_type.split_at_checked(first)) else {
        return false;
    };
    let value = behind.get(word.len()..).and_then(|behind| behind.strip_prefix(b"=")).unwrap_or_default();
    matches!(before.last(), Some(b';' | b' ' | b'\t'))
        && value.strip_prefix(b"\"").unwrap_or(value).starts_with(boundary)
}

/// `Err` for a character set in which a quote need not be the ASCII byte, and for one that is given twice.
pub fn charset(read: &Parameterized<'_>) -> Result<(), Unreadable> {
    let mut is_said = false;
    for parameter in read.parameters() {
        let parameter = parameter?;
        let name = parameter.name.get(..7).unwrap_or_default();
        if !name.eq_ignore_ascii_case(b"charset") {
            continue;
        }
        // `charset*` and `charset*0` are other ways to write it (RFC 2231).
        if std::mem::replace(&mut is_said, true) || parameter.name.len() > 7 {
            return Err(Unreadable::Type);
        }
        if !writes_ascii_as_ascii(parameter.value) {
            return Err(Unreadable::Charset);
        }
    }
    Ok(())
}

/// Whether every byte below 128 in this character set is, by itself, the ASCII character.
pub fn writes_ascii_as_ascii(charset: &[u8]) -> bool {
    const NAMES: [&[u8]; 13] = [
        b"ascii",
        b"big5",
        b"gb18030",
        b"gb2312",
        b"gbk",
        b"latin1",
        b"shift_jis",
        b"sjis",
        b"tis-620",
        b"us-ascii",
        b"utf-8",
        b"utf8",
        b"utf8mb4",
    ];
    const FAMILIES: [&[u8]; 7] =
        [b"cp125", b"euc-", b"iso-8859-", b"iso8859-", b"iso_8859-", b"koi8-", b"windows-125"];
    let name = charset.to_ascii_lowercase();
    NAMES.contains(&name.as_slice()) || FAMILIES.iter().any(|family| name.starts_with(family))
}

fn holds(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

fn split_once(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let position = text.iter().position(|&byte| byte == at)?;
    Some((text.get(..position)?, text.get(position + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(types: &[&str], codings: &[&str]) -> Result<Option<BodyKind>, Unreadable> {
        BodyKind::of(types.iter().map(|text| text.as_bytes()), codings.iter().map(|text| text.as_bytes()))
    }

    fn multipart(boundary: &[u8]) -> Result<Option<BodyKind>, Unreadable> {
        Ok(Some(BodyKind::Multipart(boundary.into())))
    }

    #[test]
    fn content_types_say_how_a_body_is_read() {
        for (content_type, expected) in [
            ("Application/JSON; charset=utf-8", Some(BodyKind::Json)),
            ("application/problem+json", Some(BodyKind::Json)),
            ("application/x-json", Some(BodyKind::Json)),
            ("application/x-www-form-urlencoded;", Some(BodyKind::Form)),
            ("text/plain;charset=UTF-8", Some(BodyKind::Unstated)),
            ("undefined", Some(BodyKind::Unstated)),
            ("", Some(BodyKind::Unstated)),
            ("image/png", None),
            ("text/html; charset=utf-16", None),
        ] {
            assert_eq!(kind(&[content_type], &[]), Ok(expected), "{content_type}");
        }
        assert_eq!(kind(&[], &[]), Ok(Some(BodyKind::Unstated)));
        assert_eq!(kind(&["multipart/form-data; boundary=x_y-z"], &[]), multipart(b"x_y-z"));
        let of_a_browser = "multipart/form-data; boundary=----WebKitFormBoundaryx7";
        assert_eq!(kind(&[of_a_browser], &[]), multipart(b"----WebKitFormBoundaryx7"));
        assert_eq!(kind(&["multipart/mixed;BOUNDARY=\"=_a:1\""], &[]), multipart(b"=_a:1"));
    }

    #[test]
    fn a_type_that_readers_take_differently_is_not_read() {
        for content_type in [
            "multipart/form-data",
            "multipart/form-data; boundary",
            "multipart/form-data; boundary=",
            "multipart/form-data; boundary=\"\"",
            "multipart/form-data; boundary=\"\\B\"",
            "multipart/form-data; boundary=\"B",
            "multipart/form-data; boundary=\"B\"C",
            "multipart/form-data; boundary=A,B",
            "multipart/form-data; boundary=A B",
            "multipart/form-data; boundary=A; boundary=B",
            "multipart/form-data; boundary*=utf-8''B",
            "multipart/form-data; boundary*0=A; boundary*1=B",
            "multipart/form-data; xboundary=A; boundary=B",
            "multipart/form-data; x=\"boundary=A\"; boundary=B",
            "multipart/form-data; boundary =B",
            "multipart/form-data, boundary=B",
            "multipart/form-data boundary=B",
            "multipart/ form-data; boundary=B",
            "application/json, text/html",
            "text/html; application/json",
            "application/json/x",
            "application/json; charset=utf-8; charset=utf-16",
            "application/json; charset*=utf-16''x",
        ] {
            assert_eq!(kind(&[content_type], &[]), Err(Unreadable::Type), "{content_type}");
        }
        let long = format!("multipart/form-data; boundary={}", "b".repeat(71));
        assert_eq!(kind(&[&long], &[]), Err(Unreadable::Type));
        assert_eq!(kind(&["image/png", "application/json"], &[]), Err(Unreadable::Type));
        assert_eq!(kind(&["application/json", "application/json"], &[]), Err(Unreadable::Type));
        assert_eq!(kind(&["image/png", "image/gif"], &[]), Ok(None));
    }

    #[test]
    fn bodies_in_other_codings_and_character_sets_are_not_read() {
        for charset in
            ["utf-16", "UTF-16LE", "utf-7", "utf-32", "ibm037", "cp500", "iso-2022-jp", "hz-gb-2312"]
        {
            let json = format!("application/json; charset=\"{charset}\"");
            assert_eq!(kind(&[&json], &[]), Err(Unreadable::Charset), "{charset}");
        }
        assert_eq!(kind(&["application/json"], &["gzip"]), Err(Unreadable::Encoded));
        assert_eq!(kind(&["application/json"], &["identity", "br"]), Err(Unreadable::Encoded));
        assert_eq!(kind(&["application/json"], &["identity, gzip"]), Err(Unreadable::Encoded));
        assert_eq!(kind(&["application/json"], &["Identity", ""]), Ok(Some(BodyKind::Json)));
        assert_eq!(kind(&["image/png"], &["gzip"]), Ok(None));
    }
}
