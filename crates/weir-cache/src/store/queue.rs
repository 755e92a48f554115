//! A FIFO queue with removal from the middle: entries are linked to their neighbours.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The neighbours of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    /// The entry that came after it.
    pub newer: u32,
    /// The entry that came before it.
    pub older: u32,
}

impl Links {
    pub const ALONE: Links = Links { newer: NONE, older: NONE };
}

/// The ends of a queue, and its size.
#[derive(Debug)]
pub(super) struct Queue {
    newest: u32,
    oldest: u32,
    /// Memory of the entries, in bytes.
    pub bytes: u64,
    /// Number of entries.
    pub count: usize,
}

impl Queue {
    pub fn new() -> Queue {
        Queue { newest: NONE, oldest: NONE, bytes: 0, count: 0 }
    }

    /// The entry that has been in it longest.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Adds an entry at the end. `links` gives access to the links of any entry.
    pub fn push<T: ?Sized>(
        &mut self,
        entry: u32,
        weight: u64,
        entries: &mut T,
        links: fn(&mut T, u32) -> Option<&mut Links>,
    ) {
        if let Some(own) = links(entries, entry) {
            *own = Links { newer: NONE, older: self.newest };
        }
        match links(entries, self.newest) {
            Some(before) => before.newer = entry,
            None => self.oldest = entry,
        }
        self.newest = entry;
        self.bytes += weight;
        self.count += 1;
    }

    /// Removes an entry, wherever it is.
    pub fn remove<T: ?Sized>(
        &mut self,
        entry: u32,
        weight: u64,
        entries: &mut T,
        links: fn(&mut T, u32) -> Option<&mut Links>,
    ) {
        let Some(own) = links(entries, entry) else { return };
        let Links { newer, older } = std::mem::replace(own, Links::ALONE);
        match links(entries, newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        match links(entries, older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        self.bytes -= weight;
        self.count -= 1;
    }
}
