//! The cache key: everything that identifies a response.
//!
//! The parts are concatenated, each with its length before it, so that two requests never get the same key
//! just because their parts meet differently (threat E4). The key's hash only finds the place; the bytes are
//! compared. What `vary` selects by is appended: see [`crate::variants`].

use std::hash::{BuildHasher as _, Hasher as _};

use foldhash::quality::FixedState;
use weir_http::{KnownHeader, RequestHead, Scheme};

use crate::query::{self, Parameters};
use crate::rules::{QueryRule, Rules};
use crate::{cookies, request};

/// The parts of a key.
#[derive(Clone, Copy, Debug)]
pub struct KeySource<'a> {
    /// The pool's name. Routes to other origins never share answers.
    pub scope: &'a [u8],
    /// The scheme that the client uses.
    pub scheme: Scheme,
    /// Host and port as the client sent them.
    pub authority: &'a [u8],
    /// The normalised path as it is forwarded.
    pub path: &'a [u8],
    /// The query as the client sent it, without its `?`.
    pub query: Option<&'a [u8]>,
    /// The request.
    pub head: &'a RequestHead,
    /// The text that it was parsed from.
    pub buffer: &'a [u8],
    /// The client is a trusted proxy: the host and scheme that it reports reach the origin, and so are part
    /// of the key (threat E1).
    pub trusted: bool,
}

/// A buffer for keys, reused from request to request.
#[derive(Clone, Debug, Default)]
pub struct KeyBuffer {
    bytes: Vec<u8>,
    hash: u64,
    seed: u64,
    /// Where the part that names the resource ends and other request fields begin.
    uri_end: usize,
    /// Where the part that `vary` adds begins.
    primary_end: usize,
    primary_hash: u64,
    /// Scratch space for the parameters of a query that is sorted or filtered.
    parameters: Parameters,
}

impl KeyBuffer {
    /// An empty one.
    pub fn new() -> KeyBuffer {
        KeyBuffer::default()
    }

    /// Builds the key of a request. `seed` is [`crate::Store::seed`]. Does not allocate once there is
    /// capacity.
    pub fn build(&mut self, source: &KeySource<'_>, rules: &Rules, seed: u64) {
        self.bytes.clear();
        self.seed = seed;
        self.part(source.scope);
        self.bytes.push(match source.scheme {
            Scheme::Http => b'h',
            Scheme::Https => b's',
        });
        let authority = without_default_port(source.authority, source.scheme);
        self.lower_part(authority);
        self.part(source.path);
        self.query(source.query, rules);
        self.uri_end = self.bytes.len();
        if source.trusted {
            for name in
                [KnownHeader::XForwardedHost, KnownHeader::XForwardedProto, KnownHeader::XForwardedPort]
            {
                self.values(source.head.values(name, source.buffer));
            }
            self.told(source);
        }
        for name in &rules.key_headers {
            let named =
                source.head.fields(source.buffer).filter(|field| field.name.eq_ignore_ascii_case(name));
            self.values(named.map(|field| field.value));
        }
        for name in &rules.key_cookies {
            let cookies = source.head.values(KnownHeader::Cookie, source.buffer);
            self.values(cookies.flat_map(|line| cookies::named(line, name)));
        }
        self.primary_end = self.bytes.len();
        self.primary_hash = hash(seed, &self.bytes);
        self.hash = self.primary_hash;
    }

    /// The key; that of a variant, once one was selected.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The hash of [`Self::bytes`].
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The key without what `vary` adds, preceded by its hash.
    pub(crate) fn primary(&self) -> (u64, &[u8]) {
        (self.primary_hash, self.bytes.get(..self.primary_end).unwrap_or_default())
    }

