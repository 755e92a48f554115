//! QUIC counters of one worker. Only the worker writes them; any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// It belongs to no connection and begins none: malformed, too short, not ours, or from a connection that
    /// is long gone.
    Unknown,
    /// The queue to the worker or process that has its connection was full.
    QueueFull,
    /// It was forwarded to us for a socket that we do not have.
    NoSocket,
    /// Its connection belongs to another listener.
    OtherListener,
    /// First of a connection, while the limit on handshakes was reached.
    NoRoom,
}

/// Number of [`Drop`]'s values.
pub const DROPS: usize = 5;

/// Names of [`Drop`]'s values in metrics, in order.
pub const DROP_NAMES: [&str; DROPS] = ["unknown", "queue_full", "no_socket", "other_listener", "no_room"];

macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident, $verb:ident;)*) => {
        /// Counters of one worker; they only increase.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[$doc])* pub $field: AtomicU64,)*
            /// Datagrams dropped, by [`Drop`].
            pub drops: [AtomicU64; DROPS],
        }

        impl Counts {
            $(pub(crate) fn $verb(&self) {
                add(&self.$field);
            })*
        }
    };
}

counts! {
    /// Connections whose handshake began.
    begun_count, began;
    /// Handshakes that succeeded.
    established_count, established;
    /// Handshakes that timed out.
    timed_out_count, handshakes_timed_out;
    /// Connections refused with an answer.
    refused_count, refused;
    /// Clients that were sent a Retry, to prove their address first.
    retried_count, retried;
    /// Answers without a connection: version negotiation, stateless resets, refusals of malformed first
    /// packets.
    responded_count, responded;
    /// Datagrams forwarded to another worker or process.
    forwarded_count, forwarded;
    /// Clients that moved to another address and proved it.
    migrated_count, migrated;
    /// Datagrams not sent to an unproved address, because too little had come from there.
    withheld_count, withheld;
    /// Requests served before the handshake was complete.
    early_count, served_early;
}

impl Counts {
    pub(crate) fn dropped(&self, reason: Drop) {
        add(&self.drops[reason as usize]);
    }
}

/// There is only one writer, so no atomic read-modify-write is needed.
fn add(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
