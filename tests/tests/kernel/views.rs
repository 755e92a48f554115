//! What an operator sees of it: why a packet would go where it goes, and which flows there are.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use serde_json::{Value, json};
use weir_tests::dialogue::{Admin, Draws, Setup, Weir, until};
use weir_tests::network::{Network, PATIENCE};

use super::decapsulate::Decapsulates;
use super::{Talk, VIP, VIP6, asks, config_of, start};

/// Flows of each algorithm and family; ten times as many with `WEIR_FULL`.
fn how_many() -> usize {
    if std::env::var_os("WEIR_FULL").is_some() { 1_000 } else { 100 }
}

/// Gives the client two networks of addresses, and Weir the way there.
pub(super) fn gives_the_client_many_addresses(network: &Network) {
    network.sets("client", "net.ipv6.ip_nonlocal_bind", "1");
    for (family, addresses, client) in [("-4", "10.60.0.0/16", "10.50.1.2"), ("-6", "fd60::/16", "fd50:1::2")]
    {
        network.run("client", &["ip", family, "route", "add", "local", addresses, "dev", "lo"]);
        network.run("weir", &["ip", family, "route", "add", addresses, "via", client]);
    }
}

fn explains(admin: &Admin, protocol: &str, source: SocketAddr, destination: SocketAddr) -> Value {
    let question = json!({ "protocol": protocol, "source": source, "destination": destination });
    let answer = admin.calls("POST", "/v1/explain", &[], &question.to_string());
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.json()
}

/// The number of a server by the address that an answer names.
fn server_of(network: &Network, explained: &Value, port: u16, is_v6: bool) -> String {
    let backend = explained["pool"]["backend"].as_str().unwrap_or_else(|| panic!("{explained}"));
    let number = (1..=3).find(|number| network.server(*number, port, is_v6).to_string() == backend);
    number.unwrap_or_else(|| panic!("{explained}")).to_string()
}

/// No flow goes in between: of the fewest flows another backend would have those by then.
fn agrees_with_the_wire(more: &str) {
    let network = Network::enter(3);
    (1..=3).for_each(|number| network.greets(number, 8080));
    let idle = "timeout = { client_idle = \"15m\" }";
    let weir = Setup::of(&config_of(&network, 3, idle, 8080, more)).start();
    each_flow_is_explained(&network, &weir, how_many(), 8080);
}

/// Explanations agree with the wire for `count` new flows of each family, before backends at `port`.
fn each_flow_is_explained(network: &Network, weir: &Weir, count: usize, port: u16) {
    gives_the_client_many_addresses(network);
    let admin = weir.admin();
    let mut draws = Draws::new();
    for is_v6 in [false, true] {
        let to: SocketAddr =
            if is_v6 { format!("[{VIP6}]:80") } else { format!("{VIP}:80") }.parse().unwrap();
        for at in 0..count {
            let host = 1 + draws.below(65_000) as u16;
            let address: IpAddr = match is_v6 {
                true => Ipv6Addr::new(0xfd60, 0, 0, 0, 0, 0, 0, host).into(),
                false => Ipv4Addr::from(0x0a3c_0000 + u32::from(host)).into(),
            };
            let from =
                network.on("client", || UdpSocket::bind((address, 0)).expect("an address of the client"));
            from.set_read_timeout(Some(PATIENCE)).unwrap();
            let explained = explains(&admin, "udp", from.local_addr().unwrap(), to);
            let expected = server_of(network, &explained, port, is_v6);
            assert_eq!(asks(&from, &to.to_string(), b"?"), expected, "flow {at}: {explained}");
            // The flow is there now, and explained as what it is.
            let again = explains(&admin, "udp", from.local_addr().unwrap(), to);
            assert_eq!(server_of(network, &again, port, is_v6), expected, "{again}");
            assert!(again["steps"][1].as_str().unwrap().contains("flow that is remembered"), "{again}");
            assert_eq!(asks(&from, &to.to_string(), b"!"), expected, "flow {at}: {again}");
            let listed = admin.reads(&format!("/v1/flows?client={}", from.local_addr().unwrap())).json();
            assert_eq!(listed["matching"], 1, "{listed}");
            let flow = &listed["flows"][0];
            let backend = network.server(expected.parse().unwrap(), port, is_v6).to_string();
            assert_eq!(flow["backend"], backend.as_str(), "{listed}");
            assert_eq!(flow["listener"], if is_v6 { "udp_six" } else { "udp_four" }, "{listed}");
            assert_eq!(flow["stage"], "open", "{listed}");
        }
    }
}

