//! A claim on one thing in a store that several hosts share: a file that only one process can create, which
//! names its holder and is rewritten as long as it is held.
//!
//! The kernel's own locks do not work across hosts on every file system. A claim that its holder does not
//! renew expires after [`STALE_AFTER`], by the clock of the process that waits: clocks need not agree. If the
//! holder was a process of this host, the kernel's lock, which accompanies each claim, has already shown that
//! it is gone.
//!
//! Two processes may believe that they hold a claim if one was stopped for that long and then continues. Then
//! a certificate is ordered twice, and each file is still complete.

use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::blocking::blocking;
use crate::timestamp::Timestamp;

/// Interval at which a holder rewrites its claim.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Time without a change after which a waiting process takes over a claim.
const STALE_AFTER: Duration = Duration::from_secs(60);
/// Interval at which a waiting process looks at another's claim.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Largest file with a claim, in bytes.
const CLAIM_BYTES: u64 = 4 << 10;

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Claim {
    /// Identifies the host and its boot.
    host: String,
    process: u32,
    /// Distinguishes the claims of one process.
    number: u64,
    /// How often it was renewed.
    renewals: u64,
    /// When it was last renewed, by the clock of its host; only for information.
    at: String,
}

impl Claim {
    fn of(host: &str) -> Claim {
        let number = RandomState::new().hash_one(0u8);
        let claim = Claim {
            host: host.to_owned(),
            process: std::process::id(),
            number,
            renewals: 0,
            at: String::new(),
        };
        claim.renewed(0)
    }

    fn renewed(&self, renewals: u64) -> Claim {
        Claim { renewals, at: Timestamp::now().rfc3339(), ..self.clone() }
    }

    fn is_same(&self, other: &Claim) -> bool {
        (&self.host, self.number) == (&other.host, other.number)
    }

    fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A claim that is held; released when dropped.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    claim: Claim,
    renewing: JoinHandle<()>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.renewing.abort();
        if read(&self.path).is_ok_and(|(_, claim)| claim.is_some_and(|claim| claim.is_same(&self.claim))) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Lease {
    /// Waits until nobody else has claimed `path`. `is_alone` means that any earlier holder on this host is
    /// gone, which is proved by the kernel's lock that we hold.
    ///
    /// # Errors
    /// The store can't be written.
    pub async fn take(path: &Path, is_alone: bool) -> io::Result<Lease> {
        Lease::take_as(&host(), path, is_alone, STALE_AFTER).await
    }

    async fn take_as(host: &str, path: &Path, is_alone: bool, stale_after: Duration) -> io::Result<Lease> {
        let claim = Claim::of(host);
        let mut seen: Option<(Vec<u8>, Instant)> = None;
        loop {
            let (own, at) = (claim.clone(), path.to_owned());
            let before = seen.clone();
            let left = move || {
                let (text, other) = match make(&at, &own) {
                    Ok(()) => return Ok(None),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read(&at)?,
                    Err(error) => return Err(error),
                };
                let is_gone = is_alone && other.is_some_and(|other| other.host == own.host);
                let is_stale =
                    before.is_some_and(|(last, since)| last == text && since.elapsed() >= stale_after);
                if is_gone || is_stale {
                    take_away(&at, &text)?;
                }
                Ok(Some(text))
            };
            match blocking(left).await.unwrap_or_else(Err) {
                Ok(None) => {
                    let renewing = tokio::spawn(renew(path.to_owned(), claim.clone()));
                    return Ok(Lease { path: path.to_owned(), claim, renewing });
                }
                // It was released meanwhile.
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && path.parent().is_some_and(Path::is_dir) => {
                }
                Err(error) => {
                    return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())));
                }
                Ok(Some(text)) if seen.as_ref().is_none_or(|(last, _)| *last != text) => {
                    if seen.is_none() {
                        tracing::debug!(claim = %path.display(), "another host has claimed this: waiting");
                    }
                    seen = Some((text, Instant::now()));
                    // A claim that was left on this host has been removed by now.
                    if is_alone {
                        continue;
                    }
                }
                Ok(Some(_)) => {}
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Creates the complete file, unless it exists.
fn make(path: &Path, claim: &Claim) -> io::Result<()> {
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    // Not synced, since no holder survives a power failure. An NFS client writes the file when it is closed.
    file.write_all(&claim.text()).inspect_err(|_| drop(fs::remove_file(path)))
}

/// The content of the file, and the claim in it: `None` while it is incomplete.
fn read(path: &Path) -> io::Result<(Vec<u8>, Option<Claim>)> {
    let text = weir_tls::read_regular(path, CLAIM_BYTES)?;
    let claim = serde_json::from_slice(&text).ok();
    Ok((text, claim))
}

/// Removes the claim with the content `text`. If several processes try, one succeeds; a claim that has
/// changed meanwhile is put back.
fn take_away(path: &Path, text: &[u8]) -> io::Result<()> {
    let aside = path.with_extension(format!("{:016x}.over", RandomState::new().hash_one(0u8)));
    match fs::rename(path, &aside) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        renamed => renamed?,
    }
    let is_it = read(&aside).is_ok_and(|(now, _)| now == text);
    if !is_it {
        // Another process that has created one meanwhile holds the claim.
        let _ = fs::hard_link(&aside, path);
    } else {
        tracing::info!(claim = %path.display(), "the claim of a Weir that is gone is taken over");
    }
    fs::remove_file(&aside)
}

/// Renews a claim for as long as it is ours.
async fn renew(path: PathBuf, claim: Claim) {
    for renewals in 1.. {
        tokio::time::sleep(RENEW_EVERY).await;
        let (path, claim) = (path.clone(), claim.renewed(renewals));
        let name = path.display().to_string();
        match blocking(move || write_again(&path, &claim)).await.unwrap_or_else(Err) {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(claim = name, "another Weir has taken over what this one is about");
                return;
            }
            Err(error) => tracing::warn!(claim = name, %error, "a claim could not be renewed"),
        }
    }
}

