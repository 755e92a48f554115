//! Parts of an exchange that most exchanges do not use.
//!
//! Clearing a part means writing to it, and each part that is written to costs every request the cache lines
//! that it lies on. A part that was never used is a null pointer, and costs none.

use std::ops::{Deref, DerefMut};

/// A value that can be reset for another exchange.
pub trait Reused: Default + 'static {
    /// Its value before its first use.
    const UNUSED: &'static Self;

    /// Resets it for another exchange; memory that was allocated may stay.
    fn clear(&mut self);
}

/// A part that is allocated when it is first written to, and kept for the exchanges that follow.
pub struct Seldom<T>(Option<Box<T>>);

impl<T> Default for Seldom<T> {
    fn default() -> Seldom<T> {
        Seldom(None)
    }
}

impl<T: Reused> Seldom<T> {
    /// Resets it for another exchange.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(used) = &mut self.0 {
            used.clear();
        }
    }

    /// The part, to be changed; `None` before its first use.
    #[inline]
    pub fn used(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: Reused> Deref for Seldom<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::UNUSED)
    }
}

impl<T: Reused> DerefMut for Seldom<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl Reused for Vec<u8> {
    const UNUSED: &'static Vec<u8> = &Vec::new();

    fn clear(&mut self) {
        Vec::clear(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Line(Vec<u8>);

    impl Reused for Line {
        const UNUSED: &'static Line = &Line(Vec::new());

        fn clear(&mut self) {
            self.0.clear();
        }
    }

    #[test]
    fn nothing_is_made_by_reading_and_clearing() {
        let mut line = Seldom::<Line>::default();
        line.clear();
        assert!(line.0.is_none() && line.used().is_none() && Deref::deref(&line).0.is_empty());
    }

    #[test]
    fn the_room_of_a_use_stays_for_the_next() {
        let mut line = Seldom::<Line>::default();
        line.0.get_or_insert_default().0.extend_from_slice(b"of the first");
        line.clear();
        let room = line.used().map(|line| line.0.capacity());
        assert!(Deref::deref(&line).0.is_empty() && room >= Some(12));
    }
}
