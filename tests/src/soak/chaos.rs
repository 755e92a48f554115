//! What happens to Weir, and around it, while clients come and go.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject as _;
use tokio_rustls::TlsConnector;

use super::SoakPlan;
use super::backend::version_file;
use super::judge::Disturbance;
use super::site::{CERTIFICATES, DRAIN_SECONDS, HOST, NAME, Site, Variant};
use super::sql_judge::{SqlCause, SqlChange};
use super::traffic::Shared;
use super::usage::Holding;
use crate::dialogue::{Draws, PATIENCE, Sample, Signal};
use crate::storm::Failures;
use crate::versions;

/// Time between two looks at what the process holds.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time between two lines of progress.
const SAY_EVERY: Duration = Duration::from_secs(10);
/// How much longer than its drain time a process may take to end.
const GRACE: Duration = Duration::from_secs(10);
/// The access log is rotated at the latest with this size, bytes.
const LONGEST_LOG: u64 = 2 << 20;

/// How often a change is tried while an upgrade is under way.
const UPGRADE_TRIES: u32 = 60;
/// Pools whose backends are drained.
const POOLS: [&str; 4] = ["app", "raw", "datagrams", "uploads"];
/// The pool of MySQL's servers.
pub(super) const SQL_POOL: &str = "cluster";

/// What is to be set right again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    Revive(usize),
    Continue(usize),
    Enable(SocketAddr),
    FreeDisk,
    SqlStart(usize),
    SqlContinue(usize),
    SqlEnable(SocketAddr),
}

/// Makes the changes, and takes notes.
pub(super) struct Chaos {
    pub(super) site: Site,
    pub(super) shared: Arc<Shared>,
    pub(super) begun: Instant,
    pub(super) draws: Draws,
    length: Duration,
    mean: Duration,
    last_upgrade: Duration,
    progress: bool,
    undo: Vec<(Instant, Undo)>,
    /// Only one backend at a time is killed, stopped or drained.
    is_disturbed: bool,
    /// The same of MySQL's servers.
    pub(super) is_sql_disturbed: bool,
    is_disk_full: bool,
    pub(super) disturbances: Vec<Disturbance>,
    pub(super) sql_changes: Vec<SqlChange>,
    /// Changes made, by name.
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) failures: Failures,
    /// Processes that are to end, and since when.
    leaving: Vec<(u32, Instant)>,
    pub(super) variant: Variant,
    version: u64,
    certificate: usize,
    pub(super) holdings: Vec<Holding>,
}

impl Chaos {
    pub(super) fn new(site: Site, shared: Arc<Shared>, plan: &SoakPlan, begun: Instant) -> Chaos {
        Chaos {
            site,
            shared,
            begun,
            draws: Draws::seeded(plan.seed.rotate_left(17)),
            length: Duration::from_secs(plan.seconds),
            mean: Duration::from_millis(plan.change_every_ms),
            last_upgrade: plan.last_upgrade(),
            progress: plan.progress,
            undo: Vec::new(),
            is_disturbed: false,
            is_sql_disturbed: false,
            is_disk_full: false,
            disturbances: Vec::new(),
            sql_changes: Vec::new(),
            counts: BTreeMap::new(),
            failures: Failures::default(),
            leaving: Vec::new(),
            variant: Variant::default(),
            version: 0,
            certificate: 0,
            holdings: Vec::new(),
        }
    }

    /// Changes things until the time is over, and sets all right again.
    pub(super) fn runs(&mut self) {
        let (mut due, mut said) = (self.begun + self.mean, self.begun);
        let mut last = "nothing yet";
        while self.begun.elapsed() < self.length {
            std::thread::sleep(Duration::from_millis(20));
            self.tends();
            if Instant::now() >= due {
                last = self.changes();
                *self.counts.entry(last).or_default() += 1;
                let twice = self.mean.as_millis() as u64 * 2;
                due = Instant::now() + Duration::from_millis(self.draws.below(twice.max(1)));
            }
            if self.progress && said.elapsed() >= SAY_EVERY {
                said = Instant::now();
                self.says(last);
            }
        }
        for (_, undo) in std::mem::take(&mut self.undo) {
            self.undoes(undo);
        }
        self.variant.extra = false;
        self.reload(false);
        self.waits("all backends to be healthy", Chaos::all_healthy);
    }

    fn says(&self, last: &str) {
        let (shared, elapsed, all) = (&self.shared, self.begun.elapsed().as_secs(), self.length.as_secs());
        let held = self.holdings.last().map(Holding::text).unwrap_or_default();
        let (begun, failed, now) = (shared.begun(), shared.failed(), shared.now.load(Ordering::Relaxed));
        eprintln!(
            "soak: {elapsed} s of {all}: {begun} clients, {now} now, {failed} failed; last: {last}; {held}"
        );
    }

