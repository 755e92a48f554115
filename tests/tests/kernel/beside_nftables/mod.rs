//! The same packets through the kernel plane's NAT and through the kernel's own (nftables), between the same
//! hosts. What comes out differs where `DIFFERENCES` says so, with the reason, and nowhere else.

mod cases;
mod differences;
mod rendered;

use std::net::{IpAddr, SocketAddr};

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::network::{Network, PATIENCE};
use weir_tests::raw::{Header, Listener, Sender, in_ip, tcp, udp};

use cases::CASES;
use differences::DIFFERENCES;

/// The port by which a packet is known that only shows that all before it have gone by.
const MARK: u16 = 9;

/// One end of the wire.
struct End {
    sender: Sender,
    listener: Listener,
}

impl End {
    fn of(network: &Network, host: &str) -> End {
        let said = network.run(host, &["ip", "-o", "link", "show", "uplink"]);
        let mac = said.split_once("link/ether ").expect("an Ethernet device").1;
        let mac: Vec<u8> = mac
            .split(' ')
            .next()
            .unwrap_or("")
            .split(':')
            .filter_map(|byte| u8::from_str_radix(byte, 16).ok())
            .collect();
        network.on(host, || End {
            sender: Sender::here().expect("root"),
            listener: Listener::here(mac.try_into().expect("six bytes")).expect("root"),
        })
    }
}

/// Hosts between which a case sends its packets, and what came out so far.
struct Wire {
    client: End,
    server: End,
    is_v6: bool,
    /// The client's, of the case.
    port: u16,
    marks: u32,
    /// What came to either end, as text.
    heard: Vec<String>,
    /// The packet that came to the server last.
    last_to_server: Vec<u8>,
}

impl Wire {
    fn address(&self, four: &str, six: &str) -> IpAddr {
        if self.is_v6 { six } else { four }.parse().expect("an address")
    }

    fn client(&self) -> SocketAddr {
        SocketAddr::new(self.address("198.51.100.7", "2001:db8:c::7"), self.port)
    }

    fn listener(&self) -> SocketAddr {
        SocketAddr::new(self.address("192.0.2.10", "2001:db8::10"), 80)
    }

    /// Of the same pool.
    fn other_listener(&self) -> SocketAddr {
        SocketAddr::new(self.address("192.0.2.11", "2001:db8::11"), 80)
    }

    fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.address("10.0.0.1", "fd00::1"), 8080)
    }

    /// A router at the backend's side.
    fn backends_router(&self) -> IpAddr {
        self.address("10.0.0.77", "fd00::77")
    }

    /// A router at the client's side.
    fn clients_router(&self) -> IpAddr {
        self.address("198.51.100.77", "2001:db8:c::77")
    }

    /// Sends a packet from the client's side, and waits until all has come out.
    fn client_sends(&mut self, packet: &[u8]) {
        self.client.sender.sends(packet).expect("the packet leaves");
        self.settles();
    }

    /// As [`Wire::client_sends`], from the server's.
    fn server_sends(&mut self, packet: &[u8]) {
        self.server.sender.sends(packet).expect("the packet leaves");
        self.settles();
    }

    /// Sends a mark each way, and takes down what came before it. Packets of a link keep their order.
    fn settles(&mut self) {
        self.marks += 1;
        let number = self.marks.to_be_bytes();
        let (near, far) = (self.client().ip(), self.address("10.0.0.99", "fd00::99"));
        let (near, far) = (SocketAddr::new(near, MARK), SocketAddr::new(far, MARK));
        for (from, to, is_to_server) in [(near, far, true), (far, near, false)] {
            let mark = in_ip(from.ip(), to.ip(), 17, &Header::default(), &udp(from, to, &number));
            let (here, there) =
                if is_to_server { (&self.client, &self.server) } else { (&self.server, &self.client) };
            here.sender.sends(&mark).expect("the mark leaves");
            loop {
                let packet = there.listener.hears(PATIENCE).expect("the mark comes");
                if packet.ends_with(&number) && rendered::is_to(&packet, to) {
                    break;
                }
                let Some(text) = rendered::packet(&packet).filter(|_| !rendered::is_to_port(&packet, MARK))
                else {
                    continue;
                };
                if is_to_server {
                    self.last_to_server = packet;
                }
                self.heard.push(format!("{}: {text}", if is_to_server { "server" } else { "client" }));
            }
        }
    }

    /// A segment from one place to another, and the packet it is in.
    fn tcp(&self, from: SocketAddr, to: SocketAddr, flags: u8, numbers: [u32; 2], payload: &[u8]) -> Vec<u8> {
        let header = Header { id: 0x1234, ..Header::default() };
        in_ip(from.ip(), to.ip(), 6, &header, &tcp(from, to, flags, numbers, b"", payload))
    }

    /// As [`Wire::tcp`], a datagram.
    fn udp(&self, from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
        let header = Header { id: 0x1234, ..Header::default() };
        in_ip(from.ip(), to.ip(), 17, &header, &udp(from, to, payload))
    }
}

