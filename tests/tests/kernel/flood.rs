//! Floods from made-up addresses, and tables that are too small.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weir_tests::crowd::{Crowd, CrowdServer};
use weir_tests::dialogue::{Draws, Sets, Setup, Weir, until};
use weir_tests::network::{Network, PATIENCE};
use weir_tests::raw::{ACK, SYN, Segment, Sender};

use super::{Talk, VIP, VIP6, config, config_of};

/// Flows of each family that `config` has room for.
const FLOWS: u32 = 4096;
/// Segments of a flood: an order of magnitude more than there is room for.
const FLOOD: u64 = 60_000;

fn start(balance: &str, flows: u32) -> (Network, Weir, Vec<CrowdServer>) {
    start_by("", balance, flows)
}

/// As above, with more lines in listeners.
fn start_by(of_listener: &str, balance: &str, flows: u32) -> (Network, Weir, Vec<CrowdServer>) {
    let network = Network::enter(2);
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_crowd_server"));
    let servers = (1..=2).map(|number| CrowdServer::start(&network, program, number, 8080)).collect();
    // Answers to addresses that are nobody's go where they came from, and end there.
    network.run("weir", &["ip", "route", "add", "198.18.0.0/15", "via", "10.50.1.2"]);
    network.run("weir", &["ip", "-6", "route", "add", "fd50:ffff::/32", "via", "fd50:1::2"]);
    let text = config_of(&network, 2, of_listener, 8080, balance)
        .replace("flows = 4096", &format!("flows = {flows}"));
    let weir = Setup::of(&text).start();
    (network, weir, servers)
}

/// Somebody who does not exist.
fn nobody(draws: &mut Draws, is_v6: bool) -> SocketAddr {
    let port = 1024 + draws.below(64_000) as u16;
    let ip: IpAddr = if is_v6 {
        Ipv6Addr::new(0xfd50, 0xffff, draws.below(1 << 16) as u16, 0, 0, 0, draws.below(1 << 16) as u16, 9)
            .into()
    } else {
        Ipv4Addr::from(0xc612_0000 | draws.below(1 << 17) as u32).into()
    };
    SocketAddr::new(ip, port)
}

