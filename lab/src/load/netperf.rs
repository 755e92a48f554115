//! netperf's TCP_RR and TCP_CRR through a load balancer that spreads connections over several endpoints.
//!
//! netperf and a netserver agree on a port over a control connection; then netperf opens data connections to
//! that port. Behind a load balancer that sends every connection to the next endpoint the two would not meet:
//! the control connection would reach one endpoint, and the data connection another, where nothing listens.
//! So the control connection goes to a netserver beside the client, and only the data connections go to the
//! load balancer (`-- -H`), to a fixed port (`-- -P`) where each endpoint has the lab's own echo. netperf's
//! client, its clock and its arithmetic are unchanged; netserver is not part of the measurement.
//!
//! The netserver also tries to listen at the address and port to which the client will connect, and would
//! tell the client another port if it could not. So it is allowed to listen at addresses of other machines,
//! and every stream has a virtual address of its own. No connection arrives there.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use super::{LoadResult, together};
use crate::addresses::after;
use crate::measure;
use crate::metric::Metric;
use crate::process;

/// Which of netperf's tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// One byte there, one byte back, over and over on one connection.
    Rr,
    /// A new connection for every byte there and back.
    Crr,
}

impl Test {
    /// netperf's name for it.
    fn name(self) -> &'static str {
        match self {
            Self::Rr => "TCP_RR",
            Self::Crr => "TCP_CRR",
        }
    }

    /// What the command line calls it.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Crr => "crr",
        }
    }
}

/// Port of the netserver, which only gets control connections.
const CONTROL_PORT: u16 = 12_865;
/// The settings that allow binding sockets to addresses of other networks, for IPv4 and IPv6.
const NONLOCAL_BIND: [&str; 2] =
    ["/proc/sys/net/ipv4/ip_nonlocal_bind", "/proc/sys/net/ipv6/ip_nonlocal_bind"];
/// How long each netperf waits between its preparations and its work, in seconds. Meanwhile it is held until
/// all have got that far.
const PAUSE: u64 = 1;
/// How long after the end of the last one's time all netperfs are assumed to be done.
const GRACE: Duration = Duration::from_millis(500);
/// The output fields that each netperf is asked for.
const SELECTED: &str = "THROUGHPUT,ELAPSED_TIME,MIN_LATENCY,P50_LATENCY,MEAN_LATENCY,MAX_LATENCY";

/// The results of one netperf.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Told {
    /// Transactions per second.
    rate: f64,
    seconds: f64,
    /// The least latency. All latencies are in microseconds.
    least: f64,
    /// The median. It is not known for all streams together.
    middle: f64,
    mean: f64,
    greatest: f64,
}

/// Runs `streams` netperfs at once against `target` for `seconds` each; `peers` is `lab/peers`.
///
/// All begin together. Otherwise the first ones would have the machine to themselves at first, and the last
/// ones at the end, and the sum of their rates would be that of a machine that does not exist.
///
/// A netperf that fails counts as an error and the others go on. Err when none of them ends well.
pub fn run(
    peers: &str,
    target: SocketAddr,
    test: Test,
    streams: u32,
    seconds: u64,
) -> io::Result<LoadResult> {
    // Of this network namespace only.
    let setting = NONLOCAL_BIND[usize::from(target.is_ipv6())];
    fs::write(setting, "1").map_err(|error| io::Error::new(error.kind(), format!("{setting}: {error}")))?;
    let [server, client] = [words(peers, "netserver")?, words(peers, "netperf")?];
    // Its children end with their netperf, and all of them with this process.
    let server =
        Ended(start(&server, &["-D", "-L", control_address(target), "-p", &CONTROL_PORT.to_string()])?);
    wait_for_server(target)?;
    let mut clients = Vec::new();
    for stream in 0..streams {
        let own = SocketAddr::new(after(target.ip(), stream), target.port());
        let arguments = arguments(own, test, seconds);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        clients.push(Ended(start(&client, &arguments)?));
    }
    let missed = together::begin_together(clients.iter().map(|client| &client.0), Duration::from_secs(PAUSE));
    // Starting a hundred of them costs as much as a second's work.
    let machine_before = measure::machine_time()?;
    thread::sleep(Duration::from_secs(seconds));
    let machine = measure::machine_time()?.saturating_sub(machine_before);
    thread::sleep(GRACE);
    end_vain_waits(server.0.id());
    let (mut told, mut complaints) = (Vec::new(), Vec::new());
    if missed > 0 {
        complaints.push(format!("{missed} of the netperfs did not begin with the others"));
    }
    for client in clients {
        match client.printed() {
            Ok(printed) => match parse(&printed) {
                Some(one) => told.push(one),
                None => complaints.push(printed),
            },
            Err(error) => complaints.push(error.to_string()),
        }
    }
    let result = summed_up(&told, &complaints)?;
    Ok(LoadResult { machine_seconds: Some(machine.as_secs_f64()), ..result })
}

