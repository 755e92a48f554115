//! Queries to the kernel while its owner works: which flows are in the table, and what would happen to a
//! packet. They use their own handles, so that no query delays a failover.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use weir_config::show_backend;
use weir_l4::explain::{Explained, Explainer, Packet};
use weir_l4::flows::{FlowTables, Remembered};
use weir_l4::host::Host;
use weir_l4::layout::{Forward, TCP, TraceStep, Verdict};
use weir_l4::program::Sizes;

use super::clock::monotonic;
use super::{Named, Seen};
use crate::lock;

/// Handles of the program's maps, and the program for explanations.
#[derive(Default)]
pub(super) struct Views {
    flows: OnceLock<FlowTables>,
    /// The directory where the program is pinned, and its table sizes.
    place: OnceLock<(PathBuf, Sizes)>,
    /// `Err` is the reason why the kernel rejected it.
    explainer: OnceLock<Result<Mutex<Explainer>, String>>,
}

/// A flow in the kernel's table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlowRow {
    /// `tcp` or `udp`.
    pub protocol: String,
    /// `opening`, `open`, `over`, or `direct` for a backend that is asked directly, past the listeners.
    pub stage: String,
    /// Name of its listener; `None` if it was removed, and for direct flows.
    pub listener: Option<String>,
    /// Name of its backend's pool; `None` as above.
    pub pool: Option<String>,
    /// The client's address.
    pub client: SocketAddr,
    /// The address that the client sends to.
    pub destination: SocketAddr,
    /// The backend's address.
    pub backend: SocketAddr,
    /// The client's address as the backend sees it, if the address or port differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_as: Option<SocketAddr>,
    /// Time since its last packet in either direction, to about a second.
    pub silent_seconds: f64,
}

/// Which flows to list: those that match all of the given conditions.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlowFilter {
    /// With this listener.
    pub listener: Option<String>,
    /// With a backend of this pool.
    pub pool: Option<String>,
    /// With this backend, given with or without port.
    pub backend: Option<String>,
    /// With this client, given with or without port.
    pub client: Option<String>,
    /// In this stage.
    pub stage: Option<String>,
    /// Most rows to return; the others are still counted.
    pub limit: Option<usize>,
}

/// Most rows if the filter has no limit.
const ROWS: usize = 1_000;
/// Most rows of one answer.
const MOST_ROWS: usize = 100_000;

/// The result.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Flows {
    /// Number of flows that match the filter.
    pub matching: u64,
    /// Number of all flows.
    pub all: u64,
    /// The first of the matching flows.
    pub flows: Vec<FlowRow>,
}

/// An address with an optional port.
struct Place(IpAddr, Option<u16>);

impl Place {
    fn read(text: &str) -> Result<Place, String> {
        if let Ok(whole) = text.parse::<SocketAddr>() {
            return Ok(Place(whole.ip(), Some(whole.port())));
        }
        let address = text.trim_start_matches('[').trim_end_matches(']').parse();
        address
            .map(|address| Place(address, None))
            .map_err(|_| format!("`{text}` is no address, expected one like 10.0.0.1 or 10.0.0.1:80"))
    }

    fn is(&self, address: SocketAddr) -> bool {
        self.0 == address.ip() && self.1.is_none_or(|port| port == address.port())
    }
}

impl Views {
    /// Opens the tables once the program with these sizes is pinned below `directory`. The program for
    /// explanations is loaded for the first caller: it takes as long as the other, and would delay the start.
    pub(super) fn open(&self, flows: FlowTables, directory: &Path, sizes: Sizes) {
        let _ = self.flows.set(flows);
        let _ = self.place.set((directory.to_owned(), sizes));
    }

    /// `None` before the program is loaded.
    fn explainer(&self) -> Option<&Result<Mutex<Explainer>, String>> {
        let (directory, sizes) = self.place.get()?;
        Some(self.explainer.get_or_init(|| {
            let explainer = Explainer::open(directory, *sizes);
            explainer.map(Mutex::new).map_err(|error| error.to_string())
        }))
    }

    /// The flows that match `filter`. A million flows take about a second.
    pub(super) fn flows(&self, seen: &Seen, filter: &FlowFilter) -> Result<Flows, String> {
        let Some(tables) = self.flows.get() else { return Ok(Flows::default()) };
        let place = |text: &Option<String>| text.as_deref().map(Place::read).transpose();
        let (backend, client) = (place(&filter.backend)?, place(&filter.client)?);
        let limit = filter.limit.unwrap_or(ROWS).min(MOST_ROWS);
        let named = seen.named();
        let mut found = Flows::default();
        let mut take = |one: &Remembered| {
            found.all += 1;
            let row = row(one, &named);
            let is_asked_for = backend.as_ref().is_none_or(|backend| backend.is(row.backend))
                && client.as_ref().is_none_or(|client| client.is(row.client))
                && filter.listener.as_ref().is_none_or(|name| row.listener.as_ref() == Some(name))
                && filter.pool.as_ref().is_none_or(|name| row.pool.as_ref() == Some(name))
                && filter.stage.as_ref().is_none_or(|stage| *stage == row.stage);
            if is_asked_for {
                found.matching += 1;
                if found.flows.len() < limit {
                    found.flows.push(row);
                }
            }
            true
        };
        tables.each(monotonic(), &mut take).map_err(|error| error.to_string())?;
        Ok(found)
    }

