//! Decides what the variables of templates stand for in a request; nothing else decides this. The data path
//! and `weir explain` both use it.

use std::net::SocketAddr;

use weir_http::values::cookies;
use weir_http::{KnownHeader, RequestHead, Scheme, encode_decimal, write_address};
use weir_io::handshake::Secure;
use weir_screen::Groups;
use weir_state::Maps;
use weir_template::{Source, Template, Variable};

use crate::client::is_unix;
use crate::http::auth::UserFacts;
use crate::http::route::without_port;

/// The variables of one request. Values from the request are as they were sent: nothing is decoded.
pub struct Values<'a> {
    /// The head, and the bytes that it was parsed from; `None` if it could not be parsed.
    pub head: Option<(&'a RequestHead, &'a [u8])>,
    /// The path in its normal form, as routes compare it.
    pub path: &'a [u8],
    /// What the groups of the route's expression matched in it; `None` if there are none.
    pub groups: Option<&'a Groups>,
    /// The requested host and port; empty if there is none.
    pub authority: &'a [u8],
    /// The client's address.
    pub client: SocketAddr,
    /// The scheme of the client's request.
    pub scheme: Scheme,
    /// The value of `x-request-id`.
    pub request_id: &'a [u8],
    /// The port that the client connected to; 0 if unknown.
    pub listener_port: u16,
    /// Facts about the client's TLS; `None` without TLS.
    pub tls: Option<TlsValues<'a>>,
    /// The maps for `$map.NAME`; `None` if there are no maps.
    pub maps: Option<&'a Maps>,
    /// The authenticated user.
    pub user: Who<'a>,
}

/// What is known about the user.
#[derive(Clone, Copy)]
pub enum Who<'a> {
    /// Nothing: there is no authentication, or it has not taken place yet.
    Nobody,
    /// These facts.
    Known(&'a UserFacts),
    /// Nothing here, but a real request would have a user; for explanations.
    Asked,
}

/// Facts about a client's TLS.
#[derive(Clone, Copy)]
pub struct TlsValues<'a> {
    /// The server name (SNI) that it asked for, in lower case.
    pub server_name: Option<&'a str>,
    /// The version, such as `TLSv1.3`.
    pub version: &'a str,
    /// The subject of its certificate.
    pub subject: Option<&'a str>,
}

impl<'a> Values<'a> {
    fn put_of_head(&self, variable: &Variable, out: &mut Vec<u8>) {
        let Some((head, text)) = self.head else { return };
        match variable {
            Variable::Method => out.extend_from_slice(head.method_text(text)),
            Variable::Query => {
                if let Some(query) = head.query(text) {
                    out.push(b'?');
                    out.extend_from_slice(query);
                }
            }
            Variable::Parameter(name) => {
                out.extend_from_slice(parameter(head.query(text).unwrap_or_default(), name.as_bytes()));
            }
            Variable::Header(name) => {
                if let Some(value) = head.combined(name.as_bytes(), text) {
                    out.extend_from_slice(&value);
                }
            }
            Variable::Cookie(name) => {
                let values = head.values(KnownHeader::Cookie, text);
                out.extend_from_slice(cookies::first(values, name.as_bytes()).unwrap_or_default());
            }
            _ => {}
        }
    }

    /// Passes to `look` the value of the map of that name for the request; `None` if it has none.
    #[inline(never)]
    pub fn with_mapped<R>(&self, name: &str, look: impl FnOnce(Option<&[u8]>) -> R) -> R {
        match self.maps.and_then(|maps| maps.find(name)) {
            Some(map) => map.with_value(self, look),
            None => look(None),
        }
    }

