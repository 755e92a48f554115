//! `tcp-request`: who may connect, and how often.

use super::acls::{Here, Read, Reader, Term};
use super::asks::{All, Ask};
use super::ledger::Ledger;
use super::matching::Special;
use super::output::{Keys, said_all};
use super::proxies::Proxy;
use super::sections::Line;
use super::tables::Tables;

/// What the rules of a proxy come to.
#[derive(Debug, Default)]
pub struct Gate {
    /// Keys of the listener.
    pub keys: Keys,
    /// Error pages of the listener.
    pub pages: Vec<Keys>,
    /// Tables of `rate_limit`.
    pub limits: Vec<String>,
    /// Names of ACLs that are used.
    pub used: Vec<String>,
    denied: Vec<String>,
    allowed: Option<Vec<String>>,
    /// Networks that a rule lets in whatever follows.
    accepted: Vec<String>,
}

/// What it means that a refusal is not there.
pub const LOST: &str = "NOT CONVERTED: what HAProxy refuses here PASSES in Weir";

/// Reads the rules of a proxy, and gives each its verdict.
pub fn gate(proxy: &Proxy<'_>, reader: &mut Reader<'_>, tables: &Tables, ledger: &mut Ledger) -> Gate {
    let mut gate = Gate::default();
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
    for line in proxy.lines_of("tcp-response") {
        if line.words.iter().any(|word| word == "inspect-delay" || word == "accept") {
            ledger.exact(line.number, "what backends say is passed on at once");
        }
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
            return ledger.exact(number, "the key of the limits that ask for it");
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
        let terms = when.and_then(|when| when.terms(&Here::default()));
        let refuses = action != "accept";
        let lost = |why: &str| {
            if refuses {
                format!("{why}: {LOST}")
            } else {
                format!("{why}: the rules behind it hold for these, too")
            }
        };
        let terms = match terms {
            Ok(terms) => terms,
            Err(why) => return ledger.unsupported(number, lost(&why)),
        };
        for term in terms {
            let said = match refuses {
                true => self.refuse(&term, tables, reader.is_tcp),
                false => self.accept(&term),
            };
            match said {
                Ok(note) if note.is_empty() => ledger.exact(number, "the greeting of a client is waited for"),
                Ok(note) => ledger.approximate(number, note),
                Err(why) => ledger.unsupported(number, lost(&why)),
            }
        }
    }

    fn accept(&mut self, term: &Term) -> Result<String, String> {
        if term.is_always() {
            return Ok(String::new());
        }
        match networks(term) {
            Some((networks, false)) => {
                self.accepted.extend(networks);
                Ok("these networks are in `allow_address` where all others are refused behind it".to_owned())
            }
            _ => Err("who is let in is said by networks alone".to_owned()),
        }
    }

    fn refuse(&mut self, term: &Term, tables: &Tables, is_tcp: bool) -> Result<String, String> {
        let how = if is_tcp { "" } else { ": 403, in place of a closed connection" };
        if let ([(false, Special::Above(counter, most))], true) =
            (term.specials.as_slice(), term.all.is_always())
        {
            let limit = tables.limit(counter, *most, 429)?;
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
            let accepted = std::mem::take(&mut self.accepted);
            if accepted.is_empty() {
                return Err("it lets nobody in".to_owned());
            }
            self.allowed = Some(accepted);
            return Ok(format!("`allow_address`{how}"));
        }
        let (networks, negated) = networks(term).ok_or("who is refused is said by networks alone")?;
        if !self.accepted.is_empty() && !negated {
            return Err("some are let in before it, and Weir's lists have no order".to_owned());
        }
        if negated {
            if self.allowed.is_some() {
                return Err("there is one list of who is let in".to_owned());
            }
            let mut allowed = std::mem::take(&mut self.accepted);
            allowed.extend(networks);
            self.allowed = Some(allowed);
            return Ok(format!("`allow_address`{how}"));
        }
        self.denied.extend(networks);
        Ok(format!("`deny_address`{how}"))
    }
}

/// The networks that a term is about, and whether those outside of them are meant.
fn networks(term: &Term) -> Option<(Vec<String>, bool)> {
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
