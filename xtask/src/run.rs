//! Runs other programs: cargo with its output passed on, and test runs with their results summed up.

use std::io::{self, BufRead as _, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

/// The cargo that runs this xtask, so that a pinned toolchain stays the same throughout.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Prints a command, runs it, and returns whether it succeeded. A program that can't be started counts as
/// failed.
pub fn succeeds(command: &mut Command) -> bool {
    announce(command);
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!("xtask: {}: {error}", command.get_program().to_string_lossy());
            false
        }
    }
}

/// Prints a command as one would type it.
pub fn announce(command: &Command) {
    let name = Path::new(command.get_program()).file_name().unwrap_or_default().to_string_lossy();
    let mut line = format!("+ {name}");
    for argument in command.get_args() {
        line.push(' ');
        line.push_str(&argument.to_string_lossy());
    }
    println!("{line}");
}

/// The sum of test runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Tests that passed (count).
    pub passed: u64,
    /// Tests, and other steps, that failed (count).
    pub failed: u64,
    /// Tests that are switched off (count).
    pub ignored: u64,
    /// What the harness printed about each run's failed tests, for the end of a long output.
    pub failures: Vec<String>,
}

impl Tally {
    /// Adds the counts of a `test result:` line as the test harness prints it; other lines add nothing.
    pub fn read(&mut self, line: &str) {
        let Some(result) = line.trim_start().strip_prefix("test result: ") else { return };
        let (_, counts) = result.split_once(". ").unwrap_or(("", result));
        for part in counts.split(';') {
            let mut words = part.split_whitespace();
            let (Some(count), Some(what)) =
                (words.next().and_then(|word| word.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += count,
                "failed" => self.failed += count,
                "ignored" => self.ignored += count,
                _ => {}
            }
        }
    }

    /// Adds the results of another run.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.failures.extend(other.failures);
    }

    /// Counts a step that is not a test of the harness.
    pub fn step(&mut self, good: bool) {
        self.failed += u64::from(!good);
    }
}

/// Runs `cargo test` or a test program, passes its output on to `out`, and sums up its results.
///
/// A run that fails without a failed test (it did not compile, a test process was killed) counts as one
/// failure.
pub fn tests(command: &mut Command, out: &mut impl Write, tally: &mut Tally) {
    let before = tally.failed;
    let ended_well = stream(command, out, tally).unwrap_or_else(|error| {
        eprintln!("xtask: {}: {error}", command.get_program().to_string_lossy());
        false
    });
    if !ended_well && tally.failed == before {
        tally.failed += 1;
    }
}

fn stream(command: &mut Command, out: &mut impl Write, tally: &mut Tally) -> io::Result<bool> {
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let mut failures = Failures::default();
    if let Some(stdout) = child.stdout.take() {
        // Bytes, not text: a test may print what is not UTF-8, and that must not end the run.
        for line in BufReader::new(stdout).split(b'\n') {
            let mut line = line?;
            line.push(b'\n');
            out.write_all(&line)?;
            let line = String::from_utf8_lossy(&line);
            tally.read(&line);
            failures.read(&line);
        }
    }
    tally.failures.extend(failures.text());
    out.flush()?;
    Ok(child.wait()?.success())
}

/// Extracts from a test program's output what it prints about failed tests: first their output, then their
/// names, each under a line `failures:`.
#[derive(Default)]
struct Failures {
    headings: usize,
    lines: Vec<String>,
}

impl Failures {
    /// Lines kept of what failed tests printed; their names are kept whole.
    const PRINTED: usize = 60;

    fn read(&mut self, line: &str) {
        let line = line.trim_end();
        self.headings += usize::from(line == "failures:");
        let kept = match self.headings {
            0 => false,
            1 => self.lines.len() < Self::PRINTED,
            _ => true,
        };
        if kept && !line.is_empty() {
            self.lines.push(line.to_owned());
        }
    }

    fn text(self) -> Option<String> {
        (!self.lines.is_empty()).then(|| self.lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_runs_add_up() {
        let mut tally = Tally::default();
        tally.read("running 3 tests");
        tally.read(
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 4 filtered out; finished in 0.02s",
        );
        tally.read("test result: FAILED. 7 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.20s\n");
        tally.read("the log says: test result: ok. 100 passed");
        assert_eq!(tally, Tally { passed: 19, failed: 2, ignored: 1, ..Tally::default() });
    }

    #[test]
    fn a_run_that_dies_without_a_result_counts_as_one_failure() {
        let mut tally = Tally::default();
        let mut shown = Vec::new();
        tests(Command::new("sh").args(["-c", "echo 'running 1 test'; kill -9 $$"]), &mut shown, &mut tally);
        assert_eq!(shown, b"running 1 test\n");
        assert_eq!(tally, Tally { failed: 1, ..Tally::default() });
    }

    #[test]
    fn a_run_with_failed_tests_counts_those_and_no_more() {
        let mut tally = Tally::default();
        let run = "printf 'running\\nfailures:\\n\\n-- it --\\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\\n\\377\\n'; exit 101";
        let mut shown = Vec::new();
        tests(Command::new("sh").args(["-c", run]), &mut shown, &mut tally);
        assert!(shown.ends_with(b"\xff\n"), "what is not text is passed on too: {shown:?}");
        assert_eq!((tally.passed, tally.failed, tally.ignored), (1, 2, 0));
        let said = "failures:\n-- it --\ntest result: FAILED. 1 passed; 2 failed; 0 ignored\n\u{fffd}";
        assert_eq!(tally.failures, [said], "for the end of the output");
    }

    #[test]
    fn a_program_that_is_not_there_fails() {
        assert!(!succeeds(&mut Command::new("no-such-program-anywhere")));
    }
}
