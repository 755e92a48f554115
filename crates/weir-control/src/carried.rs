//! What an upgrade carries from the old process to the new one besides sockets: what operators, probes and
//! traffic have found out about the backends, and the keys that session tickets are sealed with. Without it a
//! new process would send work to backends that are known to be out.
//!
//! One line of text for each backend: `state POOL ADDRESS ADMIN HEALTH EJECTED_MS WEIGHT ROLE`. HEALTH is
//! `up` (or not known), `late` (down, merely for want of an answer in time) or `down`; WEIGHT is `-`
//! unless it was set by hand; ROLE is `-` where there is none, and an older process does not say it. A
//! line that a process does not understand says nothing to it, so that versions can differ. Before it, one
//! `found POOL ADDRESS` for each backend that no config names and that its group has.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use weir_balance::{AdminState, Health, Role};
use weir_config::{Check, MysqlTopology};
use weir_mysql::topology::MOST_MEMBERS;
use weir_state::{Backend, Pool, Snapshot};
use weir_tls::{TicketKeys, tickets};

/// The first word of each line.
pub const WORD: &str = "state";

/// The same of those that say which backends were found.
const FOUND: &str = "found";

/// The lines for every backend of `snapshot`, each with its line end.
pub fn lines(snapshot: &Snapshot, now: Duration) -> Vec<String> {
    let of_pool = |pool: &std::sync::Arc<Pool>| {
        let configured = pool.config.backends.iter().map(|configured| configured.weight);
        let lines = configured.zip(&pool.backends).map(|(weight, backend)| {
            Known::of(backend, weight, now).line(&pool.config.name, &backend.address)
        });
        let found = pool.backends.iter().filter(|backend| backend.is_found);
        let found = found.map(|backend| format!("{FOUND} {} {}\n", pool.config.name, backend.address));
        found.chain(lines).collect::<Vec<_>>()
    };
    snapshot.pools.iter().flat_map(of_pool).collect()
}

/// Most backends that are taken over as found, over all pools.
const MOST_FOUND: usize = 4096;

/// What is known about one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    admin: AdminState,
    /// `None` while it is up, or not known to be down; else whether it was merely late.
    down: Option<Lateness>,
    /// How long an ejection still lasts; zero when there is none.
    ejected: Duration,
    /// Only when it is not the configured one.
    weight: Option<u32>,
    /// What was found out; the config settles its own.
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

    /// Pool, address and what is known; `None` when it is no such line.
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
        // Where nobody asks any more, nobody would ever find out that it is up again.
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
    /// Pool and address of those that were found.
    found: Vec<(String, String)>,
    /// Lines of [`weir_tls::tickets`].
    tickets: Vec<String>,
    /// Lines of [`weir_state::maintenance`].
    maintenance: Vec<String>,
}

impl Carried {
    /// Takes a line; what can't be understood is left out.
    pub fn take(&mut self, line: &str) {
        if line.split(' ').next() == Some(tickets::WORD) {
            self.tickets.push(line.to_owned());
        }
        if line.starts_with("maintenance ") && self.maintenance.len() < MOST_FOUND {
            self.maintenance.push(line.to_owned());
        }
        if let [FOUND, pool, address] = line.split(' ').collect::<Vec<_>>()[..]
            && self.found.len() < MOST_FOUND
        {
            self.found.push((pool.to_owned(), address.to_owned()));
        }
        if let Some((pool, address, known)) = Known::of_line(line) {
            self.pools.entry(pool.to_owned()).or_default().insert(address.to_owned(), known);
        }
    }

    /// The keys that session tickets are sealed with: those of the old process, or new ones.
    pub fn ticket_keys(&self) -> Arc<TicketKeys> {
        TicketKeys::new(self.tickets.iter().map(String::as_str))
    }

    /// With the backends that the process before found, in the pools that still go by what a group says and
    /// do not name them.
    pub fn with_found(&self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        self.found.iter().fold(snapshot, |snapshot, (name, address)| {
            let is_open = |pool: &Arc<Pool>| {
                let mysql = pool.config.mysql.as_ref();
                pool.config.name == *name
                    && mysql.is_some_and(|it| it.topology == MysqlTopology::GroupReplication)
                    && !pool.backends.iter().any(|backend| backend.address == *address)
                    && pool.backends.iter().filter(|backend| backend.is_found).count() < MOST_MEMBERS
            };
            let Some(index) = snapshot.pools.iter().position(is_open) else { return snapshot };
            // One whose name can't be spoken TLS with is found again, and refused by its name then.
            snapshot.with_found(index, address).map_or(snapshot, |change| change.snapshot)
        })
    }

    /// Backends that something is known of, over all pools.
    #[cfg(test)]
    pub fn backend_count(&self) -> usize {
        self.pools.values().map(HashMap::len).sum()
    }

    /// Gives the backends of a snapshot that nobody serves yet what was known about them, by pool and
    /// address, and says in the log what did not find its place.
    pub fn apply(&self, snapshot: &Snapshot, now: Duration) {
        for line in &self.maintenance {
            snapshot.maintenance.take_line(line);
            tracing::info!(line, "taken over");
        }
        for pool in &snapshot.pools {
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
        let new = carried.with_found(Arc::new(of("mysql", cluster)));
        carried.apply(&new, NOW);
        let backends: Vec<_> = new.pools[0].backends.iter().map(|it| (&*it.address, it.is_found)).collect();
        assert_eq!(backends, [("10.0.0.1:3306", false), ("10.0.0.2:3306", true)]);
        assert_eq!(new.pools[0].balance.status()[1].role, Some(Role::Primary));

        let fixed = cluster.replace("user = \"weir\"", "topology = \"static\"");
        let new = carried.with_found(Arc::new(of("mysql", &fixed)));
        assert_eq!(new.pools[0].backends.len(), 1, "the config says who there is");
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
