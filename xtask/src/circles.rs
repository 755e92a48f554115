//! How large a circle of files may be: files that all need each other are read, tested and changed as one.
//!
//! `ARCHITECTURE.md` holds a block ```` ```circles ```` with the crates that are not yet where they should be, and the size of the
//! largest circle in each. The numbers are exact and may only fall: who makes a circle smaller writes the new number there.

use std::collections::BTreeMap;
use std::path::Path;

use crate::fences::fences;
use crate::imports::{Imports, crates};
use crate::tree::{Finding, Tree};

/// Largest circle of files in a crate without a line of its own (count).
const LARGEST: usize = 6;

/// The page with the numbers.
const PAGE: &str = "ARCHITECTURE.md";

/// A line of the list: the size it allows, and where it stands.
struct Allowed {
    size: usize,
    line: usize,
}

/// Crates whose largest circle is not the one that is declared.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let allowed = declared(tree, &mut findings);
    let crates = crates(tree);
    for (name, line) in allowed.iter().map(|(name, allowed)| (name, allowed.line)) {
        if !crates.iter().any(|directory| short(directory) == name) {
            findings.push(Finding::at(PAGE, line, format!("there is no crate `{name}`")));
        }
    }
    for directory in &crates {
        let imports = Imports::of(tree, directory);
        let circles = imports.circles();
        let size = circles.first().map_or(1, Vec::len);
        let name = short(directory);
        let own = allowed.get(name);
        let most = own.map_or(LARGEST, |own| own.size);
        if size > most {
            let message = format!(
                "{size} files of `{name}` need each other, at most {most} may: {}",
                circles[0].join(" ")
            );
            findings.push(Finding::at(circles[0][0], 1, message));
        } else if let Some(own) = own
            && size <= LARGEST
        {
            let message = format!("`{name}` has no circle over {LARGEST} files any more; take the line out");
            findings.push(Finding::at(PAGE, own.line, message));
        } else if let Some(own) = own
            && size < most
        {
            let message = format!(
                "the largest circle of `{name}` has {size} files now; write {size}, so that it grows no more"
            );
            findings.push(Finding::at(PAGE, own.line, message));
        }
    }
    findings
}

/// Prints every circle of more than one file, crate by crate, the largest first.
pub fn print(root: &Path) -> bool {
    let tree = match Tree::tracked(root) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error}");
            return false;
        }
    };
    for directory in crates(&tree) {
        let imports = Imports::of(&tree, &directory);
        for circle in imports.circles() {
            println!("{}: a circle of {} files", short(&directory), circle.len());
            for file in &circle {
                println!("  {file} -> {}", within(&imports, file, &circle).join(" "));
            }
        }
    }
    true
}

/// What a member needs of the others of its circle, without the part of the path that all share.
fn within<'a>(imports: &'a Imports, file: &str, circle: &[&str]) -> Vec<&'a str> {
    let met = imports.needs[file].iter().filter(|other| circle.contains(&other.as_str()));
    met.map(|other| other.split_once("/src/").map_or(other.as_str(), |(_, inside)| inside)).collect()
}

/// The crate's name as people say it: the last part of its directory.
fn short(directory: &str) -> &str {
    directory.rsplit('/').next().unwrap_or(directory)
}

/// Reads the list: lines of the form `crate number`.
fn declared(tree: &Tree, findings: &mut Vec<Finding>) -> BTreeMap<String, Allowed> {
    let mut list = BTreeMap::new();
    let Some(fence) = tree.text(PAGE).into_iter().flat_map(fences).find(|fence| fence.info == "circles")
    else {
        return list;
    };
    for (index, text) in fence.text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
        let line = fence.line + 1 + index;
        let words: Vec<&str> = text.split_whitespace().collect();
        match (words.as_slice(), words.get(1).and_then(|word| word.parse().ok())) {
            ([name, _], Some(size)) => drop(list.insert((*name).to_owned(), Allowed { size, line })),
            _ => findings.push(Finding::at(
                PAGE,
                line,
                format!("expected `crate number`, found `{}`", text.trim()),
            )),
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate with one circle of `size` files, and a page that says `page`.
    fn findings(size: usize, page: &str) -> Vec<String> {
        let mut files = vec![
            ("ARCHITECTURE.md".to_owned(), page.to_owned()),
            ("crates/weir-http/Cargo.toml".to_owned(), "[package]\nname = \"weir-http\"\n".to_owned()),
        ];
        for index in 0..size {
            let text = format!("use crate::f{}::X;\npub struct X;\n", (index + 1) % size);
            files.push((format!("crates/weir-http/src/f{index}.rs"), text));
        }
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_circle_of_six_files_passes_and_one_of_seven_names_its_members() {
        assert_eq!(findings(6, ""), [""; 0]);
        let found = findings(7, "");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/weir-http/src/f0.rs:1: 7 files of `weir-http`"), "{found:?}");
        assert!(found[0].ends_with("crates/weir-http/src/f6.rs"), "{found:?}");
    }

    #[test]
    fn a_declared_circle_may_stay_and_neither_grow_nor_shrink_unsaid() {
        let page = "x\n```circles\nweir-http 8\n```\n";
        assert_eq!(findings(8, page), [""; 0]);
        assert!(findings(9, page)[0].contains("at most 8 may"));
        assert!(
            findings(7, page)[0].starts_with("ARCHITECTURE.md:3: the largest circle of `weir-http` has 7")
        );
        assert!(findings(5, page)[0].contains("take the line out"));
    }

    #[test]
    fn a_line_that_says_nothing_is_found() {
        let found = findings(2, "```circles\nweir-http many\nweir-gone 9\n```\n");
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().any(|found| found.contains("expected `crate number`")), "{found:?}");
        assert!(found.iter().any(|found| found.contains("there is no crate `weir-gone`")), "{found:?}");
    }
}
