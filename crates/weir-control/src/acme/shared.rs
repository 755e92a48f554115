//! Proofs shared by several Weirs with one store: each writes its proofs into the store before it asks the
//! authority to validate, so that another Weir that gets the validation request can answer it.
//!
//! Proofs are in the folder `challenges` beside the certificates, one file each. A Weir that is asked for an
//! unknown proof reads all of them, at most once per [`LOOK_EVERY`], whatever it is asked for; nothing that a
//! client sends becomes part of a path. Nothing is read while nobody asks.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::OFlags;
use tokio::task::JoinHandle;
use weir_config::{Acme, AcmeChallenge};
use weir_tls::acme::{Challenges, PROOF_BYTES, SharedProof};

use crate::blocking::blocking;
use crate::{lock, store, tasks};

/// Least interval between two look-ups.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest wait for a look-up: the disk may be behind a network that is down.
const LONGEST_LOOK: Duration = Duration::from_secs(2);
/// Interval of look-ups while proofs are found, so that they are not presented for long after they were
/// removed.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// Most proofs that are read from one store (count); each order has one for each of its domains.
const MOST_PROOFS: usize = 1_000;
/// A proof exists for some minutes; older ones were left by a Weir that was killed.
const LEFT_AFTER: Duration = Duration::from_secs(3_600);

const FOLDER: &str = "challenges";
const EXTENSION: &str = "proof";

/// Looks up proofs as long as there are stores to look in.
#[derive(Default)]
pub(super) struct SharedProofs {
    folders: Arc<Mutex<Vec<PathBuf>>>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl SharedProofs {
    /// Looks in the stores of these from now on, each given with the challenge types that it can use.
    pub fn adopt(&self, wanted: &[(Acme, Vec<AcmeChallenge>)], challenges: &Arc<Challenges>) {
        let has = |way| wanted.iter().any(|(_, ways)| ways.contains(&way));
        let (tokens, handshakes) = (has(AcmeChallenge::Http01), has(AcmeChallenge::TlsAlpn01));
        let is_shown = |ways: &[AcmeChallenge]| ways.iter().any(|way| *way != AcmeChallenge::Dns01);
        let shown = wanted.iter().filter(|(_, ways)| is_shown(ways));
        let mut folders: Vec<PathBuf> = shown.map(|(acme, _)| folder(acme)).collect();
        folders.sort_unstable();
        folders.dedup();
        *lock(&self.folders) = folders;
        challenges.look_for(tokens, handshakes);
        let mut task = lock(&self.task);
        if (tokens || handshakes) && task.as_ref().is_none_or(JoinHandle::is_finished) {
            let (folders, challenges) = (self.folders.clone(), challenges.clone());
            let begin = move || serve(folders.clone(), challenges.clone());
            *task = Some(tokio::spawn(tasks::keep_on("looks for shared challenges".to_owned(), begin)));
        }
    }

    /// Ends all look-ups, and releases those that wait for one.
    pub fn stop(&self, challenges: &Challenges) {
        challenges.look_for(false, false);
        if let Some(task) = lock(&self.task).take() {
            task.abort();
        }
    }
}

fn folder(acme: &Acme) -> PathBuf {
    weir_tls::acme::folder(acme).join(FOLDER)
}

async fn serve(folders: Arc<Mutex<Vec<PathBuf>>>, challenges: Arc<Challenges>) {
    let under_way = Arc::<AtomicBool>::default();
    let mut is_any = false;
    loop {
        let again = if is_any { LOOK_AGAIN } else { Duration::MAX };
        let asked = tokio::time::timeout(again, challenges.asked()).await;
        let begun = Instant::now();
        // A second look-up does not wait for one that hangs.
        if !under_way.swap(true, Ordering::AcqRel) {
            let (folders, challenges) = (lock(&folders).clone(), challenges.clone());
            let ended = Ended(under_way.clone());
            let looked = blocking(move || {
                let _ended = ended;
                challenges.take_found(look(&folders))
            });
            match tokio::time::timeout(LONGEST_LOOK, looked).await {
                Ok(Ok(found)) => is_any = found,
                Ok(Err(error)) => tracing::warn!(%error, "the store could not be looked into for challenges"),
                Err(_) => {
                    tracing::warn!("the store does not say within {LONGEST_LOOK:?} which challenges it has")
                }
            }
        }
        drop(asked);
        tokio::time::sleep(LOOK_EVERY.saturating_sub(begun.elapsed())).await;
    }
}

struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// All proofs in these folders, later ones last.
fn look(folders: &[PathBuf]) -> Vec<SharedProof> {
    let mut found = Vec::new();
    for folder in folders.iter().filter(|folder| is_folder(folder)) {
        refresh(folder);
        found.extend(files(folder).into_iter().filter_map(|(written, file)| {
            // If one was removed meanwhile, that is not an error.
            let text = read(&file).ok()?;
            Some((written, SharedProof::parse(&text)?))
        }));
    }
    found.sort_by_key(|(written, _)| *written);
    found.into_iter().map(|(_, proof)| proof).collect()
}

fn is_folder(folder: &Path) -> bool {
    fs::symlink_metadata(folder).is_ok_and(|found| found.is_dir())
}

/// Makes an NFS client ask its server for the folder's content: it caches that for half a minute, but drops
/// the cache when it changes the folder itself.
fn refresh(folder: &Path) {
    let look = folder.join(format!("{:016x}.look", random()));
    let made = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&look);
    if made.is_ok() {
        let _ = fs::remove_file(&look);
    }
}

