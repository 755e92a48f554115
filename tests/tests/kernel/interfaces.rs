//! Interfaces that come anew under their names, and hosts that have more than the program's tables hold.

use std::fs;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use weir_tests::dialogue::{Setup, Signal, Weir, until};
use weir_tests::network::Network;

use super::{Talk, VIP, VIP6, config_of, start};

fn comes_anew(network: &Network) {
    network.run("weir", &["ip", "link", "del", "to_client"]);
    network.links_again("client", 1);
}

fn begins(network: &Network) -> Talk {
    let to = format!("{VIP}:80").parse().unwrap();
    until("a connection", || Talk::try_begin(network, to).ok())
}

fn reason(weir: &Weir) -> Value {
    weir.admin().reads("/v1/status").json()["listeners"][0]["plane_reason"].clone()
}

#[test]
fn an_interface_that_came_anew_between_two_looks_is_attached_to_again() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    begins(&network).goes_on(b"by the first");
    // What is not running sees the second when it looks again, and not that the first was gone.
    let pid = weir.pid();
    weir.signals_pid(pid, Signal::STOP);
    comes_anew(&network);
    weir.signals_pid(pid, Signal::CONT);
    begins(&network).goes_on(b"by the second");
}

/// A directory lies where the attachment is to be pinned.
#[test]
fn an_interface_that_cannot_be_attached_to_is_said_and_tried_again() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    begins(&network).goes_on(b"by the first");
    let layout = fs::read_dir(network.bpf_directory()).unwrap().next().unwrap().unwrap().path();
    // Before Linux 6.6 there are no pins.
    let links = layout.join("links");
    let pin = links.join("to_client");
    if !pin.exists() {
        return;
    }
    let pid = weir.pid();
    weir.signals_pid(pid, Signal::STOP);
    fs::remove_file(&pin).unwrap();
    fs::create_dir(&pin).unwrap();
    comes_anew(&network);
    weir.signals_pid(pid, Signal::CONT);
    until("it is not ready", || (weir.admin().reads("/readyz").status() == 503).then_some(()));
    assert!(reason(&weir).as_str().is_some_and(|why| why.contains("to_client")), "{}", reason(&weir));
    assert_eq!(weir.metric("weir_l4_attached", &[("interface", "to_client")]), 0.0);
    fs::remove_dir(&pin).unwrap();
    until("it is ready again", || (weir.admin().reads("/readyz").status() == 200).then_some(()));
    begins(&network).goes_on(b"by the second");
    assert_eq!(reason(&weir), Value::Null);
    let said = weir.stderr();
    assert_eq!(said.matches("does not follow the host's interfaces").count(), 1, "{said}");
}

#[test]
fn a_host_with_more_addresses_than_there_is_room_for_is_followed_all_the_same() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    let lines: String =
        (0..4_300).map(|at| format!("addr add 10.77.{}.{}/32 dev lo\n", at / 250, at % 250 + 1)).collect();
    let batch = weir.dir().join("addresses");
    fs::write(&batch, lines).unwrap();
    network.run("weir", &["ip", "-batch", &batch.display().to_string()]);
    weir.reaches("weir_l4_left_out", &[("what", "addresses")], 100.0);
    comes_anew(&network);
    begins(&network).goes_on(b"by an interface that came since");
    let said = weir.stderr();
    assert_eq!(said.matches("than the kernel plane has room for").count(), 1, "{said}");
    assert!(!said.contains("was not told"), "{said}");
    network.run("weir", &["ip", "addr", "flush", "dev", "lo", "to", "10.77.0.0/16"]);
    until("there is room again", || {
        (weir.metric("weir_l4_left_out", &[("what", "addresses")]) == 0.0).then_some(())
    });
}

