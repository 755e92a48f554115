//! Finds the values of a request, and judges each of them.

use std::fmt;

use crate::sqli::body::{self, BodyKind, Unreadable};
use crate::sqli::{Finding, Scratch, decode, json, judge, multipart};

/// The place of a value in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A segment of the path.
    Path,
    /// A query parameter.
    Query(Box<[u8]>),
    /// The name of a query parameter.
    QueryName,
    /// A header field.
    Header(Box<[u8]>),
    /// A cookie.
    Cookie(Box<[u8]>),
    /// A form field.
    Form(Box<[u8]>),
    /// The name of a form field, or of its file.
    FormName,
    /// A string in JSON, with its key.
    Json(Box<[u8]>),
    /// A key in JSON.
    JsonKey,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Path => f.write_str("path"),
            Location::Query(name) => write!(f, "query parameter `{}`", shown(name)),
            Location::QueryName => f.write_str("name of a query parameter"),
            Location::Header(name) => write!(f, "header `{}`", shown(name)),
            Location::Cookie(name) => write!(f, "cookie `{}`", shown(name)),
            Location::Form(name) => write!(f, "form field `{}`", shown(name)),
            Location::FormName => f.write_str("name of a form field"),
            Location::Json(key) => write!(f, "JSON string `{}`", shown(key)),
            Location::JsonKey => f.write_str("JSON key"),
        }
    }
}

/// The beginning of a name, enough to recognise it.
fn shown(name: &[u8]) -> impl fmt::Display {
    name.get(..name.len().min(LONGEST_NAME)).unwrap_or_default().escape_ascii()
}

/// An injection, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where in the request.
    pub location: Location,
    /// What was found.
    pub finding: Finding,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {}, {}",
            self.location,
            self.finding.reason.sentence(),
            self.finding.context_sentence()
        )
    }
}

/// Header fields that are not judged: their values have a grammar of their own that servers parse, are
/// opaque, or are checked by Weir.
const SKIPPED: [&[u8]; 30] = [
    b"accept",
    b"accept-charset",
    b"accept-encoding",
    b"access-control-request-headers",
    b"access-control-request-method",
    b"authorization",
    b"cache-control",
    b"connection",
    b"content-encoding",
    b"content-length",
    b"content-type",
    b"date",
    b"dnt",
    b"expect",
    b"host",
    b"if-match",
    b"if-modified-since",
    b"if-none-match",
    b"if-range",
    b"if-unmodified-since",
    b"keep-alive",
    b"max-forwards",
    b"priority",
    b"proxy-authorization",
    b"range",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
    b"upgrade-insecure-requests",
];

/// Most further layers of encoding that are undone after the first.
const LAYERS: usize = 2;
/// Longest name of a header field that this screen looks up.
const LONGEST_NAME: usize = 64;
/// Positions in a path from which the rest is read as a whole.
const PATH_STARTS: usize = 4;

/// Judges requests, one after another. Reuses its buffers.
#[derive(Default)]
pub struct Screen {
    scratch: Scratch,
    key: Vec<u8>,
    value: Vec<u8>,
    raw: Vec<u8>,
}

/// How a value is encoded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// Percent-encoded, `+` for spaces.
    Form,
    /// Percent-encoded.
    Percent,
    /// Not encoded.
    Plain,
}

impl Screen {
    /// The first injection in a path, segment by segment. A payload may contain slashes, in a comment or in
    /// quotes. So what follows is also read as a whole, from [`PATH_STARTS`] segments at most: those that
    /// have a quote, or that a `/*` follows.
    pub fn path(&mut self, path: &[u8]) -> Option<Found> {
        let found = |finding| Found { location: Location::Path, finding };
        let mut starts = 0;
        let mut at = 0;
        for segment in path.split(|&byte| byte == b'/') {
            if let Some(finding) = self.examine(segment, Written::Percent) {
                return Some(found(finding));
            }
            let rest = path.get(at..).unwrap_or_default();
            at += segment.len() + 1;
            let may_hold_more = rest.len() > segment.len()
                && (rest.windows(2).any(|pair| pair == b"/*")
                    || segment.iter().any(|byte| matches!(byte, b'\'' | b'"'))
                    || segment.windows(3).any(|three| matches!(three, b"%27" | b"%22")));
            if may_hold_more && starts < PATH_STARTS {
                starts += 1;
                if let Some(finding) = self.examine(rest, Written::Percent) {
                    return Some(found(finding));
                }
            }
        }
        None
    }

