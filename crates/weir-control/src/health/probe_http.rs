//! A probe in HTTP/1.1: one request on its own connection.

use std::fmt::Write as _;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use weir_config::{Expected, HttpProbe};
use weir_proxy::http::probe::ProbeAnswer;

use super::probe::{Answer, End, Failure, Progress, USER_AGENT, judge_status};

/// Longest head of an answer that is read, in bytes.
const HEAD_BYTES: usize = 16 * 1024;

/// Most bytes of a body that are searched; the guide says so.
pub(super) const BODY_BYTES: usize = 64 * 1024;

/// Most bytes on the wire in which they must arrive: chunks may be small.
const WIRE_BYTES: usize = HEAD_BYTES + 4 * BODY_BYTES;

/// Sends the request, and evaluates the answer.
pub(super) async fn ask(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    probe: &HttpProbe,
    progress: &mut Progress,
) -> Result<Answer, Failure> {
    stream.write_all(request(probe).as_bytes()).await.map_err(Failure::Broken)?;
    let head = read_head(&mut stream).await?;
    let status = status_of(&head)?;
    // A backend is not up if all its answers would become a 502.
    let begun = ProbeAnswer::begin(&head, &probe.method).map_err(Failure::Unusable)?;
    let Some((mut answer, rest)) = begun else {
        judge_status(probe, status, b"")?;
        return match &probe.expect_body {
            None => Ok(Answer::Status(status)),
            Some(_) => Err(Failure::ClosedEarly),
        };
    };
    let mut body = Vec::new();
    answer.take(rest, &mut body).map_err(Failure::Unusable)?;
    judge_status(probe, answer.status, &body)?;
    let status = answer.status;
    let Some(expected) = &probe.expect_body else { return Ok(Answer::Status(status)) };
    progress.expected = Some(expected.words());
    let mut read_bytes = head.len();
    let mut part = Vec::with_capacity(4096);
    let mut searched = 0;
    let end = loop {
        if answer.is_whole() {
            break End::Whole;
        }
        if body.len() >= BODY_BYTES || read_bytes >= WIRE_BYTES {
            break End::Enough(BODY_BYTES);
        }
        if is_settled(expected, &body, &mut searched) {
            break End::Whole;
        }
        part.clear();
        let read = stream.read_buf(&mut part).await.map_err(Failure::Broken)?;
        if read == 0 {
            answer.close().map_err(Failure::Unusable)?;
            break End::Whole;
        }
        read_bytes += read;
        answer.take(&part, &mut body).map_err(Failure::Unusable)?;
        progress.came.clear();
        progress.came.extend_from_slice(&body[..body.len().min(HEAD_BYTES)]);
    };
    judge_body(expected, status, body, end)
}

/// Evaluates the part of a body that is searched.
pub(super) fn judge_body(
    expected: &Expected,
    status: u16,
    mut body: Vec<u8>,
    end: End,
) -> Result<Answer, Failure> {
    body.truncate(BODY_BYTES);
    match expected.is_met(&body) {
        true => Ok(Answer::Status(status)),
        false => Err(Failure::Unexpected { came: body, expected: expected.words(), end }),
    }
}

/// Whether the result is settled by the received part of a body, whatever follows. `searched` is how much of
/// it was searched before.
pub(super) fn is_settled(expected: &Expected, body: &[u8], searched: &mut usize) -> bool {
    if !expected.is_settled_when_found() {
        return false;
    }
    let from = searched.saturating_sub(Expected::MOST_BYTES);
    *searched = body.len();
    expected.end_in(&body[from..]).is_some()
}

/// The text of the request.
fn request(probe: &HttpProbe) -> String {
    let HttpProbe { path, method, host, headers, .. } = probe;
    let host = host.as_deref().unwrap_or_default();
    let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n");
    for (name, default) in [("user-agent", USER_AGENT), ("accept", "*/*")] {
        if !headers.contains_key(name) {
            let _ = write!(text, "{name}: {default}\r\n");
        }
    }
    for (name, value) in headers {
        let _ = write!(text, "{name}: {value}\r\n");
    }
    if matches!(method.as_str(), "POST" | "PUT" | "PATCH") {
        // Some servers wait for a body unless its length is declared to be 0 (RFC 9110 section 8.6).
        text.push_str("content-length: 0\r\n");
    }
    text.push_str("connection: close\r\n\r\n");
    text
}

/// Reads up to the end of the head, or the limit, so that the connection is not closed while a backend is
/// sending the status line.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Failure> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let read = stream.read_buf(&mut head).await.map_err(Failure::Broken)?;
        let whole = head.windows(4).any(|four| four == b"\r\n\r\n") || head.len() >= HEAD_BYTES;
        if read == 0 || whole || (head.len() >= 9 && !head.starts_with(b"HTTP/1.")) {
            let is_interim = head.get(8..10) == Some(b" 1") && head.len() < HEAD_BYTES && read > 0;
            let is_begun = !is_interim || !matches!(ProbeAnswer::begin(&head, "GET"), Ok(None));
            if is_begun {
                return Ok(head);
            }
        }
    }
}

/// Parses the status in a status line (RFC 9112 section 4).
fn status_of(head: &[u8]) -> Result<u16, Failure> {
    if head.is_empty() {
        return Err(Failure::ClosedEarly);
    }
    let not_http = || Failure::NotHttp(head.to_vec());
    let rest = head.strip_prefix(b"HTTP/1.").ok_or_else(not_http)?;
    match rest {
        [b'0'..=b'9', b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ' | b'\r' | b'\n', ..] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Ok(digit(a) * 100 + digit(b) * 10 + digit(c))
        }
        _ => Err(not_http()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_three_digits_after_a_minor_version_are_a_status() {
        for bad in [
            &b"HTTP/1.1 20 OK\r\n"[..],
            b"HTTP/1.1  200 OK\r\n",
            b"HTTP/2 200\r\n",
            b"HTTP/1.1 2000\r\n",
            b"HTTP/1.1",
        ] {
            assert!(matches!(status_of(bad), Err(Failure::NotHttp(_))), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(status_of(b"HTTP/1.1 200\r\n\r\n").unwrap(), 200);
    }
}
