//! `tls` of a listener and of a pool: which keys and certificates to use, and which to trust.

use std::path::{Path, PathBuf};

use crate::acme::Acme;
use crate::fields::{Fields, Value};
use crate::keys::{Each, Key, Kind, Word, flag, list, text, word};
use crate::protocol::Protocol;
use crate::report::{Findings, Span};
use crate::setting::{One, Section as _, table, words};
use crate::uses::Uses;
use crate::values::address::{FILE, FOLDER, KEY_FILE, PEM_FILE};
use crate::values::host::SERVER_NAME;
use crate::values::said_once;

table! {
    /// Serves the listener over TLS 1.2 and 1.3. With `protocol = "tcp"` what is inside is relayed as it is.
    /// Files are read at start and at each reload; open connections keep what they began with.
    #[derive(Eq)]
    pub struct ListenerTls at "[listener.NAME.tls]" {
        /// Chosen by the server name that a client asks for (SNI) and by the signatures it takes; the first
        /// is for everyone else.
        certificates: Vec<Certificate> =
            Key::new(Kind::Many(Each::Table(Certificate::TABLE)))
                .default("none: expected unless there is `acme` or `certificate_folder`")
                .also(&["certificate", "ssl_certificate", "crt", "cert"]);
        /// Folder of more certificates, which `PUT /v1/listeners/NAME/certificates/CERTIFICATE` of the admin
        /// API puts there and takes up at once: each a file `CERTIFICATE.pem` with the chain and its key, at
        /// most 1,000. They stand behind all others. It is made when it is not there.
        certificate_folder: Option<PathBuf> =
            text(&FOLDER).default("none: none are taken").also(&["crt_dir", "certificates_dir", "uploads"]);
        /// PEM file of the authorities that client certificates must come from (mutual TLS).
        client_ca: Option<PathBuf> =
            text(&PEM_FILE)
                .default("none: no client certificate is asked for")
                .also(&["ssl_client_certificate", "ca_file", "ca"]);
        /// Whether a client must have a certificate. Means something where `client_ca` is.
        client_auth: ClientAuth =
            word(ClientAuth::WORDS, "required").also(&["verify", "ssl_verify_client"]);
        /// PEM files of lists of certificates that `client_ca` and the authorities below it have revoked (RFC
        /// 5280 section 5). One for each of them: whom no list speaks of, or one that is out of date, is
        /// refused.
        crl: Vec<PathBuf> =
            list(Each::Text(&PEM_FILE)).default("none").also(&["crl_file", "ssl_crl", "revoked"]);
        /// Oldest version of TLS that is spoken. Older ones than 1.2 are broken (RFC 8996).
        min_version: TlsVersion =
            word(TlsVersion::WORDS, "1.2").also(&["ssl_min_ver", "ssl_protocols", "minimum_version"]);
        /// Which cipher suites and key exchanges are spoken. None of them is weak.
        ciphers: CipherPolicy =
            word(CipherPolicy::WORDS, "default").also(&["ssl_ciphers", "ciphersuites", "cipher_policy"]);
        /// Whether clients may resume sessions with tickets (RFC 8446 section 2.2). Their keys are made anew
        /// every 6 hours, are good for 12 more, and outlive reloads and USR2.
        tickets: bool = flag(true).also(&["session_tickets", "ssl_session_tickets"]);
        /// Files with keys for tickets, for several Weirs to share: one key of 48 or 80 bytes, or one in
        /// base64 on each line. The first seals tickets, all open them. Files are read again when they
        /// change; nobody else may read them.
        ticket_keys: Vec<PathBuf> =
            list(Each::Text(&FILE))
                .default("keys of this Weir alone, made anew every 6 hours")
                .also(&["ssl_session_ticket_key", "tls_ticket_keys", "session_ticket_keys"]);
        /// Whether clients of HTTP/3 that come back may send requests before the handshake is over (0-RTT,
        /// RFC 8470). Of those only GET, HEAD and OPTIONS without a body, from an address that the client has
        /// proved, are served before that, with `early-data: 1` for backends.
        early_data: bool = flag(false).also(&["0rtt", "zero_rtt", "allow_0rtt", "ssl_early_data"]);
        /// Gets certificates from certificate authorities and renews them (RFC 8555). They stand behind those
        /// in `certificates`.
        acme: Vec<Acme> =
            list(Each::Table(Acme::TABLE)).default("none").also(&["letsencrypt", "certresolver", "auto"]);
        /// Who decides whether a client of MySQL, which begins every connection without TLS, goes on with it.
        mode: TlsMode =
            word(TlsMode::WORDS, "preferred").mysql().also(&["client_ssl_mode", "ssl_mode"]);
    }
}

