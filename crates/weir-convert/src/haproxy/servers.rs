//! `server`, `server-template` and `default-server`.

use std::collections::BTreeMap;

use super::ledger::Ledger;
use super::networks::{Endpoint, bracketed, place};
use super::output::{Keys, said};
use super::proxies::Proxy;
use super::sections::Line;

/// A server with its keywords; a flag has an empty text.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its line.
    pub line: usize,
    /// Its name.
    name: String,
    /// Its address as written.
    address: String,
    /// Whether it stands for all addresses of a name.
    is_template: bool,
    /// Keywords and their arguments.
    set: BTreeMap<String, String>,
}

/// Keywords without an argument.
const FLAGS: &[&str] = &[
    "agent-check",
    "allow-0rtt",
    "backup",
    "check",
    "check-send-proxy",
    "check-ssl",
    "disabled",
    "enabled",
    "force-sslv3",
    "force-tlsv10",
    "force-tlsv11",
    "force-tlsv12",
    "force-tlsv13",
    "non-stick",
    "send-proxy",
    "send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
    "ssl",
    "ssl-reuse",
    "stick",
    "tfo",
    "tls-tickets",
    "check-via-socks4",
    "strict-maxconn",
    "no-backup",
    "check-reuse-pool",
];

/// What is said of keywords that are not converted.
const OTHERS: &[(&str, bool, &str)] = &[
    ("allow-0rtt", false, "no early data is sent to backends"),
    ("check-sni", true, "as for traffic"),
    ("check-alpn", true, "as for traffic"),
    ("check-proto", false, "probes speak what the pool speaks"),
    ("check-send-proxy", true, "as for traffic"),
    ("ciphers", false, "suites are those of Weir"),
    ("ciphersuites", false, "suites are those of Weir"),
    ("curves", false, "groups are those of Weir"),
    ("sigalgs", false, "signatures are those of Weir"),
    ("ssl-min-ver", false, "TLS 1.2 and 1.3 are spoken"),
    ("ssl-max-ver", false, "TLS 1.2 and 1.3 are spoken"),
    ("init-addr", false, "a name without an address keeps nothing from starting"),
    ("id", true, ""),
    ("maxqueue", false, "the pool has one queue: `queue.max`"),
    ("minconn", false, "`max_connections` does not grow with the load"),
    ("max-reuse", false, "connections are reused without a limit"),
    ("namespace", false, "network namespaces are not entered"),
    ("pool-low-conn", true, "none needed"),
    ("pool-max-conn", false, "`keep_alive.max` of the pool"),
    ("pool-purge-delay", false, "`keep_alive.idle` of the pool"),
    ("redir", false, "requests are not redirected to servers"),
    ("resolve-net", false, "the order of a name's addresses is that of the answers"),
    ("resolve-opts", false, "addresses that appear twice count once"),
    ("resolve-prefer", false, "both families are tried in turn (RFC 8305)"),
    ("tcp-ut", false, "`timeout` of the pool bounds silence"),
    ("tfo", false, "TCP fast open is not used"),
    ("track", false, "it is probed itself"),
    ("ws", true, "WebSocket goes over HTTP/1.1"),
];

/// The servers of a proxy, with what `default-server` says before each.
pub fn servers(proxy: &Proxy<'_>, ledger: &mut Ledger) -> Vec<Server> {
    let mut defaults = BTreeMap::new();
    let mut servers = Vec::new();
    for line in &proxy.lines {
        match line.word(0) {
            "default-server" => {
                read(line, 1, &mut defaults, ledger);
                ledger.exact(line.number, "what it says holds for the servers behind it");
            }
            "server" if line.words.len() > 2 => {
                let mut set = defaults.clone();
                read(line, 3, &mut set, ledger);
                let address = line.word(2).to_owned();
                let name = line.word(1).to_owned();
                servers.push(Server { line: line.number, name, address, is_template: false, set });
            }
            "server-template" if line.words.len() > 3 => {
                let mut set = defaults.clone();
                read(line, 4, &mut set, ledger);
                let address = line.word(3).to_owned();
                let name = line.word(1).to_owned();
                servers.push(Server { line: line.number, name, address, is_template: true, set });
            }
            "server" | "server-template" => ledger.unsupported(line.number, "it has no address: left out"),
            _ => {}
        }
    }
    servers
}

