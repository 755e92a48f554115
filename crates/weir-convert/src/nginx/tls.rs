//! `ssl_…` of the servers at an address: the TLS of a listener.

use weir_config::quoted;

use super::conversion::Conversion;
use super::route::taken_lines;
use super::scope::NginxScope;
use crate::DirectiveVerdict;
use crate::write::{line, texts};

/// Whom a server asks for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsksClients {
    /// Nobody.
    No,
    /// Who has one may show it.
    Optional,
    /// Everybody.
    Required,
}

/// What a server asks clients for.
pub fn asks_clients(scope: &NginxScope<'_>) -> AsksClients {
    match scope.one("ssl_verify_client").map(|directive| directive.word(0)) {
        Some("on") => AsksClients::Required,
        Some("optional" | "optional_no_ca") => AsksClients::Optional,
        _ => AsksClients::No,
    }
}

/// The table `tls` of a listener, for the scopes of its servers, that of the default one first. `None` if
/// there is no certificate.
pub fn table(conversion: &mut Conversion<'_>, listener: &str, servers: &[NginxScope<'_>]) -> Option<String> {
    let certificates = certificates(conversion, servers);
    if certificates.is_empty() {
        return None;
    }
    let mut body = String::new();
    match certificates.as_slice() {
        [one] => line(&mut body, "certificates", format!("[{one}]")),
        more => line(&mut body, "certificates", format!("[{}]", more.join(", "))),
    }
    if servers.len() > 1 {
        let note = "the certificate is chosen by the names in it, of all servers of the listener; by nginx that of the server whose name is asked for";
        conversion.ledger.unsaid("ssl_certificate", DirectiveVerdict::Approximate, note);
    }
    clients(conversion, servers, &mut body);
    if let Some(first) = servers.first() {
        settings(conversion, first, &mut body);
    }
    let before = "[listener.x]\nbind = \"127.0.0.1:1\"\n[listener.x.tls]\n";
    let (taken, refused) = taken_lines(&body, before, "");
    if !refused.is_empty() {
        // What is left would ask clients for less than was said.
        for directive in servers.iter().flat_map(|scope| scope.all("ssl_certificate")) {
            let note = format!("Weir would not take this TLS ({})", refused.join("; "));
            conversion.ledger.unsupported(directive, note);
        }
        return None;
    }
    for scope in servers {
        own(conversion, scope);
    }
    Some(format!("\n[listener.{listener}.tls]\n{taken}"))
}

fn certificates(conversion: &mut Conversion<'_>, servers: &[NginxScope<'_>]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for scope in servers {
        let (certs, keys) = (scope.all("ssl_certificate"), scope.all("ssl_certificate_key"));
        let stapled = scope.one("ssl_stapling_file");
        for (cert, key) in certs.iter().zip(&keys) {
            let names = [cert.word(0), key.word(0)];
            if names.iter().any(|name| name.contains('$') || name.contains(':')) {
                let note = "a certificate is a file that is always the same: left out (`certificate_folder`, `acme`)";
                conversion.ledger.unsupported(cert, note);
                conversion.ledger.unsupported(key, note);
                continue;
            }
            conversion.ledger.exact(cert, "`certificates` of the listener's `tls`");
            conversion.ledger.exact(key, "`certificates` of the listener's `tls`");
            let mut text = format!(
                "{{ cert = {}, key = {}",
                quoted(&conversion.file(cert.word(0))),
                quoted(&conversion.file(key.word(0)))
            );
            if let Some(file) = stapled {
                text.push_str(&format!(", ocsp = {}", quoted(&conversion.file(file.word(0)))));
                conversion.ledger.exact(file, "`ocsp` of the certificate");
            }
            text.push_str(" }");
            if !seen.contains(&cert.word(0)) {
                seen.push(cert.word(0));
                found.push(text);
            }
        }
    }
    found
}