table! {
    /// One certificate with its key. Several may be for the same name, with keys of different kinds.
    #[derive(Eq)]
    pub struct Certificate at "certificates = [{ … }]" {
        /// PEM file: the certificate, then those that it comes from.
        cert: PathBuf = text(&PEM_FILE).required().also(&["certificate", "crt", "chain", "fullchain"]);
        /// PEM file of its private key.
        key: PathBuf = text(&KEY_FILE).required().also(&["private_key"]);
        /// DER file with an OCSP response, which is stapled (RFC 6066 section 8).
        ocsp: Option<PathBuf> = text(&PEM_FILE).default("none").also(&["ssl_stapling_file", "staple"]);
    }
}

words! {
    /// Whether a client must have a certificate.
    pub enum ClientAuth {
        Required = "required": "no handshake without a client certificate",
        Optional = "optional": "a client without one is served too; backends see which",
    }
}

words! {
    /// Oldest version of TLS that is spoken.
    pub enum TlsVersion {
        V12 = "1.2": "TLS 1.2 (RFC 5246) and 1.3",
        V13 = "1.3": "TLS 1.3 (RFC 8446) only",
    }
}

words! {
    /// Which cipher suites and key exchanges are spoken.
    pub enum CipherPolicy {
        Default = "default": "AES-GCM and ChaCha20-Poly1305 with forward secrecy, in this order and keys of 256 bits first, of those that the client knows",
        Strong = "strong": "of these only those with keys of 256 bits",
        Nist = "nist": "AES-GCM and the curves P-256 and P-384 only",
    }
}

table! {
    /// TLS towards the backends of a pool, and for its probes. `tls = true` takes every default.
    #[derive(Eq)]
    pub struct PoolTls at "tls = { … }" {
        /// PEM file of the authorities that backends' certificates must come from.
        ca: Option<PathBuf> =
            text(&PEM_FILE).default("those of the system").also(&["ca_file", "proxy_ssl_trusted_certificate"]);
        /// PEM files of lists of certificates that `ca` and the authorities below it have revoked. One for
        /// each of them: whom no list speaks of, or one that is out of date, is not believed.
        crl: Vec<PathBuf> =
            list(Each::Text(&PEM_FILE)).default("none").also(&["crl_file", "proxy_ssl_crl", "revoked"]);
        /// PEM file of a client certificate, shown to backends that ask for one.
        cert: Option<PathBuf> =
            text(&PEM_FILE).default("none").also(&["crt", "certificate", "proxy_ssl_certificate"]);
        /// PEM file of its private key.
        key: Option<PathBuf> = text(&KEY_FILE).default("none").also(&["proxy_ssl_certificate_key"]);
        /// Name that backends are asked for (SNI), and that their certificates must be for.
        server_name: Option<String> =
            text(&SERVER_NAME)
                .default("the host of each backend")
                .also(&["sni", "proxy_ssl_name", "verifyhost"]);
        /// Whether backends must prove who they are. `false` takes any certificate from anyone who is in the
        /// way. `"ca"` is for certificates that name nobody, as those that a MySQL server makes itself.
        verify: Verify =
            Key::new(Kind::BoolOrWord(true, Verify::WORDS)).also(&["proxy_ssl_verify", "server_ssl_verify"]);
        /// What becomes of a server that offers no TLS.
        mode: ServerTlsMode =
            word(ServerTlsMode::WORDS, "required").mysql().also(&["server_ssl_mode", "ssl_mode"]);
    }
}

