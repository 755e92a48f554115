//! Rates between two samples of a running Weir's status.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_admin::status::{BackendStatus, ListenerStatus, PoolStatus, Status};

/// Samples whose rates are kept for the chart.
const REMEMBERED: usize = 300;

/// A sample: the status at one moment.
#[derive(Clone, Debug)]
pub struct Look {
    pub status: Status,
    pub at: Instant,
}

/// The last sample, and the rates between the earlier ones.
#[derive(Debug)]
pub struct History {
    pub last: Look,
    before: Option<Look>,
    /// Of all listeners, oldest first.
    pub rates: Vec<ListenerRates>,
}

/// A listener's rates, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ListenerRates {
    pub connections: f64,
    pub requests: f64,
    /// Of the requests, those answered by 4xx.
    pub client_errors: f64,
    /// Of the requests, those answered by 5xx.
    pub server_errors: f64,
    pub refused: f64,
    pub bytes_received: f64,
    pub bytes_sent: f64,
}

/// A backend's rates, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BackendRates {
    pub requests: f64,
    /// Of the requests, those answered by 5xx.
    pub server_errors: f64,
    pub failures: f64,
}

impl History {
    pub fn beginning(first: Look) -> History {
        History { last: first, before: None, rates: Vec::new() }
    }

    /// Adds a sample.
    pub fn add(&mut self, look: Look) {
        let before = std::mem::replace(&mut self.last, look);
        // The counters of another process began at zero.
        let is_same =
            before.status.pid == self.last.status.pid && before.status.started == self.last.status.started;
        self.before = is_same.then_some(before);
        if self.before.is_none() {
            return;
        }
        let all = self.last.status.listeners.iter().map(|it| self.of_listener(it));
        let sum = all.fold(ListenerRates::default(), ListenerRates::plus);
        self.rates.push(sum);
        let surplus = self.rates.len().saturating_sub(REMEMBERED);
        self.rates.drain(..surplus);
    }

    /// Rates of `listener` of the last sample; zero if the sample before did not have it.
    pub fn of_listener(&self, listener: &ListenerStatus) -> ListenerRates {
        let before = self.before.as_ref();
        let before = before.and_then(|look| look.status.listeners.iter().find(|it| it.name == listener.name));
        let Some(before) = before else { return ListenerRates::default() };
        let rate = |count: fn(&ListenerStatus) -> u64| self.per_second(count(before), count(listener));
        ListenerRates {
            connections: rate(|it| it.connections_total),
            requests: rate(|it| it.requests.values().sum()),
            client_errors: rate(|it| of(&it.requests, "4xx")),
            server_errors: rate(|it| of(&it.requests, "5xx")),
            refused: rate(|it| it.rejected.values().sum()),
            bytes_received: rate(|it| it.bytes_received),
            bytes_sent: rate(|it| it.bytes_sent),
        }
    }

    /// Rates of the backend with this index in a pool of the last sample; zero if the sample before did not
    /// have it.
    pub fn of_backend(&self, pool: &PoolStatus, index: usize) -> BackendRates {
        let backend = &pool.backends[index];
        let before = self.before.as_ref();
        let before = before.and_then(|look| look.status.pools.iter().find(|it| it.name == pool.name));
        // Even among thousands, nearly all have the same index as before.
        let is_it = |it: &&BackendStatus| it.address == backend.address;
        let before = before.and_then(|pool| {
            pool.backends.get(index).filter(is_it).or_else(|| pool.backends.iter().find(is_it))
        });
        let Some(before) = before else { return BackendRates::default() };
        let rate = |count: fn(&BackendStatus) -> u64| self.per_second(count(before), count(backend));
        BackendRates {
            requests: rate(|it| it.requests.values().sum()),
            server_errors: rate(|it| of(&it.requests, "5xx")),
            failures: rate(|it| it.failures),
        }
    }

    /// The rate of a counter. A counter restarts at zero if a reload removes its object and another adds it
    /// again.
    fn per_second(&self, before: u64, now: u64) -> f64 {
        let since = self.before.as_ref().map_or(self.last.at, |look| look.at);
        let seconds = self.last.at.duration_since(since).as_secs_f64();
        if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }
}

impl ListenerRates {
    fn plus(self, other: ListenerRates) -> ListenerRates {
        ListenerRates {
            connections: self.connections + other.connections,
            requests: self.requests + other.requests,
            client_errors: self.client_errors + other.client_errors,
            server_errors: self.server_errors + other.server_errors,
            refused: self.refused + other.refused,
            bytes_received: self.bytes_received + other.bytes_received,
            bytes_sent: self.bytes_sent + other.bytes_sent,
        }
    }
}

fn of(counts: &BTreeMap<String, u64>, class: &str) -> u64 {
    counts.get(class).copied().unwrap_or(0)
}
