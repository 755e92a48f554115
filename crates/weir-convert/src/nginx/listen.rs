//! `listen`: addresses, and which servers are at each of them.

use super::ledger::NginxLedger;
use super::scope::NginxScope;
use super::tree::NginxDirective;
use crate::DirectiveVerdict;

/// What one `listen` says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListenAt {
    /// As Weir's `bind` has it.
    address: String,
    is_default: bool,
    flags: ListenFlags,
}

/// What holds for all servers at an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenFlags {
    /// `ssl`
    pub tls: bool,
    /// `http2`
    pub http2: bool,
    /// `quic`
    pub quic: bool,
    /// `proxy_protocol`
    pub proxy_protocol: bool,
    /// `udp`
    pub udp: bool,
}

impl ListenFlags {
    fn with(self, other: ListenFlags) -> ListenFlags {
        ListenFlags {
            tls: self.tls || other.tls,
            http2: self.http2 || other.http2,
            quic: self.quic || other.quic,
            proxy_protocol: self.proxy_protocol || other.proxy_protocol,
            udp: self.udp || other.udp,
        }
    }
}

/// Addresses with the same servers: a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenGroup {
    /// Addresses, as `bind` has them.
    pub binds: Vec<String>,
    /// What holds for all of them.
    pub flags: ListenFlags,
    /// The servers in their order, as places in the list of all servers.
    pub servers: Vec<usize>,
    /// The server for requests that no name is for.
    pub default: usize,
}

impl ListenGroup {
    /// The port of its first address, if it has one.
    pub fn port(&self) -> Option<u16> {
        self.binds.iter().find_map(|bind| bind.rsplit_once(':')?.1.parse().ok())
    }
}

/// Which servers are at which addresses. Servers in the order of the file; each with its block.
pub fn groups(servers: &[&NginxDirective], is_stream: bool, ledger: &mut NginxLedger) -> Vec<ListenGroup> {
    let mut addresses: Vec<(String, ListenFlags, Vec<usize>, Option<usize>)> = Vec::new();
    for (number, server) in servers.iter().enumerate() {
        let scope = NginxScope::default().within(server.inner());
        let mut listens: Vec<ListenAt> = Vec::new();
        for directive in scope.own("listen") {
            listens.extend(listen(directive, is_stream, ledger));
        }
        if scope.own("listen").is_empty() && !is_stream {
            ledger.unsaid("listen", DirectiveVerdict::Exact, "a server without one listens at port 80");
            let (address, flags) = ("0.0.0.0:80".to_owned(), ListenFlags::default());
            listens.push(ListenAt { address, is_default: false, flags });
        }
        // Until nginx 1.25 a server could say it for all of its addresses.
        if let Some(ssl) = scope.own("ssl").last().filter(|_| !is_stream) {
            ledger.exact(ssl, "`tls` of its listeners");
            listens.iter_mut().for_each(|listen| listen.flags.tls |= ssl.word(0) == "on");
        }
        for listen in listens {
            let at = addresses
                .iter()
                .position(|(address, flags, ..)| *address == listen.address && flags.udp == listen.flags.udp);
            let at = at.unwrap_or_else(|| {
                addresses.push((
                    listen.address.clone(),
                    ListenFlags { udp: listen.flags.udp, ..ListenFlags::default() },
                    Vec::new(),
                    None,
                ));
                addresses.len() - 1
            });
            let (_, flags, of_address, default) = &mut addresses[at];
            *flags = flags.with(listen.flags);
            if !of_address.contains(&number) {
                of_address.push(number);
            }
            if listen.is_default {
                *default = default.or(Some(number));
            }
        }
    }
    let mut groups: Vec<ListenGroup> = Vec::new();
    for (address, flags, servers, default) in addresses {
        let Some(first) = servers.first().copied() else { continue };
        let default = default.unwrap_or(first);
        let same = groups.iter_mut().find(|group| {
            group.flags == flags
                && group.servers == servers
                && group.default == default
                && ports_agree(&group.binds, &address)
        });
        match same {
            Some(group) => group.binds.push(address),
            None => groups.push(ListenGroup { binds: vec![address], flags, servers, default }),
        }
    }
    groups
}

