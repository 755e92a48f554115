//! Objects that the store has dropped while somebody still reads them: their memory is in no budget, so it is
//! tracked here.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::object::Object;

/// The list of these objects.
#[derive(Debug, Default)]
pub(super) struct Lingering {
    objects: Mutex<Vec<Arc<Object>>>,
    /// Their memory at the last count, in bytes.
    bytes: AtomicU64,
}

impl Lingering {
    /// Takes removed objects, and at once frees those that nobody reads.
    pub fn add(&self, removed: impl IntoIterator<Item = Arc<Object>>) {
        let mut read = removed.into_iter().filter(is_read).peekable();
        if read.peek().is_none() {
            return;
        }
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let room = objects.capacity();
        for object in read {
            self.bytes.fetch_add(object.weight(), Ordering::Relaxed);
            objects.push(object);
        }
        // Cleaned now and then, so that a list that nobody queries does not grow for ever.
        if objects.capacity() > room {
            self.forget_unread(&mut objects);
        }
    }

    /// Their memory, in bytes. O(their number).
    pub fn bytes(&self) -> u64 {
        if self.bytes.load(Ordering::Relaxed) > 0 {
            self.forget_unread(&mut self.objects.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.bytes.load(Ordering::Relaxed)
    }

    fn forget_unread(&self, objects: &mut Vec<Arc<Object>>) {
        objects.retain(is_read);
        self.bytes.store(objects.iter().map(|object| object.weight()).sum(), Ordering::Relaxed);
    }
}

fn is_read(object: &Arc<Object>) -> bool {
    Arc::strong_count(object) > 1
}
