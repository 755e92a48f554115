//! Every key of the tables is read, has an effect, and is written again: tested with files generated from the
//! tables themselves, so that a new key is tested without being named here.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config as Settings, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::config::ROOT;
use crate::keys::{Key, Limit, Shape, Table};
use crate::{diff, parse};

/// Fewest files to generate, and most if some keys have not occurred: some keys need others, and such
/// combinations are rare.
const FILES: std::ops::Range<usize> = 500..20_000;
/// After this many files, the keys that have not occurred are preferred.
const FILES_PER_LOOK: usize = 100;
/// A file gets one in this many of the keys that its tables may have.
const RARITY: u32 = 4;
/// While keys are preferred, others are rarer by this factor: this avoids keys that exclude the preferred
/// ones, and keeps files small.
const RARER: u32 = 2;

/// Keys that others need: every second file has them.
const OFTEN: [&str; 6] = ["pool", "protocol", "plane", "forward", "source_address", "challenges"];

/// At most one of these may be present.
const EITHER: [&str; 2] = ["dns_update", "dns_program"];

/// Keys by which files and tables are combined before keys are read; `tests/composed.rs` tests them.
const COMPOSING: [&str; 3] = ["include", "shared", "use"];

/// The keys that are tested here.
fn tried(table: &'static Table) -> impl Iterator<Item = &'static Key> {
    table.keys().into_iter().filter(|key| key.built && !COMPOSING.contains(&key.name))
}

/// Generates files. Each key with its value is on a line of its own, so that refused lines can be removed.
struct Maker {
    runner: TestRunner,
    lines: Vec<String>,
    /// A counter for values that must be unique: ports, backends, names.
    count: u16,
    /// Keys that have not occurred in any file.
    missing: BTreeSet<(&'static str, &'static str)>,
}

impl Maker {
    fn new() -> Maker {
        #[expect(
            clippy::disallowed_methods,
            reason = "a test takes its seed back; the crate reads no environment"
        )]
        let seed =
            std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_123u64);
        println!("WEIR_SEED={seed}");
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let runner = TestRunner::new_with_rng(Settings::default(), rng);
        Maker { runner, lines: Vec::new(), count: 0, missing: BTreeSet::new() }
    }

    fn draw<S: Strategy>(&mut self, strategy: S) -> S::Value {
        strategy.new_tree(&mut self.runner).expect("a strategy that finds values").current()
    }

    fn one_of(&mut self, most: u32) -> bool {
        self.draw(0..most) == 0
    }

    /// Whether a key, or a key of one of its subtables, is preferred.
    fn is_sought(&self, table: &Table, key: &Key) -> bool {
        let leads_there = |below: &Table| self.missing.iter().any(|(path, _)| *path == below.path);
        self.missing.contains(&(table.path, key.name))
            || key.kind.table().is_some_and(|below| below.with_all_below().into_iter().any(leads_there))
    }

    /// Whether a table gets a key, with a chance of one in `most`.
    fn has(&mut self, table: &Table, key: &Key, most: u32) -> bool {
        if key.required {
            true
        } else if self.is_sought(table, key) {
            !self.one_of(4)
        } else if OFTEN.contains(&key.name) {
            self.one_of(2)
        } else {
            self.one_of(if self.missing.is_empty() { most } else { most * RARER })
        }
    }

    /// A file with a few listeners and pools.
    fn file(&mut self) -> Vec<String> {
        (self.lines, self.count) = (Vec::new(), 0);
        for name in ["runtime", "admin", "log", "cache", "kernel", "dns", "peers"] {
            let table = ROOT.key(name).and_then(|key| key.kind.table()).expect("a table");
            self.table(&format!("[{name}]"), name, table);
        }
        for (kind, count) in [("access_log", 2), ("map", 2), ("listener", 3), ("pool", 4)] {
            let table = ROOT.key(kind).and_then(|key| key.kind.table()).expect("a table");
            for number in 0..count {
                let path = format!("{kind}.{}{number}", &kind[..1]);
                self.table(&format!("[{path}]"), &path, table);
            }
        }
        std::mem::take(&mut self.lines)
    }

    /// A table with a header: its keys, and then its subtables.
    fn table(&mut self, header: &str, path: &str, table: &'static Table) {
        self.lines.push(header.to_owned());
        let mut below = Vec::new();
        for key in tried(table) {
            if !self.has(table, key, RARITY) {
                continue;
            }
            match (&key.kind, key.kind.table().filter(|table| table.has_header())) {
                (Kind::TableOrOff(_), Some(_)) if self.one_of(5) => {
                    self.lines.push(format!("{} = \"off\"", key.name));
                }
                (_, Some(table)) => below.push((key, table)),
                _ => {
                    let value = self.value(key.name, &key.kind);
                    self.lines.push(format!("{} = {value}", key.name));
                }
            }
        }
        for (key, table) in below {
            let path = format!("{path}.{}", key.name);
            let (open, close, count) = match key.kind {
                Kind::Tables(_) => ("[[", "]]", self.draw(1..4)),
                _ => ("[", "]", 1),
            };
            for _ in 0..count {
                self.table(&format!("{open}{path}{close}"), &path, table);
            }
        }
    }

    fn inline(&mut self, table: &'static Table) -> String {
        let keys = table.keys().into_iter().filter(|key| key.built);
        let other = EITHER[self.draw(0..EITHER.len())];
        let mut parts = Vec::new();
        for key in keys.filter(|key| key.name != other) {
            if self.has(table, key, 2) {
                parts.push(format!("{} = {}", key.name, self.value(key.name, &key.kind)));
            }
        }
        format!("{{ {} }}", parts.join(", "))
    }

    fn value(&mut self, key: &str, kind: &Kind) -> String {
        match kind {
            Kind::Bool(default) => (!default).to_string(),
            Kind::YesOrNo => self.one_of(2).to_string(),
            Kind::BoolOrWord(default, words) => match self.draw(0..=words.len()) {
                0 => (!default).to_string(),
                word => quoted(words[word - 1].word),
            },
            Kind::DurationOrOff(..) if self.one_of(4) => quoted("off"),
            Kind::Duration(limit) | Kind::DurationOrOff(limit, _) => {
                let within = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
                let coarse = if limit.least >= Duration::from_secs(1) { 1000 } else { 1 };
                let drawn =
                    self.number(&Limit { least: within(limit.least), most: within(limit.most), ..WIDE });
                quoted(&show_duration(Duration::from_millis(drawn / coarse * coarse)))
            }
            Kind::Size(limit) => quoted(&show_size(self.number(limit))),
            Kind::Rate(limit) => quoted(&show_byte_rate(self.number(limit))),
            Kind::Count(limit) => self.number(limit).to_string(),
            Kind::Factor(limit) => format!("{:?}", self.draw(limit.least..=limit.most)),
            Kind::Word(words, _) => {
                let words: Vec<_> = words.iter().map(|word| word.word).collect();
                quoted(self.draw(proptest::sample::select(words)))
            }
            Kind::Choice(numbers, _) => self.draw(proptest::sample::select(numbers.to_vec())).to_string(),
            Kind::Text(shape, _) => quoted(&self.text(key, shape)),
            Kind::OneOrMany(each, _) | Kind::Many(each) => {
                let values: Vec<String> =
                    (0..self.draw(1..4)).map(|_| self.value(key, &each.kind())).collect();
                format!("[{}]", values.join(", "))
            }
            Kind::Map(names, values) => {
                let parts: Vec<String> = (0..self.draw(1..3))
                    .map(|number| {
                        let any = !matches!(names.name, "the name of a field" | "the name of a map");
                        let rest =
                            if any { self.draw("[a-z0-9!#$%&'*+.^_`|~-]{0,5}") } else { String::new() };
                        let name = format!("{}{number}{rest}", names.example);
                        format!("{} = {}", quoted(&name), quoted(&self.text(key, values)))
                    })
                    .collect();
                format!("{{ {} }}", parts.join(", "))
            }
            Kind::TableOrTrue(_) if self.one_of(3) => self.draw(any::<bool>()).to_string(),
            Kind::TableOrOff(_) if self.one_of(3) => "\"off\"".to_owned(),
            Kind::TableOrText(table, text) if self.one_of(2) => {
                let key = table.key(text).expect("the key that a text stands for");
                self.value(key.name, &key.kind)
            }
            kind => self.inline(kind.table().expect("a table")),
        }
    }

    fn number(&mut self, limit: &Limit<u64>) -> u64 {
        let (least, most) = (limit.least, limit.most);
        match self.draw(0..3) {
            // Small values are consistent with each other more often.
            0 => self.draw(least..=most.min(least + 1000)),
            _ => self.draw(least..=most),
        }
    }

    fn text(&mut self, key: &str, shape: &Shape) -> String {
        self.count += 1;
        let count = self.count;
        match (key, shape.name) {
            ("map", "a name") => format!("m{}", self.draw(0..2)),
            ("pool" | "pools" | "fallback_pool", _) => format!("p{}", self.draw(0..4)),
            ("access_logs", _) => self.draw(proptest::sample::select(vec!["main", "a0", "a1"])).to_owned(),
            (_, "a name") => format!("n{count}"),
            // An address that is allowed on every plane.
            (_, "an address and port") => format!("192.0.2.1:{}", 10_000 + count),
            (_, "an address") => format!("192.0.{}.{}", 3 + count / 256, count % 256),
            (_, "an interface") => format!("eth{count}*"),
            (_, name) if name.starts_with("an address and port") => format!("127.0.0.1:{}", 10_000 + count),
            (_, "a backend") => format!("b{count}.internal:80"),
            (_, "the address of a name server") => format!("192.0.{}.{}", count / 256, count % 256),
            (_, "the address of another Weir") => format!("192.0.2.2:{}", 10_000 + count),
            ("resolvers", _) => format!("192.0.{}.{}", 3 + count / 256, count % 256),
            (_, "a header value with variables") => {
                let text = self.draw("[!-~é]{0,3}[ \t\"\\\\]?[!-~é]").replace('$', "$$");
                let variables = vec!["", "$client_ip", "$header.x-a", "$path$query", "$cookie.c|$query.q"];
                text + self.draw(proptest::sample::select(variables))
            }
            (_, "a host to ask by") => {
                let hosts = vec!["app.internal", "$host", "$header.x-t.internal:81", "[::1]:80"];
                self.draw(proptest::sample::select(hosts)).to_owned()
            }
            (_, "a header value") => self.draw("[!-~é\u{80}-\u{9f}]{0,3}[ \t\"\\\\]?[!-~é]"),
            (_, "a text") => self.draw(any::<String>()),
            ("ticket_keys", _) => format!("/keys/{count}"),
            (_, "a file name") => self.draw("/[ -~é]{1,10}[a-z]\\.pem"),
            (_, "a host") => {
                self.draw(proptest::sample::select(vec!["a.example", "*.b.example", "[::1]", "c"])).to_owned()
            }
            (_, "a path") => self
                .draw(proptest::sample::select(vec!["/", "/a*", "/b/c", "/*", "*.png", "*d*", "~^/e(.*)"]))
                .to_owned(),
            (_, "what to count by" | "a hash key") => {
                let keys = vec![
                    "client_ip",
                    "header:X-User",
                    "cookie:c",
                    "route",
                    "listener",
                    "uri",
                    "path",
                    "flow",
                    "$host/$query.q",
                ];
                self.draw(proptest::sample::select(keys)).to_owned()
            }
            (_, "a value to compare with") => {
                let values = vec!["weir", "be*", "*a", "*b*", "*", "~^c"];
                self.draw(proptest::sample::select(values)).to_owned()
            }
            (_, "what a map is asked for") => {
                self.draw(proptest::sample::select(vec!["$host", "$path"])).to_owned()
            }
            (_, "a path with variables") => "/new$path/$host".to_owned(),
            (_, "a query with variables") => "id=$header.x-a".to_owned(),
            (_, "a status or a range") => {
                self.draw(proptest::sample::select(vec!["200", "200-399", "404"])).to_owned()
            }
            (_, "a query parameter") => format!("q{count}*"),
            (_, "a domain") => format!("d{count}.example"),
            _ => shape.example.to_owned(),
        }
    }
}

