//! `tcp-request`: who may connect, and how often.

use super::acls::{Here, Read, Reader, Term, When};
use super::answers::refusal;
use super::asks::{All, Ask};
use super::ledger::Ledger;
use super::matching::Special;
use super::output::{Keys, said_all};
use super::pages::HaproxyPage;
use super::proxies::Proxy;
use super::rules::{CLOSED, NO_LIMIT, RuleStep, StepAct};
use super::sections::Line;
use super::tables::Tables;

/// What the rules of a proxy come to.
#[derive(Debug, Default)]
pub struct Gate {
    /// Keys of the listener.
    pub keys: Keys,
    /// Error pages of the listener.
    pub pages: Vec<HaproxyPage>,
    /// Tables of `rate_limit`.
    pub limits: Vec<String>,
    /// The lines that they, and limits of connections at once, come of.
    pub limit_lines: Vec<usize>,
    /// Whether Weirs count one of them together.
    pub shares: bool,
    /// Names of ACLs that are used.
    pub used: Vec<String>,
    /// Rules that become routes.
    pub steps: Vec<RuleStep>,
    /// Whether they are those of a backend, which has no lists.
    is_behind: bool,
    /// The kinds of rules that end with one which lets everybody in.
    over: Vec<String>,
    denied: Vec<String>,
    allowed: Option<Vec<String>>,
    /// Networks that a rule lets in whatever follows of its kind.
    accepted: Vec<String>,
    /// Of which kind the rules are that are looked at: those who are let in by one are asked by the next.
    kind: String,
}

/// Reads the rules of a proxy, and gives each its verdict.
pub fn gate(proxy: &Proxy<'_>, reader: &mut Reader<'_>, tables: &Tables, ledger: &mut Ledger) -> Gate {
    let mut gate = Gate { is_behind: !proxy.is_front(), ..Gate::default() };
    for line in proxy.lines_of("tcp-request") {
        match (line.word(1), line.word(2)) {
            ("inspect-delay", _) => {
                if !ledger.has(line.number) {
                    ledger.exact(line.number, "requests are always waited for");
                }
            }
            ("connection" | "content" | "session", action) => gate.rule(action, line, reader, tables, ledger),
            _ => ledger.unsupported(line.number, "there is nothing like it"),
        }
    }
    if let Some(line) = proxy.last(&["rate-limit", "sessions"]).filter(|_| proxy.is_tcp && proxy.is_front())
        && let Some(most) = line.word(2).parse::<u64>().ok().filter(|most| *most > 0)
    {
        gate.limits.push(tables.of_all(most));
        let note = "`rate_limit` of the listener: connections beyond it are closed, and do not wait";
        ledger.approximate(line.number, note);
    }
    if !gate.denied.is_empty() {
        gate.keys.set("deny_address", said_all(&gate.denied));
    }
    if let Some(allowed) = &gate.allowed {
        gate.keys.set("allow_address", said_all(allowed));
    }
    gate
}

impl Gate {
    fn rule(
        &mut self,
        action: &str,
        line: &Line,
        reader: &mut Reader<'_>,
        tables: &Tables,
        ledger: &mut Ledger,
    ) {
        let number = line.number;
        if action.starts_with("track-sc") {
            let note = "the key of the limits that ask for it";
            return match line.words.iter().any(|word| matches!(word.as_str(), "if" | "unless")) {
                true => ledger.approximate(
                    number,
                    format!("{note}; its condition is not looked at here: all are counted"),
                ),
                false => ledger.exact(number, note),
            };
        }
        if super::destinations::is_set(line) {
            return;
        }
        if action == "expect-proxy" {
            return self.expect_proxy(line, reader, ledger);
        }
        if let Some(note) = without_effect(action) {
            return ledger.approximate(number, note);
        }
        if !matches!(action, "accept" | "reject" | "silent-drop") {
            return ledger.unsupported(number, format!("there is nothing like `{action}`: it has no effect"));
        }
        let at = line
            .words
            .iter()
            .position(|word| matches!(word.as_str(), "if" | "unless"))
            .unwrap_or(line.words.len());
        let mut read = Read::default();
        let when = reader.when(line.from(at), &mut read);
        self.used.extend(read.used);
        if self.over.iter().any(|kind| kind == line.word(1)) {
            return ledger.exact(number, "never reached: a rule before it lets everybody in");
        }
        if self.kind != line.word(1) {
            self.kind = line.word(1).to_owned();
            self.accepted.clear();
        }
        let refuses = action != "accept";
        let when = match when {
            Ok(when) => when,
            Err(lost) if !refuses => {
                return ledger.unsupported(number, format!("{}: {STRICTER}", lost.why));
            }
            Err(lost) if lost.counts => {
                return ledger.unsupported(number, format!("{}: {NO_LIMIT}", lost.why));
            }
            Err(lost) => {
                ledger.unsupported(number, format!("{}: {CLOSED}", lost.why));
                return self.step(number, &lost.when);
            }
        };
        let by_listener = when.differs_by_listener();
        let terms = match when.terms(&Here::default()) {
            Ok(terms) if !by_listener => terms,
            _ if refuses => {
                ledger.approximate(number, refused_by_routes(reader.is_tcp));
                return self.step(number, &when);
            }
            _ => {
                let note = format!("who is let in is said by networks alone: {STRICTER}");
                return ledger.unsupported(number, note);
            }
        };
        if terms.is_empty() {
            ledger.exact(number, "its condition never holds here");
        }
        for term in terms {
            match refuses {
                true => self.refuse((number, &when), &term, (tables, reader.is_tcp), ledger),
                false => self.accept(line, &term, ledger),
            }
        }
    }

