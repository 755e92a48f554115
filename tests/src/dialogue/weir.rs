//! The program under test, as a process.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};

use super::admin::Admin;
use super::process::{Usage, processes_mentioning, usage_of};
use super::quiet::{Quiet, together};
use super::tools::{Finished, run_tool};
use super::wire::Wire;
use super::{PATIENCE, free_address, until};

/// A signal, named as `kill(1)` does.
pub use rustix::process::Signal;

/// Where the program is: `WEIR_BIN`, else beside the target directory's own executables.
pub fn weir_binary() -> PathBuf {
    if let Some(given) = std::env::var_os("WEIR_BIN") {
        return given.into();
    }
    let here = std::env::current_exe().expect("own path");
    let places = here.ancestors().skip(1).take(2).map(|place| place.join("weir"));
    let found = places.into_iter().find(|place| place.is_file());
    found.unwrap_or_else(|| {
        panic!("no `weir` beside {}: run `cargo build -p weir`, or set WEIR_BIN", here.display())
    })
}

/// A Weir about to be started.
///
/// In the config text, a quoted name that begins with `@` stands for an address: one given with
/// [`Self::with`], or else a free one that Weir is to bind, the same for the same name. `@dir` stands for the
/// test's own directory.
#[derive(Debug)]
pub struct Setup {
    template: String,
    given: BTreeMap<String, String>,
    files: Vec<(String, String)>,
    wrapper: Vec<String>,
    environment: Vec<(String, String)>,
}

/// A running Weir. Killed, and its directory removed, when dropped; a failed test keeps the directory and
/// shows the log.
#[derive(Debug)]
pub struct Weir {
    setup: Setup,
    names: BTreeMap<String, String>,
    dir: PathBuf,
    child: Child,
    output: Arc<Mutex<Output>>,
    // Last, so that others wait until the process is gone.
    _quiet: Quiet,
}

#[derive(Debug, Default)]
struct Output {
    stdout: String,
    stderr: String,
    /// How many of the two outputs were read to their end.
    ended: u32,
}

/// Longest wait for the last output of a process that has ended.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Where Debian puts libfaketime for programs with threads.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";

static STARTED: AtomicU32 = AtomicU32::new(0);

impl Setup {
    /// Sets up from this config text. An `[admin]` at a free address is added when it has none.
    pub fn of(config: &str) -> Setup {
        let mut template = config.to_owned();
        if !template.contains("[admin]") {
            template += "\n[admin]\nbind = \"@admin\"\n";
        }
        Setup {
            template,
            given: BTreeMap::new(),
            files: Vec::new(),
            wrapper: Vec::new(),
            environment: Vec::new(),
        }
    }

    /// Lets `"@name"` stand for this address (or any text).
    pub fn with(mut self, name: &str, value: impl ToString) -> Setup {
        self.given.insert(name.to_owned(), value.to_string());
        self
    }

    /// Puts a file in the directory that `@dir` stands for.
    pub fn with_file(mut self, name: &str, content: &str) -> Setup {
        self.files.push((name.to_owned(), content.to_owned()));
        self
    }

