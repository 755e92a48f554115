//! Decides which fields of a message are kept, and with which value.

use super::{Underscores, coding};
use crate::edits::{DroppedNames, ReplacedValue, ValueEdits};
use crate::known::{KnownHeader, KnownSet};
use crate::message::{FieldLine, Fields, UNDERSCORED};
use crate::scan;
use crate::sink::FieldSink;

/// Which fields of a message are dropped.
pub(super) struct KeepRule<'a> {
    pub dropped: KnownSet,
    pub flags: u8,
    pub by_name: Option<&'a DroppedNames>,
    pub underscores: Underscores,
    /// The content is encoded on the way: fields that describe its bytes are dropped.
    pub recoded: bool,
    pub values: Option<ValueEdits<'a>>,
}

impl KeepRule<'_> {
    /// Whether it drops none of these fields.
    #[inline]
    pub fn keeps_all(&self, fields: &Fields) -> bool {
        fields.seen.intersection(self.dropped).is_empty()
            && fields.any_flags & self.flags == 0
            && self.by_name.is_none()
            && self.values.is_none()
            && !self.recoded
    }

    #[inline]
    pub fn drops(&self, line: &FieldLine, buffer: &[u8]) -> bool {
        self.dropped.has(line.known)
            || line.flags & self.flags != 0
            || self.by_name.is_some_and(|names| self.is_edited(names, line, buffer))
            || (self.recoded && coding::describes_ranges(line, buffer))
    }

    /// What becomes of a field: a new value is in `new`.
    #[inline]
    pub fn outcome(&self, line: &FieldLine, buffer: &[u8], new: &mut Vec<u8>) -> ReplacedValue {
        match &self.values {
            _ if self.drops(line, buffer) => ReplacedValue::LeftOut,
            None => ReplacedValue::Same,
            Some(values) => values.of(line.name.of(buffer), line.value.of(buffer), new),
        }
    }

    /// Whether rules drop this field by a name that is not a known one.
    #[inline]
    fn is_edited(&self, names: &DroppedNames, line: &FieldLine, buffer: &[u8]) -> bool {
        // Backends may read `_` as `-`, also in names that then are known ones.
        let folds = self.underscores == Underscores::DropTwins;
        let may_be = line.known == KnownHeader::Other || line.flags & UNDERSCORED != 0;
        may_be && names.has(line.name.of(buffer), folds)
    }
}

/// Writes a kept field in Weir's form, if it was not stored in it.
#[inline]
pub(super) fn put_kept(line: &FieldLine, buffer: &[u8], sink: &mut impl FieldSink) {
    let value = line.value.of(buffer);
    match line.known {
        KnownHeader::ContentLength => match scan::decimal(value) {
            Some(length) => sink.number(b"content-length", length),
            None => sink.field(b"content-length", value),
        },
        _ => sink.field(line.name.of(buffer), value),
    }
}
