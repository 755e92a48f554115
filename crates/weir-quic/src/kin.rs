//! The processes before and after this one, while they still have connections on the sockets that all of them hold.

use std::sync::{PoisonError, RwLock};

use crate::cid::Place;
use crate::forward::{Line, Passed};

/// Lines to the workers of other processes, by process number.
#[derive(Debug, Default)]
pub struct Kin {
    lines: RwLock<Vec<(Place, Line)>>,
}

impl Kin {
    /// Adds the line to one worker of another process.
    pub fn add(&self, place: Place, line: Line) {
        self.lines.write().unwrap_or_else(PoisonError::into_inner).push((place, line));
    }

    /// Whether there is a line to the process.
    pub fn knows(&self, process: u8) -> bool {
        self.read().iter().any(|(place, _)| place.process == process)
    }

    /// Takes out the lines to a process that has not come about.
    pub fn remove(&self, process: u8) {
        let mut lines = self.lines.write().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|(place, _)| place.process != process);
    }

    /// Passes a datagram on, to its worker's line or, where there is none, to any of its process: whether it went. `None` when the process has
    /// ended.
    pub fn send(&self, to: Place, passed: impl FnOnce() -> Passed) -> Option<bool> {
        let lines = self.read();
        let exact = lines.iter().find(|(place, _)| *place == to);
        let (used, line) = exact.or_else(|| lines.iter().find(|(place, _)| place.process == to.process))?;
        match line.send(&passed()) {
            Ok(()) => Some(true),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Some(false),
            Err(_) => {
                let used = *used;
                drop(lines);
                self.lines
                    .write()
                    .unwrap_or_else(PoisonError::into_inner)
                    .retain(|(place, _)| *place != used);
                None
            }
        }
    }

    /// Second descriptors of all lines, to be handed to the next process.
    pub fn duplicates(&self) -> std::io::Result<Vec<(Place, Line)>> {
        self.read().iter().map(|(place, line)| Ok((*place, line.try_clone()?))).collect()
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, Vec<(Place, Line)>> {
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }
}
