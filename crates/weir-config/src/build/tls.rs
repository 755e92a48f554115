//! The parts of a config that are about TLS and versions of HTTP.

use std::path::PathBuf;

use super::collect;
use crate::fields::Fields;
use crate::schema::*;
use crate::values::Value;

/// `http` of a listener; empty when it does not speak HTTP.
pub(super) fn http_versions(fields: &Fields, protocol: Protocol) -> Vec<HttpVersion> {
    if protocol != Protocol::Http {
        return Vec::new();
    }
    let said = collect(fields, "http", |value| match value {
        Value::Word(word) => HttpVersion::from_word(word),
        _ => None,
    });
    match said.is_empty() {
        false => said,
        true if fields.get("tls").is_some() => vec![HttpVersion::H1, HttpVersion::H2],
        true => vec![HttpVersion::H1],
    }
}

pub(super) fn listener_tls(fields: &Fields) -> Option<ListenerTls> {
    let Some(Value::Table(fields)) = fields.value("tls") else { return None };
    let path = |fields: &Fields, name: &str| fields.text(name).map(PathBuf::from);
    Some(ListenerTls {
        certificates: collect(fields, "certificates", |value| match value {
            Value::Table(fields) => Some(Certificate {
                cert: path(fields, "cert").unwrap_or_default(),
                key: path(fields, "key").unwrap_or_default(),
                ocsp: path(fields, "ocsp"),
            }),
            _ => None,
        }),
        acme: acme(fields),
        client_ca: path(fields, "client_ca"),
        client_auth: match fields.word("client_auth") {
            "optional" => ClientAuth::Optional,
            _ => ClientAuth::Required,
        },
        min_version: match fields.word("min_version") {
            "1.3" => TlsVersion::V13,
            _ => TlsVersion::V12,
        },
        ciphers: match fields.word("ciphers") {
            "strong" => CipherPolicy::Strong,
            "nist" => CipherPolicy::Nist,
            _ => CipherPolicy::Default,
        },
        tickets: fields.flag("tickets"),
        early_data: fields.flag("early_data"),
    })
}

fn acme(tls: &Fields) -> Option<Acme> {
    let Some(Value::Table(fields)) = tls.value("acme") else { return None };
    let texts = |name: &str| {
        collect(fields, name, |value| match value {
            Value::Text(text) => Some(text.clone()),
            _ => None,
        })
    };
    let said = collect(fields, "challenges", |value| match value {
        Value::Word(word) => AcmeChallenge::from_word(word),
        _ => None,
    });
    Some(Acme {
        directory: fields.text("directory").unwrap_or_default().to_owned(),
        domains: texts("domains"),
        contact: texts("contact"),
        challenges: if said.is_empty() { AcmeChallenge::ALL.to_vec() } else { said },
        ca: fields.text("ca").map(PathBuf::from),
        store: PathBuf::from(fields.text("store").unwrap_or(ACME_STORE)),
    })
}

pub(super) fn pool_tls(fields: &Fields) -> Option<PoolTls> {
    let Some(Value::Table(fields)) = fields.value("tls") else { return None };
    let path = |name: &str| fields.text(name).map(PathBuf::from);
    Some(PoolTls {
        ca: path("ca"),
        client: path("cert").zip(path("key")),
        server_name: fields.text("server_name").map(str::to_owned),
        verify: fields.flag("verify"),
    })
}
