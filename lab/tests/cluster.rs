//! The cluster scenarios where their programs are missing: what can be seen of them without a database.

use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn a_cluster_whose_programs_are_missing_is_told_and_nothing_else_is() {
    let peers = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-peers");
    fs::create_dir_all(&peers).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_weir-lab"))
        .args(["run", "s2/primary-crash", "--variant=fair", "--only=direct", "--together"])
        .arg("--out")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-peers-report"))
        .env("WEIR_PEERS", &peers)
        .output()
        .unwrap();
    let (report, progress) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{report}{progress}");
    let absent = "**direct did not take part**: its topology did not come up: ";
    assert!(report.contains(absent), "{report}{progress}");
    assert!(report.contains("mysqld is not installed; run: lab/peers install mysqld"), "{report}{progress}");
}

#[test]
fn every_part_of_the_paper_is_a_scenario() {
    let output = Command::new(env!("CARGO_BIN_EXE_weir-lab")).args(["run", "--list"]).output().unwrap();
    let (listed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let steps = ["primary-crash", "primary-shutdown", "secondary-crash", "secondary-shutdown", "switchover"];
    for name in steps.iter().chain(&["point-select", "one-minute"]) {
        assert!(listed.contains(&format!("  s2/{name} ")), "{listed}{said}");
    }
}
