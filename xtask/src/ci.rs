//! What CI runs, in order: what is quick to find out comes first, and one failure does not hide the others.

use std::path::Path;

use crate::run::{Tally, announce, cargo, succeeds, tests};
use crate::{fuzz, licences, tidy};

/// Seconds each fuzz target gets in CI: enough to find a parser that panics on the first odd byte.
const FUZZ_SECONDS: u64 = 5;

/// Formatting, clippy, licences and the house rules; says whether all hold.
pub fn lint(root: &Path) -> bool {
    let steps = lint_steps(root);
    steps.iter().all(|(_, good)| *good)
}

fn lint_steps(root: &Path) -> [(&'static str, bool); 4] {
    [
        ("rustfmt", succeeds(cargo(root).args(["fmt", "--all", "--check", "--", "--files-with-diff"]))),
        (
            "clippy",
            succeeds(cargo(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])),
        ),
        ("licences", licences::hold(root)),
        ("tidy", tidy::holds(root)),
    ]
}

/// Everything; says whether all of it passed.
pub fn everything(root: &Path) -> bool {
    let mut tally = Tally::default();
    let mut steps = lint_steps(root).to_vec();
    run_tests(root, &mut tally);
    steps.push(("fuzz", fuzz::run(root, FUZZ_SECONDS)));
    for (name, good) in steps {
        tally.step(good);
        if !good {
            println!("step `{name}` failed");
        }
    }
    close(tally)
}

/// Builds and tests, without the rest.
pub fn tests_only(root: &Path) -> bool {
    let mut tally = Tally::default();
    run_tests(root, &mut tally);
    close(tally)
}

/// The end-to-end tests drive the built programs, so everything is built first; with the same packages selected, cargo
/// links the tests against what that build left.
fn run_tests(root: &Path, tally: &mut Tally) {
    if succeeds(cargo(root).args(["build", "--workspace"])) {
        let mut command = cargo(root);
        command.args(["test", "--workspace", "--no-fail-fast"]);
        announce(&command);
        tests(&mut command, &mut std::io::stdout(), tally);
    } else {
        tally.step(false);
    }
}

/// The closing line, which scripts read: keep its form.
fn close(tally: Tally) -> bool {
    if tally.ignored > 0 {
        println!("{} tests are switched off", tally.ignored);
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    tally.failed == 0 && tally.passed > 0
}

/// Writes the generated pages anew. The test that compares them does the writing, so that both see the same pages.
pub fn write_reference(root: &Path) -> bool {
    let mut command = cargo(root);
    command.env("WEIR_BLESS", "1").args(["test", "--quiet", "--package", "xtask", "reference::"]);
    succeeds(&mut command)
}
