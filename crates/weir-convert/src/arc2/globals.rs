//! The global keys at the top of the file.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::bag::Bag;
use super::rules::Rule;
use super::{Notes, line, quoted, texts};

/// The global switches and settings, from which the listeners and pools are made.
pub struct Globals {
    pub address: IpAddr,
    pub http_port: u16,
    pub https_port: u16,
    pub caching: bool,
    pub rate_limiting: bool,
    pub logging: bool,
    pub body_limit: bool,
    pub sql_injection: bool,
    pub compression: bool,
    pub level: &'static str,
    pub email: Option<String>,
    pub backend_timeout_seconds: u64,
    pub keep_alive_seconds: u64,
}

/// Directory URL of Let's Encrypt, from which ARC2 gets its certificates (RFC 8555).
const DIRECTORY: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// Takes all global keys.
pub fn read(bag: &mut Bag, notes: &mut Notes) -> Globals {
    let address = bag.text("listening_address").map(|taken| {
        let address = taken.value.parse();
        match address {
            Ok(_) => notes.exact(&taken, "`bind` of the listeners"),
            Err(_) => notes.unsupported(&taken, "no IP address: every address is listened at"),
        }
        address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED))
    });
    let mut port = |key: &str, default: u16, note: &str| match bag.number(key) {
        None => default,
        Some(taken) => match u16::try_from(taken.value) {
            Ok(port) => {
                notes.exact(&taken, note);
                port
            }
            Err(_) => {
                notes.unsupported(&taken, format!("no port: {default} is used"));
                default
            }
        },
    };
    let http_port = port("listening_port_http", 80, "`bind` of `listener.web`");
    let https_port = port(
        "listening_port_https",
        443,
        "`bind` of `listener.secure`, which stands where certificates come from somewhere",
    );
    let level = level(bag, notes);
    let mut switch = |key: &str, default: bool, note: &str| match bag.flag(key) {
        None => default,
        Some(taken) => {
            notes.exact(&taken, format!("master switch {}: {note}", if taken.value { "on" } else { "off" }));
            taken.value
        }
    };
    let caching = switch("add_caching", true, "`cache` of the routes");
    let sql_injection = switch("add_sql_injection_protection", false, "`sqli` of the routes");
    let compression = switch("enable_compression", false, "`compress` of the routes");
    let globals = Globals {
        address: address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        http_port,
        https_port,
        caching,
        rate_limiting: rate_limiting(bag, notes),
        logging: logging(bag, notes),
        body_limit: body_limit(bag, notes),
        sql_injection,
        compression,
        level,
        email: bag.text("lets_encrypt_contact_email").map(|taken| {
            notes.exact(&taken, "`acme` of `listener.secure`, for the domains of the rules");
            taken.value
        }),
        backend_timeout_seconds: timeout(bag, notes),
        keep_alive_seconds: bag.number("proxy_keepalive_sec").map_or(120, |taken| {
            notes.exact(&taken, "`keep_alive.idle` of the pools");
            taken.value
        }),
    };
    oldest_tls(bag, notes);
    without_place(bag, notes);
    globals
}

fn level(bag: &mut Bag, notes: &mut Notes) -> &'static str {
    let Some(taken) = bag.text("logging_level") else { return "error" };
    // Like ARC2, this looks only at how the word begins.
    match ["error", "warn", "info", "debug", "trace"].into_iter().find(|word| taken.value.starts_with(word)) {
        Some(word) => {
            notes.exact(&taken, "`log.level`");
            word
        }
        None => {
            notes.approximate(&taken, "Weir's own log is never off: `log.level` is \"error\"");
            "error"
        }
    }
}

fn logging(bag: &mut Bag, notes: &mut Notes) -> bool {
    let Some(taken) = bag.flag("add_logging") else {
        notes.unsaid(
            "add_logging",
            "ARC2's release builds log requests where the rule has `enable_logging`: done so here",
        );
        return true;
    };
    notes.exact(&taken, format!("master switch {}: `log.access`", if taken.value { "on" } else { "off" }));
    taken.value
}

fn rate_limiting(bag: &mut Bag, notes: &mut Notes) -> bool {
    const RATE: &str = "ARC2's pages name no rate; written as 100 requests a second of each client with bursts of 200: set your own";
    match bag.flag("add_rate_limiting") {
        Some(taken) if taken.value => {
            notes.approximate(&taken, RATE);
            true
        }
        Some(taken) => {
            notes.exact(&taken, "no `rate_limit`");
            false
        }
        None => {
            notes.unsaid("add_rate_limiting", format!("ARC2's release builds limit rates: {RATE}"));
            true
        }
    }
}

fn body_limit(bag: &mut Bag, notes: &mut Notes) -> bool {
    const LIMIT: &str = "`body_limit = \"2MiB\"` on the routes, what ARC2's web framework takes by default";
    match bag.flag("disable_default_body_limit") {
        Some(taken) if taken.value => {
            notes.exact(&taken, "no `body_limit`");
            false
        }
        Some(taken) => {
            notes.approximate(&taken, LIMIT);
            true
        }
        None => {
            notes.unsaid("disable_default_body_limit", LIMIT);
            true
        }
    }
}