/// Three backends that have the addresses of the listeners, and answer clients themselves.
fn answering_past_weir() -> Network {
    let network = Network::enter(3);
    for server in 1..=3 {
        let host = format!("server{server}");
        for (vip, is_v6) in [(VIP, false), (VIP6, true)] {
            network.run(&host, &["ip", "addr", "add", vip, "dev", "lo"]);
            network.greets_at(server, network.server(server, 80, is_v6).ip(), 80);
            network.greets_at(server, vip.parse().unwrap(), 80);
        }
    }
    network
}

fn weir_before(network: &Network, forward: &str) -> Weir {
    let text = config_of(network, 3, &format!("forward = \"{forward}\""), 80, "balance = \"round-robin\"");
    Setup::of(&text).start()
}

#[test]
fn explanations_and_lists_agree_with_the_wire_by_direct_server_return() {
    let network = answering_past_weir();
    let weir = weir_before(&network, "dsr");
    each_flow_is_explained(&network, &weir, how_many() / 5, 80);
}

#[test]
fn explanations_and_lists_agree_with_the_wire_by_ip_in_ip() {
    let network = answering_past_weir();
    let takes_off = |server| {
        let net = 10 + server;
        let words = format!("--from 10.50.{net}.1 --from fd50:{net}::1 --to {VIP} --to {VIP6}");
        Decapsulates::start(&network, server, "uplink", &words)
    };
    // Before Weir probes them through the tunnel: one that is down for a moment would change the turns.
    let backends: Vec<Decapsulates> = (1..=3).map(takes_off).collect();
    let weir = weir_before(&network, "ipip");
    each_flow_is_explained(&network, &weir, how_many() / 5, 80);
    for backend in backends {
        let said = backend.ends();
        assert!(said.starts_with("taken_off ") && !said.starts_with("taken_off 0,"), "{said}");
    }
}

#[test]
fn explanations_agree_with_the_wire_by_turns() {
    agrees_with_the_wire("balance = \"round-robin\"");
}

#[test]
fn explanations_agree_with_the_wire_by_the_fewest_flows() {
    agrees_with_the_wire("balance = \"least-connections\"");
}

#[test]
fn explanations_agree_with_the_wire_by_source() {
    agrees_with_the_wire("balance = \"source\"");
}

#[test]
fn explanations_agree_with_the_wire_by_the_hash_of_the_flow() {
    agrees_with_the_wire("balance = \"maglev\"\nhash = { key = \"flow\" }");
}

