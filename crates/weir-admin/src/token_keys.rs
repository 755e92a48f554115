//! The state of fetched keys for signed tokens, for the operator.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_control::control::Control;
use weir_io::clock;
use weir_state::Snapshot;
use weir_state::token_keys::{Counts, FetchedSet};
use weir_stats::expose::{self, Exposition};

/// One fetched JWK set.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenKeysStatus {
    /// Its source, without the query.
    pub source: String,
    /// Keys at hand.
    pub key_count: usize,
    /// Keys of the last answer that are unusable.
    pub skipped: usize,
    /// Seconds since a fetch last confirmed them; `None` if none were fetched yet.
    pub age_seconds: Option<f64>,
    /// Whether tokens are checked against them: not before the first fetch, and not when they are stale.
    pub hold: bool,
    /// Why the last fetch failed; `None` if it succeeded, or there was none.
    pub error: Option<String>,
}

/// The state of all sets, in the order of the config.
pub(crate) fn of(control: &Control) -> Vec<TokenKeysStatus> {
    all(&control.snapshot()).map(status).collect()
}

fn all(snapshot: &Snapshot) -> impl Iterator<Item = &FetchedSet> {
    snapshot.token_keys.iter().flat_map(|keys| keys.all()).map(|set| &**set)
}

fn status(set: &FetchedSet) -> TokenKeysStatus {
    let (held, now) = (set.held(), clock::now());
    TokenKeysStatus {
        source: set.config.shown().to_owned(),
        key_count: held.as_ref().map_or(0, |held| held.set.keys.len()),
        skipped: held.as_ref().map_or(0, |held| held.set.skipped),
        age_seconds: held.as_ref().map(|held| held.age(now).as_secs_f64()),
        hold: set.good(now).is_some(),
        error: set.error(),
    }
}

/// What is wrong with a set, in words, for health checks; `None` if nothing is.
pub fn complaint(status: &TokenKeysStatus) -> Option<String> {
    let TokenKeysStatus { source, key_count, age_seconds, hold, error, .. } = status;
    let error = error.as_deref().unwrap_or("no answer yet");
    match (hold, age_seconds) {
        (true, _) if status.error.is_none() => None,
        (true, _) => Some(format!("keys of {source}: {key_count} of before hold: {error}")),
        (false, Some(_)) => Some(format!("keys of {source}: out of date, no token passes: {error}")),
        (false, None) => Some(format!("keys of {source}: none yet, no token passes: {error}")),
    }
}

/// Metrics by source; nothing if there is none.
pub(crate) fn metrics(out: &mut Exposition, snapshot: &Snapshot) {
    // Sets that differ only in the query or in the rules share a name.
    let mut by_source: BTreeMap<&str, Vec<(TokenKeysStatus, Counts)>> = BTreeMap::new();
    for set in all(snapshot) {
        by_source.entry(set.config.shown()).or_default().push((status(set), set.counts()));
    }
    let mut keys = out.family(&expose::JWT_KEYS);
    for (source, sets) in &by_source {
        let held = sets.iter().filter(|(status, _)| status.hold);
        keys.sample(&[source], held.map(|(status, _)| status.key_count).sum::<usize>() as f64);
    }
    let mut skipped = out.family(&expose::JWT_KEYS_SKIPPED);
    for (source, sets) in &by_source {
        skipped.sample(&[source], sets.iter().map(|(status, _)| status.skipped).sum::<usize>() as f64);
    }
    let mut age = out.family(&expose::JWT_KEYS_AGE);
    for (source, sets) in &by_source {
        if let Some(oldest) = sets.iter().filter_map(|(status, _)| status.age_seconds).reduce(f64::max) {
            age.sample(&[source], oldest);
        }
    }
    let sum = |sets: &[(TokenKeysStatus, Counts)], count: fn(&Counts) -> u64| {
        sets.iter().map(|(_, counts)| count(counts)).sum::<u64>() as f64
    };
    let mut fetches = out.family(&expose::JWT_KEY_FETCHES);
    for (source, sets) in &by_source {
        fetches.sample(&[source, "fetched"], sum(sets, |it| it.fetched));
        fetches.sample(&[source, "failed"], sum(sets, |it| it.failed));
    }
    let mut waits = out.family(&expose::JWT_KEY_WAITS);
    for (source, sets) in &by_source {
        waits.sample(&[source, "waited"], sum(sets, |it| it.waited));
        waits.sample(&[source, "no_place"], sum(sets, |it| it.no_place));
        waits.sample(&[source, "client_full"], sum(sets, |it| it.client_full));
        waits.sample(&[source, "too_soon"], sum(sets, |it| it.too_soon));
    }
}
