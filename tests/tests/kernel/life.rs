//! Starts, restarts and ends: packets flow on while no process is there.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use weir_tests::dialogue::{Setup, Signal, Weir, until, until_within};
use weir_tests::network::{Network, PATIENCE};

use super::{Talk, VIP, VIP6, asks, config, datagram_socket, start};

/// Planes that are pinned.
fn layouts(network: &Network) -> usize {
    let held = std::fs::read_dir(network.bpf_directory()).expect("the directory stays");
    held.filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("layout-"))
    })
    .count()
}

#[test]
fn connections_outlive_a_process_that_is_killed_and_new_ones_come_about_meanwhile() {
    let (network, mut weir) = start(2, "balance = \"round-robin\"");
    let mut talks: Vec<Talk> = [format!("{VIP}:80"), format!("[{VIP6}]:80")]
        .iter()
        .flat_map(|to| (0..5).map(|_| Talk::begin(&network, to)))
        .collect();
    weir.signals(Signal::KILL);
    weir.exits();
    talks.iter_mut().for_each(|talk| talk.goes_on(b"nobody is there"));
    let mut meanwhile = Talk::begin(&network, &format!("{VIP}:80"));
    weir.starts_again();
    talks.iter_mut().for_each(|talk| talk.goes_on(b"somebody is"));
    meanwhile.goes_on(b"and this one");
    Talk::begin(&network, &format!("{VIP}:80")).goes_on(b"new");
}

#[test]
fn an_upgrade_hands_the_plane_to_the_new_process_and_loses_no_connection() {
    let (network, weir) = start(2, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let mut talks: Vec<Talk> = (0..6).map(|_| Talk::begin(&network, &to)).collect();
    for _ in 0..2 {
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until_within(PATIENCE * 4, "the old process to end", || (!weir.is_running(old)).then_some(()));
        talks.iter_mut().for_each(|talk| talk.goes_on(b"as if nothing had happened"));
        talks.push(Talk::begin(&network, &to));
        let status = until("the new process to answer", || weir.admin().tries_to_read("/v1/status")).json();
        assert_ne!(status["pid"], old);
        assert!(status["listeners"].as_array().unwrap().iter().all(|listener| listener["plane"] == "kernel"));
    }
}

#[test]
fn a_plane_that_a_killed_process_left_is_taken_away_by_a_config_that_does_not_ask_for_it() {
    let (network, mut weir) = start(1, "");
    weir.signals(Signal::KILL);
    weir.exits();
    Talk::begin(&network, &format!("{VIP}:80")).goes_on(b"still forwarded");
    let text = config(&network, 1, "").replace("plane = \"kernel\"", "").replace(VIP, "10.50.1.1");
    weir.rewrites(&text.replace(&format!("[{VIP6}]"), "[fd50:1::1]"));
    weir.starts_again();
    assert_eq!(layouts(&network), 0);
    let to = format!("{VIP}:80").parse().unwrap();
    // The kernel detaches an unpinned program when it gets to it.
    until("nobody answers there", || Talk::try_begin(&network, to).is_err().then_some(()));
    Talk::begin(&network, "10.50.1.1:80").goes_on(b"relayed");
}

/// As an upgrade to a version with other maps meets it.
#[test]
fn a_plane_of_another_version_is_replaced_without_a_gap_and_what_is_lost_is_named() {
    let (network, mut weir) = start(2, "balance = \"maglev\"");
    let mut talk = Talk::begin(&network, &format!("{VIP}:80"));
    weir.signals(Signal::KILL);
    weir.exits();
    let directory = network.bpf_directory();
    let held = std::fs::read_dir(&directory).unwrap().next().unwrap().unwrap().path();
    std::fs::rename(held, Path::new(&directory).join("layout-0")).expect("it is renamed");
    weir.starts_again();
    assert_eq!(layouts(&network), 1);
    assert!(!Path::new(&directory).join("layout-0").exists());
    // What it says comes by a thread of its own.
    until("the loss to be named", || {
        weir.stderr().contains("of another version of Weir, whose flows can't be read").then_some(())
    });
    talk.goes_on(b"the hash leads it to the same backend");
    Talk::begin(&network, &format!("{VIP}:80")).goes_on(b"new");
}

#[test]
fn the_plane_is_taken_away_when_the_process_is_told_to_end() {
    let (network, mut weir) = start(1, "");
    drop(Talk::begin(&network, &format!("{VIP}:80")));
    assert!(Path::new(&network.bpf_directory()).exists());
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
    assert_eq!(layouts(&network), 0);
    let to = format!("{VIP}:80").parse().unwrap();
    assert!(Talk::try_begin(&network, to).is_err());
}

#[test]
fn a_plane_that_drains_takes_no_new_connection_though_the_host_changes_and_keeps_those_it_has() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    // Longer than both clients wait in vain.
    let text = config(&network, 2, "balance = \"round-robin\"") + "[runtime]\ndrain = \"10m\"\n";
    let mut weir = Setup::of(&text).start();
    let to = format!("{VIP}:80").parse().unwrap();
    let mut talk = Talk::begin(&network, &format!("{VIP}:80"));
    weir.signals(Signal::TERM);
    // The kernel hears of it by a thread of its own.
    let try_soon = || Talk::try_begin_within(Duration::from_secs(2), &network, to);
    until("nobody is taken", || try_soon().is_err().then_some(()));
    network.run("weir", &["ip", "addr", "add", "10.99.0.1/32", "dev", "lo"]);
    // Its patience is long enough for many sweeps, each of which hears of the change.
    assert!(Talk::try_begin(&network, to).is_err());
    network.run("weir", &["ip", "addr", "del", "10.99.0.1/32", "dev", "lo"]);
    assert!(Talk::try_begin(&network, to).is_err());
    talk.goes_on(b"to the end");
    drop(talk);
    assert!(weir.exits().success());
}

