//! Adds what the kernel has counted since the last look to the counters that metrics, status and logs read,
//! so that a listener or backend has the same rows on either plane.

use weir_l4::layout::{Counter, Verdict};
use weir_state::Snapshot;

use super::{Seen, SeenListener};

/// Adds the difference between `before` and `now`.
pub fn add(snapshot: &Snapshot, before: &Seen, now: &Seen) {
    for listener in &snapshot.listeners {
        let Some(seen) = now.listeners.get(&listener.config.name) else { continue };
        let earlier = before.listeners.get(&listener.config.name);
        let cells = listener.cells.last();
        let more = |verdict| bytes(Some(seen), verdict).saturating_sub(bytes(earlier, verdict));
        cells.bytes_received.add(more(Verdict::ToBackend));
        cells.bytes_sent.add(more(Verdict::ToClient));
        let Some(pool) = listener.config.pool.as_deref() else { continue };
        // A pool that several listeners share counts its flows for all of them together; they are assigned to
        // the first.
        let first = snapshot.listeners.iter().find(|other| other.config.pool.as_deref() == Some(pool));
        if first.is_some_and(|first| first.config.name == listener.config.name) {
            let flows = |seen: &Seen| -> u64 {
                let of_pool = seen.backends.iter().filter(|((of, _), _)| of == pool);
                of_pool.map(|(_, backend)| backend.counted.flows).sum()
            };
            cells.connections.add(flows(now).saturating_sub(flows(before)));
        }
    }
    for pool in &snapshot.pools {
        for backend in &pool.backends {
            let Some(address) = backend.resolved.address() else { continue };
            let at = (pool.config.name.clone(), address);
            let Some(seen) = now.backends.get(&at) else { continue };
            let earlier = before.backends.get(&at).copied().unwrap_or_default();
            let cells = backend.cells.last();
            let flows = seen.counted.flows.saturating_sub(earlier.counted.flows);
            cells.connections.add(flows);
            // Flows that are open are those that were opened minus those that have ended.
            cells.connections_ended.add((flows + earlier.open).saturating_sub(seen.open));
            cells
                .bytes_sent
                .add(seen.counted.bytes_to_backend.saturating_sub(earlier.counted.bytes_to_backend));
            cells
                .bytes_received
                .add(seen.counted.bytes_to_client.saturating_sub(earlier.counted.bytes_to_client));
        }
    }
}

fn bytes(seen: Option<&SeenListener>, verdict: Verdict) -> u64 {
    let counters = seen.map_or(&[][..], |seen| &seen.verdicts[..]);
    let found: Option<&Counter> =
        counters.iter().find(|(one, _)| *one == verdict).map(|(_, counter)| counter);
    found.map_or(0, |counter| counter.bytes)
}
