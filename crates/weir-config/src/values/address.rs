//! Kinds of text: addresses, networks, files.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

use super::unix::{self, unix_name};
use crate::keys::Shape;
use crate::report::quote;
use crate::units::{Refused, refuse};

/// A backend: host name, IPv4 or bracketed IPv6, and port; a Unix socket; or the name of a service. An
/// address may lack the port if the pool's check finds that the port is known otherwise.
pub(crate) static BACKEND_ADDRESS: Shape = Shape::new("a backend", "10.0.0.1:8080", backend);

/// A network or a single address; `unix:` for Unix sockets.
pub(crate) static NETWORK: Shape = Shape::new("a network or address", "10.0.0.0/8", network).from_files();

/// A file name.
pub(crate) static FILE: Shape = Shape::new("a file name", "/etc/weir/admin.token", file);

/// A file of a certificate or a key.
pub(crate) static PEM_FILE: Shape = Shape::new("a file name", "shop.pem", file);
/// A file that holds a private key.
pub(crate) static KEY_FILE: Shape = Shape::new("a file name", "shop.key", file);

/// A folder.
pub(crate) static FOLDER: Shape = Shape::new("a folder", "/var/lib/weir/acme", file);

/// Parses an address of this machine and a port.
pub(crate) fn bind(text: &str) -> Result<String, Refused> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(address.to_string());
    }
    let message = format!("{} is not an address and port", quote(text));
    if let Some(hint) = unix::elsewhere_written(text).or_else(|| url(text)) {
        return refuse(message, hint);
    }
    if text.parse::<u16>().is_ok() {
        return refuse(
            message,
            format!("did you mean \"0.0.0.0:{text}\" (all of IPv4) or \"[::]:{text}\" (all of IPv6)?"),
        );
    }
    if let Some((address, port)) = unbracketed(text) {
        return refuse(message, format!("an IPv6 address stands in brackets: \"[{address}]:{port}\""));
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
        return refuse(message, format!("add the port: \"{}\"", SocketAddr::new(address, 8080)));
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return refuse(
            message,
            "expected an address of this machine and a port, such as \"0.0.0.0:8080\" or \"[::]:8080\"",
        );
    };
    let Ok(port_number) = port.parse::<u16>() else {
        return refuse(message, format!("{} is not a port: expected 0 to 65535", quote(port)));
    };
    match host {
        "" | "*" => refuse(
            message,
            format!(
                "did you mean \"0.0.0.0:{port_number}\" (all of IPv4) or \"[::]:{port_number}\" (all of IPv6)?"
            ),
        ),
        "localhost" => refuse(
            message,
            format!("did you mean \"127.0.0.1:{port_number}\"? A bind is an address, never a name"),
        ),
        host => match host.trim_matches(['[', ']']).parse::<Ipv6Addr>() {
            Ok(address) => {
                refuse(message, format!("an IPv6 address stands in brackets: \"[{address}]:{port_number}\""))
            }
            Err(_) => refuse(
                message,
                format!("{} is not an address of this machine; a bind is never a name", quote(host)),
            ),
        },
    }
}

/// `::1:80`, in which the last group was probably meant as a port.
fn unbracketed(text: &str) -> Option<(Ipv6Addr, u16)> {
    let (address, port) = text.rsplit_once(':')?;
    Some((address.parse().ok()?, port.parse().ok()?))
}

/// The hint for a URL; `None` if the text is not one.
fn url(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let rest = rest.split('/').next().unwrap_or(rest);
    let rest = match scheme {
        "http" if !rest.contains(':') => format!("{rest}:80"),
        _ => rest.to_owned(),
    };
    Some(format!("leave out {}: \"{rest}\"", quote(&format!("{scheme}://"))))
}

/// Whether a backend is given by a service name (RFC 2782): `_http._tcp.app.example`, whose records list
/// hosts, ports and weights.
pub fn is_service(text: &str) -> bool {
    let mut labels = text.split('.');
    let is_underscored = |label: Option<&str>| label.is_some_and(|label| label.starts_with('_'));
    is_underscored(labels.next()) && is_underscored(labels.next()) && !text.contains(':')
}

