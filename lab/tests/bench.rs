//! The bench as a person runs it, on a lab of its own with contenders that need no package installed.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn bench(seconds: u32) -> Command {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixture");
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir-lab"));
    command
        .args(["run", "fixture/bodies", "--rounds=2", "--together"])
        .arg(format!("--seconds={seconds}"))
        .arg(format!("--out={}", out().display()))
        .arg("--lab")
        .arg(fixture);
    command
}

fn out() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("lab-report")
}

#[test]
fn who_cannot_run_is_told_and_the_rest_is_measured() {
    let output = bench(1).output().unwrap();
    let (report, progress) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));

    assert_eq!(output.status.code(), Some(1), "{report}{progress}");
    assert!(report.contains("\n| floor "), "{report}{progress}");
    assert!(report.contains("**absent did not take part**: /nowhere/absent: No such file"), "{report}");
    assert!(report.contains("**broken did not take part**: ended with exit status: 2"), "{report}");
    assert!(report.contains("line 3: no such thing as a lisener"), "{report}");
    assert!(report.contains("later: not built yet: comes later"), "{report}");
    let tried = "trying: not built yet: is being built (it tried: ended with exit status: 3";
    assert!(report.contains(tried), "{report}");

    let written: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(out().join("samples.json")).unwrap()).unwrap();
    let floor = &written["series"][0]["scenarios"][0]["variants"][0]["outcomes"][2];
    assert_eq!(floor["contender"], "floor");
    for sample in floor["samples"].as_array().unwrap() {
        let figure = |name: &str| sample["figures"][name].as_f64().unwrap();
        assert!(figure("requests") > 100.0, "{sample}");
        assert_eq!(figure("error-share"), 0.0, "{sample}");
        assert!(figure("cpu-per-gigabyte") > 0.01, "{sample}");
        assert!(figure("load-cpu-share") > 0.1, "{sample}");
    }
    assert_eq!(floor["samples"].as_array().unwrap().len(), 2);

    let page = fs::read_to_string(out().join("report.html")).unwrap();
    assert!(
        page.contains("Broken did not take part") && page.contains("no such thing as a lisener"),
        "{page}"
    );
}

#[test]
fn an_interrupted_run_leaves_no_process_and_no_namespace_behind() {
    // A shell that runs tests in the background lets them ignore INT, which the lab would inherit.
    for signal in ["INT", "TERM", "KILL"] {
        let bench = bench(60);
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(bench.get_program()).args(bench.get_args());
        let mut lab = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let descendants = descendants_once_there_is("load", &mut lab);
        let networks: HashSet<PathBuf> =
            descendants.iter().filter_map(|process| network_of(*process)).collect();
        let kill = Command::new("kill").args([format!("-{signal}"), lab.id().to_string()]).status();
        assert!(kill.unwrap().success());
        lab.wait().unwrap();
        let begin = Instant::now();
        while let Some(left) = descendants.iter().find(|process| runs(**process)) {
            assert!(begin.elapsed() < Duration::from_secs(10), "process {left} outlives SIG{signal}");
            thread::sleep(Duration::from_millis(10));
        }
        let own = network_of(std::process::id());
        for network in networks.into_iter().filter(|network| Some(network) != own.as_ref()) {
            let holder = processes().find(|process| network_of(*process).as_ref() == Some(&network));
            assert_eq!(holder, None, "{} outlives SIG{signal}", network.display());
        }
    }
}

#[test]
fn an_unknown_scenario_is_refused_with_the_known_ones() {
    let output = bench(1).arg("fixture/bodis").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("no scenario is named `fixture/bodis`; there are: fixture/bodies, fixture"),
        "{said}"
    );
}

#[test]
fn an_unknown_contender_is_refused_with_the_known_ones() {
    let output = bench(1).arg("--only=floor,nobody").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(
            "--only: nobody takes part in none of this; there are: absent, broken, floor, later, trying"
        ),
        "{said}"
    );
}

/// All processes below the lab, once one of them is a `weir-lab` with `word` among its arguments.
fn descendants_once_there_is(word: &str, lab: &mut Child) -> Vec<u32> {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < Duration::from_secs(30), "no `{word}` in 30 s");
        assert!(lab.try_wait().unwrap().is_none(), "the run ended early");
        let parents: Vec<(u32, u32)> =
            processes().filter_map(|process| Some((process, parent_and_state(process)?.0))).collect();
        let mut tree = vec![lab.id()];
        let mut next = 0;
        while next < tree.len() {
            let above = tree[next];
            tree.extend(parents.iter().filter(|(_, parent)| *parent == above).map(|(process, _)| *process));
            next += 1;
        }
        let says = |process: &u32| {
            let line = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
            line.split('\0').nth(1) == Some(word)
        };
        if tree.iter().any(says) {
            return tree;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn network_of(process: u32) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

fn runs(process: u32) -> bool {
    parent_and_state(process).is_some_and(|(_, state)| state != "Z")
}

fn parent_and_state(process: u32) -> Option<(u32, String)> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.to_owned();
    Some((fields.next()?.parse().ok()?, state))
}
