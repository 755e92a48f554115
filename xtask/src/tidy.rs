//! `cargo xtask tidy`: the house rules that a machine can check. Each prints `file:line: message`.

use std::path::Path;

use crate::tree::{Finding, Tree};
use crate::{
    circles, comments, edges, links, named_files, one_meaning, packages, parameters, parts, places, sources,
    threats,
};

/// Runs every check on the tracked files under `root`, prints the findings, and returns whether there were
/// none.
pub fn holds(root: &Path) -> bool {
    let tree = match Tree::tracked(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return false;
        }
    };
    let findings = check(&tree, &places::of_this_machine(root));
    for finding in &findings {
        println!("{finding}");
    }
    let files = tree.paths().count();
    match findings.len() {
        0 => println!("tidy: {files} files, nothing found"),
        count => println!("tidy: {files} files, {count} found"),
    }
    findings.is_empty()
}

/// All findings of the checks, sorted by file and line.
fn check(tree: &Tree, words: &[places::Forbidden]) -> Vec<Finding> {
    let checks = [
        edges::check,
        circles::check,
        parts::check,
        sources::lengths,
        sources::names,
        sources::marks,
        sources::unsafe_code,
        links::check,
        comments::check,
        named_files::check,
        one_meaning::check,
        packages::check,
        parameters::check,
        threats::check,
    ];
    let mut findings: Vec<Finding> = checks.iter().flat_map(|check| check(tree)).collect();
    findings.extend(places::check(tree, words));
    findings.sort();
    findings
}
