//! `bind` lines: where a listener accepts, and how.

use super::globals::Globals;
use super::ledger::Ledger;
use super::networks::{Endpoint, bracketed, place};
use super::output::{Keys, said};
use super::proxies::Proxy;
use super::sections::Line;
use crate::SourceFiles;

/// Addresses that accept in one way, which becomes one listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Addresses as Weir has them.
    pub addresses: Vec<String>,
    /// Their ports.
    pub ports: Vec<u16>,
    /// Whether TLS ends here.
    pub is_tls: bool,
    /// Keys of the listener.
    pub keys: Keys,
    /// `[listener.NAME.tls]`
    pub tls: Keys,
    /// HTTP versions; none for the default.
    pub versions: Vec<&'static str>,
}

/// Most ports of one range.
const MOST_PORTS: u16 = 200;

/// The listeners that the addresses of a proxy become; `by_port` has each port be one of its own.
pub fn groups(
    proxy: &Proxy<'_>,
    by_port: bool,
    globals: &Globals,
    source: &dyn SourceFiles,
    ledger: &mut Ledger,
) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in proxy.lines_of("bind") {
        let mut manner = Group::default();
        manner_of(line, proxy.is_tcp, &mut manner, globals, source, ledger);
        for text in line.word(1).split(',').filter(|text| !text.is_empty()) {
            match addresses(text, line) {
                Ok((all, is_quic)) => {
                    ledger.exact(line.number, "`bind`");
                    for (address, port) in all {
                        add(&mut groups, &manner, (address, port), is_quic, by_port);
                    }
                }
                Err(why) => ledger.unsupported(line.number, format!("`{text}` is left out: {why}")),
            }
        }
    }
    groups
}

/// Adds an address to the group of its kind.
fn add(
    groups: &mut Vec<Group>,
    manner: &Group,
    (address, port): (String, Option<u16>),
    is_quic: bool,
    by_port: bool,
) {
    // QUIC is served beside TCP at the same port, with the same certificates.
    if is_quic
        && let Some(beside) =
            groups.iter_mut().find(|group| group.is_tls && group.addresses.contains(&address))
    {
        if beside.versions.is_empty() {
            beside.versions = vec!["h1", "h2"];
        }
        if !beside.versions.contains(&"h3") {
            beside.versions.push("h3");
        }
        return;
    }
    let same = |group: &Group| {
        (&group.keys, &group.tls) == (&manner.keys, &manner.tls)
            && (!by_port || group.ports.as_slice() == port.as_slice())
            && (group.versions == ["h3"]) == is_quic
            && (is_quic || group.versions == manner.versions)
    };
    let at = groups.iter().position(same);
    let group = match at {
        Some(at) => &mut groups[at],
        None => {
            let mut group = manner.clone();
            if is_quic {
                group.versions = vec!["h3"];
            }
            groups.push(group);
            let last = groups.len() - 1;
            &mut groups[last]
        }
    };
    if !group.addresses.contains(&address) {
        group.addresses.push(address);
        group.ports.extend(port);
    }
}

/// An address as `bind` has it, with its port. There is no port for a Unix socket and for a variable.
type BoundAddress = (String, Option<u16>);

