//! Hosts, paths, header fields, statuses.

use super::address::host_name;
use super::{Shape, Value, refuse};
use crate::report::quote;
use crate::schema::{HashKey, HostPattern, PathPattern};
use crate::suggest::nearest;
use crate::units::Refused;

/// `route.host`
pub(crate) static HOST: Shape = Shape::new("a host", "*.shop.example", host);
/// `route.path`
pub(crate) static PATH: Shape = Shape::new("a path", "/api/*", path);
/// `route.method`
pub(crate) static METHOD: Shape = Shape::new("a method", "GET", method);
/// A header field that a request is matched by.
pub(crate) static PROBED_HEADER: Shape = Shape::new("a header field", "x-canary", matched_header);
/// A field that is set on requests.
pub(crate) static REQUEST_HEADER: Shape = Shape::new("a header field", "x-from", request_header);
/// A field that is set on responses.
pub(crate) static RESPONSE_HEADER: Shape = Shape::new("a header field", "x-served-by", response_header);
/// A header field value (RFC 9110 section 5.5) that is compared.
pub(crate) static FIELD_VALUE: Shape = Shape::new("a header value", "weir", field_value);
/// A header field value that is set; a `$` in it is written `$$`.
pub(crate) static SET_VALUE: Shape = Shape::new("a header value", "weir", set_value);
/// `respond.content_type`
pub(crate) static CONTENT_TYPE: Shape = Shape::new("a media type", "text/html; charset=utf-8", content_type);
/// `cache.query_only`, `cache.query_without`
pub(crate) static PARAMETER: Shape = Shape::new("a query parameter", "utm_*", parameter);
/// `compress.types`
pub(crate) static MEDIA_RANGE: Shape = Shape::new("a media type", "text/*", media_range);
/// A cookie name (RFC 6265 section 4.1.1).
pub(crate) static COOKIE_NAME: Shape = Shape::new("a cookie name", "weir", cookie_name);
/// `hash.key`
pub(crate) static HASH_KEY: Shape = Shape::new("a hash key", "header:x-user", hash_key);
/// `rewrite.prefix`
pub(crate) static PREFIX: Shape = Shape::new("a path prefix", "/v2/", prefix);
/// `redirect.to`
pub(crate) static REDIRECT_TO: Shape = Shape::new("a target", "https://$host$path$query", redirect_to);
/// `health.path`
pub(crate) static PROBE_PATH: Shape = Shape::new("a path", "/healthz", probe_path);
/// A host name that a TLS client asks for: no wildcard.
pub(crate) static SERVER_NAME: Shape = Shape::new("a host name", "app.internal", server_name);
/// `health.host`
pub(crate) static HOST_FIELD: Shape = Shape::new("a host", "shop.example", host_field);
/// `health.expect_status`
pub(crate) static STATUS_RANGE: Shape =
    Shape::new("a status or a range", "200-399", status_range).or_number();

pub(super) const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

fn server_name(text: &str) -> Result<Value, Refused> {
    match host(text)? {
        Value::Host(HostPattern::Exact(name)) => Ok(Value::Text(name.trim_matches(['[', ']']).to_owned())),
        _ => refuse(format!("{} is not a host name", quote(text)), "one name is asked for: a `*` can't be"),
    }
}