    /// What would happen to a packet.
    pub(super) fn explain(&self, seen: &Seen, packet: &Packet) -> Result<Explanation, String> {
        let explainer = match self.explainer() {
            Some(Ok(explainer)) => explainer,
            Some(Err(error)) => return Err(error.clone()),
            None => return Err("the kernel plane is not loaded".to_owned()),
        };
        let host = Host::read().map_err(|error| format!("the host's interfaces can't be read: {error}"))?;
        let routed = host.interface_to(packet.source.ip());
        let taken = |one: &&weir_l4::host::Interface| seen.interfaces.contains(&one.name);
        let by_route = host.interfaces.iter().find(|one| one.index == routed);
        let interface = by_route.filter(taken).or_else(|| host.interfaces.iter().find(taken));
        let interface = interface.ok_or("the kernel plane takes packets at no interface")?;
        let mut steps = Vec::new();
        let (source, destination) = (packet.source, packet.destination);
        let kind = if packet.protocol == TCP { "the first segment of a connection" } else { "a datagram" };
        steps.push(format!("{kind} from {source} to {destination} comes in by {}", interface.name));
        if let Some(by_route) = by_route.filter(|one| one.index != interface.index) {
            let name = &by_route.name;
            steps.push(format!("(the route back leads by {name}, where the kernel plane takes no packets)"));
        }
        let explained = lock(explainer).explain(packet, interface).map_err(|error| error.to_string())?;
        let mut explanation = Explanation::of(&explained, steps, &seen.named(), &host);
        explanation.steps.extend(way_back(&explained, &explanation, seen));
        Ok(explanation)
    }
}

/// What is wrong with the way back of answers to a packet.
fn way_back(explained: &Explained, explanation: &Explanation, seen: &Seen) -> Option<String> {
    let number = explained.steps.iter().find(|(step, _)| *step == TraceStep::Listener)?.1;
    let listener = seen.listeners.values().find(|listener| listener.number == Some(number))?;
    let backend = explanation.backend?;
    listener.unanswered.iter().find(|one| one.backend == backend).map(|one| format!("but {one}"))
}

fn row(one: &Remembered, named: &Named<'_>) -> FlowRow {
    let at = |address: weir_l4::layout::Address, port: [u8; 2]| {
        SocketAddr::new(address.into(), u16::from_be_bytes(port))
    };
    let client = at(one.key.source, one.key.source_port);
    let destination = at(one.key.destination, one.key.destination_port);
    let is_direct = one.stage == weir_l4::flows::Stage::Direct;
    let (pool, backend) = match (is_direct, named.backends.get(&one.flow.backend)) {
        // A backend without a port of its own is reached at the port that the client asked for.
        (false, Some((pool, backend))) if backend.port() != 0 => (Some((*pool).to_owned()), *backend),
        (false, Some((pool, _))) => {
            (Some((*pool).to_owned()), at(one.flow.destination, one.flow.destination_port))
        }
        (false, None) => (None, at(one.flow.destination, one.flow.destination_port)),
        // It was found in the table as an answer, so it comes from the backend.
        (true, _) => (None, client),
    };
    let (client, destination) = if is_direct { (destination, client) } else { (client, destination) };
    let seen_as = at(one.flow.source, one.flow.source_port);
    FlowRow {
        protocol: if one.key.protocol == TCP { "tcp" } else { "udp" }.to_owned(),
        stage: one.stage.word().to_owned(),
        listener: named
            .listeners
            .get(&one.flow.listener)
            .filter(|_| !is_direct)
            .map(|name| (*name).to_owned()),
        pool,
        client,
        destination,
        backend,
        // With IP-in-IP this is the source of outer packets, while the client's address stays inside.
        seen_as: (!is_direct && one.flow.forward < Forward::Dsr as u8 && seen_as != client)
            .then_some(seen_as),
        silent_seconds: one.silent.as_secs_f64(),
    }
}

/// What would happen to a packet, in words.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// Each step of the program, in order.
    pub steps: Vec<String>,
    /// The final action.
    pub action: String,
    /// The backend that it goes to; `None` if it goes to none.
    pub backend: Option<SocketAddr>,
    /// Its pool.
    pub pool: Option<String>,
}

