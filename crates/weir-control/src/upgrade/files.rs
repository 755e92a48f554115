//! Passes on which files the Unix sockets have that a process hands to the next: by then something else may
//! stand at their paths. So device and inode are sent too, in a line that older versions ignore.

use std::collections::BTreeMap;

use weir_config::AdminBind;
use weir_io::at::{At, UnixName};
use weir_io::unix_socket::SocketFile;
use weir_state::sockets::Endpoint;

use super::{Passed, Purpose};

/// The first word of such a line.
const WORD: &str = "socket-file";
/// Used when the file is not known: the previous process has created none that it knows of.
const NONE: &str = "none none";

/// The line for a socket; `None` if it is not at a path.
pub(super) fn line_of(passed: &Passed) -> Option<String> {
    let name = match &passed.purpose {
        Purpose::Listener(Endpoint { at: At::Unix(name), .. }) => name.clone(),
        Purpose::Admin(AdminBind::Unix(name)) => UnixName::new(name),
        _ => return None,
    };
    let words = passed.file.as_ref().map_or(NONE.to_owned(), SocketFile::words);
    Some(format!("{WORD} {words} {}\n", name.path()?))
}

/// The files from these lines, by path.
#[derive(Default)]
pub(super) struct HandedFiles(BTreeMap<String, Option<SocketFile>>);

impl HandedFiles {
    /// Parses a line; `false` if it is of another kind.
    pub(super) fn take(&mut self, line: &str) -> bool {
        let mut words = line.splitn(4, ' ');
        if words.next() != Some(WORD) {
            return false;
        }
        if let (Some(numbers), Some(given_to), Some(path)) = (words.next(), words.next(), words.next()) {
            let file = SocketFile::of_words(path, &format!("{numbers} {given_to}"));
            self.0.insert(path.to_owned(), file);
        }
        true
    }

    /// The file of the socket at a path. If an older version has sent no line, it is what stands there now.
    pub(super) fn at(&self, path: &str) -> Option<SocketFile> {
        self.0.get(path).cloned().unwrap_or_else(|| SocketFile::standing_at(path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_socket_arrives_whatever_stands_at_its_path() {
        let path = "/nonexistent/a b.sock";
        let file = SocketFile::of_words(path, "2049:1234 owner").unwrap();
        let place = At::Unix(UnixName::new(path));
        let endpoint = Endpoint::new(weir_state::sockets::Transport::Tcp, place);
        let socket = || std::fs::File::open("/dev/null").unwrap().into();
        let mut passed = Passed::of(Purpose::Listener(endpoint), socket());
        assert_eq!(line_of(&passed).as_deref(), Some("socket-file none none /nonexistent/a b.sock\n"));
        passed.file = Some(file.clone());
        let line = line_of(&passed).unwrap();
        assert_eq!(line, "socket-file 2049:1234 owner /nonexistent/a b.sock\n");
        let of_admin = |name: &str| {
            let bind: AdminBind = name.parse().unwrap();
            line_of(&Passed::of(Purpose::Admin(bind), socket()))
        };
        let admin = of_admin("unix:/run/admin.sock").unwrap();
        assert_eq!(admin, "socket-file none none /run/admin.sock\n");
        assert_eq!(of_admin("unix:@admin"), None);
        assert_eq!(of_admin("127.0.0.1:9900"), None);

        let mut files = HandedFiles::default();
        assert!(files.take(line.trim_end()) && files.take(admin.trim_end()));
        assert!(!files.take("state app 10.0.0.1:80 drain up 0 -"));
        assert_eq!(files.at(path), Some(file));
        assert_eq!(files.at("/run/admin.sock"), None);
        assert_eq!(files.at("/nonexistent/other.sock"), None, "nothing stands there");
    }
}
