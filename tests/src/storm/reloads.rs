//! Reloads and binary upgrades under load (R1, R2, R3).

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backends::{Executed, serving};
use super::load::{Load, LoadReport, Targets, Traffic};
use super::long_lived::LongLived;
use super::{Failures, table};
use crate::dialogue::{Authority, Signal, Weir, free_address, until_within};
use crate::versions::{Behind, Front, VersionedBackend};

/// The size of the run.
#[derive(Clone, Copy, Debug)]
pub struct StormPlan {
    /// Requests in all.
    pub requests: u64,
    /// Reloads that add or remove a backend.
    pub reloads: u64,
    /// USR2 upgrades.
    pub upgrades: u64,
    /// WebSockets, relayed TCP connections, streams of HTTP/2 and of HTTP/3, so many of each, that stay open
    /// over all reloads.
    pub long_lived: u64,
    /// Client threads of HTTP/1.1: half of them keep their connections.
    pub clients: u64,
    /// Connections of HTTP/2 over TLS.
    pub http2: u64,
    /// Connections of HTTP/3.
    pub http3: u64,
    /// Seed of all draws.
    pub seed: u64,
}

impl Default for StormPlan {
    fn default() -> StormPlan {
        StormPlan {
            requests: 1_000_000,
            reloads: 100,
            upgrades: 10,
            long_lived: 20,
            clients: 16,
            http2: 4,
            http3: 4,
            seed: 1,
        }
    }
}

/// The results.
#[derive(Debug)]
pub struct StormReport {
    /// The clients' side.
    pub load: LoadReport,
    /// Failures besides the load's: long-lived connections, reloads, upgrades, requests executed twice.
    pub failures: Failures,
    /// Reloads that took effect while the load ran.
    pub reloads: u64,
    /// Upgrades that took effect while the load ran.
    pub upgrades: u64,
    /// Longest reload, from asking for it to its being in force.
    pub slowest_reload: Duration,
    /// Longest upgrade, from the signal to the end of the old process.
    pub slowest_upgrade: Duration,
}

impl StormReport {
    /// Everything that failed.
    pub fn failed(&self) -> u64 {
        self.load.failures.count() + self.failures.count()
    }

    /// The table, and the first failures.
    pub fn text(&self) -> String {
        let rate = self.load.done as f64 / self.load.elapsed.as_secs_f64();
        let mut text = table(
            "reload storm",
            &[
                ("requests", self.load.done.to_string()),
                ("failed", self.load.failures.count().to_string()),
                ("failed otherwise", self.failures.count().to_string()),
                ("sent again as refused", self.load.repeated.to_string()),
                ("reloads", self.reloads.to_string()),
                ("upgrades", self.upgrades.to_string()),
                ("slowest reload", format!("{:.1?}", self.slowest_reload)),
                ("slowest upgrade", format!("{:.1?}", self.slowest_upgrade)),
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
                ("took", format!("{:.1?}", self.load.elapsed)),
            ],
        );
        for failure in self.load.failures.first().iter().chain(self.failures.first()) {
            text += &format!("  failure: {failure}\n");
        }
        text
    }
}