fn read(line: &Line, from: usize, set: &mut BTreeMap<String, String>, ledger: &mut Ledger) {
    let mut left = line.from(from).iter();
    while let Some(word) = left.next() {
        if let Some(off) =
            word.strip_prefix("no-").filter(|off| !off.starts_with("sslv") && !off.starts_with("tlsv1"))
        {
            set.remove(off);
            continue;
        }
        let value = if word == "source" {
            let mut source = left.next().cloned().unwrap_or_default();
            let mut ahead = left.clone();
            while let (Some(key @ ("usesrc" | "interface")), Some(value)) =
                (ahead.next().map(String::as_str), ahead.next())
            {
                source = format!("{source} {key} {value}");
                left = ahead.clone();
            }
            source
        } else if FLAGS.contains(&word.as_str()) || word.starts_with("no-") {
            String::new()
        } else {
            left.next().cloned().unwrap_or_default()
        };
        set.insert(word.clone(), value);
        if let Some((_, exact, note)) = OTHERS.iter().find(|(name, ..)| name == word) {
            let note = if note.is_empty() { String::new() } else { format!("`{word}`: {note}") };
            if *exact { ledger.exact(line.number, note) } else { ledger.approximate(line.number, note) }
        } else if !KNOWN.contains(&word.as_str()) && !word.starts_with("no-") && !word.starts_with("force-") {
            ledger.unsupported(line.number, format!("`{word}` is not known here"));
        }
    }
}

/// Keywords that something is made of.
const KNOWN: &[&str] = &[
    "addr",
    "agent-addr",
    "agent-check",
    "agent-inter",
    "agent-port",
    "agent-send",
    "alpn",
    "backup",
    "ca-file",
    "check",
    "check-ssl",
    "cookie",
    "crl-file",
    "crt",
    "disabled",
    "downinter",
    "enabled",
    "error-limit",
    "fall",
    "fastinter",
    "inter",
    "maxconn",
    "observe",
    "on-error",
    "on-marked-down",
    "on-marked-up",
    "port",
    "proto",
    "proxy-v2-options",
    "resolvers",
    "rise",
    "send-proxy",
    "send-proxy-v2",
    "send-proxy-v2-ssl",
    "send-proxy-v2-ssl-cn",
    "slowstart",
    "sni",
    "source",
    "ssl",
    "ssl-reuse",
    "stick",
    "tls-tickets",
    "verify",
    "verifyhost",
    "weight",
    "non-stick",
];

/// An address as Weir writes it, so that each is found again; names stay as they are.
fn in_one_form(address: String) -> String {
    address.parse::<std::net::SocketAddr>().map_or(address, |address| address.to_string())
}

impl Server {
    /// Whether a keyword is there.
    pub fn has(&self, keyword: &str) -> bool {
        self.set.contains_key(keyword)
    }

    /// What a keyword says.
    pub fn get(&self, keyword: &str) -> Option<&str> {
        self.set.get(keyword).map(String::as_str)
    }

    /// Its address and its entry in `backends`; `port` is the one that clients ask for, where it is one
    /// alone. `Err` says why it can't be there.
    pub fn backend(&self, port: Option<u16>, ledger: &mut Ledger) -> Result<(String, String), String> {
        let mut keys = Keys::default();
        let address = self.address(port, ledger)?;
        let is_service = address.starts_with('_');
        keys.set("address", said(&address));
        if self.is_template && !is_service {
            keys.set("resolve", said("all"));
        }
        let mut weight = self.get("weight").map(str::to_owned);
        if self.has("disabled") {
            weight = Some("0".to_owned());
            ledger.approximate(
                self.line,
                "`disabled`: its `weight` is 0, and `weir enable` does not change that",
            );
        }
        if let Some(weight) = weight.filter(|weight| weight != "1") {
            match weight.parse::<u16>() {
                Ok(number @ 0..=256) if !is_service => keys.set("weight", number.to_string()),
                Ok(_) => ledger.approximate(self.line, "`weight`: as the records say"),
                Err(_) => {
                    ledger.unsupported(self.line, format!("`weight {weight}` is no weight from 0 to 256"))
                }
            }
        }
        match self.get("maxconn").map(str::parse::<u64>) {
            None | Some(Ok(0)) => {}
            Some(Ok(most)) => keys.set("max_connections", most.min(10_000_000).to_string()),
            Some(Err(_)) => ledger.unsupported(self.line, "`maxconn` is no number"),
        }
        if self.has("backup") && !is_service {
            keys.set("backup", "true");
        }
        let entry = if keys.entries().len() == 1 { said(&address) } else { keys.inline() };
        Ok((address, entry))
    }

