//! The screen of a listener or a route: the one place that decides whether a request may pass, and why not.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_template::Source;

use crate::addresses::Addresses;
use crate::concurrency::{ConcurrencyLimiter, Slot};
use crate::digest::Seeds;
use crate::pattern::Patterns;
use crate::rate_limiter::{Charge, Debtor, RateLimiter};
use crate::settings::{Checkpoint, Settings};

/// Looks up the whole value of a header field by name, all of its lines joined.
pub type FieldLookup<'a> = dyn Fn(&[u8]) -> Option<Cow<'a, [u8]>> + 'a;

/// The facts of a request that a screen examines.
pub struct Facts<'a> {
    /// The client's address, taken from headers only if they are trusted.
    pub client: IpAddr,
    /// The normalised path.
    pub path: &'a [u8],
    /// The method, as sent.
    pub method: &'a [u8],
    /// Whole value of `user-agent`; empty if there is none.
    pub user_agent: &'a [u8],
    /// Looks up the whole value of a header field by name (in lower case).
    pub header: &'a FieldLookup<'a>,
    /// Looks up the value of the first cookie with a name.
    pub cookie: &'a dyn Fn(&[u8]) -> Option<&'a [u8]>,
    /// The values of the variables in a template.
    pub values: &'a dyn Source,
}

/// Reasons to refuse a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Reason {
    /// `deny_address`, `allow_address`
    Address,
    /// `deny_method`, `allow_method`
    Method,
    /// `deny_path`, `allow_path`
    Path,
    /// `deny_user_agent`, `allow_user_agent`
    UserAgent,
    /// `rate_limit`
    Rate,
    /// `concurrency_limit`
    Concurrency,
}

impl Reason {
    /// Every reason, in the order of the checks.
    pub const ALL: [Reason; 6] =
        [Reason::Address, Reason::Method, Reason::Path, Reason::UserAgent, Reason::Rate, Reason::Concurrency];
}

/// A request may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// 403, or the limit's status.
    pub status: u16,
    /// When the client may try again; `None` if that would not help.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// `retry-after`: whole seconds, rounded up and at least one (RFC 9110 section 10.2.3).
    pub fn retry_after_seconds(&self) -> Option<u64> {
        let wait = self.retry_after?;
        Some((wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1))
    }
}

/// `retry-after` of a concurrency limit: nobody knows when a request in progress ends.
const CONCURRENCY_RETRY: Duration = Duration::from_secs(1);

/// What a passing request holds: its concurrency slots, the limits that will count its answer, and the
/// refusals that dry runs spared it.
#[derive(Default)]
pub struct Passage {
    /// Slots that count it as in progress until this is dropped.
    slots: Vec<Slot>,
    /// Limits that will count its answer, until its status is known.
    charges: Vec<Charge>,
    /// A set of [`Reason`]s as bits.
    would_refuse: u8,
}

impl Passage {
    /// Ends the request.
    pub fn end(&mut self) {
        self.slots.clear();
        self.charges.clear();
        self.would_refuse = 0;
    }

    /// Whether its answer is to be counted.
    pub fn is_charged(&self) -> bool {
        !self.charges.is_empty()
    }

    /// Records that an answer with this status goes to the client: limits that count such answers take a
    /// token. Call it once per request.
    pub fn charge(&mut self, status: u16, now: Duration) {
        self.charges.drain(..).for_each(|charge| charge.answered(status, now));
    }

    /// Does not count the answer, because it is a limit's own refusal: a client that keeps asking would never
    /// be let in again.
    pub fn forget_charges(&mut self) {
        self.charges.clear();
    }

