//! The words of HTTP: versions, methods, header fields, cookies.

use crate::keys::Shape;
use crate::report::quote;
use crate::setting::words;
use crate::units::{Refused, refuse};

words! {
    /// A version of HTTP, as a connection carries it.
    pub enum HttpVersion {
        H1 = "h1": "HTTP/1.0 and 1.1",
        H2 = "h2": "HTTP/2; without `tls` for clients that begin with it (prior knowledge)",
        H3 = "h3": "HTTP/3, over QUIC at the same port; announced to the others with `alt-svc`",
    }
}

/// A method.
pub(crate) static METHOD: Shape = Shape::new("a method", "GET", method);
/// A header field that a request is matched by.
pub(crate) static PROBED_HEADER: Shape = Shape::new("a header field", "x-canary", matched_header);
/// A field that is set on requests.
pub(crate) static SET_REQUEST_HEADER: Shape =
    Shape::new("a header field", "x-from", |text| edited(text, Side::Request, Act::Set));
/// A field that is added to requests.
pub(crate) static ADDED_REQUEST_HEADER: Shape =
    Shape::new("a header field", "x-from", |text| edited(text, Side::Request, Act::Add));
/// A field that is taken out of requests.
pub(crate) static REMOVED_REQUEST_HEADER: Shape =
    Shape::new("a header field", "x-debug", |text| edited(text, Side::Request, Act::Remove));
/// A field that is set on responses.
pub(crate) static SET_RESPONSE_HEADER: Shape =
    Shape::new("a header field", "x-served-by", |text| edited(text, Side::Response, Act::Set));
/// A field that is added to responses.
pub(crate) static ADDED_RESPONSE_HEADER: Shape =
    Shape::new("a header field", "set-cookie", |text| edited(text, Side::Response, Act::Add));
/// A field that is taken out of responses.
pub(crate) static REMOVED_RESPONSE_HEADER: Shape =
    Shape::new("a header field", "server", |text| edited(text, Side::Response, Act::Remove));
/// A field whose values are replaced in requests.
pub(crate) static REPLACED_REQUEST_HEADER: Shape =
    Shape::new("a header field", "referer", |text| edited(text, Side::Request, Act::Replace));
/// A field whose values are replaced in responses.
pub(crate) static REPLACED_RESPONSE_HEADER: Shape =
    Shape::new("a header field", "location", |text| edited(text, Side::Response, Act::Replace));
/// A header field value (RFC 9110 section 5.5) that is compared.
pub(crate) static FIELD_VALUE: Shape = Shape::new("a header value", "weir", field_value);
/// A media type with its parameters.
pub(crate) static CONTENT_TYPE: Shape = Shape::new("a media type", "text/html; charset=utf-8", content_type);
/// A cookie name (RFC 6265 section 4.1.1).
pub(crate) static COOKIE_NAME: Shape = Shape::new("a cookie name", "weir", cookie_name);

/// The methods of RFC 9110 and PATCH.
pub(crate) const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

pub(crate) fn method(text: &str) -> Result<String, Refused> {
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
    Ok(text.to_owned())
}

/// `tchar` of RFC 9110 section 5.6.2.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

pub(crate) fn field_name(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a header field name", quote(text));
    if let Some(name) = text.strip_suffix(':') {
        return refuse(message, format!("leave out the colon: `{name}`"));
    }
    if text.is_empty() || !text.bytes().all(is_token) {
        return refuse(message, "expected letters, digits and `-`, such as `x-canary`");
    }
    Ok(text.to_ascii_lowercase())
}

fn matched_header(text: &str) -> Result<String, Refused> {
    let name = field_name(text)?;
    if name == "host" {
        return refuse(
            "`host` is not matched as a header field",
            "use `host = [\"shop.example\"]` in the route instead",
        );
    }
    Ok(name)
}

/// Fields whose value follows from the connection or the body. Changing them by hand would break the framing
/// of messages, or concern only the connection to Weir.
pub(crate) const FRAMING: [&str; 17] = [
    "connection",
    "content-length",
    "early-data",
    "expect",
    "http2-settings",
    "keep-alive",
    "max-forwards",
    "proxy",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "sec-websocket-accept",
    "sec-websocket-key",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Single-valued request fields that Weir writes: a rule may replace or remove them.
const SINGLE: [&str; 6] = [
    "client-cert",
    "client-cert-chain",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
];

/// Whether rules never change a field, given in lower case: it describes the connection or the body.
pub fn is_framing_field(name: &str) -> bool {
    FRAMING.contains(&name)
}

/// Whether Weir writes a request field, given in lower case, which has one value: rules may replace or remove
/// it, but not add to it.
pub fn is_written_request_field(name: &str) -> bool {
    SINGLE.contains(&name)
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    Request,
    Response,
}

/// What a rule does with a field.
#[derive(Clone, Copy, PartialEq)]
enum Act {
    Set,
    Add,
    Remove,
    Replace,
}

/// Checks whether rules may change the field: they must not change the framing of messages.
fn edited(text: &str, side: Side, act: Act) -> Result<String, Refused> {
    let name = field_name(text)?;
    let hint = match (name.as_str(), side, act) {
        ("via", ..) => "`via = false` leaves it out",
        (name, ..) if FRAMING.contains(&name) => {
            "it describes the connection or the body, which Weir knows better"
        }
        ("host", Side::Request, _) => {
            "`backend_host` of the pool or the route says by which host a backend is asked"
        }
        ("forwarded", Side::Request, _) => "`forwarded = false` leaves it out",
        ("x-forwarded-for", Side::Request, Act::Set | Act::Add | Act::Replace) => {
            "Weir writes it for every request; `trusted_proxies` says whose own value is believed"
        }
        (name, Side::Request, Act::Replace) if SINGLE.contains(&name) => {
            "Weir writes it for every request; `set_request_header` says another value"
        }
        ("x-request-id", Side::Request, _) => "Weir passes it on or makes one",
        (name, Side::Request, Act::Add) if SINGLE.contains(&name) => {
            "it has one value, and Weir writes it; `set_request_header` says another"
        }
        _ => return Ok(name),
    };
    refuse(format!("{} is set by Weir itself", quote(text)), hint)
}

pub(crate) fn field_value(text: &str) -> Result<String, Refused> {
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
    Ok(text.to_owned())
}

fn content_type(text: &str) -> Result<String, Refused> {
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
    Ok(text.to_owned())
}

pub(crate) fn cookie_name(text: &str) -> Result<String, Refused> {
    if text.is_empty() || !text.bytes().all(is_token) {
        return refuse(
            format!("{} is not a cookie name", quote(text)),
            "expected letters, digits, `-` and `_`, such as \"weir\"",
        );
    }
    Ok(text.to_owned())
}

/// Checks that a text is valid in a URI (RFC 3986). `Err` says what to write.
pub(crate) fn uri_characters(text: &str) -> Result<(), String> {
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