fn service(text: &str, message: String) -> Result<String, Refused> {
    if let Err(hint) = host_name(text) {
        return refuse(message, hint);
    }
    match text.split('.').nth(2) {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => refuse(message, "expected a service such as \"_http._tcp.app.example\""),
    }
}

fn backend(text: &str) -> Result<String, Refused> {
    let message = format!("{} is not a backend", quote(text));
    if let Some(name) = unix_name(text) {
        return unix::check(text, name);
    }
    if is_service(text) {
        return service(text, message);
    }
    if let Some((name, port)) = text.rsplit_once(':').filter(|(name, _)| is_service(name)) {
        return refuse(message, format!("the records of `{name}` say the ports: leave out \":{port}\""));
    }
    if let Some(hint) = unix::elsewhere_written(text).or_else(|| url(text)) {
        return refuse(message, hint);
    }
    if backend_at(text).is_some_and(|at| at.port() == 0) && !text.ends_with(":0") {
        return Ok(text.to_owned());
    }
    if let Some((address, port)) = unbracketed(text) {
        return refuse(message, format!("an IPv6 address stands in brackets: \"[{address}]:{port}\""));
    }
    if let Ok(address) = text.trim_matches(['[', ']']).parse::<Ipv6Addr>() {
        return refuse(
            message,
            format!("write the address in brackets and add the port: \"[{address}]:8080\""),
        );
    }
    let Some((host, port)) = text.rsplit_once(':') else {
        return refuse(message, format!("add the port: \"{text}:80\"").replace("\"\":", "\"host:"));
    };
    if let Some((address, rest)) = text.split_once(char::is_whitespace)
        && backend(address).is_ok()
    {
        let rest = rest.trim();
        let hint =
            format!("a weight and the like stand in a table: `{{ address = \"{address}\", weight = 2 }}`");
        return refuse(format!("{message}: {} follows the address", quote(rest)), hint);
    }
    match port.parse::<u16>() {
        Ok(0) => return refuse(message, "nothing listens on port 0: expected 1 to 65535"),
        Err(_) if port.is_empty() => return refuse(message, format!("add the port: \"{text}80\"")),
        Ok(_) if port.bytes().all(|b| b.is_ascii_digit()) => {}
        _ => return refuse(message, format!("{} is not a port: expected 1 to 65535", quote(port))),
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return match inner.parse::<Ipv6Addr>() {
            Ok(_) => Ok(text.to_owned()),
            Err(_) => refuse(message, format!("{} is not an IPv6 address", quote(inner))),
        };
    }
    if host.contains(':') {
        return refuse(message, format!("an IPv6 address stands in brackets: \"[{host}]:{port}\""));
    }
    if host.is_empty() {
        return refuse(message, format!("expected a host before the port, such as \"127.0.0.1:{port}\""));
    }
    host_name(host).map_err(|hint| Refused { message, hint })?;
    Ok(text.to_owned())
}

/// Checks a host name (RFC 1123, and `_`, which occurs in service names of container networks) or an IPv4
/// address. `Err` says what is wrong.
pub(crate) fn host_name(host: &str) -> Result<(), String> {
    let digits_and_dots = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if digits_and_dots && host.parse::<Ipv4Addr>().is_err() {
        return Err(format!("{} is not an IPv4 address: expected four numbers from 0 to 255", quote(host)));
    }
    if !host.is_ascii() {
        return Err(format!("write {} in its ASCII form (`xn--…`)", quote(host)));
    }
    if host.len() > 253 {
        return Err("a host name has at most 253 characters".to_owned());
    }
    if let Some(bad) = host.chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_' | '.')) {
        return Err(format!("a host name cannot hold {}", quote(&bad.to_string())));
    }
    for label in host.trim_end_matches('.').split('.') {
        if label.is_empty() {
            return Err("a host name cannot have an empty part between dots".to_owned());
        }
        if label.len() > 63 {
            return Err("a part of a host name has at most 63 characters".to_owned());
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err(format!("{} cannot begin or end with `-`", quote(label)));
        }
    }
    Ok(())
}

