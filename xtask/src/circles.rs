//! How large a circle of imports may be: files that all need each other are read, tested and changed as
//! one.

use std::path::Path;

use crate::imports::{Imports, crates};
use crate::tree::{Finding, Tree};

/// Most files in a circle (count).
const LARGEST: usize = 6;

/// Finds circles with more files than allowed.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for directory in &crates(tree) {
        let imports = Imports::of(tree, directory);
        for circle in imports.circles().iter().filter(|circle| circle.len() > LARGEST) {
            let (size, name) = (circle.len(), short(directory));
            let message = format!(
                "{size} files of `{name}` need each other, at most {LARGEST} may: {}",
                circle.join(" ")
            );
            findings.push(Finding::at(circle[0], 1, message));
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

/// The other members of its circle that a file imports, without the part of the path that all share.
fn within<'a>(imports: &'a Imports, file: &str, circle: &[&str]) -> Vec<&'a str> {
    let met = imports.needs[file].iter().filter(|other| circle.contains(&other.as_str()));
    met.map(|other| other.split_once("/src/").map_or(other.as_str(), |(_, inside)| inside)).collect()
}

/// The crate's name as people say it: the last part of its directory.
fn short(directory: &str) -> &str {
    directory.rsplit('/').next().unwrap_or(directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings for a crate with one circle of `size` files.
    fn findings(size: usize) -> Vec<String> {
        let manifest = "[package]\nname = \"weir-http\"\n".to_owned();
        let mut files = vec![("crates/weir-http/Cargo.toml".to_owned(), manifest)];
        for index in 0..size {
            let text = format!("use crate::f{}::X;\npub struct X;\n", (index + 1) % size);
            files.push((format!("crates/weir-http/src/f{index}.rs"), text));
        }
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        check(&Tree::of(&files)).iter().map(Finding::to_string).collect()
    }

    #[test]
    fn a_circle_of_six_files_passes_and_one_of_seven_names_its_members() {
        assert_eq!(findings(6), [""; 0]);
        let found = findings(7);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/weir-http/src/f0.rs:1: 7 files of `weir-http`"), "{found:?}");
        assert!(found[0].ends_with("crates/weir-http/src/f6.rs"), "{found:?}");
    }
}
