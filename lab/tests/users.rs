//! The lab's own virtual users against the lab's own backend, whose counters are the referee.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

const LAB: &str = env!("CARGO_BIN_EXE_weir-lab");
const USERS: u64 = 40;
const RAMP_MS: u64 = 500;
const HOLD_MS: u64 = 2000;
const PAUSE_MS: u64 = 100;

/// A running backend, ended when dropped.
struct Backend {
    child: Child,
    address: String,
}

impl Backend {
    fn start() -> Self {
        let mut child = Command::new(LAB).arg("backend").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        Self { child, address }
    }

    /// Connections accepted and requests answered so far.
    fn counters(&self) -> (u64, u64) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /lab-counters HTTP/1.1\r\nhost: lab\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (connections, requests) = answer.rsplit("\r\n").next().unwrap().trim().split_once(' ').unwrap();
        (connections.parse().unwrap(), requests.parse().unwrap())
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The users' command, in processes that may have `descriptors` open.
fn users(target: &str, descriptors: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {descriptors}; exec \"$0\" \"$@\""), LAB, "load", "users"]);
    command.args([format!("--target={target}"), format!("--users={USERS}"), format!("--ramp-ms={RAMP_MS}")]);
    command.args([format!("--hold-ms={HOLD_MS}"), format!("--pause-ms={PAUSE_MS}")]);
    command
}

/// Requests of all users when answers take no time: user n begins at its share of the ramp and asks every
/// pause.
fn most_requests() -> u64 {
    let begins = (0..USERS).map(|user| RAMP_MS as f64 * user as f64 / (USERS - 1) as f64);
    begins.map(|begin| (((RAMP_MS + HOLD_MS) as f64 - begin) / PAUSE_MS as f64).ceil() as u64).sum()
}

fn play(descriptors: u32) {
    let backend = Backend::start();
    let output = users(&backend.address, descriptors).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{printed}{}", String::from_utf8_lossy(&output.stderr));
    let result: serde_json::Value = serde_json::from_str(&printed).unwrap();
    let requests = result["requests"].as_u64().unwrap();

    assert_eq!(result["errors"], serde_json::json!({}), "{result}");
    assert_eq!(backend.counters(), (USERS, requests), "the backend saw other users than the load: {result}");
    let most = most_requests();
    assert!(requests <= most && requests > most / 2, "{requests} requests where about {most} were expected");
    let figure =
        |name: &str| result["figures"][name].as_f64().unwrap_or_else(|| panic!("no {name} in {result}"));
    assert!(figure("latency-min") > 0.0 && figure("latency-min") <= figure("latency-p50"), "{result}");
    assert!(
        figure("latency-p50") <= figure("latency-p99") && figure("latency-p99") <= figure("latency-max"),
        "{result}"
    );
    assert!(result["seconds"].as_f64().unwrap() >= 2.5, "{result}");
}

#[test]
fn the_backend_saw_what_the_users_say_they_did() {
    play(1024);
}

#[test]
fn users_split_over_processes_are_the_same_users() {
    // 16 users a process: three processes.
    play(80);
}

#[test]
fn killing_the_load_ends_its_parts() {
    let backend = Backend::start();
    let mut load = users(&backend.address, 80).stdout(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    let parts = loop {
        let parts = children(load.id());
        if parts.len() == 3 {
            break parts;
        }
        assert!(begin.elapsed() < Duration::from_secs(20), "{} parts where 3 were expected", parts.len());
        thread::sleep(Duration::from_millis(10));
    };
    load.kill().unwrap();
    load.wait().unwrap();
    let begin = Instant::now();
    while let Some(part) = parts.iter().find(|part| runs(**part)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "process {part} outlives its load");
        thread::sleep(Duration::from_millis(10));
    }
}

fn stat(process: u32) -> Option<(String, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn runs(process: u32) -> bool {
    stat(process).is_some_and(|(state, _)| state != "Z")
}

fn children(of: u32) -> Vec<u32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let processes = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    processes.filter(|process| stat(*process).is_some_and(|(_, parent)| parent == of)).collect()
}
