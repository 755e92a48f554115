//! Remembers which client a trusted sender of datagrams has named, for senders whose first datagram carries a
//! PROXY protocol header and whose further ones are content only. A name is remembered whether or not a flow
//! came about. If a refusal made Weir forget it, the refused client's next datagram would be parsed as a
//! header, and the client chooses its content.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most names without a flow at one listener: all ports of one sender, about 10 MiB. Beyond that the one that
/// has been silent longest is forgotten.
pub const MOST_NAMED: usize = 65_536;

/// Shards of the table, so that workers seldom wait for each other.
const SHARDS: usize = 16;

/// The first word of the lines that hand names to the next process.
const WORD: &str = "named";

/// The two ends of a datagram: its sender, and our address that received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SenderEnds {
    /// The sender.
    pub peer: SocketAddr,
    /// Our address.
    pub own: SocketAddr,
}

/// The client that a sender has named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedClient {
    /// The client.
    pub client: SocketAddr,
    /// The destination that the client used, if the header gives one.
    pub asked: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug)]
struct Name {
    of: NamedClient,
    /// Flows that use this name; it is not forgotten while there are any.
    flows: u32,
    /// When the sender, or a flow of it, was last active.
    heard: Duration,
}

#[derive(Debug, Default)]
struct Names {
    by_ends: HashMap<SenderEnds, Name>,
    /// Every name once, roughly in the order of last activity, with its time.
    order: VecDeque<(SenderEnds, Duration)>,
    /// How many names have flows.
    with_flows: usize,
}

impl Names {
    /// Forgets names that have been silent for `idle`, and more while there are too many; returns the number
    /// of the latter.
    fn make_room(&mut self, now: Duration, idle: Duration) -> u64 {
        let mut forgotten = 0;
        while let Some(&(ends, noted)) = self.order.front() {
            let is_full = self.by_ends.len() - self.with_flows >= MOST_NAMED / SHARDS;
            if !is_full && noted + idle > now {
                break;
            }
            self.order.pop_front();
            let Some(name) = self.by_ends.get(&ends) else { continue };
            if name.flows > 0 {
                self.order.push_back((ends, now));
            } else if name.heard > noted {
                self.order.push_back((ends, name.heard));
            } else {
                forgotten += u64::from(name.heard + idle > now);
                self.by_ends.remove(&ends);
            }
        }
        forgotten
    }
}

/// The names of one listener, for all workers; kept across reloads. Looked up for datagrams without a known
/// flow.
#[derive(Debug, Default)]
pub struct NamedClients {
    shards: [Mutex<Names>; SHARDS],
    hasher: RandomState,
}

impl NamedClients {
    fn shard(&self, ends: &SenderEnds) -> MutexGuard<'_, Names> {
        let number = self.hasher.hash_one(ends) as usize % SHARDS;
        self.shards[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client that the sender has named, unless it has been silent for `idle` since. Counts as activity.
    pub fn find(&self, ends: &SenderEnds, now: Duration, idle: Duration) -> Option<NamedClient> {
        let mut names = self.shard(ends);
        let name = names.by_ends.get_mut(ends)?;
        if name.flows == 0 && name.heard + idle <= now {
            return None;
        }
        name.heard = now;
        Some(name.of)
    }

    /// Records that the sender has named `of`. Returns how many names had to be forgotten early for it.
    pub fn remember(&self, ends: SenderEnds, of: NamedClient, now: Duration, idle: Duration) -> u64 {
        let names = &mut *self.shard(&ends);
        let forgotten = names.make_room(now, idle);
        match names.by_ends.entry(ends) {
            Entry::Occupied(mut known) => {
                let flows = known.get().flows;
                known.insert(Name { of, flows, heard: now });
            }
            Entry::Vacant(place) => {
                place.insert(Name { of, flows: 0, heard: now });
                names.order.push_back((ends, now));
            }
        }
        forgotten
    }

    /// Records that a flow uses the name.
    pub fn begin_flow(&self, ends: &SenderEnds) {
        let names = &mut *self.shard(ends);
        if let Some(name) = names.by_ends.get_mut(ends) {
            name.flows += 1;
            names.with_flows += usize::from(name.flows == 1);
        }
    }

    /// Records the end of a flow begun with [`Self::begin_flow`], last active at `heard`.
    pub fn end_flow(&self, ends: &SenderEnds, heard: Duration) {
        let names = &mut *self.shard(ends);
        if let Some(name) = names.by_ends.get_mut(ends).filter(|name| name.flows > 0) {
            name.flows -= 1;
            name.heard = name.heard.max(heard);
            names.with_flows -= usize::from(name.flows == 0);
        }
    }

    /// The lines for the next process, each with its line end: `named LISTENER PEER OWN CLIENT ASKED
    /// SILENT_MS`.
    pub fn lines(&self, listener: &str, now: Duration, idle: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        for shard in &self.shards {
            let names = shard.lock().unwrap_or_else(PoisonError::into_inner);
            for (SenderEnds { peer, own }, name) in &names.by_ends {
                let silent = if name.flows > 0 { Duration::ZERO } else { now.saturating_sub(name.heard) };
                if silent < idle {
                    let NamedClient { client, asked } = name.of;
                    let asked = asked.map_or_else(|| "-".to_owned(), |asked| asked.to_string());
                    let silent_ms = silent.as_millis();
                    lines.push(format!("{WORD} {listener} {peer} {own} {client} {asked} {silent_ms}\n"));
                }
            }
        }
        lines
    }
}

/// Names handed over by the previous process: lines of [`NamedClients::lines`].
#[derive(Debug, Default)]
pub struct CarriedNames(Vec<(String, SenderEnds, NamedClient, Duration)>);

impl CarriedNames {
    /// Takes a line if it is one of these; keeps at most as many names as four listeners may have.
    pub fn take(&mut self, line: &str) {
        let [WORD, listener, peer, own, client, asked, silent, ..] = line.split(' ').collect::<Vec<_>>()[..]
        else {
            return;
        };
        let asked = match asked {
            "-" => Ok(None),
            asked => asked.parse().map(Some),
        };
        if let (Ok(peer), Ok(own), Ok(client), Ok(asked)) = (peer.parse(), own.parse(), client.parse(), asked)
            && let Ok(silent_ms) = silent.parse()
            && self.0.len() < 4 * MOST_NAMED
        {
            let silent = Duration::from_millis(silent_ms);
            self.0.push((
                listener.to_owned(),
                SenderEnds { peer, own },
                NamedClient { client, asked },
                silent,
            ));
        }
    }

