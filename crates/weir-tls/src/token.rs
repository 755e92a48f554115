//! Reads the token of the admin API from its file.

use std::io::{self, Read as _};
use std::path::Path;

use crate::files::{LoadError, read_regular, unread};

/// Most bytes of a file that are read.
const FILE_BYTES: u64 = 4096;
/// Least length of a token in bytes; shorter ones could be guessed.
const SHORTEST: usize = 16;

/// The trimmed content of a file that a config names.
///
/// # Errors
/// The file can't be read, or its content is not a token or is too easy to guess.
pub fn read(file: &Path) -> Result<String, LoadError> {
    token_of(file, read_regular(file, FILE_BYTES))
}

/// The trimmed content of a file that was named to a command; it may be a pipe.
///
/// # Errors
/// As [`read`].
pub fn read_or_pipe(file: &Path) -> Result<String, LoadError> {
    let mut token = Vec::new();
    let read = std::fs::File::open(file).and_then(|opened| opened.take(FILE_BYTES).read_to_end(&mut token));
    token_of(file, read.map(|_| token))
}

fn token_of(file: &Path, read: io::Result<Vec<u8>>) -> Result<String, LoadError> {
    let token = read.and_then(|bytes| String::from_utf8(bytes).map_err(io::Error::other));
    let token = token.map_err(|error| unread(file, &error))?;
    let token = token.trim();
    if token.len() < SHORTEST {
        let length = token.len();
        let reason = format!("holds a token of {length} bytes; expected at least {SHORTEST}");
        return Err(LoadError::new(file, reason));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let reason = "holds spaces or control characters; expected one line of visible ASCII";
        return Err(LoadError::new(file, reason));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_can_be_guessed_is_refused() {
        let path = std::env::temp_dir().join(format!("weir-token-{}", std::process::id()));
        for (content, good) in [("short", false), ("0123456789abcdef\n", true), ("0123456789 abcdef", false)]
        {
            std::fs::write(&path, content).unwrap();
            assert_eq!(read(&path).is_ok(), good, "{content:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("can't be read"));
    }
}
