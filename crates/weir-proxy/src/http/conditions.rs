//! Decides whether a request meets the conditions of a route; nothing else decides this. The data path and
//! `weir explain` both use it. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use weir_config::{Condition, HostPattern, Others, PathPattern, Pattern};
use weir_http::form;
use weir_http::values::cookies;
use weir_screen::{FieldLookup, Groups, Networks};

/// The parts of a request that a route looks at.
pub struct RequestView<'a> {
    /// Host without port, as sent; empty when the request has none.
    pub host: &'a [u8],
    /// The normalised path.
    pub path: &'a [u8],
    /// The query without its `?`, as sent; `None` if there is none.
    pub query: Option<&'a [u8]>,
    /// The method, as sent.
    pub method: &'a [u8],
    /// Gives the combined value of the header field of a name (in lower case).
    pub header: &'a FieldLookup<'a>,
    /// Passes every `cookie` line to a predicate until one satisfies it; gives whether one did.
    pub cookies: &'a AnyLine<'a>,
    /// Passes the value of a map for the request (`None` if it has none) to a predicate; gives its result.
    pub mapped: &'a Mapped<'a>,
    /// The client's address.
    pub client: IpAddr,
}

impl RequestView<'_> {
    /// The view of a connection whose client asks for the server `name`: like a request to that host of which
    /// nothing else is known.
    pub fn of_connection(name: Option<&str>, client: IpAddr) -> RequestView<'_> {
        RequestView {
            host: name.unwrap_or_default().as_bytes(),
            path: b"/",
            query: None,
            method: b"",
            header: &|_| None,
            cookies: &|_| false,
            mapped: &|_, look| look(None),
            client,
        }
    }
}

/// Looks up a map by its name.
pub type Mapped<'a> = dyn Fn(&str, &mut dyn FnMut(Option<&[u8]>) -> bool) -> bool + 'a;

/// Whether any line satisfies the predicate.
pub type AnyLine<'a> = dyn Fn(&mut dyn FnMut(&[u8]) -> bool) -> bool + 'a;

/// The conditions of a route, or one of its nested conditions.
#[derive(PartialEq)]
pub struct Asked {
    pub(super) host: Vec<HostPattern>,
    path: Vec<PathPattern>,
    method: Vec<Box<[u8]>>,
    header: Values,
    /// Rarely used conditions; `None` without any.
    more: Option<Box<More>>,
}

/// Names, and the pattern that the value of each is compared with.
type Values = Box<[(Box<[u8]>, Pattern)]>;

#[derive(PartialEq)]
struct More {
    query: Values,
    cookie: Values,
    map: Box<[(Box<str>, Pattern)]>,
    client_ip: Option<Networks>,
    not: Box<[Asked]>,
    any: Box<[Asked]>,
}

/// Why a request does not meet the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// Its host does not match.
    Host,
    /// Its path does not match.
    Path,
    /// Its method does not match.
    Method,
    /// The header field with this index is missing or has another value.
    Header(usize),
    /// The query parameter with this index is missing or has another value.
    Query(usize),
    /// The cookie with this index is missing or has another value.
    Cookie(usize),
    /// The map with this index has no value for the request, or another one.
    Map(usize),
    /// Its client's address is in none of the networks.
    Client,
    /// The condition with this index in `not` holds.
    Not(usize),
    /// No condition of `any` holds.
    Any,
}

impl Asked {
    /// The conditions of a route.
    pub(super) fn of_route(route: &weir_config::Route) -> Asked {
        // A connection to a TCP listener is treated as a request for the server name that its client asks
        // for.
        let host = route.host.iter().chain(&route.sni).cloned().collect();
        let conditions = |list: &[Condition]| list.iter().map(Asked::of).collect();
        Asked {
            more: More::of(&route.others, conditions(&route.not), conditions(&route.any)),
            ..Asked::own(host, &route.path, &route.method, &route.header)
        }
    }

