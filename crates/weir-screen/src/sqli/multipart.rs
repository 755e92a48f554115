//! Finds the fields of `multipart/form-data` (RFC 7578) and its like.
//!
//! Readers of multipart differ in nearly everything that RFC 2046 leaves to them: what may precede a
//! boundary, whether a line feed ends a line, what follows the last part, what makes a part a file. This
//! module accepts only what all of them read alike.

use crate::sqli::body::{self, Unreadable};
use crate::sqli::media_type::{self, Malformed, Parameterized};

/// One part.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Part<'b> {
    /// The field's name.
    pub name: &'b [u8],
    /// The file name; empty if there is none.
    pub filename: &'b [u8],
    /// The file name in RFC 8187 form, percent-encoded, without its character set and language.
    pub extended_filename: &'b [u8],
    /// Whether every reader treats the content as that of a file.
    pub is_file: bool,
    /// The content; cut off where the body was.
    pub content: &'b [u8],
}

/// The parts of `body`, which may be cut off anywhere. Ends after the first error. O(n).
pub fn parts<'b>(body: &'b [u8], boundary: &'b [u8]) -> impl Iterator<Item = Result<Part<'b>, Unreadable>> {
    let mut ahead = Some(first(body, boundary));
    std::iter::from_fn(move || {
        let (part, next) = match ahead.take()? {
            Ok(Ahead::Section(from)) => section(from, boundary),
            Ok(Ahead::End) => return None,
            Err(unreadable) => (Err(unreadable), None),
        };
        ahead = next.filter(|_| part.is_ok());
        Some(part)
    })
}

/// What follows a boundary.
enum Ahead<'b> {
    /// A part, beginning with its head.
    Section(&'b [u8]),
    /// Nothing more.
    End,
}

type Next<'b> = Option<Result<Ahead<'b>, Unreadable>>;

/// The first boundary is at the very beginning: some readers learn the boundary from there.
fn first<'b>(body: &'b [u8], boundary: &[u8]) -> Result<Ahead<'b>, Unreadable> {
    let body = body.strip_prefix(b"\r\n").unwrap_or(body);
    match find_dashed(body, boundary) {
        Some(0) => behind(body, boundary),
        Some(_) => Err(Unreadable::Multipart),
        // Shorter than one boundary line: the body may have been cut off.
        None if body.len() < 2 + boundary.len() && [b"--", boundary].concat().starts_with(body) => {
            Ok(Ahead::End)
        }
        None => Err(Unreadable::Multipart),
    }
}

/// The part at the beginning of `from`, and what follows it.
fn section<'b>(from: &'b [u8], boundary: &[u8]) -> (Result<Part<'b>, Unreadable>, Next<'b>) {
    let Some(at) = find_dashed(from, boundary) else { return (part_of(from, true), None) };
    let (content, rest) = from.split_at(at);
    // A part without any lines has only the line break that belongs to its boundary.
    let content = match content.strip_suffix(b"\r\n") {
        Some(content) => content,
        None if content.is_empty() => content,
        None => return (Err(Unreadable::Multipart), None),
    };
    (part_of(content, false), Some(behind(rest, boundary)))
}

/// The next position of `--` and `boundary`, whatever is around them.
fn find_dashed(text: &[u8], boundary: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let found = at + text.get(at..)?.windows(2).position(|pair| pair == b"--")?;
        if text.get(found + 2..)?.starts_with(boundary) {
            return Some(found);
        }
        at = found + 1;
    }
}

/// What follows the boundary at the beginning of `text`: a line break, or two dashes and the end.
fn behind<'b>(text: &'b [u8], boundary: &[u8]) -> Result<Ahead<'b>, Unreadable> {
    let text = text.get(2 + boundary.len()..).unwrap_or_default();
    match text {
        [] | b"\r" | b"-" | b"--" => return Ok(Ahead::End),
        _ => {}
    }
    if let Some(section) = text.strip_prefix(b"\r\n") {
        return Ok(Ahead::Section(section));
    }
    // Readers that do not stop at the last boundary continue with what follows it.
    let is_end =
        text.strip_prefix(b"--").is_some_and(|rest| rest.iter().all(|&byte| matches!(byte, b'\r' | b'\n')));
    if is_end { Ok(Ahead::End) } else { Err(Unreadable::Multipart) }
}

