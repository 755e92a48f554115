//! Finds what a config needs and this host does not provide: rights and local ports. The config may be for
//! another machine, so none of this is an error.

use std::collections::BTreeMap;

use weir_config::{Config, Pool, Source};
use weir_io::{local_end, system};
use weir_l4::ports::LocalPorts;

/// Rights that this process lacks and without which Weir would not start, one message for each pool that
/// needs them.
pub fn missing_rights(config: &Config) -> Vec<String> {
    let of_clients = |pool: &&Pool| pool.source.contains(&Source::Client);
    let asks: Vec<&Pool> = config.pools.iter().map(AsRef::as_ref).filter(of_clients).collect();
    if asks.is_empty() || !local_end::may_be_clients().is_err_and(|error| system::is_not_permitted(&error)) {
        return Vec::new();
    }
    let say = |pool: &&Pool| {
        format!(
            "pool `{}`: `source = \"client\"` takes CAP_NET_ADMIN, which this process does not have: run like this, Weir would not start (AmbientCapabilities= of systemd). \
             Routes must lead the backends' answers back here as well",
            pool.name
        )
    };
    asks.iter().map(say).collect()
}

/// The backend's address and the sources of connections to it. A local port is used once per pair of these,
/// so pools with the same pairs share the ports.
type PortKey<'c> = (&'c str, Vec<String>);

/// How many connections are allowed in all, and by which pools.
type PortDemand<'c> = (u64, Vec<&'c str>);

/// One message for each set of backends whose connection limits exceed the local ports of this host. Empty if
/// this host does not say which ports it uses.
pub fn short_of_ports(config: &Config) -> Vec<String> {
    let Ok(ports) = LocalPorts::read() else { return Vec::new() };
    let room = ports.count();
    let mut wanted: BTreeMap<PortKey<'_>, PortDemand<'_>> = BTreeMap::new();
    for pool in &config.pools {
        // Multiplexed connections are few, and connections with client addresses leave from as many
        // addresses.
        if pool.protocol.may_share() || pool.source.contains(&Source::Client) {
            continue;
        }
        let source: Vec<String> = pool.source.iter().map(ToString::to_string).collect();
        for backend in &pool.backends {
            let Some(most) = backend.max_connections else { continue };
            if weir_config::unix_name(&backend.address).is_some() {
                continue;
            }
            let (sum, pools) = wanted.entry((backend.address.as_str(), source.clone())).or_default();
            *sum += u64::from(most);
            if !pools.contains(&pool.name.as_str()) {
                pools.push(&pool.name);
            }
        }
    }
    let (first, last) = ports.range;
    let too_many = wanted.into_iter().filter(|(_, (sum, _))| *sum > u64::from(room));
    let say = |((address, _), (sum, pools)): (PortKey<'_>, PortDemand<'_>)| {
        let (word, names) = (if pools.len() == 1 { "pool" } else { "pools" }, pools.join("`, `"));
        format!(
            "{word} `{names}`: {address} may have {sum} connections (`max_connections`), and from one address of this machine at most {room} can be open to it \
             (`net.ipv4.ip_local_port_range`, {first} {last}): widen the range, or give the backend another address"
        )
    };
    too_many.map(say).collect()
}
