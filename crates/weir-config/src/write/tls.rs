//! TLS as text again.

use super::{inline, list, text};
use crate::schema::*;

fn file(path: &std::path::Path) -> String {
    text(&path.to_string_lossy())
}

pub(super) fn listener(tls: &ListenerTls) -> Vec<(&'static str, String)> {
    let certificate = |certificate: &Certificate| {
        let mut keys = vec![("cert", file(&certificate.cert)), ("key", file(&certificate.key))];
        keys.extend(certificate.ocsp.as_ref().map(|ocsp| ("ocsp", file(ocsp))));
        inline(keys)
    };
    let mut keys = Vec::new();
    if !tls.certificates.is_empty() {
        keys.push(("certificates", list(&tls.certificates, certificate)));
    }
    keys.extend(tls.acme.as_ref().map(|each| ("acme", acme(each))));
    if let Some(ca) = &tls.client_ca {
        keys.push(("client_ca", file(ca)));
        let auth = match tls.client_auth {
            ClientAuth::Required => "required",
            ClientAuth::Optional => "optional",
        };
        keys.push(("client_auth", text(auth)));
    }
    let version = match tls.min_version {
        TlsVersion::V12 => "1.2",
        TlsVersion::V13 => "1.3",
    };
    let ciphers = match tls.ciphers {
        CipherPolicy::Default => "default",
        CipherPolicy::Strong => "strong",
        CipherPolicy::Nist => "nist",
    };
    keys.push(("min_version", text(version)));
    keys.push(("ciphers", text(ciphers)));
    keys.push(("tickets", tls.tickets.to_string()));
    keys.push(("early_data", tls.early_data.to_string()));
    keys
}

fn acme(acme: &Acme) -> String {
    let mut keys =
        vec![("directory", text(&acme.directory)), ("domains", list(&acme.domains, |domain| text(domain)))];
    if !acme.contact.is_empty() {
        keys.push(("contact", list(&acme.contact, |contact| text(contact))));
    }
    // Said, each must have a listener that meets it; unsaid, those count that have one.
    if acme.challenges != AcmeChallenge::ALL {
        keys.push(("challenges", list(&acme.challenges, |challenge| text(challenge.word()))));
    }
    keys.extend(acme.ca.as_ref().map(|ca| ("ca", file(ca))));
    keys.push(("store", file(&acme.store)));
    inline(keys)
}

pub(super) fn pool(tls: &PoolTls) -> String {
    let mut keys = Vec::new();
    keys.extend(tls.ca.as_ref().map(|ca| ("ca", file(ca))));
    if let Some((cert, key)) = &tls.client {
        keys.push(("cert", file(cert)));
        keys.push(("key", file(key)));
    }
    keys.extend(tls.server_name.as_ref().map(|name| ("server_name", text(name))));
    keys.push(("verify", tls.verify.to_string()));
    inline(keys)
}
