//! Finds the fields of `multipart/form-data` (RFC 7578).

/// One part.
pub struct Part<'b> {
    /// The field's name.
    pub name: &'b [u8],
    /// The name of a file.
    pub filename: Option<&'b [u8]>,
    /// The content; cut where the body was.
    pub content: &'b [u8],
}

/// The parts of `body` between `boundary`s. What is no part is stepped over. O(n).
pub fn parts<'b>(body: &'b [u8], boundary: &'b [u8]) -> impl Iterator<Item = Part<'b>> {
    let mut rest = after_boundary(body, boundary);
    std::iter::from_fn(move || {
        loop {
            let from = rest?;
            let (section, next) = match find_boundary(from, boundary) {
                Some(at) => (from.get(..at)?, after_boundary(from.get(at..)?, boundary)),
                None => (from, None),
            };
            rest = next;
            if let Some(part) = part_of(section) {
                return Some(part);
            }
        }
    })
}

fn find_boundary(text: &[u8], boundary: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        let found = at + text.get(at..)?.windows(2).position(|pair| pair == b"--")?;
        if text.get(found + 2..)?.starts_with(boundary) {
            return Some(found);
        }
        at = found + 1;
    }
}

fn after_boundary<'b>(text: &'b [u8], boundary: &[u8]) -> Option<&'b [u8]> {
    let at = find_boundary(text, boundary)?;
    text.get(at + 2 + boundary.len()..).filter(|rest| !rest.starts_with(b"--"))
}

fn part_of(section: &[u8]) -> Option<Part<'_>> {
    let section = section.strip_prefix(b"\r\n").or_else(|| section.strip_prefix(b"\n")).unwrap_or(section);
    let (head, content) = split_head(section)?;
    let content = content.strip_suffix(b"\r\n").or_else(|| content.strip_suffix(b"\n")).unwrap_or(content);
    let disposition = head.split(|&byte| byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(line.iter().position(|&byte| byte == b':')?)?;
        name.trim_ascii().eq_ignore_ascii_case(b"content-disposition").then_some(value)
    })?;
    Some(Part {
        name: parameter(disposition, b"name").unwrap_or_default(),
        filename: parameter(disposition, b"filename"),
        content,
    })
}

fn split_head(section: &[u8]) -> Option<(&[u8], &[u8])> {
    if let Some(at) = section.windows(4).position(|four| four == b"\r\n\r\n") {
        return Some((section.get(..at)?, section.get(at + 4..)?));
    }
    let at = section.windows(2).position(|two| two == b"\n\n")?;
    Some((section.get(..at)?, section.get(at + 2..)?))
}

/// The value of the parameter `name` of a header field's value, without its quotes.
pub fn parameter<'b>(value: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    let mut at = value.iter().position(|&byte| byte == b';')?;
    loop {
        let rest = value.get(at + 1..)?.trim_ascii_start();
        let start = value.len() - rest.len();
        let equals = rest.iter().position(|&byte| byte == b'=')?;
        let found = rest.get(..equals)?.trim_ascii();
        let text = rest.get(equals + 1..)?;
        let (content, used) = match text.strip_prefix(b"\"") {
            Some(quoted) => {
                let end = quoted_end(quoted);
                (quoted.get(..end)?, end + 2)
            }
            None => {
                let end = text.iter().position(|&byte| byte == b';').unwrap_or(text.len());
                (text.get(..end)?.trim_ascii(), end)
            }
        };
        if found.eq_ignore_ascii_case(name) {
            return Some(content);
        }
        let behind = start + equals + 1 + used;
        at = behind + value.get(behind..)?.iter().position(|&byte| byte == b';')?;
    }
}

/// Where the string that `quoted` begins with ends; its escapes stay.
fn quoted_end(quoted: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&byte) = quoted.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at,
            _ => at += 1,
        }
    }
    quoted.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"preamble\r\n--B\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n1' or 1=1\r\n--B\r\n\
        content-disposition: form-data; name=pic; filename=\"a;b.png\"\r\nContent-Type: image/png\r\n\r\n--not--B\xff\r\n--B--\r\n";

    #[test]
    fn fields_and_files_are_told_apart() {
        let all: Vec<_> = parts(BODY, b"B").map(|part| (part.name, part.filename, part.content)).collect();
        assert_eq!(all[0], (&b"id"[..], None, &b"1' or 1=1"[..]));
        assert_eq!(all[1].0, b"pic");
        assert_eq!(all[1].1, Some(&b"a;b.png"[..]));
    }

    #[test]
    fn every_cut_of_a_body_is_read_without_harm() {
        for end in 0..BODY.len() {
            let _ = parts(&BODY[..end], b"B").count();
        }
        let end = BODY.windows(4).position(|four| four == b" 1=1" || four == b" or ").unwrap() + 3;
        assert_eq!(parts(&BODY[..end], b"B").next().map(|part| part.content), Some(&b"1' or"[..]));
    }

    #[test]
    fn parameters_are_found_in_any_order_and_quoting() {
        assert_eq!(
            parameter(b"multipart/form-data; charset=x; boundary=\"a b\"", b"boundary"),
            Some(&b"a b"[..])
        );
        assert_eq!(parameter(b"multipart/form-data;BOUNDARY=abc;x=y", b"boundary"), Some(&b"abc"[..]));
        assert_eq!(parameter(b"multipart/form-data", b"boundary"), None);
        assert_eq!(parameter(b"a; b=\"c", b"d"), None);
    }
}
