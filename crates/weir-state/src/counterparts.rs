//! Matches old items with new ones without comparing each with each.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// Finds the items of a new list in an old list, by a key that occurs once.
///
/// Lists mostly keep their order, so the wanted item is nearly always the next one or the one after it. If it
/// is not, a map of the old list is built once, so that matching a whole list takes O(n).
pub struct Counterparts<'o, T, K> {
    old: &'o [T],
    key_of: fn(&'o T) -> K,
    next: usize,
    found: usize,
    by_key: Option<HashMap<K, usize>>,
}

impl<'o, T, K: Eq + Hash> Counterparts<'o, T, K> {
    /// A matcher that has found nothing yet.
    pub fn new(old: &'o [T], key_of: fn(&'o T) -> K) -> Counterparts<'o, T, K> {
        Counterparts { old, key_of, next: 0, found: 0, by_key: None }
    }

    /// The old item with this key; ask for each key once. `None` if there is none.
    pub fn find<Q>(&mut self, key: &Q) -> Option<&'o T>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        if self.found == self.old.len() {
            return None;
        }
        let (old, key_of) = (self.old, self.key_of);
        let is_wanted =
            |at: &usize| old.get(*at).is_some_and(|each| <K as Borrow<Q>>::borrow(&key_of(each)) == key);
        let nearby = [self.next, self.next + 1].into_iter().find(is_wanted);
        let at = nearby.or_else(|| {
            let numbered = || old.iter().enumerate().map(|(at, each)| (key_of(each), at)).collect();
            self.by_key.get_or_insert_with(numbered).get(key).copied()
        })?;
        self.next = at + 1;
        self.found += 1;
        Some(&old[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_found_whatever_the_order_and_what_is_new_is_not() {
        let old = ["a", "b", "c", "d", "e"];
        for new in [
            vec!["a", "b", "c", "d", "e", "f"],
            vec!["a", "c", "d", "e"],
            vec!["x", "a", "b", "y", "c", "d", "e"],
            vec!["e", "d", "c", "b", "a", "z"],
            vec!["c"],
            vec![],
        ] {
            let mut counterparts = Counterparts::new(&old, |each| *each);
            for each in new {
                let expected = old.iter().find(|old| **old == each);
                assert_eq!(counterparts.find(each), expected, "{each}");
            }
        }
    }

    #[test]
    fn no_map_is_made_where_one_was_added_at_the_end_or_taken_out() {
        let old: Vec<u32> = (0..100).collect();
        let mut counterparts = Counterparts::new(&old, |each| *each);
        assert!((0..=100u32).all(|each| counterparts.find(&each).is_some() == (each < 100)));
        assert!(counterparts.by_key.is_none());
        let mut counterparts = Counterparts::new(&old, |each| *each);
        assert!((0..100u32).filter(|each| *each != 50).all(|each| counterparts.find(&each).is_some()));
        assert!(counterparts.by_key.is_none());
    }
}
