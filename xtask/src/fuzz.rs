//! Runs the fuzz targets: example programs called `fuzz_*` that feed one parser for a given time and crash on a mistake.

use std::path::Path;
use std::process::Command;

use crate::run::{cargo, succeeds};
use crate::tree::Tree;

/// How long each target runs when nothing is said.
pub const DEFAULT_SECONDS: u64 = 600;

/// A fuzz target: the package it belongs to and the name of its example.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    package: String,
    example: String,
}

/// Runs every target for `seconds`; says whether all ended well. All run, even after one has failed.
pub fn run(root: &Path, seconds: u64) -> bool {
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
    // All packages at once, as the tests were built: with one package alone cargo would choose other features for the
    // libraries they share, and compile those again. The dev profile's overflow checks find more than its missing speed loses.
    if !succeeds(cargo(root).args(["build", "--workspace", "--examples"])) {
        return false;
    }
    let Some(built) = std::env::current_exe().ok().and_then(|here| Some(here.parent()?.join("examples")))
    else {
        eprintln!("fuzz: it is not known where this program lies, and so where the targets are");
        return false;
    };
    let mut good = true;
    for Target { package, example } in targets {
        let mut command = Command::new(built.join(&example));
        command.current_dir(root).args(["--seconds", &seconds.to_string()]);
        if !succeeds(&mut command) {
            println!("fuzz: {package} {example} failed; what it printed above says how to repeat it");
            good = false;
        }
    }
    good
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
