//! How a new process is begun, and ended where it does not come up.
//!
//! Under a service manager it must not be a child of the old one. systemd would take it for the main process
//! when it is told so, but not wait for it: at the next stop it would kill it at once, with all that is under
//! way, since it waits for its own children alone. So a third process begins it and ends, and who has lost
//! its parent is given to the manager.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, sockopt};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::{HANDOFF_VARIABLE, READY_TIMEOUT, receive};

/// The verb by which this program begins another one and ends.
pub const HAND_ON: &str = "hand-on";

/// What [`hand_on`] says: with the number of the process that it has begun, or with what went wrong.
const BEGUN: &str = "begun ";
const FAILED: &str = "failed ";

/// The program that is running, by whatever file it came from, which may be gone.
const OURSELVES: &str = "/proc/self/exe";

/// Longest wait for one that has closed its end and has yet to say why.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A new process.
pub(super) struct Begun {
    pub(super) pid: u32,
    handle: Handle,
}

enum Handle {
    Child(Child),
    /// Of a process that is no child of this one; `None` where the kernel gives none (before Linux 5.3).
    Other(Option<OwnedFd>),
}

impl Begun {
    /// Begins `program` with `theirs` as its standard input, whose other end is `ours`.
    ///
    /// # Errors
    /// It can't be started; names it.
    pub(super) fn of(program: &Program, theirs: OwnedFd, ours: &OwnedFd) -> io::Result<Begun> {
        let path = program.path();
        let is_managed = std::env::var_os("NOTIFY_SOCKET").is_some_and(|value| !value.is_empty());
        if is_managed && let Ok(mut helper) = begin_helper(&path, program, &theirs) {
            drop(theirs);
            let begun = helped(ours);
            // It has ended, or is about to.
            let _ = helper.wait();
            return begun.map_err(naming(&path));
        }
        let child = command(&path).args(&program.arguments).stdin(Stdio::from(theirs)).spawn();
        let child = child.map_err(naming(&path))?;
        Ok(Begun { pid: child.id(), handle: Handle::Child(child) })
    }

    /// Ends it, unless it does so by itself: says how it ended then, as far as that is known.
    pub(super) fn end(self) -> Option<String> {
        match self.handle {
            Handle::Child(child) => end_child(child).map(words_of),
            Handle::Other(process) => {
                let process = process?;
                let limit = Timespec { tv_sec: LAST_WORDS.as_secs().cast_signed(), tv_nsec: 0 };
                let ended = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&limit));
                if ended.is_ok_and(|count| count > 0) {
                    return Some("ended before it was ready; its log says why".to_owned());
                }
                let _ = pidfd_send_signal(&process, Signal::KILL);
                None
            }
        }
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env(HANDOFF_VARIABLE, std::process::id().to_string());
    // The watchdog is meant for the main process, which the new one is about to become.
    command.env_remove("WATCHDOG_PID");
    command
}

fn begin_helper(path: &Path, program: &Program, theirs: &OwnedFd) -> io::Result<Child> {
    let mut helper = command(Path::new(OURSELVES));
    helper.arg(HAND_ON).arg(path).args(&program.arguments);
    helper.stdin(Stdio::from(theirs.try_clone()?)).spawn()
}

/// What the helper has begun.
fn helped(ours: &OwnedFd) -> io::Result<Begun> {
    sockopt::set_socket_timeout(ours, sockopt::Timeout::Recv, Some(READY_TIMEOUT))?;
    let (said, _) = receive(ours)?;
    let pid = said.strip_prefix(BEGUN).and_then(|pid| pid.parse().ok());
    let Some(pid) = pid.and_then(Pid::from_raw) else {
        return Err(io::Error::other(said.strip_prefix(FAILED).unwrap_or("nothing has begun it").to_owned()));
    };
    let handle = Handle::Other(pidfd_open(pid, PidfdFlags::empty()).ok());
    Ok(Begun { pid: pid.as_raw_nonzero().get().cast_unsigned(), handle })
}

/// Begins a program with the standard input of this process, which is the way to an old process, and tells
/// that its number. The process then has to end.
///
/// # Errors
/// Standard input is no such way.
pub fn hand_on(program: &OsStr, arguments: &[OsString]) -> io::Result<()> {
    let said = match Command::new(program).args(arguments).spawn() {
        Ok(child) => format!("{BEGUN}{}", child.id()),
        Err(error) => format!("{FAILED}{error}"),
    };
    rustix::net::send(io::stdin(), said.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Whether an old process of this number has begun this one, or had it begun: it is the parent, or has made
/// the socket that is standard input.
pub(super) fn was_begun_by(old: &str) -> bool {
    let is = |pid: Pid| pid.as_raw_nonzero().to_string() == old;
    rustix::process::getppid().is_some_and(is)
        || sockopt::socket_peercred(io::stdin().as_fd()).is_ok_and(|maker| is(maker.pid))
}

fn naming(path: &Path) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{} can't be started: {error}", path.display()))
}

fn words_of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (None, Some(signal)) => format!("was ended by signal {signal} before it was ready"),
        (code, _) => {
            let code = code.unwrap_or_default();
            format!("ended with exit code {code} before it was ready; its log says why")
        }
    }
}

/// Gives how it ended, where it did by itself.
fn end_child(mut child: Child) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(None) if begun.elapsed() < LAST_WORDS => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
            ended => return ended.ok().flatten(),
        }
    }
}

/// Processor time that a process has had, all its threads together (proc(5): fields 14 and 15; behind the
/// command in parentheses comes field 3). None of one that is not there.
pub(super) fn computed_by(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_ascii_whitespace();
    let ticks: u64 = fields.skip(14 - 3).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// How this process was started, so that it can be started again.
#[derive(Clone, Debug)]
pub struct Program {
    name: PathBuf,
    running: Option<PathBuf>,
    arguments: Vec<std::ffi::OsString>,
}

impl Program {
    /// Must be called at start: later the file of this program may have been replaced.
    pub fn of_this_process() -> Program {
        let mut arguments = std::env::args_os();
        let name = arguments.next().map_or_else(|| PathBuf::from("weir"), PathBuf::from);
        Program { name, running: std::env::current_exe().ok(), arguments: arguments.collect() }
    }

    /// The file to start: found anew under the name that was used, so that a replaced file or a symbolic link
    /// that points elsewhere now is taken; where that leads nowhere, the path at which this process's own
    /// file was.
    fn path(&self) -> PathBuf {
        if self.name.components().count() > 1 {
            return if self.name.exists() {
                self.name.clone()
            } else {
                self.running.clone().unwrap_or_else(|| self.name.clone())
            };
        }
        let search = std::env::var_os("PATH").unwrap_or_default();
        let found =
            std::env::split_paths(&search).map(|folder| folder.join(&self.name)).find(|path| path.is_file());
        found.or_else(|| self.running.clone()).unwrap_or_else(|| self.name.clone())
    }
}
