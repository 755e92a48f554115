//! Probes that go the way of clients' packets: to the listener's address, at the backend that is asked. Their
//! backends are hosts with a decapsulator of their own; before, each of those that clients did not reach was
//! ready, since its own address answered.

use std::net::{SocketAddr, TcpListener};

use aya::programs::{SchedClassifier, TcAttachType};
use serde_json::Value;
use weir_tests::dialogue::{Setup, Signal, Weir, until, until_within};
use weir_tests::network::{Network, PATIENCE};

use super::decapsulate::Decapsulates;
use super::failover::backends;
use super::{Talk, VIP, VIP6};

const HEALTH: &str = "check = \"tcp\", interval = \"100ms\", passive = \"off\"";

/// A listener by `forward` for each family, before servers that greet at their own addresses alone.
fn config(network: &Network, servers: usize, forward: &str, health: &str) -> String {
    let mut text = format!("[kernel]\ndirectory = \"{}\"\nflows = 4096\n", network.bpf_directory());
    for (name, vip, is_v6) in [("four", VIP.to_owned(), false), ("six", format!("[{VIP6}]"), true)] {
        let backends: Vec<String> =
            (1..=servers).map(|number| format!("\"{}\"", network.server(number, 8080, is_v6))).collect();
        text += &format!(
            "[listener.{name}]\nprotocol = \"tcp\"\nbind = \"{vip}:8080\"\nplane = \"kernel\"\nforward = \"{forward}\"\n\
             pool = \"{name}\"\n[pool.{name}]\nbackends = [{}]\nbalance = \"round-robin\"\nhealth = {{ {health} }}\n",
            backends.join(", ")
        );
    }
    text
}

fn greets_at_its_own(network: &Network, server: usize) {
    network.greets(server, 8080);
    for key in ["net.ipv4.conf.all.rp_filter", "net.ipv4.conf.uplink.rp_filter"] {
        network.sets(&format!("server{server}"), key, "0");
    }
}

fn has_vips(network: &Network, server: usize) {
    let host = format!("server{server}");
    network.run(&host, &["ip", "addr", "add", &format!("{VIP}/32"), "dev", "lo"]);
    network.run(&host, &["ip", "addr", "add", &format!("{VIP6}/128"), "dev", "lo", "nodad"]);
}

fn greets_at_vips(network: &Network, server: usize) {
    for vip in [VIP, VIP6] {
        network.greets_at(server, vip.parse().unwrap(), 8080);
    }
}

fn decapsulates(network: &Network, server: usize) -> Decapsulates {
    let net = 10 + server;
    let words = format!("--from 10.50.{net}.1 --from fd50:{net}::1 --to {VIP} --to {VIP6}");
    Decapsulates::start(network, server, "uplink", &words)
}

/// What the last probe of a backend got, once it is in this state.
fn comes_to(weir: &Weir, pool: &str, server: usize, state: &str) -> String {
    until(&format!("server {server} of {pool} to be {state}"), || {
        let all = backends(weir, pool);
        let backend = &all[server - 1];
        let probe = &backend["probes"]["history"][0];
        let last = probe["detail"].as_str().unwrap_or_default().to_owned();
        let is_known = !last.is_empty() && (state == "ready") == (probe["good"] == true);
        (backend["state"] == state && is_known).then_some(last)
    })
}

fn place(pool: &str, forward: &str) -> String {
    let vip = if pool == "four" { VIP.to_owned() } else { format!("[{VIP6}]") };
    let way = if forward == "ipip" { "through the tunnel" } else { "by its MAC address" };
    format!("at VIP {vip}:8080 {way}")
}

/// The first server's own address answers, and that is all that probes saw: its clients heard nothing.
fn a_backend_without_the_listeners_address_is_down(forward: &str) {
    let network = Network::enter(2);
    (1..=2).for_each(|server| greets_at_its_own(&network, server));
    has_vips(&network, 2);
    greets_at_vips(&network, 2);
    let _decapsulates = (forward == "ipip").then(|| [decapsulates(&network, 1), decapsulates(&network, 2)]);
    let mut weir = Setup::of(&config(&network, 2, forward, HEALTH)).start();
    for pool in ["four", "six"] {
        let last = comes_to(&weir, pool, 1, "down");
        let place = place(pool, forward);
        let expected = format!("no answer {place}: did not accept within ");
        assert!(last.starts_with(&expected), "{last}: {}", weir.story());
        assert_eq!(comes_to(&weir, pool, 2, "ready"), format!("accepted {place}"));
        // What it says comes by a thread of its own.
        until("the reason in the log", || weir.stderr().contains(&expected).then_some(()));
    }
    for vip in [VIP.to_owned(), format!("[{VIP6}]")] {
        (0..4).for_each(|_| assert_eq!(Talk::begin(&network, &format!("{vip}:8080")).server, "2"));
    }
    // As it was.
    weir.reloads(&config(&network, 2, forward, &format!("{HEALTH}, at = \"backend\"")));
    for pool in ["four", "six"] {
        assert_eq!(comes_to(&weir, pool, 1, "ready"), "accepted");
    }
    weir.reloads(&config(&network, 2, forward, &format!("{HEALTH}, at = \"vip\"")));
    for pool in ["four", "six"] {
        comes_to(&weir, pool, 1, "down");
    }
    has_vips(&network, 1);
    // Refused is an answer of the server's own.
    for pool in ["four", "six"] {
        let refused = format!("{}: no connection: connection refused", place(pool, forward));
        until("it is refused", || (comes_to(&weir, pool, 1, "down") == refused).then_some(()));
    }
    greets_at_vips(&network, 1);
    for pool in ["four", "six"] {
        comes_to(&weir, pool, 1, "ready");
    }
}

