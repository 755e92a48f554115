//! Every test program of the workspace: lists them, and runs them in parallel, one at a time, or with many
//! threads.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::build::{Lints, linting};
use crate::fences::{fences, prose};
use crate::run::{Tally, announce, tests};
use crate::tree::Tree;

/// A program that holds tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Its package's directory, from the root of the repository: `crates/weir-http`.
    pub package: String,
    /// The name of the target: `conformance`, `e2e`, or the crate's for its unit tests.
    name: String,
    executable: PathBuf,
}

/// How a program runs: how many at once, and with how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    /// It computes: as many run in parallel as there are cores.
    Together,
    /// It measures time: nothing else runs at the same time.
    Alone,
    /// Its tests mostly wait, for other programs and for timers: many threads, and nothing else at the same
    /// time.
    Waiting,
}

/// End-to-end tests that compare how long things take, and so run when no other does.
const MEASURING: [&str; 2] = [
    "compression::kept::an_object_of_megabytes_that_is_being_encoded_holds_nobody_up",
    "compression::streams::one_large_body_does_not_hold_up_the_others",
];

/// Threads per core for tests that wait.
const WAITING_THREADS_PER_CORE: usize = 4;

impl Program {
    fn manner(&self) -> Manner {
        match (self.package.as_str(), self.name.as_str()) {
            ("tests", "e2e") => Manner::Waiting,
            ("lab", _) | (_, "frozen_backend") => Manner::Alone,
            _ => Manner::Together,
        }
    }

    /// Whether these are the end-to-end tests, which go by areas.
    pub fn is_end_to_end(&self) -> bool {
        self.manner() == Manner::Waiting
    }
}

/// The test programs of the workspace, as cargo has built them. If they do not build, prints cargo's output
/// and returns `None`.
pub fn programs(root: &Path, lints: Lints) -> Option<Vec<Program>> {
    let mut command = linting(root, lints);
    command.args(["test", "--workspace", "--no-run", "--message-format=json"]);
    let output = command.stderr(std::process::Stdio::inherit()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    output.status.success().then(|| said.lines().filter_map(|line| program(root, line)).collect())
}

/// The program that a line of cargo's output describes.
fn program(root: &Path, line: &str) -> Option<Program> {
    // A target has a `test` key as well, for whether it may contain tests. Only the profile says what was
    // built.
    let is_test = line.split_once("\"profile\":")?.1.contains("\"test\":true");
    let executable = is_test.then(|| word(line, "executable")).flatten()?;
    let manifest = Path::new(word(line, "manifest_path")?).parent()?;
    let package = manifest.strip_prefix(root).ok()?.to_str()?.to_owned();
    // The target's name comes after the package's, and so after `target`.
    let name = word(&line[line.find("\"target\":")?..], "name")?.to_owned();
    Some(Program { package, name, executable: executable.into() })
}

/// The text under `key` in a JSON line; paths of a checkout need no escapes.
fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{key}\":\""))?;
    rest.split('"').next()
}

/// Runs all of `programs`, with `filters` for end-to-end tests, and adds up the results.
pub fn run(root: &Path, programs: &[Program], filters: &[&str], tally: &mut Tally) {
    let of = |manner| programs.iter().filter(move |program| program.manner() == manner).collect::<Vec<_>>();
    let cores = thread::available_parallelism().map_or(2, usize::from);
    together(root, &of(Manner::Together), cores, &mut std::io::stdout(), tally);
    for program in of(Manner::Alone) {
        one(root, program, &[], &mut std::io::stdout(), tally);
    }
    for program in of(Manner::Waiting) {
        waiting(root, program, filters, cores * WAITING_THREADS_PER_CORE, tally);
    }
}

/// Runs the tests of `program` that `filters` choose: those among them that measure time one after the other,
/// and then the others with many threads.
fn waiting(root: &Path, program: &Program, filters: &[&str], threads: usize, tally: &mut Tally) {
    let threads = format!("--test-threads={threads}");
    let mut arguments = vec!["--exact"];
    let is_chosen = |test: &&&str| filters.is_empty() || filters.iter().any(|filter| test.contains(filter));
    arguments.extend(MEASURING.iter().filter(is_chosen));
    if arguments.len() > 1 {
        arguments.push("--test-threads=1");
        one(root, program, &arguments, &mut std::io::stdout(), tally);
    }
    let mut arguments = filters.to_vec();
    arguments.extend(MEASURING.iter().flat_map(|test| ["--skip", test]));
    if std::env::var_os("RUST_TEST_THREADS").is_none() {
        arguments.push(&threads);
    }
    one(root, program, &arguments, &mut std::io::stdout(), tally);
}

/// Runs `at_once` programs at a time, and writes the output of each to `out` when it has ended.
fn together(
    root: &Path,
    programs: &[&Program],
    at_once: usize,
    out: &mut (impl Write + Send),
    tally: &mut Tally,
) {
    let next = AtomicUsize::new(0);
    let sum = Mutex::new((out, tally));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (mut said, mut own) = (Vec::new(), Tally::default());
                    one(root, program, &[], &mut said, &mut own);
                    let mut sum = sum.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    let _ = sum.0.write_all(&said);
                    sum.1.add(own);
                }
            });
        }
    });
}