/// The addresses that a text stands for, and whether they are for QUIC.
fn addresses(text: &str, line: &Line) -> Result<(Vec<BoundAddress>, bool), String> {
    let (place, is_quic) = place(text)?;
    let (host, port) = match place {
        Endpoint::Unix(path) => return Ok((vec![(format!("unix:{path}"), None)], false)),
        Endpoint::Abstract(name) => return Ok((vec![(format!("unix:@{name}"), None)], false)),
        Endpoint::Host(host, port) => (host, port.ok_or("it has no port")?),
    };
    let flag = |flag: &str| line.words.iter().any(|word| word == flag);
    let hosts = match host.as_str() {
        "" | "*" if flag("v4v6") => vec!["0.0.0.0".to_owned(), "[::]".to_owned()],
        "" | "*" => vec!["0.0.0.0".to_owned()],
        "::" if flag("v6only") => vec!["[::]".to_owned()],
        // A socket of Linux at `::` takes IPv4 too.
        "::" => vec!["0.0.0.0".to_owned(), "[::]".to_owned()],
        "localhost" => vec!["127.0.0.1".to_owned()],
        host if super::words::has_variable(host) || host.parse::<std::net::IpAddr>().is_ok() => {
            vec![bracketed(host)]
        }
        _ => return Err("a listener has an address, not a name".to_owned()),
    };
    if super::words::has_variable(&port) {
        return Ok((hosts.into_iter().map(|host| (format!("{host}:{port}"), None)).collect(), is_quic));
    }
    let (first, last) = port.split_once('-').unwrap_or((&port, &port));
    let (first, last): (u16, u16) = match (first.parse(), last.parse()) {
        (Ok(first), Ok(last)) if first <= last => (first, last),
        _ => return Err(format!("`{port}` is no port")),
    };
    if last - first >= MOST_PORTS {
        return Err(format!("it has more than {MOST_PORTS} ports"));
    }
    let all =
        (first..=last).flat_map(|port| hosts.iter().map(move |host| (format!("{host}:{port}"), Some(port))));
    Ok((all.collect(), is_quic))
}

/// How the addresses of a line accept.
fn manner_of(
    line: &Line,
    is_tcp: bool,
    group: &mut Group,
    globals: &Globals,
    source: &dyn SourceFiles,
    ledger: &mut Ledger,
) {
    let mut socket = Keys::default();
    let mut certificates = Vec::new();
    let mut versions = Vec::new();
    let mut words = line.from(2).iter();
    while let Some(word) = words.next() {
        let mut next = || words.next().map_or("", String::as_str);
        match word.as_str() {
            "ssl" => group.is_tls = true,
            "crt" => certificate(
                &globals.certificate(next()),
                &mut certificates,
                &mut group.tls,
                source,
                (line.number, &mut *ledger),
            ),
            "crt-list" => crt_list(next(), &mut certificates, globals, source, (line.number, &mut *ledger)),
            "ca-file" => group.tls.set("client_ca", said(&globals.authority(next()))),
            "crl-file" => group.tls.set("crl", said(&globals.authority(next()))),
            "verify" => match next() {
                "optional" => group.tls.set("client_auth", said("optional")),
                "none" => group.tls.set("client_auth", said("none")),
                _ => {}
            },
            "alpn" | "npn" => {
                let names = next();
                let known = [("http/1.1", "h1"), ("h2", "h2"), ("h3", "h3")];
                versions = known
                    .into_iter()
                    .filter(|(name, _)| names.split(',').any(|one| one == *name))
                    .map(|(_, version)| version)
                    .collect();
            }
            "proto" if next() == "h2" => versions = vec!["h2"],
            "accept-proxy" => group.keys.set("accept_proxy", "[\"0.0.0.0/0\", \"::/0\"]"),
            "interface" => group.keys.set("interface", said(next())),
            "mode" => match next() {
                mode if (3..5).contains(&mode.len())
                    && mode.bytes().all(|digit| (b'0'..b'8').contains(&digit)) =>
                {
                    socket.set("mode", said(&format!("{mode:0>4}")));
                }
                mode => ledger.unsupported(line.number, format!("`mode {mode}` is not octal")),
            },
            "user" | "uid" => socket.set("owner", said(next())),
            "group" | "gid" => socket.set("group", said(next())),
            "ssl-min-ver" => version(next(), group, line, ledger),
            "no-tls-tickets" => group.tls.set("tickets", "false"),
            "tls-ticket-keys" => group.tls.set("ticket_keys", said(next())),
            "allow-0rtt" => {
                group.tls.set("early_data", "true");
                ledger.approximate(line.number, "`allow-0rtt`: over HTTP/3 alone");
            }
            other => remaining(other, &mut next, line, ledger),
        }
    }
    if !socket.is_empty() && line.word(1).contains(['/', '@']) {
        group.keys.set("unix_socket", socket.inline());
    }
    settle_tls(group, certificates, globals, line, ledger);
    if !is_tcp {
        if group.is_tls && versions.is_empty() {
            ledger.approximate(
                line.number,
                "without `alpn`, HTTP/2 is spoken too (`http`), which HAProxy does since 2.8",
            );
        }
        group.versions = versions;
    }
}

