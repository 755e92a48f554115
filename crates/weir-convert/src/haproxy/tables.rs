//! Stick tables: counters as limits.

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::Ledger;
use super::maps::Maps;
use super::matching::Counter;
use super::output::{Keys, said};
use super::peers::Peers;
use super::proxies::Proxy;
use super::samples::{Sample, constant, variable};
use super::sections::{Line, Section, SectionKind};
use super::times::{Time, duration};

/// The tables of all proxies, and what the one in question tracks.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// Periods of the rates that a table stores, by the name of the table and the counter.
    stored: BTreeMap<(String, String), Time>,
    /// The proxies whose rules count in a table, by its name.
    trackers: BTreeMap<String, BTreeSet<String>>,
    /// By number: the key, and the table if it is another proxy's.
    tracked: BTreeMap<String, (Result<String, String>, Option<String>)>,
    /// The tables that peers share.
    shared: BTreeSet<String>,
    /// Whether peers share any, so that limits of all others say that they are not shared.
    has_peers: bool,
    /// The proxy whose rules are looked at.
    own: String,
}

/// A limit that a counter becomes.
#[derive(Debug)]
pub struct Limit {
    /// The table of a `rate_limit`.
    pub table: String,
    /// Connections at once, in place of a rate.
    pub per_client: Option<u64>,
    /// Whether Weirs count it together.
    pub is_shared: bool,
    /// What differs.
    pub notes: Vec<String>,
}

impl Tables {
    /// Takes up the tables of all sections.
    pub fn read(sections: &[Section], proxies: &[Proxy<'_>], peers: &Peers, ledger: &mut Ledger) -> Tables {
        let mut tables = Tables { has_peers: peers.are_some(), ..Tables::default() };
        for proxy in proxies {
            for (_, _, table) in proxy.lines.iter().filter_map(|line| tracking(line)) {
                let table = table.unwrap_or(proxy.name()).to_owned();
                tables.trackers.entry(table).or_default().insert(proxy.name().to_owned());
            }
        }
        for proxy in proxies {
            for line in proxy.lines_of("stick-table") {
                let words = line.from(1);
                let shares = after(words, "peers").map(|section| peers.share(section));
                tables.table(proxy.name(), (line.number, words), shares, ledger);
            }
        }
        for section in sections.iter().filter(|section| section.kind == SectionKind::Peers) {
            for line in section.lines.iter().filter(|line| line.word(0) == "table") {
                let name = format!("{}/{}", section.name, line.word(1));
                let shares = Some(peers.share(&section.name));
                tables.table(&name, (line.number, line.from(2)), shares, ledger);
            }
        }
        tables
    }

    /// Takes up a table. `shares` is whether other Weirs share it, where it has peers.
    fn table(
        &mut self,
        name: &str,
        (line, words): (usize, &[String]),
        shares: Option<bool>,
        ledger: &mut Ledger,
    ) {
        for (what, period) in stored(words) {
            if let Some(period) = period {
                self.stored.insert((name.to_owned(), what.to_owned()), period);
            }
        }
        if shares == Some(true) {
            self.shared.insert(name.to_owned());
        }
        let with_peers = match (shares, self.has_peers) {
            (Some(true), _) => "; all Weirs count together (`[peers]`), but connections at once",
            (_, true) => "; each Weir counts alone (`share = false`)",
            (_, false) => "",
        };
        let many = match self.trackers.get(name) {
            Some(trackers) if trackers.len() > 1 => format!(
                "; COUNTED APART: {} share this table in HAProxy, and in Weir each counts what comes to it alone",
                trackers.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            ),
            _ => String::new(),
        };
        let note = match stored(words).next() {
            Some(_) => {
                format!("limits have their own counters, for 250,000 keys each (`keys`){with_peers}{many}")
            }
            None => "no table: the client's address, or a sealed cookie, says where it belongs".to_owned(),
        };
        ledger.approximate(line, note);
    }

    /// These tables, with what the rules of a proxy track.
    pub fn of(&self, proxy: &str, lines: &[&Line], maps: &mut Maps) -> Tables {
        let mut tables = Tables { own: proxy.to_owned(), ..self.clone() };
        for (index, sample, table) in lines.iter().filter_map(|line| tracking(line)) {
            let key = Sample::parse(sample).and_then(|sample| key_of(&sample, maps));
            tables.tracked.insert(index.to_owned(), (key, table.map(str::to_owned)));
        }
        tables
    }

    /// What differs of a limit that counts in this table, where others count there, too.
    fn apart(&self, table: &str) -> Option<String> {
        let trackers = self.trackers.get(table)?;
        let others: Vec<String> =
            trackers.iter().filter(|name| **name != self.own).map(|name| format!("`{name}`")).collect();
        (!others.is_empty()).then(|| {
            format!(
                "COUNTED APART: in HAProxy what comes to {} counts in this table (`{table}`), too, and in Weir what comes here alone",
                others.join(", ")
            )
        })
    }

    /// What it becomes that a counter is above a number. `Err` says what there is nothing like.
    pub fn limit(&self, counter: &Counter, most: u64, status: u16) -> Result<Limit, String> {
        let (key, table) = match &counter.tracked {
            None => (Ok("client_ip".to_owned()), None),
            Some(index) => self
                .tracked
                .get(index)
                .cloned()
                .ok_or_else(|| format!("nothing is tracked as `sc{index}`"))?,
        };
        let key = key?;
        let name = counter.table.clone().or(table).unwrap_or_else(|| self.own.clone());
        let mut notes: Vec<String> = self.apart(&name).into_iter().collect();
        if counter.what == "conn_cur" && key == "client_ip" {
            notes.push(
                "`max_connections_per_client`: the connection beyond is closed; of IPv6 a client is its /64"
                    .to_owned(),
            );
            return Ok(Limit { table: String::new(), per_client: Some(most), is_shared: false, notes });
        }
        let statuses = match counter.what.as_str() {
            "http_req_rate" => None,
            "http_err_rate" => Some("4xx"),
            "http_fail_rate" => Some("5xx"),
            "conn_rate" | "sess_rate" => {
                notes.push("requests are counted, not connections".to_owned());
                None
            }
            other => return Err(format!("there is no counter like `{other}`")),
        };
        let period = self
            .stored
            .get(&(name.clone(), counter.what.clone()))
            .ok_or_else(|| format!("no table of `{name}` stores `{}` with its period", counter.what))?;
        if most == 0 {
            return Err("a limit that lets nobody pass is a deny list".to_owned());
        }
        let mut limit = Keys::default();
        limit.set("rate", said(&format!("{most}/{}", period.whole_seconds())));
        limit.set("burst", most.min(10_000_000).to_string());
        if let Some(statuses) = statuses {
            limit.set("statuses", said(statuses));
        }
        if key != "client_ip" {
            limit.set("key", said(&key));
        }
        if status == 503 {
            limit.set("status", "503");
        }
        let is_shared = self.shared.contains(&name);
        if self.has_peers && !is_shared {
            limit.set("share", "false");
        }
        notes.push(
            "`rate_limit`: a token bucket, not a sliding window; of IPv6 a client is its /64".to_owned(),
        );
        if !matches!(status, 429 | 503) {
            notes.push(format!("429 in place of {status}"));
        }
        Ok(Limit { table: limit.inline(), per_client: None, is_shared, notes })
    }
}

impl Tables {
    /// The table of a `rate_limit` of all connections to a listener together, in each second.
    pub fn of_all(&self, most: u64) -> String {
        let mut limit = Keys::default();
        limit.set("rate", said(&format!("{most}/s")));
        limit.set("key", said("listener"));
        if self.has_peers {
            limit.set("share", "false");
        }
        limit.inline()
    }
}

/// What differs of a limit of a proxy that becomes several listeners.
pub const COUNTED_APART: &str = "COUNTED APART: in HAProxy what comes to any address of this proxy counts, in Weir each of its listeners counts for itself";

/// The number of a counter, its key and its table, if a rule tells it of requests.
fn tracking(line: &Line) -> Option<(&str, &str, Option<&str>)> {
    let at = match (line.word(0), line.word(1)) {
        ("http-request", _) => 1,
        ("tcp-request", "connection" | "content" | "session") => 2,
        _ => return None,
    };
    let index = line.word(at).strip_prefix("track-sc")?;
    let index = index.trim_start_matches('(').trim_end_matches(')');
    let table = (line.word(at + 2) == "table").then(|| line.word(at + 3));
    Some((index, line.word(at + 1), table))
}

/// The word that follows this one.
pub fn after<'w>(words: &'w [String], word: &str) -> Option<&'w String> {
    words.iter().position(|other| other == word).and_then(|at| words.get(at + 1))
}

