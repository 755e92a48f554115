//! Decides whether the cache may answer a request.

use weir_http::values::cache_control::RequestDirectives;
use weir_http::{BodyLength, Field, KnownHeader, Method, RequestHead, TargetForm};

use crate::rules::Rules;

/// Why a request bypasses the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bypass {
    /// Only GET and HEAD are answered from the cache. An unsafe method may invalidate:
    /// [`crate::invalidates`].
    Method,
    /// It has a body, which is not part of the key and which an origin may act on (threat E1).
    Body,
    /// It asks for a protocol upgrade.
    Upgrade,
    /// Its target is not a path.
    Target,
    /// It has no host.
    Host,
    /// It has preconditions that only the origin can judge (RFC 9111 §4.3.2: `if-match`,
    /// `if-unmodified-since`).
    Precondition,
    /// It has a field that some origins read as another method, path or host, and that is not part of the key
    /// (threat E1).
    Override,
    /// Its `connection` field removes fields that may be part of the key, so that the origin would not see
    /// them (threat E1).
    Withheld,
}

impl Bypass {
    /// The word for `cache-status` and `weir explain`.
    pub const fn word(self) -> &'static str {
        match self {
            Bypass::Method => "method",
            Bypass::Body => "request-body",
            Bypass::Upgrade => "upgrade",
            Bypass::Target => "target",
            Bypass::Host => "no-host",
            Bypass::Precondition => "precondition",
            Bypass::Override => "override-field",
            Bypass::Withheld => "withheld-field",
        }
    }
}

/// What the policy needs to know of a request that the cache may answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// GET or HEAD.
    pub method: Method,
    /// The directives of its `cache-control`; none if [`Rules::honour_client`] is false.
    pub directives: RequestDirectives,
    /// It has `authorization` (RFC 9111 §3.5).
    pub authorization: bool,
    /// It has `cookie`.
    pub cookie: bool,
    /// It has `range`.
    pub range: bool,
    /// It has `if-none-match` or `if-modified-since`.
    pub conditional: bool,
}

impl RequestFacts {
    /// Whether it must be answered from the cache or else with a 504 (RFC 9111 §5.2.1.7).
    pub fn only_if_cached(&self) -> bool {
        self.directives.only_if_cached
    }

    /// Whether the client demands more than a fresh response: the answer to its fetch says little about what
    /// others would get.
    pub fn demands(&self) -> bool {
        let wanted = &self.directives;
        wanted.no_cache || wanted.max_age.is_some() || wanted.min_fresh.is_some()
    }

    /// The same request without the client's demands on freshness.
    pub(crate) fn without_demands(&self) -> RequestFacts {
        RequestFacts { directives: RequestDirectives::default(), ..*self }
    }

    /// Whether the request allows its response to be stored: not HEAD, which has no content, and not with
    /// `no-store`.
    pub fn may_store(&self) -> bool {
        self.method == Method::Get && !self.directives.no_store
    }
}

/// Fields by which origins and frameworks override the method of a request, whoever sends them.
const METHODS: [&[u8]; 5] = [
    b"x-http-method-override",
    b"x-http-method",
    b"x-method-override",
    b"x-original-method",
    b"x-forwarded-method",
];

/// Fields by which they override path, host or scheme. Proxies in front of Weir send some of these and are
/// trusted with them: see [`told`].
const PLACES: [&[u8]; 16] = [
    b"x-original-url",
    b"x-rewrite-url",
    b"x-original-uri",
    b"x-original-host",
    b"x-host",
    b"x-http-host-override",
    b"x-forwarded-server",
    b"x-forwarded-prefix",
    b"x-forwarded-path",
    b"x-forwarded-uri",
    b"x-envoy-original-path",
    b"x-script-name",
    b"x-forwarded-scheme",
    b"x-forwarded-protocol",
    b"x-forwarded-ssl",
    b"x-url-scheme",
];