#[test]
fn an_explanation_leaves_no_trace_and_says_each_step() {
    let (network, weir) = start(2, "balance = \"round-robin\"");
    let admin = weir.admin();
    let to: SocketAddr = format!("{VIP}:80").parse().unwrap();
    // The plane looks the ways to its backends up once they are there.
    let explained = until("the way to be known", || {
        let explained = explains(&admin, "tcp", "10.50.1.2:4000".parse().unwrap(), to);
        explained["steps"].to_string().contains("bytes fit").then_some(explained)
    });
    for _ in 0..5 {
        assert_eq!(explained, explains(&admin, "tcp", "10.50.1.2:4000".parse().unwrap(), to));
    }
    let steps: Vec<&str> = explained["steps"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let backend = explained["pool"]["backend"].as_str().unwrap();
    for expected in [
        "the first segment of a connection from 10.50.1.2:4000 to 192.0.2.10:80 comes in by to_client",
        "no flow is remembered: it is a new one, for listener tcp_four",
        &format!("{backend} takes it"),
        "it leaves by to_server1",
        &format!("to_backend, from 10.50.1.2:4000 to {backend}"),
    ] {
        assert!(steps.contains(&expected), "{expected}: {steps:#?}");
    }
    assert_eq!(weir.admin().reads("/v1/flows").json()["all"], 0);
    weir.reaches("weir_l4_packets_total", &[("listener", "tcp_four"), ("verdict", "to_backend")], 0.0);
    let words = weir.command(&["explain", "udp", "10.50.1.2:4000", &to.to_string()]);
    assert!(words.code == 0 && words.stdout.contains("a datagram from"), "{words:?}");
    let elsewhere = weir.command(&["explain", "tcp", "10.50.1.2:4000", "192.0.2.99:80"]);
    assert!(elsewhere.code != 0 && elsewhere.stderr.contains("no TCP listener"), "{elsewhere:?}");
    drop(network);
}

#[test]
fn flows_are_listed_with_their_backends_and_by_what_is_asked_for() {
    let (network, weir) = start(2, "balance = \"round-robin\"");
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &format!("{VIP}:80"))).collect();
    talks.push(Talk::begin(&network, &format!("[{VIP6}]:80")));
    let listed = |query: &str| weir.admin().reads(&format!("/v1/flows{query}")).json();
    let all = listed("");
    assert_eq!((all["all"].as_u64(), all["flows"].as_array().map(Vec::len)), (Some(5), Some(5)), "{all}");
    for talk in &talks {
        let client = talk.stream.local_addr().unwrap();
        let found = listed(&format!("?client={client}"));
        let flow = &found["flows"][0];
        let is_v6 = client.is_ipv6();
        let backend = network.server(talk.server.parse().unwrap(), 8080, is_v6).to_string();
        assert_eq!(found["matching"], 1, "{found}");
        assert_eq!(flow["backend"], backend.as_str(), "{found}");
        assert_eq!(flow["listener"], if is_v6 { "tcp_six" } else { "tcp_four" });
        assert_eq!((&flow["stage"], &flow["protocol"]), (&json!("open"), &json!("tcp")));
    }
    assert_eq!(listed("?listener=tcp_six")["matching"], 1);
    assert_eq!(listed(&format!("?backend={}", network.server(1, 8080, false)))["matching"], 2);
    assert_eq!(listed("?limit=1")["flows"].as_array().map(Vec::len), Some(1));
    assert_eq!(weir.admin().reads("/v1/flows?client=nobody").status(), 400);
    talks.truncate(1);
    // While they are remembered their listener does not count them as open ones.
    let open = |name: &str| {
        let status = weir.admin().reads("/v1/status").json();
        let listeners = status["listeners"].as_array().cloned().unwrap_or_default();
        listeners.iter().find(|it| it["name"] == name).and_then(|it| it["connections"].as_u64())
    };
    until("one is open by the status, and four are over", || {
        let is_open = (open("tcp_four"), open("tcp_six")) == (Some(1), Some(0));
        (is_open && listed("?stage=over")["matching"] == 4).then_some(())
    });
    let words = weir.command(&["flows", "--listener", "tcp_four", "--stage", "open"]);
    assert!(words.code == 0 && words.stdout.contains("1 shown of 1 that match"), "{words:?}");
    let status = weir.command(&["status"]);
    assert!(status.stdout.contains("kernel at to_client,to_server1,to_server2"), "{}", status.stdout);
}

/// Each packet of the client's and of its backend stands under exactly one verdict.
#[test]
fn verdicts_add_up_to_the_packets_that_were_sent() {
    const PACKETS: u64 = 500;
    let (network, weir) = start(2, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let socket = super::datagram_socket(&network, "0.0.0.0");
    for _ in 0..PACKETS {
        asks(&socket, &to, b"one of many");
    }
    // One more hop than it has to live, and one whose answer comes from a port that nobody listens at.
    socket.set_ttl(1).unwrap();
    socket.send_to(b"too far", &to).unwrap();
    let sum = || -> f64 {
        let samples = weir.admin().metrics();
        let of_it = samples.iter().filter(|one| {
            one.name == "weir_l4_packets_total"
                && one.labels.iter().any(|(k, v)| k == "listener" && v == "udp_four")
        });
        of_it.map(|one| one.value).sum()
    };
    until("all of them are counted", || (sum() == (2 * PACKETS + 1) as f64).then_some(()));
    weir.reaches("weir_l4_packets_total", &[("listener", "udp_four"), ("verdict", "time_exceeded")], 1.0);
}
