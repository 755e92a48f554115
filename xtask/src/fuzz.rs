//! Runs the fuzz targets: example programs called `fuzz_*` that feed one parser for a given time and crash on
//! a mistake.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::build;
use crate::run::succeeds;
use crate::tree::Tree;

/// How long each target runs by default (seconds).
pub const DEFAULT_SECONDS: u64 = 600;

/// A fuzz target: the package it belongs to and the name of its example.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    package: String,
    example: String,
}

/// Builds the targets and runs each for `seconds`; returns whether all succeeded. All run, even after one has
/// failed.
pub fn run(root: &Path, seconds: u64) -> bool {
    // Builds all packages at once, as for the tests: for one package alone, cargo would choose other features
    // for shared libraries and compile those again. The overflow checks of the dev profile find more than its
    // lower speed costs.
    build::everything(root).is_some() && run_built(root, seconds)
}

/// [`run`], with the targets already built beside this program: one on each core.
pub fn run_built(root: &Path, seconds: u64) -> bool {
    let tree = match Tree::tracked(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("fuzz: {error}");
            return false;
        }
    };
    let targets = targets(&tree);
    if targets.is_empty() {
        eprintln!("fuzz: no crates/*/examples/fuzz_*.rs is tracked");
        return false;
    }
    let Some(built) = std::env::current_exe().ok().and_then(|here| Some(here.parent()?.join("examples")))
    else {
        eprintln!("fuzz: it is not known where this program lies, and so where the targets are");
        return false;
    };
    let (next, is_good) = (AtomicUsize::new(0), AtomicBool::new(true));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(target) = targets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !run_one(root, &built, target, seconds) {
                        is_good.store(false, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    is_good.into_inner()
}

fn run_one(root: &Path, built: &Path, target: &Target, seconds: u64) -> bool {
    let Target { package, example } = target;
    let mut command = Command::new(built.join(example));
    command.current_dir(root).args(["--seconds", &seconds.to_string()]);
    let is_good = succeeds(&mut command);
    if !is_good {
        println!("fuzz: {package} {example} failed; what it printed above says how to repeat it");
    }
    is_good
}

/// The targets of a tree, in order of path.
fn targets(tree: &Tree) -> Vec<Target> {
    tree.paths()
        .filter_map(|path| {
            let (package, file) = path.strip_prefix("crates/")?.split_once("/examples/")?;
            let example = file.strip_suffix(".rs")?;
            let found = example.starts_with("fuzz_") && !example.contains('/');
            found.then(|| Target { package: package.to_owned(), example: example.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_called_fuzz_is_a_target() {
        let tree = Tree::of(&[
            ("crates/weir-http/examples/fuzz_request_head.rs", ""),
            ("crates/weir-http/examples/fuzz/seeds.rs", ""),
            ("crates/weir-http/examples/show.rs", ""),
            ("crates/weir-config/examples/fuzz_config.rs", ""),
        ]);
        let found: Vec<_> =
            targets(&tree).into_iter().map(|target| (target.package, target.example)).collect();
        let expected = [("weir-config", "fuzz_config"), ("weir-http", "fuzz_request_head")];
        assert_eq!(found, expected.map(|(package, example)| (package.to_owned(), example.to_owned())));
    }
}
