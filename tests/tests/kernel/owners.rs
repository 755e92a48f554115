//! Whose the kernel plane is: of several Weirs on one host that are told of the same directory, one has it.

use weir_tests::dialogue::{Setup, Signal, Weir, until, until_within};
use weir_tests::network::{Network, PATIENCE};

use super::{Talk, VIP, config, start};

/// A Weir beside another one, told of the same directory, with nothing on the kernel plane.
fn without_kernel(network: &Network) -> Setup {
    let directory = network.bpf_directory();
    let backend = network.server(1, 8080, false);
    Setup::of(&format!(
        "[kernel]\ndirectory = \"{directory}\"\n[listener.web]\nprotocol = \"tcp\"\nbind = \"@web\"\npool = \"app\"\n[pool.app]\nbackends = [\"{backend}\"]\n"
    ))
}

/// Whether the program is still at the interface of the clients, as the kernel says.
fn status_of(weir: &Weir) -> serde_json::Value {
    until("its status", || weir.admin().tries_to_read("/v1/status")).json()
}

#[test]
fn a_weir_without_a_kernel_listener_leaves_alone_what_another_one_has() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    // While nobody has a flow, and while somebody has.
    let mut talk: Option<Talk> = None;
    for _ in 0..2 {
        let mut other = without_kernel(&network).start();
        assert!(!other.stderr().contains("kernel plane"), "{}", other.story());
        if let Some(talk) = &mut talk {
            talk.goes_on(b"beside another one");
        }
        other.signals(Signal::TERM);
        assert!(other.exits().success());
        talk.get_or_insert_with(|| Talk::begin(&network, &to)).goes_on(b"as if nobody had been there");
    }
    assert!(!weir.stderr().contains("attached again"), "{}", weir.story());
}

#[test]
fn a_second_weir_that_asks_for_the_same_plane_is_refused_and_told_who_has_it() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    let mut talk = Talk::begin(&network, &format!("{VIP}:80"));
    let mut other = Setup::of(&config(&network, 1, "").replace(VIP, "192.0.2.11")).launch();
    assert!(!other.exits().success());
    let said = other.stderr();
    let expected =
        format!("another Weir (pid {}) has the kernel plane of {}", weir.pid(), network.bpf_directory());
    assert!(said.contains(&expected) && said.contains("kernel.directory"), "{said}");
    talk.goes_on(b"as before");
    // One that serves already is refused the same by a reload.
    let mut third = without_kernel(&network).start();
    third.rewrites(&config(&network, 1, "").replace(VIP, "192.0.2.11"));
    let refused = third.command(&["reload"]);
    assert!(refused.code != 0 && refused.stderr.contains(&expected), "{refused:?}");
    talk.goes_on(b"to the end");
}

#[test]
fn an_upgrade_hands_over_whose_the_plane_is_and_a_kill_gives_it_up() {
    let (network, mut weir) = start(1, "balance = \"round-robin\"");
    let mut talk = Talk::begin(&network, &format!("{VIP}:80"));
    for _ in 0..2 {
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until_within(PATIENCE * 4, "the old process to end", || (!weir.is_running(old)).then_some(()));
        until("the new process to answer", || weir.admin().tries_to_read("/v1/status"));
        let mut other = Setup::of(&config(&network, 1, "").replace(VIP, "192.0.2.11")).launch();
        assert!(!other.exits().success());
        assert!(other.stderr().contains(&format!("another Weir (pid {})", weir.pid())), "{}", other.stderr());
    }
    weir.signals(Signal::KILL);
    until("it to be gone", || weir.pids().is_empty().then_some(()));
    weir.starts_again();
    talk.goes_on(b"through all of it");
}

/// What takes the plane sees another directory, where by a mount of its own the same maps and links lie: as a
/// version of Weir does that asks nobody.
#[test]
fn a_plane_that_somebody_took_is_noticed_and_taken_back() {
    let (network, weir) = start(1, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let mut talk = Talk::begin(&network, &to);
    let mine = network.bpf_directory();
    let layout = std::fs::read_dir(&mine).unwrap().next().unwrap().unwrap().file_name();
    let layout = layout.to_string_lossy();
    let theirs = format!("{mine}-thief");
    std::fs::create_dir_all(format!("{theirs}/{layout}")).expect("a directory");
    let mounts = format!("mount --bind {mine}/{layout} {theirs}/{layout} && exec \"$@\"");
    let unshare = weir_tests::dialogue::tool("unshare", "util-linux").display().to_string();
    let text = config(&network, 1, "").replace(&mine, &theirs).replace(VIP, "192.0.2.11");
    let thief = Setup::of(&text).under(&[&unshare, "-m", "sh", "-c", &mounts, "sh"]).start();
    weir.reaches("weir_l4_attachments_lost_total", &[], 1.0);
    until("it is back", || {
        let attached = weir.metric("weir_l4_attached", &[("interface", "to_client")]);
        (attached == 1.0).then_some(())
    });
    assert!(weir.stderr().contains("does not run the packet program of this Weir"), "{}", weir.story());
    drop(thief);
    until("connections go through again", || Talk::try_begin(&network, to.parse().unwrap()).ok());
    talk.goes_on(b"as if nothing had happened");
    assert_eq!(weir.admin().reads("/readyz").status(), 200);
    assert_eq!(status_of(&weir)["listeners"][0]["plane_reason"], serde_json::Value::Null);
    let _ = std::fs::remove_dir_all(theirs);
}
