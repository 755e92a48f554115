//! Ticket keys that several Weirs share in files, so that a returning client can resume its session on any of
//! them.
//!
//! A file holds keys of 48 or 80 bytes, as for nginx and HAProxy: either a single binary key, or one base64
//! key on each line. The first key seals tickets, all of them open tickets. Weir does not rotate them:
//! whatever writes the files decides how long a key lasts, and Weir reads a file again when it changes.

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use aws_lc_rs::hmac;
use weir_config::{Alphabet, decode_base64};

use crate::files::{self, LoadError};
use crate::tickets::{GRACE, Key, NAME_BYTES};

/// Lengths of a key in bytes; the first 16 are its name.
const KEY_BYTES: [usize; 2] = [48, 80];
/// Most keys of a listener (count): each ticket with an unknown name is compared with all.
const MOST_KEYS: usize = 64;
/// How far ahead another Weir's clock may be, in seconds.
const CLOCKS_APART_SECONDS: u64 = 600;
/// Used to derive the secret that seals tickets, so that tickets which another program seals with the same
/// key reveal nothing about ours.
const LABEL: &[u8] = b"weir session tickets, AES-256-GCM";

/// The keys of one listener.
pub struct SharedKeys {
    files: Vec<PathBuf>,
    /// In the order of the files; never empty.
    keys: ArcSwap<Vec<Key>>,
    seen: Mutex<Vec<Stamp>>,
    /// When they were last read, in seconds since 1970.
    read_at: AtomicU64,
    is_good: AtomicBool,
}

/// What shows that a file has changed.
#[derive(Clone, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    /// When the file's owner, mode or content changed. The mode counts because a file that others may read is
    /// refused.
    changed: (i64, i64),
    size: u64,
    place: (u64, u64),
}

impl SharedKeys {
    /// Reads the keys in these files.
    ///
    /// # Errors
    /// A file can't be read, can be read by others, or contains something that is not a key.
    pub fn load(files: &[PathBuf]) -> Result<SharedKeys, LoadError> {
        let stamps = stamps(files);
        let keys = read(files)?;
        Ok(SharedKeys {
            files: files.to_vec(),
            keys: ArcSwap::from_pointee(keys),
            seen: Mutex::new(stamps),
            read_at: AtomicU64::new(seconds()),
            is_good: AtomicBool::new(true),
        })
    }

    /// Checks the files as [`Self::load`] does; `Err` has all errors.
    pub(crate) fn look(files: &[PathBuf]) -> Result<(), Vec<LoadError>> {
        let alone = files.iter().filter_map(|file| read(std::slice::from_ref(file)).err());
        let errors: Vec<LoadError> = alone.collect();
        match errors.is_empty() {
            true => read(files).map(drop).map_err(|error| vec![error]),
            false => Err(errors),
        }
    }