#[test]
fn a_reload_keeps_the_connections_of_backends_that_stay() {
    let (network, mut weir) = start(3, "balance = \"round-robin\"");
    let mut talks: Vec<Talk> = (0..6).map(|_| Talk::begin(&network, &format!("{VIP}:80"))).collect();
    weir.reloads(&config(&network, 2, "balance = \"round-robin\""));
    for talk in &mut talks {
        if talk.server != "3" {
            talk.goes_on(b"as before");
        }
    }
    let servers: Vec<String> = (0..6).map(|_| Talk::begin(&network, &format!("{VIP}:80")).server).collect();
    assert!(!servers.contains(&"3".to_owned()), "{servers:?}");
}

#[test]
fn a_drained_backend_keeps_its_flows_until_they_end() {
    let (network, weir) = start(2, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &to)).collect();
    let drained = network.server(1, 8080, false).to_string();
    assert_eq!(weir.command(&["drain", "four", &drained]).code, 0);
    for _ in 0..4 {
        assert_eq!(Talk::begin(&network, &to).server, "2");
    }
    talks.iter_mut().for_each(|talk| talk.goes_on(b"to the end"));
    until("its flows are counted", || {
        let status = weir.admin().reads("/v1/status").json();
        let pool = status["pools"].as_array()?.iter().find(|pool| pool["name"] == "four")?.clone();
        (pool["backends"][0]["in_flight"] == 2).then_some(())
    });
    talks.clear();
    until("they have ended", || {
        let status = weir.admin().reads("/v1/status").json();
        let pool = status["pools"].as_array()?.iter().find(|pool| pool["name"] == "four")?.clone();
        (pool["backends"][0]["in_flight"] == 0).then_some(())
    });
}

#[test]
fn a_listener_that_may_choose_is_on_the_proxy_plane_where_the_kernel_can_not_and_says_why() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let text = format!(
        "[kernel]\ndirectory = \"{}\"\n[listener.any]\nprotocol = \"tcp\"\nbind = \"0.0.0.0:80\"\nplane = \"auto\"\npool = \"app\"\n[pool.app]\nbackends = [\"{}\"]\n",
        network.bpf_directory(),
        network.server(1, 8080, false)
    );
    let weir = Setup::of(&text).start();
    let listener = weir.admin().reads("/v1/status").json()["listeners"][0].clone();
    assert_eq!(listener["plane"], "proxy");
    assert!(listener["plane_reason"].as_str().unwrap().contains("0.0.0.0:80"), "{listener}");
    Talk::begin(&network, "10.50.1.1:80").goes_on(b"relayed");
}

