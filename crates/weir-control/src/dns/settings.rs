//! The `[dns]` settings of the config, and counters of look-ups.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_config::{Dns, NameServer};

use super::ask::{Found, Resolver, Servers};

/// Interval between two look-ups of a name if answers have no TTL: drawn each time, so that look-ups of
/// different names spread out.
const EVERY_MS: std::ops::RangeInclusive<u64> = 5_000..=10_000;
/// Pause before the next look-up of a name that was never resolved.
const UNRESOLVED_RETRY: Duration = Duration::from_secs(1);

/// How names are resolved.
#[derive(Clone)]
pub(super) struct Settings {
    pub config: Dns,
    pub resolver: Resolver,
}

impl Settings {
    pub fn of(config: &Dns) -> Settings {
        let given: Vec<SocketAddr> = config
            .resolvers
            .iter()
            .filter_map(|server| match server {
                NameServer::At(address) => Some(*address),
                NameServer::ResolvConf => None,
            })
            .collect();
        let servers = match (config.resolvers.is_empty(), given.is_empty()) {
            (true, _) => Servers::System,
            (false, true) => Servers::ResolvConf,
            (false, false) => Servers::Given(given),
        };
        Settings { config: config.clone(), resolver: Resolver::new(servers, config.timeout) }
    }

    /// The allowed addresses of a host, with the other facts from the answer.
    async fn addresses_of_host(&self, host: &str, counts: &Counts) -> Result<Found, String> {
        self.usable(self.resolver.addresses(host).await, counts)
    }

    /// The same for a host named in an SRV record. It asks the name servers that returned the record, so that
    /// no search domain applies, and a host that does not exist is distinguished from a failed look-up.
    pub async fn addresses_of_target(&self, host: &str, counts: &Counts) -> Result<Found, String> {
        self.usable(self.resolver.addresses_by_servers(host).await, counts)
    }

    fn usable(&self, found: Result<Found, String>, counts: &Counts) -> Result<Found, String> {
        let mut found = found.inspect_err(|_| Counts::add(&counts.failed, 1))?;
        let before = found.addresses.len();
        found.addresses.retain(|at| self.config.allows(*at));
        found.refused_count = before - found.addresses.len();
        Counts::add(&counts.refused, found.refused_count);
        Counts::add(if found.addresses.is_empty() { &counts.empty } else { &counts.good }, 1);
        Ok(found)
    }

    /// The same for `host:port`, with the port.
    pub async fn addresses_of(
        &self,
        name: &str,
        counts: &Counts,
    ) -> Result<(Vec<SocketAddr>, Found), String> {
        let (host, port) = name.rsplit_once(':').unwrap_or((name, ""));
        let port: u16 = port.parse().map_err(|_| format!("{port:?} is no port"))?;
        let found = self.addresses_of_host(host, counts).await?;
        let addresses = found.addresses.iter().map(|address| SocketAddr::new(*address, port)).collect();
        Ok((addresses, found))
    }

    /// How long to wait before the next look-up. `ttl` is that of the answer; `None` if there is none.
    pub fn pause(&self, ttl: Option<Duration>, is_resolved: bool) -> Duration {
        let (least, most) = (self.config.min_ttl, self.config.max_ttl);
        match ttl {
            _ if !is_resolved => UNRESOLVED_RETRY,
            Some(ttl) => ttl.clamp(least, most.max(least)),
            None => jittered(),
        }
    }
}

/// Logs that an answer for a name has addresses that are not allowed, if their number has changed.
pub(super) fn tell_refused(name: &str, count: usize, before: &mut usize) {
    if std::mem::replace(before, count) != count && count > 0 {
        tracing::warn!(name, count, "the answer holds addresses that may not be used (dns.allow_address)");
    }
}

fn jittered() -> Duration {
    use std::hash::{BuildHasher as _, RandomState};
    let span = EVERY_MS.end() - EVERY_MS.start();
    Duration::from_millis(EVERY_MS.start() + RandomState::new().hash_one(0u8) % (span + 1))
}

/// Results of look-ups, for all names (counts).
#[derive(Debug, Default)]
pub struct Counts {
    /// Answers with an allowed address.
    pub good: AtomicU64,
    /// Answers without one: there is no address, the name does not exist, or `allow_address` permits none.
    pub empty: AtomicU64,
    /// Look-ups without an answer.
    pub failed: AtomicU64,
    /// Addresses that `allow_address` does not permit.
    pub refused: AtomicU64,
    /// How often a name changed to another address because the current one did not accept connections.
    pub other_address: AtomicU64,
    /// Addresses beyond `max_members`.
    pub left_out: AtomicU64,
}

impl Counts {
    pub(super) fn add(counter: &AtomicU64, count: usize) {
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_lasts_as_long_as_it_says_within_bounds() {
        let config =
            Dns { min_ttl: Duration::from_secs(2), max_ttl: Duration::from_secs(60), ..Dns::default() };
        let settings = Settings::of(&config);
        let pause = |seconds: u64| settings.pause(Some(Duration::from_secs(seconds)), true).as_secs();
        assert_eq!((pause(0), pause(30), pause(86_400)), (2, 30, 60));
        assert_eq!(settings.pause(None, false), UNRESOLVED_RETRY);
        let every = settings.pause(None, true);
        assert!((5..=10).contains(&every.as_secs()), "{every:?}");
    }
}
