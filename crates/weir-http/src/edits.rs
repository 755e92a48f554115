//! Changes that the operator's rules make to a message's fields: which are dropped, and which lines are
//! added.

use crate::known::{KnownHeader, KnownSet};

/// Names of fields to drop from a message, prepared once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DroppedNames {
    known: KnownSet,
    /// All names, in lower case.
    names: Box<[Box<[u8]>]>,
    /// Bit n is set if a name has n bytes, modulo 64.
    lengths: u64,
    leaves_via: bool,
}

impl DroppedNames {
    /// Drops fields with these names. Framing and connection-specific fields are dropped anyway, and Weir
    /// writes its own whatever is listed here.
    pub fn new<'n>(names: impl IntoIterator<Item = &'n str>) -> DroppedNames {
        let names: Box<[Box<[u8]>]> =
            names.into_iter().map(|name| name.to_ascii_lowercase().into_bytes().into()).collect();
        let known = names.iter().map(|name| KnownHeader::classify(name));
        let known = known.filter(|known| *known != KnownHeader::Other);
        DroppedNames {
            known: known.fold(KnownSet::EMPTY, KnownSet::with),
            lengths: names.iter().fold(0, |lengths, name| lengths | 1 << (name.len() & 63)),
            names,
            leaves_via: false,
        }
    }

    /// The same, and Weir writes no `via`: those of others are forwarded unchanged.
    pub fn leaving_via(mut self) -> DroppedNames {
        self.known = self.known.with(KnownHeader::Via);
        self.leaves_via = true;
        self
    }

    /// Whether nothing is dropped, and Weir's own `via` is written.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && !self.leaves_via
    }

    /// Whether a field with that name is dropped, case-insensitively and with `_` equal to `-`; also among
    /// trailers.
    pub fn drops(&self, name: &[u8]) -> bool {
        self.has(name, true)
    }

    /// Whether one of the names equals this one, case-insensitively; if `folds`, `_` and `-` are also equal.
    pub(crate) fn has(&self, name: &[u8], folds: bool) -> bool {
        let same = |a: u8, b: u8| match (folds, b) {
            (true, b'_' | b'-') => matches!(a, b'_' | b'-'),
            _ => a == b.to_ascii_lowercase(),
        };
        self.lengths >> (name.len() & 63) & 1 != 0
            && self
                .names
                .iter()
                .any(|other| other.len() == name.len() && other.iter().zip(name).all(|(a, b)| same(*a, *b)))
    }
}

/// Changes to the fields of one message.
#[derive(Clone, Copy, Debug)]
pub struct FieldEdits<'a> {
    /// Fields to drop, including Weir's own.
    pub dropped: &'a DroppedNames,
    /// Lines to add, each `name: value` CRLF; no value contains a control byte.
    pub lines: &'a [u8],
    /// Rules about the values of the fields that are kept; `None` if there are none.
    pub values: Option<ValueEdits<'a>>,
}

/// Rules that replace values of fields.
pub trait ReplaceValues: std::fmt::Debug {
    /// What becomes of the value of a field with this name, whose case is as sent. `filled_in` is what the
    /// rules need to know of the request. A new value is appended to `out` and contains no control byte.
    fn replace(&self, name: &[u8], value: &[u8], filled_in: &[u8], out: &mut Vec<u8>) -> ReplacedValue;
}

/// What becomes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacedValue {
    /// It stays.
    Same,
    /// Another one takes its place.
    New,
    /// The field is left out.
    LeftOut,
}

/// Rules about values, with what they need to know of the request.
#[derive(Clone, Copy, Debug)]
pub struct ValueEdits<'a> {
    /// The rules.
    pub rules: &'a dyn ReplaceValues,
    /// What they need to know.
    pub filled_in: &'a [u8],
}

impl ValueEdits<'_> {
    /// What becomes of a value; a new one is in `new`, in place of what was there.
    pub(crate) fn of(&self, name: &[u8], value: &[u8], new: &mut Vec<u8>) -> ReplacedValue {
        new.clear();
        self.rules.replace(name, value, self.filled_in, new)
    }
}

impl<'a> FieldEdits<'a> {
    /// Known names that are dropped.
    #[inline]
    pub(crate) fn known(edits: &Option<FieldEdits<'_>>) -> KnownSet {
        edits.map_or(KnownSet::EMPTY, |edits| edits.dropped.known)
    }

    /// Whether `via` fields of others are forwarded unchanged.
    #[inline]
    pub(crate) fn leaves_via(edits: &Option<FieldEdits<'_>>) -> bool {
        edits.is_some_and(|edits| edits.dropped.leaves_via)
    }

    /// The names to compare fields with; `None` if there are none.
    #[inline]
    pub(crate) fn by_name(edits: &Option<FieldEdits<'a>>) -> Option<&'a DroppedNames> {
        edits.map(|edits| edits.dropped).filter(|dropped| !dropped.names.is_empty())
    }

    /// The rules about values.
    #[inline]
    pub(crate) fn of_values(edits: &Option<FieldEdits<'a>>) -> Option<ValueEdits<'a>> {
        edits.and_then(|edits| edits.values)
    }

    /// Each added line, with the length of its name.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&'a [u8], usize)> + use<'a> {
        self.lines.split_inclusive(|byte| *byte == b'\n').filter_map(|line| {
            let name_bytes = line.iter().position(|byte| *byte == b':')?;
            Some((line, name_bytes))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_dropped_in_any_case_and_where_asked_with_an_underscore_for_a_dash() {
        let dropped = DroppedNames::new(["X-User", "server"]);
        assert!(dropped.has(b"x-uSER", false) && dropped.has(b"Server", false));
        assert!(!dropped.has(b"x_user", false) && dropped.has(b"X_User", true));
        assert!(!dropped.has(b"x-use", true) && !dropped.has(b"x-users", true));
        assert!(dropped.known.has(KnownHeader::Server) && !dropped.is_empty());
        assert!(DroppedNames::default().is_empty() && !DroppedNames::default().leaving_via().is_empty());
    }

    #[test]
    fn lines_are_told_apart_with_their_names() {
        let dropped = DroppedNames::default();
        let edits = FieldEdits { dropped: &dropped, values: None, lines: b"a: 1\r\nb-c: x: y\r\nd: \r\n" };
        let each: Vec<_> = edits.each().collect();
        assert_eq!(each, [(&b"a: 1\r\n"[..], 1), (&b"b-c: x: y\r\n"[..], 3), (&b"d: \r\n"[..], 1)]);
    }
}
