//! `tcp-response`: what HAProxy does with what servers say before it is looked at as HTTP.
//!
//! Such a rule is asked once, when a response begins. Without `tcp-response inspect-delay` nothing of it is
//! there yet, so that what a condition asks of it does not hold; and where HTTP is spoken its bytes are never
//! shown (HAProxy 2.6). A rule that is left with what routes can ask holds back what `http-response deny`
//! would.

use super::acls::{Here, Read, Reader, When};
use super::answers::refusal;
use super::criteria::Unseen;
use super::ledger::Ledger;
use super::proxies::Proxy;
use super::rules::{HELD_BACK, RuleStep, StepAct};
use super::sections::Line;
use super::times::{Time, duration};

/// What the rules of a proxy have let pass so far.
#[derive(Default)]
struct PassedResponses {
    /// Under these conditions.
    accepted: Vec<When>,
    /// Whether also under one that can't be asked.
    unknown: bool,
    /// Whether everything is.
    over: bool,
}

/// Reads the rules of a proxy, and gives each its verdict; those that become routes. The names of ACLs that
/// they use are added to `used`.
pub fn rules(
    proxy: &Proxy<'_>,
    reader: &mut Reader<'_>,
    used: &mut Vec<String>,
    ledger: &mut Ledger,
) -> Vec<RuleStep> {
    let delay = proxy.last(&["tcp-response", "inspect-delay"]);
    let waits = delay.and_then(|line| duration(line.word(2), 1)).is_some_and(|delay| delay > Time(0));
    let mut passed = PassedResponses::default();
    let mut steps = Vec::new();
    for line in proxy.lines_of("tcp-response") {
        let number = line.number;
        if line.word(1) == "inspect-delay" {
            ledger.exact(number, "what backends say is passed on at once");
            continue;
        }
        if !matches!(line.word(2), "accept" | "reject" | "close" | "silent-drop") {
            continue;
        }
        if !proxy.is_back() {
            ledger.exact(number, "no effect: this proxy has no servers");
            continue;
        }
        let condition = line.words.iter().position(|word| matches!(word.as_str(), "if" | "unless"));
        let mut read = Read::default();
        (reader.of_response, reader.unseen) = match (waits, proxy.is_tcp) {
            (false, _) => (true, Unseen::All),
            (true, false) => (true, Unseen::Bytes),
            (true, true) => (true, Unseen::Nothing),
        };
        let when = reader.when(line.from(condition.unwrap_or(line.words.len())), &mut read);
        (reader.of_response, reader.unseen) = (false, Unseen::Nothing);
        used.append(&mut read.used);
        let notes = read.notes.join("; ");
        if passed.over {
            ledger.exact(number, "never reached: a rule before it lets everything pass");
        } else if line.word(2) == "accept" {
            match when {
                Ok(when) if when == When::always() => passed.over = true,
                Ok(when) => passed.accepted.push(when),
                Err(_) => passed.unknown = true,
            }
            ledger.exact(number, "what backends say is passed on at once");
        } else {
            match when.map_err(|lost| lost.why).and_then(|when| passed.left(when)) {
                Ok(when) => steps.extend(held_back(proxy, line, (when, &notes), ledger)),
                Err(why) => ledger.unsupported(number, format!("{why}: {HELD_BACK}")),
            }
        }
    }
    steps
}

impl PassedResponses {
    /// When a rule holds for what has not passed before. `Err` says why that is not known.
    fn left(&self, when: When) -> Result<When, String> {
        if self.unknown {
            return Err("what a rule before it lets pass is not known".to_owned());
        }
        let left = self.accepted.iter().try_fold(when, |when, passed| when.except(passed));
        left.ok_or_else(|| "it is too long".to_owned())
    }
}

/// A rule that lets nothing pass under a condition, as a step where routes can ask it.
fn held_back(
    proxy: &Proxy<'_>,
    line: &Line,
    (when, notes): (When, &str),
    ledger: &mut Ledger,
) -> Option<RuleStep> {
    let number = line.number;
    let lost = |ledger: &mut Ledger, why: &str| {
        ledger.unsupported(number, format!("{why}: {HELD_BACK}"));
        None
    };
    let terms = match when.terms(&Here::default()) {
        Err(_) if !when.differs_by_listener() => return lost(ledger, "no route can ask this together"),
        Err(_) => Vec::new(),
        Ok(terms) => terms,
    };
    if terms.is_empty() && !when.differs_by_listener() {
        let why = if notes.is_empty() { "its condition never holds here" } else { notes };
        ledger.exact(number, format!("nothing is held back: {why}"));
        return None;
    }
    if terms.iter().any(|term| !term.specials.is_empty()) {
        return lost(ledger, "no route can ask this of a response");
    }
    let is_whole = matches!(terms.as_slice(), [term] if term.is_always());
    if proxy.is_tcp && (!is_whole || when.differs_by_listener()) {
        return lost(ledger, "routes of tcp hold back everything, or nothing");
    }
    let act = match (proxy.is_tcp, line.word(2)) {
        (true, _) => {
            let note = "a route to a pool that takes nobody: connections are closed before a server is asked";
            ledger.approximate(number, note);
            StepAct::Answer(refusal(403))
        }
        (false, "close") => {
            ledger.approximate(number, "routes that answer 502, as HAProxy does; no backend is asked");
            StepAct::HoldBack(refusal(502))
        }
        (false, _) => {
            let note = "routes that answer 502, in place of a closed connection; no backend is asked";
            ledger.approximate(number, note);
            StepAct::HoldBack(refusal(502))
        }
    };
    Some(RuleStep { line: number, phase: 1, when, act })
}