fn one(root: &Path, program: &Program, arguments: &[&str], out: &mut impl Write, tally: &mut Tally) {
    let mut command = Command::new(&program.executable);
    command.current_dir(root.join(&program.package)).args(arguments);
    let _ = writeln!(out, "     Running {} of {}", program.name, program.package);
    tests(&mut command, out, tally);
}

/// Runs the examples in documentation, for the packages of `tree` that have any: rustdoc needs a second to
/// find that a package has none.
pub fn documentation(root: &Path, tree: &Tree, lints: Lints, tally: &mut Tally) {
    let packages = with_examples(tree);
    if packages.is_empty() {
        return;
    }
    let mut command = linting(root, lints);
    command.args(["test", "--doc", "--no-fail-fast"]);
    command.args(packages.iter().flat_map(|package| ["--package", package]));
    announce(&command);
    tests(&mut command, &mut std::io::stdout(), tally);
}

/// The names of the packages in `crates/` whose documentation may hold examples: all code there is one, but
/// for fences that say `text`.
fn with_examples(tree: &Tree) -> BTreeSet<&str> {
    let sources = tree.with_extension(&["rs"]).filter_map(|(path, text)| {
        let (package, file) = path.strip_prefix("crates/")?.split_once('/')?;
        file.starts_with("src/").then_some((package, text))
    });
    sources.filter(|(_, text)| has_example(text)).map(|(package, _)| package).collect()
}

fn has_example(source: &str) -> bool {
    let said = source.lines().map(|line| {
        let line = line.trim_start();
        line.strip_prefix("///").or_else(|| line.strip_prefix("//!")).unwrap_or_default()
    });
    let said: String = said.flat_map(|line| [line.strip_prefix(' ').unwrap_or(line), "\n"]).collect();
    fences(&said).iter().any(|fence| fence.info != "text")
        || prose(&said).any(|(_, line)| line.starts_with("    "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///src/weir/tests#weir-tests@0.1.0","manifest_path":"/src/weir/tests/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"e2e","src_path":"/src/weir/tests/tests/e2e.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":[],"filenames":["/src/weir/target/debug/deps/e2e-f5"],"executable":"/src/weir/target/debug/deps/e2e-f5","fresh":true}"#;

    #[test]
    fn a_test_program_is_read_from_what_cargo_says() {
        let found = program(Path::new("/src/weir"), LINE).expect("a test program");
        assert_eq!((found.package.as_str(), found.name.as_str()), ("tests", "e2e"));
        assert_eq!(found.executable, Path::new("/src/weir/target/debug/deps/e2e-f5"));
        assert!(found.is_end_to_end());
    }

    #[test]
    fn what_is_no_test_program_is_left_out() {
        let library =
            LINE.replace("\"executable\":\"/src/weir/target/debug/deps/e2e-f5\"", "\"executable\":null");
        let plain = LINE.replace("\"test\":true},\"features\"", "\"test\":false},\"features\"");
        assert_ne!(plain, LINE);
        for line in [library.as_str(), plain.as_str(), r#"{"reason":"build-finished","success":true}"#] {
            assert_eq!(program(Path::new("/src/weir"), line), None);
        }
    }

    #[test]
    fn a_package_with_code_in_its_documentation_has_examples() {
        let tree = Tree::of(&[
            ("crates/weir-http/src/lib.rs", "//! Heads:\n//!\n//! ```\n//! let head = 1;\n//! ```\n"),
            ("crates/weir-cache/src/key.rs", "/// One:\n///\n///     assert!(true);\nfn one() {}\n"),
            ("crates/weir-quic/src/cid.rs", "//! ```text\n//! 0 1 2\n//! ```\n//! More.\nfn two() {}\n"),
            ("crates/weir-io/tests/all.rs", "//! ```\n//! let not_tested = 1;\n//! ```\n"),
        ]);
        assert_eq!(with_examples(&tree), BTreeSet::from(["weir-cache", "weir-http"]));
    }

    #[test]
    fn every_test_that_measures_is_there() {
        for test in MEASURING {
            let (modules, name) = test.rsplit_once("::").unwrap();
            let file =
                crate::root().join("tests/tests").join(modules.replace("::", "/")).with_extension("rs");
            let text =
                std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            assert!(text.contains(&format!("fn {name}()")), "{test}");
        }
    }

    #[test]
    fn programs_that_run_beside_each_other_are_all_counted() {
        let script = std::env::temp_dir().join(format!("weir-suite-{}", std::process::id()));
        std::fs::write(&script, "#!/bin/sh\necho 'test result: ok. 2 passed; 0 failed; 0 ignored'\n")
            .unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let program = Program { package: ".".into(), name: "script".into(), executable: script.clone() };
        // Their output is kept out of this test's own output, whose reader would count it.
        let (mut said, mut tally) = (Vec::new(), Tally::default());
        together(&std::env::temp_dir(), &[&program; 5], 2, &mut said, &mut tally);
        std::fs::remove_file(script).unwrap();
        assert_eq!(tally, Tally { passed: 10, ..Tally::default() });
        assert_eq!(String::from_utf8(said).unwrap().matches("2 passed").count(), 5);
    }
}
