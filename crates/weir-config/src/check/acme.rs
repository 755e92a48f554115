//! Certificates that are got by ACME.

use crate::build::{Draft, protocol};
use crate::fields::Fields;
use crate::report::{Findings, Span};
use crate::schema::{Acme, AcmeChallenge, Listener, Protocol};
use crate::values::Value;

/// A listener's `tls.acme`.
pub(super) fn check(draft: &Draft, listener: &Listener, tls: &Fields, findings: &mut Findings<'_>) {
    let Some(Value::Table(fields)) = tls.value("acme") else { return };
    said_once(fields, "domains", findings);
    said_once(fields, "challenges", findings);
    let speaks_plain_http = |listener: &Fields| {
        listener.lacks("tls") && protocol(listener).is_none_or(|protocol| protocol == Protocol::Http)
    };
    for (at, value) in fields.list("challenges") {
        let is_http = matches!(value, Value::Word(word) if *word == AcmeChallenge::Http01.word());
        if is_http && !draft.listeners.iter().any(speaks_plain_http) {
            let hint = "expected one that port 80 of the domains leads to, such as `[listener.web]` with `bind = \"0.0.0.0:80\"`";
            findings.error(*at, "`http-01` needs a listener that speaks HTTP without TLS", hint);
        }
    }
    let Some(own) = listener.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { return };
    let before = draft.config.listeners.iter().take_while(|other| other.name != listener.name);
    for other in before {
        let Some(theirs) = other.tls.as_ref().and_then(|tls| tls.acme.as_ref()) else { continue };
        if is_same_certificate(own, theirs) && !is_same_order(own, theirs) {
            let hint = format!(
                "listener `{}` says other things of the same certificate; expected the same",
                other.name
            );
            findings.error(fields.at, "one certificate can't be ordered in two ways", hint);
        }
    }
}

/// Notes what a list says again.
fn said_once(fields: &Fields, name: &str, findings: &mut Findings<'_>) {
    let mut seen: Vec<(&str, Span)> = Vec::new();
    for (at, value) in fields.list(name) {
        let text = match value {
            Value::Text(text) => text.as_str(),
            Value::Word(word) => word,
            _ => continue,
        };
        match seen.iter().find(|(other, _)| *other == text) {
            Some((_, first)) => {
                let hint = format!("the first is at {}", findings.place(*first));
                findings.error(*at, format!("`{text}` is said twice"), hint);
            }
            None => seen.push((text, *at)),
        }
    }
}

fn sorted(domains: &[String]) -> Vec<&String> {
    let mut domains: Vec<_> = domains.iter().collect();
    domains.sort();
    domains
}

fn is_same_certificate(one: &Acme, other: &Acme) -> bool {
    one.directory == other.directory
        && one.store == other.store
        && sorted(&one.domains) == sorted(&other.domains)
}

fn is_same_order(one: &Acme, other: &Acme) -> bool {
    one.contact == other.contact && one.challenges == other.challenges && one.ca == other.ca
}
