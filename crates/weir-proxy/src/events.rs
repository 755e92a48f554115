//! What workers report to the control side, as messages and as totals.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weir_io::buffers::BudgetUse;

/// Something that a worker found out and that the control side acts on or reports to the operator.
#[derive(Clone, Debug)]
pub enum Event {
    /// Passive health ejected a backend: its pool must be refreshed when the ejection is over.
    Ejected {
        /// Name of the pool.
        pool: String,
        /// The backend.
        backend: String,
        /// Clock reading when it may return.
        until: Duration,
        /// The last of the failures, such as `answered 503`.
        reason: String,
    },
    /// The address in use for a name did not accept a connection, but another address of the name did.
    OtherAddress {
        /// The name, with its port, as the config has it.
        name: String,
        /// The address that was in use.
        first: SocketAddr,
        /// The one that accepted.
        address: SocketAddr,
    },
    /// A worker ran out of file descriptors and shed idle connections.
    DescriptorsShort {
        /// Connections shed.
        shed: usize,
    },
}

/// Live totals that all workers share; one relaxed atomic per connection, none per request.
#[derive(Debug, Default)]
pub struct Totals {
    /// Sessions open now: client connections and UDP flows.
    pub sessions: AtomicU64,
    /// Listening TCP sockets that workers serve, counted for each worker. Whoever ends the process waits
    /// until those that were withdrawn are closed.
    pub accepting: AtomicU64,
    /// Panics caught while serving one connection.
    pub panics: AtomicU64,
    /// When the drain of the whole process is over, in nanoseconds of [`weir_io::clock`]; 0 while it is not
    /// draining.
    pub drained_at: AtomicU64,
    /// Sessions that ended only at that time, or later.
    pub cut_off: AtomicU64,
    /// How each worker's part of the memory budget was used when the worker last looked.
    memory: Mutex<BTreeMap<usize, BudgetUse>>,
}

impl Totals {
    /// Notes how the part of a worker is used.
    pub fn note_memory(&self, worker: usize, usage: BudgetUse) {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner).insert(worker, usage);
    }

    /// How the whole budget is used. The largest client is the one that has most of all that are the largest
    /// on some worker.
    pub fn memory(&self) -> BudgetUse {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let mut whole = BudgetUse::default();
        let mut clients = HashMap::<IpAddr, u64>::new();
        for part in memory.values() {
            whole.in_use_bytes += part.in_use_bytes;
            whole.budget_bytes += part.budget_bytes;
            whole.client_bytes += part.client_bytes;
            whole.client_refusals += part.client_refusals;
            if let Some((client, bytes)) = part.largest {
                *clients.entry(client).or_default() += bytes;
            }
        }
        whole.largest = clients.into_iter().max_by_key(|(_, bytes)| *bytes);
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_on_several_workers_is_one() {
        let totals = Totals::default();
        let part = |last: u8, bytes| BudgetUse {
            in_use_bytes: bytes,
            budget_bytes: 100,
            client_bytes: 25,
            client_refusals: 1,
            largest: Some(([192, 0, 2, last].into(), bytes)),
        };
        for (worker, (last, bytes)) in [(1, 10), (2, 15), (1, 9)].into_iter().enumerate() {
            totals.note_memory(worker, part(last, bytes));
        }
        totals.note_memory(0, part(1, 11));
        let whole = totals.memory();
        assert_eq!((whole.in_use_bytes, whole.budget_bytes, whole.client_bytes), (35, 300, 75));
        assert_eq!((whole.client_refusals, whole.largest), (3, Some(([192, 0, 2, 1].into(), 20))));
    }
}