/// Path, host and scheme as reported by a trusted proxy, in fields that nothing else in Weir reads: the index
/// of the field in `PLACES`, and its value.
pub(crate) fn told<'a>(
    head: &'a RequestHead,
    buffer: &'a [u8],
) -> impl Iterator<Item = (usize, &'a [u8])> + 'a {
    head.fields(buffer).filter_map(|field| Some((place_of(&field, &PLACES)?, field.value)))
}

/// Which of `names` a field has, or seems to have to a backend that reads an underscore as a dash. All
/// `names` begin with an x and are unknown to the rest of Weir.
fn place_of(field: &Field<'_>, names: &[&[u8]]) -> Option<usize> {
    let candidate = field.known == KnownHeader::Other && matches!(field.name, [b'x' | b'X', b'-' | b'_', ..]);
    candidate.then(|| names.iter().position(|name| same_to_backends(field.name, name)))?
}

/// Whether the cache may answer the request, and the facts that the policy needs. `trusted`: it comes from a
/// proxy that is trusted to describe the original request. O(fields), does not allocate.
///
/// # Errors
/// The request bypasses the cache: forward it, and do not store the response.
pub fn admits(
    head: &RequestHead,
    buffer: &[u8],
    rules: &Rules,
    trusted: bool,
) -> Result<RequestFacts, Bypass> {
    let method = head.method();
    if !matches!(method, Method::Get | Method::Head) {
        return Err(Bypass::Method);
    }
    if head.upgrade(buffer).is_some() || head.is_extended_connect() {
        return Err(Bypass::Upgrade);
    }
    if !matches!(head.body(), BodyLength::None | BodyLength::Length(0)) {
        return Err(Bypass::Body);
    }
    if !matches!(head.target_form(), TargetForm::Origin | TargetForm::Absolute) {
        return Err(Bypass::Target);
    }
    // Otherwise all hosts of a listener would share an empty name (CVE-2026-2836).
    if head.host(buffer).is_none_or(<[u8]>::is_empty) {
        return Err(Bypass::Host);
    }
    let has = |known| head.value(known, buffer).is_some();
    if has(KnownHeader::IfMatch) || has(KnownHeader::IfUnmodifiedSince) {
        return Err(Bypass::Precondition);
    }
    if overrides(head, buffer, rules, trusted) {
        return Err(Bypass::Override);
    }
    if head.withholds_fields() {
        return Err(Bypass::Withheld);
    }
    Ok(RequestFacts {
        method,
        directives: directives(head, buffer, rules),
        authorization: has(KnownHeader::Authorization),
        cookie: has(KnownHeader::Cookie),
        range: has(KnownHeader::Range),
        conditional: has(KnownHeader::IfNoneMatch) || has(KnownHeader::IfModifiedSince),
    })
}

fn overrides(head: &RequestHead, buffer: &[u8], rules: &Rules, trusted: bool) -> bool {
    let is_keyed = |name: &[u8]| rules.key_headers.iter().any(|keyed| name.eq_ignore_ascii_case(keyed));
    let overrides = |field: &Field<'_>| {
        place_of(field, &METHODS).is_some() || (!trusted && place_of(field, &PLACES).is_some())
    };
    head.fields(buffer).any(|field| overrides(&field) && !is_keyed(field.name))
        || (head.has_underscored_names() && head.fields(buffer).any(|field| is_twin(&field, rules)))
}

/// Whether a backend may take the field for another one that is part of the key or that Weir acts on.
fn is_twin(field: &Field<'_>, rules: &Rules) -> bool {
    let of_key = || rules.key_headers.iter().any(|name| same_to_backends(field.name, name));
    let of_known = || {
        let dashed: Vec<u8> =
            field.name.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
        KnownHeader::classify(&dashed) != KnownHeader::Other
    };
    field.name.contains(&b'_')
        && !rules.key_headers.iter().any(|name| field.name.eq_ignore_ascii_case(name))
        && (of_key() || of_known())
}

/// Whether a backend may take `name` for `lower`: many read an underscore as a dash.
pub(crate) fn same_to_backends(name: &[u8], lower: &[u8]) -> bool {
    name.len() == lower.len()
        && name
            .iter()
            .zip(lower)
            .all(|(byte, lower)| byte.to_ascii_lowercase() == *lower || (*byte == b'_' && *lower == b'-'))
}

