//! **Would this value change the statement it is put into?** A screen for SQL injection.
//!
//! An injection is a value that does not stay the literal for which the application takes it: inserted into
//! the statement, it changes the statement's structure. So the screen examines each value for that: it parses
//! the value as if it stood in place of a number, right after an operand, and within each kind of quotes
//! (single and double ones, backticks, brackets), and what follows a number of unknown notation
//! ([`grammar`]). The result is recorded as facts, from which [`rules`] decides. There is no list of bad
//! words: `O'Reilly`, `1 or 2 items` and a question about `union select` stop being SQL at their second or
//! third word.
//!
//! [`decode`] undoes the encodings that can hide a value; [`request`] finds the values of a request, and
//! [`body`] decides how to read its body.

pub mod body;
mod clause;
pub mod decode;
pub mod facts;
pub mod grammar;
mod json;
mod media_type;
mod multipart;
pub mod request;
pub mod rules;
mod statement;
pub mod token;
mod words;

pub use body::{BodyKind, Unreadable};
pub use request::{Found, Location, Screen};
pub use rules::Reason;

use facts::Context;
use grammar::Frame;

/// Buffers reused from value to value.
#[derive(Default)]
pub struct Scratch {
    stack: Vec<Frame>,
    pub(crate) decoded: Vec<u8>,
    pub(crate) folded: Vec<u8>,
}

/// An injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The rule that found it.
    pub reason: Reason,
    /// The place in a statement where it works.
    pub context: Context,
}

impl Finding {
    /// The place in a statement where the value works, in words.
    pub fn context_sentence(&self) -> &'static str {
        match self.context {
            Context::Bare => "in place of a number",
            Context::Behind => "behind an operand",
            Context::Quoted(b'"') => "within double quotes",
            Context::Quoted(b'`') => "within backticks",
            Context::Quoted(b']') => "within brackets",
            Context::Quoted(_) => "within single quotes",
        }
    }
}

/// Judges one value as the application sees it, after decoding. `None`: it stays a literal. O(n) in time.
pub fn judge(value: &[u8], scratch: &mut Scratch) -> Option<Finding> {
    if value
        .iter()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'~' | b':'))
    {
        return None;
    }
    let mut read = |at: usize, context: Context| {
        let facts = grammar::read(value, at, context, &mut scratch.stack);
        let head = match context {
            Context::Quoted(_) => value.get(..at.saturating_sub(1)).unwrap_or_default(),
            _ => b"",
        };
        rules::decide(&facts, context, head).map(|reason| Finding { reason, context })
    };
    for quote in [b'\'', b'"', b'`', b']'] {
        let mut last = None;
        for at in ends_of_string(value, quote).into_iter().flatten() {
            if last.replace(at) != Some(at)
                && let Some(found) = read(at, Context::Quoted(quote))
            {
                return Some(found);
            }
        }
    }
    let found = read(0, Context::Bare).or_else(|| read(0, Context::Behind));
    found.or_else(|| read(behind_front(value)?, Context::Behind))
}

/// Longest text that can stand for a number, in bytes.
const LONGEST_FRONT: usize = 64;

/// Where the statement may continue after something that stands for a number and may have a notation unknown
/// here: `{d '2026-01-01'} union select …`. A value that begins with a letter is text.
fn behind_front(value: &[u8]) -> Option<usize> {
    const WORDS: [&[u8]; 2] = [b"union", b"waitfor"];
    if value.first().is_none_or(u8::is_ascii_alphabetic) {
        return None;
    }
    let begins = |at: usize| {
        WORDS
            .iter()
            .any(|word| value[at..].get(..word.len()).is_some_and(|text| text.eq_ignore_ascii_case(word)))
    };
    (1..value.len().min(LONGEST_FRONT)).find(|&at| {
        !value[at - 1].is_ascii_alphabetic() && matches!(value[at] | 0x20, b'u' | b'w') && begins(at)
    })
}

/// Where a string that begins before `value` may end: after its first quote; after the first that is not
/// doubled; after the first without a backslash. Databases differ in which of these are escapes.
fn ends_of_string(value: &[u8], quote: u8) -> [Option<usize>; 3] {
    let Some(first) = value.iter().position(|&byte| byte == quote) else { return [None; 3] };
    let mut ends = [Some(first + 1), None, None];
    let mut at = first;
    while let Some(&byte) = value.get(at) {
        if byte != quote {
            at += 1;
        } else if value.get(at + 1) == Some(&quote) {
            at += 2;
        } else {
            ends[1] = Some(at + 1);
            break;
        }
    }
    let mut at = 0;
    while let Some(&byte) = value.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if byte != quote => at += 1,
            _ if value.get(at + 1) == Some(&quote) => at += 2,
            _ => {
                ends[2] = Some(at + 1);
                break;
            }
        }
    }
    ends
}
