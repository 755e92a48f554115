//! Backends that answer past the plane, which hears clients alone: what it knows of connections all the same.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use weir_tests::dialogue::{Setup, Signal, Weir, until};
use weir_tests::network::{Network, PATIENCE};

use super::decapsulate::Decapsulates;
use super::failover::backends;
use super::{Talk, VIP};

/// Bytes of a piece of a download.
const PIECE: usize = 20_000;

/// A listener by `forward` before `servers` servers, each of which has its address.
fn config(network: &Network, servers: usize, forward: &str, of_pool: &str) -> String {
    let backends: Vec<String> = (1..=servers)
        .map(|number| {
            let host = format!("server{number}");
            network.run(&host, &["ip", "addr", "add", &format!("{VIP}/32"), "dev", "lo"]);
            for key in ["net.ipv4.conf.all.rp_filter", "net.ipv4.conf.uplink.rp_filter"] {
                network.sets(&host, key, "0");
            }
            format!("\"{}\"", network.server(number, 8080, false))
        })
        .collect();
    format!(
        "[kernel]\ndirectory = \"{}\"\nflows = 4096\n[listener.web]\nprotocol = \"tcp\"\nbind = \"{VIP}:8080\"\nplane = \"kernel\"\n\
         forward = \"{forward}\"\npool = \"web\"\n[pool.web]\nbackends = [{}]\n{of_pool}\n",
        network.bpf_directory(),
        backends.join(", ")
    )
}

fn decapsulates(network: &Network, server: usize) -> Decapsulates {
    Decapsulates::start(network, server, "uplink", &format!("--from 10.50.{}.1 --to {VIP}", 10 + server))
}

/// Has the first server send pieces to who has said everything, until `is_enough`, and end then.
fn serves_downloads(network: &Network, is_enough: Arc<AtomicBool>) {
    let at: SocketAddr = format!("{VIP}:8080").parse().unwrap();
    let listener = network.on("server1", || TcpListener::bind(at).expect("a port"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let is_enough = is_enough.clone();
            std::thread::spawn(move || {
                let _ = stream.read_to_end(&mut Vec::new());
                while !is_enough.load(Ordering::Acquire) && stream.write_all(&[b'x'; PIECE]).is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                }
                let _ = stream.write_all(b"end");
            });
        }
    });
}

fn in_flight(weir: &Weir) -> u64 {
    backends(weir, "web")[0]["in_flight"].as_u64().expect("a number")
}

/// TERM said at once that all had ended, and took the plane away: the client's acknowledgements went nowhere.
fn a_download_whose_client_has_said_everything_is_waited_for(forward: &str) {
    let network = Network::enter(1);
    let is_enough = Arc::new(AtomicBool::new(false));
    let text = config(&network, 1, forward, "health = \"off\"") + "[runtime]\ndrain = \"10m\"\n";
    serves_downloads(&network, is_enough.clone());
    let _decapsulates = (forward == "ipip").then(|| decapsulates(&network, 1));
    let mut weir = Setup::of(&text).start();
    let to: SocketAddr = format!("{VIP}:8080").parse().unwrap();
    let connects = |patience| network.on("client", || TcpStream::connect_timeout(&to, patience));
    let mut stream = connects(PATIENCE).expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"all of it, please").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reads = |pieces: usize| {
        let mut bytes = vec![0; pieces * PIECE];
        stream.read_exact(&mut bytes).expect("the download goes on");
    };
    reads(1);
    // By far more than all that comes before the client's end: what has been looked at since has seen that.
    until("its acknowledgements are counted, and the flow as well", || {
        reads(1);
        let labels = [("listener", "web"), ("verdict", "to_backend")];
        (weir.metric("weir_l4_packets_total", &labels) > 60.0 && in_flight(&weir) == 1).then_some(())
    });
    let shown = weir.admin().reads("/v1/flows?stage=open").json();
    assert_eq!(shown["matching"], 1, "{shown}");
    weir.signals(Signal::TERM);
    until("nobody is taken", || {
        reads(1);
        connects(Duration::from_secs(1)).is_err().then_some(())
    });
    // More than is ever under way without an acknowledgement.
    reads(200);
    is_enough.store(true, Ordering::Release);
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("it comes to its end");
    assert!(rest.ends_with(b"end"), "{} bytes", rest.len());
    assert!(weir.exits().success());
}

#[test]
fn term_waits_for_a_download_by_ip_in_ip_whose_client_has_said_everything() {
    a_download_whose_client_has_said_everything_is_waited_for("ipip");
}

#[test]
fn term_waits_for_a_download_by_dsr_whose_client_has_said_everything() {
    a_download_whose_client_has_said_everything_is_waited_for("dsr");
}

/// The first server takes no outer packets off: its kernel says so. Its probes, to its own address, are
/// answered.
#[test]
fn a_backend_that_takes_no_outer_packets_is_ejected_though_its_probes_succeed() {
    let network = Network::enter(2);
    let health = "balance = \"round-robin\"\nhealth = { check = \"tcp\", at = \"backend\", interval = \"100ms\", passive = { errors = 3, within = \"10s\", eject = \"60s\" } }";
    let text = config(&network, 2, "ipip", health);
    for number in 1..=2 {
        network.greets(number, 8080);
        network.greets_at(number, VIP.parse().unwrap(), 8080);
    }
    let _decapsulates = decapsulates(&network, 2);
    let weir = Setup::of(&text).start();
    super::views::gives_the_client_many_addresses(&network);
    let to: SocketAddr = format!("{VIP}:8080").parse().unwrap();
    let mut clients = (1..=250).map(|last| Ipv4Addr::new(10, 60, 0, last)).cycle();
    until("it is ejected", || {
        let client = clients.next().expect("they go round");
        network.on("client", || {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&SocketAddr::from((client, 0)).into()).unwrap();
            drop(socket.connect_timeout(&to.into(), Duration::from_secs(1)));
        });
        (backends(&weir, "web")[0]["state"] == "ejected").then_some(())
    });
    // It is said a moment before the kernel plane has heard of it.
    until("nobody is led to it any more", || {
        let talk = || Talk::try_begin_within(Duration::from_secs(1), &network, to);
        (0..6).all(|_| talk().is_ok_and(|talk| talk.server == "2")).then_some(())
    });
    let address = network.server(1, 8080, false).to_string();
    let of_first = [("pool", "web"), ("backend", address.as_str())];
    weir.reaches("weir_backend_connect_failures_total", &of_first, 3.0);
    assert_eq!(backends(&weir, "web")[1]["state"], "ready", "{}", weir.story());
    assert!(weir.stderr().contains("refused"), "{}", weir.story());
}
