//! Checks that the tests exist that the threat model names for each of its rows.
//!
//! In `docs/threat-model.md` the last column of a row has test names in backticks, each as
//! `crate-or-file::name` or just `name`, or it begins with `open:` and says what is missing.

use std::collections::BTreeSet;

use crate::fences::prose;
use crate::tree::{Finding, Tree};

const PAGE: &str = "docs/threat-model.md";

/// Finds rows of the threat model that name a test that does not exist, that name neither a test nor what is
/// missing, or that repeat the id of an earlier row.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.text(PAGE) else {
        return vec![Finding::at(PAGE, 1, "the threat model is missing")];
    };
    let tests = test_names(tree);
    let (mut findings, mut ids) = (Vec::new(), BTreeSet::new());
    for (line, row) in prose(page).filter(|(_, line)| is_row(line)) {
        let id = row.trim_matches('|').split('|').next().unwrap_or("").trim();
        if !ids.insert(id) {
            findings.push(Finding::at(PAGE, line, format!("row {id}: another row has this id")));
        }
        let proof = row.trim_end().trim_end_matches('|').rsplit('|').next().unwrap_or("").trim();
        let named: Vec<&str> = proof.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && !proof.starts_with("open:") {
            findings.push(Finding::at(
                PAGE,
                line,
                format!("row {id} names no test; expected test names in backticks, or `open:` and why"),
            ));
        }
        for name in named.iter().filter(|name| !tests.contains(name.rsplit("::").next().unwrap_or(name))) {
            findings.push(Finding::at(PAGE, line, format!("row {id}: no test is called `{name}`")));
        }
    }
    findings
}

/// A row of the catalogue begins with an id such as `A12`.
fn is_row(line: &str) -> bool {
    let Some(rest) = line.strip_prefix('|') else { return false };
    let id = rest.split('|').next().unwrap_or("").trim();
    let mut letters = id.chars();
    letters.next().is_some_and(|c| c.is_ascii_uppercase())
        && id.len() > 1
        && letters.all(|c| c.is_ascii_digit())
}

/// The names of all test functions: whatever follows `fn` after a test attribute, or inside `proptest!`.
fn test_names(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for (_, text) in tree.with_extension(&["rs"]) {
        let (mut marked, mut in_table) = (false, false);
        for line in text.lines().map(str::trim) {
            // A macro turns these cases into a test for each kind of packet.
            in_table = line.starts_with("each_") && line.ends_with('{') || in_table && line != "}";
            if in_table && !line.ends_with('{') {
                names.extend(line.split_whitespace());
            }
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            }
            let Some((before, after)) = line.split_once("fn ") else { continue };
            if marked && (before.is_empty() || before == "async " || before.ends_with("] ")) {
                names.insert(after.split(['(', '<', ' ']).next().unwrap_or(after));
            }
            marked = false;
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rows: &str) -> Vec<String> {
        let page = format!("| # | attack | proof |\n|---|---|---|\n{rows}");
        let tests = "#[test]\n#[cfg(unix)]\nfn two_lengths_are_refused() {}\n\nfn not_a_test() {}\n\
                     proptest! {\n    #[test]\n    fn any_bytes_parse_or_fail(x in any::<u8>()) {}\n}\n";
        let tree = Tree::of(&[("docs/threat-model.md", &page), ("crates/weir-http/src/h1.rs", tests)]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_row_whose_tests_exist_passes() {
        assert_eq!(
            found("| A1 | two lengths | `weir-http::two_lengths_are_refused`, `any_bytes_parse_or_fail` |\n"),
            [""; 0]
        );
    }

    #[test]
    fn a_row_that_names_a_missing_test_is_found() {
        let found =
            found("| A1 | x | `two_lengths_are_refused` `h1::three_lengths_are_refused` `not_a_test` |\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(
            found[0],
            "docs/threat-model.md:3: row A1: no test is called `h1::three_lengths_are_refused`"
        );
    }

    #[test]
    fn two_rows_with_one_id_are_found() {
        let found = found("| A1 | x | open: no TLS yet |\n| A1 | y | open: no TLS yet |\n");
        assert_eq!(found, ["docs/threat-model.md:4: row A1: another row has this id"]);
    }

    #[test]
    fn a_row_without_a_test_says_what_is_missing() {
        assert_eq!(found("| A2 | x | open: no TLS yet |\n"), [""; 0]);
        assert!(found("| A2 | x | later |\n")[0].contains("row A2 names no test"));
    }
}
