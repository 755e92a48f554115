//! What workers report to the control side, as messages and as totals.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

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
}
