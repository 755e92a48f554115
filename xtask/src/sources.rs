//! Rules about source files: their length, their names, and what must not be left in them.

use crate::tree::{Finding, Tree, extension, line_where};

/// Longest source file, in lines. Load balancers tend to have one giant file that nobody splits.
const FILE_LINES: usize = 600;

/// Longest Rust function, in lines from `fn` to its closing brace. The guide says about 70; this is where
/// "about" ends.
const FUNCTION_LINES: usize = 85;

/// Files that people write by hand and read top-down.
const SOURCES: &[&str] = &["rs", "c", "h", "ts", "js", "py", "sh"];

/// Words that say nothing about a file's content.
const EMPTY_NAMES: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc"];

/// The crates with a small named module of system calls that need `unsafe`; they deny it everywhere else.
const DENY_UNSAFE: [&str; 3] = ["crates/weir-io/", "crates/weir-l4/", "lab/"];

/// Finds files and functions that are too long to be read in one go.
pub fn lengths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(SOURCES) {
        let lines = text.lines().count();
        if lines > FILE_LINES {
            let message = format!(
                "{lines} lines, at most {FILE_LINES} are expected; split it by the questions it answers"
            );
            findings.push(Finding::at(path, FILE_LINES + 1, message));
        }
        if extension(path) == Some("rs") {
            findings.extend(long_functions(path, text));
        }
    }
    findings
}

/// rustfmt puts a function's closing brace at the indentation of its `fn`, so that lines are enough to find
/// both.
fn long_functions(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    for (start, line) in lines.iter().enumerate() {
        let bare = line.trim_start();
        let Some(name) = function_name(bare) else { continue };
        let indent = &line[..line.len() - bare.len()];
        let end = lines[start..].iter().position(|line| {
            line.strip_prefix(indent)
                .is_some_and(|rest| rest == "}" || (rest.ends_with(';') && !rest.starts_with(' ')))
        });
        // A whole function on one line ends on that line.
        let length = if bare.ends_with('}') { 1 } else { end.map_or(1, |end| end + 1) };
        if length > FUNCTION_LINES {
            let message = format!("`{name}` has {length} lines, at most {FUNCTION_LINES} are expected");
            findings.push(Finding::at(path, start + 1, message));
        }
    }
    findings
}

/// The name after `fn`, when a line begins a function.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let qualifiers = ["pub", "const", "async", "unsafe", "extern", "\"C\"", "pub(crate)", "pub(super)"];
    before.split_whitespace().all(|word| qualifiers.contains(&word)).then_some(())?;
    let end = after.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    (end > 0).then(|| &after[..end])
}

/// Finds files, directories and inline modules with a name that says nothing.
pub fn names(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in tree.paths() {
        let empty = path
            .split('/')
            .find_map(|part| part.split(['_', '-', '.']).find(|word| EMPTY_NAMES.contains(word)));
        if let Some(word) = empty {
            findings.push(Finding::at(
                path,
                1,
                format!("`{word}` in a path says nothing; name what is inside"),
            ));
        }
    }
    for (path, text) in tree.with_extension(&["rs"]) {
        for (index, line) in text.lines().enumerate() {
            let Some((before, after)) = line.split_once("mod ") else { continue };
            let name = after.trim_end_matches([';', '{', ' ']);
            let is_module = before.trim_start().is_empty() || before.trim_start().starts_with("pub");
            if is_module && name.split('_').any(|word| EMPTY_NAMES.contains(&word)) {
                findings.push(Finding::at(path, index + 1, format!("module `{name}`: name what is inside")));
            }
        }
    }
    findings
}

/// Marks of unfinished work. They are spelt in two halves here, because this file is checked too.
const MARKS: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "open an issue, or do it"),
    (concat!("FIX", "ME"), "open an issue, or fix it"),
    (concat!("XX", "X"), "say in a sentence what is odd"),
    (concat!("todo", "!("), "write it, or leave it out"),
    (concat!("unimple", "mented!("), "write it, or leave it out"),
];

/// Finds unfinished work, and tests that are switched off without a reason.
pub fn marks(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let scripts = ["Makefile", ".ci/run", "lab/peers"];
    let listed = tree.texts().filter(|(path, _)| {
        scripts.contains(path)
            || extension(path).is_some_and(|found| SOURCES.contains(&found) || found == "toml")
    });
    for (path, text) in listed {
        for (index, line) in text.lines().enumerate() {
            for (mark, advice) in MARKS.iter().filter(|(mark, _)| holds_word(line, mark)) {
                findings.push(Finding::at(path, index + 1, format!("`{mark}`: {advice}")));
            }
            if line.contains(concat!("#[ig", "nore]")) {
                let message = "a test that is switched off says why: `#[ignore = \"reason\"]`";
                findings.push(Finding::at(path, index + 1, message));
            }
        }
    }
    findings
}

/// Whether `line` contains `mark` as a whole word.
fn holds_word(line: &str, mark: &str) -> bool {
    line.match_indices(mark).any(|(at, _)| {
        let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
        let after = &line[at + mark.len()..];
        !line[..at].ends_with(part_of_word) && (mark.ends_with('(') || !after.starts_with(part_of_word))
    })
}