/// Parses one part; `is_cut` when the body ends inside it.
fn part_of(section: &[u8], is_cut: bool) -> Result<Part<'_>, Unreadable> {
    let (head, content) = match section.strip_prefix(b"\r\n") {
        Some(content) => (&b""[..], content),
        None => match section.windows(4).position(|four| four == b"\r\n\r\n") {
            Some(at) => (section.get(..at).unwrap_or_default(), section.get(at + 4..).unwrap_or_default()),
            // A head that was cut off has no content after it.
            None if is_cut => return Ok(Part::default()),
            None => return Err(Unreadable::Part),
        },
    };
    let mut part = Part { content, ..Part::default() };
    let mut seen = [false; 3];
    for line in head.split(|&byte| byte == b'\n').filter(|_| !head.is_empty()) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let colon = line.iter().position(|&byte| byte == b':').ok_or(Unreadable::Part)?;
        let (name, value) =
            (line.get(..colon).unwrap_or_default(), line.get(colon + 1..).unwrap_or_default());
        if value.iter().any(|&byte| matches!(byte, 0 | b'\r')) {
            return Err(Unreadable::Part);
        }
        let known: usize = match name.to_ascii_lowercase().as_slice() {
            b"content-disposition" => 0,
            b"content-type" => 1,
            b"content-transfer-encoding" => 2,
            name if media_type::is_token(name) => continue,
            _ => return Err(Unreadable::Part),
        };
        if std::mem::replace(&mut seen[known], true) {
            return Err(Unreadable::Part);
        }
        match known {
            0 => disposition(value, &mut part).map_err(|Malformed| Unreadable::Part)?,
            1 => content_type(value)?,
            _ => transfer_encoding(value)?,
        }
    }
    if head.windows(2).any(|pair| pair[1] == b'\n' && pair[0] != b'\r') {
        // Some readers end a line at a bare line feed, and a head at two of them.
        return Err(Unreadable::Part);
    }
    Ok(part)
}

fn disposition<'b>(value: &'b [u8], part: &mut Part<'b>) -> Result<(), Malformed> {
    let read = Parameterized::of(value)?;
    let mut seen = [false; 3];
    for parameter in read.parameters() {
        let parameter = parameter?;
        let (known, room) = match parameter.name.to_ascii_lowercase().as_slice() {
            b"name" => (0, &mut part.name),
            b"filename" => (1, &mut part.filename),
            b"filename*" => (2, &mut part.extended_filename),
            // Other ways to write a name, in pieces (RFC 2231).
            name if name.starts_with(b"name*") || name.starts_with(b"filename*") => return Err(Malformed),
            _ => continue,
        };
        *room = parameter.value;
        if std::mem::replace(&mut seen[known], true) {
            return Err(Malformed);
        }
    }
    let quote = |text: &[u8]| text.iter().position(|&byte| byte == b'\'');
    let behind = |text: &'b [u8]| text.get(quote(text)? + 1..);
    part.extended_filename =
        behind(part.extended_filename).and_then(behind).unwrap_or(part.extended_filename);
    // For many readers an empty file name makes a plain field, and so does one given only by `filename*`. In
    // a string with an escaped quote, a reader that does not know escapes sees the end there.
    part.is_file = !part.filename.is_empty()
        && read.value.eq_ignore_ascii_case(b"form-data")
        && !value.windows(2).any(|pair| pair == b"\\\"");
    Ok(())
}

/// Some readers split up nested parts, and in some character sets a quote is another byte.
fn content_type(value: &[u8]) -> Result<(), Unreadable> {
    let read = Parameterized::of(value).map_err(|Malformed| Unreadable::Part)?;
    if read.value.get(..10).is_some_and(|of| of.eq_ignore_ascii_case(b"multipart/")) {
        return Err(Unreadable::Part);
    }
    body::charset(&read).map_err(|unreadable| match unreadable {
        Unreadable::Charset => Unreadable::Charset,
        _ => Unreadable::Part,
    })
}