    /// Whether it counts as in progress anywhere.
    pub fn is_counted(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Records that the answer began at `now`, `took` after Weir turned to the backend; adaptive limits use
    /// that. `None` for an answer that says nothing about how long the work takes, such as a refusal.
    pub fn answered(&self, now: Duration, took: Option<Duration>) {
        self.slots.iter().for_each(|slot| slot.answered(now, took));
    }

    /// Reasons for which limits with `dry_run` would have refused it.
    pub fn would_refuse(&self) -> impl Iterator<Item = Reason> {
        let bits = self.would_refuse;
        Reason::ALL.into_iter().filter(move |reason| bits & (1 << *reason as u8) != 0)
    }

    fn note(&mut self, reason: Reason) {
        self.would_refuse |= 1 << reason as u8;
    }
}

/// A deny list and an allow list of texts.
#[derive(Default)]
pub(crate) struct Texts {
    pub deny: Option<Patterns>,
    pub allow: Option<Patterns>,
}

impl Texts {
    fn passes(&self, text: &[u8]) -> bool {
        !self.deny.as_ref().is_some_and(|list| list.any(text))
            && self.allow.as_ref().is_none_or(|list| list.any(text))
    }
}

/// The limiters of `limits`. A limiter in `old` that counts for a limit is kept; of several equal ones the
/// n-th is kept as the n-th.
fn limiters<L, S: PartialEq>(
    limits: &[S],
    old: &[Arc<L>],
    counts_for: impl Fn(&L, &S) -> bool,
    new: impl Fn(&S) -> L,
) -> Box<[Arc<L>]> {
    let limiter = |(number, limit): (usize, &S)| {
        let alike = limits[..number].iter().filter(|other| *other == limit).count();
        let kept = old.iter().filter(|old| counts_for(old, limit)).nth(alike);
        kept.cloned().unwrap_or_else(|| Arc::new(new(limit)))
    };
    limits.iter().enumerate().map(limiter).collect()
}

/// The tokens that a request took from a screen's rate limits: one bit per limit, by its index in the config,
/// which allows no more limits than there are bits.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken(u64);

/// Whether a request may pass this checkpoint, by the screens of its listener and of its route, in this
/// order. Lists are checked on the edge. `passage` collects what the request then holds.
///
/// Linear in the length of the compared texts; allocates only if requests in progress or answers are counted.
/// A refused request takes nothing from any limit checked at the same time; otherwise a client that hammers
/// one route would use up what all others share. `passage` gets the limits that will count the answer even if
/// the request is refused, since a refusal by a list is an answer too.
///
/// # Errors
/// It may not pass; `http/failure` of weir-proxy turns the refusal into an answer.
pub fn admit(
    [listener, route]: [Option<&Screen>; 2],
    checkpoint: Checkpoint,
    facts: &Facts<'_>,
    now: Duration,
    passage: &mut Passage,
) -> Result<(), Refusal> {
    let held = passage.slots.len();
    let taken = match listener {
        Some(screen) => screen.admit(checkpoint, facts, now, passage)?,
        None => Taken::default(),
    };
    let Some(Err(refusal)) = route.map(|route| route.admit(checkpoint, facts, now, passage)) else {
        return Ok(());
    };
    if let Some(screen) = listener {
        screen.give_back(taken, facts, now);
    }
    passage.slots.truncate(held);
    Err(refusal)
}

/// The findings of an adaptive limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdaptiveState {
    /// The current limit of requests in progress.
    pub limit: u32,
    /// The unloaded response time; `None` until it is known.
    pub unloaded: Option<Duration>,
}

/// The lists and limits of a listener or a route, ready for use and shared by all workers.
pub struct Screen {
    pub(crate) addresses: Option<Addresses>,
    pub(crate) methods: Texts,
    pub(crate) paths: Texts,
    pub(crate) user_agents: Texts,
    pub(crate) rates: Box<[Arc<RateLimiter>]>,
    pub(crate) concurrencies: Box<[Arc<ConcurrencyLimiter>]>,
    asks_at_origin: bool,
}

