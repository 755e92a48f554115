//! What the program may do, and what it says when it may not.

use weir_tests::dialogue::{Setup, tool};
use weir_tests::network::Network;

use super::{Talk, VIP, VIP6, config};

/// With these capabilities and no others.
fn with_capabilities(network: &Network, capabilities: &str) -> Setup {
    let setpriv = tool("setpriv", "util-linux").display().to_string();
    Setup::of(&config(network, 1, "")).under(&[
        &setpriv,
        "--bounding-set",
        capabilities,
        "--inh-caps",
        capabilities,
        "--ambient-caps",
        capabilities,
        "--no-new-privs",
    ])
}

/// The capabilities that the drop-in for systemd gives, as setpriv(1) wants them.
fn of_the_drop_in() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/weir-kernel-plane.conf");
    let text = std::fs::read_to_string(path).expect("the drop-in");
    let given =
        text.lines().find_map(|line| line.strip_prefix("AmbientCapabilities=")).expect("it gives some");
    let words = given.split(' ').map(|word| word.trim_start_matches("CAP_").to_ascii_lowercase());
    std::iter::once("-all".to_owned())
        .chain(words.map(|word| format!("+{word}")))
        .collect::<Vec<_>>()
        .join(",")
}

#[test]
fn the_capabilities_that_the_drop_in_gives_are_enough() {
    let network = Network::enter(1);
    network.greets(1, 8080);
    let mut weir = with_capabilities(&network, &of_the_drop_in()).start();
    for to in [format!("{VIP}:80"), format!("[{VIP6}]:80")] {
        Talk::begin(&network, &to).goes_on(b"with three capabilities");
    }
    let text = config(&network, 1, "balance = \"maglev\"");
    weir.reloads(&text);
    Talk::begin(&network, &format!("{VIP}:80")).goes_on(b"after a reload");
    let explained = weir.command(&["explain", "tcp", "10.50.1.2:4000", &format!("{VIP}:80")]);
    assert_eq!(explained.code, 0, "{explained:?}");
}

#[test]
fn each_of_the_capabilities_is_needed_and_named_where_it_is_missing() {
    for missing in ["+bpf", "+net_admin", "+perfmon"] {
        let network = Network::enter(1);
        let rest: Vec<String> =
            of_the_drop_in().split(',').filter(|word| *word != missing).map(str::to_owned).collect();
        let mut weir = with_capabilities(&network, &rest.join(",")).launch();
        assert!(!weir.exits().success(), "without {missing}");
        let said = weir.stderr();
        let name = missing.replace('+', "CAP_").to_ascii_uppercase();
        assert!(
            said.contains("can't be on the kernel plane")
                && said.contains(&format!("this process lacks {name})")),
            "without {missing}: {said}"
        );
    }
}

/// `ProcSubset=pid` of systemd has it so; to mount over it needs root.
#[test]
fn without_a_listener_of_the_kernel_plane_weir_starts_where_the_ports_of_the_host_are_not_seen() {
    let unshare = tool("unshare", "util-linux").display().to_string();
    let script = "mount -t tmpfs none /proc/sys && exec \"$@\"";
    let under = [unshare.as_str(), "--mount", "--propagation", "private", "sh", "-c", script, "sh"];
    let config = "[listener.web]\nbind = \"@web\"\nroute = [{ respond = { status = 204 } }]\n";
    let weir = Setup::of(config).under(&under).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    client.receives_status(204);
}