/// Stands for clients of Unix sockets in a list of networks: the unspecified address, which no IP peer has.
pub const UNIX_PEERS: IpNet = IpNet::V4(ipnet::Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 32));
/// The word for it.
pub(crate) const UNIX_PEERS_WORD: &str = "unix:";

/// Whether one of `networks` contains `address`; an IPv4-mapped IPv6 address counts as the IPv4 address. A
/// peer at a Unix socket has the unspecified address.
pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    weir_screen::contains(networks, address)
}

/// The socket address of a backend given by an address: port 0 if it has none, and so keeps the client's
/// port. `None` for a host name and a Unix socket.
pub fn backend_at(text: &str) -> Option<SocketAddr> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address);
    }
    let ip = match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok()?.into(),
        None => text.parse::<Ipv4Addr>().ok()?.into(),
    };
    Some(SocketAddr::new(ip, 0))
}

/// Whether a config accepts this as a backend's address.
pub fn is_backend(text: &str) -> bool {
    backend(text).is_ok()
}

/// Whether a backend is given by a host name, which has to be resolved.
pub fn is_host_name(address: &str) -> bool {
    backend_at(address).is_none() && unix_name(address).is_none()
}

/// The reverse of [`backend_at`]: port 0 is left out.
pub fn show_backend(at: SocketAddr) -> String {
    match at {
        SocketAddr::V4(at) if at.port() == 0 => at.ip().to_string(),
        SocketAddr::V6(at) if at.port() == 0 => format!("[{}]", at.ip()),
        at => at.to_string(),
    }
}

/// A backend address in a canonical form: two spellings of the same address become equal.
pub(crate) fn same_backend(address: &str) -> String {
    match backend_at(address) {
        Some(at) => show_backend(at),
        // Paths are case-sensitive.
        None if unix_name(address).is_some() => address.to_owned(),
        None => address.to_ascii_lowercase(),
    }
}

fn network(text: &str) -> Result<String, Refused> {
    if text == UNIX_PEERS_WORD {
        return Ok(text.to_owned());
    }
    if text == "unix" || text.starts_with("unix:") {
        let message = format!("{} is not a network", quote(text));
        return refuse(message, "expected \"unix:\" for all who come by a Unix socket");
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address).to_string());
    }
    if let Ok(network) = text.parse::<IpNet>() {
        if network.trunc() != network {
            return refuse(
                format!("{} has bits set behind its prefix length", quote(text)),
                format!(
                    "did you mean \"{}\", or the single address \"{}\"?",
                    network.trunc(),
                    network.addr()
                ),
            );
        }
        return Ok(network.to_string());
    }
    let message = format!("{} is not a network", quote(text));
    if let Some(path) = text.strip_prefix('@') {
        return refuse(message, format!("did you mean \"@file:{path}\", the lines of that file?"));
    }
    let Some((address, prefix)) = text.split_once('/') else {
        return refuse(
            message,
            "expected a network such as \"10.0.0.0/8\" or a single address; names are not resolved here",
        );
    };
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => {
            refuse(message, format!("{} is not a prefix length: expected 0 to 32", quote(prefix)))
        }
        Ok(IpAddr::V6(_)) => {
            refuse(message, format!("{} is not a prefix length: expected 0 to 128", quote(prefix)))
        }
        Err(_) => refuse(
            message,
            format!("{} is not an address; expected something like \"10.0.0.0/8\"", quote(address)),
        ),
    }
}

fn file(text: &str) -> Result<String, Refused> {
    if text.is_empty() || text.contains('\0') {
        return refuse(
            format!("{} is not a file name", quote(text)),
            "expected a path such as \"/etc/weir/admin.token\"",
        );
    }
    Ok(text.to_owned())
}
