//! Listeners that change their plane by a reload: connections stay on the plane that took them.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_tests::crowd::{Crowd, CrowdServer};
use weir_tests::dialogue::{Sets, Setup, Signal, Weir, until, until_within};
use weir_tests::network::Network;

use super::{Talk, VIP, VIP6, asks, config_of, datagram_socket};

const SERVERS: usize = 2;
const MORE: &str = "balance = \"round-robin\"";

fn ends() -> [SocketAddr; 2] {
    [format!("{VIP}:80"), format!("[{VIP6}]:80")].map(|end| end.parse().expect("an address"))
}

/// The proxy plane needs the addresses on an interface.
fn network() -> Network {
    let network = Network::enter(SERVERS);
    network.run("weir", &["ip", "addr", "add", &format!("{VIP}/32"), "dev", "lo"]);
    network.run("weir", &["ip", "addr", "add", &format!("{VIP6}/128"), "dev", "lo", "nodad"]);
    network
}

/// Connections may be silent on either plane for as long as a test takes.
fn on_kernel(network: &Network) -> String {
    let idle = "timeout = { client_idle = \"15m\" }";
    config_of(network, SERVERS, idle, 8080, MORE).replace("flows = 4096", "flows = 32768")
}

fn on_proxy(network: &Network) -> String {
    on_kernel(network).replace("plane = \"kernel\"", "plane = \"proxy\"")
}

fn listener(weir: &Weir, name: &str) -> serde_json::Value {
    let status = weir.admin().reads("/v1/status").json();
    let listeners = status["listeners"].as_array().expect("they are listed").clone();
    listeners.into_iter().find(|one| one["name"] == name).expect("it is listed")
}

/// Packets of a listener under a verdict.
fn packets(weir: &Weir, name: &str, verdict: &str) -> u64 {
    let metrics = weir.admin().reads("/metrics").response.text();
    let start = format!("weir_l4_packets_total{{listener=\"{name}\",verdict=\"{verdict}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |count| count.parse::<f64>().expect("a number") as u64)
}

fn is_left_alone(network: &Network) -> bool {
    let held = network.run("weir", &["tc", "filter", "show", "dev", "to_client", "ingress"]);
    let attached = network.run("weir", &["ip", "-d", "link", "show", "to_client"]);
    !held.contains("balance") && !attached.contains("tcx")
}

#[test]
fn connections_stay_on_the_plane_that_took_them_through_ten_changes() {
    let network = network();
    let program = Path::new(env!("CARGO_BIN_EXE_crowd_server"));
    let _servers: Vec<CrowdServer> =
        (1..=SERVERS).map(|number| CrowdServer::start(&network, program, number, 8080)).collect();
    let mut weir = Setup::of(&on_proxy(&network)).start();
    let mut talking = Crowd::gather(&network, &ends(), 50);
    let mut idle = vec![Crowd::gather(&network, &ends(), 10)];
    let texts = [on_kernel(&network), on_proxy(&network)];
    let is_done = AtomicBool::new(false);
    let (new, rounds) = std::thread::scope(|scope| {
        let talk = scope.spawn(|| talking.talks_until(&is_done));
        let newcomers = scope.spawn(|| {
            let mut made = 0;
            while !is_done.load(Ordering::Acquire) {
                let mut some = Crowd::gather(&network, &ends(), 5);
                some.talks();
                assert_eq!(some.lost(), 0, "{:?}", some.why());
                made += some.size();
            }
            made
        });
        let end = Sets(&is_done);
        for round in 0..10 {
            weir.reloads(&texts[round % 2]);
            idle.push(Crowd::gather(&network, &ends(), 10));
        }
        drop(end);
        (newcomers.join().expect("it does not panic"), talk.join().expect("it does not panic"))
    });
    println!("{} connections talked {rounds} times, {new} were new", talking.size());
    assert_eq!(talking.lost(), 0, "{:?}", talking.why());
    for crowd in &mut idle {
        crowd.talks();
        assert_eq!(crowd.lost(), 0, "{:?}", crowd.why());
    }
}

#[test]
fn what_leaves_the_kernel_is_shown_and_taken_away_with_its_last_flow() {
    let network = network();
    (1..=SERVERS).for_each(|number| network.greets(number, 8080));
    let mut weir = Setup::of(&on_kernel(&network)).start();
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &ends()[0].to_string())).collect();
    weir.reloads(&on_proxy(&network));
    talks.iter_mut().for_each(|talk| talk.goes_on(b"in the kernel"));
    until("it is seen to leave", || {
        let listener = listener(&weir, "tcp_four");
        let why = listener["plane_reason"].as_str()?;
        (listener["plane"] == "proxy" && why.contains("4 flows go on there")).then_some(())
    });
    let mut new = Talk::begin(&network, &ends()[0].to_string());
    new.goes_on(b"through the proxy");
    let flows = weir.admin().reads("/v1/flows").json();
    assert_eq!(flows["matching"], 4, "{flows}");
    drop(talks);
    until_within(Duration::from_secs(60), "the last flow to go", || {
        listener(&weir, "tcp_four")["plane_reason"].is_null().then_some(())
    });
    until("the program to leave the interfaces", || is_left_alone(&network).then_some(()));
    new.goes_on(b"as before");
}

