//! Records in the store which certificates ordered on demand are used, beside each of them, so that after a
//! restart those that clients ask for are renewed, and no others.
//!
//! The record for `FILE.pem` is `FILE.pem.used`, an empty file with the time of last use as its modification
//! time.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use weir_config::Acme;
use weir_tls::on_demand::{OnDemand, Stored};

use crate::acme::schedule::{self, Life};
use crate::blocking::blocking;
use crate::store;

/// Certificates that need attention.
#[derive(Default)]
pub(super) struct Found {
    /// Names whose certificates are to be renewed.
    pub due: Vec<String>,
    /// Certificates in the store that differ from those in memory.
    pub newer: Vec<(String, Stored)>,
}

/// Records that certificates are used. If one can't be recorded it will not be renewed after a restart unless
/// somebody asks for it; this is logged, and the certificate is still served.
pub(super) async fn note(acme: &Acme, used: Vec<(Box<str>, SystemTime)>) {
    let note = |name: &str| note_of(&weir_tls::acme::file(&acme.of_name(name)));
    let notes: Vec<_> = used.iter().map(|(name, when)| (note(name), *when)).collect();
    let noting = blocking(move || {
        for (note, when) in notes {
            if let Err(error) = store::touch(&note, when) {
                tracing::warn!(%error, "that a certificate is used could not be noted");
            }
        }
    });
    if let Err(error) = noting.await {
        tracing::warn!(%error, "that certificates are used could not be noted");
    }
}

fn note_of(file: &Path) -> PathBuf {
    let mut note = file.as_os_str().to_owned();
    note.push(".used");
    note.into()
}

/// Checks everything that was used recently. Blocks on the disk.
pub(super) fn look(on_demand: &OnDemand) -> Found {
    let mut found = Found::default();
    let folder = weir_tls::acme::folder(on_demand.acme());
    let now = SystemTime::now();
    let is_lately = |noted: SystemTime| {
        now.duration_since(noted).map_or(true, |age| age < on_demand.settings().renew_used_within)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let note = entry.path();
        if note.extension().is_none_or(|it| it != "used") || !store::written(&note).is_some_and(is_lately) {
            continue;
        }
        let file = note.with_extension("");
        let stored = match Stored::load(&file) {
            Ok(stored) => stored,
            // It has expired, or is gone: it will be ordered when it is asked for.
            Err(error) => {
                tracing::debug!(%error, "no certificate to renew");
                continue;
            }
        };
        // A record beside another file does not concern a certificate of ours.
        let is_own = |name: &&String| weir_tls::acme::file(&on_demand.acme().of_name(name)) == file;
        let Some(name) = stored.facts().names.iter().find(is_own).cloned() else { continue };
        if !on_demand.takes(&name) {
            continue;
        }
        on_demand.found(&name);
        if is_due(&stored, &name, now) {
            found.due.push(name.clone());
        }
        if on_demand.is_older(&name, stored.facts()) {
            found.newer.push((name, stored));
        }
    }
    found
}

/// Whether a certificate is due for renewal.
pub(super) fn is_due(stored: &Stored, name: &str, now: SystemTime) -> bool {
    due(stored, name, now).is_some_and(|due| due <= now)
}

/// When it is due for renewal; `None` if it has no expiry time.
fn due(stored: &Stored, name: &str, now: SystemTime) -> Option<SystemTime> {
    let facts = stored.facts();
    let life = Life::of(facts, store::written(&facts.file)?, now)?;
    Some(schedule::renewal(life, None, draw_of(name)))
}

/// A number from 0 to 1 that is always the same for a name, so that each check finds the same time.
fn draw_of(name: &str) -> f64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_a_draw_of_its_own_that_stays() {
        let draws = ["a.example", "b.example", "c.example"].map(draw_of);
        assert!(draws.iter().all(|draw| (0.0..1.0).contains(draw)));
        assert!(draws[0] != draws[1] && draws[1] != draws[2]);
        assert_eq!(draws[0], draw_of("a.example"));
    }
}