fn host(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a host", quote(text));
    if text.is_empty() || text == "*" {
        return refuse(message, "leave `host` out to match every host");
    }
    if let Some((_, rest)) = text.split_once("://") {
        return refuse(
            message,
            format!("leave out the scheme: \"{}\"", rest.split('/').next().unwrap_or(rest)),
        );
    }
    if let Some((host, path)) = text.split_once('/') {
        return refuse(message, format!("the path goes into `path`: host = \"{host}\", path = \"/{path}\""));
    }
    let (wildcard, name) = match text.strip_prefix("*.") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if name.contains('*') {
        return refuse(message, "a `*` stands only at the front, before a dot, such as \"*.shop.example\"");
    }
    let lower = name.to_ascii_lowercase();
    if let Some(inner) = lower.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return match inner.parse::<std::net::Ipv6Addr>() {
            Ok(address) if !wildcard => Ok(Value::Host(HostPattern::Exact(format!("[{address}]")))),
            _ => refuse(message, format!("{} is not an IPv6 address", quote(inner))),
        };
    }
    if let Some((host, port)) = name.rsplit_once(':') {
        let hint = match port.parse::<u16>() {
            Ok(_) => format!(
                "leave out the port, a route takes every port: \"{}{host}\"",
                if wildcard { "*." } else { "" }
            ),
            Err(_) => "a host name cannot hold `:`".to_owned(),
        };
        return refuse(message, hint);
    }
    if let Some(name) = name.strip_suffix('.') {
        return refuse(
            message,
            format!("leave out the last dot: \"{}{name}\"", if wildcard { "*." } else { "" }),
        );
    }
    host_name(&lower).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Host(if wildcard {
        HostPattern::Suffix(format!(".{lower}"))
    } else {
        HostPattern::Exact(lower)
    }))
}

fn path(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a path", quote(text));
    if text == "*" {
        return refuse(message, "did you mean \"/*\"? Or leave `path` out to match every path");
    }
    let (begins, rest) = match text.strip_prefix('*') {
        Some(rest) => (false, rest),
        None => (true, text),
    };
    let (ends, rest) = match rest.strip_suffix('*') {
        Some(rest) => (false, rest),
        None => (true, rest),
    };
    if rest.contains('*') {
        return refuse(message, "a `*` stands only at an end, such as \"/api/*\" or \"*.png\"");
    }
    if rest.is_empty() {
        return refuse(message, "one `*` says it already; or leave `path` out to match every path");
    }
    match begins {
        true => plain_path(rest, text),
        false => plain_part(rest),
    }
    .map_err(|hint| Refused { message, hint })?;
    let rest = rest.to_owned();
    Ok(Value::Path(match (begins, ends) {
        (true, true) => PathPattern::Exact(rest),
        (true, false) => PathPattern::Prefix(rest),
        (false, true) => PathPattern::Suffix(rest),
        (false, false) => PathPattern::Contains(rest),
    }))
}

/// Checks a part of a path. `Err` says what to write.
fn plain_part(part: &str) -> Result<(), String> {
    if part.contains(['?', '#']) {
        return Err("a path is compared without the query".to_owned());
    }
    uri_characters(part)?;
    let normal = normal_escapes(part);
    if normal != part {
        return Err(format!("it can never match: paths are compared in their normal form, \"{normal}\""));
    }
    Ok(())
}

/// Checks an absolute path without query. `Err` says what to write.
pub(super) fn plain_path(path: &str, whole: &str) -> Result<(), String> {
    if !path.starts_with('/') {
        return Err(format!("a path begins with a slash: \"/{whole}\""));
    }
    if let Some(at) = path.find(['?', '#']) {
        return Err(format!("a path is compared without the query: \"{}\"", &path[..at]));
    }
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err("it can never match: `.` and `..` are resolved before paths are compared".to_owned());
    }
    uri_characters(path)?;
    let normal = normal_escapes(path);
    if normal != path {
        let star = if whole.ends_with('*') { "*" } else { "" };
        return Err(format!(
            "it can never match: paths are compared in their normal form, \"{normal}{star}\""
        ));
    }
    Ok(())
}

/// The path as requests are normalised (RFC 3986 section 6.2.2): unreserved bytes plain, other escapes in upper case.
fn normal_escapes(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        normal.push_str(&rest[..at]);
        let escape = &rest[at..(at + 3).min(rest.len())];
        match u8::from_str_radix(escape.trim_start_matches('%'), 16) {
            Ok(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                normal.push(char::from(byte))
            }
            _ => normal.push_str(&escape.to_ascii_uppercase()),
        }
        rest = &rest[at + escape.len()..];
    }
    normal + rest
}