fn timeout(bag: &mut Bag, notes: &mut Notes) -> u64 {
    match bag.number("proxy_timeout") {
        None => 45,
        Some(taken) => {
            notes.approximate(&taken, "`timeout.backend`, which is for each wait for the backend's next byte, not for the whole answer");
            taken.value.max(1)
        }
    }
}

fn oldest_tls(bag: &mut Bag, notes: &mut Notes) {
    let Some(taken) = bag.text("proxy_min_tls_version") else { return };
    match taken.value.as_str() {
        "TLS_1_3" | "TLS_1_2" => {
            notes.approximate(
                &taken,
                "towards backends Weir speaks TLS 1.3, and 1.2 with those that know no newer",
            );
        }
        _ => notes.approximate(&taken, "TLS 1.0 and 1.1 are broken (RFC 8996): at least 1.2 is spoken"),
    }
}

/// Takes the keys that have no counterpart in Weir, or that Weir always does.
fn without_place(bag: &mut Bag, notes: &mut Notes) {
    for (key, always) in
        [("enable_streaming", true), ("nonblocking", true), ("nodelay", true), ("proxy_nodelay", true)]
    {
        match bag.flag(key) {
            Some(taken) if taken.value == always => notes.exact(&taken, "always so"),
            Some(taken) => notes.approximate(
                &taken,
                "Weir streams, never blocks and never delays small packets: this cannot be switched off",
            ),
            None => {}
        }
    }
    if let Some(taken) = bag.flag("backtracing") {
        notes.approximate(
            &taken,
            "a mistake of Weir's own ends one connection, is counted and logged with its place",
        );
    }
    if let Some(taken) = bag.text("compression_flags") {
        notes.approximate(&taken, "not read: `compress` has keys of its own (`types`, `min`, `level`)");
    }
    if let Some(taken) = bag.text("api_key") {
        notes.approximate(&taken, "not copied: put a token into a file and name it as `admin.token_file`");
    }
    if let Some(taken) = bag.text("azure_table_storage_key") {
        notes.unsupported(&taken, "nothing is kept in table storage; traffic is served the same");
    }
    for key in ["recv_buffer_size", "send_buffer_size"] {
        if let Some(taken) = bag.number(key) {
            notes.unsupported(
                &taken,
                "the kernel sizes the buffers of each connection by itself (net.ipv4.tcp_rmem, tcp_wmem)",
            );
        }
    }
    if let Some(taken) = bag.number("ip_ttl") {
        notes.unsupported(&taken, "the system's (net.ipv4.ip_default_ttl)");
    }
    if let Some(taken) = bag.number("tcp_keep_alive_seconds") {
        notes.approximate(
            &taken,
            "every wait has a timer of its own (`timeout`); idle clients go after `client_idle`",
        );
    }
    if let Some(taken) = bag.number("max_backlog") {
        notes.approximate(&taken, "the system's (net.core.somaxconn)");
    }
}

/// Writes `[log]` and those keys of the listeners that do not depend on the rules.
pub fn write(globals: &Globals, rules: &[Rule], body: &mut String, notes: &mut Notes) {
    body.push_str("[log]\n");
    let logged = globals.logging && rules.iter().any(|rule| rule.logging);
    line(body, "access", quoted(if logged { "stdout" } else { "off" }));
    line(body, "level", quoted(globals.level));
    if globals.email.is_none() {
        let note = "the file names no certificates and nobody to get them for: no listener for HTTPS is written; add `[listener.secure]` with `tls`";
        if rules.iter().any(|rule| rule.https_only) {
            notes.unsaid("https", format!("{note}, without which `https_only` has no effect"));
        } else {
            notes.unsaid("https", note);
        }
    }
}

/// Writes `[listener.web]`, or `[listener.secure]` with its certificates.
pub fn write_listener(globals: &Globals, name: &str, rules: &[Rule], body: &mut String) {
    let port = if name == "secure" { globals.https_port } else { globals.http_port };
    let _ = write!(body, "\n[listener.{name}]\n");
    line(body, "bind", quoted(&SocketAddr::new(globals.address, port).to_string()));
    line(body, "timeout", format!("{{ backend = \"{}s\" }}", globals.backend_timeout_seconds));
    let Some(email) = globals.email.as_ref().filter(|_| name == "secure") else { return };
    let mut domains: Vec<String> = rules.iter().map(|rule| rule.domain.clone()).collect();
    domains
        .retain(|domain| domain.contains('.') && domain.parse::<IpAddr>().is_err() && !domain.contains('*'));
    domains.sort();
    domains.dedup();
    let _ = write!(body, "\n[listener.{name}.tls.acme]\n");
    line(body, "directory", quoted(DIRECTORY));
    line(body, "domains", texts(&domains));
    line(body, "contact", quoted(&format!("mailto:{email}")));
}