/// The files with proofs, and when they were written.
fn files(folder: &Path) -> Vec<(SystemTime, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let paths =
        entries.map(|entry| entry.path()).filter(|path| path.extension() == Some(OsStr::new(EXTENSION)));
    paths.take(MOST_PROOFS).filter_map(|path| Some((written(&path)?, path))).collect()
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(path).and_then(|found| found.modified()).ok()
}

/// The text of a regular file, without following a link.
fn read(path: &Path) -> io::Result<String> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() || found.len() > PROOF_BYTES {
        return Err(io::Error::other("it is no file of a proof"));
    }
    let mut text = String::new();
    file.take(PROOF_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// A number that no other Weir will have.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// A proof in the store, which is removed when this is dropped.
#[must_use = "the proof is in the store for as long as this is kept"]
pub(super) struct Published(PathBuf);

impl Drop for Published {
    fn drop(&mut self) {
        if let Err(error) = store::remove(&self.0) {
            tracing::warn!(%error, "a challenge that is over could not be removed from the store");
        }
    }
}

/// Writes a proof into the store. `None` if that fails: this Weir can present it all the same.
pub(super) async fn publish(acme: &Acme, proof: &SharedProof) -> Option<Published> {
    let Some(text) = proof.to_text() else {
        tracing::warn!(
            "the authority has a challenge of an unusual form: other Weirs with this store can't meet it"
        );
        return None;
    };
    let folder = folder(acme);
    let path = folder.join(format!("{:016x}.{EXTENSION}", random()));
    let swept = blocking({
        let folder = folder.clone();
        move || {
            store::make_folder(&folder)?;
            sweep(&folder);
            Ok::<_, io::Error>(())
        }
    });
    let made = swept.await.unwrap_or_else(Err);
    // Created now, so that an incomplete file is removed as well.
    let published = Published(path.clone());
    let written = match made {
        Ok(()) => store::write(path, text.into_bytes()).await,
        Err(error) => Err(error),
    };
    match written {
        Ok(()) => Some(published),
        Err(error) => {
            tracing::warn!(%error, "a challenge could not be written: other Weirs with this store can't meet it");
            None
        }
    }
}

/// Removes what killed Weirs have left.
fn sweep(folder: &Path) {
    let is_old = |written: &SystemTime| written.elapsed().is_ok_and(|age| age > LEFT_AFTER);
    for (_, path) in files(folder).iter().filter(|(written, _)| is_old(written)) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::symlink;

    use super::*;

    fn acme(name: &str) -> Acme {
        let store = std::env::temp_dir().join(format!("weir-shared-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&store);
        Acme { directory: "https://ca.example/dir".to_owned(), store, ..Acme::default() }
    }

    fn token(name: &str) -> SharedProof {
        SharedProof::Token { token: name.to_owned(), authorization: format!("{name}.thumb") }
    }

    #[tokio::test]
    async fn a_proof_is_in_the_store_until_it_is_over_and_what_was_left_is_swept() {
        let acme = acme("published");
        let folder = folder(&acme);
        let first = publish(&acme, &token("one")).await.unwrap();
        let second = publish(&acme, &token("two")).await.unwrap();
        let mut found = look(std::slice::from_ref(&folder));
        found.sort_by_key(|proof| format!("{proof:?}"));
        assert_eq!(found, [token("one"), token("two")]);
        drop(first);
        assert_eq!(look(std::slice::from_ref(&folder)), [token("two")]);
        let old = SystemTime::now() - LEFT_AFTER - Duration::from_secs(9);
        File::options().write(true).open(&second.0).unwrap().set_modified(old).unwrap();
        let third = publish(&acme, &token("three")).await.unwrap();
        assert_eq!(look(std::slice::from_ref(&folder)), [token("three")]);
        drop((second, third));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "nothing is left");
        fs::remove_dir_all(&acme.store).unwrap();
    }

    /// Threat J34.
    #[tokio::test]
    async fn j34_no_link_is_followed_and_nothing_but_a_file_of_a_proof_is_read() {
        let acme = acme("links");
        let folder = folder(&acme);
        store::make_folder(&folder).unwrap();
        let elsewhere = acme.store.join("elsewhere");
        fs::write(&elsewhere, token("linked").to_text().unwrap()).unwrap();
        symlink(&elsewhere, folder.join("a.proof")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.join("b.proof"),
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        fs::create_dir(folder.join("c.proof")).unwrap();
        fs::write(folder.join("d.proof"), " ".repeat(PROOF_BYTES as usize + 1)).unwrap();
        fs::write(folder.join("e.proof"), [0xff; 9]).unwrap();
        fs::write(folder.join("f.other"), token("other").to_text().unwrap()).unwrap();
        fs::write(folder.join("g.proof"), token("good").to_text().unwrap()).unwrap();
        assert_eq!(look(std::slice::from_ref(&folder)), [token("good")]);
        let linked = acme.store.join("linked");
        symlink(&folder, &linked).unwrap();
        assert_eq!(look(&[linked, acme.store.join("nowhere")]), []);
        fs::remove_dir_all(&acme.store).unwrap();
    }
}
