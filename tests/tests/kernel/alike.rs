//! What a hash promises: Weirs with the same pool choose alike, so that one may take over from another, and a
//! backend that goes moves nobody else.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use weir_tests::crowd::{Crowd, CrowdServer};
use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::network::{Network, PATIENCE};

use super::VIP;

const HOSTS: usize = 4;
const BACKENDS: usize = 100;
/// Flows that are compared.
const FLOWS: u16 = 1_000;

/// The host and the port of a backend, from number 1 on.
fn place(number: usize) -> (usize, u16) {
    ((number - 1) % HOSTS + 1, 8000 + number as u16)
}

/// Of all backends but one, if that is given.
fn config(network: &Network, directory: &str, without: Option<usize>) -> String {
    let backends: Vec<String> = (1..=BACKENDS)
        .filter(|number| Some(*number) != without)
        .map(|number| {
            let (host, port) = place(number);
            format!("\"{}\"", network.server(host, port, false))
        })
        .collect();
    let mut text =
        format!("[kernel]\ndirectory = \"{}/{directory}\"\nflows = 16_384\n", network.bpf_directory());
    for protocol in ["tcp", "udp"] {
        text += &format!(
            "[listener.{protocol}]\nprotocol = \"{protocol}\"\nbind = \"{VIP}:80\"\nplane = \"kernel\"\npool = \"app\"\n"
        );
    }
    text + &format!(
        "[pool.app]\nbalance = \"maglev\"\nhash = {{ key = \"flow\" }}\nhealth = \"off\"\nbackends = [{}]\n",
        backends.join(", ")
    )
}

fn start(without: Option<usize>) -> (Network, Weir, Vec<CrowdServer>) {
    let network = Network::enter(HOSTS);
    let program = Path::new(env!("CARGO_BIN_EXE_crowd_server"));
    let servers = (1..=HOSTS)
        .map(|host| {
            let of_host = (1..=BACKENDS).map(|number| (number, place(number)));
            let backends: Vec<(usize, u16)> =
                of_host.filter(|(_, at)| at.0 == host).map(|(number, at)| (number, at.1)).collect();
            CrowdServer::start_many(&network, program, host, &backends)
        })
        .collect();
    let weir = Setup::of(&config(&network, "one", without)).start();
    (network, weir, servers)
}

/// Which backend answers a flow, for each of the client's ports.
fn picks(network: &Network) -> Vec<usize> {
    network.on("client", || {
        let ask = |port: u16| {
            let socket = UdpSocket::bind(("10.50.1.2", port)).expect("a port of the client's");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            socket.send_to(b"who?", (VIP, 80)).expect("it leaves");
            let mut answer = [0; 16];
            let (count, _) = socket.recv_from(&mut answer).expect("an answer");
            String::from_utf8_lossy(&answer[..count]).trim().parse().expect("a number")
        };
        (20_000..20_000 + FLOWS).map(ask).collect()
    })
}

#[test]
fn two_weirs_choose_alike_and_one_of_a_hundred_backends_moves_hardly_anybody_else() {
    let (network, _weir, _servers) = start(None);
    let first = picks(&network);
    let (network, _weir, _servers) = start(None);
    assert_eq!(picks(&network), first, "of the same pool");
    let used = |number: usize| first.iter().filter(|pick| **pick == number).count();
    assert!((1..=BACKENDS).filter(|number| used(*number) > 0).count() > 90, "{first:?}");
    let (network, _weir, _servers) = start(Some(37));
    let without = picks(&network);
    let moved = first.iter().zip(&without).filter(|(before, after)| before != after).count();
    println!(
        "{moved} of {FLOWS} flows go elsewhere without one of {BACKENDS} backends, {} of them its own",
        used(37)
    );
    assert!(moved <= usize::from(FLOWS) / 50, "{moved} of {FLOWS}");
    assert!(!without.contains(&37));
}

#[test]
fn a_backend_that_a_reload_removes_takes_no_connection_along() {
    let (network, mut weir, _servers) = start(None);
    let mut crowd = Crowd::gather(&network, &[format!("{VIP}:80").parse().unwrap()], usize::from(FLOWS));
    let gone = (1..=BACKENDS).max_by_key(|number| crowd.of(*number)).expect("a backend");
    weir.reloads(&config(&network, "one", Some(gone)));
    crowd.talks();
    println!("{} of {} connections were those of the backend that went", crowd.of(gone), crowd.size());
    assert!(crowd.of(gone) > 0);
    assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    // Its time is over: those of others stay.
    weir.reloads(&format!("[runtime]\ndrain = \"1s\"\n{}", config(&network, "one", Some(gone))));
    until("its connections are reset", || {
        crowd.talks();
        (crowd.lost() > 0).then_some(())
    });
    crowd.talks();
    assert_eq!((crowd.lost(), crowd.lost_of(gone)), (crowd.of(gone), crowd.of(gone)), "{:?}", crowd.why());
}

/// As when keepalived moves the addresses: from one packet to the next another host forwards.
#[test]
fn another_weir_takes_over_a_thousand_connections_without_losing_one() {
    let (mut network, weir, _servers) = start(None);
    let to: SocketAddr = format!("{VIP}:80").parse().unwrap();
    let mut crowd = Crowd::gather(&network, &[to], usize::from(FLOWS));
    crowd.talks();
    network.adds_other(HOSTS);
    let other = Setup::of(&config(&network, "two", None)).start();
    network.leads_to_other(HOSTS);
    for _ in 0..3 {
        crowd.talks();
    }
    assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    other.reaches("weir_l4_packets_total", &[("listener", "tcp"), ("verdict", "to_backend")], 1_000.0);
    drop(weir);
    crowd.talks();
    assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
}