    fn put_of_user(&self, variable: &Variable, out: &mut Vec<u8>) {
        match (self.user, variable) {
            (Who::Known(user), Variable::User) => out.extend_from_slice(&user.name),
            (Who::Known(user), Variable::Claim(path)) => {
                let told = user.claims.as_ref().and_then(|claims| claims.told(path));
                out.extend_from_slice(told.unwrap_or_default().as_bytes());
            }
            (Who::Asked, _) => out.extend_from_slice(format!("(${})", variable.name()).as_bytes()),
            (Who::Nobody | Who::Known(_), _) => {}
        }
    }

    fn put_of_tls(&self, variable: &Variable, out: &mut Vec<u8>) {
        let Some(tls) = self.tls else { return };
        let value = match variable {
            Variable::ServerName => tls.server_name,
            Variable::TlsVersion => Some(tls.version),
            Variable::ClientCertSubject => tls.subject,
            _ => None,
        };
        out.extend_from_slice(value.unwrap_or_default().as_bytes());
    }
}

impl<'a> TlsValues<'a> {
    /// The facts about a client whose handshake is complete.
    pub(crate) fn of(secure: &'a Secure) -> TlsValues<'a> {
        TlsValues {
            server_name: secure.server_name.as_deref(),
            version: secure.version_word(),
            subject: secure.client_subject.as_deref(),
        }
    }
}

impl Source for Values<'_> {
    fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
        match variable {
            Variable::ClientIp if is_unix(self.client.ip()) => out.extend_from_slice(b"unix:"),
            Variable::ClientIp => write_address(out, self.client.ip().to_canonical()),
            Variable::ClientPort if self.client.port() != 0 => {
                encode_decimal(out, u64::from(self.client.port()));
            }
            Variable::Scheme => out.extend_from_slice(self.scheme.word().as_bytes()),
            Variable::Host => out.extend_from_slice(without_port(self.authority)),
            Variable::Path => out.extend_from_slice(self.path),
            Variable::RequestId => out.extend_from_slice(self.request_id),
            Variable::ListenerPort if self.listener_port != 0 => {
                encode_decimal(out, u64::from(self.listener_port));
            }
            Variable::ServerName | Variable::TlsVersion | Variable::ClientCertSubject => {
                self.put_of_tls(variable, out);
            }
            Variable::Method
            | Variable::Query
            | Variable::Parameter(_)
            | Variable::Header(_)
            | Variable::Cookie(_) => self.put_of_head(variable, out),
            Variable::User | Variable::Claim(_) => self.put_of_user(variable, out),
            Variable::Map(name) => {
                self.with_mapped(name, |value| out.extend_from_slice(value.unwrap_or_default()));
            }
            Variable::Capture(number) => {
                if let Some(groups) = self.groups {
                    out.extend_from_slice(groups.of(*number, self.path));
                }
            }
            // The last two are only known at the end, and only to logs.
            Variable::ClientPort
            | Variable::ListenerPort
            | Variable::Outcome(_)
            | Variable::ResponseHeader(_) => {}
        }
    }
}

/// The value of the first parameter of that name; empty if there is none.
fn parameter<'q>(query: &'q [u8], name: &[u8]) -> &'q [u8] {
    let mut pairs = query.split(|byte| *byte == b'&');
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix(b"=")).unwrap_or_default()
}

/// The target of a redirect. Bytes that are not allowed in a URI (RFC 3986 section 2) are percent-encoded. A
/// target that is a path stays on its site whatever is filled in: `//` at its beginning would name another
/// site (section 4.2).
pub fn location(to: &Template, values: &Values<'_>) -> Vec<u8> {
    let mut rendered = Vec::with_capacity(to.as_written().len() + 64);
    to.render(values, &mut rendered);
    if rendered.starts_with(b"//") && !to.as_written().starts_with("//") {
        let slashes = rendered.iter().take_while(|byte| **byte == b'/').count();
        rendered.drain(..slashes - 1);
    }
    if rendered.iter().all(|byte| stands_in_uri(*byte)) {
        return rendered;
    }
    let mut encoded = Vec::with_capacity(rendered.len() * 2);
    put_encoded(&rendered, &mut encoded);
    encoded
}

