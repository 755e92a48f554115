//! Rules that replace values of header fields and attributes of cookies, compiled once for each route and
//! pool.
//!
//! What takes a value's place is known only in part before the message is: the variables of the request are
//! filled in while its bytes are there, and leave marks where the groups of an expression go.

use weir_config::{AttributeRule, CookieRule, CookieSite, MergedSide, ValueRule, ValueRules};
use weir_http::{ReplaceValues, ReplacedValue};
use weir_screen::{Groups, Pattern};
use weir_template::{Piece, Source, Template, Variable, clean_field_value};

use crate::http::request_values::put_in_uri;

/// Stands before the digit of a group. No value of a field has this byte.
const GROUP: u8 = 0;
/// Ends each text that was filled in.
const END: u8 = 1;

/// The rules for one side.
#[derive(Debug)]
pub(super) struct Replacing {
    fields: Box<[FieldRules]>,
    /// By owner, in the order in which they apply.
    cookies: Box<[Box<[OneCookie]>]>,
    /// Bit n is set if rules are about a field whose name has n bytes, modulo 64.
    lengths: u64,
    /// Whether a field with `_` in place of `-` is meant too: backends may read one as the other (threat
    /// A24).
    folds: bool,
    /// What is filled in for each request, in this order.
    filled: Box<[FilledValue]>,
}

/// The rules about one field.
#[derive(Debug)]
struct FieldRules {
    /// In lower case.
    name: Box<[u8]>,
    /// By owner, in the order in which they apply.
    owners: Vec<Box<[OneValue]>>,
}

/// A rule about values.
#[derive(Debug)]
struct OneValue {
    matching: Pattern,
    to: Becomes,
    each_value: bool,
    last: bool,
    /// Whether the value is an address that stays on its site if it becomes a path.
    stays: bool,
}

/// A rule about cookies.
#[derive(Debug)]
struct OneCookie {
    name: Option<Pattern>,
    domain: Box<[OneValue]>,
    path: Box<[OneValue]>,
    secure: Option<bool>,
    http_only: Option<bool>,
    same_site: Option<CookieSite>,
}

/// What takes the place of a value.
#[derive(Debug)]
enum Becomes {
    /// This text, with marks for groups.
    Known(Box<[u8]>),
    /// The text with this number among those that are filled in.
    FilledIn(usize),
}

/// A text that is filled in.
#[derive(Debug)]
struct FilledValue {
    to: Template,
    /// Whether it is part of a URI.
    is_address: bool,
}

impl Replacing {
    /// `None` if there are no rules. Those about requests apply to fields with `_` in place of `-` too.
    pub fn compile(merged: &MergedSide, is_request: bool) -> Option<Replacing> {
        if merged.values.is_empty() {
            return None;
        }
        let mut filled = Vec::new();
        let mut fields: Vec<FieldRules> = Vec::new();
        let mut cookies = Vec::new();
        for ValueRules { values, cookies: of_cookies, .. } in &merged.values {
            let mut names: Vec<&str> = Vec::new();
            for rule in values.iter().filter(|rule| !merged.drops(&rule.name)) {
                if !names.contains(&rule.name.as_str()) {
                    names.push(&rule.name);
                }
            }
            for name in names {
                let rules = values.iter().filter(|rule| rule.name == name);
                let rules: Box<[OneValue]> = rules.map(|rule| OneValue::of(rule, &mut filled)).collect();
                match fields.iter_mut().find(|field| *field.name == *name.as_bytes()) {
                    Some(field) => field.owners.push(rules),
                    None => fields.push(FieldRules { name: name.as_bytes().into(), owners: vec![rules] }),
                }
            }
            if !of_cookies.is_empty() && !merged.drops("set-cookie") {
                cookies.push(of_cookies.iter().map(|rule| OneCookie::of(rule, &mut filled)).collect());
            }
        }
        let names = fields.iter().map(|field| field.name.len());
        let names = names.chain((!cookies.is_empty()).then_some(SET_COOKIE.len()));
        let lengths = names.fold(0, |lengths, length| lengths | 1 << (length & 63));
        let (fields, cookies, filled) = (fields.into(), cookies.into(), filled.into());
        Some(Replacing { fields, cookies, lengths, folds: is_request, filled })
    }