    /// Says from whom a header of the PROXY protocol is awaited.
    fn expect_proxy(&mut self, line: &Line, reader: &mut Reader<'_>, ledger: &mut Ledger) {
        let mut read = Read::default();
        let terms = reader.when(line.from(4), &mut read).ok();
        let terms = terms.and_then(|when| when.terms(&Here::default()).ok()).unwrap_or_default();
        let peers = match terms.as_slice() {
            [term] if term.is_always() => Some(vec!["0.0.0.0/0".to_owned(), "::/0".to_owned()]),
            [term] => networks(term).filter(|(_, negated)| !negated).map(|(networks, _)| networks),
            _ => None,
        };
        self.used.extend(read.used);
        match peers.filter(|_| !self.is_behind && line.word(3) == "layer4") {
            Some(peers) => {
                self.keys.set("accept_proxy", said_all(&peers));
                ledger.exact(line.number, "`accept_proxy`");
            }
            None => ledger.unsupported(
                line.number,
                "whose header is awaited is said by networks alone (`accept_proxy`): no header is taken",
            ),
        }
    }

    /// Has routes refuse those whom a condition holds for, and whom no rule before has let in.
    fn step(&mut self, line: usize, when: &When) {
        let act = StepAct::Answer(refusal(403));
        if self.steps.last().is_none_or(|last| last.line != line) {
            self.steps.push(RuleStep { line, phase: 0, when: when.outside(&self.accepted), act });
        }
    }

    fn accept(&mut self, line: &Line, term: &Term, ledger: &mut Ledger) {
        let number = line.number;
        if term.is_always() {
            self.over.push(line.word(1).to_owned());
            return ledger.exact(number, "everybody is let in from here on");
        }
        match networks(term) {
            Some((networks, false)) => {
                self.accepted.extend(networks);
                ledger.approximate(
                    number,
                    "these networks are in `allow_address` where all others are refused behind it",
                );
            }
            _ => ledger.unsupported(number, format!("who is let in is said by networks alone: {STRICTER}")),
        }
    }

    fn refuse(
        &mut self,
        (number, when): (usize, &When),
        term: &Term,
        (tables, is_tcp): (&Tables, bool),
        ledger: &mut Ledger,
    ) {
        let counts = term.specials.iter().any(|(_, special)| special.is_limit());
        match self.list(term, tables, is_tcp) {
            Ok(note) => {
                if counts {
                    self.limit_lines.push(number);
                }
                ledger.approximate(number, note);
            }
            Err(why) if counts => ledger.unsupported(number, format!("{why}: {NO_LIMIT}")),
            Err(_) => {
                ledger.approximate(number, refused_by_routes(is_tcp));
                self.step(number, when);
            }
        }
    }