    fn of(condition: &Condition) -> Asked {
        let Condition { host, path, method, header, others } = condition;
        let more = More::of(others, Box::default(), Box::default());
        Asked { more, ..Asked::own(host.clone(), path, method, header) }
    }

    fn own(
        host: Vec<HostPattern>,
        path: &[PathPattern],
        method: &[String],
        header: &BTreeMap<String, Pattern>,
    ) -> Asked {
        let method = method.iter().map(|method| method.as_bytes().into()).collect();
        Asked { host, path: path.into(), method, header: values(header), more: None }
    }

    /// The length of the path's prefix that a `*` path named (the whole path for other forms), or why the
    /// request does not match. Linear in what is compared; does not allocate, unless a query has escapes.
    pub(super) fn matches(&self, request: &RequestView<'_>) -> Result<usize, Mismatch> {
        if !self.takes_host(request.host) {
            return Err(Mismatch::Host);
        }
        let prefix = self.matched_prefix(request.path).ok_or(Mismatch::Path)?;
        if !self.method.is_empty() && !self.method.iter().any(|method| **method == *request.method) {
            return Err(Mismatch::Method);
        }
        let has_field = |name: &[u8], wanted: &Pattern| {
            (request.header)(name).is_some_and(|value| wanted.matches(&value))
        };
        lacking(&self.header, has_field).map_err(Mismatch::Header)?;
        match &self.more {
            None => Ok(prefix),
            Some(more) => more.matches(request).map(|()| prefix),
        }
    }