/// Checks that every crate forbids `unsafe`, except those that name the file where they need it.
pub fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.with_extension(&["rs"]) {
        let exempt = DENY_UNSAFE.iter().any(|under| path.starts_with(under));
        if path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") {
            let expected = if exempt { "#![deny(unsafe_code)]" } else { "#![forbid(unsafe_code)]" };
            if !text.lines().any(|line| line.trim() == expected) {
                findings.push(Finding::at(
                    path,
                    1,
                    format!("`{expected}` is expected at the top of the crate"),
                ));
            }
        }
        let allows = |line: &str| line.contains(concat!("allow(unsafe", "_code)"));
        if !exempt && text.lines().any(allows) {
            findings.push(Finding::at(
                path,
                line_where(text, allows),
                format!("only {} have a module that may use `unsafe`", DENY_UNSAFE.join(", ")),
            ));
        }
    }
    findings.extend(DENY_UNSAFE.iter().flat_map(|under| allowing_modules(tree, under)));
    findings
}

/// Checks that in an exempt crate only one file allows `unsafe`, so that a reviewer knows where to look.
fn allowing_modules(tree: &Tree, under: &str) -> Vec<Finding> {
    let allows = |line: &str| line.contains(concat!("allow(unsafe", "_code)"));
    let inside = tree.with_extension(&["rs"]).filter(|(path, _)| path.starts_with(under));
    let allowing: Vec<_> = inside.filter(|(_, text)| text.lines().any(allows)).collect();
    let first = allowing.first().map_or("", |(path, _)| *path);
    allowing
        .iter()
        .skip(1)
        .map(|(path, text)| {
            Finding::at(
                path,
                line_where(text, allows),
                format!("`unsafe` is already allowed in {first}; one file is enough"),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_file_of_600_lines_passes_and_one_of_601_does_not() {
        let (fits, over) = ("\n".repeat(600), "\n".repeat(601));
        let tree = Tree::of(&[("fits.rs", &fits), ("over.sh", &over), ("data.json", &over)]);
        let found = lengths(&tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("over.sh", 601));
    }

    #[test]
    fn a_function_is_measured_to_its_own_brace() {
        let body = "        step();\n".repeat(FUNCTION_LINES - 2);
        let fits = format!(
            "impl A {{\n    pub fn fits(\n        &self,\n    ) {{\n{}    }}\n}}\n",
            &body[..body.len() - 2 * 16]
        );
        let over = format!(
            "impl A {{\n    pub async fn over() {{\n{body}        step();\n    }}\n    fn short() {{}}\n}}\n"
        );
        let found = lengths(&Tree::of(&[("fits.rs", &fits), ("over.rs", &over)]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("over.rs", 2));
        assert!(found[0].message.starts_with("`over` has 86 lines"), "{found:?}");
    }

    #[test]
    fn a_declaration_without_a_body_is_no_long_function() {
        let text = format!("trait A {{\n    fn one(&self);\n{}}}\n", "    type B;\n".repeat(100));
        assert_eq!(shown(&lengths(&Tree::of(&[("a.rs", &text)]))), [""; 0]);
    }

    #[test]
    fn names_that_say_nothing_are_found_in_paths_and_in_modules() {
        let tree = Tree::of(&[
            ("src/http_utils.rs", ""),
            ("src/common/mod.rs", ""),
            ("src/commons.rs", ""),
            (
                "src/lib.rs",
                "mod commonplace;\npub(crate) mod test_helpers {\n}\n// a mod helpers; in a comment\n",
            ),
        ]);
        let found = shown(&names(&tree));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("src/common/mod.rs:1: "), "{found:?}");
        assert!(found[1].starts_with("src/http_utils.rs:1: "), "{found:?}");
        assert!(found[2].starts_with("src/lib.rs:2: module `test_helpers`"), "{found:?}");
    }

    #[test]
    fn unfinished_work_is_found_in_sources_and_scripts_but_not_in_prose() {
        let note = concat!("// TO", "DO later\n");
        let call = concat!("fn a() {\n    to", "do!()\n}\n");
        let tree = Tree::of(&[
            ("a.rs", call),
            ("Makefile", note),
            ("README.md", note),
            ("b.rs", "// AUTODO, TODOS, todo\n"),
        ]);
        let found = shown(&marks(&tree));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("Makefile:1: "), "{found:?}");
        assert!(found[1].starts_with("a.rs:2: "), "{found:?}");
    }

    #[test]
    fn a_test_that_is_switched_off_says_why() {
        let bare = concat!("#[test]\n#[ig", "nore]\nfn slow() {}\n");
        let reasoned = "#[test]\n#[ignore = \"takes an hour; run by `make soak`\"]\nfn slow() {}\n";
        let found = shown(&marks(&Tree::of(&[("bare.rs", bare), ("reasoned.rs", reasoned)])));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("bare.rs:2: "), "{found:?}");
    }

    #[test]
    fn every_crate_forbids_unsafe_and_the_one_that_needs_it_denies_it() {
        let tree = Tree::of(&[
            ("crates/weir/src/main.rs", "fn main() {}\n"),
            ("crates/weir-http/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n"),
            ("crates/weir-io/src/lib.rs", "#![deny(unsafe_code)]\n"),
        ]);
        let found = shown(&unsafe_code(&tree));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("crates/weir/src/main.rs:1: `#![forbid(unsafe_code)]` is expected"),
            "{found:?}"
        );
    }

    #[test]
    fn unsafe_is_allowed_in_one_file_of_one_crate_and_nowhere_else() {
        let allow = concat!("//! x\n#![allow(unsafe", "_code)]\n");
        let tree = Tree::of(&[
            ("crates/weir-http/src/scan.rs", allow),
            ("crates/weir-io/src/system.rs", allow),
            ("crates/weir-io/src/tls.rs", allow),
        ]);
        let found = shown(&unsafe_code(&tree));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("crates/weir-http/src/scan.rs:2: "), "{found:?}");
        assert!(found[1].starts_with("crates/weir-io/src/tls.rs:2: "), "{found:?}");
    }
}
