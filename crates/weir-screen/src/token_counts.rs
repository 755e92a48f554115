//! What the keys of a shard took since somebody last looked, so that other Weirs can be told.
//!
//! A count belongs to a cell of the shard, so noting one is an addition; nothing is looked up. Memory is
//! bounded by the number of cells, however long nobody looks, and by [`LEFT_MOST`].

use crate::digest::Digest;
use crate::table::Cell;

/// Most counts that are kept of keys that lost their cells to others between two looks. Such a key has a full
/// bucket, so what is lost beyond that mattered for less than the time between two looks.
const LEFT_MOST: usize = 1_024;

/// A count of nothing. A cell without an entry in the list has 0, which is less than any count.
const NOTHING: u32 = 1 << 31;

pub(crate) struct TokenCounts {
    /// By cell: 0, or the tokens plus [`NOTHING`].
    by_cell: Box<[u32]>,
    /// The cells whose entry is not 0.
    cells: Vec<u32>,
    /// Of keys that have no cell any more.
    left: Vec<(Digest, i32)>,
}

impl TokenCounts {
    /// For a shard with this many cells.
    pub fn new(cells: usize) -> TokenCounts {
        TokenCounts { by_cell: vec![0; cells].into_boxed_slice(), cells: Vec::new(), left: Vec::new() }
    }

    /// The key of this cell took tokens, or returned some.
    pub fn note(&mut self, at: usize, tokens: i32) {
        let Some(count) = self.by_cell.get_mut(at) else { return };
        if *count == 0 {
            *count = NOTHING;
            self.cells.extend(u32::try_from(at));
        }
        // 0 would be a cell without an entry.
        *count = count.saturating_add_signed(tokens).max(1);
    }

    /// The cell goes from the key in `cell` to another one.
    pub fn leave(&mut self, at: usize, [low, high, _]: Cell) {
        let tokens = self.forget(at);
        if tokens != 0 && self.left.len() < LEFT_MOST {
            self.left.push(([low, high], tokens));
        }
    }

    /// Forgets what the key of this cell took; returns it.
    pub fn forget(&mut self, at: usize) -> i32 {
        match self.by_cell.get_mut(at).filter(|count| **count != 0) {
            None => 0,
            Some(count) => tokens(std::mem::replace(count, NOTHING)),
        }
    }

    /// Gives all counts to `each`, with their cell and its key, and forgets them. A key without a cell counts
    /// as being in the first one.
    pub fn take(&mut self, cells: &[Cell], mut each: impl FnMut(usize, Digest, i32)) {
        self.left.drain(..).for_each(|(key, tokens)| each(0, key, tokens));
        for at in self.cells.drain(..) {
            let at = at as usize;
            let (Some(count), Some([low, high, _])) = (self.by_cell.get_mut(at), cells.get(at)) else {
                continue;
            };
            let tokens = tokens(std::mem::take(count));
            if tokens != 0 {
                each(at, [*low, *high], tokens);
            }
        }
    }
}

fn tokens(count: u32) -> i32 {
    count.wrapping_sub(NOTHING).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(counts: &mut TokenCounts, cells: &[Cell]) -> Vec<(usize, Digest, i32)> {
        let mut all = Vec::new();
        counts.take(cells, |at, key, tokens| all.push((at, key, tokens)));
        all
    }

    #[test]
    fn a_count_is_given_once_with_the_key_that_took_it() {
        let (mut counts, mut cells) = (TokenCounts::new(4), vec![[0, 0, 0], [1, 2, 9], [3, 4, 9], [5, 6, 9]]);
        for (at, tokens) in [(1, 1), (2, 1), (1, 1), (3, 1), (3, -1), (3, 1), (3, -1), (3, -1)] {
            counts.note(at, tokens);
        }
        counts.leave(2, cells[2]);
        cells[2] = [7, 8, 9];
        counts.note(2, 5);
        let expected = [(0, [3, 4], 1), (1, [1, 2], 2), (2, [7, 8], 5), (3, [5, 6], -1)];
        assert_eq!(taken(&mut counts, &cells), expected);
        assert_eq!(taken(&mut counts, &cells), []);
    }

    #[test]
    fn what_is_forgotten_is_told_nobody_and_the_cell_counts_on() {
        let (mut counts, cells) = (TokenCounts::new(1), [[1, 2, 9]]);
        counts.note(0, 7);
        assert_eq!((counts.forget(0), counts.forget(0)), (7, 0));
        counts.note(0, 1);
        assert_eq!(taken(&mut counts, &cells), [(0, [1, 2], 1)]);
    }

    #[test]
    fn nobody_who_looks_means_no_more_memory() {
        let mut counts = TokenCounts::new(2);
        for round in 0..100_000_u64 {
            counts.note(0, 1);
            counts.note(0, -1);
            counts.note(1, i32::MAX);
            counts.leave(1, [round, round, 0]);
        }
        assert!(counts.cells.len() == 2 && counts.left.len() == LEFT_MOST);
        (0..9).for_each(|_| counts.note(0, i32::MIN));
        (0..9).for_each(|_| counts.note(1, i32::MAX));
        let all = taken(&mut counts, &[[0; 3]; 2]);
        assert_eq!(all.len(), LEFT_MOST + 2);
    }
}