    /// Its name, and its entry in the `backends` of a pool that has no other; `None` in place of the entry if
    /// it is disabled.
    pub fn alone(&self, port: Option<u16>) -> Option<(String, Option<String>)> {
        let mut plain = self.clone();
        ["weight", "backup"].iter().for_each(|keyword| {
            plain.set.remove(*keyword);
        });
        let (_, entry) = plain.backend(port, &mut Ledger::default()).ok().filter(|_| !self.is_template)?;
        Some((self.name.clone(), (!self.has("disabled")).then_some(entry)))
    }

    fn address(&self, port: Option<u16>, ledger: &mut Ledger) -> Result<String, String> {
        let (host, given) = match place(&self.address)?.0 {
            Endpoint::Unix(path) => return Ok(format!("unix:{path}")),
            Endpoint::Abstract(name) => return Ok(format!("unix:@{name}")),
            Endpoint::Host(host, port) => (host, port),
        };
        if host.starts_with('_') {
            return Ok(host);
        }
        if super::destinations::is_open(&self.address) {
            let note =
                "`0.0.0.0`: HAProxy connects to the address that the client came to, Weir to 127.0.0.1";
            ledger.approximate(self.line, note);
        }
        let host = match host.as_str() {
            "" | "*" | "0.0.0.0" => "127.0.0.1".to_owned(),
            _ => bracketed(&host),
        };
        if host.chars().any(|c| c.is_ascii_alphabetic()) && !host.starts_with('[') && !self.has("resolvers") {
            ledger.approximate(
                self.line,
                "the name is looked up again while Weir runs, HAProxy does that once",
            );
        }
        let is_host =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']' | '%');
        if !super::words::has_variable(&host) && !host.chars().all(is_host) {
            return Err(format!("`{host}` is no host"));
        }
        let last = host.rsplit('.').next().unwrap_or_default();
        if last.bytes().all(|byte| byte.is_ascii_digit()) && host.parse::<std::net::Ipv4Addr>().is_err() {
            return Err(format!("`{host}` is no address"));
        }
        let relative = given.as_deref().is_some_and(|port| port.starts_with(['+', '-']));
        match (given, port) {
            (Some(given), _) if super::words::has_variable(&given) => Ok(format!("{host}:{given}")),
            (Some(_), _) if relative => {
                Err("a port that is counted from that of the client is not in Weir".to_owned())
            }
            (Some(given), _) => match given.parse::<u16>() {
                Ok(port) if port > 0 => Ok(in_one_form(format!("{host}:{port}"))),
                _ => Err(format!("`{given}` is no port")),
            },
            (None, Some(port)) => Ok(in_one_form(format!("{host}:{port}"))),
            (None, None) => Err("it has no port, and clients come to several".to_owned()),
        }
    }

    /// Whether it is reached at a Unix socket, which has no ports.
    pub fn is_unix(&self) -> bool {
        matches!(place(&self.address), Ok((Endpoint::Unix(_) | Endpoint::Abstract(_), _)))
    }

    /// Which form of the PROXY protocol it gets.
    pub fn send_proxy(&self) -> Option<&'static str> {
        if ["send-proxy-v2", "send-proxy-v2-ssl", "send-proxy-v2-ssl-cn"]
            .iter()
            .any(|keyword| self.has(keyword))
        {
            Some("v2")
        } else {
            self.has("send-proxy").then_some("v1")
        }
    }

    /// What a pool says once for all of its servers, to find those that differ.
    pub fn manner(&self) -> Vec<(String, String)> {
        let mut manner: Vec<(String, String)> =
            ["ssl", "verify", "ca-file", "crl-file", "crt", "sni", "verifyhost", "alpn", "proto", "source"]
                .iter()
                .filter_map(|keyword| Some(((*keyword).to_owned(), self.get(keyword)?.to_owned())))
                .collect();
        manner.extend(self.send_proxy().map(|form| ("send-proxy".to_owned(), form.to_owned())));
        manner
    }
}
