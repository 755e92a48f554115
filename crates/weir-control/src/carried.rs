//! What an upgrade carries from the old process to the new one besides sockets: what operators, probes and
//! traffic have found out about the backends, and the keys that seal session tickets. Without it a new
//! process would send work to backends that are known to be down.
//!
//! There is one line of text for each backend: `state POOL ADDRESS ADMIN HEALTH EJECTED_MS WEIGHT ROLE`.
//! HEALTH is `up` (or not known), `late` (down, only because answers were late) or `down`; WEIGHT is `-`
//! unless it was set by hand; ROLE is `-` if there is none, and an older process leaves it out. A process
//! ignores lines that it does not understand, so that versions can differ. Earlier lines describe the
//! backends that the config does not name: `found POOL ADDRESS` for one that its group has, `member POOL
//! ADDRESS NAME WEIGHT BACKUP` for one that a name resolves to, `added POOL ADDRESS WEIGHT BACKUP MOST` for
//! one that was added permanently through the API; BACKUP is `backup` or `-`, MOST `max_connections` or `-`.
//! `resolved POOL ADDRESS AT` gives the address of a backend with a host name, as no name server may answer
//! when the new process asks. `breaker POOL LEFT_MS IN_A_ROW` is for a pool whose breaker is open.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use weir_balance::{AdminState, Health, MAX_WEIGHT, Role};
use weir_config::{Check, Dns, MysqlTopology, is_host_name};
use weir_mysql::topology::MOST_MEMBERS;
use weir_state::named::CarriedNames;
use weir_state::{Backend, Origin, Pool, Snapshot};
use weir_tls::{TicketKeys, tickets};

use crate::token_keys::Inherited;
use crate::told::ToldListeners;

/// The first word of each line.
pub const WORD: &str = "state";

/// First word of lines for backends that their group has.
const FOUND: &str = "found";

/// First word of lines for backends that a name resolves to.
const MEMBER: &str = "member";

/// First word of lines for backends that were added permanently through the API.
const ADDED: &str = "added";

/// First word of lines with the address of a host name.
const RESOLVED: &str = "resolved";

/// First word of lines for open breakers.
const BREAKER: &str = "breaker";

/// The lines for every backend of `snapshot` and every open breaker, each with its line end.
pub fn lines(snapshot: &Snapshot, now: Duration) -> Vec<String> {
    let of_pool = |pool: &std::sync::Arc<Pool>| {
        let configured = pool.config.backends.iter().map(|configured| configured.weight);
        // Backends that are leaving only finish what the old process has, and get nothing from the new one.
        // Those that no probe has found up yet join there by the name's answer, as they did here.
        let is_untried = |it: &Backend| it.balance.health() == Health::Unknown && !it.balance.is_assumed_up();
        let has_joined = |it: &Backend| !it.balance.is_leaving() && !is_untried(it);
        let stays = |it: &Backend| !matches!(it.origin, Origin::Name(_)) || has_joined(it);
        let lines = configured.zip(&pool.backends).filter(|(_, backend)| stays(backend));
        let lines = lines.map(|(weight, backend)| {
            Known::of(backend, weight, now).line(&pool.config.name, &backend.address)
        });
        let others = pool.config.backends.iter().zip(&pool.backends).filter(|(_, backend)| stays(backend));
        let others = others.filter_map(|(config, it)| origin_line(&pool.config.name, config, &it.origin));
        let named = pool.backends.iter().filter(|it| is_host_name(&it.address));
        let resolved = named.filter_map(|it| {
            let at = it.resolved.address()?;
            Some(format!("{RESOLVED} {} {} {at}\n", pool.config.name, it.address))
        });
        let breaker = pool.balance.breaker().and_then(|(breaker, _)| breaker.openings(now));
        let breaker = breaker.map(|(left, in_a_row)| {
            format!("{BREAKER} {} {} {in_a_row}\n", pool.config.name, left.as_millis())
        });
        others.chain(resolved).chain(lines).chain(breaker).collect::<Vec<_>>()
    };
    snapshot.pools.iter().flat_map(of_pool).collect()
}