#[test]
fn a_backend_of_ipip_without_the_listeners_address_is_down_though_its_own_answers() {
    a_backend_without_the_listeners_address_is_down("ipip");
}

#[test]
fn a_backend_of_dsr_without_the_listeners_address_is_down_though_its_own_answers() {
    a_backend_without_the_listeners_address_is_down("dsr");
}

#[test]
fn a_backend_without_a_decapsulator_is_down_until_it_has_one() {
    let network = Network::enter(1);
    greets_at_its_own(&network, 1);
    has_vips(&network, 1);
    greets_at_vips(&network, 1);
    let weir = Setup::of(&config(&network, 1, "ipip", HEALTH)).start();
    for pool in ["four", "six"] {
        let last = comes_to(&weir, pool, 1, "down");
        assert!(last.contains(&place(pool, "ipip")), "{last}: {}", weir.story());
    }
    let decapsulates = decapsulates(&network, 1);
    for pool in ["four", "six"] {
        comes_to(&weir, pool, 1, "ready");
    }
    decapsulates.ends();
    for pool in ["four", "six"] {
        comes_to(&weir, pool, 1, "down");
    }
}

/// The error was about a connection that Weir's host does not have, and each probe waited for its timeout:
/// here so long that nobody sees its end.
#[test]
fn a_refusal_by_icmp_at_the_listeners_address_is_heard_at_once() {
    let health =
        "check = \"tcp\", interval = \"1h\", timeout = \"1h\", fast_interval = \"100ms\", passive = \"off\"";
    for (forward, takes_off) in [("ipip", true), ("ipip", false), ("dsr", false)] {
        let network = Network::enter(1);
        greets_at_its_own(&network, 1);
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            network.sets("server1", key, "1");
        }
        network.run("server1", &["ip", "route", "add", "unreachable", VIP]);
        network.run("server1", &["ip", "-6", "route", "add", "unreachable", VIP6]);
        let _decapsulates = takes_off.then(|| decapsulates(&network, 1));
        let weir = Setup::of(&config(&network, 1, forward, health)).start();
        let expected = match (forward, takes_off) {
            ("ipip", false) => ["nothing there takes outer headers off"; 2],
            _ => ["no route to host", "network is unreachable"],
        };
        for pool in ["four", "six"] {
            let last = comes_to(&weir, pool, 1, "down");
            let told = last.strip_prefix(&format!("{}: no connection: ", place(pool, forward)));
            assert!(told.is_some_and(|told| expected.contains(&told)), "{last}: {}", weir.story());
        }
    }
}

/// keepalived gives the address to Weir's host, whose stack takes nothing that says it comes from there.
#[test]
fn a_host_that_holds_the_listeners_address_hears_what_it_answers_at_backends() {
    for forward in ["ipip", "dsr"] {
        let network = Network::enter(1);
        greets_at_its_own(&network, 1);
        has_vips(&network, 1);
        greets_at_vips(&network, 1);
        let _decapsulates = (forward == "ipip").then(|| decapsulates(&network, 1));
        network.run("weir", &["ip", "addr", "add", &format!("{VIP}/32"), "dev", "to_client"]);
        network.run("weir", &["ip", "addr", "add", &format!("{VIP6}/128"), "dev", "to_client", "nodad"]);
        let weir = Setup::of(&config(&network, 1, forward, HEALTH)).start();
        for pool in ["four", "six"] {
            assert_eq!(comes_to(&weir, pool, 1, "ready"), format!("accepted {}", place(pool, forward)));
        }
    }
}

