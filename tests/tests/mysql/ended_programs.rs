//! Servers that a program of the tests has started, when it is ended from outside.

use std::fs;
use std::process::{Command, Stdio};

use weir_tests::dialogue::until;

/// The servers that this program has started and that run.
fn servers_of(program: u32) -> Vec<u32> {
    let directory = format!("/weir-mysqld-{program}-");
    let is_server = |pid: &u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        // The program that starts it becomes it.
        read("cmdline").contains(&directory) && read("comm").trim() != "setpriv"
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_server).collect()
}

/// They stayed, and had to be found and ended by hand.
#[test]
fn servers_end_with_the_program_that_started_them() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_mysql_programs"))
        .args(["--programs", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let number = program.id();
    until("a server of its own", || servers_of(number).first().copied());
    program.kill().expect("a process of ours");
    program.wait().expect("it has ended");
    until("its servers to end", || servers_of(number).is_empty().then_some(()));
    let started = fs::read_dir(std::env::temp_dir()).expect("a directory").flatten();
    let prefix = format!("weir-mysqld-{number}-");
    started
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        .for_each(|entry| fs::remove_dir_all(entry.path()).expect("removed"));
}
