//! Flows that the program remembers: read, and swept, a batch at a time.
//!
//! A million flows are two million entries. None of this holds them all: what becomes of an entry is decided
//! from it alone, or from it and the entry of its other direction.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use aya::maps::{HashMap, Map, MapData, MapError};

use crate::bpf::{BatchCursor, delete_batch, lookup_batch};
use crate::layout::{Direction, Flow, FlowKey4, FlowKey6, Forward, SEEN_DATA, SEEN_FIN, SEEN_RST, TCP};

/// Entries that are read at a time; no bucket of the kernel's has as many.
const BATCH: usize = 4_096;

/// What a flow to a client is followed for after both sides have ended it: late segments still find their
/// way.
const OVER: Duration = Duration::from_secs(10);
/// The same by full-NAT: as long as the backend may keep the two ends to itself (TIME-WAIT, a minute on
/// Linux), since the port would be another client's then.
const OVER_BY_FULL_NAT: Duration = Duration::from_secs(60);
/// The same by DSR and IP-in-IP: only the client was heard to end it, and the backend may go on for as long.
const OVER_ONE_WAY: Duration = Duration::from_secs(120);
/// What a client that has ended a connection by DSR or IP-in-IP may be silent for while the backend still
/// sends: longer than acknowledgements of a download are apart, over a link that loses some as well.
const ENDING: Duration = Duration::from_secs(5);
/// Ticks after its own end in which a client acknowledges no more than that of the backend.
const FAREWELL_TICKS: u32 = 2;
/// What a connection is followed for whose backend, or whose client, has not answered yet.
const OPENING: Duration = Duration::from_secs(60);
/// What is asked past the listeners is remembered for; the next packet remembers it anew.
const DIRECT_IDLE: Duration = Duration::from_secs(60);

/// One tick of the program's clock: 2^30 ns.
const TICK_BITS: u32 = 30;

/// The ticks of a time on CLOCK_MONOTONIC, or of a span, rounded up.
pub fn ticks(time: Duration) -> u32 {
    (time.as_nanos().div_ceil(1 << TICK_BITS)) as u32
}

/// The span of so many ticks.
pub fn span_of(ticks: u32) -> Duration {
    Duration::from_nanos(u64::from(ticks) << TICK_BITS)
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Flows that stay, by number of their listener.
    pub by_listener: BTreeMap<u32, u64>,
    /// Of those the ones that are not over.
    pub open_by_listener: BTreeMap<u32, u64>,
    /// Flows that stay and are not over, by number of their backend.
    pub by_backend: BTreeMap<u32, u64>,
    /// Of those the ones whose client has ended them, and since acknowledged nothing but perhaps the
    /// backend's end: most are over, and the program counts them so.
    pub ended_by_backend: BTreeMap<u32, u64>,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// TCP: the handshake is not through.
    Opening,
    /// Packets go both ways, or may; every flow of UDP.
    Open,
    /// TCP: both sides have ended it, or one has broken it off. By DSR and IP-in-IP, where only the client is
    /// heard: it has ended it, and been silent for 5 s.
    Over,
    /// Somebody asks a backend by its own address, past the listeners.
    Direct,
}

impl Stage {
    /// The word that `weir flows` has for it.
    pub const fn word(self) -> &'static str {
        match self {
            Stage::Opening => "opening",
            Stage::Open => "open",
            Stage::Over => "over",
            Stage::Direct => "direct",
        }
    }

    /// Of a flow at this tick, by the entry to its backend, and by that to its client where it is needed.
    fn of(key: &FlowKey6, flow: &Flow, now: u32, other: &mut dyn FnMut() -> Option<Flow>) -> Stage {
        if flow.direction == Direction::Direct as u8 {
            return Stage::Direct;
        }
        if key.protocol != TCP {
            return Stage::Open;
        }
        // Either direction is told of a reset, but each has its own FIN.
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
        // Who has not sent an acknowledgement yet has not heard the backend.
        if flow.seen & SEEN_DATA == 0 { Stage::Opening } else { Stage::Open }
    }

    /// Its longest silence, where its listener allows `idle`.
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

/// Answers of its backend do not come by here.
fn is_one_way(flow: &Flow) -> bool {
    flow.forward >= Forward::Dsr as u8
}

/// Whether the client of a flow has ended it and acknowledged nothing since but perhaps the backend's end,
/// where only the client is heard.
fn is_ended(key: &FlowKey6, flow: &Flow) -> bool {
    let since_then = flow.last_tick.wrapping_sub(flow.sequence);
    key.protocol == TCP && is_one_way(flow) && flow.seen & SEEN_FIN != 0 && since_then < FAREWELL_TICKS
}

/// A flow, as `weir flows` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Where its packets come from and go to, as the client sends them.
    pub key: FlowKey6,
    /// What they become.
    pub flow: Flow,
    /// How far it has come.
    pub stage: Stage,
    /// Since its last packet, of either direction.
    pub silent: Duration,
}

/// The tables of flows of both families. A handle of its own: another thread may hold the program.
pub struct FlowTables {
    /// Those that are settled, and those that are opening.
    four: [Table<FlowKey4>; 2],
    six: [Table<FlowKey6>; 2],
}

impl FlowTables {
    /// Of descriptors of `flows4` and `opening4`, and of `flows6` and `opening6`.
    pub fn new(four: [OwnedFd; 2], six: [OwnedFd; 2]) -> Result<FlowTables, MapError> {
        let ([settled4, opening4], [settled6, opening6]) = (four, six);
        Ok(FlowTables {
            four: [Table::new(settled4)?, Table::new(opening4)?],
            six: [Table::new(settled6)?, Table::new(opening6)?],
        })
    }

    /// Shows each flow to `take`, until that says `false`. `now` is the time on CLOCK_MONOTONIC. Flows that
    /// come or go meanwhile may be missed.
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

    /// Lets flows go that were silent for too long, and counts those that stay. `idle` is the longest silence
    /// of a flow of the listener of this number, `now` the time on CLOCK_MONOTONIC. A million flows take most
    /// of a second; `meanwhile` is called every few milliseconds.
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

/// The table of a family.
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

    /// The other direction of a flow: nothing when that is not remembered, or is another flow's by now.
    fn other(&self, key: &FlowKey6, flow: &Flow) -> Option<Flow> {
        let other = self.entries.get(&key.other_way(flow).into(), 0).ok()?;
        let is_its_own = (other.source, other.source_port) == (key.destination, key.destination_port)
            && (other.destination, other.destination_port) == (key.source, key.source_port);
        is_its_own.then_some(other)
    }

    /// Gives each batch to `take`, until that says `false`.
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

/// One direction of a flow, as a sweep meets it.
struct SweptEntry<'e> {
    key: &'e FlowKey6,
    flow: &'e Flow,
    now: u32,
    idle: Duration,
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It stays, and is counted with its other direction, or with none.
    Stays,
    /// It stays, and stands for its flow.
    StaysOf(Stage),
    /// It goes.
    Goes,
    /// Both directions go.
    GoesWithTheOther,
}

impl SweptEntry<'_> {
    /// `other` looks up the other direction, which costs a call of the kernel: it is asked for what this one
    /// does not tell.
    fn fate(&self, other: &mut dyn FnMut() -> Option<Flow>) -> Fate {
        let (key, flow) = (self.key, self.flow);
        let mut known = None;
        let mut other = || *known.get_or_insert_with(&mut *other);
        if flow.direction == Direction::ToClient as u8 {
            // The direction to the backend stands for the flow, as long as it is remembered.
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