/// The line of a backend that the config does not name; `None` for one that it names.
fn origin_line(pool: &str, config: &weir_config::Backend, origin: &Origin) -> Option<String> {
    let weir_config::Backend { address, weight, .. } = config;
    let backup = if config.backup { "backup" } else { "-" };
    match origin {
        Origin::Config => None,
        Origin::Group => Some(format!("{FOUND} {pool} {address}\n")),
        Origin::Name(name) => Some(format!("{MEMBER} {pool} {address} {name} {weight} {backup}\n")),
        Origin::Api => {
            let most = config.max_connections.map_or_else(|| "-".to_owned(), |most| most.to_string());
            Some(format!("{ADDED} {pool} {address} {weight} {backup} {most}\n"))
        }
    }
}

/// A backend that the config does not name, as in its line.
#[derive(Debug)]
struct Other {
    pool: String,
    origin: Origin,
    config: weir_config::Backend,
}

impl Other {
    /// `None` for other lines.
    fn of_line(line: &str) -> Option<Other> {
        let words: Vec<&str> = line.split(' ').collect();
        let config = |address: &str, weight: &str, backup: &str| {
            let weight = weight.parse().ok().filter(|weight| *weight <= MAX_WEIGHT)?;
            let (address, backup) = (address.to_owned(), backup == "backup");
            Some(weir_config::Backend { address, weight, backup, ..weir_config::Backend::default() })
        };
        let (pool, origin, config) = match words[..] {
            [FOUND, pool, address] => (pool, Origin::Group, config(address, "1", "-")?),
            [MEMBER, pool, address, name, weight, backup, ..] => {
                (pool, Origin::Name(name.into()), config(address, weight, backup)?)
            }
            [ADDED, pool, address, weight, backup, most, ..] => {
                let max_connections = most.parse().ok().filter(|most| *most > 0);
                let config = config(address, weight, backup)?;
                (pool, Origin::Api, weir_config::Backend { max_connections, ..config })
            }
            _ => return None,
        };
        Some(Other { pool: pool.to_owned(), origin, config })
    }

    /// Whether the pool would still take it, and does not have it yet.
    fn fits(&self, pool: &Pool, dns: &Dns) -> bool {
        let Other { origin, config, .. } = self;
        let of_origin = || pool.backends.iter().filter(|it| it.origin == *origin).count();
        let is_wanted = match origin {
            Origin::Config => false,
            Origin::Group => {
                let topology = pool.config.mysql.as_ref().map(|mysql| mysql.topology);
                topology == Some(MysqlTopology::GroupReplication) && of_origin() < MOST_MEMBERS
            }
            Origin::Name(name) => {
                let at = weir_config::backend_at(&config.address);
                name_of(pool, name).is_some()
                    && of_origin() < dns.max_members
                    && at.is_some_and(|at| dns.allows(at.ip()))
            }
            Origin::Api => pool.configured.can_have(&config.address),
        };
        is_wanted && !pool.backends.iter().any(|backend| backend.address == config.address)
    }
}

/// The config of a name that stands for several backends of a pool.
fn name_of<'p>(pool: &'p Pool, name: &str) -> Option<&'p weir_config::Backend> {
    pool.configured.backends.iter().find(|it| it.is_group() && it.address == name)
}

/// Most backends taken over that the config does not name, for all pools.
const MOST_OTHERS: usize = 65_536;

/// Most parts of the service that are taken over as in maintenance.
const MOST_MAINTENANCE: usize = 4096;

/// What is known about one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    admin: AdminState,
    /// `None` if it is up, or not known to be down; otherwise whether it was only late.
    down: Option<Lateness>,
    /// How long an ejection still lasts; zero if there is none.
    ejected: Duration,
    /// Only if it differs from the configured one.
    weight: Option<u32>,
    /// Only if it was found out; one from the config is not carried.
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lateness {
    Late,
    Dead,
}