    /// The first injection in a query, without its `?`.
    pub fn query(&mut self, query: &[u8]) -> Option<Found> {
        self.pairs(query, |name| match name {
            Some(name) => Location::Query(name.into()),
            None => Location::QueryName,
        })
    }

    /// The first injection in a header field. Names match in any case.
    pub fn header(&mut self, name: &[u8], value: &[u8]) -> Option<Found> {
        let mut lower = [0; LONGEST_NAME];
        let name = match lower.get_mut(..name.len()) {
            Some(room) => {
                room.copy_from_slice(name);
                room.make_ascii_lowercase();
                &*room
            }
            None => name,
        };
        if SKIPPED.binary_search(&name).is_ok() || name.starts_with(b"sec-") {
            return None;
        }
        match name {
            b"cookie" => self.cookies(value),
            b"referer" => {
                let location = || Location::Header(name.into());
                let query = value.iter().position(|&byte| byte == b'?').unwrap_or(value.len());
                let (before, query) = value.split_at_checked(query)?;
                let query = query.strip_prefix(b"?").unwrap_or_default();
                self.path(before)
                    .or_else(|| self.query(query))
                    .map(|found| Found { location: location(), finding: found.finding })
            }
            _ => self
                .examine(value, Written::Plain)
                .map(|finding| Found { location: Location::Header(name.into()), finding }),
        }
    }

    /// Judges one value as the application sees it, and with up to two more layers of encoding undone.
    pub fn value(&mut self, value: &[u8]) -> Option<Finding> {
        self.layers(value)
    }

