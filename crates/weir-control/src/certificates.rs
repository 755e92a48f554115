//! Checks the files that a config names for TLS: what is wrong with them, and for `weir check --online` also
//! what is right. They are read as for a reload, and nothing is changed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_config::{Config, FileProblem, Listener, ListenerTls, Severity};
use weir_tls::acme::Challenges;
use weir_tls::{Facts, ListFacts, Loaded, Looked, TicketKeys, Validity};

use crate::timestamp::Timestamp;

/// Result for one file, or for all files of one listener or pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The listener or pool, followed by the file if it is about one: `web/shop.pem`.
    pub what: String,
    /// Names and expiry; `Err` is the reason why it can't be served.
    pub said: Result<String, String>,
}

/// What is wrong at `now` with files that a config names.
pub(crate) fn problems(looked: &Looked, now: SystemTime) -> Vec<FileProblem> {
    let unusable = looked.errors.iter().map(|error| FileProblem::unusable(&error.file, &error.reason));
    let ends = looked.certificates.iter().filter_map(|facts| validity_problem(facts, now));
    let lists = looked.lists.iter().filter(|list| list.is_out_of_date(now)).map(|list| FileProblem {
        severity: Severity::Warning,
        file: list.file.clone(),
        what: format!("holds a list of revoked certificates that is out of date, that of {}", list.issuer),
        hint: "no certificate of that authority is taken until a newer one is loaded".to_owned(),
    });
    unusable.chain(ends).chain(lists).collect()
}

/// The warning for a certificate that is not valid, or not for long. It is still put in force, which is
/// better than having none.
fn validity_problem(facts: &Facts, now: SystemTime) -> Option<FileProblem> {
    let what = describe_validity(facts.validity(now), now)?;
    let hint = match facts.validity(now) {
        Validity::NotYet(_) => "it is put in force, and most refuse it until then",
        Validity::EndsSoon(_) => "expected a newer one by then",
        Validity::Good | Validity::Ended(_) => "it is put in force, and most refuse it; expected a newer one",
    };
    let file = facts.file.clone();
    Some(FileProblem { severity: Severity::Warning, file, what, hint: hint.to_owned() })
}

/// Describes a validity other than simply good.
pub(crate) fn describe_validity(validity: Validity, now: SystemTime) -> Option<String> {
    let text = |moment| Timestamp::of(moment).rfc3339();
    match validity {
        Validity::Good => None,
        Validity::NotYet(begins) => Some(format!("is good only from {} on", text(begins))),
        Validity::EndsSoon(ends) => {
            let days = ends.duration_since(now).unwrap_or_default().as_secs() / 86_400;
            let days = if days == 1 { "1 day".to_owned() } else { format!("{days} days") };
            Some(format!("expires in {days}, at {}", text(ends)))
        }
        Validity::Ended(ended) => Some(format!("expired at {}", text(ended))),
    }
}

/// Reads everything that `config` names for TLS, in the order of the config file.
pub fn look(config: &Config) -> Vec<Found> {
    let mut all = Vec::new();
    for listener in &config.listeners {
        if let Some(tls) = &listener.tls {
            of_listener(config, listener, tls, &mut all);
        }
    }
    for pool in config.pools.iter().filter(|pool| pool.tls.is_some()) {
        let alone = Config { listeners: Vec::new(), pools: vec![pool.clone()], ..config.clone() };
        let loaded = load(&alone);
        if loaded.is_ok() {
            all.push(Found {
                what: pool.name.clone(),
                said: Ok("authorities and keys for its backends are good".to_owned()),
            });
        }
        all.extend(lists_or_errors(&pool.name, loaded));
    }
    all
}

fn of_listener(config: &Config, listener: &Listener, tls: &ListenerTls, all: &mut Vec<Found>) {
    let with = |tls: ListenerTls| {
        let listener = Listener { tls: Some(tls), ..listener.clone() };
        Config { listeners: vec![listener.into()], pools: Vec::new(), ..config.clone() }
    };
    let mut are_good = true;
    for certificate in &tls.certificates {
        let one = ListenerTls {
            certificates: vec![certificate.clone()],
            acme: Vec::new(),
            certificate_folder: None,
            ticket_keys: Vec::new(),
            client_ca: None,
            ..tls.clone()
        };
        let what = format!("{}/{}", listener.name, certificate.cert.display());
        match load(&with(one)) {
            Ok(loaded) => {
                let facts = loaded.listener(&listener.name).map(|tls| tls.certificates()).unwrap_or_default();
                all.extend(
                    facts.first().map(|facts| Found { what, said: describe(facts, SystemTime::now()) }),
                );
            }
            Err(errors) => {
                are_good = false;
                all.extend(errors.into_iter().map(|error| Found { what: what.clone(), said: Err(error) }));
            }
        }
    }
    for acme in tls.ordered() {
        let file = weir_tls::acme::file(acme);
        let said = match weir_tls::acme::stored(acme) {
            Ok(facts) => describe(&facts, SystemTime::now()),
            Err(_) if !file.exists() => {
                Ok("not there yet: it is ordered as soon as this is served".to_owned())
            }
            Err(error) => Err(format!("{error}; it is ordered anew as soon as this is served")),
        };
        all.push(Found { what: format!("{}/{}", listener.name, file.display()), said });
    }
    if tls.certificate_folder.is_some() {
        let one = ListenerTls { certificates: Vec::new(), acme: Vec::new(), client_ca: None, ..tls.clone() };
        let facts =
            load(&with(one)).ok().and_then(|loaded| Some(loaded.listener(&listener.name)?.certificates()));
        all.extend(facts.into_iter().flatten().map(|facts| Found {
            what: format!("{}/{}", listener.name, facts.file.display()),
            said: describe(&facts, SystemTime::now()),
        }));
    }
    // The files that concern clients, which are read only with the listener as a whole.
    if are_good {
        all.extend(lists_or_errors(&listener.name, load(&with(tls.clone()))));
    }
}

