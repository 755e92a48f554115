//! Starts a new process, and ends it if it fails to come up.
//!
//! Under a service manager the new process must not be a child of the old one. systemd would accept it as the
//! main process when told so, but would not wait for it, since it waits only for its own children: at the
//! next stop it would kill it at once, with all its sessions. So a third process starts it and exits, and the
//! orphaned process is then adopted by the manager.

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

/// The command by which this program starts another process and exits.
pub const HAND_ON: &str = "hand-on";

/// What [`hand_on`] answers: this with the number of the new process, or [`FAILED`] with the error.
const BEGUN: &str = "begun ";
const FAILED: &str = "failed ";

/// The running program, whatever file it came from, even if that was removed.
const OURSELVES: &str = "/proc/self/exe";

/// Longest wait for a process that has closed its end to exit.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A new process.
pub(super) struct Begun {
    pub(super) pid: u32,
    handle: Handle,
}

enum Handle {
    Child(Child),
    /// A process that is not a child of this one; `None` if the kernel has no handle for it (before Linux
    /// 5.3).
    Other(Option<OwnedFd>),
}

impl Begun {
    /// Starts `program` with `theirs` as its standard input; the other end is `ours`.
    ///
    /// # Errors
    /// It can't be started; names it.
    pub(super) fn of(program: &Program, theirs: OwnedFd, ours: &OwnedFd) -> io::Result<Begun> {
        let path = program.path();
        let is_managed = std::env::var_os("NOTIFY_SOCKET").is_some_and(|value| !value.is_empty());
        if is_managed && let Ok(mut helper) = begin_helper(&path, program, &theirs) {
            drop(theirs);
            let begun = helped(ours);
            // It has exited, or is about to.
            let _ = helper.wait();
            return begun.map_err(naming(&path));
        }
        let child = command(&path).args(&program.arguments).stdin(Stdio::from(theirs)).spawn();
        let child = child.map_err(naming(&path))?;
        Ok(Begun { pid: child.id(), handle: Handle::Child(child) })
    }

    /// Ends the process. If it has already ended by itself, returns how, as far as that is known.
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
    // The watchdog variable is for the main process, which the new one is about to become.
    command.env_remove("WATCHDOG_PID");
    command
}

fn begin_helper(path: &Path, program: &Program, theirs: &OwnedFd) -> io::Result<Child> {
    let mut helper = command(Path::new(OURSELVES));
    helper.arg(HAND_ON).arg(path).args(&program.arguments);
    helper.stdin(Stdio::from(theirs.try_clone()?)).spawn()
}

/// The process that the helper has started.
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

/// Starts a program with the standard input of this process, which is the connection to an old process, and
/// sends its number there. The caller then has to exit.
///
/// # Errors
/// Standard input is not such a connection.
pub fn hand_on(program: &OsStr, arguments: &[OsString]) -> io::Result<()> {
    let said = match Command::new(program).args(arguments).spawn() {
        Ok(child) => format!("{BEGUN}{}", child.id()),
        Err(error) => format!("{FAILED}{error}"),
    };
    rustix::net::send(io::stdin(), said.as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Whether an old process with this number has started this one, directly or through a helper: it is the
/// parent, or has created the socket that is standard input.
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

/// Returns how the process ended, if it did so by itself.
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

/// CPU time that a process has used, for all its threads together (proc(5): fields 14 and 15; after the
/// command in parentheses comes field 3). Zero if it does not exist.
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
    /// Must be called at start, since the file of this program may be replaced later.
    pub fn of_this_process() -> Program {
        let mut arguments = std::env::args_os();
        let name = arguments.next().map_or_else(|| PathBuf::from("weir"), PathBuf::from);
        Program { name, running: std::env::current_exe().ok(), arguments: arguments.collect() }
    }

    /// The file to start: looked up again under the original name, so that a replaced file or a changed
    /// symbolic link takes effect; if there is none, the path at which this process's own file was.
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