    pub(super) fn takes_host(&self, host: &[u8]) -> bool {
        self.host.is_empty()
            || self.host.iter().any(|pattern| match pattern {
                HostPattern::Exact(name) => host.eq_ignore_ascii_case(name.as_bytes()),
                // The `*` stands for at least one byte.
                HostPattern::Suffix(suffix) => {
                    host.len() > suffix.len()
                        && host[host.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
                }
                HostPattern::Regex(expression) => expression.matches(host),
            })
    }

    fn matched_prefix(&self, path: &[u8]) -> Option<usize> {
        if self.path.is_empty() {
            return Some(0);
        }
        self.path.iter().find_map(|pattern| match pattern {
            PathPattern::Exact(exact) => (exact.as_bytes() == path).then_some(path.len()),
            PathPattern::Prefix(prefix) => path.starts_with(prefix.as_bytes()).then_some(prefix.len()),
            PathPattern::Suffix(suffix) => path.ends_with(suffix.as_bytes()).then_some(path.len()),
            PathPattern::Contains(part) => contains(path, part.as_bytes()).then_some(path.len()),
            PathPattern::Regex(expression) => expression.matches(path).then_some(path.len()),
        })
    }

    /// The groups that its expressions matched in a path that matches; `None` if no expression has groups.
    /// Allocates once for an expression with groups.
    pub(super) fn groups(&self, path: &[u8]) -> Option<Groups> {
        let expressions = self.path.iter().filter_map(|pattern| match pattern {
            PathPattern::Regex(expression) if expression.group_count() > 0 => Some(expression),
            _ => None,
        });
        { expressions }.find_map(|expression| expression.groups_in(path))
    }

    /// How many groups can be named at most.
    fn group_count(&self) -> u8 {
        let count = |pattern: &PathPattern| match pattern {
            PathPattern::Regex(expression) => expression.group_count(),
            _ => 0,
        };
        self.path.iter().map(count).max().unwrap_or(0)
    }

    /// Which conditions made it match, in words.
    pub(super) fn reason(&self, path: &[u8]) -> String {
        let mut parts: Vec<&str> = Vec::new();
        let own = [
            ("host", self.host.is_empty()),
            ("path", self.path.is_empty()),
            ("method", self.method.is_empty()),
            ("header", self.header.is_empty()),
        ];
        parts.extend(own.iter().filter(|(_, is_empty)| !is_empty).map(|(name, _)| name));
        if let Some(more) = &self.more {
            let rest = [
                ("query", more.query.is_empty()),
                ("cookie", more.cookie.is_empty()),
                ("map", more.map.is_empty()),
                ("client_ip", more.client_ip.is_none()),
                ("any", more.any.is_empty()),
            ];
            parts.extend(rest.iter().filter(|(_, is_empty)| !is_empty).map(|(name, _)| name));
        }
        let mut reason = match parts.is_empty() {
            true => "takes every request".to_owned(),
            false => format!("{} matched", parts.join(", ")),
        };
        if self.more.as_ref().is_some_and(|more| !more.not.is_empty()) {
            reason += ", and nothing of `not`";
        }
        let groups = self.groups(path);
        for number in 1..=groups.map_or(0, |_| self.group_count()) {
            let matched = groups.unwrap_or_default();
            reason += &format!(", ${number} is `{}`", text(matched.of(number, path)));
        }
        reason
    }

    /// Why a route with these conditions takes a connection, in words.
    pub(super) fn reason_of_connection(&self) -> String {
        if self.host.is_empty() { "takes every connection" } else { "sni matched" }.to_owned()
    }

    /// Why a connection does not match, in words.
    pub(super) fn refusal_of_connection(&self, name: Option<&str>) -> String {
        let wanted = list(self.host.iter().map(ToString::to_string));
        match name {
            Some(name) => format!("server name `{name}` is not {wanted}"),
            None => format!("the client asks for no server name, and not for {wanted}"),
        }
    }

    /// Why a request does not match, in words. Values of fields, cookies and parameters are not shown: one
    /// may be a secret that lets requests through.
    pub(super) fn refusal(&self, mismatch: Mismatch, request: &RequestView<'_>) -> String {
        let more = |list: fn(&More) -> &Values| self.more.as_deref().map(list);
        let other = |what: &str, values: Option<&Values>, place: usize| {
            let name =
                values.and_then(|values| values.get(place)).map_or_else(String::new, |(name, _)| text(name));
            format!("{what} `{name}` is missing or has another value")
        };
        let mut refusal = "a map says nothing of it".to_owned();
        match mismatch {
            Mismatch::Host => {
                let wanted = self.host.iter().map(ToString::to_string);
                format!("host `{}` is not {}", text(request.host), list(wanted))
            }
            Mismatch::Path => {
                let wanted = self.path.iter().map(ToString::to_string);
                format!("path `{}` is not {}", text(request.path), list(wanted))
            }
            Mismatch::Method => {
                let wanted = self.method.iter().map(|method| text(method));
                format!("method `{}` is not {}", text(request.method), list(wanted))
            }
            Mismatch::Header(place) => other("header", Some(&self.header), place),
            Mismatch::Query(place) => other("query parameter", more(|more| &more.query), place),
            Mismatch::Cookie(place) => other("cookie", more(|more| &more.cookie), place),
            Mismatch::Map(place) => {
                let map = self.more.as_ref().and_then(|more| more.map.get(place));
                let (name, wanted) = map.map_or(("", String::new()), |(name, it)| (&**name, it.to_string()));
                (request.mapped)(name, &mut |value| match value {
                    Some(value) => {
                        refusal = format!("map `{name}` says `{}`, and not `{wanted}`", text(value));
                        true
                    }
                    None => false,
                });
                refusal
            }
            Mismatch::Client => {
                format!("client {} is in none of its networks", request.client.to_canonical())
            }
            Mismatch::Not(place) => {
                let condition = self.more.as_ref().and_then(|more| more.not.get(place));
                let why = condition.map_or_else(String::new, |condition| condition.reason(request.path));
                format!("condition {} of `not` holds: {why}", place + 1)
            }
            Mismatch::Any => "no condition of `any` holds".to_owned(),
        }
    }
}

impl More {
    fn of(others: &Others, not: Box<[Asked]>, any: Box<[Asked]>) -> Option<Box<More>> {
        if others.is_empty() && not.is_empty() && any.is_empty() {
            return None;
        }
        let Others { query, cookie, map, client_ip } = others;
        let client_ip = Networks::compile(client_ip);
        let map = map.iter().map(|(name, pattern)| (name.as_str().into(), pattern.clone())).collect();
        Some(Box::new(More { query: values(query), cookie: values(cookie), map, client_ip, not, any }))
    }