fn directives(head: &RequestHead, buffer: &[u8], rules: &Rules) -> RequestDirectives {
    if !rules.honour_client {
        return RequestDirectives::default();
    }
    if head.value(KnownHeader::CacheControl, buffer).is_some() {
        return RequestDirectives::of(head.values(KnownHeader::CacheControl, buffer));
    }
    // RFC 9111 §5.4 deprecates it; clients that still send it mean `no-cache`.
    let pragma = head.value(KnownHeader::Pragma, buffer);
    let no_cache = pragma.is_some_and(|value| value.eq_ignore_ascii_case(b"no-cache"));
    RequestDirectives { no_cache, ..RequestDirectives::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::request;

    fn verdict(text: &str) -> Result<RequestFacts, Bypass> {
        let (head, buffer) = request(text);
        admits(&head, &buffer, &Rules::default(), false)
    }

    #[test]
    fn only_get_and_head_without_a_body_are_looked_up() {
        let get = RequestFacts::default();
        assert_eq!(verdict("GET / HTTP/1.1\r\nhost: a\r\n"), Ok(get));
        assert_eq!(
            verdict("HEAD / HTTP/1.1\r\nhost: a\r\n"),
            Ok(RequestFacts { method: Method::Head, ..get })
        );
        assert_eq!(verdict("GET http://a/ HTTP/1.1\r\nhost: a\r\n"), Ok(get));
        assert_eq!(verdict("GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n"), Ok(get));
        for (bypass, text) in [
            (Bypass::Method, "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n"),
            (Bypass::Method, "OPTIONS / HTTP/1.1\r\nhost: a\r\n"),
            (Bypass::Method, "get / HTTP/1.1\r\nhost: a\r\n"),
            (Bypass::Body, "GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n"),
            (Bypass::Body, "GET / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n"),
            (Bypass::Upgrade, "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"),
            (Bypass::Host, "GET / HTTP/1.0\r\n"),
            (Bypass::Precondition, "GET / HTTP/1.1\r\nhost: a\r\nif-match: \"a\"\r\n"),
            (Bypass::Precondition, "GET / HTTP/1.1\r\nhost: a\r\nif-unmodified-since: 0\r\n"),
        ] {
            assert_eq!(verdict(text), Err(bypass), "{text}");
        }
    }

    /// Threat E1.
    #[test]
    fn fields_that_make_origins_answer_another_request_go_past_the_cache() {
        for name in
            ["X-HTTP-Method-Override", "x-original-url", "X_REWRITE_URL", "x-host", "x-forwarded-scheme"]
        {
            let text = format!("GET / HTTP/1.1\r\nhost: a\r\n{name}: DELETE\r\n");
            assert_eq!(verdict(&text), Err(Bypass::Override), "{name}");
        }
        assert!(verdict("GET / HTTP/1.1\r\nhost: a\r\nx-hosts: b\r\n").is_ok());
        let keyed = Rules { key_headers: vec![b"x-host".as_slice().into()], ..Rules::default() };
        let (head, buffer) = request("GET / HTTP/1.1\r\nhost: a\r\nx-host: b\r\n");
        assert!(admits(&head, &buffer, &keyed, false).is_ok());
    }

    /// Threat E1: a proxy in front of Weir sends some of them with each request, and their values are part of
    /// the key.
    #[test]
    fn a_trusted_proxy_may_say_where_but_not_how() {
        let verdict = |lines: &str| {
            let (head, buffer) = request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
            admits(&head, &buffer, &Rules::default(), true)
        };
        assert!(verdict("x-forwarded-server: b\r\nx-forwarded-prefix: /c\r\n").is_ok());
        assert_eq!(verdict("x-http-method-override: DELETE\r\n"), Err(Bypass::Override));
    }

    /// Threat E1: `connection: x-tenant` makes Weir drop the field that is part of the key.
    #[test]
    fn a_request_whose_connection_takes_fields_away_goes_past_the_cache() {
        let of = |lines: &str| verdict(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
        assert_eq!(of("x-tenant: 1\r\nconnection: x-tenant\r\n"), Err(Bypass::Withheld));
        assert_eq!(of("connection: accept-language\r\naccept-language: de\r\n"), Err(Bypass::Withheld));
        // Fields that no backend sees anyway, and those that are absent.
        assert!(of("te: trailers\r\nconnection: te, keep-alive\r\n").is_ok());
        assert!(of("connection: x-tenant\r\n").is_ok());
    }

    /// Threat E1: origins behind CGI see both names as one.
    #[test]
    fn fields_that_a_backend_may_take_for_keyed_ones_go_past_the_cache() {
        let keyed = Rules { key_headers: vec![b"x-tenant".as_slice().into()], ..Rules::default() };
        let of = |lines: &str| {
            let (head, buffer) = request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
            admits(&head, &buffer, &keyed, false)
        };
        assert_eq!(of("x_tenant: 2\r\n"), Err(Bypass::Override));
        assert_eq!(of("accept_encoding: gzip\r\n"), Err(Bypass::Override));
        assert!(of("x_other: 2\r\nx-tenant: 1\r\n").is_ok());
    }

    #[test]
    fn clients_have_a_say_unless_the_operator_says_otherwise() {
        let text = "GET / HTTP/1.1\r\nhost: a\r\ncache-control: no-cache, max-age=5\r\npragma: x\r\n";
        let facts = verdict(text).unwrap();
        assert!(facts.directives.no_cache);
        assert_eq!(facts.directives.max_age, Some(5));
        assert!(verdict("GET / HTTP/1.1\r\nhost: a\r\npragma: no-cache\r\n").unwrap().directives.no_cache);
        // RFC 9111 section 5.4: cache-control wins.
        let both = "GET / HTTP/1.1\r\nhost: a\r\npragma: no-cache\r\ncache-control: max-age=5\r\n";
        assert!(!verdict(both).unwrap().directives.no_cache);
        let (head, buffer) = request(text);
        let deaf = Rules { honour_client: false, ..Rules::default() };
        assert_eq!(admits(&head, &buffer, &deaf, false), Ok(RequestFacts::default()));
    }
}