/// What the certificates and all the rest come to.
fn settle_tls(
    group: &mut Group,
    certificates: Vec<String>,
    globals: &Globals,
    line: &Line,
    ledger: &mut Ledger,
) {
    if !group.is_tls {
        group.tls = Keys::default();
        return;
    }
    match group.tls.get("client_auth") {
        Some("\"none\"") => {
            group.tls.remove("client_ca");
            group.tls.remove("client_auth");
        }
        Some(_) if !group.tls.has("client_ca") => group.tls.remove("client_auth"),
        _ => {}
    }
    if group.tls.has("client_ca") && !line.words.iter().any(|word| word == "verify") {
        // Without `verify` nobody is asked for a certificate.
        group.tls.remove("client_ca");
        group.tls.remove("crl");
    }
    let mut tls = Keys::default();
    match (certificates.is_empty(), group.tls.has("certificate_folder")) {
        (true, false) => {
            tls.set("certificate_folder", said(&format!("{}/certificates", globals.folder)));
            ledger.unsupported(
                line.number,
                "no certificate is known: handshakes fail until one is put into `certificate_folder`",
            );
        }
        (true, true) => {}
        (false, _) => tls.set("certificates", format!("[{}]", certificates.join(", "))),
    }
    group.tls.entries().iter().for_each(|(key, value)| tls.set(key, value.clone()));
    if let Some(version) = globals.min_version.filter(|_| !tls.has("min_version")) {
        tls.set("min_version", said(version));
    }
    if globals.no_tickets {
        tls.set("tickets", "false");
    }
    group.tls = tls;
    if !line.words.iter().any(|word| word == "strict-sni") {
        ledger.exact(line.number, "the first certificate is for names that no other one is for");
    }
}

fn version(text: &str, group: &mut Group, line: &Line, ledger: &mut Ledger) {
    match text {
        "TLSv1.3" => group.tls.set("min_version", said("1.3")),
        "TLSv1.2" => group.tls.set("min_version", said("1.2")),
        _ => ledger.approximate(line.number, format!("`{text}`: TLS 1.2 is the oldest that is spoken")),
    }
}

/// Keywords that have no key of their own.
fn remaining<'l>(word: &str, next: &mut dyn FnMut() -> &'l str, line: &Line, ledger: &mut Ledger) {
    let number = line.number;
    match word {
        "name" | "id" | "backlog" | "nice" | "process" | "thread" | "shards" | "tcp-ut" | "mss"
        | "maxlen" | "gid-mode" => {
            next();
            let note = format!("`{word}`: workers share all sockets, with the system's settings");
            match word {
                "name" | "id" => ledger.exact(number, ""),
                _ => ledger.approximate(number, note),
            }
        }
        "v4v6"
        | "v6only"
        | "prefer-client-ciphers"
        | "no-sslv3"
        | "no-tlsv10"
        | "no-tlsv11"
        | "no-ca-names"
        | "generate-certificates"
        | "tfo"
        | "defer-accept" => match word {
            "generate-certificates" => ledger.unsupported(number, "`generate-certificates`: none are made"),
            "tfo" | "defer-accept" | "no-ca-names" => {
                ledger.approximate(number, format!("`{word}`: with the system's settings"))
            }
            _ => ledger.exact(number, ""),
        },
        "ciphers" | "ciphersuites" | "curves" | "ecdhe" | "sigalgs" | "client-sigalgs" | "ssl-max-ver" => {
            next();
            ledger.approximate(
                number,
                format!("`{word}`: `tls.ciphers` is a policy, by default strong suites with forward secrecy"),
            );
        }
        "no-tlsv12" | "no-tlsv13" | "force-sslv3" | "force-tlsv10" | "force-tlsv11" | "force-tlsv12"
        | "force-tlsv13" => {
            ledger.approximate(
                number,
                format!("`{word}`: TLS 1.2 and 1.3 are spoken, from `tls.min_version` on"),
            );
        }
        "strict-sni" => {
            ledger.unsupported(number, "`strict-sni`: the first certificate is for everyone else")
        }
        "maxconn" => {
            next();
            ledger.approximate(number, "`maxconn`: `max_connections` is one of the whole listener");
        }
        "transparent" => ledger.unsupported(number, "`transparent`: addresses of others are not bound"),
        "accept-netscaler-cip" => {
            next();
            ledger
                .unsupported(number, "`accept-netscaler-cip`: clients are named by the PROXY protocol alone");
        }
        "level" | "severity-output" | "crt-ignore-err" | "ca-ignore-err" | "ca-sign-file"
        | "ca-sign-pass" | "ca-verify-file" | "namespace" | "quic-cc-algo" | "proto" | "ocsp-update"
        | "quic-socket" | "ssl-max-version" => {
            if word != "proto" {
                next();
            }
            ledger.approximate(number, format!("`{word}` is not looked at"));
        }
        other => ledger.unsupported(number, format!("`{other}` is not known here")),
    }
}

