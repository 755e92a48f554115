//! Cells inside a guest: the same network, contenders and loads as in [`super::namespaces`], on the guest's
//! kernel.

use std::io;
use std::sync::{Mutex, PoisonError};

use super::{Cell, Options, Runner, Turn};
use crate::guest::{Answer, Guest, GuestTask};
use crate::topology::Topology;
use crate::workplace::Workplace;

/// The guest that waits for the next scenario, and whether its clock counts instructions. One boot serves a
/// series.
static WAITING: Mutex<Option<(bool, Guest)>> = Mutex::new(None);

/// The runner of [`Topology::Guest`].
pub struct Visit {
    instructions: bool,
    /// `None` once it has failed: its next answer might belong to an earlier order.
    guest: Option<Guest>,
}

impl Visit {
    /// Boots a guest, unless the scenario before has left one.
    pub fn new(options: &Options, instructions: bool, workplace: &Workplace) -> io::Result<Self> {
        let waiting = take().filter(|(counts, _)| *counts == instructions).map(|(_, guest)| guest);
        let guest = match waiting {
            Some(guest) => guest,
            None => {
                let directory = workplace.directory("guest")?;
                Guest::boot(&options.tools, &options.lab, instructions, &directory)?
            }
        };
        Ok(Self { instructions, guest: Some(guest) })
    }
}

impl Runner for Visit {
    fn cell(&mut self, cell: &Cell<'_>) -> io::Result<Turn> {
        let Topology::Guest { inside, .. } = &cell.point.topology else {
            return Err(io::Error::other("a sweep cannot leave the guest"));
        };
        let order = GuestTask::Cell {
            contender: cell.contender.name.clone(),
            load: cell.point.load.clone(),
            topology: inside.clone(),
            length: cell.length,
        };
        let mut guest = self.guest.take().ok_or_else(|| io::Error::other("the guest has failed before"))?;
        let answer = guest.order(&order)?;
        self.guest = Some(guest);
        match answer {
            Answer::Turn(turn) => Ok(turn),
            Answer::Failed { problem } => Err(io::Error::other(problem)),
            Answer::Printed { text, .. } => Err(io::Error::other(format!("the guest printed `{text}`"))),
        }
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        let left = self.guest.take().map(|guest| (self.instructions, guest));
        *WAITING.lock().unwrap_or_else(PoisonError::into_inner) = left;
    }
}

/// Ends the guest that waits, if one does.
pub fn let_go() {
    drop(take());
}

fn take() -> Option<(bool, Guest)> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner).take()
}