/// Files that tell of attachments.
fn pins(network: &Network) -> Vec<String> {
    let layout = fs::read_dir(network.bpf_directory()).unwrap().next().unwrap().unwrap().path();
    let kept = ["links", "filters"].into_iter().filter_map(|kind| fs::read_dir(layout.join(kind)).ok());
    let mut names: Vec<String> =
        kept.flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// It was attached to by its new name only after it was taken off the old one, and the host reset what came
/// in between.
#[test]
fn an_interface_that_is_renamed_keeps_the_program() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    let mut talk = begins(&network);
    talk.goes_on(b"by the first name");
    let rename = |before: &str, now: &str| {
        network.run("weir", &["ip", "link", "set", before, "name", now]);
    };
    let first = Command::new("ip").args(["link", "set", "to_client", "name", "wan.0"]).output().unwrap();
    let problem = String::from_utf8_lossy(&first.stderr);
    // Before Linux 6.2 an interface that is up keeps its name.
    if problem.contains("busy") {
        return;
    }
    assert!(first.status.success(), "{problem}");
    weir.reaches("weir_l4_attached", &[("interface", "wan.0")], 1.0);
    assert_eq!(pins(&network), ["to_server1", "wan:0"]);
    talk.goes_on(b"by the second");
    // Two that are seen with each other's names at once.
    let pid = weir.pid();
    weir.signals_pid(pid, Signal::STOP);
    rename("wan.0", "aside");
    rename("to_server1", "wan.0");
    rename("aside", "to_server1");
    weir.signals_pid(pid, Signal::CONT);
    until("it is told of both", || {
        let said = weir.stderr();
        let of = |before: &str, now: &str| format!("renamed before=\"{before}\" interface=\"{now}\"");
        (said.contains(&of("wan.0", "to_server1")) && said.contains(&of("to_server1", "wan.0"))).then_some(())
    });
    assert_eq!(pins(&network), ["to_server1", "wan:0"]);
    talk.goes_on(b"by the third");
    begins(&network).goes_on(b"by another");
    assert_eq!(weir.metric("weir_l4_attachments_lost_total", &[]), 0.0);
    assert!(!weir.stderr().contains("is detached"), "{}", weir.stderr());
}

/// It was taken off while the interface was down, and the host reset what came before it was there again.
#[test]
fn an_interface_that_goes_down_and_up_keeps_the_program() {
    for of_listener in ["", "interface = [\"to_*\", \"later\"]"] {
        let network = Network::enter(1);
        network.greets(1, 8080);
        let weir = Setup::of(&config_of(&network, 1, of_listener, 8080, "")).start();
        let mut talk = begins(&network);
        talk.goes_on(b"before");
        network.run("weir", &["ip", "link", "set", "to_client", "down"]);
        // Once Weir has seen this one, it has seen that the other is down.
        network.run("weir", &["ip", "link", "add", "later", "type", "veth", "peer", "name", "end"]);
        network.run("weir", &["ip", "addr", "add", "10.70.0.1/24", "dev", "later"]);
        network.run("weir", &["ip", "link", "set", "end", "up"]);
        network.run("weir", &["ip", "link", "set", "later", "up"]);
        weir.reaches("weir_l4_attached", &[("interface", "later")], 1.0);
        assert_eq!(weir.metric("weir_l4_attached", &[("interface", "to_client")]), 1.0);
        network.run("weir", &["ip", "link", "set", "to_client", "up"]);
        talk.goes_on(b"afterwards");
        assert!(!weir.stderr().contains("is detached"), "{}", weir.stderr());
        // One that is gone is let go.
        network.run("weir", &["ip", "link", "del", "later"]);
        until("it is detached", || weir.stderr().contains("detached interface=\"later\"").then_some(()));
    }
}

#[test]
fn an_interface_that_is_not_there_is_warned_of_and_taken_once_it_comes() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    network.run("weir", &["ip", "link", "set", "to_client", "down"]);
    let text = config_of(&network, 1, "interface = [\"to_client\", \"to_server*\", \"else*\"]", 8080, "");
    let weir = Setup::of(&text).start();
    let why = "no interface of this host that is up is named to_client";
    until("status says so", || (reason(&weir) == why).then_some(()));
    let warned = "warning: listener `tcp_four`: no interface of this host that is up is named to_client";
    let checked = weir.command(&["check"]);
    assert!(checked.code == 0 && checked.stderr.contains(warned), "{checked:?}");
    assert!(!checked.stderr.contains("else") && !checked.stderr.contains("to_server"), "{checked:?}");
    let said = weir.stderr();
    assert_eq!(
        said.matches("is named so listener=\"tcp_four\" interface=\"to_client\"").count(),
        1,
        "{said}"
    );
    network.run("weir", &["ip", "link", "set", "to_client", "up"]);
    begins(&network).goes_on(b"by an interface that came");
    until("status says nothing more", || (reason(&weir) == Value::Null).then_some(()));
    assert_eq!(weir.command(&["check"]).stderr, "");
}

