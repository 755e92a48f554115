//! TLS, and what of HTTP depends on it.

use super::speaks;
use crate::build::{Draft, protocol};
use crate::fields::Fields;
use crate::report::{Findings, Span};
use crate::schema::{HttpVersion, Listener, Pool, Protocol};
use crate::values::Value;

/// A listener's `http` and `tls`.
pub(super) fn listener(draft: &Draft, listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    if protocol(fields) == Some(Protocol::Http) {
        http_versions(listener, fields, findings);
    }
    let Some(Value::Table(tls)) = fields.value("tls") else { return };
    if tls.lacks("certificates") && tls.lacks("acme") {
        let message = format!("`[listener.{}.tls]` has no `certificates`", listener.name);
        let hint =
            "expected `certificates = [{ cert = \"shop.pem\", key = \"shop.key\" }]`, or `acme = { … }`";
        findings.error(tls.at, message, hint);
    }
    super::acme::check(draft, listener, tls, findings);
    if let Some(entry) = tls.get("client_auth").filter(|_| tls.lacks("client_ca")) {
        let hint = "expected `client_ca = \"clients.pem\"` beside it, or leave it out";
        findings.error(entry.key, "`client_auth` needs a `client_ca`", hint);
    }
    if tls.flag("early_data") {
        early_data(listener, tls, findings);
    }
    let mut seen: Vec<(&str, Span)> = Vec::new();
    for (_, value) in tls.list("certificates") {
        let Value::Table(certificate) = value else { continue };
        let Some(cert) = certificate.text("cert") else { continue };
        match seen.iter().find(|(other, _)| *other == cert) {
            Some((_, first)) => {
                let hint = format!("the first is at {}", findings.place(*first));
                findings.error(certificate.at("cert"), format!("certificate `{cert}` is said twice"), hint);
            }
            None => seen.push((cert, certificate.at("cert"))),
        }
    }
}

/// What `early_data` can't stand beside.
fn early_data(listener: &Listener, tls: &Fields, findings: &mut Findings<'_>) {
    let at = tls.get("early_data").map_or(tls.at, |entry| entry.key);
    if !listener.http.contains(&HttpVersion::H3) {
        let hint = "it is taken over QUIC only: expected `\"h3\"` in `http`, or leave it out";
        findings.error(at, "`early_data` needs `h3`", hint);
    }
    if !tls.flag("tickets") {
        let hint = format!("sessions are not resumed ({})", findings.place(tls.at("tickets")));
        findings.error(at, "`early_data` needs `tickets`", hint);
    }
    if tls.get("client_ca").is_some() {
        let hint = format!(
            "a request that may be a copy proves nothing of who sends it ({})",
            findings.place(tls.at("client_ca"))
        );
        findings.error(at, "`early_data` cannot stand beside `client_ca`", hint);
    }
}

fn http_versions(listener: &Listener, fields: &Fields, findings: &mut Findings<'_>) {
    let mut seen: Vec<(&str, Span)> = Vec::new();
    for (at, value) in fields.list("http") {
        let Value::Word(word) = value else { continue };
        if let Some((_, first)) = seen.iter().find(|(other, _)| other == word) {
            let hint = format!("the first is at {}", findings.place(*first));
            findings.error(*at, format!("`{word}` is said twice"), hint);
            continue;
        }
        seen.push((word, *at));
        if *word == HttpVersion::H3.word() && fields.lacks("tls") {
            let hint = format!(
                "QUIC is always encrypted (RFC 9001): expected `[listener.{}.tls]` with `certificates`",
                listener.name
            );
            findings.error(*at, "`h3` needs `tls`", hint);
        }
        if *word == HttpVersion::H3.word() && fields.get("accept_proxy").is_some() {
            let hint = format!(
                "QUIC carries none: whoever comes by h3 is taken for the client ({})",
                findings.place(fields.at("accept_proxy"))
            );
            findings.warning(*at, "`h3` knows no PROXY protocol", hint);
        }
    }
}

/// A pool's `protocol` and `tls`.
pub(super) fn pool(draft: &Draft, pool: &Pool, fields: &Fields, findings: &mut Findings<'_>) {
    if pool.protocol == HttpVersion::H2
        && let Some(entry) = fields.get("send_proxy")
    {
        let hint = format!(
            "a PROXY header names one client for a whole connection, and HTTP/2 has many on one ({})",
            findings.place(fields.at("protocol"))
        );
        findings.error(entry.key, "`send_proxy` cannot stand beside `protocol = \"h2\"`", hint);
    }
    let Some(Value::Table(tls)) = fields.value("tls") else { return };
    for (one, other) in [("cert", "key"), ("key", "cert")] {
        if let Some(entry) = tls.get(one).filter(|_| tls.lacks(other)) {
            let hint =
                format!("expected `{other} = \"client.pem\"` beside it: a client certificate has both");
            findings.error(entry.key, format!("`{one}` needs a `{other}`"), hint);
        }
    }
    if let Some(entry) = tls.get("ca").filter(|_| !pool.tls.as_ref().is_none_or(|tls| tls.verify)) {
        let hint =
            format!("`verify` is false ({}): any certificate is taken", findings.place(tls.at("verify")));
        findings.warning(entry.key, "`ca` has no effect", hint);
    }
    if let Some(other) =
        draft.uses.of(&pool.name).iter().find(|place| passes_tls_through(&draft.listeners[place.listener]))
    {
        let hint = format!(
            "what it relays is encrypted already: {} and has routes by `sni`",
            speaks(draft, other.listener, findings)
        );
        findings.warning(fields.at("tls"), "TLS is sent within TLS", hint);
    }
}

/// Whether a listener hands on TLS connections as they are.
fn passes_tls_through(listener: &Fields) -> bool {
    protocol(listener) == Some(Protocol::Tcp)
        && listener.lacks("tls")
        && listener
            .list("route")
            .iter()
            .any(|(_, route)| matches!(route, Value::Table(route) if route.get("sni").is_some()))
}
