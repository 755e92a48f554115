//! One frontend, backend or listen, with all that holds for it.

use super::choices::may_name;
use super::ledger::Ledger;
use super::sections::{Line, Section, SectionKind, effective};
use super::times::{Time, duration};

/// A proxy.
#[derive(Debug)]
pub struct Proxy<'s> {
    /// Its section.
    pub section: &'s Section,
    /// What it takes over, then its own.
    pub lines: Vec<&'s Line>,
    /// Whether it relays TCP.
    pub is_tcp: bool,
    /// Whether it is said to relay TCP, but leads to backends of HTTP alone, so that HAProxy speaks HTTP.
    pub is_upgraded: bool,
}

impl<'s> Proxy<'s> {
    /// All of a file, in its order.
    pub fn all(sections: &'s [Section]) -> Vec<Proxy<'s>> {
        let is_proxy =
            |kind| matches!(kind, SectionKind::Frontend | SectionKind::Backend | SectionKind::Listen);
        let all = sections.iter().enumerate().filter(|(_, section)| is_proxy(section.kind));
        let mut all: Vec<Proxy<'s>> = all
            .map(|(at, section)| {
                let lines = effective(sections, at);
                let mode = lines.iter().rev().find(|line| line.word(0) == "mode");
                let is_tcp = mode.is_none_or(|line| line.word(1) != "http");
                Proxy { section, lines, is_tcp, is_upgraded: false }
            })
            .collect();
        let of_http: Vec<&str> =
            all.iter().filter(|proxy| proxy.is_back() && !proxy.is_tcp).map(Proxy::name).collect();
        let backs: Vec<&str> = all.iter().filter(|proxy| proxy.is_back()).map(Proxy::name).collect();
        let is_upgraded = |proxy: &Proxy<'s>| {
            let lines = proxy.lines_of("use_backend").chain(proxy.lines_of("default_backend"));
            let mut leads: Vec<&str> = Vec::new();
            for name in lines.map(|line| line.word(1)) {
                match name.contains('%') {
                    true => leads.extend(backs.iter().filter(|back| may_name(name, back))),
                    false => leads.push(name),
                }
            }
            proxy.is_tcp
                && !proxy.is_back()
                && !leads.is_empty()
                && leads.iter().all(|name| of_http.contains(name))
        };
        let upgraded: Vec<bool> = all.iter().map(is_upgraded).collect();
        for (proxy, is_upgraded) in all.iter_mut().zip(upgraded) {
            proxy.is_upgraded = is_upgraded;
            proxy.is_tcp &= !is_upgraded;
        }
        all
    }

    /// Whether it accepts clients.
    pub fn is_front(&self) -> bool {
        matches!(self.section.kind, SectionKind::Frontend | SectionKind::Listen)
    }

    /// Whether it has servers.
    pub fn is_back(&self) -> bool {
        matches!(self.section.kind, SectionKind::Backend | SectionKind::Listen)
    }

    /// Its name.
    pub fn name(&self) -> &'s str {
        &self.section.name
    }

    /// The lines that begin with this word.
    pub fn lines_of<'p>(&'p self, word: &'p str) -> impl DoubleEndedIterator<Item = &'s Line> + 'p {
        self.lines.iter().copied().filter(move |line| line.word(0) == word && !line.negated)
    }

    /// The line that holds among those that begin with these words: the last. `None` if that one is negated.
    pub fn last(&self, words: &[&str]) -> Option<&'s Line> {
        let is = |line: &&&'s Line| words.iter().enumerate().all(|(at, word)| line.word(at) == *word);
        self.lines.iter().rev().find(is).copied().filter(|line| !line.negated)
    }

    /// An option that is on.
    pub fn option(&self, name: &str) -> Option<&'s Line> {
        self.last(&["option", name])
    }

    /// A time, and its line. A text that is no time is told as a mistake.
    pub fn time(&self, name: &str, ledger: &mut Ledger) -> Option<(usize, Time)> {
        let line = self.last(&["timeout", name])?;
        let time = duration(line.word(2), 1);
        if time.is_none() {
            let note = format!("`{}` is no time, expected one such as `30s`", line.word(2));
            ledger.unsupported(line.number, note);
        }
        time.map(|time| (line.number, time))
    }

    /// Says of lines which nobody has said anything about that a later one holds in their place.
    pub fn judge_overridden(&self, ledger: &mut Ledger) {
        for (at, line) in self.lines.iter().enumerate() {
            if ledger.has(line.number) {
                continue;
            }
            let words = match line.word(0) {
                "option" | "timeout" | "stats" | "errorfile" | "compression" => 2,
                "mode" | "balance" | "retries" | "maxconn" | "cookie" | "default_backend" | "fullconn"
                | "hash-type" | "log-format" | "http-reuse" | "retry-on" | "monitor-uri" | "backlog"
                | "unique-id-format" | "unique-id-header" | "log-tag" | "source" => 1,
                _ => continue,
            };
            let same = |other: &&&Line| (0..words).all(|word| other.word(word) == line.word(word));
            if let Some(later) = self.lines[at + 1..].iter().rev().find(same) {
                ledger.exact(line.number, format!("line {} holds in its place", later.number));
            }
        }
    }
}
