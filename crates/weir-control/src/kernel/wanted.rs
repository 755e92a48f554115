//! Translates a snapshot for the kernel: which listeners and pools, and the state of their backends.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;
use weir_balance::{Algorithm as Balance, State};
use weir_config::{Bind, Forward as Asked, HashKey as Key, PortRange, Speaks};
use weir_l4::host::Host;
use weir_l4::layout::{Algorithm, Forward, HashKey, TCP, UDP};
use weir_l4::ports::{LocalPorts, Ports, Taken};
use weir_l4::wanted::{Listener, Member, Pool, PortSpan, Wanted};
use weir_state::Snapshot;
use weir_state::plane::Placements;

/// What of `snapshot` the kernel should forward. `ports` are those that this host assigns to other sockets.
/// Backends for which `is_own` is true get nothing, as their packets would come back to this host; nor do
/// backends of an address family that none of their listeners has. Pools of removed listeners stay if
/// `has_flows`. `interfaces_of` returns the interfaces that a listener names.
pub fn wanted(
    snapshot: &Snapshot,
    placements: &Placements,
    ports: &LocalPorts,
    is_own: &dyn Fn(IpAddr) -> bool,
    has_flows: &dyn Fn(&str) -> bool,
    interfaces_of: &dyn Fn(&weir_config::Listener) -> Option<BTreeSet<u32>>,
) -> Wanted {
    let in_kernel = snapshot.listeners.iter().filter(|one| placements.is_in_kernel(&one.config.name));
    let listeners: Vec<Listener> = in_kernel
        .filter_map(|one| {
            Some(Listener {
                name: one.config.name.clone(),
                addresses: one
                    .config
                    .bind
                    .iter()
                    .filter_map(Bind::inet)
                    .map(|bind| PortSpan { first: bind.first, last_port: bind.last_port })
                    .collect(),
                protocol: if one.config.speaks == Speaks::Udp { UDP } else { TCP },
                pool: one.config.pool.clone()?,
                deny: networks(&one.config.client_screen.deny),
                allow: networks(&one.config.client_screen.allow),
                forward: match one.config.forward {
                    Asked::Nat => Forward::Nat,
                    Asked::FullNat => Forward::FullNat,
                    Asked::Dsr => Forward::Dsr,
                    Asked::Ipip => Forward::Ipip,
                },
                sources: one.config.source_addresses.clone(),
                asks_host: false,
                interfaces: interfaces_of(&one.config),
                // Without a port nothing is sent. That there were free ones was checked when the listener was
                // placed.
                source_ports: source_ports(&one.config, ports).unwrap_or_default(),
            })
        })
        .collect();
    let is_used = |pool: &&std::sync::Arc<weir_state::Pool>| {
        listeners.iter().any(|listener| listener.pool == pool.config.name) || has_flows(&pool.config.name)
    };
    let source_to = |pool: &weir_state::Pool, address| {
        let is_asked = |one: &Listener| one.forward == Forward::Ipip && one.pool == pool.config.name;
        // Remaining flows may belong to a listener that asked for it.
        let is_used = listeners.iter().any(is_asked) || has_flows(&pool.config.name);
        is_used.then(|| Host::source_to(address)).flatten()
    };
    let of = |pool: &std::sync::Arc<weir_state::Pool>| {
        let asking = listeners.iter().filter(|one| one.pool == pool.config.name);
        let families: Vec<IpAddr> =
            asking.flat_map(|one| &one.addresses).map(|span| span.first.ip()).collect();
        let is_out_of_reach = |at: IpAddr| is_own(at) || is_of_other_family(&families, at);
        of_pool(pool, &is_out_of_reach, &|at| source_to(pool, at))
    };
    let pools = snapshot.pools.iter().filter(is_used).map(of).collect();
    Wanted { listeners, pools, ..Wanted::default() }
}

/// Whether no listener at `addresses` can forward to a backend at `at` because of its address family: a host
/// name may resolve to either family, which the config check could not know.
fn is_of_other_family(addresses: &[IpAddr], at: IpAddr) -> bool {
    let is_ipv4 = |address: &IpAddr| address.to_canonical().is_ipv4();
    let can_reach = |from: &IpAddr| from.is_unspecified() || is_ipv4(from) == is_ipv4(&at);
    !addresses.is_empty() && !addresses.iter().any(can_reach)
}

fn networks(list: &[IpNet]) -> Vec<(IpAddr, u8)> {
    list.iter().map(|network| (network.network(), network.prefix_len())).collect()
}

/// The ports that this host assigns to other sockets.
///
/// # Errors
/// They can't be read; the reason in readable form.
pub fn local_ports() -> Result<LocalPorts, String> {
    LocalPorts::read().map_err(|error| format!("the ports of this host can't be read: {error}"))
}

/// Source ports for packets of a listener, if it changes them.
///
/// # Errors
/// This host may assign them to other sockets.
pub fn source_ports(listener: &weir_config::Listener, ports: &LocalPorts) -> Result<Ports, Taken> {
    match listener.forward {
        Asked::Nat | Asked::Dsr | Asked::Ipip => Ok(Ports::default()),
        Asked::FullNat => {
            ports.for_sources(listener.source_ports.map(|PortRange { first, last }| (first, last)))
        }
    }
}

fn of_pool(
    pool: &weir_state::Pool,
    is_out_of_reach: &dyn Fn(IpAddr) -> bool,
    source_to: &dyn Fn(IpAddr) -> Option<IpAddr>,
) -> Pool {
    let algorithm = match pool.config.balance {
        Balance::Source | Balance::Hash | Balance::Maglev => Algorithm::Hash,
        Balance::LeastConnections => Algorithm::LeastFlows,
        _ => Algorithm::Turns,
    };
    let hash_key = match (pool.config.balance, &pool.config.hash.key) {
        (Balance::Source, _) => HashKey::Client,
        (_, Key::Flow) => HashKey::Flow,
        _ => HashKey::Client,
    };
    let passive = pool.config.health.passive.as_ref();
    let failures_within = passive.map_or(Duration::ZERO, |passive| passive.within);
    let mut weights = vec![0; pool.backends.len()];
    pool.balance.eligible().iter().for_each(|one| weights[one.index] = one.weight);
    let members = pool.backends.iter().enumerate().filter_map(|(at, backend)| {
        // A name that was never resolved has no address.
        let address: SocketAddr = backend.resolved.address()?;
        let is_out_of_reach = is_out_of_reach(address.ip());
        let weight = if is_out_of_reach { 0 } else { weights[at] };
        let is_down = pool.balance.state(at) == State::Down && weight == 0;
        let (is_alive, source) = (!is_down && !is_out_of_reach, source_to(address.ip()));
        Some(Member { id: backend.balance.id(), address, weight, is_alive, source, failures_within })
    });
    Pool { name: pool.config.name.clone(), algorithm, hash_key, members: members.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_of_another_family_than_all_listeners_is_out_of_reach() {
        let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
        let (four, six) = (ip("10.0.0.1"), ip("fd00::1"));
        assert!(is_of_other_family(&[four], ip("fd00::9")) && is_of_other_family(&[six], ip("10.0.0.9")));
        assert!(!is_of_other_family(&[four], ip("10.0.0.9")));
        assert!(!is_of_other_family(&[four], ip("::ffff:10.0.0.9")));
        assert!(!is_of_other_family(&[four, six], ip("fd00::9")));
        assert!(!is_of_other_family(&[ip("0.0.0.0")], ip("fd00::9")));
        assert!(!is_of_other_family(&[], four), "flows that are left");
    }
}