/// The third backend comes and goes with `extra`.
fn config(extra: bool) -> String {
    let third = if extra { r#", "@c""# } else { "" };
    format!(
        r#"
        [runtime]
        drain = "60s"
        [listener.web]
        bind = "@web"
        pool = "app"
        [listener.relay]
        protocol = "tcp"
        bind = "@relay"
        pool = "raw"
        [listener.secure]
        bind = "@secure"
        http = ["h2", "h3"]
        pool = "app"
        tls = {{ certificates = [{{ cert = "@dir/storm.pem", key = "@dir/storm.key" }}] }}
        [[listener.secure.route]]
        path = "/echo"
        pool = "live"
        [[listener.secure.route]]
        path = "/h2/*"
        rewrite = {{ prefix = "/" }}
        pool = "live_h2"
        [pool.live]
        backends = ["@live"]
        health = "off"
        [pool.live_h2]
        backends = ["@live_h2"]
        protocol = "h2"
        health = "off"
        tls = {{ ca = "@dir/ca.pem", server_name = "storm.test" }}
        [pool.app]
        backends = ["@a", "@b"{third}]
        health = {{ check = "http", interval = "500ms", fast_interval = "100ms", timeout = "500ms" }}
        [pool.raw]
        backends = ["@a", "@b"{third}]
        health = {{ check = "tcp", interval = "500ms", fast_interval = "100ms", timeout = "500ms" }}
        "#
    )
}

/// Runs the storm.
pub fn reload_storm(plan: StormPlan) -> StormReport {
    let executed = Executed::with_room(usize::try_from(plan.requests).unwrap_or(0) + 1);
    let addresses: [SocketAddr; 3] = [free_address(), free_address(), free_address()];
    let _backends = addresses.map(|address| serving(address, executed.clone()));
    let [a, b, c] = addresses;
    let authority = Arc::new(Authority::new().signs("storm", &["storm.test"]));
    let live = VersionedBackend::start(free_address(), Behind::Http1, &authority, "storm");
    let live_h2 = VersionedBackend::start(free_address(), Behind::Http2Tls, &authority, "storm");
    let setup =
        authority.setup(&config(false)).with("live", live.address()).with("live_h2", live_h2.address());
    let mut weir = setup.with("a", a).with("b", b).with("c", c).start();
    let half = usize::try_from(plan.clients / 2).unwrap_or(1).max(1);
    let traffic = Traffic {
        keeping: half,
        closing: half - half / 3,
        relaying: half / 3,
        http2: usize::try_from(plan.http2).unwrap_or(0),
        http3: usize::try_from(plan.http3).unwrap_or(0),
        one_post_in: 5,
        posts_may_fail: false,
        seed: plan.seed,
    };
    let targets = Targets {
        web: weir.address("web"),
        relay: Some(weir.address("relay")),
        secure: Some((weir.address("secure"), authority.clone())),
    };
    let load = Load::start(targets, plan.requests, traffic);
    let mut report = Progress {
        failures: Failures::default(),
        reloads: 0,
        upgrades: 0,
        slowest_reload: Duration::ZERO,
        slowest_upgrade: Duration::ZERO,
        long_lived: Vec::new(),
        authority,
    };
    report.open_long_lived(&weir, plan.long_lived);
    let events = plan.reloads + plan.upgrades;
    for event in 0..events {
        // Evenly over the requests; but never before the load has begun, nor after its end.
        let due = plan.requests * (event + 1) / (events + 1);
        while load.done() < due && !load.finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let upgrades_due = (event + 1) * plan.upgrades / events;
        if upgrades_due > report.upgrades {
            report.upgrade(&weir, plan.long_lived);
        } else {
            report.reload(&mut weir);
        }
    }
    report.check_long_lived("the last reload");
    report.end_long_lived();
    let load = load.report();
    let mut failures = report.failures;
    for number in executed.repeated() {
        failures.add(format!("POST {number} was executed {} times", executed.times(number)));
    }
    for number in &load.answered_posts {
        if executed.times(*number) == 0 {
            failures.add(format!("POST {number} was answered and never executed"));
        }
    }
    StormReport {
        load,
        failures,
        reloads: report.reloads,
        upgrades: report.upgrades,
        slowest_reload: report.slowest_reload,
        slowest_upgrade: report.slowest_upgrade,
    }
}

struct Progress {
    failures: Failures,
    reloads: u64,
    upgrades: u64,
    slowest_reload: Duration,
    slowest_upgrade: Duration,
    long_lived: Vec<LongLived>,
    authority: Arc<Authority>,
}

const HANDSHAKE: &str = "GET /ws HTTP/1.1\r\nhost: storm.test\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
     sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";

impl Progress {
    fn open_long_lived(&mut self, weir: &Weir, count: u64) {
        for listener in ["web", "relay"] {
            for _ in 0..count {
                let mut wire = weir.client(listener);
                wire.sends(HANDSHAKE);
                match wire.tries_to_receive_response("GET") {
                    Ok(response) if response.status == 101 => self.long_lived.push(LongLived::Wire(wire)),
                    other => self.failures.add(format!("a WebSocket over {listener} was refused: {other:?}")),
                }
            }
        }
        for front in [Front::Http2Tls, Front::Http3] {
            for number in 0..count {
                let address = weir.address("secure");
                let path = if number % 2 == 0 { "/echo" } else { "/h2/echo" };
                self.long_lived.push(LongLived::stream(front, self.authority.clone(), address, path));
            }
        }
        self.check_long_lived("opening");
    }

    fn end_long_lived(&mut self) {
        for (number, living) in std::mem::take(&mut self.long_lived).into_iter().enumerate() {
            if let Err(why) = living.ends() {
                self.failures.add(format!("long-lived connection {number} did not end well: {why}"));
            }
        }
    }

    /// Every long-lived connection still echoes.
    fn check_long_lived(&mut self, when: &str) {
        let mut kept = Vec::new();
        for (number, mut living) in std::mem::take(&mut self.long_lived).into_iter().enumerate() {
            if living.answers(&format!("{when} {number};")) {
                kept.push(living);
            } else {
                let why = living.ends();
                self.failures.add(format!("long-lived connection {number} was gone after {when}: {why:?}"));
            }
        }
        self.long_lived = kept;
    }

    fn reload(&mut self, weir: &mut Weir) {
        let begun = Instant::now();
        let generation = weir.metric("weir_config_generation", &[]);
        weir.rewrites(&config(self.reloads.is_multiple_of(2)));
        // Alternates between the two ways to ask for a reload.
        if self.reloads % 4 < 2 {
            let finished = weir.command(&["reload"]);
            if finished.code != 0 {
                self.failures.add(format!("`weir reload` failed: {finished:?}"));
            }
        } else {
            weir.signals_pid(*weir.pids().last().expect("running"), Signal::HUP);
        }
        until_within(Duration::from_secs(20), "the reload to be in force", || {
            (weir.metric("weir_config_generation", &[]) > generation).then_some(())
        });
        self.reloads += 1;
        self.slowest_reload = self.slowest_reload.max(begun.elapsed());
        self.check_long_lived("a reload");
    }

    fn upgrade(&mut self, weir: &Weir, long_lived: u64) {
        let begun = Instant::now();
        let old = *weir.pids().last().expect("running");
        weir.signals_pid(old, Signal::USR2);
        until_within(Duration::from_secs(30), "the new process", || {
            weir.pids().into_iter().find(|&pid| pid != old)
        });
        let admin = weir.admin();
        until_within(Duration::from_secs(30), "the new process to answer", || {
            let answer = admin.tries_to_read("/v1/status")?;
            (answer.status() == 200 && answer.json()["pid"] != old).then_some(())
        });
        // R2: what was open goes on in the old process until its drain deadline.
        self.check_long_lived("an upgrade");
        self.end_long_lived();
        until_within(Duration::from_secs(60), "the old process to end", || {
            (!weir.is_running(old)).then_some(())
        });
        self.upgrades += 1;
        self.slowest_upgrade = self.slowest_upgrade.max(begun.elapsed());
        self.open_long_lived(weir, long_lived);
    }
}
