//! The files that git tracks, read once, so that every check sees the same tree and a test can make one up.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;

/// Tracked files by path from the root, with `/` between the parts.
pub struct Tree {
    files: BTreeMap<String, String>,
    /// Tracked files that are not UTF-8 text; they exist, and no check reads them.
    binary: Vec<String>,
}

/// A finding of a check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path from the root.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong and what to do: lower case, no full stop.
    pub message: String,
}

impl Finding {
    /// A finding at a line (from 1) of a file.
    pub fn at(file: &str, line: usize, message: impl Into<String>) -> Finding {
        Finding { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}: {}", self.file, self.line, self.message)
    }
}

impl Tree {
    /// Reads the files that git tracks under `root`. A file that is tracked but deleted is left out.
    pub fn tracked(root: &Path) -> io::Result<Tree> {
        // The checkout may belong to another user (a CI container); listing its files runs nothing of it.
        let listed = Command::new("git")
            .args(["-c", "safe.directory=*", "ls-files", "-z"])
            .current_dir(root)
            .output()?;
        if !listed.status.success() {
            let reason = String::from_utf8_lossy(&listed.stderr);
            return Err(io::Error::other(format!("git can't list the tracked files: {}", reason.trim())));
        }
        let mut tree = Tree { files: BTreeMap::new(), binary: Vec::new() };
        for path in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
            match std::fs::read(root.join(path)) {
                Ok(bytes) => match String::from_utf8(bytes) {
                    Ok(text) => drop(tree.files.insert(path.to_owned(), text)),
                    Err(_) => tree.binary.push(path.to_owned()),
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(io::Error::new(error.kind(), format!("{path}: {error}"))),
            }
        }
        Ok(tree)
    }

    /// A made-up tree.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Tree { files, binary: Vec::new() }
    }

    /// The text of a file; `None` when it is not tracked or is not text.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Every text file with its path, sorted by path.
    pub fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Every text file whose name ends in one of `extensions` (without the dot).
    pub fn with_extension<'a>(&'a self, extensions: &'a [&str]) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.texts().filter(|(path, _)| extension(path).is_some_and(|found| extensions.contains(&found)))
    }

    /// Every path, text or not.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.keys().chain(&self.binary).map(String::as_str)
    }

    /// Whether a file or a directory with tracked files has this path; the empty path is the root.
    pub fn holds(&self, path: &str) -> bool {
        let directory = format!("{path}/");
        path.is_empty() || self.paths().any(|file| file == path || file.starts_with(&directory))
    }
}

/// What follows the last dot of a file's name.
pub fn extension(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.rsplit_once('.').filter(|(stem, _)| !stem.is_empty()).map(|(_, extension)| extension)
}

/// The line (from 1) of the first line for which `is` holds; 1 when there is none.
pub fn line_where(text: &str, is: impl Fn(&str) -> bool) -> usize {
    text.lines().position(is).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_held_when_a_file_below_it_is_tracked() {
        let tree = Tree::of(&[("docs/guide/reload.md", "")]);
        assert!(tree.holds("docs/guide"));
        assert!(tree.holds("docs/guide/reload.md"));
        assert!(tree.holds(""));
        assert!(!tree.holds("docs/gui"));
    }

    #[test]
    fn a_dot_file_has_no_extension() {
        assert_eq!(extension(".gitignore"), None);
        assert_eq!(extension("a.b/Makefile"), None);
        assert_eq!(extension("a/b.test.ts"), Some("ts"));
    }

    #[test]
    fn a_finding_reads_as_file_line_message() {
        assert_eq!(Finding::at("a/b.rs", 7, "too long").to_string(), "a/b.rs:7: too long");
    }

    #[test]
    fn the_tracked_files_of_this_repository_include_this_one() {
        let root = crate::root();
        let tree = Tree::tracked(&root).expect("git lists the files of a checkout");
        assert!(tree.text("xtask/src/main.rs").is_some());
        assert!(!tree.paths().any(|path| path.starts_with("target/")));
    }
}
