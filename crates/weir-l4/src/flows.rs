//! The program's flow tables: read, and swept, one batch at a time.
//!
//! A million flows are two million entries. They are never all in memory: the fate of an entry is decided
//! from it alone, or from it and the entry for the other direction.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, MapError};

use crate::bpf::{BatchCursor, delete_batch, lookup_batch};
use crate::layout::{Direction, Flow, FlowKey4, FlowKey6, Forward, SEEN_DATA, SEEN_FIN, SEEN_RST, TCP};

/// Entries read at a time; no bucket in the kernel has as many.
const BATCH: usize = 4_096;

/// How long a flow is kept after both sides have ended it, so that late segments still get through.
const OVER: Duration = Duration::from_secs(10);
/// The same for full-NAT: as long as the backend may keep the connection in TIME-WAIT (a minute on Linux),
/// since the port could be reused for another client.
const OVER_BY_FULL_NAT: Duration = Duration::from_secs(60);
/// The same for DSR and IP-in-IP: only the client's end was seen, and the backend may continue for this long.
const OVER_ONE_WAY: Duration = Duration::from_secs(120);
/// With DSR or IP-in-IP, how long a client that has ended a connection may be silent while the backend still
/// sends: longer than the acknowledgements of a download are apart, even over a link with some loss.
const ENDING: Duration = Duration::from_secs(5);
/// After its own end, a client that sends nothing later than this many ticks has only acknowledged the
/// backend's end.
const FAREWELL_TICKS: u32 = 2;
/// How long a connection is kept if its backend or its client has not answered yet.
const OPENING: Duration = Duration::from_secs(60);
/// How long a direct flow, past the listeners, is remembered; the next packet adds it again.
const DIRECT_IDLE: Duration = Duration::from_secs(60);

/// One tick of the program's clock: 2^30 ns.
const TICK_BITS: u32 = 30;

/// A CLOCK_MONOTONIC time, or a duration, in ticks, rounded up.
pub fn ticks(time: Duration) -> u32 {
    (time.as_nanos().div_ceil(1 << TICK_BITS)) as u32
}

/// The duration of this many ticks.
pub fn span_of(ticks: u32) -> Duration {
    Duration::from_nanos(u64::from(ticks) << TICK_BITS)
}

/// Result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Number of flows that stay, by number of their listener.
    pub by_listener: BTreeMap<u32, u64>,
    /// How many of those are not over.
    pub open_by_listener: BTreeMap<u32, u64>,
    /// Flows that stay and are not over, by number of their backend.
    pub by_backend: BTreeMap<u32, u64>,
    /// How many of those the client has ended and then acknowledged at most the backend's end: most of them
    /// are over, and the program counts them as such.
    pub ended_by_backend: BTreeMap<u32, u64>,
}

/// The state of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// TCP: the handshake is not complete.
    Opening,
    /// Packets are or may be sent in both directions; every UDP flow.
    Open,
    /// TCP: both sides have ended it, or one has reset it. With DSR and IP-in-IP, where only the client is
    /// seen: it has ended it, and has been silent for 5 s.
    Over,
    /// A client uses a backend by its own address, past the listeners.
    Direct,
}

