//! Checks that everything that is linked into Weir has a licence that `deny.toml` allows.
//!
//! cargo-deny reads the same file and checks more. This part needs only cargo, so it works on every machine.

use std::collections::BTreeSet;
use std::path::Path;

use crate::run::{announce, cargo};

/// Prints the dependencies whose licence is not allowed, and says whether there are none.
pub fn hold(root: &Path) -> bool {
    let mut command = cargo(root);
    let edges = ["tree", "--workspace", "--edges", "normal,build", "--prefix", "none", "--format", "{p}|{l}"];
    command.args(edges);
    announce(&command);
    let listed = match command.output() {
        Ok(listed) if listed.status.success() => listed,
        Ok(listed) => {
            eprintln!("licences: {}", String::from_utf8_lossy(&listed.stderr).trim());
            return false;
        }
        Err(error) => {
            eprintln!("licences: cargo tree: {error}");
            return false;
        }
    };
    let rules = std::fs::read_to_string(root.join("deny.toml")).unwrap_or_default();
    let Some(allowed) = allowed(&rules) else {
        println!("deny.toml:1: a list `allow` under [licenses] is expected");
        return false;
    };
    let problems = refused(&String::from_utf8_lossy(&listed.stdout), &allowed);
    for problem in &problems {
        println!("deny.toml:1: {problem}");
    }
    problems.is_empty()
}

/// The licences that `deny.toml` allows.
fn allowed(rules: &str) -> Option<BTreeSet<String>> {
    let rules: toml::Table = rules.parse().ok()?;
    let list = rules.get("licenses")?.get("allow")?.as_array()?;
    Some(list.iter().filter_map(|licence| licence.as_str().map(str::to_owned)).collect())
}

/// Lines `package version|expression` whose expression no allowed licence satisfies. `(*)` marks a line seen
/// before.
fn refused(listed: &str, allowed: &BTreeSet<String>) -> BTreeSet<String> {
    let packages = listed.lines().filter(|line| !line.trim().is_empty() && !line.ends_with("(*)"));
    packages
        .filter_map(|line| line.split_once('|'))
        .filter(|(_, expression)| !satisfied(expression, allowed))
        .map(|(package, expression)| {
            format!("{package} has the licence `{expression}`, which is not allowed")
        })
        .collect()
}

/// Whether an SPDX expression can be satisfied with allowed licences. The old form `A/B` means `A OR B`.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let good = any_of(&words, &mut at, allowed);
    good && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut good = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        good |= all_of(words, at, allowed);
    }
    good
}

fn all_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut good = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        good &= one(words, at, allowed);
    }
    good
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let good = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return good && closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        return allowed.contains(&format!("{word} WITH {exception}"));
    }
    allowed.contains(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow() -> BTreeSet<String> {
        allowed("[licenses]\nallow = [\"MIT\", \"BSD-3-Clause\", \"Apache-2.0 WITH LLVM-exception\"]\n")
            .expect("a list")
    }

    #[test]
    fn an_expression_is_satisfied_by_one_alternative_whole() {
        for good in [
            "MIT",
            "GPL-3.0 OR MIT",
            "MIT AND BSD-3-Clause",
            "(MIT OR GPL-3.0) AND BSD-3-Clause",
            "GPL-3.0/MIT",
        ] {
            assert!(satisfied(good, &allow()), "{good}");
        }
        assert!(satisfied("Apache-2.0 WITH LLVM-exception OR Zlib", &allow()));
        for bad in [
            "",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "Apache-2.0",
            "Apache-2.0 WITH Other-exception",
            "(MIT",
            "MIT GPL-3.0",
        ] {
            assert!(!satisfied(bad, &allow()), "{bad}");
        }
    }

    #[test]
    fn a_dependency_with_another_licence_is_named_once() {
        let listed = "weir v0.1.0 (/x)|MIT\n\nbad v1.0.0|AGPL-3.0\nbad v1.0.0|AGPL-3.0 (*)\nbad v1.0.0|AGPL-3.0\nnone v0.1.0|\n";
        let found: Vec<String> = refused(listed, &allow()).into_iter().collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("bad v1.0.0 has the licence `AGPL-3.0`"), "{found:?}");
    }
}