#[test]
fn a_listener_that_must_be_in_the_kernel_is_refused_without_the_capabilities() {
    let network = Network::enter(1);
    let setpriv = weir_tests::dialogue::tool("setpriv", "util-linux").display().to_string();
    let mut weir = Setup::of(&config(&network, 1, ""))
        .under(&[&setpriv, "--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"])
        .launch();
    assert!(!weir.exits().success());
    let said = weir.stderr();
    assert!(said.contains("can't be on the kernel plane") && said.contains("CAP_BPF"), "{said}");
}

/// Its admin API comes to an address that is taken, by the time the kernel has been told everything.
#[test]
fn a_first_start_that_fails_leaves_no_plane_behind() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let taken = std::net::TcpListener::bind("10.50.1.1:0").unwrap().local_addr().unwrap();
    let holder = std::net::TcpListener::bind(taken).unwrap();
    let proxied = format!("[listener.proxied]\nprotocol = \"tcp\"\nbind = \"{taken}\"\npool = \"four\"\n");
    let mut weir = Setup::of(&(config(&network, 1, "") + &proxied)).launch();
    assert!(!weir.exits().success());
    let own = Path::new(&network.bpf_directory()).to_owned();
    let left = std::fs::read_dir(&own).map_or(0, Iterator::count);
    assert_eq!(left, 0, "{}", own.display());
    drop(holder);
}

/// What an earlier process left goes on forwarding.
#[test]
fn a_start_that_fails_leaves_the_plane_of_the_process_before() {
    let (network, mut weir) = start(1, "");
    let mut talk = Talk::begin(&network, &format!("{VIP}:80"));
    weir.signals(Signal::KILL);
    weir.exits();
    let holder = std::net::TcpListener::bind("10.50.1.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let proxied = format!("[listener.proxied]\nprotocol = \"tcp\"\nbind = \"{taken}\"\npool = \"four\"\n");
    let mut other = Setup::of(&(config(&network, 1, "") + &proxied)).launch();
    assert!(!other.exits().success());
    talk.goes_on(b"still forwarded");
    Talk::begin(&network, &format!("{VIP}:80")).goes_on(b"and new ones");
}

#[test]
fn a_backend_that_is_this_host_gets_no_packets_and_is_named() {
    let network = Network::enter(2);
    (1..=2).for_each(|number| network.greets(number, 8080));
    let more = "health = \"off\"\nbalance = \"round-robin\"";
    let text = config(&network, 2, more).replace("10.50.11.2:8080", "10.50.12.1:8080");
    let weir = Setup::of(&text).start();
    for _ in 0..6 {
        assert_eq!(Talk::begin(&network, &format!("{VIP}:80")).server, "2");
    }
    assert!(weir.stderr().contains("this host itself") && weir.stderr().contains("10.50.12.1:8080"));
    let reason = |weir: &Weir| {
        let listener = weir.admin().reads("/v1/status").json()["listeners"][0].clone();
        listener["plane_reason"].as_str().map(str::to_owned)
    };
    assert!(reason(&weir).is_some_and(|why| why.contains("10.50.12.1:8080")), "{:?}", reason(&weir));
    // The address moves to another host.
    network.run("weir", &["ip", "addr", "del", "10.50.12.1/24", "dev", "to_server2"]);
    until("it is no longer refused", || reason(&weir).is_none().then_some(()));
}

