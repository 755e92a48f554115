//! `kill -9` of one of three backends under load (R5). The backends are processes of their own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};

use super::load::{Load, LoadReport, Targets, Traffic};
use super::{Failures, table};
use crate::dialogue::{Setup, Signal, Weir, free_address, until};

/// The size of the run.
#[derive(Clone, Debug)]
pub struct KillPlan {
    /// Requests in all.
    pub requests: u64,
    /// Kills, evenly over the requests; each backend is restarted before the next dies.
    pub kills: u64,
    /// Client threads.
    pub clients: u64,
    /// Seed of all draws.
    pub seed: u64,
    /// The program that becomes a backend when called with `--backend ADDRESS LEDGER`.
    pub program: PathBuf,
}

/// The results.
#[derive(Debug)]
pub struct KillReport {
    /// The clients' side.
    pub load: LoadReport,
    /// POSTs executed twice, or answered and never executed.
    pub failures: Failures,
    /// For each kill, how long until the backend was out of use.
    pub ejected_after: Vec<Duration>,
}

impl KillReport {
    /// Everything that failed.
    pub fn failed(&self) -> u64 {
        self.load.failures.count() + self.failures.count()
    }

    /// Longest time until a killed backend was out of use.
    pub fn slowest_ejection(&self) -> Duration {
        self.ejected_after.iter().max().copied().unwrap_or_default()
    }

    /// The table, and the first failures.
    pub fn text(&self) -> String {
        let mut ejections = self.ejected_after.clone();
        ejections.sort_unstable();
        let rate = self.load.done as f64 / self.load.elapsed.as_secs_f64();
        let mut text = table(
            "one backend of three killed",
            &[
                ("requests", self.load.done.to_string()),
                ("failed", self.load.failures.count().to_string()),
                ("POSTs executed twice or never", self.failures.count().to_string()),
                ("POSTs answered with an error", self.load.posts_failed.to_string()),
                ("kills", ejections.len().to_string()),
                (
                    "out of use after, median",
                    format!("{:.1?}", ejections.get(ejections.len() / 2).copied().unwrap_or_default()),
                ),
                ("out of use after, longest", format!("{:.1?}", self.slowest_ejection())),
                ("requests per second", format!("{rate:.0}")),
                (
                    "p50, p99, longest",
                    format!(
                        "{:.1?}, {:.1?}, {:.1?}",
                        self.load.quantile(0.5),
                        self.load.quantile(0.99),
                        self.load.quantile(1.0)
                    ),
                ),
            ],
        );
        for failure in self.load.failures.first().iter().chain(self.failures.first()) {
            text += &format!("  failure: {failure}\n");
        }
        text
    }
}

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@a", "@b", "@c"]
[pool.app.health]
check = "http"
interval = "500ms"
fast_interval = "100ms"
timeout = "500ms"
rise = 1
fall = 3
passive = { errors = 2, within = "10s", eject = "200ms", max_ejected = 0.5 }
"#;

/// A backend in a process of its own.
pub(crate) struct Process {
    address: SocketAddr,
    child: Child,
}

impl Process {
    /// Starts `program --backend ADDRESS LEDGER`, and waits until it accepts connections.
    pub(crate) fn start(program: &Path, address: SocketAddr, ledger: &Path) -> Process {
        let child = Command::new(program)
            .arg("--backend")
            .arg(address.to_string())
            .arg(ledger)
            .stdin(Stdio::null())
            .spawn()
            .unwrap_or_else(|problem| panic!("{} does not start: {problem}", program.display()));
        until("a backend process to listen", || std::net::TcpStream::connect(address).ok().map(drop));
        Process { address, child }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub(crate) fn signals(&self, signal: Signal) {
        let _ = kill_process(Pid::from_child(&self.child), signal);
    }

    /// Ends it by SIGKILL.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn is_up(weir: &Weir, address: SocketAddr) -> bool {
    weir.metric("weir_backend_up", &[("backend", &address.to_string())]) == 1.0
}

/// Runs the plan.
pub fn kill_and_restart(plan: &KillPlan) -> KillReport {
    let addresses = [free_address(), free_address(), free_address()];
    let [a, b, c] = addresses;
    let weir = Setup::of(CONFIG).with("a", a).with("b", b).with("c", c);
    let ledger = std::env::temp_dir().join(format!("weir-executed-{}-{}", std::process::id(), a.port()));
    let _ = std::fs::remove_file(&ledger);
    let mut processes = addresses.map(|address| Process::start(&plan.program, address, &ledger));
    let weir = weir.start();
    until("all backends to be up", || addresses.iter().all(|&address| is_up(&weir, address)).then_some(()));
    let clients = usize::try_from(plan.clients).unwrap_or(1);
    let traffic = Traffic {
        keeping: clients.div_ceil(2),
        closing: clients / 2,
        relaying: 0,
        http2: 0,
        http3: 0,
        one_post_in: 10,
        posts_may_fail: true,
        seed: plan.seed,
    };
    let targets = Targets { web: weir.address("web"), relay: None, secure: None };
    let load = Load::start(targets, plan.requests, traffic);
    let mut ejected_after = Vec::new();
    for kill in 0..plan.kills {
        let due = plan.requests * (kill + 1) / (plan.kills + 1);
        while load.done() < due && !load.finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let victim = &mut processes[usize::try_from(kill % 3).unwrap_or(0)];
        victim.kill();
        let begun = Instant::now();
        until("the killed backend to be out of use", || (!is_up(&weir, victim.address)).then_some(()));
        ejected_after.push(begun.elapsed());
        *victim = Process::start(&plan.program, victim.address, &ledger);
        until("the restarted backend to be in use", || is_up(&weir, victim.address).then_some(()));
    }
    let load = load.report();
    let failures = check_ledger(&ledger, &load.answered_posts);
    drop(processes);
    let _ = std::fs::remove_file(&ledger);
    KillReport { load, failures, ejected_after }
}

/// Every POST at most once, and every answered one exactly once.
pub(crate) fn check_ledger(ledger: &Path, answered: &[usize]) -> Failures {
    let mut failures = Failures::default();
    let mut times: HashMap<usize, u32> = HashMap::new();
    for line in std::fs::read_to_string(ledger).unwrap_or_default().lines() {
        if let Ok(number) = line.parse() {
            *times.entry(number).or_default() += 1;
        }
    }
    for (number, count) in times.iter().filter(|(_, count)| **count > 1) {
        failures.add(format!("POST {number} was executed {count} times"));
    }
    for number in answered.iter().filter(|number| !times.contains_key(number)) {
        failures.add(format!("POST {number} was answered and never executed"));
    }
    failures
}