/// Checks that a text can stand in a URI (RFC 3986). `Err` says what to write.
pub(super) fn uri_characters(text: &str) -> Result<(), String> {
    if let Some(bad) = text
        .chars()
        .find(|c| !c.is_ascii_graphic() || matches!(c, '"' | '<' | '>' | '\\' | '^' | '`' | '{' | '|' | '}'))
    {
        let mut bytes = [0; 4];
        let encoded: String =
            bad.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}")).collect();
        return Err(format!("write {} as `{encoded}`", quote(&bad.to_string())));
    }
    for (at, _) in text.match_indices('%') {
        let digits = text.get(at + 1..at + 3).unwrap_or("");
        if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(
                "a `%` is followed by two hexadecimal digits; a `%` itself is written `%25`".to_owned()
            );
        }
    }
    Ok(())
}

fn prefix(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a path prefix", quote(text));
    if let Some(rest) = text.strip_suffix('*') {
        return refuse(message, format!("leave out the `*`: \"{rest}\""));
    }
    plain_path(text, text).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Text(text.to_owned()))
}

fn probe_path(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a path", quote(text));
    if let Some((_, rest)) = text.split_once("://") {
        let path = rest.find('/').map_or("/", |at| &rest[at..]);
        return refuse(
            message,
            format!("the probe goes to the backend itself; leave the host out: \"{path}\""),
        );
    }
    if !text.starts_with('/') {
        return refuse(message, format!("a path begins with a slash: \"/{text}\""));
    }
    if let Some(at) = text.find('#') {
        return refuse(message, format!("a fragment is never sent: \"{}\"", &text[..at]));
    }
    uri_characters(text).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Text(text.to_owned()))
}

fn host_field(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a host", quote(text));
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !text.ends_with(']') => (name, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return refuse(message, "expected a host such as \"shop.example\" or \"shop.example:8080\"");
    }
    let bracketed = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match bracketed.map(|inner| inner.parse::<std::net::Ipv6Addr>()) {
        Some(Ok(_)) => {}
        Some(Err(_)) => return refuse(message, format!("{} is not an IPv6 address", quote(name))),
        None if name.is_empty() => return refuse(message, "expected a host such as \"shop.example\""),
        None => host_name(name).map_err(|hint| Refused { message, hint })?,
    }
    Ok(Value::Text(text.to_owned()))
}

fn method(text: &str) -> Result<Value, Refused> {
    if text.is_empty() || !text.bytes().all(is_token) {
        return refuse(format!("{} is not a method", quote(text)), "expected a method such as \"GET\"");
    }
    let upper = text.to_ascii_uppercase();
    if upper != text && METHODS.contains(&upper.as_str()) {
        return refuse(
            format!("{} is not a method", quote(text)),
            format!("did you mean \"{upper}\"? Methods are case-sensitive"),
        );
    }
    let near = METHODS.iter().find(|method| strsim::osa_distance(method, text) == 1);
    if let Some(near) = near.filter(|_| text.len() > 2) {
        let message = format!("{} is not a method that HTTP knows", quote(text));
        return refuse(message, format!("did you mean \"{near}\"?"));
    }
    Ok(Value::Text(text.to_owned()))
}

/// `tchar` of RFC 9110 section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

pub(super) fn field_name(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a header field name", quote(text));
    if let Some(name) = text.strip_suffix(':') {
        return refuse(message, format!("leave out the colon: `{name}`"));
    }
    if text.is_empty() || !text.bytes().all(is_token) {
        return refuse(message, "expected letters, digits and `-`, such as `x-canary`");
    }
    Ok(text.to_ascii_lowercase())
}

fn matched_header(text: &str) -> Result<Value, Refused> {
    let name = field_name(text)?;
    if name == "host" {
        return refuse(
            "`host` is not matched as a header field",
            "use `host = [\"shop.example\"]` in the route instead",
        );
    }
    Ok(Value::Text(name))
}

/// Fields whose value follows from the connection or the body; setting them by hand would frame a message wrongly.
const FRAMING: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "via",
];