/// One request each, of HTTP, whose answer is larger than a segment.
#[test]
fn a_check_of_http_gets_its_answer_from_the_listeners_address() {
    let network = Network::enter(1);
    greets_at_its_own(&network, 1);
    has_vips(&network, 1);
    for vip in [VIP.to_owned(), format!("[{VIP6}]")] {
        let at: SocketAddr = format!("{vip}:8080").parse().unwrap();
        let listener = network.on("server1", || {
            until_within(PATIENCE, "an address to listen at", || TcpListener::bind(at).ok())
        });
        std::thread::spawn(move || serves_pages(&listener));
    }
    let _decapsulates = decapsulates(&network, 1);
    let health = "check = \"http\", path = \"/x\", interval = \"100ms\", expect_body = \"the end\"";
    let weir = Setup::of(&config(&network, 1, "ipip", health)).start();
    for pool in ["four", "six"] {
        let last = comes_to(&weir, pool, 1, "ready");
        assert_eq!(last, format!("answered 200 {}", place(pool, "ipip")), "{}", weir.story());
    }
}

fn serves_pages(listener: &TcpListener) {
    use std::io::{Read, Write};
    for stream in listener.incoming() {
        let Ok(mut stream) = stream else { return };
        let mut asked = Vec::<u8>::new();
        let mut buffer = [0; 4096];
        while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
            match stream.read(&mut buffer) {
                Ok(count @ 1..) => asked.extend(&buffer[..count]),
                _ => break,
            }
        }
        let body = "page ".repeat(4000) + "the end";
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        let _ = stream.write_all((head + &body).as_bytes());
    }
}

/// Waits until so many programs are at the ingress and the egress of an interface, by tcx or as filters of
/// clsact.
fn runs(network: &Network, interface: &str, expected: [usize; 2]) {
    let count = |at, direction| {
        let by_tcx =
            network.on("weir", || SchedClassifier::query_tcx(interface, at).map(|(_, all)| all.len()));
        let filters = network.run("weir", &["tc", "filter", "show", "dev", interface, direction]);
        by_tcx.unwrap_or(0) + filters.matches("direct-action").count()
    };
    until_within(PATIENCE, &format!("{expected:?} programs at {interface}"), || {
        let found = [count(TcAttachType::Ingress, "ingress"), count(TcAttachType::Egress, "egress")];
        (found == expected).then_some(())
    });
}

fn upgrades(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(PATIENCE * 4, "the old process to end", || (!weir.is_running(old)).then_some(()));
    let status = || -> Value { until("its status", || weir.admin().tries_to_read("/v1/status")).json() };
    assert_ne!(status()["pid"], old);
}

#[test]
fn probes_go_the_same_way_after_reloads_and_upgrades_and_leave_nothing_behind() {
    let network = Network::enter(2);
    (1..=2).for_each(|server| greets_at_its_own(&network, server));
    has_vips(&network, 1);
    greets_at_vips(&network, 1);
    let _decapsulates = [decapsulates(&network, 1), decapsulates(&network, 2)];
    let mut weir = Setup::of(&config(&network, 2, "ipip", HEALTH)).start();
    let is_as_it_was = |weir: &Weir| {
        for pool in ["four", "six"] {
            assert!(comes_to(weir, pool, 1, "ready").ends_with("through the tunnel"), "{}", weir.story());
            assert!(comes_to(weir, pool, 2, "down").contains("through the tunnel"), "{}", weir.story());
        }
    };
    is_as_it_was(&weir);
    weir.reloads(&config(&network, 2, "ipip", &format!("{HEALTH}, rise = 1")));
    is_as_it_was(&weir);
    upgrades(&weir);
    is_as_it_was(&weir);
    // The plane's, and that for probes.
    runs(&network, "to_server1", [2, 1]);
    weir.reloads(&config(&network, 2, "ipip", &format!("{HEALTH}, at = \"backend\"")));
    comes_to(&weir, "four", 2, "ready");
    runs(&network, "to_server1", [1, 0]);
    weir.reloads(&config(&network, 2, "ipip", HEALTH));
    is_as_it_was(&weir);
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
    runs(&network, "to_server1", [0, 0]);
}

/// One state for the pool: who lacks the address of one of its listeners gets nothing of any.
#[test]
fn a_backend_is_up_where_it_answers_at_the_addresses_of_all_its_listeners() {
    let network = Network::enter(1);
    greets_at_its_own(&network, 1);
    has_vips(&network, 1);
    greets_at_vips(&network, 1);
    let second = "192.0.2.11";
    let with_second = config(&network, 1, "dsr", HEALTH)
        + &format!(
            "[listener.second]\nprotocol = \"tcp\"\nbind = \"{second}:8080\"\nplane = \"kernel\"\nforward = \"dsr\"\npool = \"four\"\n"
        );
    let weir = Setup::of(&with_second).start();
    let last = comes_to(&weir, "four", 1, "down");
    assert!(last.starts_with(&format!("no answer at VIP {second}:8080 by its MAC address")), "{last}");
    comes_to(&weir, "six", 1, "ready");
    network.run("server1", &["ip", "addr", "add", &format!("{second}/32"), "dev", "lo"]);
    network.greets_at(1, second.parse().unwrap(), 8080);
    let last = comes_to(&weir, "four", 1, "ready");
    assert!(last.contains(VIP) && last.contains(second), "{last}");
}