/// Whether an address has the port of the others, so that they are one listener with a good name.
fn ports_agree(binds: &[String], address: &str) -> bool {
    let port = |text: &str| text.rsplit_once(':').map(|(_, port)| port.to_owned());
    binds.iter().all(|bind| port(bind) == port(address))
}

/// The addresses of one `listen`: two where an IPv6 address takes IPv4 as well.
fn listen(directive: &NginxDirective, is_stream: bool, ledger: &mut NginxLedger) -> Vec<ListenAt> {
    let mut addresses = match address_of(directive.word(0)) {
        Ok(address) => vec![address],
        Err(why) => {
            ledger.unsupported(directive, format!("{why}: it is not listened there"));
            return Vec::new();
        }
    };
    let mut flags = ListenFlags::default();
    let mut is_default = false;
    let mut left_out = Vec::new();
    for word in directive.words.iter().skip(1) {
        match word.as_str() {
            "default_server" | "default" => is_default = true,
            "ssl" => flags.tls = true,
            "http2" if !is_stream => flags.http2 = true,
            "quic" if !is_stream => (flags.quic, flags.tls) = (true, true),
            "proxy_protocol" => flags.proxy_protocol = true,
            "udp" if is_stream => flags.udp = true,
            "ipv6only=off" => {
                if let Some(port) = addresses[0].strip_prefix("[::]:") {
                    addresses.push(format!("0.0.0.0:{port}"));
                }
            }
            "reuseport" | "bind" | "deferred" | "ipv6only=on" => {}
            other => {
                let name = other.split('=').next().unwrap_or_default();
                match name {
                    "backlog" | "rcvbuf" | "sndbuf" | "accept_filter" | "fastopen" | "so_keepalive"
                    | "setfib" => {
                        left_out.push(other.to_owned());
                    }
                    _ => {
                        ledger.unsupported(directive, format!("`{other}` is not known here: left out"));
                    }
                }
            }
        }
    }
    match left_out.is_empty() {
        true => ledger.exact(directive, "`bind` of a listener"),
        false => {
            let note =
                format!("`bind` of a listener; {} are the system's or Weir's own", left_out.join(", "));
            ledger.approximate(directive, note);
        }
    }
    if addresses[0].starts_with("unix:") {
        ledger
            .approximate(directive, "`bind`; the socket has mode 0660 here and 0666 by nginx: `unix_socket`");
    }
    addresses.into_iter().map(|address| ListenAt { address, is_default, flags }).collect()
}

/// An address as `bind` has it.
fn address_of(text: &str) -> Result<String, String> {
    if text.starts_with("unix:") {
        return Ok(text.to_owned());
    }
    if let Ok(port) = text.parse::<u16>() {
        return Ok(format!("0.0.0.0:{port}"));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !text.ends_with(']') => (host, port),
        _ => (text, "80"),
    };
    let port: u16 = port.parse().map_err(|_| format!("`{text}` has no port that is one number"))?;
    let host = match host {
        "*" | "" => "0.0.0.0",
        "localhost" => "127.0.0.1",
        host => host,
    };
    let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_address = match inner {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => host.parse::<std::net::Ipv4Addr>().is_ok(),
    };
    match is_address {
        true => Ok(format!("{host}:{port}")),
        false => Err(format!("`{host}` is a name, and Weir listens at addresses")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_that_nginx_listens_at() {
        for (nginx, weir) in [
            ("80", "0.0.0.0:80"),
            ("*:8080", "0.0.0.0:8080"),
            ("10.0.0.1", "10.0.0.1:80"),
            ("[::]:443", "[::]:443"),
            ("[::1]", "[::1]:80"),
            ("localhost:81", "127.0.0.1:81"),
            ("unix:/run/x.sock", "unix:/run/x.sock"),
        ] {
            assert_eq!(address_of(nginx).as_deref(), Ok(weir), "{nginx}");
        }
        assert!(address_of("shop.example:80").is_err() && address_of("10.0.0.1:80-90").is_err());
    }
}