impl Stage {
    /// The word for it in `weir flows`.
    pub const fn word(self) -> &'static str {
        match self {
            Stage::Opening => "opening",
            Stage::Open => "open",
            Stage::Over => "over",
            Stage::Direct => "direct",
        }
    }

    /// The stage of a flow at this tick, from the entry to its backend, and the one to its client if needed.
    fn of(key: &FlowKey6, flow: &Flow, now: u32, other: &mut dyn FnMut() -> Option<Flow>) -> Stage {
        if flow.direction == Direction::Direct as u8 {
            return Stage::Direct;
        }
        if key.protocol != TCP {
            return Stage::Open;
        }
        // A reset is recorded in both directions, but a FIN only in its own.
        if flow.seen & SEEN_RST != 0 {
            return Stage::Over;
        }
        if flow.seen & SEEN_FIN != 0 {
            let is_over = match is_one_way(flow) {
                true => now.saturating_sub(flow.last_tick) > ticks(ENDING),
                false => other().is_none_or(|other| other.seen & SEEN_FIN != 0),
            };
            return if is_over { Stage::Over } else { Stage::Open };
        }
        // A client that has not sent an acknowledgement has not seen the backend's answer.
        if flow.seen & SEEN_DATA == 0 { Stage::Opening } else { Stage::Open }
    }

    /// Its longest silence, if its listener allows `idle`.
    fn patience(self, flow: &Flow, idle: Duration) -> Duration {
        match self {
            Stage::Opening => OPENING.min(idle),
            Stage::Open => idle,
            Stage::Over if flow.forward == Forward::FullNat as u8 => OVER_BY_FULL_NAT,
            Stage::Over if is_one_way(flow) => OVER_ONE_WAY.min(idle),
            Stage::Over => OVER,
            Stage::Direct => DIRECT_IDLE,
        }
    }
}

/// Whether answers of its backend bypass this host.
fn is_one_way(flow: &Flow) -> bool {
    flow.forward >= Forward::Dsr as u8
}

/// Whether the client of a flow has ended it and then acknowledged at most the backend's end, for flows where
/// only the client is seen.
fn is_ended(key: &FlowKey6, flow: &Flow) -> bool {
    let since_then = flow.last_tick.wrapping_sub(flow.sequence);
    key.protocol == TCP && is_one_way(flow) && flow.seen & SEEN_FIN != 0 && since_then < FAREWELL_TICKS
}

/// A flow, as `weir flows` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The source and destination of its packets, as the client sends them.
    pub key: FlowKey6,
    /// How they are forwarded.
    pub flow: Flow,
    /// Its stage.
    pub stage: Stage,
    /// Time since its last packet, in either direction.
    pub silent: Duration,
}

/// The flow tables of both families. It has its own descriptors, as another thread may hold the program.
pub struct FlowTables {
    /// For each, settled flows and flows that are opening.
    four: [Table<FlowKey4>; 2],
    six: [Table<FlowKey6>; 2],
}

impl FlowTables {
    /// From descriptors of `flows4` and `opening4`, and of `flows6` and `opening6`.
    pub fn new(four: [OwnedFd; 2], six: [OwnedFd; 2]) -> Result<FlowTables, MapError> {
        let ([settled4, opening4], [settled6, opening6]) = (four, six);
        Ok(FlowTables {
            four: [Table::new(settled4)?, Table::new(opening4)?],
            six: [Table::new(settled6)?, Table::new(opening6)?],
        })
    }

    /// Passes each flow to `take`, until that returns `false`. `now` is the CLOCK_MONOTONIC time. Flows that
    /// are added or removed meanwhile may be missed.
    pub fn each(&self, now: Duration, take: &mut dyn FnMut(&Remembered) -> bool) -> io::Result<()> {
        let mut goes_on = true;
        for table in &self.four {
            table.each(now, &mut goes_on, take)?;
        }
        for table in &self.six {
            table.each(now, &mut goes_on, take)?;
        }
        Ok(())
    }

    /// Removes flows that were silent for too long, and counts those that stay. `idle` returns the longest
    /// silence for flows of the listener with this number; `now` is the CLOCK_MONOTONIC time. A million flows
    /// take most of a second; `meanwhile` is called every few milliseconds.
    pub fn sweep(
        &self,
        now: Duration,
        idle: &dyn Fn(u32) -> Duration,
        meanwhile: &mut dyn FnMut(),
    ) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for table in &self.four {
            table.sweep(ticks(now), idle, &mut swept, meanwhile)?;
        }
        for table in &self.six {
            table.sweep(ticks(now), idle, &mut swept, meanwhile)?;
        }
        Ok(swept)
    }
}

/// The tables of one family.
struct Table<K: aya::Pod> {
    map: OwnedFd,
    entries: HashMap<MapData, K, Flow>,
}

