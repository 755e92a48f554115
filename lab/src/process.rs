//! Starts, pins and ends the processes of a measurement.
//!
//! Every process is started through `weir-lab launch`, which sets itself up (own session, core, priority,
//! death with its parent) and then becomes the program. So no code has to run between fork and exec, and if
//! the lab is interrupted or killed the kernel ends everything that it had started.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use rustix::thread::CpuSet;

/// How a process is to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The core it is pinned to; `None` leaves it free.
    pub core: Option<usize>,
    /// Its nice value, -20 (first served) to 19. Below zero needs root; without it the value stays as it is.
    pub nice: i32,
    /// Run it as a real-time process, ahead of everything else on its core. Needs root and `chrt`.
    pub realtime: bool,
}

/// Becomes `program`, placed as told. Returns only when that fails.
///
/// `parent` is the process that asked for it. If it is gone already, nothing is started, because the signal
/// for its death could no longer arrive. `end` is that signal.
pub fn become_program(placement: Placement, parent: u32, end: Signal, program: &[String]) -> io::Error {
    // The launcher does not make the system call itself, because every Debian has a program for it.
    let before: &[&str] = if placement.realtime { &["chrt", "--rr", "1"] } else { &[] };
    let program: Vec<&str> = before.iter().copied().chain(program.iter().map(String::as_str)).collect();
    let Some((name, arguments)) = program.split_first() else {
        return io::Error::other("nothing to launch: a program is expected after `--`");
    };
    if let Err(error) = prepare(placement, parent, end) {
        return error;
    }
    let error = Command::new(name).args(arguments).exec();
    io::Error::new(error.kind(), format!("{name} did not start: {error}"))
}

fn prepare(placement: Placement, parent: u32, end: Signal) -> io::Result<()> {
    // A session of its own protects it from the terminal's Ctrl-C: in every case the lab's death ends it.
    rustix::process::setsid()?;
    rustix::process::set_parent_process_death_signal(Some(end))?;
    let parent_now = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if parent_now.and_then(|pid| u32::try_from(pid.get()).ok()) != Some(parent) {
        return Err(io::Error::other("the lab ended before its child began"));
    }
    if let Some(core) = placement.core {
        let mut cores = CpuSet::new();
        cores.set(core);
        rustix::thread::sched_setaffinity(None, &cores)
            .map_err(|error| io::Error::other(format!("core {core} cannot be used: {error}")))?;
    }
    // Without root a higher priority is refused; the measurement is then noisier, and the report says so.
    let _ = rustix::process::setpriority_process(None, placement.nice);
    // If the kernel groups sessions for scheduling, the group's value is what counts against other sessions.
    let _ = fs::write("/proc/self/autogroup", placement.nice.to_string());
    Ok(())
}

/// A command to which the caller adds a program, which is then killed when this process ends.
pub fn bound_to_this_one() -> Command {
    let mut command = Command::new(own_program());
    command.args(["launch", "--nice=0", "--kill"]).arg(format!("--parent={}", std::process::id())).arg("--");
    command
}

/// A path to this program that stays valid while it runs, even if a build replaces its file meanwhile.
pub fn own_program() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// Whether this process may give others the nice value `nice`.
pub fn may_set_priority(nice: i32) -> bool {
    nice >= 0 || rustix::process::geteuid().is_root()
}

/// A running process of a measurement. Ended when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    log: PathBuf,
}

/// Where a process's standard output goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Into the log, with standard error.
    Log,
    /// To the lab, which reads it.
    Piped,
}

