//! Addresses as MySQL Router writes them: of its own ports, of servers, and of a cluster's members.

use std::net::{IpAddr, Ipv6Addr};

/// Port of the classic protocol.
pub const CLASSIC_PORT: u16 = 3306;
/// Port of the X protocol.
pub const X_PORT: u16 = 33060;

/// What Router's state file says about the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterState {
    /// `host:port` of the members.
    pub members: Vec<String>,
    /// Whether the cluster belongs to a ClusterSet.
    pub has_cluster_set: bool,
}

/// Splits `host`, `host:port`, an IPv6 address or `[IPv6]:port` into its host and port. `None` if it is none
/// of these. A port of 0 is none.
pub fn split(text: &str) -> Option<(String, Option<u16>)> {
    let port = |text: &str| text.parse().ok().filter(|port| *port > 0);
    if let Some(rest) = text.strip_prefix('[') {
        let (host, behind) = rest.split_once(']')?;
        let host = host.parse::<Ipv6Addr>().ok()?;
        return match behind.strip_prefix(':') {
            None => behind.is_empty().then(|| (host.to_string(), None)),
            Some(number) => Some((host.to_string(), Some(port(number)?))),
        };
    }
    if let Ok(host) = text.parse::<Ipv6Addr>() {
        return Some((host.to_string(), None));
    }
    let (host, number) = match text.split_once(':') {
        Some((host, number)) => (host, Some(port(number)?)),
        None => (text, None),
    };
    is_host(host).then(|| (host.to_owned(), number))
}

/// `host:port`, with an IPv6 address in brackets.
pub fn joined(host: &str, port: u16) -> String {
    if host.parse::<Ipv6Addr>().is_ok() { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// A server in a list of destinations, as Weir writes a backend. `Err` is what is wrong with it.
pub fn destination(text: &str, default_port: u16) -> Result<String, String> {
    if let Some(path) = text.strip_prefix("local:") {
        let path = format!("/{}", path.trim_start_matches('/'));
        return Ok(format!("unix:{path}"));
    }
    let (host, port) = split(text).ok_or_else(|| format!("`{}` is no `host:port`", shown(text)))?;
    Ok(joined(&host, port.unwrap_or(default_port)))
}

/// A comma-separated list of servers without those that stand there twice. `Err` is what is wrong with it.
pub fn destinations(text: &str, default_port: u16) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for part in text.split(',') {
        let address = destination(part.trim(), default_port)?;
        if !found.contains(&address) {
            found.push(address);
        }
    }
    Ok(found)
}

/// Members in a list such as `mysql://10.0.0.1:3306,mysql://10.0.0.2:3306`. Leaves out what is no address.
pub fn members<'t>(list: impl Iterator<Item = &'t str>) -> Vec<String> {
    let mut found = Vec::new();
    for text in list {
        let text = text.trim();
        let address = text.strip_prefix("mysql://").unwrap_or(text);
        let Ok(address) = destination(address.trim_end_matches('/'), CLASSIC_PORT) else { continue };
        if !address.starts_with("unix:") && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// Reads the state file (`state.json`). `Err` is what is wrong with it.
pub fn state(text: &str) -> Result<RouterState, String> {
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("it is not JSON: {error}"))?;
    let cache = value.get("metadata-cache").ok_or("it has no `metadata-cache`")?;
    let listed = cache.get("cluster-metadata-servers").and_then(serde_json::Value::as_array);
    let texts = listed.into_iter().flatten().filter_map(serde_json::Value::as_str);
    let members = members(texts);
    if members.is_empty() {
        return Err("it names no member in `cluster-metadata-servers`".to_owned());
    }
    let set = cache.get("clusterset-id").and_then(serde_json::Value::as_str);
    Ok(RouterState { members, has_cluster_set: set.is_some_and(|id| !id.is_empty()) })
}

/// Whether this is an IPv4 address or a host name that can be looked up.
fn is_host(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.parse::<IpAddr>().is_ok() || (text.len() <= 253 && text.split('.').all(is_label))
}

/// The beginning of a text, for a message.
pub fn shown(text: &str) -> String {
    let mut characters = text.chars();
    let begin: String = characters.by_ref().take(60).collect();
    if characters.next().is_some() { format!("{begin}…") } else { begin }
}