    /// What is due: sets right what was disturbed, looks at processes, rotates a long log.
    pub(super) fn tends(&mut self) {
        self.sets_right(true);
        self.watches_leaving();
        let elapsed = self.begun.elapsed();
        if self.holdings.last().is_none_or(|last| elapsed - last.at >= LOOK_EVERY) {
            let pid = self.pid();
            let clients = self.shared.now.load(Ordering::Relaxed);
            self.holdings.extend(Holding::of(pid, elapsed).map(|holding| Holding { clients, ..holding }));
            self.shared.needs(self.site.processes());
            let length = std::fs::metadata(self.site.on_small_disk("access.log")).map_or(0, |it| it.len());
            if length > LONGEST_LOG && !self.is_disk_full {
                self.rotate();
            }
        }
    }

    /// Undoes what is due, the full disk only if `with_disk`.
    fn sets_right(&mut self, with_disk: bool) {
        let now = Instant::now();
        let is_due =
            |(due, undo): &(Instant, Undo)| *due <= now && (with_disk || !matches!(undo, Undo::FreeDisk));
        while let Some(at) = self.undo.iter().position(is_due) {
            let (_, undo) = self.undo.remove(at);
            self.undoes(undo);
        }
    }

    /// Processes that were told to leave do so in their time.
    pub(super) fn watches_leaving(&mut self) {
        let weir = &self.site.weir;
        let latest = Duration::from_secs(DRAIN_SECONDS) + GRACE;
        let failures = &mut self.failures;
        self.leaving.retain(|(pid, since)| {
            let runs = weir.is_running(*pid);
            if runs && since.elapsed() > latest {
                failures.add(format!("process {pid} still runs {latest:?} after it was to end"));
            }
            runs && since.elapsed() <= latest
        });
        if self.leaving.is_empty() {
            self.sql_change_ends(SqlCause::Upgrade);
        }
    }

    /// Whether no process is about to end.
    pub(super) fn has_nobody_leaving(&self) -> bool {
        self.leaving.is_empty()
    }

    /// The process that serves.
    pub(super) fn pid(&self) -> u32 {
        let leaving = |pid: &u32| !self.leaving.iter().any(|(of, _)| of == pid);
        self.holdings
            .last()
            .map(|last| last.pid)
            .filter(|pid| leaving(pid) && self.site.weir.is_running(*pid))
            .or_else(|| self.site.weir.pids().into_iter().rfind(leaving))
            .unwrap_or(0)
    }