impl Known {
    fn of(backend: &Backend, configured_weight: u32, now: Duration) -> Known {
        let balance = &backend.balance;
        let lateness = if balance.is_late() { Lateness::Late } else { Lateness::Dead };
        Known {
            admin: balance.admin_state(),
            down: (balance.health() == Health::Down).then_some(lateness),
            ejected: balance.ejected_until().map_or(Duration::ZERO, |until| until.saturating_sub(now)),
            weight: Some(balance.weight()).filter(|weight| *weight != configured_weight),
            role: balance.role(),
        }
    }

    fn line(&self, pool: &str, address: &str) -> String {
        let health = match self.down {
            None => "up",
            Some(Lateness::Late) => "late",
            Some(Lateness::Dead) => "down",
        };
        let weight = self.weight.map_or_else(|| "-".to_owned(), |weight| weight.to_string());
        let (admin, ejected_ms) = (self.admin.word(), self.ejected.as_millis());
        let role = self.role.map_or("-", Role::word);
        format!("{WORD} {pool} {address} {admin} {health} {ejected_ms} {weight} {role}\n")
    }

    /// Pool, address and what is known; `None` for other lines.
    fn of_line(line: &str) -> Option<(&str, &str, Known)> {
        let mut words = line.split(' ');
        if words.next()? != WORD {
            return None;
        }
        let (pool, address) = (words.next()?, words.next()?);
        let admin = AdminState::from_word(words.next()?)?;
        let down = match words.next()? {
            "up" => None,
            "late" => Some(Lateness::Late),
            "down" => Some(Lateness::Dead),
            _ => return None,
        };
        let ejected = Duration::from_millis(words.next()?.parse::<u32>().ok()?.into());
        let weight = match words.next()? {
            "-" => None,
            weight => Some(weight.parse().ok()?),
        };
        let role = words.next().and_then(Role::from_word);
        Some((pool, address, Known { admin, down, ejected, weight, role }))
    }

    fn apply(&self, pool: &Pool, backend: &Backend, now: Duration) {
        let balance = &backend.balance;
        balance.set_admin_state(self.admin, now);
        balance.set_role(self.role);
        // If it is no longer probed, nothing would ever find out that it is up again.
        if let Some(lateness) = self.down.filter(|_| pool.config.health.check != Check::Off) {
            balance.set_health(Health::Down, now);
            balance.set_late(lateness == Lateness::Late);
        }
        if !self.ejected.is_zero() && pool.config.health.passive.is_some() {
            balance.eject_until(now + self.ejected);
        }
        if let Some(weight) = self.weight
            && let Err(error) = balance.set_weight(weight)
        {
            tracing::warn!(pool = pool.config.name, backend = backend.address, %error, "weight not taken over");
        }
    }

    fn is_news(&self) -> bool {
        let nothing = Known {
            admin: AdminState::Ready,
            down: None,
            ejected: Duration::ZERO,
            weight: None,
            role: self.role,
        };
        *self != nothing
    }
}

/// What the old process knew, as the new one received it.
#[derive(Debug, Default)]
pub struct Carried {
    pools: HashMap<String, HashMap<String, Known>>,
    /// Backends that the config does not name.
    others: Vec<Other>,
    /// Addresses of host names, by pool and address.
    resolved: HashMap<(String, String), SocketAddr>,
    /// Open breakers, by pool: the time left, and how often in a row they have opened.
    breakers: HashMap<String, (Duration, u32)>,
    /// Lines of [`weir_tls::tickets`].
    tickets: Vec<String>,
    /// Lines of [`weir_state::maintenance`].
    maintenance: Vec<String>,
    token_keys: Inherited,
    named: CarriedNames,
    told: ToldListeners,
}