const WIDE: Limit<u64> = Limit { default: None, least: 0, most: u64::MAX, reason: "" };

/// Removes refused lines, and everything below a refused header, until the rest is accepted.
fn mended(mut lines: Vec<String>) -> Option<Vec<String>> {
    for _ in 0..100 {
        if lines.is_empty() {
            // Every listener was refused.
            return None;
        }
        let text = lines.join("\n");
        let Err(report) = parse("made.toml", &text) else { return Some(lines) };
        let mut refused: BTreeSet<usize> = report.problems.iter().map(|problem| problem.line - 1).collect();
        for header in refused.clone().into_iter().filter(|line| lines[*line].starts_with('[')) {
            let below = lines[header + 1..].iter().position(|line| line.starts_with('['));
            refused.extend(header..below.map_or(lines.len(), |below| header + 1 + below));
        }
        let mut number = 0;
        lines.retain(|_| {
            number += 1;
            !refused.contains(&(number - 1))
        });
    }
    None
}

/// The table that a header belongs to.
fn table_of(header: &str) -> Option<&'static Table> {
    let mut parts = header.trim_matches(['[', ']']).split('.');
    let mut key = ROOT.key(parts.next()?)?;
    if matches!(key.kind, Kind::NamedTables(_)) {
        parts.next();
    }
    for part in parts {
        key = key.kind.table()?.key(part)?;
    }
    key.kind.table()
}