/// Whom a backend must prove to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Its certificate is for the name that is asked for, and comes from a known authority.
    Name,
    /// Its certificate comes from a known authority, whomever it is for.
    Authority,
    /// Nobody: any certificate is taken.
    Nobody,
}

impl Verify {
    const WORDS: &[Word] =
        &[Word::new("ca", "a certificate that comes from `ca`, whomever it names").also(&["verify-ca"])];
}

impl One for Verify {
    fn of(value: &Value) -> Option<Verify> {
        match value {
            Value::Bool(true) => Some(Verify::Name),
            Value::Bool(false) => Some(Verify::Nobody),
            Value::Word("ca") => Some(Verify::Authority),
            _ => None,
        }
    }

    fn value(&self) -> Value {
        match self {
            Verify::Name => Value::Bool(true),
            Verify::Authority => Value::Word("ca"),
            Verify::Nobody => Value::Bool(false),
        }
    }

    fn blank() -> Verify {
        Verify::Name
    }
}

words! {
    /// What becomes of a server that offers no TLS.
    pub enum ServerTlsMode {
        Required = "required": "it is not spoken to",
        Preferred = "preferred": "it is spoken to without",
    }
}

words! {
    /// Who decides whether a client that may begin without TLS goes on with it.
    pub enum TlsMode {
        Preferred = "preferred": "the client",
        Required = "required": "nobody: a client without TLS is refused",
        Disabled = "disabled": "nobody: TLS is not offered",
        Passthrough = "passthrough": "the client and a server, who speak it with each other",
    }
}

impl ListenerTls {
    /// Whether Weir takes part in handshakes: TLS is neither off nor passed through.
    pub fn is_spoken(&self) -> bool {
        matches!(self.mode, TlsMode::Preferred | TlsMode::Required)
    }

    /// The ACME certificates that are always wanted, without those ordered on demand.
    pub fn ordered(&self) -> impl Iterator<Item = &Acme> {
        self.acme.iter().filter(|acme| acme.on_demand.is_none())
    }
}

impl PoolTls {
    /// The files of the client certificate and its key; `None` without one.
    pub fn client(&self) -> Option<(&Path, &Path)> {
        self.cert.as_deref().zip(self.key.as_deref())
    }
}

