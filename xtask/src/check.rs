//! `cargo xtask check`: the check for work in progress. Runs formatting and lints of everything, and the
//! tests of what differs from main.
//!
//! Tests of a crate run if it or a crate that it depends on differs. End-to-end tests are chosen by areas,
//! the directories of `tests/tests`. What a change breaks elsewhere is found by `make test`, which runs
//! everything.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::build::{self, Lints};
use crate::run::Tally;
use crate::tree::Tree;
use crate::{ci, edges, suite};

/// Words in a path, and the end-to-end areas that test such files.
const AREAS: [(&str, &[&str]); 27] = [
    ("acme", &["acme"]),
    ("admin", &["admin"]),
    ("balance", &["health", "http"]),
    ("cache", &["cache", "rfc9111"]),
    ("certificates", &["acme", "tls"]),
    ("compress", &["compression"]),
    ("config", &["admin", "reload"]),
    ("control", &["admin", "reload"]),
    ("convert", &["convert"]),
    ("dns", &["resources"]),
    ("explain", &["admin"]),
    ("h2", &["http2"]),
    ("h3", &["http3"]),
    ("health", &["health"]),
    ("log", &["logs"]),
    ("outlier", &["health"]),
    ("publish", &["admin", "reload"]),
    ("quic", &["http3"]),
    ("reload", &["reload"]),
    ("screen", &["screening"]),
    ("sni", &["tls"]),
    ("sqli", &["http3", "screening"]),
    ("state", &["admin", "reload"]),
    ("tcp", &["tcp"]),
    ("tls", &["tls"]),
    ("udp", &["udp"]),
    ("upgrade", &["reload"]),
];

/// The end-to-end tests to run.
#[derive(Debug, PartialEq, Eq)]
enum EndToEnd {
    Everything,
    /// These areas; none at all when it is empty.
    Areas(BTreeSet<String>),
}

/// Checks what differs from main; says whether all of it passed.
pub fn changes(root: &Path) -> bool {
    let changed = changed_files(root);
    let tree = match Tree::tracked(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("check: {error}");
            return false;
        }
    };
    let mut steps = ci::quick_steps(root).to_vec();
    let built = build::everything(root);
    steps.push(("clippy", built == Some(Lints::Deny)));
    let mut tally = Tally::default();
    let programs = built.and_then(|lints| suite::programs(root, lints));
    steps.push(("build", programs.is_some()));
    if let Some(mut programs) = programs {
        let packages = packages(&tree, &changed);
        let areas = areas(&changed);
        println!("check: tests of {}", packages.iter().map(String::as_str).collect::<Vec<_>>().join(" "));
        println!("check: end to end, {areas:?}");
        programs.retain(|program| {
            if program.is_end_to_end() { areas.is_any() } else { packages.contains(&program.package) }
        });
        let filters = areas.filters();
        let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
        suite::run(root, &programs, &filters, &mut tally);
    }
    ci::close(&steps, tally)
}

impl EndToEnd {
    fn is_any(&self) -> bool {
        *self != EndToEnd::Areas(BTreeSet::new())
    }

    /// The test program's arguments to run only these.
    fn filters(&self) -> Vec<String> {
        match self {
            EndToEnd::Everything => Vec::new(),
            EndToEnd::Areas(areas) => areas.iter().map(|area| format!("{area}::")).collect(),
        }
    }
}

/// Paths that differ from where this branch left main, committed or not. `None` if git does not know; then
/// all may differ.
fn changed_files(root: &Path) -> Option<Vec<String>> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let base = ["origin/main", "main"].iter().find_map(|main| git(&["merge-base", "HEAD", main]))?;
    println!("check: what differs from {base}");
    let differing = git(&["diff", "--name-only", &base])?;
    let new = git(&["ls-files", "--others", "--exclude-standard"])?;
    Some(differing.lines().chain(new.lines()).map(str::to_owned).collect())
}