    /// The parts with which to ask an origin. Nothing else of the resource's name tells responses apart, so
    /// nothing else may reach the origin (threat E1). `None` before any key was built.
    pub fn parts(&self) -> Option<KeyParts<'_>> {
        KeyParts::of(&self.bytes)
    }

    /// The prefix that all keys of one resource share, whatever else tells its responses apart.
    pub(crate) fn uri(&self) -> &[u8] {
        self.bytes.get(..self.uri_end).unwrap_or_default()
    }

    /// Removes the part that `vary` added.
    pub(crate) fn back_to_primary(&mut self) {
        self.bytes.truncate(self.primary_end);
        self.hash = self.primary_hash;
    }

    /// Appends, by `write`, the part that `vary` adds.
    pub(crate) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.back_to_primary();
        write(&mut self.bytes);
        self.hash = hash(self.seed, &self.bytes);
    }

    fn part(&mut self, part: &[u8]) {
        push_part(&mut self.bytes, part);
    }

    fn lower_part(&mut self, part: &[u8]) {
        push_length(&mut self.bytes, part.len());
        self.bytes.extend(part.iter().map(u8::to_ascii_lowercase));
    }

    /// Writes each of some values, and a mark that there are no more.
    fn values<'a>(&mut self, values: impl Iterator<Item = &'a [u8]>) {
        for value in values {
            self.bytes.push(1);
            self.part(value);
        }
        self.bytes.push(0);
    }

    /// Writes host, path and scheme as reported by a trusted proxy.
    fn told(&mut self, source: &KeySource<'_>) {
        let lines = source.head.values(KnownHeader::Forwarded, source.buffer);
        self.values(lines.flat_map(forwarded_places));
        for (number, value) in request::told(source.head, source.buffer) {
            self.bytes.push(number as u8 + 1);
            self.part(value);
        }
        self.bytes.push(0);
    }

    /// Writes the query with which an origin is asked; a query of which nothing is left counts as none.
    fn query(&mut self, query: Option<&[u8]>, rules: &Rules) {
        let Some(query) = query else { return self.bytes.push(NO_QUERY) };
        if rules.query == QueryRule::Whole && !rules.query_sort {
            self.bytes.push(QUERY);
            return self.part(query);
        }
        let mut parameters = std::mem::take(&mut self.parameters);
        query::find(query, rules, &mut parameters);
        let texts = || parameters.iter().map(|place| query::of(query, *place));
        match texts().map(|text| text.len() + 1).sum::<usize>().checked_sub(1) {
            None => self.bytes.push(NO_QUERY),
            Some(length) => {
                self.bytes.push(QUERY);
                push_length(&mut self.bytes, length);
                for (number, text) in texts().enumerate() {
                    if number > 0 {
                        self.bytes.push(b'&');
                    }
                    self.bytes.extend_from_slice(text);
                }
            }
        }
        self.parameters = parameters;
    }
}

/// Precedes a query.
const QUERY: u8 = b'?';
/// Stands for the absence of a query.
const NO_QUERY: u8 = b'-';