/// Whom the listener asks for a certificate: everybody where all of its servers do.
fn clients(conversion: &mut Conversion<'_>, servers: &[NginxScope<'_>], body: &mut String) {
    let asked: Vec<AsksClients> = servers.iter().map(asks_clients).collect();
    let Some(asking) = servers.iter().find(|scope| asks_clients(scope) != AsksClients::No) else { return };
    let Some(ca) = asking.one("ssl_client_certificate") else {
        if let Some(directive) = asking.one("ssl_verify_client") {
            let note = "there is no `ssl_client_certificate`: NOBODY IS ASKED FOR A CERTIFICATE";
            conversion.ledger.unsupported(directive, note);
        }
        return;
    };
    line(body, "client_ca", quoted(&conversion.file(ca.word(0))));
    let all = asked.iter().all(|asks| *asks == AsksClients::Required);
    if !all {
        line(body, "client_auth", quoted("optional"));
    }
    for scope in servers {
        if let Some(own) = scope.one("ssl_client_certificate") {
            match own.word(0) == ca.word(0) {
                true => conversion.ledger.exact(own, "`client_ca` of the listener's `tls`"),
                false => conversion
                    .ledger
                    .unsupported(own, "a listener has one `client_ca`: that of another server holds"),
            }
        }
        if let Some(directive) = scope.one("ssl_verify_client") {
            match (directive.word(0), all) {
                ("optional_no_ca", _) => conversion.ledger.unsupported(directive, "as `optional`: a certificate that cannot be verified ends the handshake"),
                ("on", true) => conversion.ledger.approximate(directive, "`client_auth = \"required\"`: the handshake fails, where nginx answers with 400"),
                ("on", false) => conversion.ledger.approximate(directive, "`client_auth = \"optional\"`, since other servers of the listener ask for none, and a route that answers with 400 who has none"),
                _ => conversion.ledger.approximate(directive, "`client_auth`; a certificate that cannot be verified ends the handshake"),
            }
        }
    }
    if let Some(crl) = asking.one("ssl_crl") {
        line(body, "crl", quoted(&conversion.file(crl.word(0))));
        conversion.ledger.exact(crl, "`crl`: one for each authority, as there");
    }
}

/// Settings of which a listener has one.
fn settings(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>, body: &mut String) {
    match scope.one("ssl_protocols") {
        Some(directive) => {
            let has = |version: &str| directive.words.iter().any(|word| word == version);
            if !has("TLSv1.2") && has("TLSv1.3") {
                line(body, "min_version", quoted("1.3"));
            }
            match (has("TLSv1") || has("TLSv1.1"), has("TLSv1.3")) {
                (true, _) => conversion.ledger.approximate(
                    directive,
                    "`min_version`: 1.2 at least, older versions are broken (RFC 8996)",
                ),
                (false, false) => conversion.ledger.approximate(directive, "1.2 and 1.3"),
                (false, true) => conversion.ledger.exact(directive, "`min_version`"),
            }
        }
        None => conversion.ledger.unsaid(
            "ssl_protocols",
            DirectiveVerdict::Approximate,
            "TLS 1.2 and 1.3; nginx before 1.27 speaks 1.0 and 1.1, too",
        ),
    }
    if let Some(directive) = scope.one("ssl_session_tickets") {
        if directive.word(0) == "off" {
            line(body, "tickets", "false");
        }
        conversion.ledger.exact(directive, "`tickets`");
    }
    let keys: Vec<String> = scope
        .all("ssl_session_ticket_key")
        .iter()
        .map(|directive| conversion.file(directive.word(0)))
        .collect();
    if !keys.is_empty() {
        line(body, "ticket_keys", texts(&keys));
        for directive in scope.all("ssl_session_ticket_key") {
            conversion.ledger.exact(directive, "`ticket_keys`");
        }
    }
    if let Some(directive) = scope.one("ssl_early_data") {
        if directive.word(0) == "on" {
            line(body, "early_data", "true");
        }
        conversion.ledger.approximate(directive, "`early_data`, for HTTP/3 only");
    }
}

/// Directives that have no key of their own.
fn own(conversion: &mut Conversion<'_>, scope: &NginxScope<'_>) {
    for (name, note) in [
        (
            "ssl_ciphers",
            "`ciphers` is a policy and no list: AES-GCM and ChaCha20 with forward secrecy by default",
        ),
        ("ssl_prefer_server_ciphers", "Weir's order holds"),
        ("ssl_ecdh_curve", "`ciphers` is a policy that has the curves, too"),
        ("ssl_dhparam", "no finite-field Diffie-Hellman is spoken: not needed"),
        ("ssl_session_cache", "sessions are resumed by tickets; no cache is needed"),
        ("ssl_session_timeout", "tickets are good for 12 to 18 hours"),
        ("ssl_stapling", "no OCSP response is fetched: `ocsp` of a certificate has one from a file"),
        ("ssl_stapling_verify", "no OCSP response is fetched: `ocsp` of a certificate has one from a file"),
        (
            "ssl_stapling_responder",
            "no OCSP response is fetched: `ocsp` of a certificate has one from a file",
        ),
        (
            "ssl_trusted_certificate",
            "not needed: no OCSP response is fetched, and clients' certificates come from `client_ca`",
        ),
        ("ssl_verify_depth", "chains of any usual length are verified"),
        ("ssl_handshake_timeout", "`timeout.handshake`, 10s by default"),
    ] {
        if let Some(directive) = scope.one(name) {
            conversion.ledger.approximate(directive, note);
        }
    }
    if let Some(directive) = scope.one("ssl_reject_handshake").filter(|directive| directive.word(0) == "on") {
        let note = "handshakes for unknown names get the first certificate, and their requests what this server answers";
        conversion.ledger.unsupported(directive, note);
    }
}
