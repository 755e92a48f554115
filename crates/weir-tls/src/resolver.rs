//! Which certificate a client gets, depending on the name it asks for and the signature schemes it supports.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::{Facts, Loaded};
use crate::on_demand::OnDemand;

thread_local! {
    /// The name in the last ClientHello that was read.
    static ASKED: Cell<Option<Box<str>>> = const { Cell::new(None) };
}

/// Runs `read`, which lets rustls read records, and returns the server name (lower case) of a ClientHello
/// among them.
///
/// rustls's unbuffered connections do not report it, but they ask the resolver for a certificate by that
/// name, on the same thread, for each ClientHello.
pub fn observing_name<R>(read: impl FnOnce() -> R) -> (R, Option<Box<str>>) {
    ASKED.set(None);
    let result = read();
    (result, ASKED.take())
}

/// The certificates of one listener; renewed ones can be added while they are served.
pub(crate) struct Resolver {
    served: ArcSwap<Served>,
    /// The sources of certificates that are ordered on demand; the first that accepts a name is used.
    on_demand: Vec<Arc<OnDemand>>,
}

/// The same for QUIC, whose handshakes can't wait: a missing certificate is obtained for the next handshake.
#[derive(Debug)]
pub(crate) struct WithoutWaiting(pub Arc<Resolver>);

/// What is presented to a client that asks for some name.
#[derive(PartialEq, Eq)]
pub(crate) enum Group<'n> {
    /// A group of [`Served`].
    Served(u32),
    /// A certificate for this name only, whether it exists or not.
    OnDemand(&'n str),
}

/// What is presented to a client that asks for some name: the first of these whose signature scheme it
/// supports.
pub struct ShownCertificates {
    /// Whether they are for that name, and not the default for all other names.
    pub are_for_name: bool,
    /// At least one, in the order in which they are tried.
    pub certificates: Vec<Facts>,
}

/// The certificates at one moment, by name.
pub(crate) struct Served {
    /// All of them, in order.
    pub certificates: Vec<Loaded>,
    /// Group by name, lower case.
    exact: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Group by the text after `*.`: exactly one more label matches (RFC 9525 section 6.3).
    wildcard: HashMap<Box<str>, u32, foldhash::fast::RandomState>,
    /// Certificates for the same names, in file order; the first group is the default for all other names.
    /// Empty without certificates.
    groups: Vec<Vec<Arc<CertifiedKey>>>,
    /// Whether stapling may change with time.
    has_staples: bool,
}

impl Resolver {
    pub fn new(certificates: Vec<Loaded>, on_demand: Vec<Arc<OnDemand>>) -> Resolver {
        Resolver { served: ArcSwap::from_pointee(Served::new(certificates)), on_demand }
    }

    /// Serves these certificates from now on; handshakes that have begun keep what they were given.
    pub fn replace(&self, certificates: Vec<Loaded>) {
        self.served.store(Arc::new(Served::new(certificates)));
    }

    /// The certificates served now.
    pub fn served(&self) -> Arc<Served> {
        self.served.load_full()
    }

    /// What is presented to a client that asks for `name`, which must be lower case.
    pub fn group<'n>(&self, name: Option<&'n str>) -> Group<'n> {
        let served = self.served.load().named(name);
        match (served, name) {
            (None, Some(name)) if self.taking(name).is_some() => Group::OnDemand(without_dot(name)),
            _ => Group::Served(served.unwrap_or(0)),
        }
    }

    /// All sources of certificates on demand.
    pub fn on_demand(&self) -> &[Arc<OnDemand>] {
        &self.on_demand
    }

    /// Which of them orders a certificate for `name` (lower case); `None` when none does, or there is one
    /// that is always served.
    pub fn orders(&self, name: &str) -> Option<&Arc<OnDemand>> {
        let found = self.taking(name)?;
        self.served.load().named(Some(name)).is_none().then_some(found)
    }

    fn taking(&self, name: &str) -> Option<&Arc<OnDemand>> {
        self.on_demand.iter().find(|each| each.takes(without_dot(name)))
    }

    /// The certificates from which one is presented to a client that asks for `name` (lower case), not
    /// counting those obtained on demand; `None` if there are none: the handshake is refused.
    pub fn shown(&self, name: Option<&str>) -> Option<ShownCertificates> {
        let served = self.served.load();
        let named = served.named(name);
        let group = served.shown(named)?;
        let facts = |key: &Arc<CertifiedKey>| {
            let own = served.certificates.iter().find(|each| Arc::ptr_eq(&each.key, key));
            own.map(|each| each.facts.clone())
        };
        let certificates = group.iter().filter_map(facts).collect();
        Some(ShownCertificates { are_for_name: named.is_some(), certificates })
    }

    fn choose(&self, hello: &ClientHello<'_>, waits: bool) -> Option<Arc<CertifiedKey>> {
        let lower = hello.server_name().map(str::to_ascii_lowercase);
        let on_demand = lower.as_deref().and_then(|name| Some((name, self.orders(name)?)));
        let got = on_demand.and_then(|(name, on_demand)| on_demand.find(without_dot(name)));
        if let (None, Some((name, on_demand)), false) = (&got, on_demand, waits) {
            on_demand.begin(without_dot(name));
        }
        let served = self.served.load();
        let group = served.shown(served.named(lower.as_deref()));
        ASKED.set(lower.map(String::into_boxed_str));
        if got.is_some() {
            return got;
        }
        // As long as there is no certificate, the handshake is refused (access_denied).
        let group = group?;
        let taken = group.iter().find(|each| each.key.choose_scheme(hello.signature_schemes()).is_some());
        // If not even the first suits the client, rustls ends the handshake with its own alert.
        taken.or(group.first()).cloned()
    }
}