fn transfer_encoding(value: &[u8]) -> Result<(), Unreadable> {
    let plain: [&[u8]; 3] = [b"7bit", b"8bit", b"binary"];
    let is_plain = plain.iter().any(|plain| value.trim_ascii().eq_ignore_ascii_case(plain));
    if is_plain { Ok(()) } else { Err(Unreadable::Part) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"--B\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n1' or 1=1\r\n--B\r\n\
        content-disposition: form-data; name=pic; filename=\"a;b.png\"\r\nContent-Type: image/png\r\n\r\n--not-B\xff\r\n--B--\r\n";

    fn all(body: &[u8]) -> Result<Vec<Part<'_>>, Unreadable> {
        parts(body, b"B").collect()
    }

    /// A body whose one part has this head.
    fn with_head(head: &str) -> String {
        format!("--B\r\n{head}\r\n\r\n1\r\n--B--\r\n")
    }

    #[test]
    fn fields_and_files_are_told_apart() {
        let all = all(BODY).unwrap();
        let id = Part { name: b"id", content: b"1' or 1=1", ..Part::default() };
        assert_eq!(all[0], id);
        assert_eq!((all[1].name, all[1].filename, all[1].is_file), (&b"pic"[..], &b"a;b.png"[..], true));
        assert_eq!(all[1].content, b"--not-B\xff");
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn every_cut_of_a_body_is_read_without_harm() {
        for end in 0..BODY.len() {
            assert!(all(&BODY[..end]).is_ok(), "{}", BODY[..end].escape_ascii());
        }
        let end = BODY.windows(4).position(|four| four == b" or ").unwrap() + 3;
        assert_eq!(all(&BODY[..end]).unwrap()[0].content, b"1' or");
    }

    #[test]
    fn a_boundary_anywhere_else_than_on_a_line_of_its_own_makes_a_body_unreadable() {
        for body in [
            "--B\r\n\r\n1 --B--\r\n--B--\r\n",
            "--B\r\n\r\n1\n--B--\r\n",
            "--B\r\n\r\n1\r\n --B--\r\n",
            "--B\r\n\r\n1\r\n--Bx\r\n--B--\r\n",
            "--B\r\n\r\n1\r\n--B \r\n\r\n2\r\n--B--\r\n",
            "--B\n\n1\n--B--\n",
            "--B\r\n\r\n1\r\n--B--\r\n--B\r\n\r\n2\r\n--B--\r\n",
            "--B\r\n\r\n1\r\n--B-- \r\n",
            "preamble\r\n--B\r\n\r\n1\r\n--B--\r\n",
            "\n--B\r\n\r\n1\r\n--B--\r\n",
            "--C\r\n\r\n1\r\n--C--\r\n",
            "id=1",
        ] {
            assert_eq!(all(body.as_bytes()), Err(Unreadable::Multipart), "{body:?}");
        }
        for body in
            ["", "--", "--B", "--B--", "--B--\r\n\r\n", "\r\n--B\r\n\r\n1\r\n--B--", "--B\r\n\r\n\r\n--B--"]
        {
            assert!(all(body.as_bytes()).is_ok(), "{body:?}");
        }
    }

    #[test]
    fn a_part_is_a_file_only_when_nobody_can_take_it_for_a_field() {
        let is_file = |parameters: &str| {
            let body = with_head(&format!("Content-Disposition: {parameters}"));
            all(body.as_bytes()).unwrap()[0].is_file
        };
        assert!(is_file("form-data; name=a; filename=b") && is_file("Form-Data; FileName=\"C:\\b\""));
        for parameters in [
            "form-data; name=a",
            "form-data; name=a; filename=\"\"",
            "form-data; name=a; filename*=utf-8''b",
            "form-data; name=\"a\\\"; filename=b",
            "form-data; name=\"a;filename=b\"",
            "form-data; name=\"a\\\"b\"; filename=b",
            "attachment; name=a; filename=b",
        ] {
            let body = with_head(&format!("Content-Disposition: {parameters}"));
            assert!(!all(body.as_bytes()).is_ok_and(|parts| parts[0].is_file), "{parameters}");
        }
    }

    #[test]
    fn a_head_that_readers_take_differently_makes_a_body_unreadable() {
        for head in [
            "Content-Disposition: form-data; name=a; name=b",
            "Content-Disposition: form-data; filename=a; filename=\"\"",
            "Content-Disposition: form-data; name*0=a; name*1=b",
            "Content-Disposition: form-data; name = a",
            "Content-Disposition: form-data; name=\"a\"b",
            "Content-Disposition: form-data; name=\"a",
            "Content-Disposition: form-data, name=a",
            "Content-Disposition: form-data; name=a\r\nContent-Disposition: form-data; name=b",
            "Content-Disposition: form-data;\r\n name=a",
            "Content-Disposition : form-data; name=a",
            "Content-Disposition form-data",
            "Content-Disposition: form-data; name=a\n\nb",
            "Content-Disposition: form-data; name=a\rb",
            "Content-Disposition: form-data; name=a\0",
            "Content-Transfer-Encoding: base64",
            "Content-Transfer-Encoding: quoted-printable",
            "Content-Type: multipart/mixed; boundary=C",
            "Content-Type: text/plain\r\nContent-Type: text/html",
        ] {
            assert_eq!(all(with_head(head).as_bytes()), Err(Unreadable::Part), "{head:?}");
        }
        assert_eq!(
            all(with_head("Content-Type: text/plain; charset=utf-7").as_bytes()),
            Err(Unreadable::Charset)
        );
        assert_eq!(all(b"--B\r\nname: 1\r\n--B--"), Err(Unreadable::Part));
        let good = "Content-Transfer-Encoding: Binary\r\nContent-Length: 1\r\nContent-Type: text/plain; charset=UTF-8";
        assert!(all(with_head(good).as_bytes()).is_ok());
    }
}