impl<K: aya::Pod + From<FlowKey6> + Into<FlowKey6>> Table<K> {
    fn new(map: OwnedFd) -> Result<Table<K>, MapError> {
        let another = map.try_clone().map_err(MapError::IoError)?;
        let entries = HashMap::try_from(Map::LruHashMap(MapData::from_fd(another)?))?;
        Ok(Table { map, entries })
    }

    /// The entry for the other direction of a flow; `None` if there is none, or it belongs to another flow by
    /// now.
    fn other(&self, key: &FlowKey6, flow: &Flow) -> Option<Flow> {
        let other = self.entries.get(&key.other_way(flow).into(), 0).ok()?;
        let is_its_own = (other.source, other.source_port) == (key.destination, key.destination_port)
            && (other.destination, other.destination_port) == (key.source, key.source_port);
        is_its_own.then_some(other)
    }

    /// Passes each batch to `take`, until that returns `false`.
    fn batches(&self, mut take: impl FnMut(&[K], &[Flow]) -> io::Result<bool>) -> io::Result<()> {
        let mut cursor = BatchCursor::default();
        let (mut keys, mut flows) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        loop {
            let is_more = lookup_batch(self.map.as_fd(), &mut cursor, &mut keys, &mut flows)?;
            if !take(&keys, &flows)? || !is_more {
                return Ok(());
            }
        }
    }

    fn each(
        &self,
        now: Duration,
        goes_on: &mut bool,
        take: &mut dyn FnMut(&Remembered) -> bool,
    ) -> io::Result<()> {
        let now = ticks(now);
        if !*goes_on {
            return Ok(());
        }
        self.batches(|keys, flows| {
            for (key, flow) in keys.iter().zip(flows) {
                let key: FlowKey6 = (*key).into();
                if flow.direction == Direction::ToClient as u8 {
                    continue;
                }
                let other = self.other(&key, flow);
                let last = other.map_or(flow.last_tick, |other| other.last_tick.max(flow.last_tick));
                let stage = Stage::of(&key, flow, now, &mut || other);
                let silent = span_of(now.saturating_sub(last));
                *goes_on = take(&Remembered { key, flow: *flow, stage, silent });
                if !*goes_on {
                    break;
                }
            }
            Ok(*goes_on)
        })
    }

    fn sweep(
        &self,
        now: u32,
        idle: &dyn Fn(u32) -> Duration,
        swept: &mut Swept,
        meanwhile: &mut dyn FnMut(),
    ) -> io::Result<()> {
        let mut gone: Vec<K> = Vec::new();
        self.batches(|keys, flows| {
            gone.clear();
            for (key, flow) in keys.iter().zip(flows) {
                let wide: FlowKey6 = (*key).into();
                let entry = SweptEntry { key: &wide, flow, now, idle: idle(flow.listener) };
                match entry.fate(&mut || self.other(&wide, flow)) {
                    Fate::Stays => {}
                    Fate::StaysOf(stage) => {
                        *swept.by_listener.entry(flow.listener).or_default() += 1;
                        if stage != Stage::Over {
                            *swept.open_by_listener.entry(flow.listener).or_default() += 1;
                            *swept.by_backend.entry(flow.backend).or_default() += 1;
                        }
                        if stage == Stage::Open && is_ended(&wide, flow) {
                            *swept.ended_by_backend.entry(flow.backend).or_default() += 1;
                        }
                    }
                    Fate::Goes => gone.push(*key),
                    Fate::GoesWithTheOther => gone.extend([*key, wide.other_way(flow).into()]),
                }
            }
            delete_batch(self.map.as_fd(), &gone)?;
            meanwhile();
            Ok(true)
        })
    }
}

/// One direction of a flow in a sweep.
struct SweptEntry<'e> {
    key: &'e FlowKey6,
    flow: &'e Flow,
    now: u32,
    idle: Duration,
}

/// What to do with an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It stays, and is counted with the other direction, or not at all.
    Stays,
    /// It stays, and counts as a flow in this stage.
    StaysOf(Stage),
    /// Remove it.
    Goes,
    /// Remove both directions.
    GoesWithTheOther,
}

