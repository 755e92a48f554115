//! Finds the end of an HTTP/1.1 answer, in whatever pieces it arrives.

/// Longest head that is read; a longer one is an error.
const MAX_HEAD_BYTES: usize = 64 * 1024;

/// A whole answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Its status code.
    pub status: u16,
    /// Whether the server will close the connection after it.
    pub close: bool,
}

/// Reads one answer at a time. Bodies are counted, not kept.
#[derive(Debug, Default)]
pub struct Reader {
    /// The part of the head that came in earlier pieces.
    head: Vec<u8>,
    /// Set once the head is whole: the answer, and how much of its body is still to come (bytes).
    body: Option<(Answer, u64)>,
}

impl Reader {
    /// Whether part of an answer has come.
    pub fn has_begun(&self) -> bool {
        self.body.is_some() || !self.head.is_empty()
    }

    /// Takes the next piece; returns the answer when it is complete. Err if the end of the answer can't be
    /// found (RFC 9112 section 6.3: neither a length nor a status without body), or if more follows it.
    pub fn take(&mut self, piece: &[u8]) -> Result<Option<Answer>, &'static str> {
        let (answer, left) = match self.body.take() {
            Some((answer, left)) => (answer, take_body(left, piece)?),
            None => {
                let joined;
                let bytes = if self.head.is_empty() {
                    piece
                } else {
                    self.head.extend_from_slice(piece);
                    joined = std::mem::take(&mut self.head);
                    &joined
                };
                let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
                    if bytes.len() > MAX_HEAD_BYTES {
                        return Err("head too long");
                    }
                    self.head = bytes.to_vec();
                    return Ok(None);
                };
                let (answer, length) = parse(&bytes[..end])?;
                (answer, take_body(length, &bytes[end + 4..])?)
            }
        };
        if left > 0 {
            self.body = Some((answer, left));
            return Ok(None);
        }
        Ok(Some(answer))
    }
}

fn take_body(left: u64, piece: &[u8]) -> Result<u64, &'static str> {
    left.checked_sub(piece.len() as u64).ok_or("bytes after the answer")
}

/// Status line and the header lines that tell where the body ends; with the body's length (bytes).
fn parse(head: &[u8]) -> Result<(Answer, u64), &'static str> {
    let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let line = lines.next().unwrap_or_default();
    let minor = match line.strip_prefix(b"HTTP/1.") {
        Some([minor @ (b'0' | b'1'), b' ', ..]) => *minor,
        _ => return Err("not an HTTP/1 answer"),
    };
    let status =
        std::str::from_utf8(line.get(9..12).unwrap_or_default()).ok().and_then(|text| text.parse().ok());
    let Some(status) = status else { return Err("no status code") };
    let mut answer = Answer { status, close: minor == b'0' };
    let mut length = None;
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            return Err("header line without colon");
        };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"content-length") {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            length = Some(number.ok_or("content-length is not a number")?);
        } else if name.eq_ignore_ascii_case(b"connection") {
            if value.eq_ignore_ascii_case(b"close") {
                answer.close = true;
            } else if value.eq_ignore_ascii_case(b"keep-alive") {
                answer.close = false;
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err("chunked answer where one with a length was expected");
        }
    }
    match (status, length) {
        (204 | 304, _) => Ok((answer, 0)),
        (200.., Some(length)) => Ok((answer, length)),
        (200.., None) => Err("answer without content-length"),
        _ => Err("interim answer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 13\r\n\r\nHello World!\n";
    const OK: Answer = Answer { status: 200, close: false };

    #[test]
    fn an_answer_in_one_piece_is_whole() {
        let mut reader = Reader::default();
        assert_eq!(reader.take(HELLO), Ok(Some(OK)));
        assert!(!reader.has_begun());
        assert_eq!(reader.take(HELLO), Ok(Some(OK)), "and the next one begins afresh");
    }

    #[test]
    fn an_answer_cut_anywhere_is_whole_with_its_last_piece() {
        for cut in 1..HELLO.len() {
            let mut reader = Reader::default();
            assert_eq!(reader.take(&HELLO[..cut]), Ok(None), "cut at {cut}");
            assert!(reader.has_begun());
            assert_eq!(reader.take(&HELLO[cut..]), Ok(Some(OK)), "cut at {cut}");
        }
        let mut reader = Reader::default();
        let answers: Vec<_> = HELLO.iter().map(|byte| reader.take(&[*byte]).unwrap()).collect();
        assert_eq!(answers.iter().flatten().count(), 1);
        assert_eq!(answers.last(), Some(&Some(OK)));
    }

    #[test]
    fn what_the_server_says_of_the_connection_is_heard() {
        let close = |head: &str| {
            let answer = format!("{head}\r\ncontent-length: 0\r\n\r\n");
            Reader::default().take(answer.as_bytes()).unwrap().unwrap().close
        };
        assert!(close("HTTP/1.1 200 OK\r\nConnection: Close"));
        assert!(!close("HTTP/1.1 200 OK\r\nConnection: keep-alive"));
        assert!(close("HTTP/1.0 200 OK"));
        assert!(!close("HTTP/1.0 200 OK\r\nConnection: keep-alive"));
    }

    #[test]
    fn answers_without_a_body_need_no_length() {
        let answer = Reader::default().take(b"HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n");
        assert_eq!(answer, Ok(Some(Answer { status: 304, close: false })));
    }

    #[test]
    fn what_has_no_certain_end_is_refused() {
        for (bytes, problem) in [
            (&b"HTTP/2 200\r\n\r\n"[..], "not an HTTP/1 answer"),
            (b"HTTP/1.1 abc\r\n\r\n", "no status code"),
            (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", "answer without content-length"),
            (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "content-length is not a number"),
            (
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                "chunked answer where one with a length was expected",
            ),
            (b"HTTP/1.1 100 Continue\r\n\r\n", "interim answer"),
            (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab", "bytes after the answer"),
        ] {
            assert_eq!(Reader::default().take(bytes), Err(problem));
        }
        assert_eq!(Reader::default().take(&vec![b'a'; MAX_HEAD_BYTES + 1]), Err("head too long"));
    }
}
