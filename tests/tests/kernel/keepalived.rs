//! The guide's set-up with keepalived: an address that moves between two Weirs, as the page has it.

use std::fs::File;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use weir_tests::crowd::{Crowd, CrowdServer};
use weir_tests::dialogue::{Sets, Setup, Signal, Weir, alone, tool, until};
use weir_tests::network::Network;

const SERVERS: usize = 3;
const FLOWS: usize = 1_000;
/// The address that clients use, and the backends' gateway.
const MOVING: [&str; 2] = ["10.0.9.9", "10.0.0.254"];

/// The first block of this kind below the guide's heading.
fn block(kind: &str) -> &'static str {
    let page = include_str!("../../../docs/guide/kernel-plane.md");
    let (_, below) = page.split_once("\n## Two hosts and keepalived\n").expect("the page has the heading");
    let (_, text) = below.split_once(&format!("```{kind}\n")).expect("a block stands below it");
    text.split_once("```").expect("it ends").0
}

/// keepalived in a host, in the foreground; ends with this value.
struct Keepalived {
    child: Child,
    log: std::path::PathBuf,
}

impl Keepalived {
    /// With the guide's file, in Weir's directory.
    fn start(network: &Network, host: &str, weir: &Weir) -> Keepalived {
        let path = |name: &str| weir.dir().join(name);
        std::fs::write(path("keepalived.conf"), block("text")).expect("its file");
        let log = path("keepalived.log");
        let said = File::create(&log).expect("its log");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.full(host)]).arg(tool("keepalived", "keepalived"));
        command.args(["--dont-fork", "--log-console", "--vrrp", "--use-file"]).arg(path("keepalived.conf"));
        command.arg("--pid").arg(path("keepalived.pid")).arg("--vrrp_pid").arg(path("vrrp.pid"));
        command.stdin(Stdio::null()).stdout(said.try_clone().expect("a file")).stderr(said);
        Keepalived { child: command.spawn().expect("keepalived starts"), log }
    }

    fn ends(&mut self) {
        // `ip netns exec` becomes the program.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let _ = self.child.wait();
    }
}

impl Drop for Keepalived {
    fn drop(&mut self) {
        self.ends();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

fn holds(network: &Network, host: &str) -> [bool; 2] {
    let addresses = network.run(host, &["ip", "-o", "-4", "addr", "show"]);
    MOVING.map(|address| addresses.contains(&format!(" {address}/")))
}

fn moves_to(network: &Network, host: &str, from: &str) {
    until(&format!("the addresses are those of {host}"), || {
        (holds(network, host) == [true; 2] && holds(network, from) == [false; 2]).then_some(())
    });
}

/// Weir with the guide's file, in this thread's host.
fn start(network: &Network, name: &str) -> Weir {
    let kernel = format!("[kernel]\ndirectory = \"{}/{name}\"\nflows = 16_384\n", network.bpf_directory());
    Setup::of(&format!("{}{kernel}", block("toml"))).with("admin", "127.0.0.1:9900").start()
}

/// How many packets a Weir sent to backends, seen from its host.
fn forwarded(network: &Network, host: &str, weir: &Weir) -> f64 {
    let labels = [("listener", "web"), ("verdict", "to_backend")];
    network.on(host, || weir.metric("weir_l4_packets_total", &labels))
}

/// First as one Weir is told to end, then as the other's host loses its keepalived: while clients talk.
#[test]
fn an_address_that_keepalived_moves_takes_a_thousand_connections_along() {
    // keepalived goes by the clock: it takes a host that answers late for one that is gone.
    let _quiet = alone();
    let network = Network::pair(SERVERS);
    let program = Path::new(env!("CARGO_BIN_EXE_crowd_server"));
    let at = |number: usize| -> SocketAddr { format!("10.0.0.{number}:443").parse().expect("an address") };
    let _servers: Vec<CrowdServer> = (1..=SERVERS)
        .map(|number| CrowdServer::start_at(&network, program, number, &[(number, at(number))]))
        .collect();
    network.move_to("weir");
    let mut first = start(&network, "one");
    let _first_keepalived = Keepalived::start(&network, "weir", &first);
    moves_to(&network, "weir", "other");
    network.move_to("other");
    let other = start(&network, "two");
    let mut other_keepalived = Keepalived::start(&network, "other", &other);

    let mut crowd = Crowd::gather(&network, &["10.0.9.9:443".parse().expect("an address")], FLOWS);
    crowd.talks();
    assert_eq!(forwarded(&network, "other", &other), 0.0, "the first has the address");

    let while_talking = |crowd: &mut Crowd, what: &mut (dyn FnMut() + Send)| {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _end = Sets(&is_over);
                what();
            });
            crowd.talks_until(&is_over);
        });
        for _ in 0..3 {
            crowd.talks();
        }
        assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    };
    while_talking(&mut crowd, &mut || {
        first.signals(Signal::TERM);
        moves_to(&network, "other", "weir");
    });
    until("the other forwards", || (forwarded(&network, "other", &other) >= FLOWS as f64).then_some(()));

    network.move_to("weir");
    first.signals(Signal::KILL);
    first.starts_again();
    let before = forwarded(&network, "weir", &first);
    while_talking(&mut crowd, &mut || {
        other_keepalived.ends();
        moves_to(&network, "weir", "other");
    });
    until("the first forwards", || {
        (forwarded(&network, "weir", &first) >= before + FLOWS as f64).then_some(())
    });
    network.move_to("other");
    drop(other);
    network.move_to("weir");
}