impl Carried {
    /// Parses a line; one that can't be understood is ignored.
    pub fn take(&mut self, line: &str) {
        self.token_keys.take(line);
        self.named.take(line);
        self.told.take(line);
        match line.split(' ').collect::<Vec<_>>()[..] {
            [tickets::WORD, ..] => self.tickets.push(line.to_owned()),
            ["maintenance", _, ..] if self.maintenance.len() < MOST_MAINTENANCE => {
                self.maintenance.push(line.to_owned());
            }
            [RESOLVED, pool, address, at, ..] if self.resolved.len() < MOST_OTHERS => {
                let of = (pool.to_owned(), address.to_owned());
                self.resolved.extend(at.parse::<SocketAddr>().ok().map(|at| (of, at)));
            }
            [BREAKER, pool, left, in_a_row, ..] if self.breakers.len() < MOST_OTHERS => {
                let openings = left.parse().ok().map(Duration::from_millis).zip(in_a_row.parse::<u32>().ok());
                self.breakers.extend(openings.map(|openings| (pool.to_owned(), openings)));
            }
            _ => {}
        }
        if self.others.len() < MOST_OTHERS {
            self.others.extend(Other::of_line(line));
        }
        if let Some((pool, address, known)) = Known::of_line(line) {
            self.pools.entry(pool.to_owned()).or_default().insert(address.to_owned(), known);
        }
    }

    /// The keys that seal session tickets: those of the old process, or new ones.
    pub fn ticket_keys(&self) -> Arc<TicketKeys> {
        TicketKeys::new(self.tickets.iter().map(String::as_str))
    }

    /// Adds the backends that the previous process had and the config does not name, to pools that still take
    /// them: those that follow a group, those whose config has the name, and any pool for permanent additions
    /// through the API. Host names get their earlier addresses.
    pub fn with_others(&self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        let dns = snapshot.config.dns.clone();
        let snapshot = self.others.iter().fold(snapshot, |snapshot, other| {
            let is_open = |pool: &Arc<Pool>| pool.config.name == other.pool && other.fits(pool, &dns);
            let Some(index) = snapshot.pools.iter().position(is_open) else { return snapshot };
            let config = other.config.clone();
            let change = match &other.origin {
                Origin::Name(name) => match name_of(&snapshot.pools[index], name) {
                    Some(configured) => {
                        let config = configured.member(config.address, config.weight, config.backup);
                        snapshot.with_member(index, config, name, true)
                    }
                    None => return snapshot,
                },
                Origin::Api => snapshot.with_lasting(index, config),
                Origin::Group | Origin::Config => snapshot.with_found(index, &config.address),
            };
            // One whose name is invalid for TLS will be discovered again through its name, and refused then.
            change.map_or(snapshot, |change| change.snapshot)
        });
        for pool in &snapshot.pools {
            for backend in pool.backends.iter().filter(|it| is_host_name(&it.address)) {
                let at = self.resolved.get(&(pool.config.name.clone(), backend.address.clone()));
                if let Some(at) = at.filter(|at| dns.allows(at.ip())) {
                    backend.resolved.set(*at);
                }
            }
        }
        snapshot
    }

    /// Number of backends about which something is known, for all pools.
    #[cfg(test)]
    pub fn backend_count(&self) -> usize {
        self.pools.values().map(HashMap::len).sum()
    }