fn request_header(text: &str) -> Result<Value, Refused> {
    let name = field_name(text)?;
    let hint = match name.as_str() {
        "host" => "the backend sees the host that the client asked for",
        "forwarded" | "x-forwarded-for" | "x-forwarded-proto" | "x-forwarded-host" => {
            "Weir writes it for every request; `trusted_proxies` says whose own value is believed"
        }
        "x-request-id" => "Weir passes it on or makes one",
        name if FRAMING.contains(&name) => "it describes the connection or the body, which Weir knows better",
        _ => return Ok(Value::Text(name)),
    };
    refuse(format!("{} is set by Weir itself", quote(text)), hint)
}

fn response_header(text: &str) -> Result<Value, Refused> {
    let name = field_name(text)?;
    if FRAMING.contains(&name.as_str()) {
        let hint = "it describes the connection or the body, which Weir knows better";
        return refuse(format!("{} is set by Weir itself", quote(text)), hint);
    }
    Ok(Value::Text(name))
}

fn field_value(text: &str) -> Result<Value, Refused> {
    if let Some(bad) = text.chars().find(|c| c.is_control() && *c != '\t') {
        let hint = match bad {
            '\r' | '\n' => "a header value is one line",
            _ => "a header value holds no control characters",
        };
        return refuse(format!("a header value cannot hold `{}`", bad.escape_default()), hint);
    }
    if text.trim_matches([' ', '\t']) != text {
        return refuse(
            "a header value neither begins nor ends with a space",
            format!("write {:?}", text.trim_matches([' ', '\t'])),
        );
    }
    Ok(Value::Text(text.to_owned()))
}

/// A value that Weir writes. One `$` begins the name of something to fill in; none exists yet, and sending the name as text
/// would only look as if it did.
fn set_value(text: &str) -> Result<Value, Refused> {
    field_value(text)?;
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        plain.push_str(&rest[..=at]);
        rest = &rest[at + 1..];
        if let Some(behind) = rest.strip_prefix('$') {
            rest = behind;
            continue;
        }
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let hint = match name.as_str() {
            "client_ip" | "remote_addr" | "proxy_add_x_forwarded_for" | "src" => {
                "backends are told the client in `x-forwarded-for` and `forwarded` anyway".to_owned()
            }
            "host" | "http_host" | "scheme" => {
                "backends are told it in `x-forwarded-host` and `x-forwarded-proto` anyway".to_owned()
            }
            "request_id" => "both sides are told it in `x-request-id` anyway".to_owned(),
            _ => format!(
                "nothing is filled in here; a `$` itself is written `$$`: {}",
                quote(&text.replace("$$", "$").replace('$', "$$"))
            ),
        };
        let message = match name.is_empty() {
            true => "a `$` in a header value names nothing".to_owned(),
            false => format!("`${name}` is not known in a header value"),
        };
        return refuse(message, hint);
    }
    plain.push_str(rest);
    Ok(Value::Text(plain))
}

/// A value as [`SET_VALUE`] takes it.
pub(crate) fn written_value(value: &str) -> String {
    value.replace('$', "$$")
}

fn content_type(text: &str) -> Result<Value, Refused> {
    field_value(text)?;
    let main = text.split(';').next().unwrap_or("").trim_end();
    let good = main.split_once('/').is_some_and(|(kind, sub)| {
        !kind.is_empty() && !sub.is_empty() && kind.bytes().all(is_token) && sub.bytes().all(is_token)
    });
    if !good || !text.is_ascii() {
        return refuse(
            format!("{} is not a media type", quote(text)),
            "expected something like \"text/html; charset=utf-8\"",
        );
    }
    Ok(Value::Text(text.to_owned()))
}

fn parameter(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a query parameter", quote(text));
    let name = text.strip_suffix('*').unwrap_or(text);
    if text.is_empty() || text == "*" {
        return refuse(message, "expected a name such as \"utm_*\"; `ignore_query = true` leaves out all");
    }
    if name.contains('*') {
        return refuse(message, "a `*` stands only at the end, such as \"utm_*\"");
    }
    if let Some(at) = name.find(['=', '&', '?', '#']) {
        return refuse(message, format!("expected the name alone: \"{}\"", &name[..at]));
    }
    uri_characters(name).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Text(text.to_owned()))
}

