//! Runs the operator's program that adds records to zones and removes them.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use weir_config::DnsProgram;

use crate::blocking::blocking;
use crate::lock;

/// How much of its output is reported: the last bytes.
const SAID_BYTES: usize = 1 << 10;
/// How long to wait for the rest of its output after it has ended, if a child process still has the pipe
/// open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Runs the program and waits for its end, on a thread that may block.
///
/// # Errors
/// It could not be run, ended with a status other than 0, or was killed because it took too long; includes
/// its output.
pub async fn run(
    program: &DnsProgram,
    domain: &str,
    name: &str,
    value: &str,
    is_there: bool,
) -> Result<(), String> {
    let action = if is_there { "present" } else { "cleanup" };
    let name = format!("{name}.");
    let mut command = Command::new(&program.program);
    command.args([action, &name, value]).stdin(Stdio::null()).process_group(0);
    command.env("WEIR_ACTION", action).env("WEIR_DOMAIN", domain);
    command.env("WEIR_RECORD_NAME", &name).env("WEIR_RECORD_VALUE", value);
    // The same variables as for hooks of certbot.
    command.env("CERTBOT_DOMAIN", domain).env("CERTBOT_VALIDATION", value);
    let (path, longest) = (program.program.clone(), program.timeout);
    let ended = blocking(move || wait(&path, command, longest)).await;
    let ended = ended.unwrap_or_else(|error| Err(error.to_string()));
    ended.map_err(|reason| format!("`{} {action} {name}` {reason}", program.program.display()))
}

fn wait(path: &Path, mut command: Command, longest: Duration) -> Result<(), String> {
    let told = |error: io::Error| format!("could not be run: {error}");
    let (output, input) = io::pipe().map_err(told)?;
    command.stdout(input.try_clone().map_err(told)?).stderr(input);
    let mut child = command.spawn().map_err(told)?;
    // Our copy of the write end would keep the pipe open.
    drop(command);
    let said = Arc::new(Mutex::new(Vec::new()));
    let into = said.clone();
    let reader = std::thread::spawn(move || keep_last(File::from(std::os::fd::OwnedFd::from(output)), &into));
    let ended = ended_within(&mut child, longest);
    let since = Instant::now();
    while !reader.is_finished() && since.elapsed() < LAST_WORDS {
        std::thread::sleep(Duration::from_millis(5));
    }
    let said = printable(&lock(&said));
    let said = if said.is_empty() { "nothing".to_owned() } else { said };
    match ended {
        Ok(Some(status)) if status.success() => {
            tracing::debug!(program = %path.display(), said, "program for records ended");
            Ok(())
        }
        Ok(Some(status)) => Err(match (status.code(), status.signal()) {
            (Some(code), _) => format!("ended with status {code} and said: {said}"),
            (None, signal) => format!("was ended by signal {} and said: {said}", signal.unwrap_or_default()),
        }),
        Ok(None) => Err(format!("had not ended within {longest:?}, was killed and said: {said}")),
        Err(error) => Err(format!("could not be waited for: {error}")),
    }
}

/// Waits for its end; `None` when it had to be killed, with all processes that it had started.
fn ended_within(child: &mut Child, longest: Duration) -> io::Result<Option<ExitStatus>> {
    let pid = Pid::from_child(child);
    let handle = pidfd_open(pid, PidfdFlags::empty())?;
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let Some(left) = longest.checked_sub(since.elapsed()) else { break };
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // It leads its own process group, and has not been reaped: the number can't belong to another.
    kill_process_group(pid, Signal::KILL)?;
    child.wait()?;
    Ok(None)
}

/// Reads to the end and keeps the last bytes, so that the program never blocks on a full pipe.
fn keep_last(mut output: File, said: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = output.read(&mut bytes) {
        let mut said = lock(said);
        said.extend_from_slice(&bytes[..count]);
        let more = said.len().saturating_sub(SAID_BYTES);
        said.drain(..more);
    }
}

/// As one line, without characters that a terminal or a log would interpret.
fn printable(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::PathBuf;

    use super::*;

    /// A program of this text.
    fn program(name: &str, text: &str, timeout: Duration) -> DnsProgram {
        let path = std::env::temp_dir().join(format!("weir-dns-{}-{name}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        DnsProgram { program: path, timeout, ..DnsProgram::default() }
    }

    async fn ran(program: &DnsProgram, is_there: bool) -> Result<(), String> {
        let ran = run(program, "shop.example", "_acme-challenge.shop.example", "value", is_there).await;
        let _ = std::fs::remove_file(&program.program);
        ran
    }

    #[tokio::test]
    async fn it_is_told_what_to_do_by_arguments_and_by_the_environment() {
        let text = r#"[ "$1 $2 $3" = "present _acme-challenge.shop.example. value" ] || exit 3
[ "$WEIR_ACTION $WEIR_DOMAIN $WEIR_RECORD_NAME $WEIR_RECORD_VALUE" = "$1 shop.example $2 $3" ] || exit 4
[ "$CERTBOT_DOMAIN $CERTBOT_VALIDATION" = "shop.example value" ]"#;
        let long = Duration::from_secs(60);
        assert_eq!(ran(&program("told", text, long), true).await, Ok(()));
        let error = ran(&program("told-other", text, long), false).await.unwrap_err();
        assert!(error.contains("cleanup _acme-challenge.shop.example.` ended with status 3"), "{error}");
    }

    #[tokio::test]
    async fn what_it_said_is_told_in_one_line_and_no_more_than_the_last_of_it() {
        let text = "head -c 100000 /dev/zero | tr '\\0' x\nprintf 'no \\033[31mtoken\\nhere' >&2\nexit 7";
        let error = ran(&program("said", text, Duration::from_secs(60)), true).await.unwrap_err();
        assert!(error.contains("status 7") && error.ends_with("no  [31mtoken here"), "{error}");
        assert!(error.len() < 2 * SAID_BYTES, "{} bytes", error.len());
    }

    #[tokio::test]
    async fn one_that_takes_too_long_is_killed_with_all_that_it_has_started() {
        let slow = program("slow", "sleep 1000 &\nsleep 1000", Duration::from_secs(1));
        let error = ran(&slow, true).await.unwrap_err();
        assert!(error.contains("had not ended within 1s, was killed"), "{error}");
    }

    #[tokio::test]
    async fn one_that_is_not_there_is_named() {
        let missing = DnsProgram { program: PathBuf::from("/nowhere/dns"), ..DnsProgram::default() };
        let error = ran(&missing, true).await.unwrap_err();
        assert!(error.contains("/nowhere/dns present") && error.contains("could not be run"), "{error}");
    }
}
