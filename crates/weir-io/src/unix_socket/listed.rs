//! Who listens at a path, according to the kernel's list (proc(5), /proc/net/unix): for sockets that this
//! process may not connect to.

use std::io;
use std::path::Path;

/// Flag of listening sockets (`__SO_ACCEPTCON`).
const LISTENS: u32 = 1 << 16;

/// Whether a listening socket is listed that has this path, or may have it: if its listed path is relative,
/// only the file name is compared. Sockets of other network namespaces are not listed.
///
/// # Errors
/// The list can't be read.
pub(super) fn is_listener_listed(path: &Path) -> io::Result<bool> {
    let list = std::fs::read("/proc/self/net/unix")?;
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Ok(false) };
    let folder = std::fs::canonicalize(super::folder_of(path))?;
    let is_there = |bound: &str| {
        let (of_bound, bound_name) = bound.rsplit_once('/').unwrap_or(("", bound));
        let is_there = || std::fs::canonicalize(format!("{of_bound}/")).is_ok_and(|it| it == folder);
        is_of(bound_name, name) && (!bound.starts_with('/') || is_there())
    };
    Ok(String::from_utf8_lossy(&list).lines().filter_map(bound_to).any(is_there))
}

/// The path that a line's listening socket was bound to; `None` for names in the abstract namespace and
/// sockets that do not listen.
fn bound_to(line: &str) -> Option<&str> {
    let mut rest = line;
    let mut next = || {
        let (field, others) = rest.trim_start_matches(' ').split_once(' ')?;
        rest = others;
        Some(field)
    };
    // Number, references, protocol, then flags in hexadecimal.
    let flags = u32::from_str_radix([next()?, next()?, next()?, next()?][3], 16).ok()?;
    // Type, state, and the socket's own number; then one blank, and the name as it is.
    let _ = [next()?, next()?];
    let (_, name) = rest.trim_start_matches(' ').split_once(' ')?;
    (flags & LISTENS != 0 && !name.starts_with('@')).then_some(name)
}

/// Whether a socket that was bound to the first name may stand at the second now: Weir and HAProxy bind to a
/// name with a process number appended, and rename it.
fn is_of(bound: &str, name: &str) -> bool {
    let Some(rest) = bound.strip_prefix(name) else { return false };
    let number = rest.strip_prefix('.').and_then(|rest| rest.split_once('.')).map(|(number, _)| number);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    rest.is_empty() || number.is_some_and(is_number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_listed_socket_that_listens_the_name_is_known() {
        let line = "0000000000000000: 00000002 00000000 00010000 0001 01 14063 /run/a b.sock";
        assert_eq!(bound_to(line), Some("/run/a b.sock"));
        for other in [
            "Num       RefCount Protocol Flags    Type St Inode Path",
            "0000000000000000: 00000003 00000000 00000000 0001 03 14064 /run/a.sock",
            "0000000000000000: 00000002 00000000 00010000 0001 01 14065",
            "0000000000000000: 00000002 00000000 00010000 0001 01 14066 @/run/a.sock",
            "",
        ] {
            assert_eq!(bound_to(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_that_goes_on_with_a_process_number_is_of_the_same_place() {
        for (bound, is_same) in [
            ("a.sock", true),
            ("a.sock.4711.0", true),
            ("a.sock.4711.tmp", true),
            ("a.sock.2", false),
            ("a.sock..0", false),
            ("a.sock2", false),
            ("b.sock", false),
        ] {
            assert_eq!(is_of(bound, "a.sock"), is_same, "{bound}");
        }
    }

    #[test]
    fn who_listens_is_found_however_the_folder_is_written() {
        let folder = std::env::temp_dir().join(format!("weir-io-listed-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let listener = std::os::unix::net::UnixListener::bind(folder.join("a.sock")).unwrap();
        let found = |path: &str| is_listener_listed(&folder.join(path)).unwrap();
        assert_eq!((found("a.sock"), found("./a.sock"), found("b.sock")), (true, true, false));
        drop(listener);
        assert!(!found("a.sock"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
