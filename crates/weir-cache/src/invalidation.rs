//! Stored responses that an unsafe method invalidates (RFC 9111 §4.4).

use weir_http::{KnownHeader, Method, RequestHead, ResponseHead, Scheme, path};

/// A resource of the same host that may have changed. Remove it under the key of a GET for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The normalised path.
    pub path: Vec<u8>,
    /// The query, without its `?`.
    pub query: Option<Vec<u8>>,
}

/// Whether a request with this method, answered with this final status, invalidates what is stored for its
/// target: unsafe methods with a non-error status, except CONNECT, whose target is not a resource. O(1).
//= https://www.rfc-editor.org/rfc/rfc9111#section-4.4
//# A cache MUST invalidate the target URI (Section 7.1 of [HTTP]) when
//# it receives a non-error status code in response to an unsafe request
//# method (including methods whose safety is unknown).
pub fn invalidates(method: Method, status: u16) -> bool {
    //# A "non-error response" is one with a 2xx (Successful) or 3xx (Redirection) status code.
    !method.is_safe() && method != Method::Connect && (200..400).contains(&status)
}

/// Other resources of the same host that the response names in `location` and `content-location`: at most
/// two, without those of another origin and those that can't be parsed as a reference.
///
/// The buffers are those that the heads were parsed from; `scheme` is the one that the client used. O(length
/// of the two fields); allocates its result.
//= https://www.rfc-editor.org/rfc/rfc9111#section-4.4
//# However, a cache MUST NOT trigger
//# an invalidation under these conditions if the origin (Section 4.3.1
//# of [HTTP]) of the URI to be invalidated differs from that of the
//# target URI.
pub fn invalidated(
    request: &RequestHead,
    request_buffer: &[u8],
    scheme: Scheme,
    response: &ResponseHead,
    response_buffer: &[u8],
) -> Vec<Target> {
    let names = [KnownHeader::Location, KnownHeader::ContentLocation];
    let values = names.into_iter().filter_map(|name| response.value(name, response_buffer));
    let host = request.host(request_buffer).unwrap_or_default();
    values.filter_map(|value| target(value, host, scheme)).collect()
}

fn target(reference: &[u8], host: &[u8], scheme: Scheme) -> Option<Target> {
    let reference = reference.split(|&byte| byte == b'#').next()?;
    let rest = match reference {
        [b'/', b'/', rest @ ..] => of_host(rest, host)?,
        [b'/', ..] => reference,
        _ => {
            let word = scheme.word().as_bytes();
            let (found, rest) = reference.split_at_checked(word.len())?;
            found.eq_ignore_ascii_case(word).then_some(())?;
            of_host(rest.strip_prefix(b"://")?, host)?
        }
    };
    let question = rest.iter().position(|&byte| byte == b'?');
    let (raw, query) = rest.split_at(question.unwrap_or(rest.len()));
    let raw = if raw.is_empty() { b"/" } else { raw };
    let path = path::normalise(raw).ok()?.into_owned();
    Some(Target { path, query: query.get(1..).map(<[u8]>::to_vec) })
}

/// The text after the authority, if the authority is the host.
fn of_host<'a>(rest: &'a [u8], host: &[u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    authority.eq_ignore_ascii_case(host).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{request, response};

    #[test]
    fn only_unsafe_methods_that_succeed_invalidate() {
        for method in [Method::Post, Method::Put, Method::Delete, Method::Patch, Method::Other] {
            assert!(
                invalidates(method, 200) && invalidates(method, 204) && invalidates(method, 303),
                "{method:?}"
            );
            assert!(
                !invalidates(method, 400) && !invalidates(method, 500) && !invalidates(method, 101),
                "{method:?}"
            );
        }
        for method in [Method::Get, Method::Head, Method::Options, Method::Trace] {
            assert!(!invalidates(method, 200), "{method:?}");
        }
    }

    #[test]
    fn what_the_response_names_of_the_same_host_is_doubtful_too() {
        let of = |lines: &str| {
            let (asked, asked_buffer) = request("POST /cart HTTP/1.1\r\nhost: Shop.example:8080\r\n");
            let (head, buffer) = response(&format!("HTTP/1.1 201 Created\r\n{lines}"));
            let targets = invalidated(&asked, &asked_buffer, Scheme::Http, &head, &buffer);
            let text = |target: Target| {
                let query = target.query.map(|query| format!("?{}", String::from_utf8(query).unwrap()));
                String::from_utf8(target.path).unwrap() + &query.unwrap_or_default()
            };
            targets.into_iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(of("location: /cart/1\r\ncontent-location: /cart?a=b#c\r\n"), ["/cart/1", "/cart?a=b"]);
        assert_eq!(of("location: http://shop.example:8080/x/../y\r\n"), ["/y"]);
        assert_eq!(of("location: HTTP://shop.example:8080\r\n"), ["/"]);
        assert_eq!(of("location: //shop.example:8080?a\r\n"), ["/?a"]);
        for other in [
            "http://shop.example/x",
            "https://shop.example:8080/x",
            "http://evil.example:8080/x",
            "//evil/x",
            "x",
            "",
            "/../x",
        ] {
            assert_eq!(of(&format!("location: {other}\r\n")), Vec::<String>::new(), "{other}");
        }
    }
}
