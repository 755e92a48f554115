//! Other people's programs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// A program that ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; -1 when a signal ended it.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Finished {
    /// Panics unless the exit code is 0; gives standard output.
    pub fn succeeded(&self) -> &str {
        assert_eq!(self.code, 0, "exit code\nstdout: {}\nstderr: {}", self.stdout, self.stderr);
        &self.stdout
    }
}

/// Where `program` is. Panics with the Debian package to install when it is nowhere on the path.
pub fn tool(program: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places
        .map(|place| place.join(program))
        .find(|candidate| candidate.is_file())
        .unwrap_or_else(|| panic!("this test needs `{program}`: apt-get install {package}"))
}

/// What curl writes to standard output when it is run with these arguments, in silence and past every proxy.
/// Panics when it fails.
pub fn curl(arguments: &[&str]) -> String {
    let mut all = vec!["--silent", "--show-error", "--fail", "--max-time", "20", "--noproxy", "*"];
    all.extend(arguments);
    run_tool(&tool("curl", "curl"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}

/// Where a program is that `xtask/setup.sh` puts into `clients` in the target directory, such as
/// `bin/nethttp`.
pub fn client_program(path: &str) -> PathBuf {
    let here = std::env::current_exe().expect("own path");
    let mut places = here.ancestors().map(|place| place.join("clients").join(path));
    places
        .find(|place| place.is_file())
        .unwrap_or_else(|| panic!("this test needs {path} in the target directory: run xtask/setup.sh"))
}

/// Runs `program` to its end, with `input` on standard input, at most for `patience`; a longer run is killed
/// and fails.
pub fn run_tool(program: &Path, arguments: &[&str], input: &[u8], patience: Duration) -> Finished {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|problem| panic!("{} does not start: {problem}", program.display()));
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A program may close its input without reading it.
        let _ = stdin.write_all(&input);
    });
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("wait for a child") {
            break status;
        }
        if begun.elapsed() > patience {
            let _ = child.kill();
            let _ = child.wait();
            let (out, err) = (stdout.join().expect("reader"), stderr.join().expect("reader"));
            panic!(
                "{} {arguments:?} still runs after {patience:?}\nstdout: {out}\nstderr: {err}",
                program.display()
            );
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    writer.join().expect("writer");
    Finished {
        code: status.code().unwrap_or(-1),
        stdout: stdout.join().expect("reader"),
        stderr: stderr.join().expect("reader"),
    }
}

fn collect(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