    /// Refuses by a list or a limit of the listener.
    fn list(&mut self, term: &Term, tables: &Tables, is_tcp: bool) -> Result<String, String> {
        let how = if is_tcp { "" } else { ": 403, in place of a closed connection" };
        if self.is_behind {
            return Err("a backend has no lists".to_owned());
        }
        if let ([(false, Special::Above(counter, most))], true) =
            (term.specials.as_slice(), term.all.is_always())
        {
            let limit = tables.limit(counter, *most, 429)?;
            self.shares |= limit.is_shared;
            match limit.per_client {
                Some(most) => self.keys.set("max_connections_per_client", most.to_string()),
                None => self.limits.push(limit.table),
            }
            return Ok(format!(
                "{}{}",
                limit.notes.join("; "),
                if is_tcp { "" } else { ": 429, in place of a closed connection" }
            ));
        }
        if term.is_always() {
            if self.accepted.is_empty() {
                return Err("it lets nobody in".to_owned());
            }
            self.may_allow(&self.accepted)?;
            self.allowed = Some(std::mem::take(&mut self.accepted));
            return Ok(format!("`allow_address`{how}"));
        }
        let (networks, negated) = networks(term).ok_or("who is refused is said by networks alone")?;
        if !self.accepted.is_empty() && !negated {
            return Err("some are let in before it, and Weir's lists have no order".to_owned());
        }
        if negated {
            let mut allowed = self.accepted.clone();
            allowed.extend(networks);
            self.may_allow(&allowed)?;
            self.accepted.clear();
            self.allowed = Some(allowed);
            return Ok(format!("`allow_address`{how}"));
        }
        let is_allowed =
            |network: &String| self.allowed.iter().flatten().any(|allowed| within(allowed, network));
        if networks.iter().any(is_allowed) {
            return Err(MOST_SPECIFIC.to_owned());
        }
        self.denied.extend(networks);
        Ok(format!("`deny_address`{how}"))
    }
}

impl Gate {
    /// Whether a list of who is let in lets in nobody whom a rule before has refused.
    fn may_allow(&self, allowed: &[String]) -> Result<(), String> {
        let is_refused = |allowed: &String| self.denied.iter().any(|denied| within(allowed, denied));
        if self.allowed.is_some() || allowed.iter().any(is_refused) {
            return Err(MOST_SPECIFIC.to_owned());
        }
        Ok(())
    }
}

/// Why two lists are not enough.
const MOST_SPECIFIC: &str = "of Weir's lists the most specific entry decides";

/// What is said of rules that answer no client otherwise.
fn without_effect(action: &str) -> Option<&'static str> {
    let name = action.split('(').next().unwrap_or_default();
    Some(match name {
        "capture" => "not in the log: `fields` of a log name what they show, such as `$server_name`",
        "set-nice" | "set-priority-class" | "set-priority-offset" => {
            "connections have no ranks: a queue is served in order"
        }
        "set-log-level" => "each log has one severity",
        "unset-var" => "nothing is kept",
        _ => return None,
    })
}

/// What rules are that can't be lists.
fn refused_by_routes(is_tcp: bool) -> &'static str {
    match is_tcp {
        true => "a route to a pool that takes nobody",
        false => "a route that answers 403, in place of a closed connection",
    }
}

/// Whether a network may have clients of another that is as wide or wider.
fn within(network: &str, other: &str) -> bool {
    let read = |text: &str| {
        let (address, prefix) =
            text.split_once('/').map_or((text, None), |(address, prefix)| (address, Some(prefix)));
        let address: std::net::IpAddr = address.parse().ok()?;
        let (bits, width) = match address {
            std::net::IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
            std::net::IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let prefix = prefix.map_or(Some(width), |prefix| prefix.parse::<u32>().ok())?;
        Some((address.is_ipv4(), bits, prefix))
    };
    match (read(network), read(other)) {
        (Some((is_v4, bits, prefix)), Some((other_v4, other_bits, other_prefix))) => {
            let shift = 128_u32.saturating_sub(other_prefix);
            is_v4 == other_v4
                && prefix >= other_prefix
                && bits.checked_shr(shift).unwrap_or(0) == other_bits.checked_shr(shift).unwrap_or(0)
        }
        // A file of networks may have any.
        _ => true,
    }
}

/// What it means that a rule which lets some in is not there.
const STRICTER: &str = "the rules behind it hold for these, too";

/// The networks that a term is about, and whether those outside of them are meant.
pub fn networks(term: &Term) -> Option<(Vec<String>, bool)> {
    if !term.specials.is_empty() {
        return None;
    }
    let All { groups, nots } = &term.all;
    match (groups.as_slice(), nots.as_slice()) {
        ([group], []) => match group.as_slice() {
            [Ask::ClientIp(networks)] => Some((networks.clone(), false)),
            _ => None,
        },
        ([], [Ask::ClientIp(networks)]) => Some((networks.clone(), true)),
        _ => None,
    }
}
