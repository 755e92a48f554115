//! What CI runs. One failure does not hide the others, and steps that wait for the network or use one thread
//! run beside the build.

use std::path::Path;
use std::process::Command;
use std::thread;

use crate::build::{self, Lints};
use crate::run::{Tally, cargo, succeeds};
use crate::tree::Tree;
use crate::{fuzz, licences, suite, tidy};

/// Seconds each fuzz target gets in CI: enough to find a parser that panics on the first odd byte.
const FUZZ_SECONDS: u64 = 3;

/// Formatting, clippy, licences and the house rules; says whether all hold.
pub fn lint(root: &Path) -> bool {
    let clippy = ["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"];
    let mut steps = quick_steps(root).to_vec();
    steps.push(("clippy", succeeds(cargo(root).args(clippy))));
    steps.iter().all(|(_, good)| *good)
}

/// The steps that compile nothing.
pub fn quick_steps(root: &Path) -> [(&'static str, bool); 3] {
    [
        ("rustfmt", succeeds(cargo(root).args(["fmt", "--all", "--check", "--", "--files-with-diff"]))),
        ("licences", licences::hold(root)),
        ("tidy", tidy::holds(root)),
    ]
}

/// Everything; says whether all of it passed.
pub fn everything(root: &Path) -> bool {
    let mut tally = Tally::default();
    let (mut steps, built) = thread::scope(|scope| {
        let others = scope.spawn(|| {
            let mut steps = quick_steps(root).to_vec();
            steps.push(("setup", succeeds(&mut Command::new(root.join("xtask/setup.sh")))));
            steps
        });
        let built = build::everything(root);
        (others.join().unwrap_or_else(|_| vec![("setup", false)]), built)
    });
    steps.push(("clippy", built == Some(Lints::Deny)));
    if let Some(lints) = built {
        run_tests(root, lints, &mut tally);
        steps.push(("fuzz", fuzz::run_built(root, FUZZ_SECONDS)));
    }
    close(&steps, tally)
}

/// Builds and tests, without the rest.
pub fn tests_only(root: &Path) -> bool {
    let mut tally = Tally::default();
    let built = build::everything(root);
    if let Some(lints) = built {
        run_tests(root, lints, &mut tally);
    }
    close(&[("build", built.is_some())], tally)
}

fn run_tests(root: &Path, lints: Lints, tally: &mut Tally) {
    match suite::programs(root, lints) {
        Some(programs) => suite::run(root, &programs, &[], tally),
        None => tally.step(false),
    }
    match Tree::tracked(root) {
        Ok(tree) => suite::documentation(root, &tree, lints, tally),
        Err(error) => {
            eprintln!("xtask: {error}");
            tally.step(false);
        }
    }
}

/// Counts the steps and prints the closing line. Scripts read that line: keep its form.
pub fn close(steps: &[(&str, bool)], mut tally: Tally) -> bool {
    for (name, good) in steps {
        tally.step(*good);
        if !good {
            println!("step `{name}` failed");
        }
    }
    for failure in &tally.failures {
        println!("{failure}");
    }
    if tally.ignored > 0 {
        println!("{} tests are switched off", tally.ignored);
    }
    println!("{} passed, {} failed", tally.passed, tally.failed);
    tally.failed == 0 && tally.passed > 0
}

/// Regenerates the generated pages. The test that compares them does the writing, so that both see the same
/// pages.
pub fn write_reference(root: &Path) -> bool {
    let mut command = cargo(root);
    command.env("WEIR_BLESS", "1").args(["test", "--quiet", "--package", "xtask", "reference::"]);
    succeeds(&mut command)
}