    /// Reads the files again if one has changed since the last check. `Ok(false)` when none has. Blocks on
    /// the disk.
    ///
    /// # Errors
    /// The new content can't be used; the earlier keys stay, and the files are not read again until they
    /// change.
    pub fn look_again(&self) -> Result<bool, LoadError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamps(&self.files);
        if *seen == now {
            return Ok(false);
        }
        *seen = now;
        match read(&self.files) {
            Ok(keys) => {
                self.keys.store(keys.into());
                self.read_at.store(seconds(), Ordering::Relaxed);
                self.is_good.store(true, Ordering::Relaxed);
                Ok(true)
            }
            Err(error) => {
                self.is_good.store(false, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// When the keys in force were read (seconds since 1970), and whether the current content of the files
    /// could be used.
    pub fn state(&self) -> (u64, bool) {
        (self.read_at.load(Ordering::Relaxed), self.is_good.load(Ordering::Relaxed))
    }

    pub(crate) fn seal(&self, plain: &[u8], bound_to: &[u8]) -> Option<Vec<u8>> {
        let dated = [&seconds().to_be_bytes()[..], plain].concat();
        self.keys.load().first()?.seal(&dated, bound_to)
    }

    pub(crate) fn open(&self, ticket: &[u8], bound_to: &[u8]) -> Option<Vec<u8>> {
        let keys = self.keys.load();
        let dated = keys.iter().find(|key| key.is_named(ticket))?.open(ticket, bound_to)?;
        let (sealed_at, plain) = dated.split_first_chunk()?;
        is_fresh(u64::from_be_bytes(*sealed_at), seconds()).then(|| plain.to_vec())
    }
}

impl fmt::Debug for SharedKeys {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ticket keys of {:?}", self.keys.load().len(), self.files)
    }
}

/// Whether a ticket sealed at that time (seconds since 1970) is recent enough. Otherwise a key that is never
/// removed from its file would open tickets for ever. The clocks of other Weirs may be ahead.
fn is_fresh(sealed_at: u64, now: u64) -> bool {
    now.saturating_sub(sealed_at) < GRACE.as_secs() && sealed_at.saturating_sub(now) < CLOCKS_APART_SECONDS
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| {
        let found = std::fs::metadata(file).ok();
        found.map_or(Stamp { modified: None, changed: (0, 0), size: 0, place: (0, 0) }, |found| Stamp {
            modified: found.modified().ok(),
            changed: (found.ctime(), found.ctime_nsec()),
            size: found.len(),
            place: (found.dev(), found.ino()),
        })
    };
    files.iter().map(stamp).collect()
}

fn read(files: &[PathBuf]) -> Result<Vec<Key>, LoadError> {
    let mut keys: Vec<Key> = Vec::new();
    for file in files {
        files::refuse_if_others_may_read(file)?;
        for key in keys_in(file, &files::read(file)?)? {
            if keys.iter().any(|other| other.has_name_of(&key)) {
                return Err(LoadError::new(file, "holds a key whose name (its first 16 bytes) another has"));
            }
            keys.push(key);
        }
    }
    match files.first() {
        Some(file) if keys.len() > MOST_KEYS => Err(LoadError::new(
            file,
            format!("and its like hold {} keys; expected at most {MOST_KEYS}", keys.len()),
        )),
        _ => Ok(keys),
    }
}

/// The keys in one file, at least one.
fn keys_in(file: &Path, content: &[u8]) -> Result<Vec<Key>, LoadError> {
    let refuse = |reason: String| LoadError::new(file, reason);
    // As base64 text these lengths would decode to 36 or 60 bytes, which are no keys.
    if KEY_BYTES.contains(&content.len()) {
        return key(content)
            .map(|key| vec![key])
            .ok_or_else(|| refuse("holds no key that can be used".to_owned()));
    }
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(content.split(|byte| *byte == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let found = decode_line(line).and_then(|bytes| key(&bytes));
        keys.push(found.ok_or_else(|| {
            refuse(format!("line {number} is no key; expected 48 or 80 bytes in base64, such as `openssl rand -base64 80 | tr -d '\\n'` makes"))
        })?);
    }
    if keys.is_empty() {
        return Err(refuse(
            "holds no key; expected 48 or 80 bytes, or lines of base64 with as many".to_owned(),
        ));
    }
    Ok(keys)
}

/// Decodes a base64 key; `None` for anything else.
fn decode_line(line: &[u8]) -> Option<Vec<u8>> {
    decode_base64(line.trim_ascii(), Alphabet::Usual).filter(|bytes| KEY_BYTES.contains(&bytes.len()))
}

fn key(bytes: &[u8]) -> Option<Key> {
    let (name, rest) = bytes.split_at_checked(NAME_BYTES)?;
    let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, rest), LABEL);
    Key::new(name.try_into().ok()?, derived.as_ref().try_into().ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const HERE: &[u8] = b"web";

    fn file(name: &str, content: &[u8]) -> PathBuf {
        let file = std::env::temp_dir().join(format!("weir-tickets-{}-{name}", std::process::id()));
        std::fs::write(&file, content).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        file
    }

    /// 48 bytes of one kind: 64 letters.
    fn line(letter: char) -> String {
        format!("{}\n", letter.to_string().repeat(64))
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let (one, both) =
            (file("one", line('B').as_bytes()), file("both", (line('A') + &line('B')).as_bytes()));
        let (one, both) = (SharedKeys::load(&[one]).unwrap(), SharedKeys::load(&[both]).unwrap());
        let old = one.seal(b"session", HERE).unwrap();
        assert_eq!(both.open(&old, HERE).as_deref(), Some(&b"session"[..]));
        assert_eq!(both.open(&old, b"other listener"), None);
        let new = both.seal(b"session", HERE).unwrap();
        assert_eq!((one.open(&new, HERE), both.open(&new, HERE).is_some()), (None, true));
    }

    #[test]
    fn a_ticket_is_good_for_twelve_hours_whatever_becomes_of_its_key() {
        let now = 1_800_000_000;
        assert!(is_fresh(now, now) && is_fresh(now - 12 * 3600 + 1, now) && is_fresh(now + 60, now));
        assert!(!is_fresh(now - 12 * 3600, now) && !is_fresh(now + 3600, now));
    }

    #[test]
    fn a_file_that_changes_is_read_again_and_one_that_cannot_be_used_changes_nothing() {
        let path = file("changes", line('A').as_bytes());
        let keys = SharedKeys::load(std::slice::from_ref(&path)).unwrap();
        let old = keys.seal(b"session", HERE).unwrap();
        assert_eq!(keys.look_again(), Ok(false));
        std::fs::write(&path, line('C') + &line('A')).unwrap();
        assert_eq!(keys.look_again(), Ok(true));
        assert_ne!(keys.seal(b"session", HERE).unwrap()[..16], old[..16]);
        std::fs::write(&path, "half a li").unwrap();
        assert!(keys.look_again().unwrap_err().reason.contains("line 1 is no key"));
        assert!(keys.open(&old, HERE).is_some());
        assert_eq!((keys.look_again(), keys.state().1), (Ok(false), false));
    }

    #[test]
    fn keys_are_read_in_both_forms_and_what_is_none_is_named_without_being_shown() {
        let raw: Vec<u8> = (0..80).collect();
        assert!(SharedKeys::load(&[file("raw", &raw)]).is_ok());
        assert!(SharedKeys::load(&[file("twice", (line('A') + &line('A')).as_bytes())]).is_err());
        for (name, content) in [("empty", ""), ("short", "QUJD\n"), ("words", "not base64 at all\n")] {
            let error = SharedKeys::load(&[file(name, content.as_bytes())]).unwrap_err();
            assert!(content.is_empty() || !error.reason.contains(content.trim()), "{error}");
        }
        let open = file("open", line('A').as_bytes());
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(SharedKeys::load(&[open]).unwrap_err().reason.contains("may be read by others"));
    }
}
