//! The networks the lab makes and the line between them, as a person uses them. They need root and say so
//! without.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn lab(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-lab"));
    command.args(arguments);
    command
}

/// A lab that SIGINT ends also where what started the tests ignores it, as shells let their background jobs
/// do.
fn interruptible_lab(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_weir-lab")]).args(arguments);
    command
}

/// Whether this user may make network namespaces and TUN devices.
fn may_wire() -> bool {
    let may = Command::new("unshare").args(["--net", "true"]).status().is_ok_and(|status| status.success())
        && fs::OpenOptions::new().write(true).open("/dev/net/tun").is_ok();
    if !may {
        eprintln!("not run: network namespaces and /dev/net/tun need root");
    }
    may
}

fn stdout_of(mut command: Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// What `link-check` finds of the emulator with `arguments`.
fn check(arguments: &[&str]) -> serde_json::Value {
    let command =
        lab(&[&["link-check", "--by=emulator", "--json", "--stream-seconds=1"], arguments].concat());
    let found: serde_json::Value = serde_json::from_str(&stdout_of(command)).unwrap();
    found[0].clone()
}

#[test]
fn the_emulated_line_holds_packets_as_long_as_asked_in_one_direction() {
    if !may_wire() {
        return;
    }
    for asked_ms in [25, 50] {
        let found = check(&[&format!("--delay-ms={asked_ms}"), "--datagrams=1000", "--rate=1000"]);
        let delay = |way: &str, index: usize| found[way]["delay_us"][index].as_u64().unwrap();
        let asked_us = asked_ms * 1000;
        assert!(delay("to_client", 0) >= asked_us, "{found}");
        // A busy machine wakes the emulator late; half of all packets must be in time all the same.
        assert!(delay("to_client", 1) < asked_us + 5000, "{found}");
        assert!(delay("to_balancer", 1) < 5000, "{found}");
        for way in ["to_client", "to_balancer"] {
            assert_eq!(found[way]["received"], 1000, "{found}");
            assert_eq!(found[way]["reordered"], 0, "{found}");
        }
    }
}

#[test]
fn the_emulated_line_loses_the_share_asked_for_in_one_direction() {
    if !may_wire() {
        return;
    }
    const DATAGRAMS: f64 = 20_000.0;
    for percent in [2.0, 4.0] {
        let found = check(&[&format!("--loss-percent={percent}"), "--datagrams=20000", "--rate=20000"]);
        let lost = found["to_client"]["loss_percent"].as_f64().unwrap();
        // Four standard deviations of so many independent draws; the seed is fixed, so this passes always or
        // never.
        let share: f64 = percent / 100.0;
        let margin = 4.0 * (share * (1.0 - share) / DATAGRAMS).sqrt() * 100.0;
        assert!((lost - percent).abs() < margin, "{lost} % of {percent} %, margin {margin}: {found}");
        assert_eq!(found["to_balancer"]["received"], 20_000, "{found}");
        assert_eq!(found["counters"]["back"]["overflowed"], 0, "{found}");
    }
}

#[test]
fn every_packet_of_a_stream_has_a_fate_of_its_own() {
    if !may_wire() {
        return;
    }
    let found = check(&["--loss-percent=2", "--datagrams=1", "--rate=1000"]);
    let back = &found["counters"]["back"];
    // A sender with segmentation offload would hand over up to 64 KiB at once.
    assert_eq!(back["longest_bytes"], 1500, "{found}");
    let [carried, lost] = ["carried", "lost"].map(|key| back[key].as_f64().unwrap());
    assert!(carried > 1000.0, "{found}");
    let share = lost / (carried + lost);
    assert!((share - 0.02).abs() < 4.5 * (0.02 * 0.98 / (carried + lost)).sqrt(), "{share}: {found}");
}

#[test]
fn the_line_is_faster_than_any_load_the_comparison_puts_on_it() {
    if !may_wire() {
        return;
    }
    // 1.9 Gbit/s on a quiet machine; the comparison's small answers need less than 0.1. What the line can do
    // is what it does once: in another second others may have had the processor.
    let mut found = Vec::new();
    let is_fast = (0..10).any(|_| {
        let once = check(&["--delay-ms=0", "--datagrams=1", "--rate=1000"]);
        let is_fast = once["stream_mbit_per_second"].as_f64().unwrap() > 150.0;
        found.push(once);
        is_fast
    });
    assert!(is_fast, "{found:#?}");
    assert!(found.iter().all(|once| once["counters"]["back"]["overrun"] == 0), "{found:#?}");
}

#[test]
fn client_and_endpoints_reach_each_other_through_the_load_balancer() {
    if !may_wire() {
        return;
    }
    // The route to each endpoint from the client, and what the endpoint's namespace has for addresses.
    let script = "for n in 10 11 12; do ip route get 10.77.$n.2; done; \
                  for path in $WEIR_LAB_ENDPOINTS; do nsenter --net=$path ip -brief addr show back; done; \
                  nsenter --net=$WEIR_LAB_BALANCER ip -brief addr show wire; \
                  nsenter --net=$WEIR_LAB_BALANCER cat /proc/sys/net/ipv4/tcp_congestion_control";
    let said = stdout_of(lab(&["wire", "--", "sh", "-c", script]));
    assert_eq!(said.matches("via 10.77.1.1 dev wire").count(), 3, "{said}");
    for address in ["10.77.10.2/24", "10.77.11.2/24", "10.77.12.2/24", "10.77.0.1/32"] {
        assert!(said.contains(address), "{address}: {said}");
    }
    assert!(said.ends_with("reno\n"), "{said}");
}

#[test]
fn a_command_that_fails_gives_its_exit_code() {
    if may_wire() {
        assert_eq!(lab(&["wire", "--", "sh", "-c", "exit 7"]).status().unwrap().code(), Some(7));
    }
}

#[test]
fn an_interrupted_lab_leaves_no_namespace_process_or_mount_behind() {
    if !may_wire() {
        return;
    }
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    let names = || fs::read_dir("/run/netns").map_or(0, Iterator::count);
    let before = (mounts(), names());
    for signal in ["INT", "TERM", "KILL"] {
        // A forked, detached grandchild is what a killed parent loses sight of.
        let script = "echo ready; setsid sh -c 'sleep 300' & sleep 300";
        let mut lab = interruptible_lab(&["wire", "--delay-ms=25", "--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let namespaces = namespaces_once_it_is_ready(&mut lab);
        // Its own, client, load balancer, three endpoints.
        assert!(namespaces.len() >= 6, "{namespaces:?}");
        let status = Command::new("kill").args([&format!("-{signal}"), &lab.id().to_string()]).status();
        assert!(status.unwrap().success());
        lab.wait().unwrap();
        let begin = Instant::now();
        while let Some(left) = holders(&namespaces).first() {
            assert!(begin.elapsed() < Duration::from_secs(10), "after SIG{signal}: {left}");
            thread::sleep(Duration::from_millis(20));
        }
    }
    assert_eq!((mounts(), names()), before);
}

/// The network namespaces that `lab` and what it started are in or hold, as their kernel numbers, once its
/// command runs.
fn namespaces_once_it_is_ready(lab: &mut Child) -> BTreeSet<String> {
    let mut output = lab.stdout.take().unwrap();
    std::io::Read::read_exact(&mut output, &mut [0; 6]).unwrap();
    let own = fs::read_link("/proc/self/ns/net").unwrap().to_string_lossy().into_owned();
    let mut namespaces: BTreeSet<String> = descendants(lab.id())
        .iter()
        .flat_map(|process| namespaces_of(Path::new(&format!("/proc/{process}"))))
        .collect();
    namespaces.remove(&own);
    namespaces
}

fn descendants(root: u32) -> Vec<u32> {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let process = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((process, stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()?))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        next += 1;
    }
    found
}

/// The network namespaces that the process at `process` is in or holds open.
fn namespaces_of(process: &Path) -> Vec<String> {
    let files = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|file| file.path());
    let targets = files.chain([process.join("ns/net")]).filter_map(|path| fs::read_link(path).ok());
    targets
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| target.starts_with("net:["))
        .collect()
}

/// The processes that are in one of `namespaces` or hold it open. Without any the kernel takes it down.
fn holders(namespaces: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        if namespaces_of(&process.path()).iter().any(|namespace| namespaces.contains(namespace)) {
            let command = fs::read_to_string(process.path().join("cmdline")).unwrap_or_default();
            found.push(format!("process {:?}: {command:?}", process.file_name()));
        }
    }
    found
}