impl Running {
    /// Starts `program` placed as told; its standard error goes into `log`.
    pub fn start(
        name: &str,
        placement: Placement,
        program: &[String],
        log: &Path,
        output: Output,
    ) -> io::Result<Self> {
        let errors = File::create(log)?;
        let mut command = Command::new(own_program());
        command.arg("launch").arg(format!("--nice={}", placement.nice));
        command.arg(format!("--parent={}", std::process::id()));
        if placement.realtime {
            command.arg("--realtime");
        }
        if let Some(core) = placement.core {
            command.arg(format!("--core={core}"));
        }
        command.arg("--").args(program).stdin(Stdio::piped());
        command.stdout(match output {
            Output::Log => Stdio::from(errors.try_clone()?),
            Output::Piped => Stdio::piped(),
        });
        command.stderr(errors);
        Ok(Self { child: command.spawn()?, name: name.to_owned(), log: log.to_owned() })
    }

    /// The process's id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its piped standard output, once.
    pub fn take_output(&mut self) -> Option<std::process::ChildStdout> {
        self.child.stdout.take()
    }

    /// Waits for it to print `expected` as its next line; what it prints later is read by
    /// [`Running::finish`].
    ///
    /// Err, with the last lines of its log, when it prints something else or ends.
    pub fn expect_line(&mut self, expected: &str) -> io::Result<()> {
        let line = self.next_line().unwrap_or_default();
        if line == expected {
            return Ok(());
        }
        let problem = format!("{} said `{line}` where `{expected}` was expected; its log ends:\n", self.name);
        Err(io::Error::other(problem + &self.log_tail()))
    }

    /// Writes `line` to its standard input.
    pub fn tell(&mut self, line: &str) -> io::Result<()> {
        let Some(input) = &mut self.child.stdin else {
            return Err(io::Error::other(format!("the input of {} is closed", self.name)));
        };
        io::Write::write_all(input, format!("{line}\n").as_bytes())
    }

    /// The next line that it prints to its piped output, without its end. Err when it prints no more.
    pub fn next_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let Some(output) = &mut self.child.stdout else {
            return Err(io::Error::other(format!("the output of {} is not piped", self.name)));
        };
        // Byte by byte: what a buffer read beyond the line would be lost to the reader of the rest.
        let mut byte = [0];
        while byte != *b"\n" {
            if io::Read::read(output, &mut byte)? == 0 {
                return Err(io::Error::other(format!("{} prints no more", self.name)));
            }
            line.push(byte[0]);
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// Whether it has ended by itself, and how.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// The last lines of its log, indented, for a message to a person.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log)
    }

    /// Closes its standard input, waits for it to end by itself, and gives what it wrote to its piped output.
    ///
    /// Err when it takes longer than `deadline` or ends with anything but 0.
    pub fn finish(mut self, deadline: Duration) -> io::Result<String> {
        drop(self.child.stdin.take());
        let output = self.child.stdout.take();
        // The output is read during the wait: a full pipe would keep the process from ending.
        let reader = thread::spawn(move || -> io::Result<String> {
            let mut text = String::new();
            if let Some(mut output) = output {
                io::Read::read_to_string(&mut output, &mut text)?;
            }
            Ok(text)
        });
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if begin.elapsed() > deadline => {
                    let problem = format!("{} was still running after {deadline:?}", self.name);
                    return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
                }
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        let text =
            reader.join().map_err(|_| io::Error::other("the reader of a process's output panicked"))??;
        if !status.success() {
            let tail = self.log_tail();
            return Err(io::Error::other(format!("{} ended with {status}:\n{text}{tail}", self.name)));
        }
        Ok(text)
    }

    /// Asks it to end, waits, and then kills whatever is left of its session.
    fn stop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(3);
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return };
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let begin = Instant::now();
        // NOWAIT leaves the ended process as a zombie, so its id cannot belong to anyone else when the group
        // is killed.
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        while begin.elapsed() < PATIENCE
            && matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None))
        {
            thread::sleep(Duration::from_millis(5));
        }
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The last lines of the log file `path`, indented; empty when there is none.
fn log_tail(path: &Path) -> String {
    const LINES: usize = 8;
    let text = fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LINES)..].iter().map(|line| format!("    {line}\n")).collect()
}