    /// Waits for a condition; it not coming about is a failure.
    pub(super) fn waits(&mut self, what: &str, mut condition: impl FnMut(&Chaos) -> bool) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE * 2 {
            if condition(self) {
                return true;
            }
            // No backend stays away for longer than it was to.
            self.sets_right(false);
            std::thread::sleep(Duration::from_millis(5));
        }
        let at = self.begun.elapsed().as_secs();
        self.failures.add(format!("at {at} s: waited {:?} in vain for {what}", PATIENCE * 2));
        false
    }

    fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.site.weir.metric(name, labels)
    }

    pub(super) fn all_healthy(&self) -> bool {
        self.are_healthy(|_| true)
    }

    /// Whether all backends of pools that this takes by their name are.
    fn are_healthy(&self, takes: impl Fn(&str) -> bool) -> bool {
        let page = self.site.weir.admin().metrics();
        let is_of = |sample: &&Sample| {
            let pool = sample.labels.iter().find(|(label, _)| label.as_str() == "pool");
            sample.name == "weir_backend_healthy" && pool.is_some_and(|(_, name)| takes(name))
        };
        page.iter().filter(is_of).all(|sample| sample.value == 1.0)
    }

    /// Makes one change, and gives its name.
    fn changes(&mut self) -> &'static str {
        let can_disturb = !self.is_disturbed && self.are_healthy(|pool| pool != SQL_POOL);
        let can_disturb_sql = !self.is_sql_disturbed && self.are_healthy(|pool| pool == SQL_POOL);
        match self.draws.below(130) {
            100..108 if can_disturb_sql => self.sql_kills(),
            108..114 if can_disturb_sql => self.sql_stops(),
            114..122 if can_disturb_sql => self.sql_hands_over(),
            122..130 if can_disturb_sql => self.sql_drains(),
            0..13 if can_disturb => self.kill(),
            13..24 if can_disturb => self.stop(),
            24..32 if can_disturb => self.drain(),
            32..40 => self.broken_file(),
            40..48 => self.dns_answer(),
            48..55 => self.rotates_certificate(),
            55..65 if self.leaving.is_empty() => self.purge(),
            65..70 if self.site.has_small_disk && !self.is_disk_full => self.fills_disk(),
            70..75 if !self.is_disk_full => self.rotate(),
            75..85 if self.leaving.is_empty() && self.begun.elapsed() < self.last_upgrade => self.upgrade(),
            _ => {
                self.variant = self.variant.next(&mut self.draws);
                let by_signal = self.draws.below(2) == 0;
                self.reload(by_signal)
            }
        }
    }

    pub(super) fn later(&mut self, milliseconds: std::ops::Range<u64>, undo: Undo) {
        let drawn = milliseconds.start + self.draws.below(milliseconds.end - milliseconds.start);
        self.undo.push((Instant::now() + Duration::from_millis(drawn), undo));
    }

    fn undoes(&mut self, undo: Undo) {
        match undo {
            Undo::Revive(number) => {
                self.site.revives(number);
                self.settles();
            }
            Undo::Continue(number) => {
                self.site.backends[number].signals(Signal::CONT);
                self.settles();
            }
            Undo::Enable(address) => {
                self.is_disturbed = false;
                self.sets_state(&POOLS, address, "ready");
            }
            Undo::SqlStart(place) => {
                self.site.sql.server(place).starts_again();
                self.sql_is_back();
            }
            Undo::SqlContinue(place) => {
                self.site.sql.server(place).thaws();
                self.sql_is_back();
            }
            Undo::SqlEnable(address) => {
                self.is_sql_disturbed = false;
                self.sets_state(&[SQL_POOL], address, "ready");
            }
            Undo::FreeDisk => {
                let _ = std::fs::remove_file(self.site.on_small_disk("filler"));
                self.is_disk_full = false;
                let log = self.site.on_small_disk("access.log");
                let length = || std::fs::metadata(&log).map_or(0, |it| it.len());
                let before = length();
                self.waits("lines in the access log once the disk has room", |_| length() > before);
            }
        }
    }

    fn settles(&mut self) {
        self.is_disturbed = false;
        if let Some(last) = self.disturbances.last_mut() {
            last.until = Some(Instant::now());
        }
    }

    fn disturbs(&mut self) -> usize {
        let number = self.draws.below(self.site.backends.len() as u64) as usize;
        let backend = self.site.backends[number].address();
        self.is_disturbed = true;
        self.disturbances.push(Disturbance { backend, from: Instant::now(), until: None });
        number
    }

    fn kill(&mut self) -> &'static str {
        let number = self.disturbs();
        self.site.backends[number].kill();
        self.later(200..2500, Undo::Revive(number));
        "backend killed"
    }

    fn stop(&mut self) -> &'static str {
        let number = self.disturbs();
        self.site.backends[number].signals(Signal::STOP);
        self.later(300..7000, Undo::Continue(number));
        "backend stopped"
    }

    pub(super) fn sets_state(&mut self, pools: &[&str], backend: SocketAddr, state: &str) {
        for pool in pools {
            let path = format!("/v1/pools/{pool}/backends/{backend}");
            let body = format!("{{\"state\":\"{state}\"}}");
            let admin = self.site.weir.admin();
            let mut answer = admin.calls("PATCH", &path, &[], &body);
            // During an upgrade nothing is changed, and the answer says when to try again.
            for _ in 0..UPGRADE_TRIES {
                if answer.status() != 503 {
                    break;
                }
                std::thread::sleep(Duration::from_secs(1));
                answer = self.site.weir.admin().calls("PATCH", &path, &[], &body);
            }
            if answer.status() != 200 {
                self.failures.add(format!("{path} to {state}: {:?}", answer.response));
            }
        }
    }

    fn drain(&mut self) -> &'static str {
        let backend = self.site.backends[self.draws.below(2) as usize].address();
        self.is_disturbed = true;
        self.sets_state(&POOLS, backend, "drain");
        self.later(500..3000, Undo::Enable(backend));
        "backend drained"
    }

    /// Puts the current variant in force.
    pub(super) fn reload(&mut self, by_signal: bool) -> &'static str {
        self.site.weir.rewrites(&self.variant.config());
        let generation = self.metric("weir_config_generation", &[]);
        if by_signal {
            let pid = self.pid();
            self.site.weir.signals_pid(pid, Signal::HUP);
            self.waits("a reload by HUP", |chaos| chaos.metric("weir_config_generation", &[]) > generation);
        } else {
            let finished = self.site.weir.command(&["reload"]);
            if finished.code != 0 {
                self.failures.add(format!("`weir reload` failed: {finished:?}"));
            }
        }
        "reload"
    }

    fn broken_file(&mut self) -> &'static str {
        let config = self.variant.config();
        let broken = match self.draws.below(3) {
            0 => config.replace("pool = \"named\"", "pool = \"nowhere\""),
            1 => config.replacen("[pool.app]", "[pool.app", 1),
            _ => config.replace("site.pem", "none.pem"),
        };
        self.site.weir.rewrites(&broken);
        let generation = self.metric("weir_config_generation", &[]);
        let refused = |chaos: &Chaos| {
            let of = |result| chaos.metric("weir_reloads_total", &[("result", result)]);
            of("refused") + of("failed")
        };
        let before = refused(self);
        let pid = self.pid();
        self.site.weir.signals_pid(pid, Signal::HUP);
        self.waits("a broken file to be refused", |chaos| refused(chaos) > before);
        if self.metric("weir_config_generation", &[]) != generation {
            self.failures.add("a broken file changed what is in force".to_owned());
        }
        self.site.weir.rewrites(&config);
        "broken file"
    }

    fn dns_answer(&mut self) -> &'static str {
        let answers: &[&str] = match self.draws.below(3) {
            0 => &["1 A 127.0.0.1"],
            1 => &["1 A 127.0.0.2"],
            _ => &["1 A 127.0.0.1", "1 A 127.0.0.2"],
        };
        self.site.names.says(NAME, answers);
        "DNS answer"
    }

    fn rotates_certificate(&mut self) -> &'static str {
        self.certificate = (self.certificate + 1) % CERTIFICATES;
        let name = format!("site{}", self.certificate);
        for kind in ["pem", "key"] {
            let text = self.site.authority.text(&format!("{name}.{kind}"));
            std::fs::write(self.site.weir.dir().join(format!("site.{kind}")), text).expect("written");
        }
        self.reload(false);
        let expected = CertificateDer::from_pem_file(self.site.authority.path(&format!("{name}.pem")));
        let shown = self.shown_certificate();
        if expected.as_ref().ok() != shown.as_ref() {
            self.failures.add(format!("{name}.pem is in force and another certificate is shown"));
        }
        "certificate"
    }

    fn shown_certificate(&self) -> Option<CertificateDer<'static>> {
        let config = Arc::new(versions::of_client(&self.shared.authority, b"http/1.1"));
        versions::run(PATIENCE, async {
            let stream = tokio::net::TcpStream::connect(self.shared.targets.secure).await.ok()?;
            let name = ServerName::try_from(HOST).ok()?;
            let stream = TlsConnector::from(config).connect(name, stream).await.ok()?;
            Some(stream.get_ref().1.peer_certificates()?.first()?.clone().into_owned())
        })
    }

    fn purge(&mut self) -> &'static str {
        self.version += 1;
        let file = version_file(&self.site.ledger);
        let next = file.with_extension("next");
        std::fs::write(&next, self.version.to_string()).expect("written");
        std::fs::rename(&next, &file).expect("renamed");
        let answer = self.site.weir.admin().calls("POST", "/v1/cache/purge", &[], "{\"prefix\":\"/c/\"}");
        if answer.status() == 200 {
            self.shared.purged.store(self.version, Ordering::SeqCst);
        } else {
            self.failures.add(format!("purge: {:?}", answer.response));
        }
        "purge"
    }

    fn fills_disk(&mut self) -> &'static str {
        self.is_disk_full = true;
        if let Ok(mut file) = std::fs::File::create(self.site.on_small_disk("filler")) {
            while file.write_all(&[0; 4096]).is_ok() {}
        }
        self.later(1000..4000, Undo::FreeDisk);
        "full disk"
    }

    fn rotate(&mut self) -> &'static str {
        let log = self.site.on_small_disk("access.log");
        if std::fs::rename(&log, self.site.on_small_disk("access.log.1")).is_ok() {
            let pid = self.pid();
            self.site.weir.signals_pid(pid, Signal::USR1);
            self.waits("a new access log", |_| std::fs::metadata(&log).is_ok_and(|it| it.len() > 0));
        }
        "log rotated"
    }

    /// Has a new process take over.
    pub(super) fn upgrade(&mut self) -> &'static str {
        let old = self.pid();
        self.sql_change(SqlCause::Upgrade);
        self.site.weir.signals_pid(old, Signal::USR2);
        let serves = |chaos: &Chaos| {
            let answer = chaos.site.weir.admin().tries_to_read("/v1/status");
            answer.is_some_and(|answer| answer.status() == 200 && answer.json()["pid"] != old)
        };
        if self.waits("the new process to serve", serves) {
            self.leaving.push((old, Instant::now()));
        } else {
            self.sql_change_ends(SqlCause::Upgrade);
        }
        "upgrade"
    }

    /// Tells the process that serves to end.
    pub(super) fn ends(&mut self) {
        let pid = self.pid();
        self.site.weir.signals_pid(pid, Signal::TERM);
        self.leaving.push((pid, Instant::now()));
    }
}