    /// Fills in what the rules need to know of a request.
    pub fn fill_in(&self, values: &impl Source, out: &mut Vec<u8>) {
        out.clear();
        for FilledValue { to, is_address } in &self.filled {
            put_marked(to, values, *is_address, out);
            out.push(END);
        }
    }
}

const SET_COOKIE: &[u8] = b"set-cookie";

impl ReplaceValues for Replacing {
    fn replace(&self, name: &[u8], value: &[u8], filled_in: &[u8], out: &mut Vec<u8>) -> ReplacedValue {
        if self.lengths >> (name.len() & 63) & 1 == 0 {
            return ReplacedValue::Same;
        }
        let field = self.fields.iter().find(|field| is_name(&field.name, name, self.folds));
        let mut new: Option<Vec<u8>> = None;
        for rules in field.into_iter().flat_map(|field| &field.owners) {
            new = first(rules, new.as_deref().unwrap_or(value), filled_in).or(new);
        }
        if name.eq_ignore_ascii_case(SET_COOKIE) {
            for rules in &self.cookies {
                new = cookie(rules, new.as_deref().unwrap_or(value), filled_in).or(new);
            }
        }
        match new {
            None => ReplacedValue::Same,
            Some(new) if new.is_empty() => ReplacedValue::LeftOut,
            Some(new) => {
                out.extend_from_slice(&new);
                ReplacedValue::New
            }
        }
    }
}

impl OneValue {
    fn of(rule: &ValueRule, filled: &mut Vec<FilledValue>) -> OneValue {
        let is_address = matches!(rule.name.as_str(), "location" | "content-location");
        let to = Becomes::of(&rule.to, is_address, filled);
        let matching = rule.matching.clone();
        // The operator may name another site; what is filled in may not.
        let stays = is_address && !rule.to.as_written().starts_with("//");
        OneValue { matching, to, each_value: rule.each_value, last: rule.last, stays }
    }

    fn of_attribute(rule: &AttributeRule, in_any_case: bool, filled: &mut Vec<FilledValue>) -> OneValue {
        let matching = if in_any_case { rule.matching.in_any_case() } else { rule.matching.clone() };
        let to = Becomes::of(&rule.to, false, filled);
        OneValue { matching, to, each_value: false, last: true, stays: false }
    }

    /// Appends what becomes of a value; false, and nothing is appended, if the rule is not about it.
    fn put(&self, value: &[u8], filled_in: &[u8], out: &mut Vec<u8>) -> bool {
        let start = out.len();
        let to = match &self.to {
            Becomes::Known(to) => to,
            Becomes::FilledIn(number) => {
                filled_in.split(|byte| *byte == END).nth(*number).unwrap_or_default()
            }
        };
        let mut stays = self.stays;
        if let Some(part) = self.matching.part_in(value) {
            // Another site that the backend itself names, and behind which something changes, stays that.
            stays &= part.start < 2 || !value.starts_with(b"//");
            out.extend_from_slice(value.get(..part.start).unwrap_or_default());
            put_groups(to, None, value, out);
            out.extend_from_slice(value.get(part.end..).unwrap_or_default());
        } else if self.matching.matches(value)
            && let Some(groups) = self.matching.groups_in(value)
        {
            put_groups(to, Some(&groups), value, out);
        } else {
            return false;
        }
        clean_field_value(out, start);
        if stays {
            stay_on_site(out, start);
        }
        true
    }

