//! `unix:/run/app.sock` and `unix:@app`: Unix domain sockets.

use crate::report::quote;
use crate::units::{Refused, refuse};

/// Longest path or name, in bytes: `sun_path` has 108, one of which ends a path or begins a name (unix(7)).
const LONGEST: usize = 107;

/// Longest path of a listener's socket: a temporary name beside it is needed until it is ready.
const LONGEST_BIND: usize = 90;

/// The text after `unix:` in an address; `None` for an address of another kind.
pub fn unix_name(text: &str) -> Option<&str> {
    text.strip_prefix("unix:")
}

/// Checks the name that [`unix_name`] found in `text`. It becomes a metric label, a field of log lines and
/// part of admin paths, so it must contain no blanks and no unprintable characters.
pub(super) fn check(text: &str, name: &str) -> Result<String, Refused> {
    let message = format!("{} is not a Unix socket", quote(text));
    let expected = "expected an absolute path, such as \"unix:/run/app.sock\", or a name in the abstract \
                    namespace, such as \"unix:@app\"";
    if let Some(inner) = name.strip_prefix("//") {
        return refuse(message, format!("did you mean \"unix:/{}\"?", inner.trim_start_matches('/')));
    }
    if let Some(path) = name.strip_suffix(':').filter(|path| path.starts_with('/')) {
        return refuse(message, format!("leave out the last colon: \"unix:{path}\""));
    }
    let is_shown = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'%');
    if let Some(bad) = name.chars().find(|c| !c.is_ascii() || !is_shown(*c as u8)) {
        let hint =
            format!("its name cannot hold {}: it is shown in logs and metrics", quote(&bad.to_string()));
        return refuse(message, hint);
    }
    if name.len() > LONGEST {
        return refuse(
            message,
            format!("it has {} bytes, and the kernel takes at most {LONGEST}", name.len()),
        );
    }
    match name.as_bytes() {
        [b'/', .., last] if *last != b'/' => Ok(text.to_owned()),
        [b'@', _, ..] => Ok(text.to_owned()),
        [b'/', ..] => refuse(message, "it is a folder: expected the path of a socket"),
        _ => refuse(message, expected),
    }
}

/// Like [`check`], for a listener's socket.
pub(crate) fn check_bind(text: &str, name: &str) -> Result<String, Refused> {
    if name.starts_with('/') && name.len() > LONGEST_BIND {
        let hint = format!("its path has {} bytes, and a listener's has at most {LONGEST_BIND}", name.len());
        return refuse(format!("{} is not a Unix socket", quote(text)), hint);
    }
    check(text, name)
}

/// The right form for the ways in which other programs write such sockets; `None` for any other text.
pub(super) fn elsewhere_written(text: &str) -> Option<String> {
    let rewritten = if let Some(name) = text.strip_prefix("abns@").or_else(|| text.strip_prefix("abnsz@")) {
        format!("unix:@{name}")
    } else if let Some(path) = text.strip_prefix("unix@").filter(|path| path.starts_with('/')) {
        format!("unix:{path}")
    } else if let Some((_, path)) = text.split_once("://unix:") {
        format!("unix:{}", path.split_once(':').map_or(path, |(path, _)| path))
    } else if text.starts_with('/') {
        format!("unix:{text}")
    } else {
        return None;
    };
    Some(format!("did you mean \"{rewritten}\"?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_abstract_name_are_taken_and_nothing_else() {
        let at = |name: &str| check(&format!("unix:{name}"), name).map_err(|refused| refused.hint);
        for good in ["/run/app.sock", "/a", "@app", "@a/b"] {
            assert_eq!(at(good), Ok(format!("unix:{good}")));
        }
        let long = format!("/{}", "a".repeat(LONGEST));
        assert!(at(&long[..LONGEST]).is_ok());
        for (bad, hint) in [
            (long.as_str(), "it has 108 bytes, and the kernel takes at most 107"),
            ("/run/app.sock:", "leave out the last colon: \"unix:/run/app.sock\""),
            ("///run/app.sock", "did you mean \"unix:/run/app.sock\"?"),
            ("/run/", "it is a folder: expected the path of a socket"),
            ("/run/a b", "its name cannot hold ` `: it is shown in logs and metrics"),
        ] {
            assert_eq!(at(bad).unwrap_err(), hint, "{bad}");
        }
        for bad in ["", "@", "/", "app.sock", "/a\nb", "/a%2fb", "/ä"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_others_write_is_rewritten() {
        for (text, ours) in [
            ("/run/app.sock", "/run/app.sock"),
            ("abns@app", "@app"),
            ("unix@/run/app.sock", "/run/app.sock"),
            ("http://unix:/run/app.sock:/uri", "/run/app.sock"),
        ] {
            let hint = elsewhere_written(text).unwrap();
            assert!(hint.contains(&format!("unix:{ours}")) && hint.starts_with("did you mean"), "{hint}");
        }
        assert_eq!(elsewhere_written("10.0.0.1:80"), None);
    }
}