fn media_range(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a media type", quote(text));
    if let Some((main, _)) = text.split_once(';') {
        return refuse(message, format!("leave out the parameters: \"{}\"", main.trim()));
    }
    let token = |part: &str| !part.is_empty() && part.bytes().all(is_token) && !part.contains('*');
    match text.split_once('/') {
        Some((main, sub)) if token(main) && (sub == "*" || token(sub)) => Ok(Value::Text(text.to_owned())),
        _ => refuse(message, "expected something like \"text/html\" or \"text/*\""),
    }
}

pub(super) fn cookie_name(text: &str) -> Result<Value, Refused> {
    if text.is_empty() || !text.bytes().all(is_token) {
        return refuse(
            format!("{} is not a cookie name", quote(text)),
            "expected letters, digits, `-` and `_`, such as \"weir\"",
        );
    }
    Ok(Value::Text(text.to_owned()))
}

fn hash_key(text: &str) -> Result<Value, Refused> {
    const EXPECTED: &str = "expected \"uri\", \"path\", \"client_ip\", \"header:NAME\" or \"cookie:NAME\"";
    let key = match text {
        "uri" => HashKey::Uri,
        "path" => HashKey::Path,
        "client_ip" => HashKey::ClientIp,
        _ => match text.split_once(':') {
            Some(("header", name)) => HashKey::Header(field_name(name)?),
            Some(("cookie", name)) => {
                cookie_name(name)?;
                HashKey::Cookie(name.to_owned())
            }
            _ => {
                let hint = match (text, nearest(text, ["uri", "path", "client_ip"])) {
                    ("header" | "cookie", _) => format!("say which one, such as \"{text}:session\""),
                    ("source" | "src" | "ip" | "remote_addr", _) => "did you mean \"client_ip\"?".to_owned(),
                    (_, Some(word)) => format!("did you mean \"{word}\"?"),
                    _ => EXPECTED.to_owned(),
                };
                return refuse(format!("{} is not something to hash", quote(text)), hint);
            }
        },
    };
    Ok(Value::HashKey(key))
}

fn redirect_to(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a redirect target", quote(text));
    if text.is_empty() {
        return refuse(message, "expected something like \"https://$host$path$query\"");
    }
    for (at, _) in text.match_indices('$') {
        let rest = &text[at + 1..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
        let name = &rest[..end];
        if !["host", "path", "query"].contains(&name) {
            let hint = match (name, nearest(name, ["host", "path", "query"])) {
                ("request_uri" | "uri", _) => "did you mean `$path$query`?".to_owned(),
                (_, Some(word)) => format!("did you mean `${word}`?"),
                _ => "expected `$host`, `$path` or `$query`; a `$` itself is written `%24`".to_owned(),
            };
            return refuse(format!("`${name}` is not known in a redirect"), hint);
        }
    }
    uri_characters(text).map_err(|hint| Refused { message, hint })?;
    Ok(Value::Text(text.to_owned()))
}

fn status_range(text: &str) -> Result<Value, Refused> {
    let message = format!("{} is not a status or a range of them", quote(text));
    let number = |text: &str| {
        (text.len() == 3).then(|| text.parse::<u16>().ok()).flatten().filter(|n| (100..=599).contains(n))
    };
    if let [class @ b'1'..=b'5', b'x' | b'X', b'x' | b'X'] = text.as_bytes() {
        let class = char::from(*class);
        return refuse(message, format!("did you mean \"{class}00-{class}99\"?"));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first.trim()), number(last.trim())) {
        (Some(first), Some(last)) if first <= last => Ok(Value::StatusRange(first, last)),
        (Some(first), Some(last)) => refuse(message, format!("did you mean \"{last}-{first}\"?")),
        _ => refuse(message, "expected statuses from 100 to 599, such as \"200\" or \"200-399\""),
    }
}
