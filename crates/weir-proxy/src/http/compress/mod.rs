//! Compression of responses to clients: which responses, and how.
//!
//! [`wish`] looks at the request, [`decide`] at the response. [`Encoding`] is then a step of a
//! [`Pump`](crate::http::pump::Pump) between receiving and sending. If no listener configures compression,
//! all of this costs one check of an `Option`.

mod encoder;
mod encoding;

use std::rc::Rc;

use weir_config::{Coding, Compress};
use weir_http::forward::{Negotiated, recoding};
use weir_http::values::accept_encoding::{self, Accepted};
use weir_http::{KnownHeader, Method, RequestHead, ResponseHead, Version};
use weir_io::buffers::Buffers;
use weir_stats::table::Compressed;

use crate::http::exchange::Exchange;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::session::Session;

pub use encoding::Encoding;

/// The coding that the client prefers of those that are offered; `None` if it accepts none, or prefers none.
///
/// HTTP/1.0 clients get none: without chunked framing, only the end of the connection would mark the end of
/// the content, and a truncated response could not be told from a complete one.
pub fn wish(rules: Option<&Compress>, request: &RequestHead, received: &[u8]) -> Option<Coding> {
    let rules = rules?;
    if request.version() < Version::Http11 {
        return None;
    }
    let lines = request
        .fields(received)
        .filter(|field| field.known == KnownHeader::AcceptEncoding)
        .map(|field| field.value);
    chosen(&Accepted::of(lines), &rules.codings)
}

/// The best of `offered` for a client with this `accept-encoding`; `None` if it prefers the content without
/// coding.
fn chosen(accepted: &Accepted, offered: &[Coding]) -> Option<Coding> {
    // A client that prefers the content without coding gives that a greater weight.
    let all = offered.iter().map(|coding| named(*coding)).chain([accept_encoding::Coding::Identity]);
    let best = accepted.best(all)?;
    offered.iter().copied().find(|coding| named(*coding) == best)
}

/// Converts a coding of the config into one of the header fields.
pub fn named(coding: Coding) -> accept_encoding::Coding {
    match coding {
        Coding::Zstd => accept_encoding::Coding::Zstd,
        Coding::Brotli => accept_encoding::Coding::Brotli,
        Coding::Gzip => accept_encoding::Coding::Gzip,
    }
}

/// How a response that is in the cache, or is being fetched for it, may be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    /// The coding that the client prefers; `None` if it accepts none.
    pub coding: Option<Coding>,
    /// The compression level.
    pub level: u32,
}

impl Offer {
    /// For the head of a response whose content is sent without coding, or that has none. `is_confirmed` is
    /// for a 304: the response that it confirms may have been sent encoded to this client.
    pub fn as_it_is(&self, is_confirmed: bool) -> Negotiated {
        Negotiated { coding: None, length: None, weaken: is_confirmed && self.coding.is_some() }
    }
}

/// What the request's `accept-encoding` allows for a backend's response with this head; `None` if it makes no
/// difference.
pub fn offer(
    rules: Option<&Compress>,
    request: &RequestHead,
    received: &[u8],
    response: &ResponseHead,
    text: &[u8],
) -> Option<Offer> {
    let rules = rules?;
    let media_type = recoding(response, text, Method::Get, rules.min_bytes).ok()?;
    if !rules.takes_type(media_type) {
        return None;
    }
    let coding = wish(Some(rules), request, received);
    Some(Offer { coding, level: coding.map_or(0, |coding| rules.level.of(coding)) })
}

/// An encoder for `offer`, for content of `length` bytes if that is known. `None` if the memory budget has no
/// room for it, which is counted.
pub fn begin(
    session: &Session,
    forwarding: &Forwarding<'_>,
    offer: &Offer,
    length: Option<u64>,
) -> Option<Box<Encoding>> {
    let begun = Encoding::begin(offer.coding?, offer.level, length, &session.requester.buffers);
    if begun.is_none() {
        count_short(session, forwarding);
    }
    begun
}

/// Counts a response that is sent in this coding.
pub fn count_response(session: &Session, forwarding: &Forwarding<'_>, coding: Coding) {
    encoding::count_response(forwarding.listener.shared.cells.of(session.requester.worker.number), coding);
}

fn count_short(session: &Session, forwarding: &Forwarding<'_>) {
    let cells = forwarding.listener.shared.cells.of(session.requester.worker.number);
    cells.compressed[Compressed::Short as usize].increment();
}

/// Decides about the response in `exchange`; counts it if lack of memory prevents the encoding.
pub fn decide(
    session: &Session,
    exchange: &Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    received: &[u8],
) -> Decision {
    let Some(rules) = forwarding.compress() else { return Decision::default() };
    let buffers = &session.requester.buffers;
    let decision = judge(rules, facts.coding, facts.method, &exchange.response, received, buffers);
    if decision.out_of_memory {
        count_short(session, forwarding);
    }
    decision
}

/// Whether and how a response is encoded.
#[derive(Default)]
pub struct Decision {
    /// The change to its head; `None` if the client's `accept-encoding` makes no difference.
    pub negotiated: Option<Negotiated>,
    /// The encoding of its content; `None` if it is sent as it came.
    pub encoding: Option<Box<Encoding>>,
    /// It would have been encoded, but there was not enough memory.
    pub out_of_memory: bool,
}

