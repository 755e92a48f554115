//! A backend's answer to a health probe, parsed as an exchange would parse it.

use weir_http::{BodyReader, Limits, Method, Progress, ResponseHead};

/// The answer to a probe, whose head is complete.
pub struct ProbeAnswer {
    /// Its status, never an interim one.
    pub status: u16,
    body: BodyReader,
}

impl ProbeAnswer {
    /// Parses the head at the beginning of an answer; also gives the bytes after it. `Ok(None)` while the
    /// head is incomplete. Interim responses (1xx) before it are skipped.
    ///
    /// # Errors
    /// An exchange could not use this answer; says what was found and what was expected.
    pub fn begin<'a>(answer: &'a [u8], method: &str) -> Result<Option<(ProbeAnswer, &'a [u8])>, String> {
        let mut rest = answer;
        loop {
            let mut head = ResponseHead::new();
            let method = Method::from_token(method.as_bytes());
            match weir_http::parse_response(rest, &Limits::default(), method, &mut head) {
                Ok(Progress::Complete { head_bytes }) if head.is_interim() => rest = &rest[head_bytes..],
                Ok(Progress::Complete { head_bytes }) => {
                    let body = BodyReader::new(head.body(), &Limits::default());
                    return Ok(Some((ProbeAnswer { status: head.status(), body }, &rest[head_bytes..])));
                }
                Ok(Progress::Partial) => return Ok(None),
                Err(violation) => return Err(violation.to_string()),
            }
        }
    }

    /// Appends the content in `input` to `body`. Each byte of the answer must be passed once.
    ///
    /// # Errors
    /// The framing of the body is wrong; says what was found and what was expected.
    pub fn take(&mut self, mut input: &[u8], body: &mut Vec<u8>) -> Result<(), String> {
        while !input.is_empty() && !self.body.is_complete() {
            let step = self.body.advance(input).map_err(|violation| violation.to_string())?;
            body.extend_from_slice(&input[step.data]);
            if step.consumed == 0 {
                break;
            }
            input = &input[step.consumed..];
        }
        Ok(())
    }

    /// Whether the body is complete.
    pub fn is_whole(&self) -> bool {
        self.body.is_complete()
    }

    /// Notes that the backend closed the connection.
    ///
    /// # Errors
    /// It closed in the middle of the body.
    pub fn close(&mut self) -> Result<(), String> {
        self.body.finish_at_eof().map_err(|violation| violation.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(answer: &[u8], at_once: usize) -> (u16, Vec<u8>, bool) {
        let (mut answer, rest) = ProbeAnswer::begin(answer, "GET").unwrap().expect("a whole head");
        let mut body = Vec::new();
        rest.chunks(at_once).for_each(|part| answer.take(part, &mut body).unwrap());
        (answer.status, body, answer.is_whole())
    }

    #[test]
    fn a_body_is_taken_out_of_its_framing_however_it_comes() {
        let chunked = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nall\r\n5\r\n good\r\n0\r\n\r\n";
        for at_once in 1..60 {
            assert_eq!(body(chunked, at_once), (200, b"all good".to_vec(), true), "{at_once} at once");
        }
        let until_close = b"HTTP/1.0 200 OK\r\n\r\nall good";
        assert_eq!(body(until_close, 3), (200, b"all good".to_vec(), false));
    }

    #[test]
    fn an_answer_to_head_has_no_body() {
        let (answer, rest) =
            ProbeAnswer::begin(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", "HEAD").unwrap().unwrap();
        assert!(rest.is_empty() && answer.is_whole());
    }

    #[test]
    fn what_an_exchange_could_not_use_is_refused() {
        assert!(ProbeAnswer::begin(b"HTTP/1.1 200 OK\r\ncontent-length: 0", "GET").unwrap().is_none());
        let two = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\ncontent-length: 1\r\n\r\n";
        assert!(ProbeAnswer::begin(two, "GET").is_err());
        let broken = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let (mut answer, _) = ProbeAnswer::begin(broken, "GET").unwrap().unwrap();
        assert!(answer.take(b"xyz\r\n", &mut Vec::new()).is_err());
    }
}
