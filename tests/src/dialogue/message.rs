//! HTTP/1.1 messages as tests see them. Written apart from the product's parser on purpose.

use std::fmt;
use std::time::Duration;

use super::wire::Wire;

/// How a wait for bytes ended without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Broken {
    /// FIN.
    Ended,
    /// RST.
    Reset,
    /// Nothing (more) came in this time.
    Waited(Duration),
    /// Something came that is not HTTP/1.1.
    Malformed(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Ended => write!(out, "the other side ended the connection"),
            Broken::Reset => write!(out, "the other side reset the connection"),
            Broken::Waited(time) => write!(out, "nothing more came in {time:?}"),
            Broken::Malformed(what) => write!(out, "found {what}"),
        }
    }
}

/// Header fields in the order of the wire, names in lower case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(pub Vec<(String, String)>);

impl Fields {
    /// The value of the only field of that name; panics when there are several.
    pub fn one(&self, name: &str) -> Option<&str> {
        let all = self.all(name);
        assert!(all.len() < 2, "several {name} fields: {all:?}");
        all.first().copied()
    }

    /// Every value of that name.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.0.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_str()).collect()
    }

    /// Whether the field lists this token, in any case.
    pub fn lists(&self, name: &str, token: &str) -> bool {
        self.all(name)
            .iter()
            .flat_map(|value| value.split(','))
            .any(|item| item.trim().eq_ignore_ascii_case(token))
    }
}

/// A request as a backend received it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Such as `GET`.
    pub method: String,
    /// The request-target as it stood in the line.
    pub target: String,
    /// Such as `HTTP/1.1`.
    pub version: String,
    /// Header fields.
    pub fields: Fields,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Trailer fields of a chunked body.
    pub trailers: Fields,
    /// The head, byte for byte.
    pub head: String,
}

/// A response as a client received it.
#[derive(Clone, Default)]
pub struct Response {
    /// Such as 200.
    pub status: u16,
    /// Such as `HTTP/1.1`.
    pub version: String,
    /// Header fields.
    pub fields: Fields,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Trailer fields of a chunked body.
    pub trailers: Fields,
    /// Statuses of the interim (1xx) responses before it.
    pub interim: Vec<u16>,
}

impl Response {
    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether it announces the end of the connection.
    pub fn closes(&self) -> bool {
        self.fields.lists("connection", "close")
    }
}

impl fmt::Debug for Response {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = String::from_utf8_lossy(&self.body[..self.body.len().min(300)]).into_owned();
        out.debug_struct("Response")
            .field("status", &self.status)
            .field("fields", &self.fields.0)
            .field("body_bytes", &self.body.len())
            .field("body_start", &start)
            .field("interim", &self.interim)
            .finish_non_exhaustive()
    }
}

/// Where `needle` first stands in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

