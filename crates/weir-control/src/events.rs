//! What happened lately, for `GET /v1/events` and the status page.

use std::collections::VecDeque;
use std::sync::Mutex;

use serde::Serialize;
use tokio::sync::broadcast;

use crate::cluster::Receipt;
use crate::lock;
use crate::timestamp::Timestamp;

/// Events kept for those who come later, and the lead a slow reader may fall behind by before it misses some.
const KEPT: usize = 256;

/// Something that happened.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    /// Counts from 1.
    pub id: u64,
    /// When.
    pub time: Timestamp,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened. The variant's word is the event's name.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// A reload was tried.
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
    /// Real traffic had a backend ejected.
    Ejected {
        /// Its pool.
        pool: String,
        /// Its address as configured.
        backend: String,
        /// For how long, in seconds.
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
    /// A pool has another group of backends to choose from than before.
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
    /// An operator switched a part of the service off, or on again.
    Maintenance {
        /// Which.
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
    /// Keys for signed tokens were fetched, and are others than before, or there were none to be had; or
    /// can't be fetched.
    TokenKeys {
        /// The URL, without its query.
        source: String,
        /// `fetched`, `failed` (those of before hold), `stale` (they hold no more) or `none` (there are
        /// none yet).
        result: &'static str,
        /// How many they are, or why there are none.
        detail: String,
    },
    /// A server of a watched cluster has another role now.
    Role {
        /// Name of the pool.
        pool: String,
        /// Its address as configured, or as its group says it.
        backend: String,
        /// `primary`, `secondary` or `none`.
        role: &'static str,
    },
    /// A watched cluster has a member that no config names, or has it no more; or a name stands for another
    /// backend, or for one no more.
    Roster {
        /// Name of the pool.
        pool: String,
        /// Its address as its group or the name's answer says it.
        backend: String,
        /// What became of it.
        change: String,
    },
    /// There is a primary again after one was lost, or handed over.
    Failover {
        /// Name of the pool.
        pool: String,
        /// How it went.
        #[serde(flatten)]
        receipt: Receipt,
    },
    /// A host name stands for another address now.
    Resolved {
        /// The backend's address as configured.
        backend: String,
        /// What it stands for.
        address: String,
    },
    /// A certificate was got by ACME, or could not be, or an operator has put one there or taken it out.
    Certificate {
        /// What it is for.
        names: String,
        /// `issued`, `renewed`, `failed`, `uploaded` or `removed`.
        change: &'static str,
        /// Until when it is good, what went wrong, or its file.
        detail: String,
    },
    /// The kernel plane takes packets at an interface, does so no more, or was found not to.
    Kernel {
        /// `attached`, `detached` or `lost`.
        change: &'static str,
        /// Its name.
        interface: String,
    },
    /// An interface that listeners are bound to is no more, or is listened at again.
    Interface {
        /// `gone` or `back`.
        change: &'static str,
        /// Its name.
        interface: String,
    },
    /// File descriptors ran out and idle connections were shed.
    DescriptorsShort {
        /// How many.
        shed: usize,
    },
    /// The process goes through a change of its own life: `started`, `upgrading`, `upgrade_failed`,
    /// `upgraded`, `draining`.
    Process {
        /// Which.
        phase: &'static str,
        /// More about it.
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

/// Where events go and come from.
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
    /// Tells everybody. Never blocks; nobody listening is no mistake.
    pub fn tell(&self, what: What) {
        let mut kept = lock(&self.kept);
        kept.last_id += 1;
        let event = Event { id: kept.last_id, time: Timestamp::now(), what };
        if kept.events.len() == KEPT {
            kept.events.pop_front();
        }
        kept.events.push_back(event.clone());
        // Sent under the lock, so that a subscriber sees every event once: either kept or live.
        let _ = self.live.send(event);
    }

    /// Events after number `id` that are still kept, and all that come.
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
