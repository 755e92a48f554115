//! The layers ("parts") of a directory of files. Imports between them may only go down.
//!
//! `ARCHITECTURE.md` has a fenced block `parts DIRECTORY` for each directory with such an order. A line names
//! a part and its files; an indented line continues the part above it. `h2` means `h2.rs` and all files of
//! `h2/` that no longer name claims; `h2/mod` and `h2/server` mean one file each. A file may import files of
//! its own part and of those below.

use std::collections::{BTreeMap, BTreeSet};

use crate::fences::{Fence, fences};
use crate::imports::{Imports, crates};
use crate::tree::{Finding, Tree};

/// The page with the blocks.
const PAGE: &str = "ARCHITECTURE.md";

/// What a name in a block stands for.
struct Claim {
    /// The part's index from the top, from 0.
    part: usize,
    /// Line of the page.
    line: usize,
}

/// The parts of one directory.
struct Parts<'a> {
    /// Path of the directory, with a slash behind it.
    directory: String,
    /// Names of the parts, the highest first.
    names: Vec<&'a str>,
    claims: BTreeMap<&'a str, Claim>,
}

/// Finds imports that go up, files that belong to no part, and names that match no file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for fence in tree.text(PAGE).into_iter().flat_map(fences) {
        let Some(directory) = fence.info.strip_prefix("parts ") else { continue };
        match Parts::read(directory, &fence, &mut findings) {
            Some(parts) => parts.check(tree, fence.line, &mut findings),
            None => findings.push(Finding::at(
                PAGE,
                fence.line,
                format!("`{directory}` is no part of a crate's src"),
            )),
        }
    }
    findings
}

impl<'a> Parts<'a> {
    fn read(directory: &str, fence: &'a Fence<'_>, findings: &mut Vec<Finding>) -> Option<Parts<'a>> {
        directory.split_once("/src/")?;
        let mut parts =
            Parts { directory: format!("{directory}/"), names: Vec::new(), claims: BTreeMap::new() };
        for (index, text) in fence.text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let line = fence.line + 1 + index;
            let mut words = text.split_whitespace();
            if !text.starts_with(' ') {
                parts.names.extend(words.next());
            }
            let Some(part) = parts.names.len().checked_sub(1) else {
                findings.push(Finding::at(PAGE, line, "files stand before the first part"));
                continue;
            };
            for word in words {
                let before = parts.claims.len();
                parts.claims.entry(word).or_insert(Claim { part, line });
                if parts.claims.len() == before {
                    let message = format!("`{word}` stands here for the second time");
                    findings.push(Finding::at(PAGE, line, message));
                }
            }
        }
        Some(parts)
    }

    /// The longest name that matches a file.
    fn claim(&self, file: &str) -> Option<(&'a str, &Claim)> {
        let inside = file.strip_prefix(&self.directory)?.strip_suffix(".rs")?;
        let mut name = inside;
        loop {
            if let Some((name, claim)) = self.claims.get_key_value(name) {
                return Some((name, claim));
            }
            name = &name[..name.rfind('/')?];
        }
    }

    fn check(&self, tree: &Tree, line: usize, findings: &mut Vec<Finding>) {
        let of_crate =
            crates(tree).into_iter().find(|own| self.directory.starts_with(&format!("{own}/src/")));
        let Some(of_crate) = of_crate else {
            findings.push(Finding::at(PAGE, line, format!("`{}` is in no crate", self.directory)));
            return;
        };
        let imports = Imports::of(tree, &of_crate);
        let mut met = BTreeSet::new();
        // The directory's own `mod.rs` is above all parts: it only says which files there are.
        let root = format!("{}mod.rs", self.directory);
        let files =
            imports.needs.iter().filter(|(file, _)| file.starts_with(&self.directory) && **file != root);
        for (file, needs) in files {
            let Some((name, own)) = self.claim(file) else {
                let message = format!("belongs to none of the parts that {PAGE}:{line} has");
                findings.push(Finding::at(file, 1, message));
                continue;
            };
            met.insert(name);
            for other in needs {
                let Some((_, above)) = self.claim(other).filter(|(_, other)| other.part < own.part) else {
                    continue;
                };
                let (low, high) = (self.names[own.part], self.names[above.part]);
                let message = format!("`{low}` must not import `{other}`, which is of `{high}` above it");
                findings.push(Finding::at(file, 1, message));
            }
        }
        for (name, claim) in self.claims.iter().filter(|(name, _)| !met.contains(*name)) {
            let message = format!("`{name}` stands for no file of `{}`", self.directory);
            findings.push(Finding::at(PAGE, claim.line, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE_TEXT: &str =
        "x\n```parts c/src/http\nrequests  h1 h2/server\nstreams   stream\n          h2\n```\n";

    /// The findings if the page is `page` and `http/` has the given files besides those it always has.
    fn findings(page: &str, more: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![
            ("ARCHITECTURE.md", page),
            ("c/Cargo.toml", "[package]\n"),
            ("c/src/lib.rs", "mod http;"),
            ("c/src/http/mod.rs", "mod h1; mod h2; mod stream;"),
            ("c/src/http/h1.rs", "use crate::http::stream::S;\nuse crate::http::h2;\nfn f() { h2::serve() }"),
            ("c/src/http/h2/mod.rs", "mod server; mod frames;\npub use server::serve;"),
            ("c/src/http/h2/server.rs", "use crate::http::stream::S;\npub fn serve() {}"),
            ("c/src/http/h2/frames.rs", ""),
            ("c/src/http/stream.rs", "pub struct S;"),
        ];
        files.retain(|(path, _)| more.iter().all(|(other, _)| other != path));
        files.extend(more);
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn imports_that_run_down_or_stay_in_their_part_pass() {
        assert_eq!(findings(PAGE_TEXT, &[]), [""; 0]);
    }

    #[test]
    fn an_import_of_what_stands_above_is_found_in_whichever_way_it_is_written() {
        for text in [
            "use crate::http::h1::Session;",
            "fn f() { super::h1::run() }",
            "use crate::http::h2;\nfn f() { h2::serve() }",
            "use crate::http::h2::serve;",
        ] {
            let found = findings(PAGE_TEXT, &[("c/src/http/stream.rs", text)]);
            assert_eq!(found.len(), 1, "{text}: {found:?}");
            assert!(
                found[0].starts_with("c/src/http/stream.rs:1: `streams` must not import `c/src/http/h"),
                "{found:?}"
            );
            assert!(found[0].ends_with("which is of `requests` above it"), "{found:?}");
        }
    }

    #[test]
    fn every_file_belongs_to_a_part_and_every_name_stands_for_one() {
        let found = findings(PAGE_TEXT, &[("c/src/http/cache.rs", "")]);
        assert_eq!(found, ["c/src/http/cache.rs:1: belongs to none of the parts that ARCHITECTURE.md:2 has"]);
        let page = PAGE_TEXT.replace("stream\n", "stream cache h1\n");
        let found = findings(&page, &[]);
        assert_eq!(
            found,
            [
                "ARCHITECTURE.md:4: `h1` stands here for the second time",
                "ARCHITECTURE.md:4: `cache` stands for no file of `c/src/http/`",
            ]
        );
    }

    #[test]
    fn a_directory_that_is_not_there_is_found() {
        assert_eq!(
            findings("```parts d/src/http\n```\n", &[]),
            ["ARCHITECTURE.md:1: `d/src/http/` is in no crate"]
        );
        let found = findings("```parts docs\n```\n", &[]);
        assert_eq!(found, ["ARCHITECTURE.md:1: `docs` is no part of a crate's src"]);
    }
}