/// A response with a length, ready to be sent.
pub fn response_bytes(status: u16, fields: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status} Status\r\ncontent-length: {}\r\n", body.len()).into_bytes();
    for (name, value) in fields {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

fn read_head(wire: &mut Wire) -> Result<String, Broken> {
    let end = wire.wait(|bytes| find(bytes, b"\r\n\r\n"))?;
    // Values may contain any byte above 0x7f; what is not UTF-8 shows as U+FFFD.
    Ok(String::from_utf8_lossy(&wire.take(end + 4)).into_owned())
}

fn parse_fields(lines: &str) -> Result<Fields, Broken> {
    let mut fields = Vec::new();
    for line in lines.split("\r\n").filter(|line| !line.is_empty()) {
        let Some((name, value)) = line.split_once(':') else {
            return Err(Broken::Malformed(format!("a field without colon: {line:?}")));
        };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    Ok(Fields(fields))
}

pub(super) fn read_request_head(wire: &mut Wire) -> Result<Request, Broken> {
    let head = read_head(wire)?;
    let (line, rest) = head.split_once("\r\n").expect("a head has a line");
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version] = words[..] else {
        return Err(Broken::Malformed(format!("request line {line:?}")));
    };
    Ok(Request {
        method: method.to_owned(),
        target: target.to_owned(),
        version: version.to_owned(),
        fields: parse_fields(rest)?,
        head: head.clone(),
        ..Request::default()
    })
}

pub(super) fn read_request(wire: &mut Wire) -> Result<Request, Broken> {
    let mut request = read_request_head(wire)?;
    if request.fields.lists("transfer-encoding", "chunked") {
        let (body, trailers) = read_chunked(wire).map_err(|(broken, _)| broken)?;
        (request.body, request.trailers) = (body, trailers);
    } else if let Some(length) = request.fields.one("content-length") {
        let length: usize =
            length.parse().map_err(|_| Broken::Malformed(format!("content-length {length:?}")))?;
        wire.wait(|bytes| (bytes.len() >= length).then_some(()))?;
        request.body = wire.take(length);
    }
    Ok(request)
}

pub(super) fn read_response_head(wire: &mut Wire) -> Result<Response, Broken> {
    let head = read_head(wire)?;
    let (line, rest) = head.split_once("\r\n").expect("a head has a line");
    let mut words = line.splitn(3, ' ');
    let version = words.next().unwrap_or_default();
    let status = words.next().and_then(|code| (code.len() == 3).then(|| code.parse().ok())?);
    let Some(status) = status.filter(|_| version.starts_with("HTTP/1.")) else {
        return Err(Broken::Malformed(format!("status line {line:?}")));
    };
    Ok(Response { status, version: version.to_owned(), fields: parse_fields(rest)?, ..Response::default() })
}

pub(super) fn read_response(
    wire: &mut Wire,
    method: &str,
) -> Result<Response, (Broken, Option<Box<Response>>)> {
    let mut interim = Vec::new();
    let mut response = loop {
        let response = read_response_head(wire).map_err(|broken| (broken, None))?;
        if response.status == 101 || response.status >= 200 {
            break response;
        }
        interim.push(response.status);
    };
    response.interim = interim;
    // RFC 9112 §6.3, in its order.
    if method == "HEAD" || matches!(response.status, 101 | 204 | 304) {
        return Ok(response);
    }
    if response.fields.lists("transfer-encoding", "chunked") {
        return match read_chunked(wire) {
            Ok((body, trailers)) => Ok(Response { body, trailers, ..response }),
            Err((broken, body)) => Err((broken, Some(Box::new(Response { body, ..response })))),
        };
    }
    let Some(length) = response.fields.one("content-length").map(str::to_owned) else {
        return match wire.wait(|_| None::<()>) {
            Err(Broken::Ended) => Ok(Response { body: wire.take_all(), ..response }),
            Err(broken) => Err((broken, Some(Box::new(Response { body: wire.take_all(), ..response })))),
            Ok(()) => unreachable!("the question is never answered"),
        };
    };
    let Ok(length) = length.parse::<usize>() else {
        return Err((Broken::Malformed(format!("content-length {length:?}")), Some(Box::new(response))));
    };
    match wire.wait(|bytes| (bytes.len() >= length).then_some(())) {
        Ok(()) => Ok(Response { body: wire.take(length), ..response }),
        Err(broken) => Err((broken, Some(Box::new(Response { body: wire.take_all(), ..response })))),
    }
}

/// Reads a chunked body and its trailers; on failure gives what there was of the body.
fn read_chunked(wire: &mut Wire) -> Result<(Vec<u8>, Fields), (Broken, Vec<u8>)> {
    let mut body = Vec::new();
    loop {
        let line = match wire.wait(|bytes| find(bytes, b"\r\n")) {
            Ok(at) => String::from_utf8_lossy(&wire.take(at + 2)).into_owned(),
            Err(broken) => return Err((broken, body)),
        };
        let Ok(size) = usize::from_str_radix(line.trim_end(), 16) else {
            return Err((Broken::Malformed(format!("chunk size {line:?}")), body));
        };
        if size == 0 {
            break;
        }
        if let Err(broken) = wire.wait(|bytes| (bytes.len() >= size + 2).then_some(())) {
            body.extend_from_slice(&wire.take_all());
            return Err((broken, body));
        }
        let mut data = wire.take(size + 2);
        if !data.ends_with(b"\r\n") {
            return Err((Broken::Malformed("chunk data not followed by CRLF".to_owned()), body));
        }
        data.truncate(size);
        body.append(&mut data);
    }
    let trailers = wire.wait(|bytes| {
        if bytes.starts_with(b"\r\n") { Some(2) } else { find(bytes, b"\r\n\r\n").map(|at| at + 4) }
    });
    match trailers {
        Ok(end) => {
            let lines = String::from_utf8_lossy(&wire.take(end)).into_owned();
            parse_fields(&lines).map(|fields| (body, fields)).map_err(|broken| (broken, Vec::new()))
        }
        Err(broken) => Err((broken, body)),
    }
}