/// The keys that occur in a value, including those of nested tables.
fn said_within(table: &'static Table, value: &str, said: &mut BTreeSet<(&'static str, &'static str)>) {
    for key in table.keys().into_iter().filter(|key| value.contains(&format!("{} = ", key.name))) {
        said.insert((table.path, key.name));
        if let Some(below) = key.kind.table() {
            said_within(below, value, said);
        }
    }
}

/// The keys seen so far, each by the path of its table and its name.
#[derive(Default)]
struct Seen {
    /// Keys in an accepted file.
    said: BTreeSet<(&'static str, &'static str)>,
    /// Keys without whose line the config was different.
    with_effect: BTreeSet<(&'static str, &'static str)>,
}

impl Seen {
    /// Keys that did not occur, or had no effect.
    fn missing(&self) -> Vec<(&'static str, &'static str)> {
        let mut missing = Vec::new();
        for table in ROOT.with_all_below() {
            for key in tried(table).filter(|key| !key.kind.table().is_some_and(Table::has_header)) {
                let place = (table.path, key.name);
                // If there is only one word, writing it has no effect.
                let has_choice = !matches!(&key.kind, Kind::Word(words, Some(_)) if words.len() == 1);
                let needs_effect = table.has_header() && has_choice;
                if !self.said.contains(&place) || needs_effect && !self.with_effect.contains(&place) {
                    missing.push(place);
                }
            }
        }
        missing
    }

