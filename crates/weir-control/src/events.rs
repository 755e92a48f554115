//! Recent events, for `GET /v1/events` and the status page.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::Serialize;
use tokio::sync::broadcast;

use crate::cluster::Receipt;
use crate::lock;
use crate::timestamp::Timestamp;

/// Events kept for later readers; also how far a slow reader may fall behind before it misses some.
const KEPT: usize = 256;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Number, counting from 1.
    pub id: u64,
    /// When.
    pub time: Timestamp,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened. The variant's name is the event's name.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A reload was attempted.
    Reload {
        /// `applied`, `unchanged`, `refused` or `failed`.
        result: &'static str,
        /// The generation in force afterwards.
        generation: u64,
        /// What was wrong; empty when nothing was.
        error: String,
    },
    /// Probes (or name resolution) changed a backend's state.
    Health {
        /// Its pool.
        pool: String,
        /// Its address as configured.
        backend: String,
        /// `up` or `down`.
        state: &'static str,
        /// Why.
        reason: String,
    },
    /// Failures of real traffic had a backend ejected.
    Ejected {
        /// Its pool.
        pool: String,
        /// Its address as configured.
        backend: String,
        /// Duration, in seconds.
        seconds: f64,
        /// The last of the failures.
        reason: String,
    },
    /// The ejection of a backend is over.
    Readmitted {
        /// Its pool.
        pool: String,
        /// Its address as configured.
        backend: String,
    },
    /// A pool now chooses from another group of backends.
    Pool {
        /// Its name.
        pool: String,
        /// `ordinary`, `backup`, `last-resort` or `none`.
        serving_from: &'static str,
    },
    /// An operator changed a backend.
    Backend {
        /// Its pool.
        pool: String,
        /// Its address as configured.
        backend: String,
        /// What was changed.
        change: String,
    },
    /// An operator put a part of the service into maintenance, or took it out.
    Maintenance {
        /// The part.
        of: String,
        /// `on` (clients get 503) or `off`.
        state: &'static str,
    },
    /// The file of a map has changed.
    Map {
        /// Its name.
        map: String,
        /// `applied` or `refused`.
        result: &'static str,
        /// What was wrong; empty when nothing was.
        error: String,
    },
    /// Keys for signed tokens were fetched and differ from those before, or none were obtained; or they can't
    /// be fetched.
    TokenKeys {
        /// The URL, without its query.
        source: String,
        /// `fetched`, `failed` (the earlier ones remain valid), `stale` (they are no longer valid) or `none`
        /// (there are none yet).
        result: &'static str,
        /// The number of keys, or why there are none.
        detail: String,
    },
    /// A server of a watched cluster has another role now.
    Role {
        /// Name of the pool.
        pool: String,
        /// Its address as configured, or as its group reports it.
        backend: String,
        /// `primary`, `secondary` or `none`.
        role: &'static str,
    },
    /// A watched cluster has a new member that the config does not name, or has lost it; or a name resolves
    /// to another backend, or no longer to one.
    Roster {
        /// Name of the pool.
        pool: String,
        /// Its address as its group or the answer for the name has it.
        backend: String,
        /// What happened to it.
        change: String,
    },
    /// There is a primary again after one was lost, or after a handover.
    Failover {
        /// Name of the pool.
        pool: String,
        /// Details.
        #[serde(flatten)]
        receipt: Receipt,
    },
    /// A host name resolves to another address now.
    Resolved {
        /// The backend's address as configured.
        backend: String,
        /// The address that it resolves to.
        address: String,
    },
    /// A certificate was obtained by ACME or could not be, or an operator has uploaded or removed one.
    Certificate {
        /// Its names.
        names: String,
        /// `issued`, `renewed`, `failed`, `uploaded` or `removed`.
        change: &'static str,
        /// Its expiry, what went wrong, or its file.
        detail: String,
    },
    /// The kernel plane takes packets at an interface, or stopped, or was found not to.
    Kernel {
        /// `attached`, `detached` or `lost`.
        change: &'static str,
        /// Its name.
        interface: String,
    },
    /// An interface that listeners are bound to has disappeared, or is in use again.
    Interface {
        /// `gone` or `back`.
        change: &'static str,
        /// Its name.
        interface: String,
    },
    /// File descriptors ran out and idle connections were shed.
    DescriptorsShort {
        /// Number of connections shed.
        shed: usize,
    },
    /// The process has entered another phase: `started`, `upgrading`, `upgrade_failed`, `upgraded`,
    /// `draining`.
    Process {
        /// The phase.
        phase: &'static str,
        /// Details.
        detail: String,
    },
}