    /// What becomes of the elements of a list; `None` if the rule is about none of them.
    fn of_elements(&self, value: &[u8], filled_in: &[u8]) -> Option<Vec<u8>> {
        let mut is_any = false;
        let mut new = Vec::with_capacity(value.len());
        for element in elements(value).map(<[u8]>::trim_ascii).filter(|element| !element.is_empty()) {
            let mut one = Vec::new();
            let is_new = self.put(element, filled_in, &mut one);
            is_any |= is_new;
            let kept = if is_new { &one[..] } else { element };
            if !kept.is_empty() {
                if !new.is_empty() {
                    new.extend_from_slice(b", ");
                }
                new.extend_from_slice(kept);
            }
        }
        is_any.then_some(new)
    }
}

impl OneCookie {
    fn of(rule: &CookieRule, filled: &mut Vec<FilledValue>) -> OneCookie {
        OneCookie {
            name: rule.name.clone(),
            domain: rule.domain.iter().map(|it| OneValue::of_attribute(it, true, filled)).collect(),
            path: rule.path.iter().map(|it| OneValue::of_attribute(it, false, filled)).collect(),
            secure: rule.secure,
            http_only: rule.http_only,
            same_site: rule.same_site,
        }
    }

    /// The cookie with its attributes changed.
    fn applied(&self, value: &[u8], filled_in: &[u8]) -> Vec<u8> {
        let mut parts = value.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
        let mut new = parts.next().unwrap_or_default().to_vec();
        let (of_host, of_secure) = (has_prefix(&new, b"__host-"), has_prefix(&new, b"__secure-"));
        let (mut is_secure, mut is_http_only, mut has_site) = (false, false, false);
        for part in parts.filter(|part| !part.is_empty()) {
            let (name, text) = attribute(part);
            let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
            is_secure |= is(b"secure");
            is_http_only |= is(b"httponly");
            let is_dropped = (is(b"secure") && self.secure == Some(false) && !of_host && !of_secure)
                || (is(b"httponly") && self.http_only == Some(false));
            if is_dropped {
                continue;
            }
            if let Some(site) = self.same_site.filter(|_| is(b"samesite")) {
                if !std::mem::replace(&mut has_site, true) {
                    put_site(site, &mut new);
                }
                continue;
            }
            let becomes = match name {
                _ if is(b"domain") => self.of_domain(text, filled_in),
                _ if is(b"path") && !of_host => first(&self.path, text, filled_in),
                _ => None,
            };
            match becomes.as_deref().map(until_semicolon) {
                None => put_attribute(&[part], &mut new),
                Some(b"") => {}
                Some(text) => put_attribute(&[name, b"=", text], &mut new),
            }
        }
        if self.secure == Some(true) && !is_secure {
            put_attribute(&[b"Secure"], &mut new);
        }
        if self.http_only == Some(true) && !is_http_only {
            put_attribute(&[b"HttpOnly"], &mut new);
        }
        if let Some(site) = self.same_site.filter(|_| !has_site) {
            put_site(site, &mut new);
        }
        new
    }

    /// A domain is compared without the dot that old programs write in front of it (RFC 6265 section 5.2.3).
    fn of_domain(&self, text: &[u8], filled_in: &[u8]) -> Option<Vec<u8>> {
        let Some(bare) = text.strip_prefix(b".") else { return first(&self.domain, text, filled_in) };
        let mut new = first(&self.domain, bare, filled_in)?;
        if !new.is_empty() && !new.starts_with(b".") {
            new.insert(0, b'.');
        }
        Some(new)
    }
}

impl Becomes {
    fn of(to: &Template, is_address: bool, filled: &mut Vec<FilledValue>) -> Becomes {
        if to.variables().all(|variable| matches!(variable, Variable::Capture(_))) {
            let mut known = Vec::new();
            put_marked(to, &(), is_address, &mut known);
            return Becomes::Known(known.into());
        }
        filled.push(FilledValue { to: to.clone(), is_address });
        Becomes::FilledIn(filled.len() - 1)
    }
}