    fn look_at(&mut self, lines: &[String], config: &Config) {
        let mut table = &ROOT;
        for (number, line) in lines.iter().enumerate() {
            if line.starts_with('[') {
                table = table_of(line).expect("a header of ours");
                continue;
            }
            let (name, value) = line.split_once(" = ").expect("a key with its value");
            let Some(key) = table.key(name) else { continue };
            let place = (table.path, key.name);
            self.said.insert(place);
            if let Some(below) = key.kind.table() {
                said_within(below, value, &mut self.said);
            }
            if self.with_effect.contains(&place) {
                continue;
            }
            let rest = [&lines[..number], &lines[number + 1..]].concat().join("\n");
            // A key without which the file is refused has an effect, too.
            if parse("without.toml", &rest).map_or(true, |other| other != *config) {
                self.with_effect.insert(place);
            }
        }
    }
}

#[test]
fn every_key_of_the_tables_is_read_has_an_effect_and_is_written_again() {
    let mut maker = Maker::new();
    let (mut made, mut taken, mut seen) = (0, 0, Seen::default());
    while made < FILES.start || made < FILES.end && !seen.missing().is_empty() {
        made += 1;
        let Some(lines) = mended(maker.file()) else { continue };
        taken += 1;
        let text = lines.join("\n");
        let config = parse("made.toml", &text).expect("taken");
        let written = to_toml(&config);
        let again = parse("written.toml", &written)
            .unwrap_or_else(|report| panic!("{report}\nin\n{written}\nwritten for\n{text}"));
        assert_eq!(diff(&config, &again), [], "{written}\nwritten for\n{text}");
        assert_eq!(config, again, "{written}\nwritten for\n{text}");
        seen.look_at(&lines, &config);
        if made % FILES_PER_LOOK == 0 {
            maker.missing = seen.missing().into_iter().collect();
        }
    }
    println!("{taken} of {made} files taken");
    assert!(taken > made / 2, "only {taken} of {made} files were taken");
    assert_eq!(seen.missing(), [], "of {made} files");
}