fn reason_is(weir: &Weir, why: &str) {
    until(&format!("status says: {why}"), || {
        reason(weir).as_str().is_some_and(|told| told == why).then_some(())
    });
}

/// The packet program stayed at the interface that had the name before, and the one that has it was said to
/// be served.
#[test]
fn an_interface_that_took_anothers_name_while_no_process_ran_is_served() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let of_listener = "interface = [\"to_client\", \"to_server1\"]";
    let mut weir = Setup::of(&config_of(&network, 1, of_listener, 8080, "")).start();
    begins(&network).goes_on(b"by the first");
    weir.signals(Signal::KILL);
    weir.exits();
    let commands = |lines: &[&str]| {
        for line in lines {
            let line = line.replace("CLIENT", &network.full("client"));
            let words: Vec<&str> = std::iter::once("ip").chain(line.split(' ')).collect();
            network.run("weir", &words);
        }
    };
    commands(&[
        "link set to_client down",
        "link set to_client name before",
        "link set before up",
        "link add to_client type veth peer name second netns CLIENT",
        "addr add 10.50.2.1/24 dev to_client",
        "link set to_client up",
        "-n CLIENT addr add 10.50.2.2/24 dev second",
        "-n CLIENT link set second up",
        "-n CLIENT route add 192.0.2.10 via 10.50.2.1 dev second",
    ]);
    weir.starts_again();
    begins(&network).goes_on(b"by the second");
    assert_eq!(weir.metric("weir_l4_attached", &[("interface", "to_client")]), 1.0);
    assert_eq!(weir.metric("weir_l4_attachments_lost_total", &[]), 0.0);
}

/// Every connection timed out, and nothing said why.
#[test]
fn a_backend_whose_answers_go_past_the_plane_is_named() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let text = |names: &str| config_of(&network, 1, &format!("interface = [{names}]"), 8080, "");
    let mut weir = Setup::of(&text("\"to_client\"")).start();
    let why = "the route to backend 10.50.11.2:8080 leads by to_server1, where the kernel plane takes no packets: its answers reach no client";
    reason_is(&weir, why);
    assert_eq!(
        weir.stderr().matches(&format!("{why} listener=\"tcp_four\"")).count(),
        1,
        "{}",
        weir.stderr()
    );
    let checked = weir.command(&["check", "--online"]);
    assert!(checked.stderr.contains(&format!("warning: listener `tcp_four`: {why}")), "{checked:?}");
    let question = "{\"protocol\":\"tcp\",\"source\":\"10.50.1.2:40000\",\"destination\":\"192.0.2.10:80\"}";
    let explained = weir.admin().calls("POST", "/v1/explain", &[], question).response.text();
    assert!(explained.contains(&format!("but {why}")), "{explained}");
    weir.reloads(&text("\"to_client\", \"to_server*\""));
    until("status says nothing more", || (reason(&weir) == Value::Null).then_some(()));
    begins(&network).goes_on(b"both ways");
    assert_eq!(weir.command(&["check"]).stderr, "");
}

#[test]
fn an_interface_that_is_not_of_ethernet_is_called_so_and_keeps_a_listener_off_the_plane_that_may_choose() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    for line in ["tuntap add t0 mode tun", "link set t0 up", "addr add 192.0.2.10/32 dev t0"] {
        let words: Vec<&str> = std::iter::once("ip").chain(line.split(' ')).collect();
        network.run("weir", &words);
    }
    let text = config_of(&network, 1, "interface = [\"to_*\", \"t0\"]", 8080, "");
    let mut weir = Setup::of(&text).start();
    let why = "t0 is not an interface of Ethernet, and the kernel plane takes packets at no other";
    reason_is(&weir, why);
    let checked = weir.command(&["check"]);
    assert!(checked.stderr.contains(&format!("warning: listener `tcp_four`: {why}")), "{checked:?}");
    assert!(weir.stderr().contains("is not an interface of Ethernet listener=\"tcp_four\" interface=\"t0\""));
    let four = text.split("[listener.tcp_six]").next().unwrap();
    weir.reloads(&four.replace("\"to_*\", \"t0\"", "\"t0\"").replace("\"kernel\"", "\"auto\""));
    reason_is(&weir, why);
    let listener = weir.admin().reads("/v1/status").json()["listeners"][0].clone();
    assert_eq!(listener["plane"], "proxy");
    assert_eq!(weir.command(&["check"]).stderr, "");
}