/// The hash of a key. `seed` is secret, so that clients cannot choose requests whose keys collide.
pub(crate) fn hash(seed: u64, bytes: &[u8]) -> u64 {
    let mut hasher = FixedState::with_seed(seed).build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

/// The `host` and `proto` parameters of a `forwarded` line (RFC 7239 §4). A quoted string may be cut into
/// apparent parameters, which is harmless: they only make the key more specific.
fn forwarded_places(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let parameters = line.split(|byte| matches!(byte, b',' | b';')).map(<[u8]>::trim_ascii);
    parameters.filter(|parameter| {
        let name = parameter.split(|&byte| byte == b'=').next().unwrap_or_default();
        name.eq_ignore_ascii_case(b"host") || name.eq_ignore_ascii_case(b"proto")
    })
}

/// Turns `host:80` over HTTP and `host:443` over HTTPS into `host` (RFC 9110 §4.2.3), and `host:` too.
fn without_default_port(authority: &[u8], scheme: Scheme) -> &[u8] {
    let port: &[u8] = match scheme {
        Scheme::Http => b":80",
        Scheme::Https => b":443",
    };
    let host = authority.strip_suffix(port).or_else(|| authority.strip_suffix(b":"));
    host.unwrap_or(authority)
}

fn push_part(out: &mut Vec<u8>, part: &[u8]) {
    push_length(out, part.len());
    out.extend_from_slice(part);
}

/// Writes seven bits per byte, the lowest first.
fn push_length(out: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

/// The parts of a key that name its resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyParts<'a> {
    /// The pool's name.
    pub scope: &'a [u8],
    /// The scheme that clients use.
    pub scheme: Scheme,
    /// In lower case, without the scheme's default port.
    pub authority: &'a [u8],
    /// The normalised path.
    pub path: &'a [u8],
    /// The part of the query that tells responses apart, without a `?`.
    pub query: Option<&'a [u8]>,
}

impl<'a> KeyParts<'a> {
    /// The port of the authority, or the scheme's default.
    pub fn port(&self) -> u16 {
        let default = match self.scheme {
            Scheme::Http => 80,
            Scheme::Https => 443,
        };
        // The last colon of an IPv6 address comes before its closing bracket.
        let said =
            self.authority.rsplit(|&byte| byte == b':').next().filter(|_| self.authority.contains(&b':'));
        said.and_then(|port| std::str::from_utf8(port).ok()?.parse().ok()).unwrap_or(default)
    }

    /// Parses what [`KeyBuffer::build`] wrote; `None` for anything else.
    pub fn of(key: &'a [u8]) -> Option<KeyParts<'a>> {
        Some(KeyParts::split(key)?.0)
    }

    /// The prefix that all keys of the key's resource share.
    pub(crate) fn uri_of(key: &'a [u8]) -> &'a [u8] {
        let rest = KeyParts::split(key).map_or(key.len(), |(_, rest)| rest.len());
        key.get(..key.len() - rest).unwrap_or_default()
    }

    /// The parts, and what follows them.
    fn split(key: &'a [u8]) -> Option<(KeyParts<'a>, &'a [u8])> {
        let (scope, rest) = take_part(key)?;
        let (scheme, rest) = match rest {
            [b'h', rest @ ..] => (Scheme::Http, rest),
            [b's', rest @ ..] => (Scheme::Https, rest),
            _ => return None,
        };
        let (authority, rest) = take_part(rest)?;
        let (path, rest) = take_part(rest)?;
        let (query, rest) = match rest {
            [NO_QUERY, rest @ ..] => (None, rest),
            [QUERY, rest @ ..] => take_part(rest).map(|(query, rest)| (Some(query), rest))?,
            _ => return None,
        };
        Some((KeyParts { scope, scheme, authority, path, query }, rest))
    }
}

fn take_part(mut bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut length, mut shift) = (0_usize, 0);
    loop {
        let (&byte, rest) = bytes.split_first()?;
        bytes = rest;
        length |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return bytes.split_at_checked(length);
        }
        shift += 7;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Pattern;
    use crate::tests::request;

    /// The key of a GET for this authority, target and these field lines.
    fn key(authority: &str, target: &str, lines: &str, rules: &Rules) -> Vec<u8> {
        let (head, buffer) = request(&format!("GET {target} HTTP/1.1\r\nhost: {authority}\r\n{lines}"));
        let mut key = KeyBuffer::new();
        let source = KeySource {
            scope: b"app",
            scheme: Scheme::Http,
            authority: head.host(&buffer).unwrap(),
            path: head.path(&buffer),
            query: head.query(&buffer),
            head: &head,
            buffer: &buffer,
            trusted: false,
        };
        key.build(&source, rules, 7);
        assert_eq!(key.hash(), hash(7, key.bytes()));
        key.bytes().to_vec()
    }

    fn plain(target: &str) -> Vec<u8> {
        key("a", target, "", &Rules::default())
    }

    fn patterns(names: &[&str]) -> Vec<Pattern> {
        names.iter().map(|name| Pattern::new(name.as_bytes())).collect()
    }

    #[test]
    fn hosts_are_the_same_in_any_case_and_with_a_port_that_goes_without_saying() {
        let of = |authority| key(authority, "/", "", &Rules::default());
        assert_eq!(of("shop.example"), of("Shop.Example"));
        assert_eq!(of("shop.example"), of("shop.example:80"));
        assert_ne!(of("shop.example"), of("shop.example:443"));
        assert_ne!(of("shop.example"), of("shop.example:8080"));
    }

    #[test]
    fn the_port_is_that_of_the_authority_or_of_the_scheme() {
        let port = |authority| KeyParts::of(&key(authority, "/", "", &Rules::default())).unwrap().port();
        assert_eq!(port("shop.example"), 80);
        assert_eq!(port("shop.example:80"), 80);
        assert_eq!(port("shop.example:8443"), 8443);
        assert_eq!([port("[2001:db8::1]"), port("[2001:db8::1]:81"), port("192.0.2.1")], [80, 81, 80]);
        let parts = KeyParts { scope: b"", scheme: Scheme::Https, authority: b"a", path: b"/", query: None };
        assert_eq!(parts.port(), 443);
    }

    #[test]
    fn paths_queries_and_their_absence_tell_requests_apart() {
        let all = ["/", "/a", "/A", "/a?", "/a?b", "/a?b=", "/a?b&c", "/a?c&b", "/ab", "/a/b"];
        let keys: std::collections::BTreeSet<_> = all.iter().map(|target| plain(target)).collect();
        assert_eq!(keys.len(), all.len());
    }

    #[test]
    fn queries_are_filtered_and_sorted_as_the_operator_says() {
        let with = |query, query_sort| {
            let rules = Rules { query, query_sort, ..Rules::default() };
            move |target: &str| key("a", target, "", &rules)
        };
        let ignore = with(QueryRule::Ignore, false);
        assert_eq!(ignore("/a?b=1"), ignore("/a"));
        let only = with(QueryRule::Only(patterns(&["id", "page*"])), true);
        assert_eq!(only("/a?utm=1&page=2&id=1"), only("/a?id=1&&page=2"));
        assert_eq!(only("/a?utm=1"), only("/a"));
        assert_ne!(only("/a?id=1"), only("/a?id=1&%69d=2"));
        assert_ne!(only("/a?id=1"), only("/a?id=2"));
        assert_ne!(only("/a?id=1"), only("/a?ID=1"));
        let without = with(QueryRule::Without(patterns(&["utm_*"])), false);
        assert_eq!(without("/a?utm_source=x&id=1"), without("/a?id=1"));
        assert_ne!(without("/a?x=1&id=1"), without("/a?id=1&x=1"));
        let sorted = with(QueryRule::Whole, true);
        assert_eq!(sorted("/a?b=1&a=1"), sorted("/a?a=1&b=1"));
        assert_ne!(sorted("/a?a=1&a=2"), sorted("/a?a=2&a=1"));
    }

    #[test]
    fn declared_fields_and_cookies_tell_requests_apart_and_others_do_not() {
        let rules = Rules {
            key_headers: vec![b"x-tenant".as_slice().into()],
            key_cookies: vec![b"lang".as_slice().into()],
            ..Rules::default()
        };
        let of = |lines: &str| key("a", "/", lines, &rules);
        assert_ne!(of("x-tenant: 1\r\n"), of("x-tenant: 2\r\n"));
        assert_ne!(of("x-tenant: \r\n"), of(""));
        assert_ne!(of("x-tenant: 1\r\nx-tenant: 2\r\n"), of("x-tenant: 12\r\n"));
        assert_eq!(of("cookie: lang=de; session=1\r\n"), of("cookie: session=2;lang=de\r\n"));
        assert_ne!(of("cookie: lang=de\r\n"), of("cookie: lang=en\r\n"));
        assert_ne!(of("cookie: lang=de\r\n"), of("cookie: xlang=de\r\n"));
        assert_eq!(of("x-other: 1\r\n"), of(""));
    }

    /// Threat E1.
    #[test]
    fn what_a_trusted_proxy_says_of_the_host_is_part_of_the_key() {
        let of = |lines: &str, trusted| {
            let (head, buffer) = request(&format!("GET / HTTP/1.1\r\nhost: a\r\n{lines}"));
            let mut key = KeyBuffer::new();
            let (authority, path) = (b"a".as_slice(), b"/".as_slice());
            let source = KeySource {
                scope: b"s",
                scheme: Scheme::Http,
                authority,
                path,
                query: None,
                head: &head,
                buffer: &buffer,
                trusted,
            };
            key.build(&source, &Rules::default(), 0);
            key.bytes().to_vec()
        };
        for said in [
            "x-forwarded-host: evil\r\n",
            "forwarded: for=1.2.3.4;host=evil\r\n",
            "forwarded: for=\"[::1]\";proto=https, for=1.2.3.4\r\n",
            "x-forwarded-prefix: /evil\r\n",
            "x_forwarded_scheme: http\r\n",
        ] {
            assert_eq!(of(said, false), of("", false), "{said}");
            assert_ne!(of(said, true), of("", true), "{said}");
        }
        // The client's address is not: no answer would be shared.
        assert_eq!(of("forwarded: for=1.2.3.4;by=b\r\n", true), of("forwarded: for=1.2.3.5\r\n", true));
    }

    #[test]
    fn the_parts_of_a_key_are_read_back() {
        let long = format!("/{}", "x".repeat(300));
        for (target, query) in [(long.clone(), None), (format!("{long}?a=b"), Some(&b"a=b"[..]))] {
            let rules = Rules { key_headers: vec![b"x-a".as_slice().into()], ..Rules::default() };
            let key = key("a", &target, "x-a: 1\r\n", &rules);
            let parts = KeyParts::of(&key).unwrap();
            assert_eq!((parts.scope, parts.authority, parts.path), (&b"app"[..], &b"a"[..], long.as_bytes()));
            assert_eq!(parts.query, query);
            let uri = KeyParts::uri_of(&key);
            assert_eq!(key.strip_prefix(uri), Some(&b"\x01\x011\x00"[..]));
            for end in 0..uri.len() {
                assert_eq!(KeyParts::of(&key[..end]), None);
            }
        }
    }

    /// Threat E1: what reaches an origin is what the key says, and nothing beside it.
    #[test]
    fn the_query_to_ask_with_is_that_of_the_key() {
        let asked = |target: &str, rules: &Rules| {
            let key = key("a", target, "", rules);
            KeyParts::of(&key).unwrap().query.map(|query| String::from_utf8(query.to_vec()).unwrap())
        };
        let query = QueryRule::Only(patterns(&["id", "page"]));
        let only = Rules { query, query_sort: true, ..Rules::default() };
        assert_eq!(asked("/a?page=1&x=2&%69d=3&&", &only).as_deref(), Some("%69d=3&page=1"));
        assert_eq!(asked("/a?x=2", &only), None);
        assert_eq!(asked("/a?", &only), None);
        let ignore = Rules { query: QueryRule::Ignore, ..Rules::default() };
        assert_eq!(asked("/a?x=2", &ignore), None);
        assert_eq!(asked("/a?b&&a", &Rules::default()).as_deref(), Some("b&&a"));
        assert_eq!(asked("/a?", &Rules::default()).as_deref(), Some(""));
    }

    /// Threat E4: however the parts are cut, two requests have the same key only if all parts are the same.
    /// The parts consist of the bytes that separate them.
    #[test]
    fn no_two_requests_have_one_key() {
        let (head, buffer) = request("GET / HTTP/1.1\r\nhost: a\r\n");
        let mut keys = std::collections::BTreeSet::new();
        let mut count = 0;
        for scope in ["", "h", "ha", "hha", "ha/", "s", "1", "\u{1}"] {
            for path in ["/", "/a", "/?", "/-", "/?a", "/a?"] {
                for query in [None, Some(""), Some("?"), Some("a"), Some("?a"), Some("-")] {
                    let mut key = KeyBuffer::new();
                    let source = KeySource {
                        scope: scope.as_bytes(),
                        scheme: Scheme::Http,
                        authority: b"a",
                        path: path.as_bytes(),
                        query: query.map(str::as_bytes),
                        head: &head,
                        buffer: &buffer,
                        trusted: false,
                    };
                    key.build(&source, &Rules::default(), 0);
                    keys.insert(key.bytes().to_vec());
                    count += 1;
                }
            }
        }
        assert_eq!(keys.len(), count);
    }
}