    /// Gives the backends of a snapshot that is not served yet what was known about them, by pool and
    /// address, and logs what does not match.
    pub fn apply(&self, snapshot: &Snapshot, now: Duration) {
        self.token_keys.apply(snapshot, now);
        self.named.apply(now, |name| snapshot.named(name));
        self.told.apply(snapshot);
        for line in &self.maintenance {
            snapshot.maintenance.take_line(line);
            tracing::info!(line, "taken over");
        }
        for pool in &snapshot.pools {
            if let Some((breaker, settings)) = pool.balance.breaker()
                && let Some(openings) = self.breakers.get(&pool.config.name)
            {
                breaker.take_over(*openings, now, settings);
                tracing::info!(pool = pool.config.name, left = ?openings.0, "open breaker taken over");
            }
            let Some(known) = self.pools.get(&pool.config.name) else { continue };
            let mut new = Vec::new();
            for backend in &pool.backends {
                match known.get(&backend.address) {
                    Some(known) => {
                        known.apply(pool, backend, now);
                        if known.is_news() {
                            tell_taken_over(pool, backend);
                        }
                    }
                    None => new.push(backend.address.as_str()),
                }
            }
            pool.refresh(now);
            let is_gone = |address: &&String| !pool.backends.iter().any(|it| it.address == **address);
            let gone: Vec<&String> = known.keys().filter(is_gone).collect();
            // Either the file was changed, or the admin API was used: then this is not what the operator
            // expects.
            if !new.is_empty() || !gone.is_empty() {
                tracing::warn!(
                    pool = pool.config.name,
                    ?new,
                    ?gone,
                    "the file lists other backends than the process before had; the file holds"
                );
            }
        }
    }
}