#[test]
fn what_the_proxy_keeps_is_counted_and_explained_and_not_asked_for_when_it_has_ended() {
    let network = network();
    (1..=SERVERS).for_each(|number| network.greets(number, 8080));
    let mut weir = Setup::of(&on_proxy(&network)).start();
    let mut talk = Talk::begin(&network, &ends()[0].to_string());
    let client = talk.stream.local_addr().unwrap().to_string();
    weir.reloads(&on_kernel(&network));
    talk.goes_on(b"through the proxy");
    Talk::begin(&network, &ends()[0].to_string()).goes_on(b"in the kernel");
    until("it is counted", || (packets(&weir, "tcp_four", "to_host") > 0).then_some(()));
    let said = weir.command(&["explain", "tcp", &client, &ends()[0].to_string()]).stdout;
    assert!(said.contains("a socket of this host has its connection") && said.contains("to_host"), "{said}");
}

#[test]
fn connections_of_both_planes_outlive_an_upgrade_and_those_of_the_kernel_a_kill() {
    let network = network();
    (1..=SERVERS).for_each(|number| network.greets(number, 8080));
    let mut weir = Setup::of(&on_kernel(&network)).start();
    let to = ends()[0].to_string();
    let mut in_kernel: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &to)).collect();
    weir.reloads(&on_proxy(&network));
    let mut in_proxy: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &to)).collect();
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the new process to answer", || {
        let status = weir.admin().tries_to_read("/v1/status")?.json();
        (status["pid"] != old).then_some(())
    });
    for talk in in_kernel.iter_mut().chain(&mut in_proxy) {
        talk.goes_on(b"over an upgrade");
    }
    drop(in_proxy);
    until_within(Duration::from_secs(20), "the old process to end", || (!weir.is_running(old)).then_some(()));
    in_kernel.iter_mut().for_each(|talk| talk.goes_on(b"the old one has ended"));
    // What the upgrade started is no child of the test's, so that nobody else waits for its end.
    let new = weir.pid();
    weir.signals_pid(new, Signal::KILL);
    let admin = weir.address("admin");
    until("it to be gone", || TcpStream::connect(admin).is_err().then_some(()));
    in_kernel.iter_mut().for_each(|talk| talk.goes_on(b"nobody is there"));
    weir.starts_again();
    in_kernel.iter_mut().for_each(|talk| talk.goes_on(b"somebody is"));
    Talk::begin(&network, &to).goes_on(b"new");
}

#[test]
fn datagrams_of_flows_in_the_kernel_stay_there_and_others_find_the_plane_of_their_listener() {
    let network = network();
    (1..=SERVERS).for_each(|number| network.greets(number, 8080));
    let mut weir = Setup::of(&on_kernel(&network)).start();
    let to = ends()[0].to_string();
    let socket = datagram_socket(&network, "10.50.1.2");
    let server = asks(&socket, &to, b"first");
    for text in [on_proxy(&network), on_kernel(&network), on_proxy(&network)] {
        weir.reloads(&text);
        assert_eq!(asks(&socket, &to, b"again"), server);
        asks(&datagram_socket(&network, "10.50.1.2"), &to, b"another");
    }
}

#[test]
fn flows_of_a_listener_that_is_removed_go_on_and_new_ones_are_not_taken() {
    let network = network();
    (1..=SERVERS).for_each(|number| network.greets(number, 8080));
    let mut weir = Setup::of(&on_kernel(&network)).start();
    let mut talk = Talk::begin(&network, &ends()[0].to_string());
    let text = on_kernel(&network);
    let rest = &text[text.find("[listener.tcp_six]").expect("it is there")..];
    let head = &text[..text.find("[listener.tcp_four]").expect("it is there")];
    weir.reloads(&format!("{head}{rest}"));
    talk.goes_on(b"its pool is gone as well");
    assert!(Talk::try_begin(&network, ends()[0]).is_err());
    Talk::begin(&network, &ends()[1].to_string()).goes_on(b"the others stay");
}