/// Whether a field has this name, which is in lower case; if it `folds`, `_` and `-` are equal.
fn is_name(name: &[u8], of_field: &[u8], folds: bool) -> bool {
    let same = |own: u8, other: u8| match other {
        b'_' | b'-' if folds => matches!(own, b'_' | b'-'),
        _ => own == other.to_ascii_lowercase(),
    };
    name.len() == of_field.len() && name.iter().zip(of_field).all(|(own, other)| same(*own, *other))
}

/// What the first rule that is about a value makes of it, and those behind it if it is not the last one.
fn first(rules: &[OneValue], value: &[u8], filled_in: &[u8]) -> Option<Vec<u8>> {
    let mut new: Option<Vec<u8>> = None;
    for rule in rules {
        let value = new.as_deref().unwrap_or(value);
        let becomes = match rule.each_value {
            true => rule.of_elements(value, filled_in),
            false => {
                let mut one = Vec::new();
                rule.put(value, filled_in, &mut one).then_some(one)
            }
        };
        let is_last = rule.last && becomes.is_some();
        new = becomes.or(new);
        if is_last {
            break;
        }
    }
    new
}

/// What the first rule for a cookie's name makes of it.
fn cookie(rules: &[OneCookie], value: &[u8], filled_in: &[u8]) -> Option<Vec<u8>> {
    let pair = value.split(|byte| *byte == b';').next().unwrap_or_default();
    let (name, _) = attribute(pair);
    let rule = rules.iter().find(|rule| rule.name.as_ref().is_none_or(|pattern| pattern.matches(name)))?;
    Some(rule.applied(value, filled_in))
}

