//! Checks that source files that the pages for developers name exist: a page is read beside the code, and
//! files move.

use crate::fences::prose;
use crate::tree::{Finding, Tree};

/// Files of libraries that these pages also name.
const OF_LIBRARIES: [&str; 7] = [
    "connection/mod.rs",
    "flow_control.rs",
    "framed_read.rs",
    "headers.rs",
    "paths.rs",
    "recv.rs",
    "spaces.rs",
];

/// Finds names of source files in ARCHITECTURE.md, CONTRIBUTING.md and `docs/internals` that no tracked file
/// has.
///
/// A name is the end of a path, in which `crates/` and `src/` may be left out: `weir-tls/sessions.rs`,
/// `http/retry.rs`. A test is named with its folder, because many have the name of what they test.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let known: Vec<String> = tree.paths().filter(|path| path.ends_with(".rs")).map(short).collect();
    let is_known = |name: &str| {
        let name = short(name);
        let may_be = |path: &&String| name.contains('/') || !path.starts_with("tests/tests/");
        let ends_so = |path: &String| {
            path.strip_suffix(&name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
        };
        known.iter().filter(may_be).any(ends_so)
    };
    let mut findings = Vec::new();
    let pages = tree.with_extension(&["md"]).filter(|(path, _)| {
        matches!(*path, "ARCHITECTURE.md" | "CONTRIBUTING.md") || path.starts_with("docs/internals/")
    });
    for (path, text) in pages {
        for (line, name) in prose(text).flat_map(|(number, line)| names(line).map(move |name| (number, name)))
        {
            if !is_known(name) && !OF_LIBRARIES.contains(&name) {
                findings.push(Finding::at(path, line, format!("no tracked file is called `{name}`")));
            }
        }
    }
    findings
}

/// A path as these pages write it.
fn short(path: &str) -> String {
    path.trim_start_matches("crates/").replace("/src/", "/")
}

/// The names of source files in backticks on a line.
fn names(line: &str) -> impl Iterator<Item = &str> {
    let is_of_path = |character: char| character.is_ascii_alphanumeric() || "_-./".contains(character);
    let quoted = line.split('`').skip(1).step_by(2);
    quoted.filter(move |text| text.ends_with(".rs") && text.chars().all(is_of_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(page: &str) -> Vec<String> {
        let tree = Tree::of(&[
            ("docs/internals/page.md", page),
            ("docs/guide/page.md", "`gone.rs`"),
            ("crates/weir-tls/src/sessions.rs", ""),
            ("crates/weir-proxy/src/http/retry.rs", ""),
            ("tests/tests/cache/fill.rs", ""),
            ("xtask/src/main.rs", ""),
        ]);
        check(&tree).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_file_is_named_by_the_end_of_its_path() {
        let page = "`retry.rs`, `http/retry.rs`, `weir-proxy/http/retry.rs`, `weir-tls/src/sessions.rs`, `xtask/src/main.rs`, \
                    `h2` `framed_read.rs`, `*.rs`, `retry.rs:5`\n```\n`gone.rs`\n```\n";
        assert_eq!(found(page), [""; 0]);
    }

    #[test]
    fn a_file_that_moved_or_went_is_found_on_its_line() {
        assert_eq!(
            found("one\n`try.rs` and `weir-tls/http/retry.rs`\n"),
            [
                "docs/internals/page.md:2: no tracked file is called `try.rs`",
                "docs/internals/page.md:2: no tracked file is called `weir-tls/http/retry.rs`",
            ]
        );
    }
}
