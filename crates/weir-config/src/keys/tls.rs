//! The tables about TLS, towards clients and towards backends.

use super::{Key, Kind, Table, Word};
use crate::values as shape;

const fn word(word: &'static str, doc: &'static str) -> Word {
    Word { word, doc, built: true }
}

/// `[listener.NAME.tls]`
pub static LISTENER_TLS: Table = Table {
    path: "[listener.NAME.tls]",
    doc: "Serves the listener over TLS 1.2 and 1.3. With `protocol = \"tcp\"` what is inside is relayed as it is. Files are read at start and at \
          each reload; open connections keep what they began with.",
    keys: &[
        Key::new(
            "certificates",
            Kind::Many(&Kind::Table(&CERTIFICATE)),
            "Chosen by the server name that a client asks for (SNI) and by the signatures it takes; the first is for everyone else.",
        )
        .required()
        .also(&["certificate", "ssl_certificate", "crt", "cert"]),
        Key::new(
            "client_ca",
            Kind::Text(&shape::PEM_FILE),
            "PEM file of the authorities that client certificates must come from (mutual TLS).",
        )
        .default("none: no client certificate is asked for")
        .also(&["ssl_client_certificate", "ca_file", "ca"]),
        Key::new(
            "client_auth",
            Kind::Word(
                &[
                    word("required", "no handshake without a client certificate"),
                    word("optional", "a client without one is served too; backends see which"),
                ],
                None,
            ),
            "Whether a client must have a certificate. Means something where `client_ca` is.",
        )
        .default("\"required\"")
        .also(&["verify", "ssl_verify_client"]),
        Key::new(
            "min_version",
            Kind::Word(
                &[word("1.2", "TLS 1.2 (RFC 5246) and 1.3"), word("1.3", "TLS 1.3 (RFC 8446) only")],
                Some("1.2"),
            ),
            "Oldest version of TLS that is spoken. Older ones than 1.2 are broken (RFC 8996).",
        )
        .also(&["ssl_min_ver", "ssl_protocols", "minimum_version"]),
        Key::new(
            "ciphers",
            Kind::Word(
                &[
                    word("default", "AES-GCM and ChaCha20-Poly1305 with forward secrecy, as the client prefers"),
                    word("strong", "of these only those with keys of 256 bits"),
                    word("nist", "AES-GCM and the curves P-256 and P-384 only"),
                ],
                Some("default"),
            ),
            "Which cipher suites and key exchanges are spoken. None of them is weak.",
        )
        .also(&["ssl_ciphers", "ciphersuites", "cipher_policy"]),
        Key::new(
            "tickets",
            Kind::Bool(true),
            "Whether clients may resume sessions with tickets (RFC 8446 section 2.2). Their keys are made anew every 6 hours, are good for 12 more, \
             and outlive reloads and USR2.",
        )
        .also(&["session_tickets", "ssl_session_tickets"]),
        Key::new("acme", Kind::Unread("a table"), "Gets and renews certificates by itself (RFC 8555).").not_built(&[]),
    ],
};

static CERTIFICATE: Table = Table {
    path: "certificates = [{ … }]",
    doc: "One certificate with its key. Several may be for the same name, with keys of different kinds.",
    keys: &[
        Key::new(
            "cert",
            Kind::Text(&shape::PEM_FILE),
            "PEM file: the certificate, then those that it comes from.",
        )
        .required()
        .also(&["certificate", "crt", "chain", "fullchain"]),
        Key::new("key", Kind::Text(&shape::PEM_FILE), "PEM file of its private key.")
            .required()
            .also(&["private_key"]),
        Key::new(
            "ocsp",
            Kind::Text(&shape::PEM_FILE),
            "DER file with an OCSP response, which is stapled (RFC 6066 section 8).",
        )
        .default("none")
        .also(&["ssl_stapling_file", "staple"]),
    ],
};

/// `tls = { … }` of a pool.
pub static POOL_TLS: Table = Table {
    path: "tls = { … }",
    doc: "TLS towards the backends of a pool, and for its probes. `tls = true` takes every default.",
    keys: &[
        Key::new("ca", Kind::Text(&shape::PEM_FILE), "PEM file of the authorities that backends' certificates must come from.")
            .default("those of the system")
            .also(&["ca_file", "proxy_ssl_trusted_certificate"]),
        Key::new("cert", Kind::Text(&shape::PEM_FILE), "PEM file of a client certificate, shown to backends that ask for one.")
            .default("none")
            .also(&["crt", "certificate", "proxy_ssl_certificate"]),
        Key::new("key", Kind::Text(&shape::PEM_FILE), "PEM file of its private key.").default("none").also(&["proxy_ssl_certificate_key"]),
        Key::new(
            "server_name",
            Kind::Text(&shape::SERVER_NAME),
            "Name that backends are asked for (SNI), and that their certificates must be for.",
        )
        .default("the host of each backend")
        .also(&["sni", "proxy_ssl_name", "verifyhost"]),
        Key::new(
            "verify",
            Kind::Bool(true),
            "Whether backends must prove who they are. `false` takes any certificate from anyone who is in the way.",
        )
        .also(&["proxy_ssl_verify"]),
    ],
};
