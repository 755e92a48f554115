//! Demands of RFC 9110 and RFC 9112 on these bytes, and of the catalogue of threats (docs/threat-model)
//! beyond.
//!
//! One named test per row of the catalogue that a parser or writer can decide; rows are named in the
//! comments.

mod chunked;
mod forwarding;
mod own_responses;
mod properties;
mod proxy_protocol;
mod request_framing;
mod request_head;
mod responses;
mod section_properties;
mod section_responses;
mod sections;
mod visited;

use std::net::{IpAddr, Ipv4Addr};

use weir_http::{
    BodyLength, BodyReader, ClientIdentity, Limits, Method, Progress, RequestContext, RequestHead,
    ResponseHead, Scheme, Violation, parse_request, parse_response, write_request,
};

/// Parses a request that must be complete or wrong.
fn request(bytes: &[u8]) -> Result<RequestHead, Violation> {
    let mut head = RequestHead::new();
    match parse_request(bytes, &Limits::default(), &mut head)? {
        Progress::Complete { .. } => Ok(head),
        Progress::Partial => panic!("incomplete: {}", bytes.escape_ascii()),
    }
}

fn request_violation(bytes: &[u8]) -> Violation {
    match request(bytes) {
        Err(violation) => violation,
        Ok(_) => panic!("accepted: {}", bytes.escape_ascii()),
    }
}

/// Each request must be refused, with this violation.
fn all_refused(violation: Violation, requests: &[&[u8]]) {
    for bytes in requests {
        assert_eq!(request_violation(bytes), violation, "{}", bytes.escape_ascii());
    }
}

/// Parses a response to `method` that must be complete or wrong.
fn response_to(method: Method, bytes: &[u8]) -> Result<ResponseHead, Violation> {
    let mut head = ResponseHead::new();
    match parse_response(bytes, &Limits::default(), method, &mut head)? {
        Progress::Complete { .. } => Ok(head),
        Progress::Partial => panic!("incomplete: {}", bytes.escape_ascii()),
    }
}

fn response(bytes: &[u8]) -> Result<ResponseHead, Violation> {
    response_to(Method::Get, bytes)
}

/// The request that a backend gets from a client that is not trusted.
fn forwarded(bytes: &[u8]) -> String {
    forwarded_with(bytes, |_| {})
}

fn forwarded_with(bytes: &[u8], change: impl FnOnce(&mut RequestContext<'_>)) -> String {
    let head = request(bytes).unwrap();
    let identity = client(false);
    let mut context = RequestContext::new(&identity, b"made-id");
    change(&mut context);
    let mut out = Vec::new();
    write_request(&head, bytes, &context, &mut out);
    String::from_utf8(out).unwrap()
}

fn client(trusted: bool) -> ClientIdentity {
    ClientIdentity::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), Scheme::Http, trusted)
}

/// Reads a whole body; the content, and how many bytes it took.
fn read_body(length: BodyLength, bytes: &[u8]) -> Result<(Vec<u8>, usize), Violation> {
    let mut reader = BodyReader::new(length, &Limits::default());
    let (mut content, mut at) = (Vec::new(), 0);
    while !reader.is_complete() {
        let step = reader.advance(&bytes[at..])?;
        content.extend_from_slice(&bytes[at..][step.data]);
        at += step.consumed;
        if step.consumed == 0 {
            reader.finish_at_eof()?;
        }
    }
    Ok((content, at))
}