/// Whether a table has what a `rate_limit` counts.
pub fn has_rates(words: &[String]) -> bool {
    stored(words).any(|(what, _)| RATES.contains(&what))
}

/// What limits are made of.
const RATES: [&str; 5] = ["http_req_rate", "http_err_rate", "http_fail_rate", "conn_rate", "sess_rate"];

/// What a table stores, with its period where it has one.
fn stored(words: &[String]) -> impl Iterator<Item = (&str, Option<Time>)> {
    let is_store = |pair: &&[String]| pair[0] == "store";
    let lists = words.windows(2).filter(is_store).flat_map(|pair| pair[1].split(','));
    lists.map(|stored| {
        let (what, period) = stored.split_once('(').unwrap_or((stored, ""));
        (what, duration(period.trim_end_matches(')'), 1))
    })
}

/// What is counted by, in Weir's words.
fn key_of(sample: &Sample, maps: &mut Maps) -> Result<String, String> {
    let (_, plain) = sample.without_case();
    let named = |family: &str| format!("{family}:{}", plain.fetch.argument(0).to_ascii_lowercase());
    if plain.converters.is_empty() {
        match plain.fetch.name.as_str() {
            "src" => return Ok("client_ip".to_owned()),
            "hdr" | "req.hdr" | "req.fhdr"
                if plain.fetch.arguments.len() == 1 && plain.is_host().is_none() =>
            {
                return Ok(named("header"));
            }
            "cook" | "req.cook" => return Ok(format!("cookie:{}", plain.fetch.argument(0))),
            "base32+src" | "url32+src" => return Ok("$client_ip $host$path".to_owned()),
            _ => {}
        }
    }
    if let [concat] = plain.converters.as_slice()
        && concat.name == "concat"
    {
        let first = Sample { fetch: plain.fetch.clone(), converters: Vec::new() };
        let second = concat.argument(1);
        if second.is_empty() {
            return Ok(format!("{}{}", variable(&first, maps)?.text, constant(concat.argument(0))));
        }
        return Err("nothing is counted by variables that rules have set".to_owned());
    }
    variable(&plain, maps).map(|value| value.text)
}