fn tell_taken_over(pool: &Pool, backend: &Backend) {
    let balance = &backend.balance;
    tracing::info!(
        pool = pool.config.name,
        backend = backend.address,
        admin = balance.admin_state().word(),
        down = balance.health() == Health::Down,
        ejected = balance.ejected_until().is_some(),
        weight = balance.weight(),
        "backend's state taken over"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_balance::BreakerState;

    const NOW: Duration = Duration::from_secs(100);

    fn snapshot(pool: &str) -> Snapshot {
        of("http", pool)
    }

    fn of(protocol: &str, pool: &str) -> Snapshot {
        let text = format!(
            "[listener.web]\nprotocol = \"{protocol}\"\nbind = \"127.0.0.1:80\"\npool = \"app\"\n[pool.app]\n{pool}\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1)
    }

    #[test]
    fn what_is_known_of_a_backend_arrives_and_the_clocks_may_differ() {
        let backends = r#"backends = ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"]"#;
        let old = snapshot(backends);
        let of_old = |index: usize| &old.pools[0].backends[index].balance;
        of_old(0).set_admin_state(AdminState::Drain, NOW);
        of_old(1).set_health(Health::Down, NOW);
        of_old(1).set_late(true);
        of_old(2).eject_until(NOW + Duration::from_secs(7));
        of_old(2).set_weight(9).unwrap();
        let mut carried = Carried::default();
        for line in lines(&old, NOW) {
            carried.take(line.trim_end());
        }
        let new = snapshot(backends);
        carried.apply(&new, Duration::from_secs(3));
        let of_new = |index: usize| &new.pools[0].backends[index].balance;
        assert_eq!(of_new(0).admin_state(), AdminState::Drain);
        assert_eq!((of_new(1).health(), of_new(1).is_late()), (Health::Down, true));
        assert_eq!(of_new(2).ejected_until(), Some(Duration::from_secs(10)));
        assert_eq!((of_new(2).weight(), of_new(0).weight()), (9, 1));
        assert_eq!(of_new(3).health(), Health::Unknown, "the first probe still decides alone");
        assert_eq!(new.pools[0].balance.eligible().len(), 1, "in force at once");
    }

    #[test]
    fn an_open_breaker_arrives_where_the_pool_has_one_still() {
        let text = "backends = [\"10.0.0.1:80\"]\nbreaker = { errors = 0.5, of = 4, within = \"10s\", for = \"5s\" }";
        let old = snapshot(text);
        let (breaker, settings) = old.pools[0].balance.breaker().unwrap();
        assert!(!lines(&old, NOW).concat().contains("breaker"));
        for _ in 0..4 {
            let admitted = breaker.admit(NOW, settings).unwrap();
            breaker.observe(admitted, true, NOW, settings);
        }
        let mut carried = Carried::default();
        carried.take("breaker app soon 1");
        carried.take("breaker other 1 1");
        lines(&old, NOW + Duration::from_secs(1)).iter().for_each(|line| carried.take(line.trim_end()));
        let new = snapshot(text);
        let now = Duration::from_secs(3);
        carried.apply(&new, now);
        let state = |snapshot: &Snapshot| snapshot.pools[0].balance.breaker().map(|(it, _)| it.state(now));
        assert_eq!(state(&new), Some(BreakerState::Open(Duration::from_secs(4))));
        let without = snapshot("backends = [\"10.0.0.1:80\"]");
        carried.apply(&without, now);
        assert_eq!(state(&without), None);
    }

    #[test]
    fn roles_arrive_so_that_no_statement_waits_for_the_first_look_at_the_servers() {
        let cluster = "backends = [\"10.0.0.1:3306\", \"10.0.0.2:3306\", \"10.0.0.3:3306\"]\n[pool.app.mysql]\nuser = \"weir\"";
        let old = of("mysql", cluster);
        old.pools[0].set_roles([(0, Some(Role::Secondary)), (1, Some(Role::Primary))], NOW);
        let mut carried = Carried::default();
        lines(&old, NOW).iter().for_each(|line| carried.take(line.trim_end()));
        carried.take("state app 10.0.0.3:3306 ready up 0 -");
        let new = of("mysql", cluster);
        carried.apply(&new, NOW);
        let roles: Vec<_> = new.pools[0].balance.status().iter().map(|it| it.role).collect();
        assert_eq!(roles, [Some(Role::Secondary), Some(Role::Primary), None], "in force at once");
    }

    #[test]
    fn backends_that_were_found_arrive_with_what_is_known_of_them() {
        let cluster = "backends = [\"10.0.0.1:3306\"]\n[pool.app.mysql]\nuser = \"weir\"";
        let old = of("mysql", cluster).with_found(0, "10.0.0.2:3306").unwrap().snapshot;
        old.pools[0].set_roles([(1, Some(Role::Primary))], NOW);
        let mut carried = Carried::default();
        lines(&old, NOW).iter().for_each(|line| carried.take(line.trim_end()));
        carried.take("found app 10.0.0.1:3306");
        carried.take("found other 10.0.0.9:3306");
        let new = carried.with_others(Arc::new(of("mysql", cluster)));
        carried.apply(&new, NOW);
        let backends: Vec<_> =
            new.pools[0].backends.iter().map(|it| (&*it.address, it.origin.clone())).collect();
        assert_eq!(backends, [("10.0.0.1:3306", Origin::Config), ("10.0.0.2:3306", Origin::Group)]);
        assert_eq!(new.pools[0].balance.status()[1].role, Some(Role::Primary));

        let fixed = cluster.replace("user = \"weir\"", "topology = \"static\"");
        let new = carried.with_others(Arc::new(of("mysql", &fixed)));
        assert_eq!(new.pools[0].backends.len(), 1, "the config says who there is");
    }

    #[test]
    fn backends_of_a_name_and_those_that_were_added_lastingly_arrive_with_their_shares() {
        let pool = "backends = [\"10.0.0.1:80\", { address = \"app.example:80\", resolve = \"all\", max_connections = 5 }, \"_http._tcp.app.example\"]";
        let backend = |address: &str, weight: u32| {
            let address = address.to_owned();
            weir_config::Backend { address, weight, ..weir_config::Backend::default() }
        };
        let old = snapshot(pool);
        let of_host = weir_config::Backend { max_connections: Some(5), ..backend("10.0.0.2:80", 1) };
        let old = old.with_member(0, of_host, "app.example:80", true).unwrap().snapshot;
        let service = weir_config::Backend { backup: true, ..backend("10.0.0.3:81", 7) };
        let old = old.with_member(0, service, "_http._tcp.app.example", true).unwrap().snapshot;
        let added = weir_config::Backend { max_connections: Some(9), ..backend("[fd00::1]:80", 3) };
        let old = old.with_lasting(0, added).unwrap().snapshot;
        let mut carried = Carried::default();
        lines(&old, NOW).iter().for_each(|line| carried.take(line.trim_end()));
        let new = carried.with_others(Arc::new(snapshot(pool)));
        assert_eq!(*new.config, *old.config);
        let origins = |snapshot: &Snapshot| -> Vec<Origin> {
            snapshot.pools[0].backends.iter().map(|it| it.origin.clone()).collect()
        };
        assert_eq!(origins(&new), origins(&old));

        let without = carried.with_others(Arc::new(snapshot("backends = [\"10.0.0.2:80\"]")));
        let names: Vec<_> = without.pools[0].backends.iter().map(|it| &*it.address).collect();
        assert_eq!(names, ["10.0.0.2:80", "[fd00::1]:80"], "the config no longer has the names");
    }

    #[test]
    fn one_that_leaves_or_that_no_probe_has_found_up_is_not_handed_over() {
        let pool = "backends = [\"10.0.0.1:80\", { address = \"app.example:80\", resolve = \"all\" }]";
        let backend =
            |address: &str| weir_config::Backend { address: address.to_owned(), ..Default::default() };
        let old = snapshot(pool);
        let old = old.with_member(0, backend("10.0.0.2:80"), "app.example:80", true).unwrap().snapshot;
        let old = old.with_member(0, backend("10.0.0.3:80"), "app.example:80", false).unwrap().snapshot;
        let old = old.with_member(0, backend("10.0.0.4:80"), "app.example:80", true).unwrap().snapshot;
        old.pools[0].backends[1].balance.set_leaving(true);
        let text = lines(&old, NOW).concat();
        assert!(!text.contains("10.0.0.2") && !text.contains("10.0.0.3"), "{text}");
        assert!(text.contains("member app 10.0.0.4:80 app.example:80"), "{text}");
    }

    #[test]
    fn a_host_name_leads_where_it_led_unless_that_is_not_allowed_any_more() {
        let old = snapshot("backends = [\"app.example:80\"]");
        let at: SocketAddr = "10.0.0.7:80".parse().unwrap();
        old.pools[0].backends[0].resolved.set(at);
        let mut carried = Carried::default();
        lines(&old, NOW).iter().for_each(|line| carried.take(line.trim_end()));
        let address = |pool: &str| {
            let new = carried.with_others(Arc::new(snapshot(pool)));
            new.pools[0].backends[0].resolved.address()
        };
        assert_eq!(address("backends = [\"app.example:80\"]"), Some(at));
        assert_eq!(address("backends = [\"other.example:80\"]"), None);
        let restricted = "backends = [\"app.example:80\"]\n[dns]\nallow_address = \"10.1.0.0/16\"";
        assert_eq!(address(restricted), None);
    }

    #[test]
    fn a_backend_that_is_no_longer_probed_is_not_carried_over_as_down() {
        let old = snapshot(r#"backends = ["10.0.0.1:80"]"#);
        old.pools[0].backends[0].balance.set_health(Health::Down, NOW);
        let mut carried = Carried::default();
        lines(&old, NOW).iter().for_each(|line| carried.take(line.trim_end()));
        let new = snapshot("backends = [\"10.0.0.1:80\"]\nhealth = \"off\"");
        carried.apply(&new, NOW);
        assert_eq!(new.pools[0].backends[0].balance.health(), Health::Unknown);
    }

    #[test]
    fn lines_of_another_version_are_left_out() {
        let mut carried = Carried::default();
        for line in [
            "",
            "state",
            "state app 10.0.0.1:80 resting up 0 -",
            "state app 10.0.0.1:80 drain sideways 0 -",
            "state app 10.0.0.1:80 drain up soon -",
            "weather app 10.0.0.1:80 drain up 0 -",
        ] {
            carried.take(line);
        }
        assert!(carried.pools.is_empty(), "{carried:?}");
        carried.take("state app 10.0.0.1:80 drain up 0 - and more");
        assert_eq!(carried.pools.len(), 1, "what is known may grow");
    }
}