impl Served {
    /// The certificates with their stapling as it should be at `now` (seconds since 1970), and facts about
    /// those that change; `None` if none does.
    pub fn restapled(&self, now: i64) -> Option<(Vec<Loaded>, Vec<Facts>)> {
        if !self.has_staples {
            return None;
        }
        let mut changed = Vec::new();
        let each = self.certificates.iter().map(|each| match each.restapled(now) {
            None => each.clone(),
            Some(other) => {
                changed.push(other.facts.clone());
                other
            }
        });
        let all = each.collect();
        (!changed.is_empty()).then_some((all, changed))
    }

    fn new(certificates: Vec<Loaded>) -> Served {
        let (exact, wildcard) = (HashMap::default(), HashMap::default());
        let has_staples = certificates.iter().any(|each| each.staple.is_some());
        let mut served =
            Served { certificates: Vec::new(), exact, wildcard, groups: Vec::new(), has_staples };
        // Names with the same certificates share a group, so that a group tells what a client was presented.
        let mut groups: HashMap<Vec<usize>, u32> = HashMap::new();
        // There may be a hundred thousand names.
        let mut holders: HashMap<&str, Vec<usize>> = HashMap::new();
        for (number, each) in certificates.iter().enumerate() {
            for name in &each.facts.names {
                let of_name = holders.entry(name).or_default();
                if of_name.last() != Some(&number) {
                    of_name.push(number);
                }
            }
        }
        let mut group_of = |members: Vec<usize>| {
            *groups.entry(members).or_insert_with_key(|members| {
                served.groups.push(members.iter().map(|number| certificates[*number].key.clone()).collect());
                served.groups.len() as u32 - 1
            })
        };
        let Some(first) = certificates.first() else { return served };
        let everyone = match first.facts.names.first() {
            Some(name) => holders[name.as_str()].clone(),
            None => vec![0],
        };
        group_of(everyone);
        for (name, holders) in holders {
            let group = group_of(holders);
            match name.strip_prefix("*.") {
                Some(rest) => served.wildcard.insert(rest.into(), group),
                None => served.exact.insert(name.into(), group),
            };
        }
        served.certificates = certificates;
        served
    }

    /// The certificates of a group, or of the first group if a name has none; `None` when there are no
    /// certificates.
    fn shown(&self, named: Option<u32>) -> Option<&[Arc<CertifiedKey>]> {
        self.groups.get(named.unwrap_or(0) as usize).map(Vec::as_slice)
    }

    /// The group for `name`, which must be lower case; `None` when there is none, so that the client gets the
    /// first group.
    fn named(&self, name: Option<&str>) -> Option<u32> {
        let name = without_dot(name?);
        if let Some(group) = self.exact.get(name) {
            return Some(*group);
        }
        let rest = name.split_once('.').map(|(_, rest)| rest);
        rest.and_then(|rest| self.wildcard.get(rest)).copied()
    }
}

fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(&hello, true)
    }
}

impl ResolvesServerCert for WithoutWaiting {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.choose(&hello, false)
    }
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Resolver of {} groups", self.served.load().groups.len())
    }
}