/// Whether it was ours to write.
fn write_again(path: &Path, claim: &Claim) -> io::Result<bool> {
    match read(path) {
        Ok((_, Some(there))) if there.is_same(claim) => {}
        Ok((_, Some(_))) => return Ok(false),
        // Another process is writing the file.
        Ok((_, None)) => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(make(path, claim).is_ok()),
        Err(error) => return Err(error),
    }
    let next = path.with_extension(format!("{:016x}.next", claim.number));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&next)?;
    file.write_all(&claim.text())?;
    drop(file);
    fs::rename(&next, path).map(|()| true).inspect_err(|_| drop(fs::remove_file(&next)))
}

/// Identifies this boot of this host.
fn host() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    match boot.trim() {
        // Then no other process counts as being on this host.
        "" => format!("{:016x}", RandomState::new().hash_one(std::process::id())),
        boot => boot.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("weir-lease-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder.join("shop.claim")
    }

    fn count(path: &Path) -> usize {
        fs::read_dir(path.parent().unwrap()).unwrap().count()
    }

    fn ends(path: &Path) {
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    async fn takes_at_once(host: &str, path: &Path, is_alone: bool, stale_after: Duration) -> Option<Lease> {
        let take = Lease::take_as(host, path, is_alone, stale_after);
        tokio::time::timeout(Duration::from_secs(5), take).await.ok().map(Result::unwrap)
    }

    #[tokio::test]
    async fn one_host_has_it_until_it_gives_it_up() {
        let path = place("given-up");
        let held = takes_at_once("one", &path, true, STALE_AFTER).await.unwrap();
        let mut other = std::pin::pin!(Lease::take_as("two", &path, true, STALE_AFTER));
        assert!(tokio::time::timeout(Duration::from_millis(100), other.as_mut()).await.is_err());
        drop(held);
        let other = other.await.unwrap();
        assert_eq!(read(&path).unwrap().1.unwrap().host, "two");
        drop(other);
        assert_eq!(count(&path), 0, "nothing is left");
        ends(&path);
    }

    #[tokio::test]
    async fn a_claim_of_a_process_of_this_host_that_is_gone_is_taken_over_at_once() {
        let path = place("gone");
        make(&path, &Claim::of("one")).unwrap();
        assert!(takes_at_once("one", &path, true, STALE_AFTER).await.is_some());
        make(&path, &Claim::of("one")).unwrap();
        let unsure = tokio::time::timeout(
            Duration::from_millis(100),
            Lease::take_as("one", &path, false, STALE_AFTER),
        );
        assert!(unsure.await.is_err(), "nobody has said that it is gone");
        ends(&path);
    }

    #[tokio::test]
    async fn a_claim_that_is_not_renewed_is_taken_over_and_one_that_is_renewed_is_not() {
        let path = place("stale");
        let claim = Claim::of("one");
        make(&path, &claim).unwrap();
        let taken = takes_at_once("two", &path, true, Duration::ZERO).await.unwrap();
        assert!(!write_again(&path, &claim.renewed(1)).unwrap(), "who comes back finds that it has lost it");
        drop(taken);
        // Half of one, which was left, is taken over as well.
        fs::write(&path, "{\"host\"").unwrap();
        drop(takes_at_once("two", &path, true, Duration::ZERO).await.unwrap());
        assert_eq!(count(&path), 0);
        // What is another one by the time that it is taken away stays.
        make(&path, &claim).unwrap();
        assert!(write_again(&path, &claim.renewed(1)).unwrap());
        take_away(&path, &claim.text()).unwrap();
        assert_eq!((read(&path).unwrap().1.unwrap().renewals, count(&path)), (1, 1));
        ends(&path);
    }

    #[tokio::test]
    async fn a_claim_in_a_folder_that_is_not_there_is_a_mistake_that_is_named() {
        let error = Lease::take(Path::new("/proc/nowhere/shop.claim"), true).await.unwrap_err();
        assert!(error.to_string().contains("/proc/nowhere"), "{error}");
    }
}