impl SweptEntry<'_> {
    /// `other` looks up the other direction, which takes a system call: it is called only if this one does
    /// not suffice.
    fn fate(&self, other: &mut dyn FnMut() -> Option<Flow>) -> Fate {
        let (key, flow) = (self.key, self.flow);
        let mut known = None;
        let mut other = || *known.get_or_insert_with(&mut *other);
        if flow.direction == Direction::ToClient as u8 {
            // The entry to the backend represents the flow, as long as it exists.
            let is_left = self.is_silent(flow.last_tick, self.idle) && other().is_none();
            return if is_left { Fate::Goes } else { Fate::Stays };
        }
        let stage = Stage::of(key, flow, self.now, &mut other);
        let patience = stage.patience(flow, self.idle);
        if !self.is_silent(flow.last_tick, patience) {
            return if stage == Stage::Direct { Fate::Stays } else { Fate::StaysOf(stage) };
        }
        match stage {
            Stage::Direct => Fate::Goes,
            _ => match other() {
                Some(other) if !self.is_silent(other.last_tick, patience) => Fate::StaysOf(stage),
                Some(_) => Fate::GoesWithTheOther,
                None => Fate::Goes,
            },
        }
    }

    fn is_silent(&self, last: u32, patience: Duration) -> bool {
        self.now.saturating_sub(last) > ticks(patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{SEEN_SYN, UDP};

    const NOW: u32 = 100_000;
    const IDLE: Duration = Duration::from_secs(900);

    fn entry(protocol: u8, direction: Direction, seen: u8, silent: Duration) -> (FlowKey6, Flow) {
        let key = FlowKey6 { protocol, ..FlowKey6::default() };
        let flow =
            Flow { direction: direction as u8, seen, last_tick: NOW - ticks(silent), ..Flow::default() };
        (key, flow)
    }

    fn fate(protocol: u8, direction: Direction, seen: u8, silent: u64, other: Option<(u8, u64)>) -> Fate {
        let (key, flow) = entry(protocol, direction, seen, Duration::from_secs(silent));
        let other = other
            .map(|(seen, silent)| entry(protocol, Direction::ToClient, seen, Duration::from_secs(silent)).1);
        SweptEntry { key: &key, flow: &flow, now: NOW, idle: IDLE }.fate(&mut || other)
    }

    #[test]
    fn a_flow_goes_when_both_directions_are_silent_for_too_long() {
        let to_backend = |seen, silent, other| fate(TCP, Direction::ToBackend, seen, silent, other);
        assert_eq!(to_backend(SEEN_DATA, 899, None), Fate::StaysOf(Stage::Open));
        assert_eq!(to_backend(SEEN_DATA, 902, Some((SEEN_DATA, 10))), Fate::StaysOf(Stage::Open));
        assert_eq!(to_backend(SEEN_DATA, 902, Some((SEEN_DATA, 902))), Fate::GoesWithTheOther);
        assert_eq!(to_backend(SEEN_DATA, 902, None), Fate::Goes);
    }

    #[test]
    fn a_connection_that_waits_for_its_client_stays_though_its_backend_said_no_more_than_its_syn() {
        let waits = fate(TCP, Direction::ToBackend, SEEN_SYN | SEEN_DATA, 120, Some((SEEN_SYN, 120)));
        assert_eq!(waits, Fate::StaysOf(Stage::Open));
    }

    #[test]
    fn a_handshake_that_is_not_through_goes_after_a_minute() {
        let opening = |silent| fate(TCP, Direction::ToBackend, SEEN_SYN, silent, Some((SEEN_SYN, silent)));
        assert_eq!(opening(59), Fate::StaysOf(Stage::Opening));
        assert_eq!(opening(62), Fate::GoesWithTheOther);
    }

    #[test]
    fn a_connection_that_is_over_goes_soon_and_one_side_alone_does_not_end_it() {
        let seen = SEEN_DATA | SEEN_FIN;
        let ended = |seen, silent, other| fate(TCP, Direction::ToBackend, seen, silent, other);
        assert_eq!(ended(seen, 5, Some((seen, 5))), Fate::StaysOf(Stage::Over));
        assert_eq!(ended(seen, 12, Some((seen, 12))), Fate::GoesWithTheOther);
        assert_eq!(ended(seen, 12, Some((SEEN_DATA, 12))), Fate::StaysOf(Stage::Open));
        assert_eq!(ended(SEEN_DATA | SEEN_RST, 12, Some((SEEN_DATA, 12))), Fate::GoesWithTheOther);
    }

    /// A download may go on for hours after its client has said all.
    #[test]
    fn past_the_plane_a_client_that_acknowledges_after_its_end_has_its_connection_open() {
        for forward in [Forward::Dsr, Forward::Ipip] {
            let sweeps = |silent: u64, ticks_after_its_end: u32| {
                let seen = SEEN_DATA | SEEN_FIN;
                let (key, flow) = entry(TCP, Direction::ToBackend, seen, Duration::from_secs(silent));
                let sequence = flow.last_tick - ticks_after_its_end;
                let flow = Flow { forward: forward as u8, sequence, ..flow };
                let fate = SweptEntry { key: &key, flow: &flow, now: NOW, idle: IDLE }.fate(&mut || None);
                (fate, is_ended(&key, &flow))
            };
            assert_eq!(sweeps(0, 0), (Fate::StaysOf(Stage::Open), true));
            assert_eq!(sweeps(5, 1), (Fate::StaysOf(Stage::Open), true), "that was its farewell");
            assert_eq!(sweeps(5, 2), (Fate::StaysOf(Stage::Open), false));
            assert_eq!(sweeps(0, 10_000), (Fate::StaysOf(Stage::Open), false));
            assert_eq!(sweeps(8, 10_000), (Fate::StaysOf(Stage::Over), false));
            assert_eq!(sweeps(119, 0), (Fate::StaysOf(Stage::Over), true));
            assert_eq!(sweeps(122, 10_000), (Fate::Goes, false));
        }
        let (key, flow) = entry(TCP, Direction::ToBackend, SEEN_DATA | SEEN_FIN | SEEN_RST, Duration::ZERO);
        let flow = Flow { forward: Forward::Dsr as u8, sequence: 1, ..flow };
        let fate = SweptEntry { key: &key, flow: &flow, now: NOW, idle: IDLE }.fate(&mut || None);
        assert_eq!(fate, Fate::StaysOf(Stage::Over), "and who breaks it off has not");
    }

    #[test]
    fn a_port_of_full_nat_is_kept_from_others_while_the_backend_may_wait() {
        let (key, flow) = entry(TCP, Direction::ToBackend, SEEN_DATA | SEEN_RST, Duration::from_secs(12));
        let flow = Flow { forward: Forward::FullNat as u8, ..flow };
        let fate = |now| SweptEntry { key: &key, flow: &flow, now, idle: IDLE }.fate(&mut || None);
        assert_eq!(fate(NOW), Fate::StaysOf(Stage::Over));
        assert_eq!(fate(NOW + ticks(Duration::from_secs(50))), Fate::Goes);
    }

    #[test]
    fn a_way_back_goes_only_when_it_is_left_alone() {
        let back = |silent, other| fate(UDP, Direction::ToClient, SEEN_DATA, silent, other);
        assert_eq!(back(902, Some((SEEN_DATA, 0))), Fate::Stays);
        assert_eq!(back(902, None), Fate::Goes);
        assert_eq!(back(10, None), Fate::Stays);
    }

    #[test]
    fn what_is_asked_past_the_listeners_is_counted_for_none_and_goes_after_a_minute() {
        assert_eq!(fate(TCP, Direction::Direct, 0, 59, None), Fate::Stays);
        assert_eq!(fate(TCP, Direction::Direct, 0, 62, None), Fate::Goes);
    }
}