impl Screen {
    /// Makes a screen from the config; `None` if the config has no checks.
    ///
    /// Limits in `before` with the same settings are kept with their state, unless they are hashed with
    /// another seed now because they are shared, or are not any more.
    pub fn compile(settings: &Settings, seeds: &Seeds, before: Option<&Screen>) -> Option<Screen> {
        if settings.is_empty() {
            return None;
        }
        let texts = |deny, allow| Texts { deny: Patterns::compile(deny), allow: Patterns::compile(allow) };
        let rates = limiters(
            &settings.rate_limit,
            before.map_or(&[][..], |before| &before.rates),
            |old, limit| old.settings == *limit && (old.seed, old.untold.is_some()) == seeds.of(limit.share),
            |limit| RateLimiter::new(limit, seeds),
        );
        let concurrencies = limiters(
            &settings.concurrency_limit,
            before.map_or(&[][..], |before| &before.concurrencies),
            |old, limit| old.settings == *limit,
            |limit| ConcurrencyLimiter::new(limit, seeds.own),
        );
        let checkpoints = settings.rate_limit.iter().map(|limit| limit.at);
        let mut checkpoints = checkpoints.chain(settings.concurrency_limit.iter().map(|limit| limit.at));
        Some(Screen {
            addresses: Addresses::compile(&settings.allow_address, &settings.deny_address),
            methods: texts(&settings.deny_method, &settings.allow_method),
            paths: texts(&settings.deny_path, &settings.allow_path),
            user_agents: texts(&settings.deny_user_agent, &settings.allow_user_agent),
            rates,
            concurrencies,
            asks_at_origin: checkpoints.any(|checkpoint| checkpoint == Checkpoint::Origin),
        })
    }

    /// Whether the address lists let a client pass.
    pub fn passes(&self, client: IpAddr) -> bool {
        self.addresses.as_ref().is_none_or(|addresses| addresses.passes(client.to_canonical()))
    }

    /// Whether a connection or flow of this client may begin now; if it may, takes a token from each rate
    /// limit. `Ok(true)` says that a limit with `dry_run` would have refused it. Like [`admit`] for a request
    /// of which only the client is known.
    ///
    /// # Errors
    /// It may not: [`Reason::Address`] or [`Reason::Rate`].
    pub fn admit_client(&self, client: IpAddr, now: Duration) -> Result<bool, Reason> {
        let mut passage = Passage::default();
        let admitted = with_client(client, |facts| self.admit(Checkpoint::Edge, facts, now, &mut passage));
        admitted.map(|_| passage.would_refuse != 0).map_err(|refusal| refusal.reason)
    }

    /// Records in `passage` the limits that will count the answer of a request that is answered without
    /// further checks, or by a list. Without a token left there is nothing to take, so that such answers make
    /// no debts.
    pub fn count_unasked(&self, facts: &Facts<'_>, now: Duration, passage: &mut Passage) {
        let limiters = self.rates.iter().filter(|limiter| limiter.settings.counts_answers());
        passage.charges.extend(limiters.filter_map(|limiter| limiter.foresee(facts, now).ok()));
    }

    /// Whether any limit counts answers.
    pub fn counts_answers(&self) -> bool {
        self.rates.iter().any(|limiter| limiter.settings.counts_answers())
    }

    /// Whether there are checks for requests that go to a backend.
    pub fn asks_at_origin(&self) -> bool {
        self.asks_at_origin
    }

    /// The findings of its adaptive limit; `None` if it has none.
    pub fn adaptive(&self) -> Option<AdaptiveState> {
        let limiter = self.concurrencies.iter().find(|limiter| limiter.settings.adaptive.is_some())?;
        Some(AdaptiveState { limit: limiter.limit(), unloaded: limiter.unloaded() })
    }

    /// Clears a debtor's debts in the rate limits; returns in how many limits there were any, and the number
    /// of limits.
    pub fn clear_debts(&self, debtor: &Debtor<'_>, now: Duration) -> (usize, usize) {
        let owed = self.rates.iter().filter(|limiter| limiter.clear(debtor, now)).count();
        (owed, self.rates.len())
    }

