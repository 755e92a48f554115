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
        .default("none: expected unless there is `acme`")
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
                    word("default", "AES-GCM and ChaCha20-Poly1305 with forward secrecy, in this order and keys of 256 bits first, of those that the client knows"),
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
        Key::new(
            "early_data",
            Kind::Bool(false),
            "Whether clients of HTTP/3 that come back may send requests before the handshake is over (0-RTT, RFC 8470). Of those only GET, HEAD \
             and OPTIONS without a body, from an address that the client has proved, are served before that, with `early-data: 1` for backends.",
        )
        .also(&["0rtt", "zero_rtt", "allow_0rtt", "ssl_early_data"]),
        Key::new(
            "acme",
            Kind::Table(&ACME),
            "Gets a certificate from a certificate authority and renews it (RFC 8555). It stands behind those in `certificates`.",
        )
        .default("none")
        .also(&["letsencrypt", "certresolver", "auto"]),
    ],
};

static ACME: Table = Table {
    path: "acme = { … }",
    doc: "One certificate for all of `domains`, ordered when there is none yet and renewed when its authority suggests it (RFC 9773), or else when a \
          third of its life is left. Until the first has come, handshakes that no other certificate is for are refused. Listeners with the same `directory` and `domains` share it.",
    keys: &[
        Key::new(
            "directory",
            Kind::Text(&shape::DIRECTORY_URL),
            "The certificate authority: the URL of its directory. To name one is to agree to its terms of service.",
        )
        .required()
        .also(&["server", "url", "ca_url", "endpoint"]),
        Key::new(
            "domains",
            Kind::OneOrMany(&Kind::Text(&shape::DOMAIN)),
            "Names that the certificate is to be for. The authority connects to each of them: on port 80 for `http-01`, on port 443 for `tls-alpn-01`.",
        )
        .required()
        .also(&["domain", "names", "hosts"]),
        Key::new("contact", Kind::OneOrMany(&Kind::Text(&shape::CONTACT)), "Whom the authority may write to.")
            .default("nobody")
            .also(&["email", "contacts"]),
        Key::new(
            "challenges",
            Kind::OneOrMany(&Kind::Word(
                &[
                    word("http-01", "answered by every listener that speaks HTTP without TLS, before its routes are looked at"),
                    word("tls-alpn-01", "answered by every listener with TLS, while a challenge is open"),
                ],
                None,
            )),
            "Ways to prove that the domains are ours, in the order in which they are tried.",
        )
        .default("`[\"http-01\", \"tls-alpn-01\"]`, the first only with a listener for it")
        .also(&["challenge"]),
        Key::new(
            "ca",
            Kind::Text(&shape::PEM_FILE),
            "PEM file of the authorities that the directory's own certificate must come from.",
        )
        .default("those of the system")
        .also(&["ca_file"]),
        Key::new(
            "store",
            Kind::Text(&shape::FOLDER),
            "Folder for the account's key, certificates and their keys. It is made when it is not there; nobody else may read what is in it.",
        )
        .default("`\"/var/lib/weir/acme\"`")
        .also(&["storage", "state", "dir"]),
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
