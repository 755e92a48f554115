//! What workers tell the control side, in messages and in totals.

use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Something a worker found out that the control side acts on or tells the operator.
#[derive(Clone, Debug)]
pub enum Event {
    /// Passive health ejected a backend: its pool must be refreshed when the time is over.
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
    /// The address in use of a name did not accept, and another of the name did.
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
    /// Listening TCP sockets that workers serve, each worker's counted: whoever ends the process waits until
    /// those that it has withdrawn are closed.
    pub accepting: AtomicU64,
    /// Panics caught while serving one connection.
    pub panics: AtomicU64,
    /// When the drain of the whole process is over, in nanoseconds of [`weir_io::clock`]; 0 while it serves.
    pub drained_at: AtomicU64,
    /// Sessions that ended only then, or later.
    pub cut_off: AtomicU64,
}
