//! Addresses and networks as HAProxy writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A network as Weir takes it: `10.0.0.0/255.0.0.0` and `10.1.2.3/8` become `10.0.0.0/8`. `None` for what is
/// no network, such as a name.
pub fn network(text: &str) -> Option<String> {
    let (address, mask) = match text.split_once('/') {
        Some((address, mask)) => (address, Some(mask)),
        None => (text, None),
    };
    match address.parse().ok()? {
        IpAddr::V4(address) => {
            let bits = match mask {
                None => 32,
                Some(mask) => match mask.parse::<Ipv4Addr>() {
                    Ok(mask) => contiguous(mask)?,
                    Err(_) => mask.parse().ok().filter(|bits| *bits <= 32)?,
                },
            };
            let kept = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            let base = Ipv4Addr::from(u32::from(address) & kept);
            Some(if bits == 32 { base.to_string() } else { format!("{base}/{bits}") })
        }
        IpAddr::V6(address) => {
            let bits: u32 = match mask {
                None => 128,
                Some(mask) => mask.parse().ok().filter(|bits| *bits <= 128)?,
            };
            let kept = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            let base = Ipv6Addr::from(u128::from(address) & kept);
            Some(if bits == 128 { base.to_string() } else { format!("{base}/{bits}") })
        }
    }
}

fn contiguous(mask: Ipv4Addr) -> Option<u32> {
    let mask = u32::from(mask);
    (mask.leading_ones() + mask.trailing_zeros() >= 32).then(|| mask.leading_ones())
}

/// Where something listens or is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host, or an address without brackets, and its port; an empty host stands for all addresses, and no
    /// port for the one that the client asked for.
    Host(String, Option<String>),
    /// A file of a Unix socket.
    Unix(String),
    /// A Unix socket in the abstract namespace.
    Abstract(String),
}

/// The place of an address with its prefix, such as `ipv4@10.0.0.1:80` or `unix@/run/a.sock`; and whether it
/// is for QUIC. `Err` says what Weir can't listen at or reach.
pub fn place(text: &str) -> Result<(Endpoint, bool), String> {
    let (prefix, rest) = match text.split_once('@') {
        Some((prefix, rest)) if !prefix.contains(['/', ':', '.']) => (prefix, rest),
        _ => ("", text),
    };
    let quic = matches!(prefix, "quic4" | "quic6");
    let place = match prefix {
        "" | "ipv4" | "ipv6" | "tcp" | "tcp4" | "tcp6" | "stream+ipv4" | "stream+ipv6" | "quic4"
        | "quic6" => {
            if prefix.is_empty() && rest.starts_with('/') {
                Endpoint::Unix(rest.to_owned())
            } else {
                let (host, port) = split(rest);
                let host = if prefix.ends_with('6') && matches!(host.as_str(), "" | "*") {
                    "::".to_owned()
                } else {
                    host
                };
                Endpoint::Host(host, port)
            }
        }
        "unix" | "stream+unix" => Endpoint::Unix(rest.to_owned()),
        "abns" | "stream+abns" | "abnsz" => Endpoint::Abstract(rest.to_owned()),
        "fd" | "sockpair" => return Err(format!("Weir takes no socket from others (`{prefix}@`)")),
        other => return Err(format!("there is nothing like `{other}@` here")),
    };
    Ok((place, quic))
}

/// Host and port: the last colon divides them, so that `:::80` is `::` and 80.
fn split(text: &str) -> (String, Option<String>) {
    if let Some(inner) = text.strip_prefix('[') {
        let (host, rest) = inner.split_once(']').unwrap_or((inner, ""));
        return (host.to_owned(), rest.strip_prefix(':').filter(|port| !port.is_empty()).map(str::to_owned));
    }
    match text.rsplit_once(':') {
        Some((host, port)) => (host.to_owned(), (!port.is_empty()).then(|| port.to_owned())),
        None => (text.to_owned(), None),
    }
}

/// An address in brackets where it needs them.
pub fn bracketed(host: &str) -> String {
    if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_written_with_their_prefix() {
        for (from, to) in [
            ("10.1.2.3", Some("10.1.2.3")),
            ("10.1.2.3/8", Some("10.0.0.0/8")),
            ("10.1.2.3/255.255.0.0", Some("10.1.0.0/16")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("2001:db8::1/32", Some("2001:db8::/32")),
            ("::1", Some("::1")),
            ("10.0.0.0/255.0.255.0", None),
            ("10.0.0.0/33", None),
            ("a.example", None),
        ] {
            assert_eq!(network(from).as_deref(), to, "{from}");
        }
    }

    #[test]
    fn places_are_read_with_their_prefixes() {
        let host = |host: &str, port: &str| Endpoint::Host(host.to_owned(), Some(port.to_owned()));
        for (from, to) in [
            (":80", host("", "80")),
            ("*:80", host("*", "80")),
            (":::80", host("::", "80")),
            ("[::1]:80", host("::1", "80")),
            ("ipv4@10.0.0.1:80", host("10.0.0.1", "80")),
            ("ipv6@:80", host("::", "80")),
            ("app.internal", Endpoint::Host("app.internal".to_owned(), None)),
            ("/run/a.sock", Endpoint::Unix("/run/a.sock".to_owned())),
            ("unix@/run/a.sock", Endpoint::Unix("/run/a.sock".to_owned())),
            ("abns@web", Endpoint::Abstract("web".to_owned())),
        ] {
            assert_eq!(place(from), Ok((to, false)), "{from}");
        }
        assert_eq!(place("quic4@:443"), Ok((host("", "443"), true)));
        place("fd@3").expect_err("a descriptor");
    }
}
