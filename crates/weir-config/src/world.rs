//! What a config may request from outside: other files, and the environment. This crate accesses neither; the
//! program passes an implementation.

/// Reads on behalf of a config. Paths are as in the config, relative to the folder of the file that contains
/// them.
pub trait World {
    /// The first `most` bytes of a file. `Err` says why it can't be read, in the system's words.
    fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, String>;

    /// The names in a folder, in any order; `""` is the program's working directory. `Err` as for
    /// [`World::read`].
    fn names(&self, folder: &str) -> Result<Vec<String>, String>;

    /// The value of an environment variable. `Err` says why there is none.
    fn variable(&self, name: &str) -> Result<String, String>;

    /// Checks that files can be created in a folder. `Err` says why not, in the system's words; an
    /// implementation without a disk never objects.
    fn takes_files(&self, _folder: &str) -> Result<(), String> {
        Ok(())
    }
}

/// For a self-contained text: whatever it requests does not exist.
pub(crate) struct Nothing;

/// The error for such a text.
const ALONE: &str = "this text is read by itself, without files and environment";

impl World for Nothing {
    fn read(&self, _: &str, _: usize) -> Result<Vec<u8>, String> {
        Err(ALONE.to_owned())
    }

    fn names(&self, _: &str) -> Result<Vec<String>, String> {
        Err(ALONE.to_owned())
    }

    fn variable(&self, _: &str) -> Result<String, String> {
        Err(ALONE.to_owned())
    }
}

/// The folder of a file, with a slash at the end; empty for a bare name.
pub(crate) fn folder_of(path: &str) -> &str {
    path.rfind('/').map_or("", |slash| &path[..=slash])
}

/// `path` relative to `folder`, without redundant steps: two spellings of one path become the same, except
/// for links.
pub(crate) fn below(folder: &str, path: &str) -> String {
    let whole = if path.starts_with('/') { path.to_owned() } else { format!("{folder}{path}") };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/').filter(|part| !matches!(*part, "" | ".")) {
        match (part, parts.last()) {
            ("..", Some(last)) if *last != ".." => {
                parts.pop();
            }
            ("..", None) if whole.starts_with('/') => {}
            _ => parts.push(part),
        }
    }
    let root = if whole.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_seen_from_the_folder_of_the_file_that_says_it() {
        assert_eq!(below(folder_of("/etc/weir/weir.toml"), "conf.d/a.toml"), "/etc/weir/conf.d/a.toml");
        assert_eq!(below(folder_of("/etc/weir/weir.toml"), "../lists/./a"), "/etc/lists/a");
        assert_eq!(below(folder_of("weir.toml"), "/a"), "/a");
        assert_eq!(below(folder_of("weir.toml"), "a"), "a");
        assert_eq!(below(folder_of("conf/weir.toml"), "../../a"), "../a");
        assert_eq!(below("/", "../../a"), "/a");
    }
}
