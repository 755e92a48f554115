//! Sets aside a copy of content that is being forwarded, as long as it is not too long and there is memory
//! for what has arrived.

use std::rc::Rc;

use weir_io::buffers::{Buffers, Charge};

/// Capacity for the first bytes. It is doubled whenever it is too small.
const FIRST_BYTES: usize = 1 << 10;

/// Content that is being set aside; see the module.
pub struct Aside {
    bytes: Vec<u8>,
    most: usize,
    buffers: Rc<Buffers>,
    /// Accounts for the capacity of `bytes`.
    charge: Option<Charge>,
    lost: Option<AsideLost>,
}

/// Why there is no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsideLost {
    /// The content is longer than may be set aside, or it is incomplete.
    Length,
    /// There was not enough memory.
    Memory,
}

/// The complete content.
#[derive(Default)]
pub struct AsideContent {
    pub bytes: Vec<u8>,
    /// Accounts for its memory until it is dropped; `None` if it takes none.
    _charge: Option<Charge>,
}

impl Aside {
    /// Sets aside at most `most` bytes.
    pub fn new(most: usize, buffers: &Rc<Buffers>) -> Aside {
        Aside { bytes: Vec::new(), most, buffers: buffers.clone(), charge: None, lost: None }
    }

    /// Adds the next piece of content.
    pub fn put(&mut self, content: &[u8]) {
        if self.lost.is_some() {
            return;
        }
        let length = self.bytes.len() + content.len();
        let lost = match length {
            _ if length > self.most => AsideLost::Length,
            _ if !self.has_room(length) => AsideLost::Memory,
            _ => return self.bytes.extend_from_slice(content),
        };
        (self.bytes, self.charge, self.lost) = (Vec::new(), None, Some(lost));
    }

    /// Makes room for `length` bytes; false if there is no memory for them.
    fn has_room(&mut self, length: usize) -> bool {
        if length <= self.bytes.capacity() {
            return true;
        }
        let room = length.max(FIRST_BYTES).next_power_of_two().min(self.most);
        let is_charged = match &mut self.charge {
            Some(charge) => charge.grow(room as u64),
            None => {
                self.charge = self.buffers.charge(room as u64);
                self.charge.is_some()
            }
        };
        if is_charged {
            self.bytes.reserve_exact(room - self.bytes.len());
        }
        is_charged
    }

    /// The content, once all of it has come.
    ///
    /// # Errors
    /// It could not be set aside.
    pub fn content(self) -> Result<AsideContent, AsideLost> {
        match self.lost {
            Some(lost) => Err(lost),
            None => Ok(AsideContent { bytes: self.bytes, _charge: self.charge }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_claimed_as_content_comes_and_given_back_with_it() {
        let buffers = Buffers::new(1 << 20);
        let mut aside = Aside::new(100_000, &buffers);
        assert_eq!(buffers.in_use_bytes(), 0);
        aside.put(b"a");
        assert_eq!(buffers.in_use_bytes(), FIRST_BYTES as u64);
        aside.put(&[b'b'; 40_000]);
        assert_eq!(buffers.in_use_bytes(), 64 << 10);
        aside.put(&[b'c'; 59_999]);
        assert_eq!(buffers.in_use_bytes(), 100_000);
        let content = aside.content().ok().unwrap();
        assert_eq!((content.bytes.len(), content.bytes.capacity()), (100_000, 100_000));
        drop(content);
        assert_eq!(buffers.in_use_bytes(), 0);
    }

    #[test]
    fn what_is_too_long_or_finds_no_memory_takes_none() {
        let buffers = Buffers::new(64 << 10);
        let mut aside = Aside::new(10, &buffers);
        aside.put(b"0123456789");
        aside.put(b"0");
        assert_eq!(buffers.in_use_bytes(), 0);
        assert_eq!(aside.content().err(), Some(AsideLost::Length));
        let mut aside = Aside::new(1 << 20, &buffers);
        aside.put(&[0; 30_000]);
        aside.put(&[0; 30_000]);
        aside.put(b"more");
        assert_eq!(buffers.in_use_bytes(), 0);
        assert_eq!(aside.content().err(), Some(AsideLost::Memory));
    }
}