/// Directories of the packages whose own tests to run. xtask is always among them, because its tests read the
/// documents.
fn packages(tree: &Tree, changed: &Option<Vec<String>>) -> BTreeSet<String> {
    let begins = |directory: &str, file: &str| {
        file.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/')) && !file.ends_with(".md")
    };
    let differs = |directory: &str| {
        changed.as_ref().is_none_or(|files| {
            files.iter().any(|file| begins(directory, file) || file == "Cargo.toml" || file == "Cargo.lock")
        })
    };
    let mut found = edges::with_dependents(tree, &differs);
    found.insert("xtask".to_owned());
    found
}

fn areas(changed: &Option<Vec<String>>) -> EndToEnd {
    let Some(changed) = changed else { return EndToEnd::Everything };
    let mut found = BTreeSet::new();
    for file in changed {
        if let Some((area, _)) = file.strip_prefix("tests/tests/").and_then(|rest| rest.split_once('/')) {
            found.insert(area.to_owned());
        } else if file.starts_with("tests/") {
            return EndToEnd::Everything;
        } else if file.starts_with("crates/") && !file.contains("/tests/") && file.ends_with(".rs") {
            let words: Vec<&str> = file.split(|c: char| !c.is_alphanumeric()).collect();
            let of_word = |(word, areas): &(&str, &'static [&'static str])| {
                words.iter().any(|found| found.starts_with(word)).then_some(*areas)
            };
            let named: Vec<&str> = AREAS.iter().filter_map(of_word).flatten().copied().collect();
            let named = if named.is_empty() { vec!["http"] } else { named };
            found.extend(named.into_iter().map(str::to_owned));
        }
    }
    EndToEnd::Areas(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn areas_of(files: &[&str]) -> Vec<String> {
        match areas(&Some(files.iter().map(|file| (*file).to_owned()).collect())) {
            EndToEnd::Areas(areas) => areas.into_iter().collect(),
            EndToEnd::Everything => vec!["everything".to_owned()],
        }
    }

    #[test]
    fn a_file_is_tried_by_the_areas_that_its_path_speaks_of() {
        assert_eq!(areas_of(&["crates/weir-proxy/src/http/cache/fill.rs"]), ["cache", "rfc9111"]);
        assert_eq!(areas_of(&["crates/weir-proxy/src/tcp/relay.rs"]), ["tcp"]);
        assert_eq!(areas_of(&["crates/weir-proxy/src/worker.rs"]), ["http"]);
        assert_eq!(areas_of(&["tests/tests/udp/relay.rs", "crates/weir-tls/src/store.rs"]), ["tls", "udp"]);
    }

    #[test]
    fn what_the_tests_share_is_tried_by_all_of_them_and_prose_by_none() {
        assert_eq!(areas_of(&["tests/src/dialogue/wire.rs"]), ["everything"]);
        assert_eq!(areas_of(&["docs/guide/tls.md", "crates/weir-http/tests/h3/main.rs"]), [""; 0]);
    }

    #[test]
    fn every_area_that_is_named_is_a_directory_of_tests() {
        let tree = Tree::tracked(&crate::root()).expect("git lists the files of a checkout");
        for area in AREAS.iter().flat_map(|(_, areas)| *areas) {
            assert!(tree.holds(&format!("tests/tests/{area}")), "{area}");
        }
    }

    #[test]
    fn the_tests_of_who_depends_on_a_crate_run_with_its_own() {
        let tree = Tree::of(&[
            ("crates/weir-http/Cargo.toml", "[package]\nname = \"weir-http\"\n"),
            (
                "crates/weir-cache/Cargo.toml",
                "[package]\nname = \"weir-cache\"\n[dependencies]\nweir-http = \"1\"\n",
            ),
            (
                "crates/weir-proxy/Cargo.toml",
                "[package]\nname = \"weir-proxy\"\n[dependencies]\nweir-cache = \"1\"\n",
            ),
            ("crates/weir-tls/Cargo.toml", "[package]\nname = \"weir-tls\"\n"),
        ]);
        let found =
            |file: &str| packages(&tree, &Some(vec![file.to_owned()])).into_iter().collect::<Vec<_>>();
        let expected = ["crates/weir-cache", "crates/weir-http", "crates/weir-proxy", "xtask"];
        assert_eq!(found("crates/weir-http/src/h1/parse.rs"), expected);
        assert_eq!(found("docs/glossary.md"), ["xtask"]);
        assert_eq!(found("Cargo.lock").len(), 5);
    }
}
