//! A client and backends behind a switch, and Weir's link to the switch: one link or a bond of two, with or
//! without VLANs. The client and the backends get untagged frames, and never one that lost its tag.

use std::process::Command;

use super::{Network, link, run};
use crate::dialogue::until_within;
use crate::network::PATIENCE;

/// Weir's way to the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trunk {
    /// The mode of a bond of two links, as ip-link(8) has it; `None` is one link.
    pub bond: Option<&'static str>,
    /// Whether clients and backends are in VLANs of their own (100 and 200).
    pub has_vlans: bool,
    /// Whether these VLANs are inside another one (IEEE 802.1ad, id 10).
    pub is_within: bool,
}

impl Trunk {
    /// The interface below the VLANs: Weir's interface or its bond.
    pub fn base(self) -> &'static str {
        if self.bond.is_some() { "bond0" } else { "eth0" }
    }

    /// Weir's interface to clients.
    pub fn front(self) -> String {
        self.of_vlan(100)
    }

    /// Weir's interface to backends.
    pub fn back(self) -> String {
        self.of_vlan(200)
    }

    fn of_vlan(self, id: u16) -> String {
        let outer = if self.is_within { ".10" } else { "" };
        let inner = if self.has_vlans { format!(".{id}") } else { String::new() };
        format!("{}{outer}{inner}", self.base())
    }
}

