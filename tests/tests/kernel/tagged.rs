//! Frames with a tag that names no VLAN but a priority (IEEE 802.1Q §9.6), as switches and hypervisors send
//! them: they are the interface's own, like those without.

use std::fmt::Write as _;
use std::net::SocketAddr;

use weir_tests::network::Network;
use weir_tests::raw::{Header, datagram, in_ip, udp};

use super::decapsulate::{Decapsulates, VIP_WORDS, has_vip};
use super::{VIP, VIP6, datagram_socket, start};

/// Sends a frame by AF_PACKET, for which others want `unsafe`: the interface's index, the frame in hex.
const SENDS: &str = r#"
use Socket;
socket(my $sender, 17, SOCK_RAW, 0) or die $!;
my $to = pack("S n i S C C a8", 17, 0, $ARGV[0], 0, 0, 0, "");
send($sender, pack("H*", $ARGV[1]), 0, $to) or die $!;
"#;

fn mac(network: &Network, host: &str, interface: &str) -> Vec<u8> {
    let path = format!("/sys/class/net/{interface}/address");
    let said = network.run(host, &["cat", &path]);
    said.trim().split(':').map(|octet| u8::from_str_radix(octet, 16).expect("hexadecimal")).collect()
}

/// Sends a packet by an interface, to a MAC address, with a tag of VLAN 0 and priority 5.
fn sends_tagged(network: &Network, (host, interface): (&str, &str), to: &[u8], packet: &[u8]) {
    let kind = if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] };
    let from = mac(network, host, interface);
    let frame = [to, &from, &[0x81, 0, 0xa0, 0], &kind, packet].concat();
    let hex = frame.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes it");
        hex
    });
    let index = network.run(host, &["cat", &format!("/sys/class/net/{interface}/ifindex")]);
    network.run(host, &["perl", "-e", SENDS, index.trim(), &hex]);
}

#[test]
fn a_frame_with_a_priority_and_no_vlan_is_taken() {
    let (network, weir) = start(1, "");
    let to_mac = mac(&network, "weir", "to_client");
    for (vip, at) in [(VIP.to_owned(), "10.50.1.2"), (format!("[{VIP6}]"), "fd50:1::2")] {
        let to: SocketAddr = format!("{vip}:80").parse().unwrap();
        let socket = datagram_socket(&network, at);
        // Twice: the first packet of a flow goes another way than those that follow.
        for what in [b"one", b"two"] {
            let packet = datagram(socket.local_addr().unwrap(), to, what);
            sends_tagged(&network, ("client", "uplink"), &to_mac, &packet);
            let mut answer = [0; 64];
            let (count, from) = socket.recv_from(&mut answer).expect("an answer");
            assert_eq!((from, &answer[..count]), (to, [b"1\n", &what[..]].concat().as_slice()));
        }
    }
    weir.reaches("weir_l4_packets_total", &[("listener", "udp_six"), ("verdict", "to_backend")], 2.0);
}

#[test]
fn an_outer_packet_in_a_frame_with_a_priority_and_no_vlan_is_taken_off() {
    let network = Network::enter(1);
    has_vip(&network);
    let decapsulates = Decapsulates::start(&network, 1, "uplink", VIP_WORDS);
    let to_mac = mac(&network, "server1", "uplink");
    let to: SocketAddr = format!("{VIP}:8080").parse().unwrap();
    let socket = datagram_socket(&network, "10.50.1.2");
    let from = socket.local_addr().unwrap();
    let inner = in_ip(from.ip(), to.ip(), 17, &Header::default(), &udp(from, to, b"within"));
    let outer =
        in_ip("10.50.11.1".parse().unwrap(), "10.50.11.2".parse().unwrap(), 4, &Header::default(), &inner);
    sends_tagged(&network, ("weir", "to_server1"), &to_mac, &outer);
    let mut answer = [0; 64];
    let (count, _) = socket.recv_from(&mut answer).expect("an answer");
    assert_eq!(&answer[..count], b"1\nwithin");
    assert!(decapsulates.ends().starts_with("taken_off 1,"));
}