    fn matches(&self, request: &RequestView<'_>) -> Result<(), Mismatch> {
        if self.client_ip.as_ref().is_some_and(|networks| !networks.have(request.client)) {
            return Err(Mismatch::Client);
        }
        let query = request.query.unwrap_or_default();
        lacking(&self.query, |name, wanted| has_parameter(query, name, wanted)).map_err(Mismatch::Query)?;
        let has_cookie = |name: &[u8], wanted: &Pattern| {
            (request.cookies)(&mut |line| {
                cookies::pairs(line).any(|(this, value)| this == name && wanted.matches(value))
            })
        };
        lacking(&self.cookie, has_cookie).map_err(Mismatch::Cookie)?;
        // Checked last, because it costs more.
        let says = |(name, wanted): &(Box<str>, Pattern)| {
            (request.mapped)(name, &mut |value| value.is_some_and(|value| wanted.matches(value)))
        };
        if let Some(place) = self.map.iter().position(|map| !says(map)) {
            return Err(Mismatch::Map(place));
        }
        if let Some(place) = self.not.iter().position(|condition| condition.matches(request).is_ok()) {
            return Err(Mismatch::Not(place));
        }
        let any = self.any.is_empty() || self.any.iter().any(|condition| condition.matches(request).is_ok());
        if any { Ok(()) } else { Err(Mismatch::Any) }
    }
}

fn values(config: &BTreeMap<String, Pattern>) -> Values {
    config.iter().map(|(name, pattern)| (name.as_bytes().into(), pattern.clone())).collect()
}

/// `Err` with the index of the first one that is missing.
fn lacking(values: &Values, has: impl Fn(&[u8], &Pattern) -> bool) -> Result<(), usize> {
    values.iter().position(|(name, wanted)| !has(name, wanted)).map_or(Ok(()), Err)
}

/// Whether any parameter of that name has a matching value. A guard in `not` must recognise it in every
/// spelling and position, because applications differ in which of several values they take, and in whether
/// `;` separates parameters too. Both readings count.
fn has_parameter(query: &[u8], name: &[u8], wanted: &Pattern) -> bool {
    let is_wanted = |pair: &[u8]| {
        let at = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
        let value = pair.get(at + 1..).unwrap_or_default();
        !pair.is_empty() && form::is(&pair[..at], name) && wanted.matches(&form::unescaped(value))
    };
    query.split(|byte| *byte == b'&').any(|parameter| {
        is_wanted(parameter)
            || (parameter.contains(&b';') && parameter.split(|byte| *byte == b';').any(is_wanted))
    })
}

/// Whether `part`, which is not empty, occurs in `path`. The time is at worst proportional to the product of
/// both lengths; both are bounded, by the request line and by the config.
fn contains(path: &[u8], part: &[u8]) -> bool {
    path.windows(part.len().max(1)).any(|window| window == part)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn list(words: impl Iterator<Item = String>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use weir_config::parse;

    use super::*;

    /// The result of a route with these conditions for a request: `Ok`, or the reason.
    fn judged(
        conditions: &str,
        (path, query): (&str, Option<&str>),
        cookies: &[&str],
        client: &str,
    ) -> Result<usize, String> {
        judged_with(conditions, "", (path, query), cookies, client)
    }

    /// The same, with more text in the config.
    fn judged_with(
        conditions: &str,
        more: &str,
        (path, query): (&str, Option<&str>),
        cookies: &[&str],
        client: &str,
    ) -> Result<usize, String> {
        let text = format!(
            "[listener.web]\nbind = \"0.0.0.0:80\"\n[[listener.web.route]]\npool = \"app\"\n{conditions}\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n{more}"
        );
        let config = parse("a.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let asked = Asked::of_route(&config.listeners[0].routes[0]);
        let view = RequestView {
            host: b"shop.test",
            path: path.as_bytes(),
            query: query.map(str::as_bytes),
            method: b"GET",
            header: &|name| (name == b"x-tenant").then_some(Cow::Borrowed(b"acme-7")),
            cookies: &|look| cookies.iter().any(|line| look(line.as_bytes())),
            mapped: &|name, look| look((name == "tier").then_some(&b"gold-1"[..])),
            client: client.parse().unwrap(),
        };
        asked.matches(&view).map_err(|mismatch| asked.refusal(mismatch, &view))
    }

    fn by_query(conditions: &str, query: &str) -> bool {
        judged(conditions, ("/", Some(query)), &[], "192.0.2.1").is_ok()
    }

    #[test]
    fn a_parameter_is_found_wherever_it_stands_and_however_it_is_spelt() {
        let condition = r#"query = { debug = "*" }"#;
        for query in ["debug", "debug=", "a=1&debug=0", "%64ebug=1", "deb%75g", "&&debug"] {
            assert!(by_query(condition, query), "{query}");
        }
        for query in ["", "xdebug=1", "a=debug", "debug%3d1=2", "Debug=1"] {
            assert!(!by_query(condition, query), "{query}");
        }
        assert!(by_query(r#"query = { "a b" = "1 + 1*" }"#, "a+b=1+%2B+1=2"));
        assert!(by_query(r#"query = { v = "2" }"#, "v=1&v=2") && !by_query(r#"query = { v = "2" }"#, "v=22"));
        assert!(by_query(r#"query = { v = "%" }"#, "v=%") && by_query(r#"query = { v = "%2" }"#, "v=%2"));
        assert!(judged(condition, ("/", None), &[], "192.0.2.1").is_err());
    }

    #[test]
    fn a_parameter_behind_a_semicolon_is_seen_and_so_is_a_value_with_one() {
        for query in ["a=1;debug=1", ";debug", "a=1&b=2;%64ebug;c", "debug;a=1"] {
            assert!(by_query(r#"query = { debug = "*" }"#, query), "{query}");
            assert!(!by_query(r#"not = [{ query = { debug = "*" } }]"#, query), "{query}");
        }
        for query in ["a=1%3Bdebug=1", "xdebug;debugx=1"] {
            assert!(by_query(r#"not = [{ query = { debug = "*" } }]"#, query), "{query}");
        }
        assert!(by_query(r#"query = { v = "1;2" }"#, "v=1;2") && by_query(r#"query = { v = "1" }"#, "v=1;2"));
    }

    #[test]
    fn a_cookie_is_compared_alone_in_any_line() {
        let by = |condition: &str, lines: &[&str]| judged(condition, ("/", None), lines, "192.0.2.1").is_ok();
        let beta = r#"cookie = { beta = "1" }"#;
        assert!(
            by(beta, &["a=0; beta=1"]) && by(beta, &["a=0", "beta=1;c=2"]) && by(beta, &["beta=0; beta=1"])
        );
        assert!(!by(beta, &["xbeta=1", "beta=11", "a=beta=1"]) && !by(beta, &[]));
        assert!(by(r#"cookie = { beta = "*" }"#, &["beta="]) && !by(r#"cookie = { beta = "*" }"#, &["beta"]));
    }

    #[test]
    fn a_client_is_known_by_its_network_in_either_spelling() {
        let by =
            |client: &str| judged(r#"client_ip = ["10.0.0.0/8", "2001:db8::/32"]"#, ("/", None), &[], client);
        assert!(by("10.1.2.3").is_ok() && by("::ffff:10.1.2.3").is_ok() && by("2001:db8::1").is_ok());
        assert_eq!(by("::ffff:11.1.2.3").unwrap_err(), "client 11.1.2.3 is in none of its networks");
    }

    #[test]
    fn a_condition_of_not_holds_as_a_whole_and_one_of_any_is_enough() {
        let not = r#"not = [{ path = "/a/*", query = { x = "*" } }, { client_ip = "10.0.0.0/8" }]"#;
        let by = |path, query, client| judged(not, (path, query), &[], client);
        assert!(by("/a/b", None, "192.0.2.1").is_ok() && by("/b", Some("x"), "192.0.2.1").is_ok());
        let held = by("/a/b", Some("x"), "192.0.2.1").unwrap_err();
        assert_eq!(held, "condition 1 of `not` holds: path, query matched");
        assert!(by("/b", None, "10.0.0.1").unwrap_err().starts_with("condition 2 of `not`"));
        let any =
            r#"any = [{ path = "/a/*" }, { header = { x-tenant = "~^other" } }, { cookie = { c = "1" } }]"#;
        let by = |path, cookies: &[&str]| judged(any, (path, None), cookies, "192.0.2.1");
        assert!(by("/a/", &[]).is_ok() && by("/b", &["c=1"]).is_ok());
        assert_eq!(by("/b", &[]).unwrap_err(), "no condition of `any` holds");
    }

    #[test]
    fn fields_are_compared_by_pattern_and_what_was_asked_for_stays_unsaid() {
        let by = |pattern: &str| {
            judged(&format!("header = {{ x-tenant = '{pattern}' }}"), ("/", None), &[], "192.0.2.1")
        };
        for pattern in ["acme-7", "acme-*", "*-7", "*me*", "*", "~^acme-[0-9]+$"] {
            assert!(by(pattern).is_ok(), "{pattern}");
        }
        for pattern in ["acme", "ACME-7", "-7*", "~^me"] {
            assert_eq!(by(pattern).unwrap_err(), "header `x-tenant` is missing or has another value");
        }
    }

    #[test]
    fn what_a_map_says_is_compared_and_a_map_that_says_nothing_never_matches() {
        let by = |condition: &str| {
            let map = "[map.tier]\nfile = 'a'\nkey = '$host'\n[map.other]\nfile = 'a'\nkey = '$host'\n";
            judged_with(condition, map, ("/", None), &[], "192.0.2.1")
        };
        assert!(by(r#"map = { tier = "gold*" }"#).is_ok() && by(r#"map = { tier = "*" }"#).is_ok());
        let refusal = by(r#"map = { tier = "silver" }"#).unwrap_err();
        assert_eq!(refusal, "map `tier` says `gold-1`, and not `silver`");
        let refusal = by(r#"map = { tier = "*", other = "*" }"#).unwrap_err();
        assert_eq!(refusal, "a map says nothing of it");
        assert!(by(r#"not = { map = { other = "*" } }"#).is_ok());
    }

    #[test]
    fn groups_are_those_of_the_first_expression_that_matches() {
        let text = "[listener.web]\nbind = \"0.0.0.0:80\"\n[[listener.web.route]]\npool = \"app\"\npath = ['~^/v(\\d)/(.*)', '~^/(x)']\n[pool.app]\nbackends = [\"10.0.0.1:80\"]\n";
        let config = parse("a.toml", text).unwrap_or_else(|report| panic!("{report}"));
        let asked = Asked::of_route(&config.listeners[0].routes[0]);
        assert_eq!(asked.reason(b"/v1/a"), "path matched, $1 is `1`, $2 is `a`");
        assert_eq!(asked.reason(b"/x/a"), "path matched, $1 is `x`, $2 is ``");
    }
}