    /// How often a key found no bucket of its own, over all limits (count).
    pub fn overflowed(&self) -> u64 {
        self.rates.iter().map(|limiter| limiter.overflowed()).sum()
    }

    /// [`admit`] for this screen alone.
    fn admit(
        &self,
        checkpoint: Checkpoint,
        facts: &Facts<'_>,
        now: Duration,
        passage: &mut Passage,
    ) -> Result<Taken, Refusal> {
        if checkpoint == Checkpoint::Edge
            && let Some(reason) = self.listed(facts)
        {
            self.count_unasked(facts, now, passage);
            return Err(Refusal { reason, status: 403, retry_after: None });
        }
        let held = passage.slots.len();
        self.count(checkpoint, facts, now, passage).inspect_err(|_| passage.slots.truncate(held))
    }

    /// The reason why a list refuses a request.
    fn listed(&self, facts: &Facts<'_>) -> Option<Reason> {
        if self.addresses.as_ref().is_some_and(|addresses| !addresses.passes(facts.client)) {
            return Some(Reason::Address);
        }
        let texts = [
            (&self.methods, facts.method, Reason::Method),
            (&self.paths, facts.path, Reason::Path),
            (&self.user_agents, facts.user_agent, Reason::UserAgent),
        ];
        texts.into_iter().find(|(texts, text, _)| !texts.passes(text)).map(|(_, _, reason)| reason)
    }

    fn count(
        &self,
        checkpoint: Checkpoint,
        facts: &Facts<'_>,
        now: Duration,
        passage: &mut Passage,
    ) -> Result<Taken, Refusal> {
        // Concurrency first: its slots are given back automatically.
        for limiter in self.concurrencies.iter().filter(|limiter| limiter.settings.at == checkpoint) {
            let settings = &limiter.settings;
            match limiter.enter_at(facts, now) {
                Some(slot) => passage.slots.push(slot),
                None => {
                    limiter.note_refusal(facts, now);
                    if settings.dry_run {
                        passage.note(Reason::Concurrency);
                        continue;
                    }
                    return Err(Refusal {
                        reason: Reason::Concurrency,
                        status: settings.status,
                        retry_after: Some(CONCURRENCY_RETRY),
                    });
                }
            }
        }
        let mut taken = Taken::default();
        for (number, limiter) in self.rates.iter().enumerate() {
            let settings = &limiter.settings;
            if settings.at != checkpoint {
                continue;
            }
            let found = match settings.counts_answers() {
                true => limiter.foresee(facts, now).map(|charge| passage.charges.push(charge)),
                false => limiter.take(facts, now).map(|()| taken.0 |= 1 << number),
            };
            match found {
                Ok(()) => {}
                Err(wait) => {
                    limiter.note_refusal(facts, now);
                    if settings.dry_run {
                        passage.note(Reason::Rate);
                        continue;
                    }
                    self.give_back(taken, facts, now);
                    return Err(Refusal {
                        reason: Reason::Rate,
                        status: settings.status,
                        retry_after: Some(wait),
                    });
                }
            }
        }
        Ok(taken)
    }

    fn give_back(&self, taken: Taken, facts: &Facts<'_>, now: Duration) {
        for (number, limiter) in self.rates.iter().enumerate() {
            if taken.0 & (1 << number) != 0 {
                limiter.give_back(facts, now);
            }
        }
    }
}

/// Calls `ask` with facts that contain only the client.
pub(crate) fn with_client<T>(client: IpAddr, ask: impl FnOnce(&Facts<'_>) -> T) -> T {
    ask(&Facts {
        client: client.to_canonical(),
        path: b"",
        method: b"",
        user_agent: b"",
        header: &|_| None,
        cookie: &|_| None,
        values: &(),
    })
}

#[cfg(test)]
mod tests;