/// Client, balancer and server; the client and the backend are nobody, so that only the test sends for them.
fn hosts() -> Network {
    let network = Network::enter(1);
    for (net, via) in [("198.51.100.0/24", "10.50.1.2"), ("10.0.0.0/24", "10.50.11.2")] {
        network.run("weir", &["ip", "route", "add", net, "via", via]);
    }
    for (net, via) in [("2001:db8:c::/64", "fd50:1::2"), ("fd00::/64", "fd50:11::2")] {
        network.run("weir", &["ip", "-6", "route", "add", net, "via", via]);
    }
    // What is not translated ends here, without a word: the kernel says that to nobody more than a few times.
    network.run("weir", &["ip", "route", "add", "blackhole", "192.0.2.0/24"]);
    network.run("weir", &["ip", "-6", "route", "add", "blackhole", "2001:db8::/64"]);
    network.run("weir", &["ip", "link", "set", "to_server1", "mtu", "1300"]);
    for key in ["net.ipv4.icmp_ratelimit", "net.ipv6.icmp.ratelimit"] {
        network.sets("weir", key, "0");
    }
    for host in ["client", "server1"] {
        network.sets(host, "net.ipv4.ip_forward", "0");
        network.sets(host, "net.ipv6.conf.all.forwarding", "0");
    }
    network
}

fn weir(network: &Network) -> Weir {
    let mut text = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    for (family, addresses, backend) in [
        ("four", ["192.0.2.10", "192.0.2.11"], "10.0.0.1"),
        ("six", ["[2001:db8::10]", "[2001:db8::11]"], "[fd00::1]"),
    ] {
        for (name, address) in ["one", "two"].iter().zip(addresses) {
            for protocol in ["tcp", "udp"] {
                text += &format!(
                    "[listener.{protocol}_{name}_{family}]\nprotocol = \"{protocol}\"\nbind = \"{address}:80\"\nplane = \"kernel\"\npool = \"{family}\"\n"
                );
            }
        }
        text += &format!(
            "[pool.{family}]\nbackends = [\"{backend}:8080\"]\nhealth = \"off\"\nbalance = \"maglev\"\nhash = {{ key = \"flow\" }}\n"
        );
    }
    Setup::of(&text).start()
}

/// The same listeners as rules of nftables.
fn nftables(network: &Network) {
    let mut rules =
        String::from("table inet weir_twin {\nchain there { type nat hook prerouting priority dstnat;\n");
    for protocol in ["tcp", "udp"] {
        for last in ["10", "11"] {
            rules += &format!("ip daddr 192.0.2.{last} {protocol} dport 80 dnat ip to 10.0.0.1:8080\n");
            rules += &format!("ip6 daddr 2001:db8::{last} {protocol} dport 80 dnat ip6 to [fd00::1]:8080\n");
        }
    }
    rules += "}\nchain back { type nat hook postrouting priority srcnat; }\n}\n";
    let path = std::env::temp_dir().join(format!("weir-nftables-{}.nft", std::process::id()));
    std::fs::write(&path, rules).expect("a file for the rules");
    network.run("weir", &["nft", "-f", path.to_str().expect("a plain path")]);
    let _ = std::fs::remove_file(&path);
}

/// What comes out in each case, by its name.
fn outcomes(network: &Network) -> Vec<(String, Vec<String>)> {
    let mut all = Vec::new();
    for is_v6 in [false, true] {
        let mut wire = Wire {
            client: End::of(network, "client"),
            server: End::of(network, "server1"),
            is_v6,
            port: 40_000,
            marks: 0,
            heard: Vec::new(),
            last_to_server: Vec::new(),
        };
        // The neighbours are known from here on.
        wire.settles();
        for case in CASES {
            if case.is_of_ip4 && is_v6 {
                continue;
            }
            wire.port += 1;
            wire.heard.clear();
            (case.packets)(&mut wire);
            let family = if is_v6 { "IPv6" } else { "IPv4" };
            all.push((format!("{}, {family}", case.name), std::mem::take(&mut wire.heard)));
        }
    }
    all
}

#[test]
fn packets_come_out_as_from_nftables_but_for_what_is_explained() {
    let network = hosts();
    let ours = {
        let _weir = weir(&network);
        outcomes(&network)
    };
    drop(network);
    let network = hosts();
    nftables(&network);
    let theirs = outcomes(&network);
    assert!(ours.len() >= 60, "{} cases", ours.len());
    let mut unexplained = Vec::new();
    let mut explained = 0;
    for ((name, ours), (_, theirs)) in ours.iter().zip(&theirs) {
        let said = DIFFERENCES.iter().find(|difference| difference.is_of(name));
        if ours == theirs {
            if said.is_some() {
                unexplained.push(format!("{name}: said to differ, and does not: {ours:#?}"));
            }
            continue;
        }
        explained += 1;
        if !said.is_some_and(|said| said.ours.matches(ours) && said.theirs.matches(theirs)) {
            unexplained.push(format!("{name}\nWeir {ours:#?}\nnftables {theirs:#?}"));
        }
    }
    for difference in DIFFERENCES {
        let is_met = ours.iter().any(|(name, _)| difference.is_of(name));
        assert!(is_met, "no case is called {:?}", difference.case);
        assert!(!difference.why.is_empty());
    }
    println!("{} cases, {explained} of them differ", ours.len());
    assert!(unexplained.is_empty(), "{} unexplained:\n{}", unexplained.len(), unexplained.join("\n"));
}