/// Whether a cookie's name begins so, in any case: browsers throw it away without the attributes that this
/// promises (draft-ietf-httpbis-rfc6265bis section 4.1.3).
fn has_prefix(cookie: &[u8], prefix: &[u8]) -> bool {
    cookie.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

/// Name and value of an attribute, without the space around them; the value is empty if there is none.
fn attribute(part: &[u8]) -> (&[u8], &[u8]) {
    let mut halves = part.splitn(2, |byte| *byte == b'=').map(<[u8]>::trim_ascii);
    (halves.next().unwrap_or_default(), halves.next().unwrap_or_default())
}

fn put_attribute(parts: &[&[u8]], out: &mut Vec<u8>) {
    out.extend_from_slice(b"; ");
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

fn put_site(site: CookieSite, out: &mut Vec<u8>) {
    match site {
        CookieSite::Strict => put_attribute(&[b"SameSite=Strict"], out),
        CookieSite::Lax => put_attribute(&[b"SameSite=Lax"], out),
        CookieSite::None => put_attribute(&[b"SameSite=None"], out),
        CookieSite::Absent => {}
    }
}

/// A variable's value must not begin another attribute.
fn until_semicolon(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii()
}

/// The elements of a list; a comma in a quoted string does not end one (RFC 9110 section 5.6.1).
fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    value.split(move |byte| {
        match (is_quoted, *byte) {
            (true, _) if is_escaped => is_escaped = false,
            (true, b'\\') => is_escaped = true,
            (_, b'"') => is_quoted = !is_quoted,
            (false, b',') => return true,
            _ => {}
        }
        false
    })
}

/// Appends a text with the values of its variables, and marks for groups.
fn put_marked(to: &Template, values: &impl Source, is_address: bool, out: &mut Vec<u8>) {
    for piece in to.pieces() {
        let start = out.len();
        match piece {
            Piece::Value(Variable::Capture(number)) => {
                out.extend([GROUP, b'0' + *number]);
                continue;
            }
            Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
            Piece::Value(variable) if is_address => put_in_uri(variable, values, out),
            Piece::Value(variable) => values.put(variable, out),
        }
        // What a client sent must not look like a mark.
        out.iter_mut().skip(start).filter(|byte| **byte < b' ').for_each(|byte| *byte = b' ');
    }
}

/// Appends a text with what groups matched in place of their marks.
fn put_groups(to: &[u8], groups: Option<&Groups>, value: &[u8], out: &mut Vec<u8>) {
    let mut pieces = to.split(|byte| *byte == GROUP);
    out.extend_from_slice(pieces.next().unwrap_or_default());
    for piece in pieces {
        let Some((digit, text)) = piece.split_first() else { continue };
        let number = digit.saturating_sub(b'0');
        out.extend_from_slice(groups.map_or(&[][..], |groups| groups.of(number, value)));
        out.extend_from_slice(text);
    }
}

/// An address that is a path leads to no other site: browsers take two slashes at its beginning, each of
/// which may be a `\` too, for the name of one (threat A29).
fn stay_on_site(out: &mut Vec<u8>, start: usize) {
    let value = out.get(start..).unwrap_or_default();
    let slashes = value.iter().take_while(|byte| matches!(byte, b'/' | b'\\')).count();
    if slashes > 1 {
        out.splice(start..start + slashes, *b"/");
    }
}

#[cfg(test)]
mod tests {
    use weir_config::{Headers, MergedHeaders, RuleOf};

    use super::*;

    fn compiled(rules: &str) -> Replacing {
        let text = format!(
            "[listener.a]\nbind = '127.0.0.1:1'\npool = 'p'\n{rules}\n[pool.p]\nbackends = ['127.0.0.1:2']\n"
        );
        let config = weir_config::parse("a.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        let headers: &Headers = &config.listeners[0].http().headers;
        let merged = MergedHeaders::of([(RuleOf::Listener, headers)]);
        Replacing::compile(&merged.response, false).expect("rules")
    }

    struct Host;

    impl Source for Host {
        fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
            match variable {
                Variable::Host => out.extend_from_slice(b"shop.test"),
                Variable::Path => out.extend_from_slice(b"/a; secure\x00\x01\r\nb"),
                Variable::Query => out.extend_from_slice(b"//evil.test/"),
                _ => {}
            }
        }
    }

    fn told(rules: &str, name: &str, value: &str) -> Option<String> {
        let rules = compiled(rules);
        let (mut filled_in, mut out) = (Vec::new(), Vec::new());
        rules.fill_in(&Host, &mut filled_in);
        let outcome = rules.replace(name.as_bytes(), value.as_bytes(), &filled_in, &mut out);
        match outcome {
            ReplacedValue::Same => Some(value.to_owned()),
            ReplacedValue::New => Some(String::from_utf8_lossy(&out).into_owned()),
            ReplacedValue::LeftOut => None,
        }
    }

    const LOCATION: &str = r#"replace_response_header = [
        { name = "location", match = "http://app:8080/*", to = "/" },
        { name = "location", match = '~^http://([a-z]+)\.internal(?::\d+)?(/.*)?$', to = "https://$1.$host$2" },
        { name = "link", match = "~<http://app/(.*)>(.*)", to = "<https://$host/$1>$2", each_value = true },
        { name = "x-gone", match = "*secret*", to = "" },
        { name = "x-gone", match = "~(.*)", to = "[$1]" },
        { name = "location", match = "*/old/*", to = "/new/" },
        { name = "content-location", match = "http://app/*", to = "" },
        { name = "content-location", match = "/own", to = "$query" },
        { name = "content-location", match = "/root", to = "/$query" },
        { name = "content-location", match = "/away", to = "//$host/$query" },
        { name = "x-both", match = "a*", to = "b", last = false },
        { name = "x-both", match = "bb*", to = "c" },
        { name = "x-both", match = "*", to = "never" },
    ]"#;

    #[test]
    fn the_first_rule_that_matches_replaces_the_value() {
        let location = |value: &str| told(LOCATION, "Location", value).unwrap();
        assert_eq!(location("http://app:8080/a?b=1"), "/a?b=1");
        assert_eq!(location("http://img.internal:81/x"), "https://img.shop.test/x");
        assert_eq!(location("http://other/"), "http://other/");
        assert_eq!(location("//cdn.test/old/x"), "//cdn.test/new/x");
        assert_eq!(told(LOCATION, "x-other", "http://app:8080/").unwrap(), "http://app:8080/");
        assert_eq!(told(LOCATION, "x-gone", "a secret b").as_deref(), Some("a  b"));
        assert_eq!(told(LOCATION, "x-gone", "secret"), None);
        assert_eq!(told(LOCATION, "X-Gone", "a").as_deref(), Some("[a]"));
        assert_eq!(told(LOCATION, "x-both", "abx").as_deref(), Some("cx"));
    }

    #[test]
    fn a29_a_replaced_address_never_leads_to_another_site() {
        for value in
            ["http://app:8080//evil.test/", "http://app:8080/\\evil.test/", "http://app:8080///evil.test/"]
        {
            assert_eq!(told(LOCATION, "location", value).as_deref(), Some("/evil.test/"));
        }
        let filled_in = |value: &str| told(LOCATION, "content-location", value).unwrap();
        assert_eq!((filled_in("/own"), filled_in("/root")), ("/evil.test/".into(), "/evil.test/".into()));
        assert_eq!(filled_in("http://app/\\\\evil.test/"), "/evil.test/");
        assert_eq!(filled_in("/away"), "//shop.test///evil.test/");
    }

    #[test]
    fn each_element_of_a_list_is_a_value() {
        let value = "<http://app/a>; x=\"<http://app/,\", <http://app/b>;rel=next ,,<http://c/>";
        let told = told(LOCATION, "link", value).unwrap();
        assert_eq!(
            told,
            "<https://shop.test/a>; x=\"<http://app/,\", <https://shop.test/b>;rel=next, <http://c/>"
        );
    }

    const COOKIES: &str = r#"response_cookie = [
        { name = "s*", domain = [{ match = "app.internal", to = "$host" }, { match = "*", to = "" }],
          path = { match = "/two/*", to = "/" }, secure = true, http_only = true, same_site = "lax" },
        { name = "plain", secure = false, http_only = false, same_site = "absent" },
        { name = "odd", path = { match = "*", to = "$path" } },
    ]"#;

    #[test]
    fn attributes_of_cookies_change_and_the_rest_stays() {
        let cookie = |value: &str| told(COOKIES, "Set-Cookie", value).unwrap();
        assert_eq!(
            cookie("sid=1=2; Domain=.App.Internal; path=/two/x;Expires=Wed, 01 Jan 2031 00:00:00 GMT"),
            "sid=1=2; Domain=.shop.test; path=/x; Expires=Wed, 01 Jan 2031 00:00:00 GMT; Secure; HttpOnly; SameSite=Lax"
        );
        assert_eq!(cookie("s=1; Secure; SameSite=None; domain=b"), "s=1; Secure; SameSite=Lax; HttpOnly");
        assert_eq!(cookie("plain=1; secure; HttpOnly; SameSite=None; Max-Age=5"), "plain=1; Max-Age=5");
        assert_eq!(cookie("other=1; Secure"), "other=1; Secure");
    }

    #[test]
    fn a_cookie_keeps_the_attributes_that_its_name_promises() {
        let rules = r#"response_cookie = { path = { match = "*", to = "/shop/" }, secure = false }"#;
        let cookie = |value: &str| told(rules, "set-cookie", value).unwrap();
        assert_eq!(cookie("__Host-a=1; Path=/; Secure"), "__Host-a=1; Path=/; Secure");
        assert_eq!(cookie("__secure-a=1; Path=/; Secure"), "__secure-a=1; Path=/shop/; Secure");
        assert_eq!(cookie("__Hosta=1; Path=/; Secure"), "__Hosta=1; Path=/shop/");
    }

    #[test]
    fn a27_a_variable_begins_neither_another_attribute_nor_another_field() {
        assert_eq!(told(COOKIES, "set-cookie", "odd=1; Path=/x").unwrap(), "odd=1; Path=/a");
    }
}
