//! Two hosts with Weir on the same two links, for addresses that keepalived moves between them.

use super::{Network, link, run};

impl Network {
    /// Hosts `client`, `weir`, `other`, and `server1` and so on.
    ///
    /// The client is 10.0.9.100 on the link of both Weirs' `eth0`, server N 10.0.0.N on that of their
    /// `eth1`; they are 10.0.9.2 and 10.0.9.3 there, 10.0.0.252 and 10.0.0.253 here. Servers send
    /// what is for elsewhere to 10.0.0.254, which nobody has yet.
    pub fn pair(servers: usize) -> Network {
        let mut network = Network::empty();
        // The switch of both links.
        network.add("switch");
        for bridge in ["front", "back"] {
            network.run("switch", &["ip", "link", "add", bridge, "type", "bridge"]);
            network.run("switch", &["ip", "link", "set", bridge, "up"]);
        }
        network.plugs("client", "eth0", "front", "10.0.9.100/24");
        for (host, front, back) in [("weir", 2, 252), ("other", 3, 253)] {
            network.plugs(host, "eth0", "front", &format!("10.0.9.{front}/24"));
            network.plugs(host, "eth1", "back", &format!("10.0.0.{back}/24"));
            network.sets(host, "net.ipv4.ip_unprivileged_port_start", "0");
        }
        for server in 1..=servers {
            let host = format!("server{server}");
            network.plugs(&host, "eth0", "back", &format!("10.0.0.{server}/24"));
            network.run(&host, &["ip", "route", "add", "default", "via", "10.0.0.254"]);
        }
        network
    }

    /// Joins a host, new or not, to one of the switch's links.
    fn plugs(&mut self, host: &str, device: &str, bridge: &str, address: &str) {
        let full = self.full(host);
        if !self.hosts.contains(&full) {
            self.add(host);
        }
        let (switch, port) = (self.full("switch"), format!("{host}_{device}"));
        link(&full, device, &switch, &port);
        run(&["ip", "-n", &switch, "link", "set", &port, "master", bridge, "up"]);
        run(&["ip", "-n", &full, "addr", "add", address, "dev", device]);
        run(&["ip", "-n", &full, "link", "set", device, "up"]);
    }
}
