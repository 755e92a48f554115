//! The dynamic table that a peer's encoder fills (RFC 9204 §3.2).

use std::collections::VecDeque;

/// The size of an entry besides its name and value (RFC 9204 §3.2.1).
pub(super) const ENTRY_OVERHEAD_BYTES: usize = 32;

/// Entries in order of insertion. Allocates at most twice the capacity, and only on insertion.
#[derive(Debug)]
pub(super) struct DynamicTable {
    /// The capacity that the encoder set, at most `max_capacity`.
    capacity: usize,
    max_capacity: usize,
    /// Sum of the sizes of all entries.
    size: usize,
    entries: VecDeque<Entry>,
    /// Absolute index of the oldest entry, which is the number of evicted ones.
    dropped: u64,
    /// Names and values. Grows at its end. When it is full, live text moves to the front; that is at most
    /// half of it, so on average each received byte is moved at most once.
    text: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    name_length: usize,
    value_length: usize,
}

impl Entry {
    fn size(self) -> usize {
        self.name_length + self.value_length + ENTRY_OVERHEAD_BYTES
    }
}

/// The name of a new entry.
#[derive(Clone, Copy, Debug)]
pub(super) enum Name<'a> {
    Text(&'a [u8]),
    /// The same as in the entry with this absolute index.
    Of(u64),
}

impl DynamicTable {
    pub(super) fn new(max_capacity: usize) -> DynamicTable {
        DynamicTable {
            capacity: 0,
            max_capacity,
            size: 0,
            entries: VecDeque::new(),
            dropped: 0,
            text: Vec::new(),
        }
    }

    pub(super) fn max_capacity(&self) -> usize {
        self.max_capacity
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of insertions so far, which is the absolute index of the next one.
    pub(super) fn insert_count(&self) -> u64 {
        self.dropped + self.entries.len() as u64
    }

    /// Sum of the sizes of all entries, in bytes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Name and value of the entry with that absolute index; `None` if it was evicted or not yet inserted.
    #[inline]
    pub(super) fn entry(&self, index: u64) -> Option<(&[u8], &[u8])> {
        let entry = self.find(index)?;
        let text = self.text.get(entry.start..entry.start + entry.name_length + entry.value_length)?;
        text.split_at_checked(entry.name_length)
    }

    fn find(&self, index: u64) -> Option<Entry> {
        let offset = usize::try_from(index.checked_sub(self.dropped)?).ok()?;
        self.entries.get(offset).copied()
    }

    /// Sets the capacity and evicts entries that no longer fit. `None` when it is more than was announced.
    pub(super) fn set_capacity(&mut self, capacity: u64) -> Option<()> {
        let capacity = usize::try_from(capacity).ok().filter(|&bytes| bytes <= self.max_capacity)?;
        self.capacity = capacity;
        self.evict_to(capacity);
        Some(())
    }

    /// Inserts an entry and evicts the oldest ones as needed. `None` when it is larger than the capacity, or
    /// refers to the name of an entry that does not exist.
    pub(super) fn insert(&mut self, name: Name<'_>, value: &[u8]) -> Option<()> {
        let name_length = match name {
            Name::Text(text) => text.len(),
            Name::Of(index) => self.find(index)?.name_length,
        };
        let text_length = name_length + value.len();
        let left = self.capacity.checked_sub(text_length + ENTRY_OVERHEAD_BYTES)?;
        self.make_room(text_length);
        let start = self.text.len();
        //= https://www.rfc-editor.org/rfc/rfc9204#section-3.2.2
        //# A new entry can reference an entry in the dynamic table that will be
        //# evicted when adding this new entry into the dynamic table.
        //# Implementations are cautioned to avoid deleting the referenced name
        //# or value if the referenced entry is evicted from the dynamic table
        //# prior to inserting the new entry.
        match name {
            Name::Text(text) => self.text.extend_from_slice(text),
            Name::Of(index) => {
                let entry = self.find(index)?;
                self.text.extend_from_within(entry.start..entry.start + entry.name_length);
            }
        }
        self.text.extend_from_slice(value);
        self.evict_to(left);
        self.push(Entry { start, name_length, value_length: value.len() });
        Some(())
    }

    /// Inserts a copy of the entry with that absolute index; returns its size. `None` if there is none.
    pub(super) fn duplicate(&mut self, index: u64) -> Option<usize> {
        let size = self.find(index)?.size();
        let left = self.capacity.checked_sub(size)?;
        self.make_room(size - ENTRY_OVERHEAD_BYTES);
        let entry = self.find(index)?;
        let start = self.text.len();
        self.text.extend_from_within(entry.start..entry.start + size - ENTRY_OVERHEAD_BYTES);
        self.evict_to(left);
        self.push(Entry { start, ..entry });
        Some(size)
    }

    fn push(&mut self, entry: Entry) {
        self.size += entry.size();
        self.entries.push_back(entry);
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_front() else { return };
            self.size -= entry.size();
            self.dropped += 1;
        }
    }

    /// Makes room for text after the last entry. Entries, including those just evicted, keep their text until
    /// it moves here.
    fn make_room(&mut self, length: usize) {
        let limit = 2 * self.max_capacity;
        if self.text.capacity() == 0 {
            self.text.reserve_exact(limit);
        }
        if self.text.len() + length <= limit {
            return;
        }
        let live = self.entries.front().map_or(self.text.len(), |entry| entry.start);
        self.text.drain(..live);
        for entry in &mut self.entries {
            entry.start -= live;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inserted(table: &mut DynamicTable, name: &str, value: &str) -> Option<()> {
        table.insert(Name::Text(name.as_bytes()), value.as_bytes())
    }

    #[test]
    fn the_oldest_entries_go_when_there_is_no_room() {
        let mut table = DynamicTable::new(4096);
        assert_eq!(inserted(&mut table, "a", "1"), None);
        table.set_capacity(100).unwrap();
        for round in 0..1000_u64 {
            let value = format!("{round:04}");
            inserted(&mut table, "name", &value).unwrap();
            assert_eq!(table.entry(round), Some((&b"name"[..], value.as_bytes())));
            assert_eq!(table.entry(round.wrapping_sub(2)), None);
            assert_eq!((table.insert_count(), table.size()), (round + 1, 40 * (round + 1).min(2) as usize));
        }
        assert_eq!(table.set_capacity(4097), None);
        table.set_capacity(0).unwrap();
        assert_eq!((table.size(), table.insert_count(), table.entry(999)), (0, 1000, None));
    }

    #[test]
    fn a_name_or_an_entry_may_come_from_one_that_goes_for_it() {
        let mut table = DynamicTable::new(64);
        table.set_capacity(64).unwrap();
        inserted(&mut table, "name-0123456789", "v").unwrap();
        for round in 0..50 {
            table.insert(Name::Of(2 * round), b"other").unwrap();
            assert_eq!(table.entry(2 * round), None);
            assert_eq!(table.entry(2 * round + 1), Some((&b"name-0123456789"[..], &b"other"[..])));
            assert_eq!(table.duplicate(2 * round + 1), Some(15 + 5 + 32));
            assert_eq!(table.entry(2 * round + 2), Some((&b"name-0123456789"[..], &b"other"[..])));
        }
        assert_eq!(
            (table.insert(Name::Of(7), b""), table.duplicate(7), table.duplicate(101)),
            (None, None, None)
        );
        assert!(table.text.capacity() <= 128);
    }
}
