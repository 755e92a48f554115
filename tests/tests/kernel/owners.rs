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
    // Whoever mounts is root.
    if std::env::var_os("WEIR_TEST_CAPABILITIES").is_some() {
        return;
    }
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

/// The tables that are pinned below a directory.
fn tables(directory: &str) -> usize {
    let layouts = std::fs::read_dir(directory).into_iter().flatten().flatten();
    layouts.filter(|entry| entry.file_name().to_string_lossy().starts_with("layout-")).count()
}

#[test]
fn another_directory_takes_a_restart_and_an_upgrade_to_it_is_refused() {
    let (network, mut weir) = start(1, "balance = \"round-robin\"");
    let to = format!("{VIP}:80");
    let mut talk = Talk::begin(&network, &to);
    let (mine, other) = (network.bpf_directory(), format!("{}/other", network.bpf_directory()));
    weir.rewrites(&config(&network, 1, "").replace(&format!("\"{mine}\""), &format!("\"{other}\"")));
    let said = weir.command(&["reload"]);
    assert!(
        said.stdout.contains("kernel.directory needs a restart to change; USR2 is not enough"),
        "{said:?}"
    );
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("it is refused", || weir.stderr().contains("upgrade failed").then_some(()));
    // What the new process says comes before it ends.
    assert!(weir.stderr().contains("`kernel.directory`"), "{}", weir.story());
    assert_eq!((weir.pid(), tables(&mine), tables(&other)), (old, 1, 0));
    talk.goes_on(b"as if nothing had been asked");
    Talk::begin(&network, &to).goes_on(b"new");
    drop(talk);
    weir.signals(Signal::TERM);
    weir.starts_again();
    assert_eq!((tables(&mine), tables(&other)), (0, 1));
    Talk::begin(&network, &to).goes_on(b"after a restart");
}

#[test]
fn tables_that_are_taken_over_keep_their_size_and_that_is_said() {
    let (network, mut weir) = start(1, "balance = \"round-robin\"");
    let mut talk = Talk::begin(&network, &format!("{VIP}:80"));
    assert!(!weir.stderr().contains("in_force"), "{}", weir.story());
    weir.rewrites(&config(&network, 1, "").replace("flows = 4096", "flows = 8192"));
    let said = weir.command(&["reload"]);
    assert!(said.stdout.contains("kernel.flows needs a restart to change; USR2 is not enough"), "{said:?}");
    weir.signals(Signal::KILL);
    weir.starts_again();
    let is_said = || weir.stderr().contains("in_force=4096 asked=8192").then_some(());
    until("it is said", is_said);
    talk.goes_on(b"in the tables of before");
    drop(talk);
    weir.signals(Signal::TERM);
    weir.starts_again();
    assert_eq!(weir.stderr().matches("in_force=").count(), 1, "{}", weir.story());
}