/// Appends the value of a variable as a part of a URI: see [`location`].
pub fn put_in_uri(variable: &Variable, values: &impl Source, out: &mut Vec<u8>) {
    let mut value = Vec::new();
    values.put(variable, &mut value);
    put_encoded(&value, out);
}

fn put_encoded(text: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for byte in text.iter().copied() {
        match stands_in_uri(byte) {
            true => out.push(byte),
            false => out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]),
        }
    }
}

fn stands_in_uri(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte)
}

#[cfg(test)]
mod tests {
    use weir_http::{Limits, Progress, parse_request};

    use super::*;

    fn rendered(template: &str, text: &str, render: impl Fn(&Template, &Values<'_>) -> Vec<u8>) -> String {
        let mut head = RequestHead::new();
        let parsed = parse_request(text.as_bytes(), &Limits::default(), &mut head);
        assert!(matches!(parsed, Ok(Progress::Complete { .. })), "{parsed:?}");
        let text = text.as_bytes();
        let values = Values {
            path: head.path(text),
            groups: None,
            authority: head.host(text).unwrap_or_default(),
            head: Some((&head, text)),
            client: "[2001:db8::7]:4711".parse().unwrap(),
            scheme: Scheme::Https,
            request_id: b"id-1",
            listener_port: 8443,
            tls: Some(TlsValues { server_name: Some("a.test"), version: "TLSv1.3", subject: None }),
            maps: None,
            user: Who::Nobody,
        };
        String::from_utf8(render(&Template::parse(template, 0).unwrap(), &values)).unwrap()
    }

    const REQUEST: &str = "GET /a%0d%0ab?x=1&y=2%20&x=3&z HTTP/1.1\r\nHost: Shop.Test:8443\r\nCookie: a=1; b=2\r\nCookie: c=3\r\n\
        X-Two: 1\r\nX-Two: 2\r\nX-Odd: \"<{\u{e9}}>\"\r\n\r\n";

    fn value(template: &str) -> String {
        rendered(template, REQUEST, |template, values| {
            let mut out = Vec::new();
            template.render(values, &mut out);
            out
        })
    }

    #[test]
    fn each_variable_says_what_was_sent_and_decodes_nothing() {
        assert_eq!(value("$client_ip $client_port $scheme"), "2001:db8::7 4711 https");
        assert_eq!(value("$host|$method|$path$query"), "Shop.Test|GET|/a%0d%0ab?x=1&y=2%20&x=3&z");
        assert_eq!(value("$query.x $query.y $query.z $query.q"), "1 2%20  ");
        assert_eq!(value("$cookie.c$cookie.a$cookie.d"), "31");
        assert_eq!(value("$header.x-two|$header.x-none|"), "1, 2||");
        assert_eq!(value("$request_id $listener_port"), "id-1 8443");
        assert_eq!(value("$server_name $tls_version $client_cert_subject"), "a.test TLSv1.3 ");
    }

    #[test]
    fn a29_a_redirect_to_a_path_never_leads_to_another_site() {
        let request = REQUEST.replace("/a%0d%0ab?x=1", "/a?x=//evil.test&e=/evil.test");
        let location = |to: &str| rendered(to, &request, location);
        assert_eq!(location("/$query.e"), "/evil.test");
        assert_eq!(location("/$query.x/"), "/evil.test/");
        assert_eq!(location("$query.x"), "/evil.test");
        assert_eq!(location("/go/$query.x"), "/go///evil.test");
        assert_eq!(location("//$host/$query.e"), "//Shop.Test//evil.test");
    }

    #[test]
    fn a_redirect_holds_nothing_that_is_no_uri() {
        let location = rendered("https://$host/$header.x-odd$query", REQUEST, location);
        assert_eq!(location, "https://Shop.Test/%22%3C%7B%C3%A9%7D%3E%22?x=1&y=2%20&x=3&z");
    }
}