/// It lost them at once, though what is worked on at a backend that is removed is said to go on.
#[test]
fn a_backend_that_is_removed_keeps_its_flows_for_as_long_as_a_drain_may_take() {
    let (network, mut weir) = start(2, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &to)).collect();
    let datagrams = datagram_socket(&network, "10.50.1.2");
    let answered_by = asks(&datagrams, &to, b"first");
    let removed = network.server(2, 8080, false).to_string();
    assert_eq!(weir.command(&["remove", "four", &removed]).code, 0);
    for _ in 0..4 {
        assert_eq!(Talk::begin(&network, &to).server, "1");
    }
    talks.iter_mut().for_each(|talk| talk.goes_on(b"to the end"));
    assert_eq!(asks(&datagrams, &to, b"again"), answered_by);
    // The file lacks it too, and has sessions wait no longer than this.
    weir.reloads(&format!("[runtime]\ndrain = \"1s\"\n{}", config(&network, 1, "balance = \"round-robin\"")));
    for talk in talks.iter_mut().filter(|talk| talk.server == "2") {
        until("its time is over", || {
            let _ = talk.stream.write_all(b"?");
            talk.stream.read(&mut [0; 64]).is_err().then_some(())
        });
    }
    talks.iter_mut().filter(|talk| talk.server == "1").for_each(|talk| talk.goes_on(b"as before"));
    assert_eq!(asks(&datagrams, &to, b"moved"), "1");
}

/// They were reset at once, and datagrams moved: a reload takes nothing from what runs.
#[test]
fn a_backend_that_a_reload_or_an_upgrade_leaves_out_keeps_its_flows_for_as_long_as_a_drain_may_take() {
    let (network, mut weir) = start(2, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let mut talks: Vec<Talk> = (0..4).map(|_| Talk::begin(&network, &to)).collect();
    let sockets: Vec<_> = (0..2).map(|_| datagram_socket(&network, "10.50.1.2")).collect();
    let answered_by: Vec<String> = sockets.iter().map(|socket| asks(socket, &to, b"first")).collect();
    let with = config(&network, 2, "balance = \"round-robin\"");
    let without = config(&network, 1, "balance = \"round-robin\"");
    let mut go_on = |weir: &Weir, what: &str| {
        for _ in 0..4 {
            assert_eq!(Talk::begin(&network, &to).server, "1", "{what}");
        }
        talks.iter_mut().for_each(|talk| talk.goes_on(what.as_bytes()));
        for (socket, server) in sockets.iter().zip(&answered_by) {
            assert_eq!(asks(socket, &to, b"again"), *server, "{what}: {}", weir.story());
        }
    };
    weir.reloads(&without);
    go_on(&weir, "without it");
    // It comes back before its time is over, and leaves with another process.
    weir.reloads(&with);
    weir.rewrites(&without);
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(PATIENCE * 4, "the old process to end", || (!weir.is_running(old)).then_some(()));
    until("the new process to answer", || weir.admin().tries_to_read("/v1/status"));
    go_on(&weir, "the other process is without it");
    weir.rewrites(&format!("[runtime]\ndrain = \"1s\"\n{without}"));
    assert_eq!(weir.command(&["reload"]).code, 0);
    for talk in talks.iter_mut().filter(|talk| talk.server == "2") {
        until("its time is over", || {
            let _ = talk.stream.write_all(b"?");
            talk.stream.read(&mut [0; 64]).is_err().then_some(())
        });
    }
    talks.iter_mut().filter(|talk| talk.server == "1").for_each(|talk| talk.goes_on(b"as before"));
    for socket in &sockets {
        assert_eq!(asks(socket, &to, b"moved"), "1");
    }
}

/// New flows had gone to it for some milliseconds more.
#[test]
fn no_flow_begins_at_a_backend_once_its_drain_is_answered() {
    let (network, weir) = start(2, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let path = format!("/v1/pools/four/backends/{}", network.server(1, 8080, false));
    for _ in 0..30 {
        for state in ["drain", "ready"] {
            let answer = weir.admin().calls("PATCH", &path, &[], &format!(r#"{{"state": "{state}"}}"#));
            assert_eq!(answer.status(), 200);
            if state == "drain" {
                let servers: Vec<String> =
                    (0..3).map(|_| asks(&datagram_socket(&network, "10.50.1.2"), &to, b"who?")).collect();
                assert_eq!(servers, ["2", "2", "2"]);
            }
        }
    }
}
