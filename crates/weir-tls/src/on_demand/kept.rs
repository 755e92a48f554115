//! Certificates held in memory, the most recently used ones.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::sign::CertifiedKey;

use crate::certificate::{Facts, Loaded};

/// A limited number of certificates, by name. The least recently used one is evicted.
pub(super) struct Kept {
    most: usize,
    /// The interval at which use of a certificate is recorded.
    note_every: Duration,
    by_name: HashMap<Box<str>, Certificate>,
    /// Names by the number of their last use.
    turns: BTreeMap<u64, Box<str>>,
    next_turn: u64,
    /// Certificates whose use is to be recorded, and when they were used.
    used: Vec<(Box<str>, SystemTime)>,
}

struct Certificate {
    key: Arc<CertifiedKey>,
    facts: Facts,
    turn: u64,
    noted: Option<SystemTime>,
}

impl Kept {
    pub fn new(most: usize, note_every: Duration) -> Kept {
        let (by_name, turns) = Default::default();
        Kept { most: most.max(1), note_every, by_name, turns, next_turn: 0, used: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether it has a certificate for `name` that is valid at `now`.
    pub fn has(&self, name: &str, now: SystemTime) -> bool {
        self.by_name.get(name).is_some_and(|each| each.facts.is_good(now))
    }

    /// Facts about the certificate for `name`.
    pub fn facts(&self, name: &str) -> Option<&Facts> {
        self.by_name.get(name).map(|each| &each.facts)
    }

    /// The certificate for `name`, which counts as used; `None` when there is none that is valid at `now`.
    pub fn find(&mut self, name: &str, now: SystemTime) -> Option<Arc<CertifiedKey>> {
        let turn = self.next_turn;
        let found = self.by_name.get_mut(name).filter(|each| each.facts.is_good(now))?;
        self.next_turn += 1;
        let own = self.turns.remove(&std::mem::replace(&mut found.turn, turn));
        self.turns.insert(turn, own.unwrap_or_else(|| name.into()));
        let is_noted = |noted: SystemTime| now.duration_since(noted).is_ok_and(|age| age < self.note_every);
        if !found.noted.is_some_and(is_noted) && self.used.len() < self.most {
            found.noted = Some(now);
            self.used.push((name.into(), now));
        }
        Some(found.key.clone())
    }

    /// Stores a certificate for `name`; returns how many were evicted.
    pub fn put(&mut self, name: &str, loaded: Loaded) -> u64 {
        let turn = self.next_turn;
        self.next_turn += 1;
        let noted = self.by_name.get(name).and_then(|before| before.noted);
        let certificate = Certificate { key: loaded.key, facts: loaded.facts, turn, noted };
        if let Some(before) = self.by_name.insert(name.into(), certificate) {
            self.turns.remove(&before.turn);
        }
        self.turns.insert(turn, name.into());
        let mut gone = 0;
        while self.by_name.len() > self.most
            && let Some((_, oldest)) = self.turns.pop_first()
        {
            self.by_name.remove(&oldest);
            gone += 1;
        }
        gone
    }

    /// Names whose use is to be recorded, and when they were used; each is returned once.
    pub fn take_used(&mut self) -> Vec<(Box<str>, SystemTime)> {
        std::mem::take(&mut self.used)
    }
}

impl Facts {
    /// Whether the certificate is valid at `now`, as far as its validity period is known.
    pub fn is_good(&self, now: SystemTime) -> bool {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(since).unwrap_or(i64::MAX);
        self.not_after.is_none_or(|ends| now < ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(name: &str, not_after: i64) -> Loaded {
        let key = rcgen::KeyPair::generate().unwrap();
        let shown = rcgen::CertificateParams::new([name.to_owned()]).unwrap().self_signed(&key).unwrap();
        let text = format!("{}{}", key.serialize_pem(), shown.pem());
        let facts = Facts { not_after: Some(not_after), ..crate::acme::look(&text).unwrap() };
        let der = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der());
        let provider = crate::provider::of(weir_config::CipherPolicy::Default);
        let key = provider.key_provider.load_private_key(der.into()).unwrap();
        Loaded { key: Arc::new(CertifiedKey::new(vec![shown.der().clone()], key)), facts, staple: None }
    }

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn the_certificate_that_was_not_asked_for_the_longest_gives_way() {
        let mut kept = Kept::new(2, Duration::from_secs(60));
        assert_eq!(kept.put("a.example", loaded("a.example", 100)), 0);
        assert_eq!(kept.put("b.example", loaded("b.example", 100)), 0);
        assert!(kept.find("a.example", at(1)).is_some());
        assert_eq!(kept.put("c.example", loaded("c.example", 100)), 1);
        assert!(kept.find("b.example", at(1)).is_none() && kept.find("a.example", at(1)).is_some());
        // A newer one takes the place of its own.
        assert_eq!(kept.put("a.example", loaded("a.example", 200)), 0);
        assert_eq!((kept.len(), kept.turns.len()), (2, 2));
        assert!(kept.has("a.example", at(150)) && !kept.has("a.example", at(200)));
    }

    #[test]
    fn that_one_is_used_is_noted_now_and_then() {
        let mut kept = Kept::new(2, Duration::from_secs(60));
        kept.put("a.example", loaded("a.example", 1000));
        for second in [1, 2, 60] {
            kept.find("a.example", at(second));
        }
        assert_eq!(kept.take_used(), [("a.example".into(), at(1))]);
        kept.find("a.example", at(61));
        assert_eq!(kept.take_used(), [("a.example".into(), at(61))]);
        assert!(
            kept.find("a.example", at(1000)).is_none() && kept.take_used().is_empty(),
            "it is good no more"
        );
    }
}
