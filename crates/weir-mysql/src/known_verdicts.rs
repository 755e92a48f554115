//! Caches the verdicts on texts that one worker has classified before. An application repeats a handful of
//! statements, and classifying one costs more than everything else that is done with it.
//!
//! A text is stored and compared as a whole. Texts that may contain a password, such as CREATE USER, are not
//! stored, nor are texts that have occurred only once.

use std::cell::RefCell;

use crate::classify::classify;
use crate::lexer::SqlDialect;
use crate::verdict::{SessionFacts, StatementKind, StatementVerdict};

/// Most texts that are stored (count).
const MOST: usize = 256;
/// The longest text that is stored, in bytes; [`MOST`] of them take 128 KiB.
const LONGEST: usize = 512;

/// The cached verdicts of a worker.
#[derive(Debug, Default)]
pub struct KnownVerdicts(RefCell<Vec<VerdictSlot>>);

/// A slot. The hash of a text selects its slot, which it may share with other texts.
#[derive(Debug, Default)]
struct VerdictSlot {
    /// The hash of the last text in this slot that is not the stored one. A text is stored only when it comes
    /// twice in a row here. So texts that occur once, each with a different number in them, evict nothing.
    seen: u64,
    known: Option<KnownVerdict>,
}

#[derive(Debug)]
struct KnownVerdict {
    hash: u64,
    text: Box<[u8]>,
    dialect: SqlDialect,
    /// The verdict without any session facts except the dialect.
    verdict: StatementVerdict,
}

impl KnownVerdicts {
    /// The result of [`classify`] for this text. Allocates when a text is stored.
    pub fn classify(&self, text: &[u8], facts: &SessionFacts) -> StatementVerdict {
        if text.len() > LONGEST {
            return classify(text, facts);
        }
        let hash = hash(text);
        let mut places = self.0.borrow_mut();
        if places.is_empty() {
            places.resize_with(MOST, VerdictSlot::default);
        }
        let place = (hash >> 32) as usize % MOST;
        let Some(place) = places.get_mut(place) else { return classify(text, facts) };
        if let Some(known) = &place.known
            && known.hash == hash
            && known.dialect == facts.dialect
            && *known.text == *text
        {
            return known.verdict.under(facts);
        }
        let dialect = facts.dialect;
        let verdict = classify(text, &SessionFacts { dialect, ..SessionFacts::default() });
        if std::mem::replace(&mut place.seen, hash) == hash && may_be_remembered(verdict.kind) {
            place.known = Some(KnownVerdict { hash, text: text.into(), dialect, verdict });
        }
        verdict.under(facts)
    }
}

/// Whether statements of this kind never contain a password.
fn may_be_remembered(kind: StatementKind) -> bool {
    use StatementKind::{Begin, End, Savepoint, Select, Show, Use, Write};
    matches!(kind, Select | Show | Write | Begin | End | Savepoint | Use)
}

/// A fast hash for texts. Someone who constructs collisions only makes the texts be classified each time, as
/// without the cache.
fn hash(text: &[u8]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let mix = |hash: u64, next: u64| {
        let mixed = (hash ^ next).wrapping_mul(ODD);
        mixed ^ (mixed >> 29)
    };
    let (eights, rest) = text.as_chunks::<8>();
    let hash = eights.iter().fold(text.len() as u64, |hash, eight| mix(hash, u64::from_le_bytes(*eight)));
    let last = rest.iter().fold(0, |last, byte| last << 8 | u64::from(*byte));
    mix(mix(hash, last), ODD)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClientCharset, OpenTransaction, SplitAccess, SqlMode};

    const TEXTS: [&str; 12] = [
        "SELECT a FROM t WHERE b = 'c'",
        "SELECT \"a\" FROM t",
        "SELECT LAST_INSERT_ID()",
        "SELECT f(1), COUNT (*) FROM t",
        "/* weir: primary */ SELECT 1",
        "/* weir: secondary */ SELECT f(1)",
        "INSERT INTO t VALUES ('a\\', 1)",
        "BEGIN",
        "COMMIT AND CHAIN",
        "COMMIT; DELETE FROM t",
        "CREATE TABLE t (a INT)",
        "",
    ];

    fn all_facts() -> Vec<SessionFacts> {
        let mut all = Vec::new();
        for mode in ["", "ANSI_QUOTES", "IGNORE_SPACE", "NO_BACKSLASH_ESCAPES", "ORACLE"] {
            for charset in ["utf8mb4", "gbk", "nonsense"] {
                for access in [SplitAccess::Auto, SplitAccess::ReadWrite, SplitAccess::ReadOnly] {
                    for transaction in
                        [OpenTransaction::None, OpenTransaction::ReadOnly, OpenTransaction::ReadWrite]
                    {
                        for (autocommit, is_in_own_schema) in [(true, false), (false, false), (true, true)] {
                            let dialect = SqlDialect {
                                charset: ClientCharset::named(charset),
                                mode: SqlMode::read(mode),
                            };
                            all.push(SessionFacts {
                                access,
                                transaction,
                                autocommit,
                                dialect,
                                is_in_own_schema,
                            });
                        }
                    }
                }
            }
        }
        all
    }

    fn count(known: &KnownVerdicts) -> usize {
        known.0.borrow().iter().filter(|place| place.known.is_some()).count()
    }

    #[test]
    fn a_text_that_is_known_has_the_verdict_of_one_that_is_read() {
        let known = KnownVerdicts::default();
        for facts in all_facts() {
            for text in TEXTS {
                for _ in 0..3 {
                    let text = text.as_bytes();
                    assert_eq!(known.classify(text, &facts), classify(text, &facts), "{text:?} {facts:?}");
                }
            }
        }
    }

    #[test]
    fn texts_that_come_once_turn_nothing_out() {
        let (known, facts) = (KnownVerdicts::default(), SessionFacts::default());
        for _ in 0..2 {
            known.classify(b"COMMIT", &facts);
        }
        for number in 0..20 * MOST {
            known.classify(format!("SELECT {number}").as_bytes(), &facts);
        }
        assert_eq!(count(&known), 1);
    }

    #[test]
    fn neither_what_is_long_nor_what_may_name_a_password_is_remembered() {
        let (known, facts) = (KnownVerdicts::default(), SessionFacts::default());
        let long = format!("SELECT '{}'", "a".repeat(LONGEST));
        for text in
            [&*long, "CREATE USER u IDENTIFIED BY 'p'", "SET PASSWORD = 'p'", "GRANT ALL ON a.* TO b", "x"]
        {
            for _ in 0..3 {
                known.classify(text.as_bytes(), &facts);
            }
        }
        assert_eq!(count(&known), 0);
    }

    #[test]
    fn no_more_is_remembered_than_there_are_places() {
        let (known, facts) = (KnownVerdicts::default(), SessionFacts::default());
        for number in 0..20 * MOST {
            for _ in 0..2 {
                known.classify(format!("SELECT {number}").as_bytes(), &facts);
            }
        }
        assert!((MOST / 2..=MOST).contains(&count(&known)), "{}", count(&known));
    }
}