/// Floods both listeners of TCP while honest clients connect: how many of them tried, and were served.
fn flood(network: &Network, flags: u8) -> (u64, u64) {
    let (is_over, tried, served) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let targets: [SocketAddr; 2] =
        [format!("{VIP}:80"), format!("[{VIP6}]:80")].map(|to| to.parse().unwrap());
    std::thread::scope(|scope| {
        for to in targets {
            let (is_over, tried, served) = (&is_over, &tried, &served);
            scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    tried.fetch_add(1, Ordering::Relaxed);
                    if Talk::try_begin(network, to).is_ok() {
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let _end = Sets(&is_over);
        network.on("client", || {
            let sender = Sender::here().expect("root");
            let mut draws = Draws::new();
            for number in 0..FLOOD {
                let destination = targets[(number % 2) as usize];
                let segment = Segment {
                    source: nobody(&mut draws, destination.is_ipv6()),
                    destination,
                    flags,
                    sequence: draws.below(1 << 32) as u32,
                    acknowledgement: draws.below(1 << 32) as u32,
                    payload: b"",
                };
                // The device's queue may be full.
                let _ = sender.sends(&segment.packet());
            }
        });
    });
    (tried.into_inner(), served.into_inner())
}

fn honest_clients_are_served_under_a_flood(balance: &str, flags: u8) {
    honest_clients_are_served_by("", balance, flags, FLOWS);
}

fn honest_clients_are_served_by(of_listener: &str, balance: &str, flags: u8, flows: u32) {
    let (network, weir, _servers) = start_by(of_listener, balance, flows);
    let to = [format!("{VIP}:80"), format!("[{VIP6}]:80")].map(|to| to.parse().unwrap());
    let mut crowd = Crowd::gather(&network, &to, 100);
    // A client's first words settle its flow; from then on all are silent.
    crowd.talks();
    let (tried, served) = flood(&network, flags);
    println!("{balance} {flags}: {served} of {tried} honest connections served");
    assert!(tried >= 100, "{tried} tries are too few to tell");
    assert!(served * 1000 >= tried * 999, "{served} of {tried}");
    crowd.talks();
    assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    until("the flood is counted", || {
        let verdicts = ["to_backend", "reset", "drop_unanswered"];
        let all = ["tcp_four", "tcp_six"].map(|listener| verdicts.map(|verdict| (listener, verdict)));
        let count = |(listener, verdict)| {
            weir.metric("weir_l4_packets_total", &[("listener", listener), ("verdict", verdict)])
        };
        let arrived: f64 = all.into_iter().flatten().map(count).sum();
        (arrived > 3.0 * f64::from(2 * FLOWS)).then_some(())
    });
    for listener in ["tcp_four", "tcp_six"] {
        let labels = [("listener", listener), ("verdict", "drop_no_port")];
        assert_eq!(weir.metric("weir_l4_packets_total", &labels), 0.0, "{listener}");
    }
}

#[test]
fn a_flood_of_first_segments_keeps_nobody_out_of_a_pool_that_hashes() {
    honest_clients_are_served_under_a_flood("balance = \"maglev\"\nhash = { key = \"flow\" }", SYN);
}

#[test]
fn a_flood_of_later_segments_keeps_nobody_out_of_a_pool_that_hashes() {
    honest_clients_are_served_under_a_flood("balance = \"maglev\"\nhash = { key = \"flow\" }", ACK);
}

#[test]
fn a_flood_of_first_segments_breaks_no_connection_of_other_pools() {
    honest_clients_are_served_under_a_flood("balance = \"round-robin\"", SYN);
}

/// There is room for all flows of the flood, and not for their ports: 4,536 at each backend.
#[test]
fn a_flood_that_takes_all_ports_of_full_nat_keeps_nobody_from_connecting() {
    let by = "forward = \"full-nat\"\nsource_ports = \"61000-65535\"\nsource_address = [\"10.50.11.1\", \"fd50:11::1\"]";
    honest_clients_are_served_by(by, "balance = \"maglev\"\nhash = { key = \"flow\" }", SYN, 65_536);
}

/// Three times as many connections as there is room for.
const CROWD: usize = 3 * 1024;

/// What was forgotten is found by the hash, and answers of a backend find their one listener.
#[test]
fn a_table_filled_three_times_over_loses_no_connection_of_a_pool_that_hashes() {
    let (network, _weir, _servers) = start("balance = \"maglev\"\nhash = { key = \"flow\" }", 1024);
    let mut crowd = Crowd::gather(&network, &[format!("{VIP}:80").parse().unwrap()], CROWD);
    for _ in 0..3 {
        crowd.talks();
        assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    }
}

/// The kernel's table lets go of the silent ones by and large, and of some new ones with them.
#[test]
fn a_table_filled_three_times_over_resets_connections_of_other_pools_and_keeps_nobody_waiting() {
    let (network, _weir, _servers) = start("balance = \"round-robin\"", 1024);
    let to = [format!("{VIP}:80").parse().unwrap()];
    let mut early = Crowd::try_gather(&network, &to, CROWD - 300);
    early.talks();
    let mut late = Crowd::try_gather(&network, &to, 300);
    late.talks();
    early.talks();
    let stay = CROWD - early.lost() - late.lost();
    println!("{} of {} early and {} of 300 late ones were reset", early.lost(), early.size(), late.lost());
    assert!((512..2048).contains(&stay), "{stay} stay");
    for crowd in [early, late] {
        assert!(crowd.why().iter().all(|why| why.contains("reset")), "{:?}", crowd.why());
    }
}

/// Says something on a connection, and hears it back.
fn echoes(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).expect("the connection takes bytes");
    let mut back = vec![0; what.len()];
    stream.read_exact(&mut back).unwrap_or_else(|problem| panic!("the answer is lost: {problem}"));
    assert_eq!(back, what);
}

/// Who sent segments to a listener from Weir's own addresses had the answers to its probes, and to what the
/// proxy plane relayed, taken for those of a flow: every backend was found down.
#[test]
fn segments_from_addresses_of_weirs_own_host_take_no_answers_from_its_own_connections() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let weir = Setup::of(&config(&network, 1, "balance = \"round-robin\"")).start();
    for (listener, vip, is_v6) in
        [("tcp_four", format!("{VIP}:80"), false), ("tcp_six", format!("[{VIP6}]:80"), true)]
    {
        let to: SocketAddr = vip.parse().unwrap();
        let mut own = TcpStream::connect(network.server(1, 8080, is_v6)).expect("the backend is next door");
        own.set_read_timeout(Some(PATIENCE)).unwrap();
        own.read_exact(&mut [0; 2]).expect("a greeting");
        let source = own.local_addr().unwrap();
        network.on("client", || {
            let sender = Sender::here().expect("root");
            let segment = Segment {
                source,
                destination: to,
                flags: SYN,
                sequence: 1,
                acknowledgement: 0,
                payload: b"",
            };
            (0..3).for_each(|_| sender.sends(&segment.packet()).expect("it leaves"));
        });
        weir.reaches(
            "weir_l4_packets_total",
            &[("listener", listener), ("verdict", "drop_own_address")],
            3.0,
        );
        echoes(&mut own, b"as before");
        let explained = weir.command(&["explain", "tcp", &source.to_string(), &vip]);
        assert!(explained.stdout.contains("drop_own_address"), "{explained:?}");
        Talk::begin(&network, &vip).goes_on(b"a client");
    }
}