impl Network {
    /// Hosts `client`, `weir`, `switch`, and `server1` and so on; moves this thread into Weir's. `None` where
    /// this kernel has no VLANs or bonds; where WEIR_TEST_LINKS says that it has them, that is a failure.
    ///
    /// Weir has 10.0.9.2 and fd00:9::2 towards clients, beside the address of listeners (10.0.9.9 and
    /// fd00:9::9), and 10.0.0.254 and fd00::fe towards backends, whose gateway it is. The client is
    /// 10.0.9.100, server N 10.0.0.N, and likewise of IPv6. The switch is 10.0.9.1 and 10.0.0.253, fd00:9::1
    /// and fd00::fd, and routes between these.
    pub fn behind_switch(servers: usize, trunk: Trunk) -> Option<Network> {
        let mut network = Network::empty();
        for host in ["switch", "weir"] {
            network.add(host);
        }
        network.run("switch", &["ip", "link", "add", "trunk", "type", "bridge"]);
        network.run("switch", &["ip", "link", "set", "trunk", "up"]);
        let kinds = [trunk.bond.map(|_| "bond"), trunk.has_vlans.then_some("vlan")];
        if !kinds.into_iter().flatten().all(|kind| network.has_kind(kind)) {
            return None;
        }
        network.sets("switch", "net.ipv4.conf.default.rp_filter", "0");
        network.links_to_switch(trunk);
        for (port, addresses) in [
            (trunk.front(), ["10.0.9.2/24", "10.0.9.9/24", "fd00:9::2/64", "fd00:9::9/64"].as_slice()),
            (trunk.back(), ["10.0.0.254/24", "fd00::fe/64"].as_slice()),
        ] {
            network.has_addresses("weir", &port, addresses);
        }
        network.plugs_in("client", "front", &["10.0.9.100/24", "fd00:9::100/64"]);
        for server in 1..=servers {
            let host = format!("server{server}");
            let addresses = [format!("10.0.0.{server}/24"), format!("fd00::{server}/64")];
            network.plugs_in(&host, "back", &addresses.each_ref().map(String::as_str));
            network.run(&host, &["ip", "route", "add", "default", "via", "10.0.0.254"]);
            network.run(&host, &["ip", "-6", "route", "add", "default", "via", "fd00::fe"]);
        }
        // The switch also routes, for backends whose answers bypass Weir.
        for (bridge, addresses) in
            [("front", ["10.0.9.1/24", "fd00:9::1/64"]), ("back", ["10.0.0.253/24", "fd00::fd/64"])]
        {
            let bridge = if trunk.has_vlans { bridge } else { "trunk" };
            network.has_addresses("switch", bridge, &addresses);
        }
        for host in ["weir", "switch"] {
            for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
                network.sets(host, key, "1");
            }
        }
        network.sets("weir", "net.ipv4.ip_unprivileged_port_start", "0");
        network.move_to("weir");
        Some(network)
    }

    /// Whether this kernel has interfaces of this kind: `vlan`, `bond`.
    fn has_kind(&self, kind: &str) -> bool {
        let switch = self.full("switch");
        let (on, id) = match kind {
            "vlan" => (["link", "trunk"].as_slice(), ["id", "7"].as_slice()),
            _ => ([].as_slice(), [].as_slice()),
        };
        let words =
            [&["-n", switch.as_str(), "link", "add"][..], on, &["name", "tried", "type", kind], id].concat();
        let output = Command::new("ip").args(&words).output().expect("ip runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() {
            self.run("switch", &["ip", "link", "del", "tried"]);
            return true;
        }
        let is_unknown = said.contains("Unknown device type") || said.contains("not supported");
        assert!(is_unknown, "`ip {}`: {said}(needs root)", words.join(" "));
        assert!(
            std::env::var_os("WEIR_TEST_LINKS").is_none(),
            "this kernel has no interfaces of kind {kind}"
        );
        eprintln!(
            "not tried here: this kernel has no interfaces of kind {kind} (`make kernels` has some that do)"
        );
        false
    }

    /// Joins Weir's host and the switch, and makes the VLANs on either end.
    fn links_to_switch(&self, trunk: Trunk) {
        let (weir, switch) = (self.full("weir"), self.full("switch"));
        let count = if trunk.bond.is_some() { 2 } else { 1 };
        let ports: Vec<[String; 2]> = (0..count).map(|at| [format!("eth{at}"), format!("p{at}")]).collect();
        for [here, there] in &ports {
            link(&weir, here, &switch, there);
        }
        // Both ends of a link aggregation have to agree on it; the switch is not involved in the other modes.
        let of_switch = match trunk.bond {
            Some("802.3ad") => {
                self.bonds("switch", "802.3ad", ports.iter().map(|[_, there]| there.as_str()));
                vec!["bond0"]
            }
            _ => ports.iter().map(|[_, there]| there.as_str()).collect(),
        };
        for port in of_switch {
            run(&["ip", "-n", &switch, "link", "set", port, "master", "trunk", "up"]);
        }
        match trunk.bond {
            Some(mode) => {
                self.bonds("weir", mode, ports.iter().map(|[here, _]| here.as_str()));
                until_within(PATIENCE, "the bond to carry frames", || {
                    let carries = self.run("weir", &["cat", "/sys/class/net/bond0/carrier"]);
                    (carries.trim() == "1").then_some(())
                });
            }
            None => self.set_up("weir", trunk.base()),
        }
        let mut bases = [("weir", trunk.base().to_owned()), ("switch", "trunk".to_owned())];
        if trunk.is_within {
            bases = bases.map(|(host, base)| (host, self.adds_vlan(host, &base, "802.1ad", "10")));
        }
        if !trunk.has_vlans {
            return;
        }
        for (bridge, id) in [("front", "100"), ("back", "200")] {
            let [_, port] = bases.clone().map(|(host, base)| self.adds_vlan(host, &base, "802.1Q", id));
            self.run("switch", &["ip", "link", "add", bridge, "type", "bridge"]);
            self.set_up("switch", bridge);
            self.run("switch", &["ip", "link", "set", &port, "master", bridge]);
        }
    }

    /// A bond of these interfaces, as `bond0`.
    fn bonds<'p>(&self, host: &str, mode: &str, ports: impl Iterator<Item = &'p str>) {
        let make = ["ip", "link", "add", "bond0", "type", "bond", "mode", mode, "miimon", "100"];
        self.run(host, &make);
        for port in ports {
            self.run(host, &["ip", "link", "set", port, "master", "bond0"]);
        }
        self.set_up(host, "bond0");
    }

    fn adds_vlan(&self, host: &str, on: &str, protocol: &str, id: &str) -> String {
        let name = format!("{on}.{id}");
        let words =
            ["ip", "link", "add", "link", on, "name", &name, "type", "vlan", "proto", protocol, "id", id];
        self.run(host, &words);
        self.set_up(host, &name);
        name
    }

    fn set_up(&self, host: &str, device: &str) {
        self.run(host, &["ip", "link", "set", device, "up"]);
    }

    fn has_addresses(&self, host: &str, device: &str, addresses: &[&str]) {
        for address in addresses {
            let mut words = vec!["ip", "addr", "add", *address, "dev", device];
            words.extend(address.contains(':').then_some("nodad"));
            self.run(host, &words);
        }
    }

    /// A host of its own on the switch, by its `eth0`: on the link of clients or of backends.
    fn plugs_in(&mut self, host: &str, bridge: &str, addresses: &[&str]) {
        self.add(host);
        let (switch, full) = (self.full("switch"), self.full(host));
        let has_bridge = self.run("switch", &["ip", "-o", "link"]).contains(&format!(" {bridge}:"));
        link(&full, "eth0", &switch, host);
        // Without VLANs all are on one link.
        let master = if has_bridge { bridge } else { "trunk" };
        run(&["ip", "-n", &switch, "link", "set", host, "master", master, "up"]);
        self.has_addresses(host, "eth0", addresses);
        self.set_up(host, "eth0");
    }
}
