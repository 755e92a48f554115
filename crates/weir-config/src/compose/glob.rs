//! Finds the files that a pattern matches.

use crate::world::{World, below};

/// Longest pattern, in bytes; the time to match grows with it.
const PATTERN_BYTES: usize = 1024;

/// Most folders and files that are compared with a pattern (count).
const MOST_LOOKED_AT: usize = 100_000;

/// The files that a pattern matches, relative to `folder`, sorted by the bytes of their paths. A pattern
/// without `*` and `?` matches itself, whether the file exists or not. `Err` says what is wrong.
///
/// `*` matches any characters within one component of a path, and `?` matches one; neither matches a dot at
/// its beginning, so that leftovers of editors and package managers with such names are not read.
pub(super) fn files_of(pattern: &str, folder: &str, files: &dyn World) -> Result<Vec<String>, String> {
    if pattern.len() > PATTERN_BYTES {
        return Err(format!("the pattern is longer than {PATTERN_BYTES} bytes"));
    }
    let whole = below(folder, pattern);
    let is_pattern = |part: &str| part.contains(['*', '?']);
    let root = if whole.starts_with('/') { "/" } else { "" };
    let mut found = vec![root.to_owned()];
    let parts: Vec<&str> = whole.split('/').filter(|part| !part.is_empty()).collect();
    let mut looked_at = 0;
    for (number, part) in parts.iter().enumerate() {
        let is_last = number + 1 == parts.len();
        let end = if is_last { "" } else { "/" };
        let is_behind_pattern = parts[..number].iter().any(|part| is_pattern(part));
        if !is_pattern(part) && !is_behind_pattern {
            found.iter_mut().for_each(|path| *path = format!("{path}{part}{end}"));
            continue;
        }
        let mut next = Vec::new();
        for path in &found {
            let names = match files.names(path) {
                Ok(names) => names,
                // After a wildcard, an entry that lacks such a folder, or is not a folder, does not match.
                Err(_) if is_behind_pattern => continue,
                Err(why) => return Err(format!("`{path}` can't be listed: {why}")),
            };
            looked_at += names.len();
            if looked_at > MOST_LOOKED_AT {
                return Err(format!(
                    "more than {MOST_LOOKED_AT} files and folders would have to be looked at"
                ));
            }
            let matching = names.iter().filter(|name| matches(part.as_bytes(), name.as_bytes()));
            next.extend(matching.map(|name| format!("{path}{name}{end}")));
        }
        found = next;
    }
    found.sort();
    Ok(found)
}

/// Whether a name matches a pattern. Takes at most the product of their lengths.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    if name.first() == Some(&b'.') && pattern.first() != Some(&b'.') {
        return false;
    }
    // Where to resume when the text after the last `*` did not match: the `*` takes one byte more.
    let (mut p, mut n, mut again) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                again = Some((p + 1, n));
                p += 1;
            }
            Some(byte) if *byte == name[n] || *byte == b'?' => {
                p += 1;
                n += 1;
            }
            _ => {
                let Some((behind, taken)) = again else { return false };
                again = Some((behind, taken + 1));
                (p, n) = (behind, taken + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Tree(&'static [&'static str]);

    impl World for Tree {
        fn read(&self, _: &str, _: usize) -> Result<Vec<u8>, String> {
            Err("not asked for".to_owned())
        }

        fn names(&self, folder: &str) -> Result<Vec<String>, String> {
            let below = self.0.iter().filter_map(|path| path.strip_prefix(folder));
            let names: Vec<String> =
                below.map(|rest| rest.split('/').next().unwrap_or("").to_owned()).collect();
            if names.is_empty() { Err("No such file or directory".to_owned()) } else { Ok(names) }
        }

        fn variable(&self, _: &str) -> Result<String, String> {
            Err("not asked for".to_owned())
        }
    }

    const TREE: Tree = Tree(&[
        "/etc/weir/conf.d/20-b.toml",
        "/etc/weir/conf.d/10-a.toml",
        "/etc/weir/conf.d/.hidden.toml",
        "/etc/weir/conf.d/notes.txt",
        "/etc/weir/teams/red/weir.toml",
        "/etc/weir/teams/blue/weir.toml",
        "/etc/weir/teams/readme",
    ]);

    fn found(pattern: &str) -> Result<Vec<String>, String> {
        files_of(pattern, "/etc/weir/", &TREE)
    }

    #[test]
    fn a_pattern_names_files_in_order_and_no_hidden_ones() {
        assert_eq!(
            found("conf.d/*.toml").unwrap(),
            ["/etc/weir/conf.d/10-a.toml", "/etc/weir/conf.d/20-b.toml"]
        );
        assert_eq!(found("conf.d/?0-*").unwrap().len(), 2);
        assert_eq!(found("conf.d/.*.toml").unwrap(), ["/etc/weir/conf.d/.hidden.toml"]);
        assert_eq!(found("conf.d/*.tml").unwrap(), [""; 0]);
    }

    #[test]
    fn a_folder_may_be_a_pattern_and_what_is_no_folder_is_passed_over() {
        let both = found("teams/*/weir.toml").unwrap();
        assert_eq!(both, ["/etc/weir/teams/blue/weir.toml", "/etc/weir/teams/red/weir.toml"]);
        assert_eq!(found("teams/*/*.toml").unwrap().len(), 2);
    }

    #[test]
    fn a_name_without_a_pattern_is_itself_and_a_folder_that_is_not_there_is_a_mistake() {
        assert_eq!(found("nope.toml").unwrap(), ["/etc/weir/nope.toml"]);
        assert!(found("nope.d/*.toml").unwrap_err().contains("`/etc/weir/nope.d/` can't be listed"));
    }

    #[test]
    fn a_pattern_of_many_stars_does_not_take_long() {
        let name = [b'a'; 255];
        let pattern = "*a".repeat(500);
        assert!(!matches(format!("{pattern}b").as_bytes(), &name));
        assert!(matches(b"*", b"a") && matches(b"a*b*", b"axxb") && !matches(b"", b"a"));
    }
}