    fn cookies(&mut self, value: &[u8]) -> Option<Found> {
        for pair in value.split(|&byte| byte == b';') {
            let pair = pair.trim_ascii();
            let equals = pair.iter().position(|&byte| byte == b'=');
            let (name, value) = match equals {
                Some(at) => (pair.get(..at)?, pair.get(at + 1..)?),
                None => (&b""[..], pair),
            };
            let value =
                value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value);
            let judged = self.examine(value, Written::Form).or_else(|| self.examine(name, Written::Percent));
            if let Some(finding) = judged {
                return Some(Found { location: Location::Cookie(name.into()), finding });
            }
        }
        // A payload may contain semicolons.
        let finding = value.contains(&b'\'').then(|| self.examine(value, Written::Percent)).flatten()?;
        Some(Found { location: Location::Cookie(Box::default()), finding })
    }

    /// The first injection in the part of a body received; the body may have been cut off anywhere.
    ///
    /// # Errors
    /// Nothing was found, but the body is not of the declared `kind`: another reader may find something in
    /// it.
    pub fn body(&mut self, kind: &BodyKind, body: &[u8]) -> Result<Option<Found>, Unreadable> {
        match kind {
            BodyKind::Form => Ok(self.form(body)),
            BodyKind::Json => match self.json(body) {
                None if !json::is_json(body, &mut self.raw) => Err(Unreadable::Json),
                found => Ok(found),
            },
            BodyKind::Unstated => Ok(self.form(body).or_else(|| {
                let begins = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
                matches!(begins.first(), Some(b'{' | b'[' | b'"')).then(|| self.json(body)).flatten()
            })),
            BodyKind::Multipart(boundary) => {
                for part in multipart::parts(body, boundary) {
                    if let Some(found) = self.part(&part?)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
        }
    }

    fn form(&mut self, body: &[u8]) -> Option<Found> {
        self.pairs(body, |name| match name {
            Some(name) => Location::Form(name.into()),
            None => Location::FormName,
        })
    }

    fn part(&mut self, part: &multipart::Part<'_>) -> Result<Option<Found>, Unreadable> {
        let names = [
            (part.name, Written::Plain),
            (part.filename, Written::Plain),
            (part.extended_filename, Written::Percent),
        ];
        for (name, written) in names {
            if let Some(finding) = self.examine(name, written) {
                return Ok(Some(Found { location: Location::FormName, finding }));
            }
        }
        if part.is_file {
            return Ok(None);
        }
        // The character set of all other fields (RFC 7578 §4.6).
        if part.name == b"_charset_" && !body::writes_ascii_as_ascii(part.content.trim_ascii()) {
            return Err(Unreadable::Charset);
        }
        let finding = self.examine(part.content, Written::Plain);
        Ok(finding.map(|finding| Found { location: Location::Form(part.name.into()), finding }))
    }

    fn json(&mut self, body: &[u8]) -> Option<Found> {
        let (mut key, mut value) = (std::mem::take(&mut self.key), std::mem::take(&mut self.value));
        let found = json::strings(body, &mut key, &mut value, |key, value, is_key| {
            let finding = self.layers(value)?;
            let location = if is_key { Location::JsonKey } else { Location::Json(key.into()) };
            Some(Found { location, finding })
        });
        (self.key, self.value) = (key, value);
        found
    }

    fn pairs(&mut self, text: &[u8], location: impl Fn(Option<&[u8]>) -> Location) -> Option<Found> {
        for whole in text.split(|&byte| byte == b'&') {
            if let Some(found) = self.pair(whole, &location) {
                return Some(found);
            }
            // Some readers treat a semicolon like an ampersand (HTML 4, appendix B.2.2).
            let mut pieces =
                whole.split(|&byte| byte == b';').skip(1).filter(|piece| begins_with_name(piece));
            if let Some(found) = pieces.find_map(|piece| self.pair(piece, &location)) {
                return Some(found);
            }
        }
        None
    }

    fn pair(&mut self, pair: &[u8], location: &impl Fn(Option<&[u8]>) -> Location) -> Option<Found> {
        let equals = pair.iter().position(|&byte| byte == b'=');
        let (name, value) = match equals {
            Some(at) => (pair.get(..at)?, pair.get(at + 1..)?),
            None => (pair, &b""[..]),
        };
        let found = |finding, name| Found { location: location(name), finding };
        match self.examine(value, Written::Form) {
            Some(finding) => Some(found(finding, Some(name))),
            None => self.examine(name, Written::Form).map(|finding| found(finding, None)),
        }
    }

    /// Judges a value as encoded, and with up to two more layers of encoding undone. If it looks like JSON it
    /// is read as JSON too.
    fn examine(&mut self, text: &[u8], written: Written) -> Option<Finding> {
        if text.len() < 2 || text.iter().all(u8::is_ascii_alphanumeric) {
            return None;
        }
        let mut raw = std::mem::take(&mut self.raw);
        let value: &[u8] = match written {
            Written::Plain => text,
            Written::Form | Written::Percent => {
                decode::percent_into(text, written == Written::Form, &mut raw);
                &raw
            }
        };
        let mut found = self.layers(value);
        if found.is_none()
            && matches!(value.trim_ascii_start().first(), Some(b'{' | b'['))
            && value.contains(&b'"')
        {
            found = self.json(value).map(|found| found.finding);
        }
        let plus = written == Written::Form;
        if found.is_none()
            && written != Written::Plain
            && decode::percent_without_strays_into(text, plus, &mut raw)
        {
            found = self.layers(&raw);
        }
        self.raw = raw;
        found
    }

    fn layers(&mut self, value: &[u8]) -> Option<Finding> {
        if let Some(finding) = judge(value, &mut self.scratch) {
            return Some(finding);
        }
        let (mut folded, mut next) =
            (std::mem::take(&mut self.scratch.decoded), std::mem::take(&mut self.scratch.folded));
        let mut found = None;
        let mut changed = decode::fold_into(value, &mut folded);
        for _ in 0..LAYERS {
            if !changed || found.is_some() {
                break;
            }
            found = judge(&folded, &mut self.scratch);
            changed = decode::fold_into(&folded, &mut next);
            std::mem::swap(&mut folded, &mut next);
        }
        (self.scratch.decoded, self.scratch.folded) = (folded, next);
        found
    }
}

/// Whether `piece` could be a pair: text between semicolons usually is not.
fn begins_with_name(piece: &[u8]) -> bool {
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.[]%".contains(byte);
    let name = piece.iter().take_while(|byte| is_of_name(byte)).count();
    name > 0 && piece.get(name) == Some(&b'=')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqli::Reason;

    #[test]
    fn skipped_headers_are_sorted_so_that_they_are_found() {
        assert!(SKIPPED.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn a_finding_says_in_words_where_and_why() {
        let found = Screen::default().query(b"page=2&id=1%27+or+%271%27%3D%271").unwrap();
        assert_eq!(
            found.to_string(),
            "query parameter `id`: makes a condition of constants, which is always true or always false, within single quotes"
        );
        assert_eq!(found.finding.reason, Reason::Tautology);
    }

    #[test]
    fn each_place_of_a_request_is_looked_at() {
        let mut screen = Screen::default();
        let attack = "1' union select password from users--";
        let encoded = "1%27+union+select+password+from+users--";
        let json = format!("{{\"a\":{{\"b\":[\"{attack}\"]}}}}");
        let multipart = format!("--B\r\nContent-Disposition: form-data; name=\"c\"\r\n\r\n{attack}\r\n--B--");
        let places = [
            screen.path(format!("/item/{}", encoded.replace('+', "%20")).as_bytes()),
            screen.query(format!("a=1&q={encoded}").as_bytes()),
            screen.query(format!("{encoded}=1").as_bytes()),
            screen.header(b"x-forwarded-for", attack.as_bytes()),
            screen.header(b"user-agent", attack.as_bytes()),
            screen.header(b"referer", format!("https://a/b?c={encoded}").as_bytes()),
            screen.header(b"cookie", format!("a=b; id={encoded}").as_bytes()),
            screen.body(&BodyKind::Form, format!("c={encoded}").as_bytes()).unwrap(),
            screen.body(&BodyKind::Json, json.as_bytes()).unwrap(),
            screen.body(&BodyKind::Multipart(b"B"[..].into()), multipart.as_bytes()).unwrap(),
        ];
        let words: Vec<String> = places
            .iter()
            .map(|found| found.as_ref().map_or("nothing".to_owned(), |found| found.location.to_string()))
            .collect();
        let expected = [
            "path",
            "query parameter `q`",
            "name of a query parameter",
            "header `x-forwarded-for`",
            "header `user-agent`",
            "header `referer`",
            "cookie `id`",
            "form field `c`",
            "JSON string `b`",
            "form field `c`",
        ];
        assert_eq!(words, expected);
        assert_eq!(screen.header(b"if-none-match", attack.as_bytes()), None);
    }

    #[test]
    fn encodings_within_encodings_hide_nothing() {
        let mut screen = Screen::default();
        for query in [
            "id=1%2527%2520or%25201%253D1--",
            "id=1&#39;",
            "id=1%26%2339%3B+or+1%3D1--+",
            "id=1%u0027+or+1%3D1--+",
            "id=%EF%BC%87+or+1%3D1--+",
            "id=%7B%22a%22%3A%221%27+or+1%3D1--+%22%7D",
            "id=1%C0%A7+or+1%3D1--+",
        ] {
            let is_payload = query != "id=1&#39;";
            assert_eq!(screen.query(query.as_bytes()).is_some(), is_payload, "{query}");
        }
    }

    #[test]
    fn a_body_that_is_not_what_its_type_says_is_unreadable_unless_an_injection_is_found_first() {
        let mut screen = Screen::default();
        let multipart = BodyKind::Multipart(b"B"[..].into());
        let mut say =
            |kind: &BodyKind, body: &str| screen.body(kind, body.as_bytes()).map(|found| found.is_some());
        assert_eq!(say(&BodyKind::Json, "{'id': 1}"), Err(Unreadable::Json));
        assert_eq!(say(&BodyKind::Json, "{'id': \"1' or 1=1--\"}"), Ok(true));
        assert_eq!(say(&multipart, "id=1"), Err(Unreadable::Multipart));
        let charset = "--B\r\nContent-Disposition: form-data; name=_charset_\r\n\r\nutf-16\r\n--B--";
        assert_eq!(say(&multipart, charset), Err(Unreadable::Charset));
        assert_eq!(say(&multipart, &charset.replace("utf-16", "utf-8")), Ok(false));
        let extended =
            "--B\r\nContent-Disposition: form-data; filename*=utf-8''1%27%20or%201%3D1--\r\n\r\n\r\n--B--";
        assert_eq!(say(&multipart, extended), Ok(true));
    }

    #[test]
    fn what_other_readers_make_of_a_form_is_looked_at() {
        let mut screen = Screen::default();
        for query in
            ["a=x;id=1+union+select+1,2--", "a=b&amp;id=1+union+select+1,2--", "id=1+un%ion+s%elect+1,2--"]
        {
            assert!(screen.query(query.as_bytes()).is_some(), "{query}");
        }
        let json = BodyKind::Unstated;
        assert!(screen.body(&json, b"\xef\xbb\xbf {\"a\": \"1' or 1=1--\"}").unwrap().is_some());
        assert!(screen.body(&json, b"id=1'+or+1%3D1--").unwrap().is_some());
    }
}
