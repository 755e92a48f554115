//! Finds words that would tie the repository to one machine: the package registries that it uses, and the
//! checkout's directory.
//!
//! No such word is listed here. The machine's own package clients are asked when the check runs, so that it
//! works on any machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::tree::{Finding, Tree};

/// A word that no tracked file may contain, and what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    word: String,
    what: String,
}

/// Lock files name the origins of packages; that is their purpose.
const LOCK_FILES: &[&str] = &["Cargo.lock", "package-lock.json", "go.sum"];

/// Directories that documents may name although a checkout could be directly in them.
const SHARED_DIRECTORIES: &[&str] =
    &["/", "/tmp", "/var/tmp", "/home", "/root", "/srv", "/opt", "/usr/src", "/var", "/mnt"];

/// The words of this machine that no file may contain: its registries' hosts and its directories.
pub fn of_this_machine(root: &Path) -> Vec<Forbidden> {
    let mut words: Vec<Forbidden> = hosts(&answers())
        .into_iter()
        .map(|(word, client)| Forbidden { word, what: format!("a package host from {client}") })
        .collect();
    words.extend(directories(root, std::env::var_os("HOME").map(PathBuf::from).as_deref()));
    words
}

/// Finds files that contain one of the words.
pub fn check(tree: &Tree, words: &[Forbidden]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        let name = path.rsplit('/').next().unwrap_or(path);
        if LOCK_FILES.contains(&name) {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(Forbidden { word, what }) =
                words.iter().find(|forbidden| stands_in(line, &forbidden.word))
            {
                findings.push(Finding::at(
                    path,
                    index + 1,
                    format!("`{word}` is {what}; it says nothing on another machine"),
                ));
            }
        }
    }
    findings
}

/// Whether a line contains a host or a directory as a whole: `a.example` is not found in `aa.example`.
fn stands_in(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let part_of_name = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '-' || c == '_');
        let part_of_path = word.starts_with('/') && before.is_some_and(|c| c == '.' || c == '}' || c == ')');
        !part_of_name(before) && !part_of_path && (word.ends_with('/') || !part_of_name(after))
    })
}

/// What each package client says about where it gets packages; clients that are not installed are left out.
fn answers() -> Vec<(String, String)> {
    let commands: &[&[&str]] = &[
        &["npm", "config", "get", "registry"],
        &["pip", "config", "list"],
        &["go", "env", "GOPROXY"],
        &["go", "env", "GOSUMDB"],
    ];
    let mut answers = Vec::new();
    for command in commands {
        let asked =
            Command::new(command[0]).args(&command[1..]).stderr(Stdio::null()).stdin(Stdio::null()).output();
        if let Ok(answer) = asked {
            answers.push((command[0].to_owned(), String::from_utf8_lossy(&answer.stdout).into_owned()));
        }
    }
    let cargo_home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo_home =
        cargo_home.or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let mut files: Vec<(&str, PathBuf)> = vec![("apt", "/etc/apt/sources.list".into())];
    files.extend(
        cargo_home.iter().flat_map(|home| ["config.toml", "config"].map(|name| ("cargo", home.join(name)))),
    );
    let lists = std::fs::read_dir("/etc/apt/sources.list.d").into_iter().flatten().flatten();
    files.extend(lists.map(|entry| ("apt", entry.path())));
    for (client, file) in files {
        answers.extend(std::fs::read_to_string(file).ok().map(|text| (client.to_owned(), text)));
    }
    answers
}

/// The hosts of all web addresses in the answers, each with the client that named it.
fn hosts(answers: &[(String, String)]) -> BTreeMap<String, String> {
    let mut hosts = BTreeMap::new();
    for (client, answer) in answers {
        let addresses = answer.split("://").skip(1);
        for address in addresses {
            let authority = address.split(|c: char| "/,|\"' \n\t<>".contains(c)).next().unwrap_or("");
            let host = authority.rsplit('@').next().unwrap_or("");
            let name = host.split(':').next().unwrap_or("");
            // A name without a dot, or one of this machine itself, could be any word in any file.
            if name.contains('.') && !name.starts_with("127.") && name != "0.0.0.0" {
                hosts.insert(name.to_owned(), client.clone());
            }
        }
    }
    hosts
}

/// The checkout, every directory around it, and the user's home, each with a slash at the end.
fn directories(root: &Path, home: Option<&Path>) -> Vec<Forbidden> {
    let mut found: Vec<_> = root.ancestors().map(|around| (around, "where this checkout lies")).collect();
    found.extend(home.map(|home| (home, "a home directory of this machine")));
    found
        .into_iter()
        .filter(|(path, _)| {
            path.is_absolute() && !SHARED_DIRECTORIES.iter().any(|shared| path == &Path::new(shared))
        })
        .map(|(path, what)| Forbidden { word: format!("{}/", path.display()), what: what.to_owned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(word: &str) -> Forbidden {
        Forbidden { word: word.to_owned(), what: "a package host from pip".to_owned() }
    }

    #[test]
    fn hosts_are_read_from_what_clients_answer() {
        let answer = |client: &str, text: &str| (client.to_owned(), text.to_owned());
        let found = hosts(&[
            answer("npm", "https://npm.mirror.example/path/\n"),
            answer("pip", "global.index-url='http://user:secret@pip.mirror.example:8081/simple'\n"),
            answer("go", "https://go.one.example,https://go.two.example|direct\n"),
            answer("cargo", "[source.x]\nregistry = \"sparse+http://127.0.0.1:3000/index/\"\n"),
            answer("apt", "deb http://localhost/debian stable main\n"),
        ]);
        let found: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(found, ["go.one.example", "go.two.example", "npm.mirror.example", "pip.mirror.example"]);
    }

    #[test]
    fn a_host_is_found_as_a_whole_and_lock_files_may_name_it() {
        let tree = Tree::of(&[
            ("Cargo.lock", "source = \"https://mirror.example/x\"\n"),
            (
                "README.md",
                "first\nsee https://mirror.example/x\nsee https://mymirror.example or mirror.example-two\n",
            ),
        ]);
        let found = check(&tree, &[word("mirror.example")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].file.as_str(), found[0].line), ("README.md", 2));
    }

    #[test]
    fn the_checkout_its_surroundings_and_the_home_are_found() {
        let words = directories(Path::new("/build/agent7/weir"), Some(Path::new("/home/ann")));
        let tree = Tree::of(&[(
            "a.sh",
            "cd /build/agent7/weir/lab\nls /build/agent7/cache\ncat /home/ann/x\ncat /home/bob/x $dir/home/ann/x\ncd ./build/agent7/x\nls /build/agent8/x\n",
        )]);
        let lines: Vec<_> = check(&tree, &words).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 3, 6]);
    }

    #[test]
    fn directories_that_every_machine_has_may_be_named() {
        let words = directories(Path::new("/tmp/weir"), Some(Path::new("/root")));
        let words: Vec<_> = words.iter().map(|forbidden| forbidden.word.as_str()).collect();
        assert_eq!(words, ["/tmp/weir/"]);
    }
}