/// A certificate, or a folder of them.
fn certificate(
    path: &str,
    certificates: &mut Vec<String>,
    tls: &mut Keys,
    source: &dyn SourceFiles,
    (line, ledger): (usize, &mut Ledger),
) {
    let is_file = |path: &str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').is_some_and(|(_, end)| matches!(end, "pem" | "crt" | "cer" | "cert"))
    };
    let inside = source.matching(&format!("{}/*", path.trim_end_matches('/')));
    let files: Vec<&String> = inside
        .iter()
        .filter(|path| !path.ends_with(".key") && !path.ends_with(".ocsp") && !path.ends_with(".issuer"))
        .collect();
    if !files.is_empty() {
        for file in files {
            one_certificate(file, certificates, source);
        }
        ledger.approximate(line, "`crt`: a folder, whose files are listed as they are now");
    } else if is_file(path) || super::words::has_variable(path) {
        one_certificate(path, certificates, source);
    } else {
        tls.set("certificate_folder", said(path));
        ledger.approximate(
            line,
            "`crt`: a folder (`certificate_folder`), of which files that end in `.pem` are taken",
        );
    }
}

/// Adds a certificate, whose key is in the same file, or beside it in one that ends in `.key`.
fn one_certificate(path: &str, certificates: &mut Vec<String>, source: &dyn SourceFiles) {
    let key = match source.read(path) {
        Ok(text) if !text.contains("PRIVATE KEY") => format!("{path}.key"),
        _ => path.to_owned(),
    };
    let mut entry = Keys::default();
    entry.set("cert", said(path));
    entry.set("key", said(&key));
    let entry = entry.inline();
    if !certificates.contains(&entry) {
        certificates.push(entry);
    }
}

fn crt_list(
    path: &str,
    certificates: &mut Vec<String>,
    globals: &Globals,
    source: &dyn SourceFiles,
    (line, ledger): (usize, &mut Ledger),
) {
    let text = match source.read(path) {
        Ok(text) => text,
        Err(why) => return ledger.unsupported(line, format!("`crt-list`: {why}")),
    };
    let mut differs = false;
    for entry in text.lines().map(str::trim).filter(|entry| !entry.is_empty() && !entry.starts_with('#')) {
        let mut words = entry.split_whitespace();
        one_certificate(&globals.certificate(words.next().unwrap_or_default()), certificates, source);
        differs |= words.next().is_some();
    }
    let note = if differs {
        "; names are those of each certificate, and its settings those of the listener"
    } else {
        ""
    };
    ledger.approximate(line, format!("`crt-list`: its certificates as they are listed now{note}"));
}