    /// Puts the names into listeners before they serve; `of` gives a listener's names and `client_idle`.
    pub fn apply<'n>(&self, now: Duration, of: impl Fn(&str) -> Option<(&'n NamedClients, Duration)>) {
        for (listener, ends, named, silent) in &self.0 {
            if let Some((names, idle)) = of(listener) {
                names.remember(*ends, *named, now.saturating_sub(*silent), idle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    fn from(port: usize) -> SenderEnds {
        let peer = SocketAddr::from(([10, 0, (port / 50_000) as u8, 1], (port % 50_000) as u16));
        SenderEnds { peer, own: "10.0.0.9:53".parse().unwrap() }
    }

    fn client(last: u8) -> NamedClient {
        NamedClient { client: SocketAddr::from(([203, 0, 113, last], 5353)), asked: None }
    }

    #[test]
    fn a_name_is_known_until_its_sender_has_been_silent_for_the_time_and_while_a_flow_goes_by_it() {
        let named = NamedClients::default();
        let ends = from(1);
        assert_eq!(named.find(&ends, SECOND, IDLE), None);
        assert_eq!(named.remember(ends, client(1), SECOND, IDLE), 0);
        assert_eq!(named.find(&ends, 60 * SECOND, IDLE), Some(client(1)));
        assert_eq!(named.find(&ends, 119 * SECOND, IDLE), Some(client(1)), "it was heard of in between");
        assert_eq!(named.find(&ends, 179 * SECOND, IDLE), None);
        named.remember(ends, client(2), 180 * SECOND, IDLE);
        named.begin_flow(&ends);
        assert_eq!(named.remember(from(2), client(3), 999 * SECOND, IDLE), 0);
        assert_eq!(named.find(&ends, 999 * SECOND, IDLE), Some(client(2)));
        named.end_flow(&ends, 1000 * SECOND);
        assert_eq!(named.find(&ends, 1059 * SECOND, IDLE), Some(client(2)));
        assert_eq!(named.find(&ends, 1119 * SECOND, IDLE), None);
    }

    #[test]
    fn there_is_room_for_so_many_and_then_the_ones_silent_longest_are_forgotten_and_counted() {
        let named = NamedClients::default();
        let kept = from(0);
        named.remember(kept, client(1), SECOND, IDLE);
        named.begin_flow(&kept);
        let most = 2 * MOST_NAMED;
        let forgotten =
            |now| (1..=most).map(|port| named.remember(from(port), client(2), now, IDLE)).sum::<u64>();
        let first = forgotten(SECOND) as usize;
        assert!(first >= MOST_NAMED && first < most, "{first}");
        let held = || named.shards.iter().map(|it| it.lock().unwrap().by_ends.len()).sum::<usize>();
        assert!(held() <= MOST_NAMED + 1, "{}", held());
        assert_eq!(named.find(&kept, SECOND, IDLE), Some(client(1)), "a flow goes by it");
        assert_eq!(named.find(&from(most), SECOND, IDLE), Some(client(2)));
        // Names whose flows have ended are not forgotten early.
        (0..SHARDS * 64).for_each(|port| {
            assert_eq!(named.remember(from(port + 1), client(2), 99 * SECOND, IDLE), 0);
        });
        assert!(held() < MOST_NAMED, "{}", held());
    }

    #[test]
    fn the_next_process_is_told_names_whose_time_is_not_over() {
        let named = NamedClients::default();
        let asked = Some("192.0.2.53:53".parse().unwrap());
        let scoped =
            SenderEnds { peer: "[fe80::1%3]:9".parse().unwrap(), own: "[fe80::2]:53".parse().unwrap() };
        named.remember(scoped, NamedClient { asked, ..client(1) }, 50 * SECOND, IDLE);
        named.remember(from(2), client(2), SECOND, IDLE);
        let mut carried = CarriedNames::default();
        for line in named.lines("dns", 100 * SECOND, IDLE) {
            carried.take(line.trim_end());
        }
        for line in ["named dns", "named dns a b c - 0", "state app 10.0.0.1:80 drain up 0 -"] {
            carried.take(line);
        }
        let silent = 50 * SECOND;
        assert_eq!(carried.0, [("dns".to_owned(), scoped, NamedClient { asked, ..client(1) }, silent)]);
    }
}