impl Explanation {
    fn of(explained: &Explained, steps: Vec<String>, named: &Named<'_>, host: &Host) -> Explanation {
        let mut out = Explanation { steps, action: String::new(), backend: None, pool: None };
        for (step, value) in &explained.steps {
            out.step(*step, *value, explained, named, host);
        }
        out.action = match explained.verdict {
            None => "is left to this host's own stack".to_owned(),
            Some(verdict) => match (verdict, explained.becomes) {
                (Verdict::ToBackend | Verdict::ToClient, Some((from, to))) => {
                    format!("{}: leaves from {from} to {to}{}", verdict.word(), within(explained))
                }
                (verdict, _) => verdict.word().to_owned(),
            },
        };
        if !matches!(explained.verdict, Some(Verdict::ToBackend)) {
            (out.backend, out.pool) = (None, None);
        }
        out
    }

    fn goes_to(&mut self, number: u32, named: &Named<'_>) -> String {
        match named.backends.get(&number) {
            Some((pool, backend)) => {
                (self.backend, self.pool) = (Some(*backend), Some((*pool).to_owned()));
                show_backend(*backend)
            }
            None => "a backend that is gone".to_owned(),
        }
    }

    fn step(&mut self, step: TraceStep, value: u32, explained: &Explained, named: &Named<'_>, host: &Host) {
        let backend = |number| match named.backends.get(&number) {
            Some((_, backend)) => show_backend(*backend),
            None => "a backend that is gone".to_owned(),
        };
        let listener = || named.listeners.get(&value).copied().unwrap_or("that is gone").to_owned();
        let said = match step {
            TraceStep::Flow => {
                format!("it belongs to a flow that is remembered, to {}", self.goes_to(value, named))
            }
            TraceStep::Answers => format!("it belongs to the answers of {} to a client", backend(value)),
            TraceStep::Direct => "it belongs to what somebody asks past the listeners".to_owned(),
            TraceStep::BackendGone => format!("but {} is down or removed", backend(value)),
            TraceStep::BeginsAnew => "but that flow is over: the port begins another".to_owned(),
            TraceStep::Listener => {
                format!("no flow is remembered: it is a new one, for listener {}", listener())
            }
            TraceStep::Origin => format!("it comes from a backend of listener {}", listener()),
            TraceStep::Pool => return,
            TraceStep::SlotByHash => format!("its hash leads to slot {value} of the pool's table"),
            TraceStep::SlotByTurn => format!("it is the turn of slot {value}"),
            TraceStep::FewestFlows => format!("{value} flows, with this one, are the fewest for the weight"),
            TraceStep::PassedOver => format!("{} is passed over: it is down", backend(value)),
            TraceStep::Backend => format!("{} takes it", self.goes_to(value, named)),
            TraceStep::NotRemembered => "there is no room to remember it".to_owned(),
            TraceStep::Port => format!("the client's port is taken at the backend, which sees {value}"),
            TraceStep::Interface => {
                let name = host.interfaces.iter().find(|one| one.index == value).map(|one| one.name.as_str());
                format!("it leaves by {}", name.unwrap_or("an interface that is gone"))
            }
            TraceStep::Way => match value {
                0 => "the way is known from the flow's last packet".to_owned(),
                1 => "the way leads into another network namespace of this host".to_owned(),
                2 => "the way is looked up in this host's routes and neighbours".to_owned(),
                _ => "no route leads there".to_owned(),
            },
            TraceStep::HostSocket => {
                "no flow is remembered: a socket of this host has its connection, of the proxy plane"
                    .to_owned()
            }
            TraceStep::Mtu if value == 0 => "how much fits is not known yet".to_owned(),
            TraceStep::Mtu => format!("{value} bytes fit"),
            TraceStep::Verdict => match explained.becomes {
                Some((from, to)) => {
                    format!("{}, from {from} to {to}{}", verdict_word(value), within(explained))
                }
                None => verdict_word(value).to_owned(),
            },
        };
        self.steps.push(said);
    }
}

fn within(explained: &Explained) -> String {
    let outer = explained.within.map(|(from, to)| format!(", within a packet from {from} to {to}"));
    outer.unwrap_or_default()
}

fn verdict_word(number: u32) -> &'static str {
    Verdict::ALL.get(number as usize).map_or("ends in a way that is not known", |verdict| verdict.word())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_with_its_port_or_without() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let is = |place: &str, address: &str| Place::read(place).unwrap().is(at(address));
        assert!(is("10.0.0.1", "10.0.0.1:80") && is("10.0.0.1:80", "10.0.0.1:80"));
        assert!(!is("10.0.0.1:81", "10.0.0.1:80") && !is("10.0.0.2", "10.0.0.1:80"));
        assert!(is("2001:db8::1", "[2001:db8::1]:80") && is("[2001:db8::1]", "[2001:db8::1]:80"));
        assert!(Place::read("web1").err().unwrap().contains("10.0.0.1:80"));
    }
}