/// Checks a listener's `tls`, except its ACME. `speaks_h3` says whether the listener speaks HTTP/3.
pub(crate) fn check_listener(name: &str, tls: &Fields, speaks_h3: bool, findings: &mut Findings<'_>) {
    let is_spoken = ![TlsMode::Disabled, TlsMode::Passthrough].map(TlsMode::word).contains(&tls.word("mode"));
    let has_any = ["certificates", "acme", "certificate_folder"].iter().any(|name| !tls.lacks(name));
    if is_spoken && !has_any {
        let message = format!("`[listener.{name}.tls]` has no `certificates`");
        let hint = "expected `certificates = [{ cert = \"shop.pem\", key = \"shop.key\" }]`, or `acme = { … }` or `certificate_folder`";
        findings.error(tls.at, message, hint);
    }
    if !is_spoken {
        return said_in_vain(tls, findings);
    }
    if let Some(entry) = tls.get("client_auth").filter(|_| tls.lacks("client_ca")) {
        let hint = "expected `client_ca = \"clients.pem\"` beside it, or leave it out";
        findings.error(entry.key, "`client_auth` needs a `client_ca`", hint);
    }
    if let Some(entry) = tls.get("crl").filter(|_| tls.lacks("client_ca")) {
        let hint = "expected `client_ca = \"clients.pem\"` beside it, or leave it out";
        findings.error(entry.key, "`crl` needs a `client_ca`", hint);
    }
    if let Some(entry) = tls.get("ticket_keys").filter(|_| !tls.flag("tickets")) {
        let hint = format!("sessions are not resumed ({})", findings.place(tls.at("tickets")));
        findings.error(entry.key, "`ticket_keys` needs `tickets`", hint);
    }
    said_once(tls, "ticket_keys", findings);
    if tls.flag("early_data") {
        early_data(tls, speaks_h3, findings);
    }
    let mut seen: Vec<(&str, Span)> = Vec::new();
    for (_, certificate) in tls.tables("certificates") {
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

/// Reports TLS settings where Weir does not speak TLS. An operator who requires client certificates without
/// effect must know before relying on them.
fn said_in_vain(tls: &Fields, findings: &mut Findings<'_>) {
    let mode = tls.word("mode");
    let hint = format!("`mode` is \"{mode}\" ({})", findings.place(tls.at("mode")));
    for entry in ["client_ca", "client_auth", "crl"].iter().filter_map(|name| tls.get(name)) {
        if mode == TlsMode::Passthrough.word() {
            let hint = format!("{hint}: only the servers see who a client is, so leave it out");
            findings.error(entry.key, format!("`{}` asks nobody for a certificate here", entry.name), hint);
        } else {
            findings.warning(entry.key, format!("`{}` has no effect", entry.name), hint.clone());
        }
    }
    let others = [
        "certificates",
        "certificate_folder",
        "acme",
        "min_version",
        "ciphers",
        "tickets",
        "ticket_keys",
        "early_data",
    ];
    for entry in others.iter().filter_map(|name| tls.get(name)) {
        findings.warning(entry.key, format!("`{}` has no effect", entry.name), hint.clone());
    }
}

/// Reports settings that contradict `early_data`.
fn early_data(tls: &Fields, speaks_h3: bool, findings: &mut Findings<'_>) {
    let at = tls.get("early_data").map_or(tls.at, |entry| entry.key);
    if !speaks_h3 {
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

/// Checks a pool's `tls`.
pub(crate) fn check_pool(pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    let Some(tls) = pool.table("tls") else { return };
    if let Some(entry) = tls.get("mode")
        && let Some(other) = uses.first(&pool.name, |protocol| protocol != Protocol::Mysql)
    {
        let hint = format!("it is for mysql, and {}", other.speaks(findings));
        findings.error(entry.key, "`mode` means nothing to this pool", hint);
    }
    if let (Some(Value::Word("ca")), true) = (tls.value("verify"), tls.lacks("ca")) {
        let hint =
            "anyone can have a certificate of a public authority: expected `ca = \"ca.pem\"` beside it";
        findings.error(tls.at("verify"), "`verify = \"ca\"` needs a `ca`", hint);
    }
    for (one, other) in [("cert", "key"), ("key", "cert")] {
        if let Some(entry) = tls.get(one).filter(|_| tls.lacks(other)) {
            let hint =
                format!("expected `{other} = \"client.pem\"` beside it: a client certificate has both");
            findings.error(entry.key, format!("`{one}` needs a `{other}`"), hint);
        }
    }
    if let Some(entry) = tls.get("crl").filter(|_| tls.lacks("ca")) {
        let hint =
            "public authorities are too many to have a list of each: expected `ca = \"ca.pem\"` beside it";
        findings.error(entry.key, "`crl` needs a `ca`", hint);
    }
    if let (Some(entry), Some(Value::Word("ca"))) = (tls.get("crl"), tls.value("verify")) {
        let hint = format!("`verify` is \"ca\" ({})", findings.place(tls.at("verify")));
        findings.error(entry.key, "`crl` is for certificates that name their server", hint);
    }
    if let (Some(entry), Some(Value::Bool(false))) = (tls.get("ca"), tls.value("verify")) {
        let hint =
            format!("`verify` is false ({}): any certificate is taken", findings.place(tls.at("verify")));
        findings.warning(entry.key, "`ca` has no effect", hint);
    }
}
