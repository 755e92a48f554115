//! One word for one thing: at most one type of the product may have each of these all-purpose names.

use std::collections::BTreeMap;

use crate::tree::{Finding, Tree};

/// Names that once meant four to eight different things in this code.
const TAKEN_ONCE: [&str; 5] = ["Entry", "Order", "Place", "State", "Step"];

/// Keywords that declare a type.
const DECLARES: [&str; 5] = ["struct", "enum", "trait", "type", "union"];

/// Finds types of the same name, all but the first.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut first: BTreeMap<&str, String> = BTreeMap::new();
    let mut findings = Vec::new();
    let sources = tree.with_extension(&["rs"]).filter(|(path, _)| path.contains("/src/"));
    for (path, text) in sources.filter(|(path, _)| path.starts_with("crates/")) {
        for (index, line) in text.lines().enumerate() {
            let Some(name) = declared(line).filter(|name| TAKEN_ONCE.contains(name)) else { continue };
            match first.get(name) {
                Some(place) => {
                    let message =
                        format!("`{name}` is another type in {place}; name this one after what it is");
                    findings.push(Finding::at(path, index + 1, message));
                }
                None => drop(first.insert(name, format!("{path}:{}", index + 1))),
            }
        }
    }
    findings
}

/// The type that a line declares. The associated `type` of a trait or implementation is indented and does not
/// count.
fn declared(line: &str) -> Option<&str> {
    let bare = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let (keyword, rest) = bare.split_once(' ')?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    DECLARES.contains(&keyword).then_some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_type_of_such_a_name_is_found_and_other_names_are_not() {
        let tree = Tree::of(&[
            (
                "crates/a/src/lib.rs",
                "pub(crate) enum State {\n}\npub struct Entry<'a>(&'a str);\npub struct Other;\n",
            ),
            (
                "crates/b/src/lib.rs",
                "struct Other;\nimpl Iterator for Other {\n    type State = u8;\n}\npub trait Entry {\n",
            ),
            ("crates/b/src/x.rs", "type State = u8;\npub struct States;\n"),
            ("crates/b/tests/x.rs", "struct State;\n"),
            ("xtask/src/x.rs", "struct State;\n"),
        ]);
        let found: Vec<_> = check(&tree).iter().map(|it| format!("{}:{}", it.file, it.line)).collect();
        assert_eq!(found, ["crates/b/src/lib.rs:5", "crates/b/src/x.rs:1"]);
    }
}
