//! Remembers answers by which a service let requests pass, for requests about which it would be asked exactly
//! the same question.
//!
//! Of a question only a keyed hash is stored: memory holds no credentials, and nobody outside can make two
//! questions that collide.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::hmac;
use weir_config::{QuestionPart, RememberedAnswers};
use zeroize::Zeroizing;

use super::UserFacts;
use crate::seldom::Reused;

/// Shards of the memory, each with its own lock.
const SHARDS: usize = 16;
/// Most bytes of facts about a user that are stored; answers with more are not remembered.
const FACTS_BYTES: usize = 8 << 10;

/// Identifies the question that an answer belongs to.
pub(super) type Tag = [u8; 32];

/// The remembered answers of one listener or route, shared by all workers.
pub struct Remembered {
    config: RememberedAnswers,
    key: hmac::Key,
    shards: [Mutex<HashMap<Tag, Kept>>; SHARDS],
}

/// An answer that lets requests pass.
struct Kept {
    until: Duration,
    to_backend: Box<[u8]>,
    to_client: Box<[u8]>,
    name: Box<[u8]>,
}

impl Remembered {
    /// Compiles the config. `None` without randomness for the key: nothing is remembered then.
    pub fn compile(config: &RememberedAnswers) -> Option<Arc<Remembered>> {
        let mut secret = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(&mut secret[..]).ok()?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret[..]);
        Some(Arc::new(Remembered { config: config.clone(), key, shards: Default::default() }))
    }

    /// The settings in words.
    pub fn words(&self) -> String {
        let by: Vec<_> = self.config.by.iter().map(|part| part.word()).collect();
        let by = if by.is_empty() { String::new() } else { format!(" and {}", by.join(", ")) };
        format!("what lets pass is remembered for {:?}, by what the service is told{by}", self.config.ttl)
    }

    /// Whether answers are remembered separately for each value of this part of the question.
    pub(super) fn is_by(&self, part: QuestionPart) -> bool {
        self.config.by.contains(&part)
    }

    /// Begins the tag of a question.
    pub(super) fn question(&self) -> Question {
        Question(hmac::Context::with_key(&self.key))
    }

    /// Puts the facts from the answer to this question into `user`; `false` if there is no remembered answer,
    /// or it has expired by `now`.
    pub(super) fn recall(&self, tag: &Tag, now: Duration, user: &mut UserFacts) -> bool {
        let mut shard = self.shard(tag).lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = shard.get(tag) else { return false };
        if kept.until <= now {
            shard.remove(tag);
            return false;
        }
        user.clear();
        user.to_backend.extend_from_slice(&kept.to_backend);
        user.to_client.extend_from_slice(&kept.to_client);
        user.name.extend_from_slice(&kept.name);
        user.is_remembered = true;
        true
    }

    /// Remembers from `now` on that the service let this question pass, and the facts about the user. Gives
    /// how many other answers were dropped for it before they expired.
    pub(super) fn keep(&self, tag: Tag, now: Duration, user: &UserFacts) -> u64 {
        let UserFacts { to_backend, to_client, name, .. } = user;
        if to_backend.len() + to_client.len() + name.len() > FACTS_BYTES {
            return 0;
        }
        let most = (self.config.entries as usize / SHARDS).max(1);
        let mut shard = self.shard(&tag).lock().unwrap_or_else(PoisonError::into_inner);
        if shard.len() >= most {
            shard.retain(|_, kept| kept.until > now);
        }
        let mut forgotten = 0;
        if shard.len() >= most {
            forgotten = shard.len() as u64;
            // Searching for the oldest one each time would take longer than asking about all of them again.
            shard.clear();
        }
        let kept = Kept {
            until: now + self.config.ttl,
            to_backend: to_backend.as_slice().into(),
            to_client: to_client.as_slice().into(),
            name: name.as_slice().into(),
        };
        shard.insert(tag, kept);
        forgotten
    }

    fn shard(&self, tag: &Tag) -> &Mutex<HashMap<Tag, Kept>> {
        &self.shards[usize::from(tag[0]) % SHARDS]
    }
}

/// A question's parts, on their way to become a tag.
pub(super) struct Question(hmac::Context);

impl Question {
    /// Adds a part by its name. Different lists of parts never give the same input to the hash.
    pub(super) fn put(&mut self, name: &[u8], value: &[u8]) {
        for text in [name, value] {
            self.0.update(&(text.len() as u64).to_be_bytes());
            self.0.update(text);
        }
    }

    /// The tag under which the answer is stored.
    pub(super) fn tag(self) -> Tag {
        let mut tag = [0; 32];
        tag.copy_from_slice(&self.0.sign().as_ref()[..32]);
        tag
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(remembered: &Remembered, parts: &[(&str, &str)]) -> Tag {
        let mut question = remembered.question();
        parts.iter().for_each(|(name, value)| question.put(name.as_bytes(), value.as_bytes()));
        question.tag()
    }

    fn user(name: &str) -> UserFacts {
        let to_backend = format!("x-user: {name}\r\n").into_bytes();
        UserFacts { to_backend, name: name.as_bytes().to_vec(), ..UserFacts::default() }
    }

    fn recalled(remembered: &Remembered, tag: &Tag, seconds: u64) -> Option<String> {
        let mut facts = user("somebody else");
        let found = remembered.recall(tag, Duration::from_secs(seconds), &mut facts);
        assert!(!found || facts.to_backend == user(&String::from_utf8_lossy(&facts.name)).to_backend);
        found.then(|| String::from_utf8(facts.name).unwrap())
    }

    #[test]
    fn j9_an_answer_is_for_its_own_question_and_its_time() {
        let remembered = Remembered::compile(&RememberedAnswers::default()).unwrap();
        let of = |parts: &[(&str, &str)]| tag(&remembered, parts);
        let (ann, bob) = (of(&[("cookie", "id=a")]), of(&[("cookie", "id=b")]));
        remembered.keep(ann, Duration::from_secs(100), &user("ann"));
        assert_eq!(recalled(&remembered, &ann, 109).as_deref(), Some("ann"));
        assert_eq!((recalled(&remembered, &bob, 109), recalled(&remembered, &ann, 110)), (None, None));
        // Adjacent parts do not merge.
        assert_ne!(of(&[("a", "bc")]), of(&[("ab", "c")]));
        assert_ne!(of(&[("a", "b"), ("c", "d")]), of(&[("a", "bcd")]));
        assert_ne!(of(&[("a", "")]), of(&[]));
        let other = Remembered::compile(&RememberedAnswers::default()).unwrap();
        assert_ne!(tag(&other, &[("cookie", "id=a")]), ann, "each memory has a key of its own");
    }

    #[test]
    fn memory_is_bounded_by_number_and_by_size() {
        let config = RememberedAnswers { entries: 160, ..RememberedAnswers::default() };
        let remembered = Remembered::compile(&config).unwrap();
        let now = Duration::from_secs(1);
        let mut forgotten = 0;
        let held = || remembered.shards.iter().map(|shard| shard.lock().unwrap().len()).sum::<usize>();
        for number in 0..10_000_u32 {
            forgotten +=
                remembered.keep(tag(&remembered, &[("path", &number.to_string())]), now, &user("ann"));
            assert!(held() <= 160);
        }
        assert_eq!(forgotten + held() as u64, 10_000);
        let large = tag(&remembered, &[]);
        remembered.keep(large, now, &user(&"x".repeat(FACTS_BYTES)));
        assert_eq!(recalled(&remembered, &large, 1), None);
    }
}