/// Decides about one response. `wish` is the result of [`wish`] for its request.
fn judge(
    rules: &Compress,
    wish: Option<Coding>,
    method: Method,
    response: &ResponseHead,
    received: &[u8],
    buffers: &Rc<Buffers>,
) -> Decision {
    if response.status() == 304 {
        // The response that it confirms may have been encoded: then its tag was weakened, and this tag must
        // match it (RFC 9111 §4.3.4).
        let negotiated = Negotiated { coding: None, length: None, weaken: wish.is_some() };
        return Decision { negotiated: Some(negotiated), ..Decision::default() };
    }
    match recoding(response, received, method, rules.min_bytes) {
        Ok(media_type) if rules.takes_type(media_type) => {}
        _ => return Decision::default(),
    }
    let as_it_came = Negotiated { coding: None, length: None, weaken: false };
    let Some(coding) = wish else {
        return Decision { negotiated: Some(as_it_came), ..Decision::default() };
    };
    let encoded = Negotiated { coding: Some(coding.word()), length: None, weaken: true };
    if response.body().is_empty() {
        return Decision { negotiated: Some(encoded), ..Decision::default() };
    }
    match Encoding::begin(coding, rules.level.of(coding), response.declared_length(), buffers) {
        Some(encoding) => {
            Decision { negotiated: Some(encoded), encoding: Some(encoding), out_of_memory: false }
        }
        None => Decision { negotiated: Some(as_it_came), encoding: None, out_of_memory: true },
    }
}

#[cfg(test)]
mod tests {
    use weir_http::{Limits, Progress, parse_request, parse_response};

    use super::*;

    const RULES: &str = "[listener.a]\nbind = \"127.0.0.1:1\"\npool = \"p\"\ncompress = true\n[pool.p]\nbackends = [\"127.0.0.1:2\"]\n";

    fn rules() -> Compress {
        weir_config::parse("a.toml", RULES).unwrap().listeners[0].http().compress.clone().unwrap()
    }

    fn wished(version: &str, fields: &str) -> Option<Coding> {
        let text = format!("GET / HTTP/{version}\r\nhost: a\r\n{fields}\r\n");
        let mut head = RequestHead::new();
        let parsed = parse_request(text.as_bytes(), &Limits::default(), &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{parsed:?}");
        wish(Some(&rules()), &head, text.as_bytes())
    }

    #[test]
    fn the_client_chooses_by_weight_and_the_listener_among_equals() {
        assert_eq!(wished("1.1", "accept-encoding: gzip, deflate, br, zstd\r\n"), Some(Coding::Zstd));
        assert_eq!(wished("1.1", "accept-encoding: gzip, br\r\n"), Some(Coding::Brotli));
        assert_eq!(wished("1.1", "accept-encoding: gzip, br;q=0.9\r\n"), Some(Coding::Gzip));
        assert_eq!(wished("1.1", "accept-encoding: gzip;q=0\r\n"), None);
        assert_eq!(wished("1.1", "accept-encoding: identity, gzip;q=0.5\r\n"), None);
        assert_eq!(wished("1.1", "accept-encoding: identity;q=0.5, gzip;q=0.5\r\n"), Some(Coding::Gzip));
        assert_eq!(wished("1.1", "accept-encoding: deflate\r\n"), None);
        assert_eq!(wished("1.1", ""), None);
        assert_eq!(wished("1.0", "accept-encoding: gzip\r\n"), None);
    }

    fn decided(status_and_fields: &str, wish: Option<Coding>, buffers: &Rc<Buffers>) -> Decision {
        let text = format!("HTTP/1.1 {status_and_fields}\r\n\r\n");
        let mut head = ResponseHead::new();
        let parsed = parse_response(text.as_bytes(), &Limits::default(), Method::Get, &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{parsed:?}");
        judge(&rules(), wish, Method::Get, &head, text.as_bytes(), buffers)
    }

    const PAGE: &str = "200 OK\r\ncontent-type: text/html\r\ncontent-length: 5000";

    #[test]
    fn a_page_is_encoded_where_the_client_takes_it_and_marked_where_it_does_not() {
        let buffers = Buffers::new(64 << 20);
        let encoded = decided(PAGE, Some(Coding::Gzip), &buffers);
        assert_eq!(encoded.negotiated, Some(Negotiated { coding: Some("gzip"), length: None, weaken: true }));
        assert!(encoded.encoding.is_some());
        let plain = decided(PAGE, None, &buffers);
        assert_eq!(plain.negotiated, Some(Negotiated { coding: None, length: None, weaken: false }));
        assert!(plain.encoding.is_none());
        let image = decided(
            "200 OK\r\ncontent-type: image/png\r\ncontent-length: 5000",
            Some(Coding::Gzip),
            &buffers,
        );
        assert!(image.negotiated.is_none() && image.encoding.is_none());
        let unchanged = decided("304 Not Modified\r\netag: \"a\"", Some(Coding::Gzip), &buffers);
        assert_eq!(unchanged.negotiated, Some(Negotiated { coding: None, length: None, weaken: true }));
        let unchanged = decided("304 Not Modified\r\netag: \"a\"", None, &buffers);
        assert_eq!(unchanged.negotiated, Some(Negotiated { coding: None, length: None, weaken: false }));
    }

    #[test]
    fn when_memory_is_short_the_page_goes_as_it_came() {
        let buffers = Buffers::new(1 << 20);
        let first = decided(PAGE, Some(Coding::Gzip), &buffers);
        assert!(first.encoding.is_some());
        let second = decided(PAGE, Some(Coding::Gzip), &buffers);
        assert!(second.encoding.is_none() && second.out_of_memory);
        assert_eq!(second.negotiated, Some(Negotiated { coding: None, length: None, weaken: false }));
        drop(first);
        assert!(decided(PAGE, Some(Coding::Gzip), &buffers).encoding.is_some(), "it was given back");
    }
}
