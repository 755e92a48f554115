//! First in, first out, with removal from the middle: entries know their neighbours.

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The neighbours of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    /// The one that came after it.
    pub newer: u32,
    /// The one that came before it.
    pub older: u32,
}

impl Links {
    pub const ALONE: Links = Links { newer: NONE, older: NONE };
}

/// The ends of a queue, and what stands in it.
#[derive(Debug)]
pub(super) struct Queue {
    newest: u32,
    oldest: u32,
    /// Memory of the entries, in bytes.
    pub bytes: u64,
    /// How many there are.
    pub count: usize,
}

impl Queue {
    pub fn new() -> Queue {
        Queue { newest: NONE, oldest: NONE, bytes: 0, count: 0 }
    }

    /// The one that has stood longest.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Puts an entry at the end. `links` gives those of any entry.
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

    /// Takes an entry out, wherever it stands.
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