    /// Runs it under another program, such as `["prlimit", "--nofile=64:64"]`.
    pub fn under(mut self, wrapper: &[&str]) -> Setup {
        self.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Sets an environment variable; `@dir` in the value stands for the test's directory.
    pub fn environment(mut self, name: &str, value: &str) -> Setup {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs it with a wall clock that [`Weir::sets_clock`] moves. Needs libfaketime.
    pub fn with_fake_clock(self) -> Setup {
        assert!(Path::new(FAKETIME).exists(), "this test needs libfaketime: apt-get install libfaketime");
        self.with_file("clock", "+0")
            .environment("LD_PRELOAD", FAKETIME)
            .environment("FAKETIME_TIMESTAMP_FILE", "@dir/clock")
            .environment("FAKETIME_NO_CACHE", "1")
            // The kernel's monotonic clock does not jump with the wall clock, so the fake one must not
            // either.
            .environment("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .environment("NO_FAKE_STAT", "1")
    }

    /// Starts it and waits until it says it is ready.
    pub fn start(self) -> Weir {
        let mut weir = self.launch();
        // A port can be taken between the moment we found it free and the moment Weir binds it, though only
        // by somebody who binds ports below the ephemeral range as we do.
        for _ in 0..3 {
            if weir.becomes_ready() {
                return weir;
            }
            if !weir.stderr().to_lowercase().contains("in use") {
                panic!("weir did not become ready\n{}", weir.story());
            }
            weir.kill_all();
            let setup = std::mem::take(&mut weir.setup);
            drop(weir);
            weir = setup.launch();
        }
        panic!("weir did not become ready\n{}", weir.story());
    }

    /// Starts it without waiting; for configs that must be refused.
    pub fn launch(self) -> Weir {
        let quiet = together();
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("weir-e2e-{}-{number}.d", std::process::id()));
        fs::create_dir_all(&dir).unwrap_or_else(|problem| panic!("{}: {problem}", dir.display()));
        let mut names = self.given.clone();
        names.insert("dir".to_owned(), dir.display().to_string());
        for (name, content) in &self.files {
            fs::write(dir.join(name), fill(content, &mut names)).expect("write a file of the test");
        }
        fs::write(dir.join("weir.toml"), fill(&self.template, &mut names)).expect("write the config");
        let (child, output) = spawn(&self, &dir);
        Weir { setup: self, names, dir, child, output, _quiet: quiet }
    }
}

impl Default for Setup {
    fn default() -> Setup {
        Setup::of("")
    }
}

fn spawn(setup: &Setup, dir: &Path) -> (Child, Arc<Mutex<Output>>) {
    let binary = weir_binary();
    let mut words: Vec<std::ffi::OsString> = as_nobody(dir).into_iter().map(Into::into).collect();
    words.extend(setup.wrapper.iter().map(Into::into));
    words.extend([binary.into(), "run".into(), "--config".into(), dir.join("weir.toml").into()]);
    let mut command = Command::new(&words[0]);
    command
        .args(&words[1..])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in &setup.environment {
        command.env(name, value.replace("@dir", &dir.display().to_string()));
    }
    let mut child =
        command.spawn().unwrap_or_else(|problem| panic!("{} does not start: {problem}", words[0].display()));
    let output = Arc::new(Mutex::new(Output::default()));
    let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
    let into = output.clone();
    std::thread::spawn(move || gather(stdout, &into, |output| &mut output.stdout));
    let into = output.clone();
    std::thread::spawn(move || gather(stderr, &into, |output| &mut output.stderr));
    (child, output)
}

/// The command words that run the program as user nobody with only the capabilities that
/// WEIR_TEST_CAPABILITIES names; empty if it is not set. `make kernels` sets it.
fn as_nobody(dir: &Path) -> Vec<String> {
    let Ok(names) = std::env::var("WEIR_TEST_CAPABILITIES") else { return Vec::new() };
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("the directory is ours");
    let only: String = names.split(',').map(|name| format!(",+{name}")).collect();
    let words = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"].map(str::to_owned);
    let sets = ["inh-caps", "ambient-caps", "bounding-set"].map(|set| format!("--{set}=-all{only}"));
    words.into_iter().chain(sets).collect()
}

fn gather(from: impl std::io::Read, into: &Mutex<Output>, part: fn(&mut Output) -> &mut String) {
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        let mut output = into.lock().unwrap_or_else(PoisonError::into_inner);
        part(&mut output).push_str(&String::from_utf8_lossy(&line));
        line.clear();
    }
    into.lock().unwrap_or_else(PoisonError::into_inner).ended += 1;
}

/// Waits for the last output of a process that has ended. It may still be in the pipes, which end with the
/// process unless a successor has inherited them.
fn hear_last_words(output: &Mutex<Output>) {
    let ended = Instant::now();
    while output.lock().unwrap_or_else(PoisonError::into_inner).ended < 2 && ended.elapsed() < LAST_WORDS {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Replaces `@name` behind a quote, or `@dir` anywhere, handing out free addresses to names not seen before.
fn fill(template: &str, names: &mut BTreeMap<String, String>) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(at) = rest.find('@') {
        filled += &rest[..at];
        let name: String =
            rest[at + 1..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let quoted = filled.ends_with(['"', '\'']);
        if name == "dir" || (quoted && !name.is_empty()) {
            let value = names.entry(name.clone()).or_insert_with(|| free_address().to_string());
            filled += value;
        } else {
            filled.push('@');
            filled += &name;
        }
        rest = &rest[at + 1 + name.len()..];
    }
    filled + rest
}

impl Weir {
    fn becomes_ready(&mut self) -> bool {
        let admin = self.admin();
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.child.try_wait().expect("wait for weir").is_some() {
                hear_last_words(&self.output);
                return false;
            }
            if admin.tries_to_read("/readyz").is_some_and(|answer| answer.status() == 200) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    /// The address that `@name` stands for.
    pub fn address(&self, name: &str) -> SocketAddr {
        let text = self.names.get(name).unwrap_or_else(|| panic!("the config has no @{name}"));
        text.parse().unwrap_or_else(|_| panic!("@{name} is {text:?}, no address"))
    }

    /// Connects to the listener bound to `@name`.
    pub fn client(&self, name: &str) -> Wire {
        Wire::connect(self.address(name))
    }

    /// The admin API.
    pub fn admin(&self) -> Admin {
        Admin::at(self.address("admin"))
    }

    /// The sum of a metric's samples with these labels.
    pub fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.admin().metric(name, labels)
    }

    /// Waits until a metric is at least this much.
    pub fn reaches(&self, name: &str, labels: &[(&str, &str)], least: f64) {
        let mut last = 0.0;
        until(&format!("{name} {labels:?} at least {least}"), || {
            last = self.metric(name, labels);
            (last >= least).then_some(())
        });
    }

    /// The test's directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file in the test's directory, as text; empty when there is none.
    pub fn file(&self, name: &str) -> String {
        fs::read(self.dir.join(name))
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Waits until a file of the test's directory has this many lines, and gives them.
    pub fn lines_of(&self, name: &str, least: usize) -> Vec<String> {
        until(&format!("{name} with {least} lines"), || {
            let lines: Vec<String> = self.file(name).lines().map(str::to_owned).collect();
            (lines.len() >= least).then_some(lines)
        })
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).stderr.clone()
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).stdout.clone()
    }

    /// Process ids that run this Weir, wrappers left out: after USR2 there are two for a while. Ascending.
    pub fn pids(&self) -> Vec<u32> {
        let binary = fs::canonicalize(weir_binary()).expect("the binary exists");
        let identity = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        let file = identity(&binary);
        // A binary that was built anew while it runs shows as "(deleted)".
        let is_named = |exe: PathBuf| {
            exe.display().to_string().trim_end_matches(" (deleted)") == binary.display().to_string()
        };
        // If a process has mounts of its own, inside another root, its path differs from ours.
        let ours = |pid: &u32| {
            let exe = PathBuf::from(format!("/proc/{pid}/exe"));
            identity(&exe).is_some_and(|found| Some(found) == file) || fs::read_link(exe).is_ok_and(is_named)
        };
        processes_mentioning(&self.config_path()).into_iter().filter(ours).collect()
    }

    /// Whether this process still runs. Cheaper than [`Self::pids`], which reads all of `/proc`.
    pub fn is_running(&self, pid: u32) -> bool {
        // The command line of a process that has ended but was not waited for is empty.
        fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|command| String::from_utf8_lossy(&command).contains(&self.config_path()))
    }

    /// The only process id that runs this Weir, once it is the only one.
    pub fn pid(&self) -> u32 {
        let begun = Instant::now();
        loop {
            match *self.pids() {
                [pid] => return pid,
                // Between fork and exec a child of a Weir looks like one in `/proc`.
                ref pids => assert!(
                    begun.elapsed() < PATIENCE,
                    "expected one process, found {pids:?}\n{}",
                    self.story()
                ),
            }
        }
    }

    /// What the only process uses.
    pub fn usage(&self) -> Usage {
        usage_of(self.pid()).expect("running")
    }

    /// Path of the config file.
    pub fn config_path(&self) -> String {
        self.dir.join("weir.toml").display().to_string()
    }

    /// Sends a signal to the process with the lowest id.
    pub fn signals(&self, signal: Signal) {
        signal_to(self.pids().first().copied().expect("running"), signal);
    }

    /// Sends a signal to this process of ours.
    pub fn signals_pid(&self, pid: u32, signal: Signal) {
        assert!(self.pids().contains(&pid), "process {pid} is not ours");
        signal_to(pid, signal);
    }

    /// Writes a new config text over the old one, at once (rename); Weir is not told.
    pub fn rewrites(&mut self, config: &str) {
        let mut template = config.to_owned();
        if !template.contains("[admin]") {
            template += "\n[admin]\nbind = \"@admin\"\n";
        }
        let next = self.dir.join("next.toml");
        fs::write(&next, fill(&template, &mut self.names)).expect("write the next config");
        fs::rename(&next, self.dir.join("weir.toml")).expect("rename the next config");
    }

    /// Lets `"@name"` stand for this address in later configs.
    pub fn knows(&mut self, name: &str, value: impl ToString) {
        self.names.insert(name.to_owned(), value.to_string());
    }

    /// Runs `weir VERB… --config FILE`.
    pub fn command(&self, arguments: &[&str]) -> Finished {
        let path = self.config_path();
        let mut words: Vec<&str> = arguments.to_vec();
        words.extend(["--config", &path]);
        run_tool(&weir_binary(), &words, b"", PATIENCE)
    }

    /// Rewrites the config, runs `weir reload`, and fails unless it succeeded.
    pub fn reloads(&mut self, config: &str) {
        self.rewrites(config);
        let finished = self.command(&["reload"]);
        assert_eq!(finished.code, 0, "reload refused: {finished:?}\n{}", self.story());
    }

    /// Sets the offset of the wall clock of [`Setup::with_fake_clock`] from the real one, such as `+1h`.
    pub fn sets_clock(&self, offset: &str) {
        let next = self.dir.join("clock.next");
        fs::write(&next, offset).expect("write the next clock");
        fs::rename(&next, self.dir.join("clock")).expect("rename the next clock");
    }

    /// Waits until the process we started has ended.
    pub fn exits(&mut self) -> ExitStatus {
        let child = &mut self.child;
        let output = &self.output;
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().expect("wait for weir") {
                hear_last_words(output);
                return status;
            }
            let stderr = &output.lock().unwrap_or_else(PoisonError::into_inner).stderr;
            assert!(begun.elapsed() < PATIENCE, "weir still runs after {PATIENCE:?}\n{stderr}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Starts it again, with the config as it stands and at the same addresses, after it ended.
    pub fn starts_again(&mut self) {
        self.exits();
        let (child, output) = spawn(&self.setup, &self.dir);
        let before = self.stderr();
        (self.child, self.output) = (child, output);
        self.output.lock().unwrap_or_else(PoisonError::into_inner).stderr.insert_str(0, &before);
        assert!(self.becomes_ready(), "weir did not become ready again\n{}", self.story());
    }

    /// Config, state and the end of the log, for failure messages.
    pub fn story(&self) -> String {
        let mut story = format!("--- {}: {:?}\n", self.dir.display(), self.pids());
        let stderr = self.stderr();
        let lines: Vec<&str> = stderr.lines().collect();
        for line in &lines[lines.len().saturating_sub(60)..] {
            let _ = writeln!(story, "weir| {line}");
        }
        story
    }

    fn kill_all(&mut self) {
        for pid in processes_mentioning(&self.config_path()) {
            signal_to(pid, Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Panics that the program itself counted; `None` if it does not answer.
    fn panics_counted(&self) -> Option<f64> {
        let page = self.admin().tries_to_read("/metrics")?.response.text();
        let lines = page.lines().filter(|line| !line.starts_with('#') && line.contains("panics"));
        Some(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }
}

fn signal_to(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        let alive = self.setup.template.contains("@admin") && !self.pids().is_empty();
        let counted = if std::thread::panicking() || !alive { None } else { self.panics_counted() };
        self.kill_all();
        let stderr = self.stderr();
        if std::thread::panicking() {
            eprintln!("{}", self.story());
            return;
        }
        assert!(!stderr.contains("panicked at"), "weir panicked\n{}", self.story());
        assert!(counted.unwrap_or(0.0) == 0.0, "weir counted a panic\n{}", self.story());
        let _ = fs::remove_dir_all(&self.dir);
    }
}