/// A listener whose clients reach backends at their own addresses, on either plane. Those were not asked, and
/// who did not listen there was ready for its clients all the same.
#[test]
fn a_backend_that_other_listeners_use_as_well_is_up_where_its_own_address_answers_too() {
    for other in [
        "protocol = \"tcp\"\nbind = \"192.0.2.11:80\"\nplane = \"kernel\"",
        "protocol = \"tcp\"\nbind = \"10.50.1.1:8081\"",
    ] {
        let network = Network::enter(1);
        has_vips(&network, 1);
        greets_at_vips(&network, 1);
        let text = config(&network, 1, "dsr", HEALTH);
        let shared = format!("{text}[listener.other]\n{other}\npool = \"four\"\n");
        let mut weir = Setup::of(&shared).start();
        let last = comes_to(&weir, "four", 1, "down");
        assert_eq!(last, "at its own address: no connection: connection refused", "{}", weir.story());
        assert_eq!(comes_to(&weir, "six", 1, "ready"), format!("accepted {}", place("six", "dsr")));
        network.greets_at(1, network.server(1, 8080, false).ip(), 8080);
        let last = comes_to(&weir, "four", 1, "ready");
        assert_eq!(last, format!("accepted {} and at its own address", place("four", "dsr")));
        weir.reloads(&text);
        let alone = format!("accepted {}", place("four", "dsr"));
        until("its own is not asked", || (comes_to(&weir, "four", 1, "ready") == alone).then_some(()));
    }
}

/// What the backend's own address answers meanwhile says nothing of its listener's.
#[test]
fn an_interface_that_came_anew_has_probes_go_that_way_again() {
    let network = Network::enter(1);
    greets_at_its_own(&network, 1);
    let _decapsulates = decapsulates(&network, 1);
    let weir = Setup::of(&config(&network, 1, "dsr", HEALTH)).start();
    comes_to(&weir, "four", 1, "down");
    network.run("server1", &["ip", "link", "del", "uplink"]);
    network.links_again("server1", 11);
    for key in ["net.ipv4.conf.all.rp_filter", "net.ipv4.conf.uplink.rp_filter"] {
        network.sets("server1", key, "0");
    }
    has_vips(&network, 1);
    greets_at_vips(&network, 1);
    let last = comes_to(&weir, "four", 1, "ready");
    assert_eq!(last, format!("accepted {}", place("four", "dsr")), "{}", weir.story());
}

/// Routes of other tables than the main one lead there, by an interface that has no route in that.
fn leads_by_another_table(network: &Network, more: &[&str]) {
    network.sets("weir", "net.ipv6.conf.to_server1.disable_ipv6", "1");
    network.run("weir", &["ip", "rule", "add", "to", "10.50.11.0/24", "lookup", "100"]);
    let route = ["ip", "route", "add", "10.50.11.0/24", "dev", "to_server1", "table", "100"];
    network.run("weir", &[&route, more].concat());
    network.run("weir", &["ip", "route", "del", "10.50.11.0/24", "dev", "to_server1"]);
}

#[test]
fn probes_go_that_way_where_another_table_leads_to_the_backend() {
    let network = Network::enter(1);
    greets_at_its_own(&network, 1);
    leads_by_another_table(&network, &[]);
    let weir = Setup::of(&config(&network, 1, "dsr", HEALTH)).start();
    comes_to(&weir, "four", 1, "down");
    has_vips(&network, 1);
    greets_at_vips(&network, 1);
    comes_to(&weir, "four", 1, "ready");
}

/// It leaves by an interface that nothing leads to but a table's own word. The backend's own address answers.
#[test]
fn a_probe_that_left_unchanged_says_nothing_of_the_backend() {
    let network = Network::enter(1);
    greets_at_its_own(&network, 1);
    leads_by_another_table(&network, &["src", "10.50.1.1"]);
    let weir = Setup::of(&config(&network, 1, "dsr", HEALTH)).start();
    let address = network.server(1, 8080, false).to_string();
    let of_result = |result| [("pool", "four"), ("backend", address.as_str()), ("result", result)];
    weir.reaches("weir_probes_total", &of_result("unsent"), 3.0);
    for result in ["good", "bad"] {
        assert_eq!(weir.metric("weir_probes_total", &of_result(result)), 0.0, "{}", weir.story());
    }
    assert_eq!(backends(&weir, "four")[0]["state"], "ready");
    until("the reason in the log", || {
        weir.stderr().contains("it left for 10.50.11.2 unchanged").then_some(())
    });
}