/// The revocation lists among what was read; otherwise the errors.
fn lists_or_errors(of: &str, loaded: Result<Loaded, Vec<String>>) -> Vec<Found> {
    match loaded {
        Ok(loaded) => loaded.revocations().map(|(of, list)| found_list(of, list)).collect(),
        Err(errors) => {
            errors.into_iter().map(|error| Found { what: of.to_owned(), said: Err(error) }).collect()
        }
    }
}

fn found_list(of: &str, list: &ListFacts) -> Found {
    let next =
        list.next_update.and_then(|at| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(at).ok()?)));
    let until =
        next.map_or_else(|| "without end".to_owned(), |at| format!("until {}", Timestamp::of(at).rfc3339()));
    let what = format!("{of}/{}", list.file.display());
    let said = match list.is_out_of_date(SystemTime::now()) {
        true => Err(format!("the list of {} was good {until}: no certificate of it is taken", list.issuer)),
        false => Ok(format!("what {} has revoked; good {until}", list.issuer)),
    };
    Found { what, said }
}

fn load(config: &Config) -> Result<Loaded, Vec<String>> {
    Loaded::load(config, &TicketKeys::new([]), &std::sync::Arc::new(Challenges::default()))
        .map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

/// Names and expiry; `Err` when it is not valid at `now`.
fn describe(facts: &Facts, now: SystemTime) -> Result<String, String> {
    let moment = |seconds: Option<i64>| Some(UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds?).ok()?));
    let names = match facts.names.as_slice() {
        [] => "no names (subject alternative names)".to_owned(),
        names => names.join(", "),
    };
    let (begins, ends) = (moment(facts.not_before), moment(facts.not_after));
    if let Some(begins) = begins.filter(|begins| *begins > now) {
        return Err(format!("{names}; good only from {} on", Timestamp::of(begins).rfc3339()));
    }
    let Some(ends) = ends else { return Ok(format!("{names}; does not say until when it is good")) };
    let until = Timestamp::of(ends).rfc3339();
    match ends.duration_since(now) {
        Ok(left) => Ok(format!("{names}; good until {until} ({} days)", left.as_secs() / 86_400)),
        Err(_) => Err(format!("{names}; expired {until}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(not_before: i64, not_after: i64) -> Facts {
        Facts {
            file: "shop.pem".into(),
            names: vec!["shop.example".to_owned(), "*.shop.example".to_owned()],
            not_before: Some(not_before),
            not_after: Some(not_after),
            is_stapled: false,
            staple_ends: None,
            identity: None,
        }
    }

    #[test]
    fn a_certificate_is_good_between_its_two_moments() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let facts = facts(86_400, 10 * 86_400);
        assert_eq!(
            describe(&facts, at(86_400)).unwrap(),
            "shop.example, *.shop.example; good until 1970-01-11T00:00:00.000Z (9 days)"
        );
        assert!(describe(&facts, at(0)).unwrap_err().contains("good only from 1970-01-02"));
        assert!(describe(&facts, at(10 * 86_400 + 1)).unwrap_err().contains("expired 1970-01-11"));
    }

    #[test]
    fn a_certificate_that_ends_is_warned_of_with_what_to_do() {
        let at = |day: u64| UNIX_EPOCH + Duration::from_secs(day * 86_400);
        let looked = Looked { certificates: vec![facts(0, 100 * 86_400)], ..Looked::default() };
        let said = |day| problems(&looked, at(day)).into_iter().map(|it| format!("{}; {}", it.what, it.hint));
        assert_eq!(said(50).count(), 0);
        let soon = "expires in 5 days, at 1970-04-11T00:00:00.000Z; expected a newer one by then";
        assert_eq!(said(95).collect::<Vec<_>>(), [soon]);
        assert!(said(101).all(|it| it.starts_with("expired at 1970-04-11")));
        assert!(problems(&looked, at(101)).iter().all(|it| it.severity == Severity::Warning));
    }
}
