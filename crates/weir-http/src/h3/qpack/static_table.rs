//! The static table, known to both sides (RFC 9204 §3.1), and a lookup from a field to its index.

use super::static_entries::ENTRIES;
use crate::known;

/// The entry with that index; `None` above 98.
#[inline]
pub(super) fn entry(index: u64) -> Option<(&'static [u8], &'static [u8])> {
    ENTRIES.get(usize::try_from(index).ok()?).copied()
}

/// The table entry for a field: one with its name and value, or one with its name only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    /// Name and value.
    Field(u8),
    /// The name only.
    Name(u8),
    /// Neither.
    Nothing,
}

/// Looks up a field, its name case-insensitively. Takes a few comparisons for any field.
#[inline]
pub(super) fn find(name: &[u8], value: &[u8]) -> Match {
    let Some(slot) = find_name(name) else { return Match::Nothing };
    for (first, count) in [slot.run, slot.second_run] {
        let run = usize::from(first)..usize::from(first) + usize::from(count);
        let found = ENTRIES.get(run).unwrap_or_default().iter().position(|(_, known)| *known == value);
        if let Some(offset) = found {
            return Match::Field(first + offset as u8);
        }
    }
    Match::Name(slot.run.0)
}

#[inline]
fn find_name(name: &[u8]) -> Option<&'static Slot> {
    let mut at = hash(name);
    // The table is at most half full, so an empty slot ends this soon.
    loop {
        let slot = SLOTS.get(at & (SLOT_COUNT - 1))?;
        if slot.run.1 == 0 {
            return None;
        }
        let entry_name = ENTRIES.get(usize::from(slot.run.0))?.0;
        if known::same(entry_name, name) {
            return Some(slot);
        }
        at += 1;
    }
}

/// One name, and the entries that have it, which form one or two runs.
#[derive(Clone, Copy)]
struct Slot {
    /// First index and count; the count is 0 in a slot without a name.
    run: (u8, u8),
    second_run: (u8, u8),
}

const SLOT_COUNT: usize = 128;

static SLOTS: [Slot; SLOT_COUNT] = slots();

/// Equal for names that differ only in case: the bit that distinguishes case is set in each byte.
#[inline]
const fn hash(name: &[u8]) -> usize {
    let length = name.len();
    if length == 0 {
        return 0;
    }
    let (first, last) = (name[0] | 0x20, name[length - 1] | 0x20);
    let (middle, late) = (name[length / 2] | 0x20, name[length - 1 - length / 4] | 0x20);
    length * 5 + first as usize * 11 + last as usize * 3 + middle as usize * 17 + late as usize * 7
}

const fn slots() -> [Slot; SLOT_COUNT] {
    let mut slots = [Slot { run: (0, 0), second_run: (0, 0) }; SLOT_COUNT];
    let mut index = 0;
    while index < ENTRIES.len() {
        let name = ENTRIES[index].0;
        let mut at = hash(name) & (SLOT_COUNT - 1);
        while slots[at].run.1 != 0 && !same(ENTRIES[slots[at].run.0 as usize].0, name) {
            at = (at + 1) & (SLOT_COUNT - 1);
        }
        let slot = &mut slots[at];
        if slot.run.1 == 0 {
            slot.run = (index as u8, 1);
        } else if (slot.run.0 + slot.run.1) as usize == index {
            slot.run.1 += 1;
        } else if slot.second_run.1 == 0 {
            slot.second_run = (index as u8, 1);
        } else {
            assert!((slot.second_run.0 + slot.second_run.1) as usize == index, "a name with three runs");
            slot.second_run.1 += 1;
        }
        index += 1;
    }
    slots
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_found_by_its_field_and_by_its_name() {
        for (index, (name, value)) in ENTRIES.iter().enumerate() {
            assert_eq!(find(name, value), Match::Field(index as u8));
            let upper = name.to_ascii_uppercase();
            assert_eq!(find(&upper, value), Match::Field(index as u8));
            let first = ENTRIES.iter().position(|(other, _)| other == name).unwrap();
            assert_eq!(find(name, b"no such value"), Match::Name(first as u8));
        }
        assert_eq!((entry(17), entry(99)), (Some((&b":method"[..], &b"GET"[..])), None));
        assert_eq!(entry(u64::MAX), None);
    }

    #[test]
    fn other_names_are_not_found() {
        for name in [&b""[..], b"x", b":metho", b"content-lengt", b"x-request-id", &[0xff; 300]] {
            assert_eq!(find(name, b""), Match::Nothing);
        }
    }

    #[test]
    fn names_lie_close_to_where_their_hash_says() {
        let longest = ENTRIES.iter().map(|(name, _)| {
            let steps = (0..).take_while(|step| {
                let slot = &SLOTS[(hash(name) + step) & (SLOT_COUNT - 1)];
                ENTRIES[usize::from(slot.run.0)].0 != *name
            });
            steps.count()
        });
        assert!(longest.max().unwrap() <= 4);
    }
}