/// Ends the wait of the children of the netserver `server` for a data connection, which never arrives. Each
/// would end by itself, by the alarm that it has set, seconds after its netperf is done; this sends it that
/// alarm now.
///
/// A child that has not set a handler for the alarm yet would be killed, and is left alone.
fn end_vain_waits(server: u32) {
    let children = fs::read_to_string(format!("/proc/{server}/task/{server}/children")).unwrap_or_default();
    for child in children.split_ascii_whitespace() {
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let process = child.parse().ok().and_then(Pid::from_raw).filter(|_| catches_alarms(&status));
        if let Some(process) = process {
            // It may have ended by itself meanwhile.
            let _ = kill_process(process, Signal::ALARM);
        }
    }
}

/// Whether a process with this `/proc/PID/status` handles SIGALRM.
fn catches_alarms(status: &str) -> bool {
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    caught & (1 << (Signal::ALARM.as_raw() - 1)) != 0
}

/// The command words that start a peer without the script in between: a hundred scripts would take the load's
/// core for a second.
fn words(peers: &str, name: &str) -> io::Result<Vec<String>> {
    let output = Command::new(peers).args(["command", name]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() || text.trim().is_empty() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(text.lines().map(str::to_owned).collect())
}

fn start(words: &[String], arguments: &[&str]) -> io::Result<Child> {
    process::bound_to_this_one()
        .args(words)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// A child process that is killed when dropped.
struct Ended(Child);

impl Ended {
    /// Its output; Err with its error output if it does not exit with 0.
    fn printed(mut self) -> io::Result<String> {
        let [mut printed, mut complaint] = [String::new(), String::new()];
        if let Some(mut output) = self.0.stdout.take() {
            io::Read::read_to_string(&mut output, &mut printed)?;
        }
        if let Some(mut errors) = self.0.stderr.take() {
            io::Read::read_to_string(&mut errors, &mut complaint)?;
        }
        let status = self.0.wait()?;
        if status.success() { Ok(printed) } else { Err(io::Error::other(format!("{printed}{complaint}"))) }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The netserver's address in netperf's notation. Both of netperf's connections use the same IP version.
fn control_address(target: SocketAddr) -> &'static str {
    if target.is_ipv4() { "127.0.0.1,4" } else { "::1,6" }
}

fn wait_for_server(target: SocketAddr) -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let loopback: IpAddr =
        if target.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    let begin = Instant::now();
    loop {
        match TcpStream::connect((loopback, CONTROL_PORT)) {
            Ok(_) => return Ok(()),
            Err(error) if begin.elapsed() > PATIENCE => {
                return Err(io::Error::new(error.kind(), format!("netserver does not answer: {error}")));
            }
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn arguments(target: SocketAddr, test: Test, seconds: u64) -> Vec<String> {
    let control = CONTROL_PORT.to_string();
    let (seconds, pause) = (seconds.to_string(), PAUSE.to_string());
    let family = if target.is_ipv4() { 4 } else { 6 };
    let (host, port) = (format!("{},{family}", target.ip()), format!(",{}", target.port()));
    [
        [
            "-H",
            control_address(target),
            "-p",
            &control,
            "-t",
            test.name(),
            "-l",
            &seconds,
            "-s",
            &pause,
            "-P",
            "0",
        ]
        .as_slice(),
        ["--", "-H", &host, "-P", &port, "-r", "1,1", "-k", SELECTED].as_slice(),
    ]
    .concat()
    .into_iter()
    .map(str::to_owned)
    .collect()
}

/// Reads the `NAME=VALUE` lines of one netperf.
fn parse(printed: &str) -> Option<Told> {
    let value = |name: &str| -> Option<f64> {
        printed.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    Some(Told {
        rate: value("THROUGHPUT")?,
        seconds: value("ELAPSED_TIME")?,
        least: value("MIN_LATENCY")?,
        middle: value("P50_LATENCY")?,
        mean: value("MEAN_LATENCY")?,
        greatest: value("MAX_LATENCY")?,
    })
}

/// Rates are added, as netperf's own instructions for many streams say; the mean is that of all transactions.
fn summed_up(told: &[Told], complaints: &[String]) -> io::Result<LoadResult> {
    let complaint = complaints.first().map(|complaint| complaint.trim().to_owned());
    if told.is_empty() {
        let complaint = complaint.unwrap_or_default();
        return Err(io::Error::other(format!("no netperf ended well; the first one said: {complaint}")));
    }
    let transactions = |one: &Told| one.rate * one.seconds;
    let all: f64 = told.iter().map(transactions).sum();
    if all < 1.0 {
        return Err(io::Error::other("every netperf ended well but without a single transaction"));
    }
    let rate: f64 = told.iter().map(|one| one.rate).sum();
    let mean = told.iter().map(|one| one.mean * transactions(one)).sum::<f64>() / all;
    let mut result = LoadResult {
        requests: all.round() as u64,
        // Each transaction returns one byte.
        bytes: all.round() as u64,
        seconds: all / rate,
        problem: complaint,
        ..LoadResult::default()
    };
    let least = told.iter().map(|one| one.least).fold(f64::INFINITY, f64::min);
    let greatest = told.iter().map(|one| one.greatest).fold(0.0, f64::max);
    result.figures.extend([
        (Metric::LATENCY_MIN, least),
        (Metric::LATENCY_MEAN, mean),
        (Metric::LATENCY_MAX, greatest),
    ]);
    if let [only] = told {
        result.figures.insert(Metric::LATENCY_P50, only.middle);
    }
    result.fail("stream", complaints.len() as u64);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_netperf_2_7_1_prints_is_understood() {
        let printed = "THROUGHPUT=8508.55\nELAPSED_TIME=2.00\nMIN_LATENCY=57\nP50_LATENCY=98\nMEAN_LATENCY=117.47\nMAX_LATENCY=19001\n";
        let expected =
            Told { rate: 8508.55, seconds: 2.0, least: 57.0, middle: 98.0, mean: 117.47, greatest: 19001.0 };
        assert_eq!(parse(printed), Some(expected));
        assert_eq!(parse("establish control: are you sure there is a netserver listening?\n"), None);
    }

    #[test]
    fn streams_add_up_and_the_mean_is_that_of_all_transactions() {
        let slow =
            Told { rate: 100.0, seconds: 2.0, least: 60.0, middle: 350.0, mean: 400.0, greatest: 900.0 };
        let fast =
            Told { rate: 300.0, seconds: 2.0, least: 50.0, middle: 150.0, mean: 200.0, greatest: 800.0 };
        let result = summed_up(&[slow, fast], &["connection reset by peer\n".to_owned()]).unwrap();
        assert_eq!((result.requests, result.seconds), (800, 2.0));
        assert_eq!(result.figures[&Metric::LATENCY_MEAN], 250.0);
        assert_eq!(result.figures[&Metric::LATENCY_MIN], 50.0);
        assert_eq!(result.figures[&Metric::LATENCY_MAX], 900.0);
        assert_eq!(result.errors["stream"], 1);
        assert_eq!(result.problem.as_deref(), Some("connection reset by peer"));
    }

    #[test]
    fn streams_that_all_fail_are_an_error_with_the_first_complaint() {
        let error = summed_up(&[], &["no route\n".to_owned(), "x".to_owned()]).unwrap_err().to_string();
        assert_eq!(error, "no netperf ended well; the first one said: no route");
    }

    #[test]
    fn only_who_handles_alarms_gets_one() {
        assert!(catches_alarms("Name:\tnetserver\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000002000\n"));
        assert!(!catches_alarms("SigCgt:\t0000000000001fff\nSigBlk:\t0000000000002000\n"));
        assert!(!catches_alarms(""));
    }

    #[test]
    fn control_goes_to_the_client_and_data_to_the_virtual_address() {
        let target = SocketAddr::from(([10, 77, 0, 1], 7000));
        assert_eq!(
            arguments(target, Test::Crr, 3).join(" "),
            "-H 127.0.0.1,4 -p 12865 -t TCP_CRR -l 3 -s 1 -P 0 -- -H 10.77.0.1,4 -P ,7000 -r 1,1 \
             -k THROUGHPUT,ELAPSED_TIME,MIN_LATENCY,P50_LATENCY,MEAN_LATENCY,MAX_LATENCY"
        );
    }
}