impl What {
    /// The event's name, as in its JSON.
    pub fn name(&self) -> &'static str {
        match self {
            What::Reload { .. } => "reload",
            What::Health { .. } => "health",
            What::Ejected { .. } => "ejected",
            What::Readmitted { .. } => "readmitted",
            What::Pool { .. } => "pool",
            What::Backend { .. } => "backend",
            What::Role { .. } => "role",
            What::Roster { .. } => "roster",
            What::Failover { .. } => "failover",
            What::Resolved { .. } => "resolved",
            What::Certificate { .. } => "certificate",
            What::Kernel { .. } => "kernel",
            What::Interface { .. } => "interface",
            What::DescriptorsShort { .. } => "descriptors_short",
            What::Maintenance { .. } => "maintenance",
            What::Map { .. } => "map",
            What::TokenKeys { .. } => "token_keys",
            What::Process { .. } => "process",
        }
    }
}

/// Distributes events.
pub struct Bus {
    kept: Mutex<Kept>,
    live: broadcast::Sender<Event>,
}

#[derive(Default)]
struct Kept {
    last_id: u64,
    events: VecDeque<Event>,
}

impl Default for Bus {
    fn default() -> Bus {
        Bus { kept: Mutex::default(), live: broadcast::channel(KEPT).0 }
    }
}

impl Bus {
    /// Publishes an event. Never blocks; it is no error if nobody listens.
    pub fn tell(&self, what: What) {
        let mut kept = lock(&self.kept);
        kept.last_id += 1;
        let event = Event { id: kept.last_id, time: Timestamp::now(), what };
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(event.clone());
        // Sent while holding the lock, so that a subscriber gets every event once: either as kept or live.
        let _ = self.live.send(event);
    }

    /// Kept events after number `id`, and a receiver for all further ones.
    pub fn subscribe(&self, id: u64) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let kept = lock(&self.kept);
        let missed = kept.events.iter().filter(|event| event.id > id).cloned().collect();
        (missed, self.live.subscribe())
    }

    /// The newest `count` events, newest first.
    pub fn latest(&self, count: usize) -> Vec<Event> {
        let kept = lock(&self.kept);
        kept.events.iter().rev().take(count).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shed(shed: usize) -> What {
        What::DescriptorsShort { shed }
    }

    #[test]
    fn a_reader_who_comes_back_gets_what_it_missed_and_then_what_comes() {
        let bus = Bus::default();
        (1..=3).for_each(|count| bus.tell(shed(count)));
        let (missed, mut live) = bus.subscribe(1);
        assert_eq!(missed.iter().map(|event| event.id).collect::<Vec<_>>(), [2, 3]);
        bus.tell(shed(4));
        assert_eq!(live.try_recv().unwrap().id, 4);
        assert!(live.try_recv().is_err());
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let bus = Bus::default();
        (0..1000).for_each(|count| bus.tell(shed(count)));
        let (kept, _) = bus.subscribe(0);
        assert_eq!(kept.len(), KEPT);
        assert_eq!(kept.last().map(|event| event.id), Some(1000));
        assert_eq!(bus.latest(2)[0].id, 1000);
    }

    #[test]
    fn an_event_says_its_name_beside_its_facts() {
        let bus = Bus::default();
        bus.tell(What::Reload { result: "refused", generation: 7, error: "no pool".into() });
        let event = &bus.latest(1)[0];
        let json = serde_json::to_value(event).unwrap();
        assert_eq!(json["event"], event.what.name());
        assert_eq!((json["id"].as_u64(), json["generation"].as_u64()), (Some(1), Some(7)));
    }
}