/// As keepalived makes it by `use_vmac`: no route of the main table leads out by it.
#[test]
fn an_interface_that_has_a_listeners_address_is_served_without_being_named() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    network.sets("weir", "net.ipv4.conf.all.arp_ignore", "1");
    let weir = Setup::of(&config_of(&network, 1, "", 8080, "")).start();
    network.run(
        "weir",
        &["ip", "link", "add", "vrrp.51", "link", "to_client", "type", "macvlan", "mode", "private"],
    );
    network.run("weir", &["sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/vrrp.51/disable_ipv6"]);
    network.run("weir", &["ip", "link", "set", "vrrp.51", "up"]);
    network.run("weir", &["ip", "addr", "add", "192.0.2.10/32", "dev", "vrrp.51"]);
    network.run("client", &["ip", "route", "add", "192.0.2.10", "dev", "uplink"]);
    weir.reaches("weir_l4_attached", &[("interface", "vrrp.51")], 1.0);
    begins(&network).goes_on(b"to its address");
}

/// As keepalived makes it by `use_vmac` on an interface that a listener names: clients came by the one above,
/// and nothing said that packets are not taken there.
#[test]
fn a_listeners_address_on_an_interface_above_a_named_one_is_told_of() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let text = |names: &str| config_of(&network, 1, &format!("interface = [{names}]"), 8080, "");
    let mut weir = Setup::of(&text("\"to_*\"")).start();
    assert_eq!(reason(&weir), Value::Null);
    for line in [
        "link add vrrp.51 link to_client type macvlan mode private",
        "link set vrrp.51 up",
        "addr add 192.0.2.10/32 dev vrrp.51",
    ] {
        let words: Vec<&str> = std::iter::once("ip").chain(line.split(' ')).collect();
        network.run("weir", &words);
    }
    let why = "192.0.2.10 is on vrrp.51, whose frames are not those of to_client: name vrrp.51 in `interface` as well, or clients that come by it are left to this host";
    reason_is(&weir, why);
    let checked = weir.command(&["check"]);
    assert!(checked.stderr.contains(&format!("warning: listener `tcp_four`: {why}")), "{checked:?}");
    assert_eq!(
        weir.stderr().matches(&format!("{why} listener=\"tcp_four\"")).count(),
        1,
        "{}",
        weir.stderr()
    );
    weir.reloads(&text("\"to_*\", \"vrrp.*\""));
    until("status says nothing more", || (reason(&weir) == Value::Null).then_some(()));
    assert_eq!(weir.command(&["check"]).stderr, "");
}

/// A client that came by an interface which another listener named was served by both.
#[test]
fn a_listener_takes_clients_by_its_own_interfaces_alone() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let text = config_of(&network, 1, "interface = [\"to_server1\"]", 8080, "");
    let all = "interface = [\"to_client\", \"to_server1\"]";
    let (tcp, udp) = text.split_once("[listener.udp_four]").unwrap();
    let mut weir = Setup::of(&text.replace("interface = [\"to_server1\"]", all)).start();
    let mut talk = begins(&network);
    weir.reloads(&format!("{tcp}[listener.udp_four]{}", udp.replace("interface = [\"to_server1\"]", all)));
    let refused =
        Talk::try_begin_within(Duration::from_millis(300), &network, format!("{VIP}:80").parse().unwrap());
    assert!(refused.is_err(), "it came by the other's interface");
    Talk::begin(&network, &format!("[{VIP6}]:80")).goes_on(b"to a listener that means it");
    talk.goes_on(b"a flow that it had");
    weir.reloads(&text.replace("interface = [\"to_server1\"]", all));
    begins(&network).goes_on(b"by its own");
}
