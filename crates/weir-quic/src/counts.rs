//! Counts of QUIC on one worker. Only the worker writes; anybody may read.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drop {
    /// No connection has it and it begins none: malformed, too short, not ours, or from a connection long
    /// gone.
    Unknown,
    /// The queue to the worker or process that has its connection was full.
    QueueFull,
    /// Forwarded to us for a socket that we do not have.
    NoSocket,
    /// Its connection belongs to another listener.
    OtherListener,
    /// First of a connection, beyond the most that may begin.
    NoRoom,
}

/// Number of [`Drop`]'s values.
pub const DROPS: usize = 5;

/// Names of [`Drop`]'s values, in order, as metrics have them.
pub const DROP_NAMES: [&str; DROPS] = ["unknown", "queue_full", "no_socket", "other_listener", "no_room"];

macro_rules! counts {
    ($($(#[$doc:meta])* $field:ident, $verb:ident;)*) => {
        /// Counters of one worker; all only grow.
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
    /// Connections that began their handshake.
    begun_count, began;
    /// Handshakes that ended well.
    established_count, established;
    /// Handshakes cut off because they took too long.
    timed_out_count, handshakes_timed_out;
    /// Connections refused with an answer.
    refused_count, refused;
    /// Clients asked to prove their address first.
    retried_count, retried;
    /// Answers without a connection: version negotiation, stateless resets, refusals of bad first packets.
    responded_count, responded;
    /// Datagrams forwarded to another worker or process.
    forwarded_count, forwarded;
    /// Clients that moved to another address and proved it.
    migrated_count, migrated;
    /// Datagrams not sent to an address that is not proved, for too little came from there.
    withheld_count, withheld;
    /// Requests served although the handshake was not over.
    early_count, served_early;
}

impl Counts {
    pub(crate) fn dropped(&self, reason: Drop) {
        add(&self.drops[reason as usize]);
    }
}

/// One writer, so that no locked instruction is needed.
fn add(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
