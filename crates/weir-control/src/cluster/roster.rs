//! Members of a group that the config does not name: when they become backends, and when they are removed.
//!
//! A server is identified by its `server_uuid`, so a seed keeps its configured address, whatever the group
//! calls it. Nothing is added or removed while there is no primary, as a failover has priority.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::time::Duration;

use weir_mysql::topology::{MOST_MEMBERS, MemberState, ViewMember};

/// How long a member must be in the group before it becomes a backend: so one that joins and fails at once
/// never does, and seeds have had time to report their identity.
const JOINED_FOR: Duration = Duration::from_secs(2);
/// How long a former member must be missing from the group before it is removed from the backends: long
/// enough to restart a server, or its machine.
const GONE_FOR: Duration = Duration::from_secs(120);
/// Time before a change that had no visible effect is requested again.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// A change to a pool's backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RosterChange {
    /// Add a backend.
    Join {
        /// Name of the pool.
        pool: String,
        /// Its `host:port`, as the group reports it.
        address: String,
    },
    /// Remove a backend that was discovered; its requests in progress continue.
    Leave {
        /// Name of the pool.
        pool: String,
        /// Its address.
        address: String,
        /// Why.
        reason: &'static str,
    },
}

/// A backend, with the facts that matter here.
pub(super) struct Enrolled<'a> {
    pub(super) address: &'a str,
    /// `None` if it has never reported it.
    pub(super) uuid: Option<&'a str>,
    /// The config does not name it.
    pub(super) is_found: bool,
}

/// Since when members have existed that are not backends, and discovered backends have been missing.
#[derive(Default)]
pub(super) struct Roster {
    /// By address.
    since: HashMap<String, Noted>,
}

struct Noted {
    since: Duration,
    asked: Option<Duration>,
}

impl Roster {
    /// Compares a group that has a primary with the backends of the pool, and returns the changes to make.
    pub(super) fn compare(
        &mut self,
        pool: &str,
        group: &[ViewMember],
        backends: &[Enrolled<'_>],
        now: Duration,
    ) -> Vec<RosterChange> {
        let mut wanted: HashMap<String, (Duration, RosterChange)> = HashMap::new();
        for backend in backends.iter().filter(|backend| backend.is_found) {
            let Some((after, reason)) = why_leave(backend, group, backends) else { continue };
            let (pool, address) = (pool.to_owned(), backend.address.to_owned());
            let change = RosterChange::Leave { pool, address, reason };
            wanted.insert(backend.address.to_owned(), (after, change));
        }
        let found_count = backends.iter().filter(|backend| backend.is_found).count();
        let room = MOST_MEMBERS.saturating_sub(found_count);
        let newcomers = group.iter().filter(|member| {
            matches!(member.state, MemberState::Online | MemberState::Recovering)
                && !backends.iter().any(|backend| backend.uuid == Some(&member.uuid))
        });
        let newcomers = newcomers.filter_map(address_of);
        let is_new = |address: &String| !backends.iter().any(|backend| backend.address == address);
        for address in newcomers.filter(is_new).take(room) {
            let change = RosterChange::Join { pool: pool.to_owned(), address: address.clone() };
            wanted.insert(address, (JOINED_FOR, change));
        }
        self.since.retain(|address, _| wanted.contains_key(address));
        let mut due: Vec<RosterChange> = Vec::new();
        for (address, (after, change)) in wanted {
            let noted = self.since.entry(address).or_insert(Noted { since: now, asked: None });
            let is_asked = noted.asked.is_some_and(|asked| now < asked + ASK_AGAIN);
            if now >= noted.since + after && !is_asked {
                noted.asked = Some(now);
                due.push(change);
            }
        }
        due
    }
}

/// After how long a discovered backend is removed, and why; `None` if it stays.
fn why_leave(
    backend: &Enrolled<'_>,
    group: &[ViewMember],
    backends: &[Enrolled<'_>],
) -> Option<(Duration, &'static str)> {
    let same = |other: &&Enrolled<'_>| other.uuid.is_some() && other.uuid == backend.uuid;
    if backends.iter().filter(same).any(|other| !other.is_found) {
        return Some((Duration::ZERO, "it is a configured backend under another address"));
    }
    let is_it = |member: &ViewMember| match backend.uuid {
        Some(uuid) => member.uuid == uuid,
        None => address_of(member).as_deref() == Some(backend.address),
    };
    let is_there = group.iter().any(is_it);
    (!is_there).then_some((GONE_FOR, "its group no longer has it"))
}

/// `host:port` of a member; `None` if that can't be connected to.
fn address_of(member: &ViewMember) -> Option<String> {
    let host = member.host.as_str();
    let is_plain =
        !host.is_empty() && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte));
    match host.parse::<Ipv6Addr>() {
        _ if member.port == 0 => None,
        Ok(host) => Some(format!("[{host}]:{}", member.port)),
        Err(_) => is_plain.then(|| format!("{host}:{}", member.port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(uuid: &str, host: &str) -> ViewMember {
        let state = MemberState::Online;
        ViewMember { uuid: uuid.to_owned(), host: host.to_owned(), port: 3306, state, is_primary: false }
    }

    fn seed<'a>(address: &'a str, uuid: Option<&'a str>) -> Enrolled<'a> {
        Enrolled { address, uuid, is_found: false }
    }

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn a_member_that_no_config_names_joins_after_a_moment_and_a_seed_keeps_its_address() {
        let (mut roster, group) = (Roster::default(), [member("a", "db1"), member("b", "fd00::2")]);
        let seeds = [seed("10.0.0.1:3306", Some("a"))];
        assert_eq!(roster.compare("db", &group, &seeds, seconds(10)), []);
        let join = RosterChange::Join { pool: "db".to_owned(), address: "[fd00::2]:3306".to_owned() };
        assert_eq!(roster.compare("db", &group, &seeds, seconds(12)), [join]);
        assert_eq!(roster.compare("db", &group, &seeds, seconds(13)), [], "it was asked for");
    }

    #[test]
    fn one_that_is_known_by_its_address_or_can_t_be_connected_to_does_not_join() {
        let mut unreachable = member("d", "db4");
        unreachable.state = MemberState::Unreachable;
        let group = [member("b", "db2"), member("c", "db3;x"), unreachable];
        let (mut roster, seeds) = (Roster::default(), [seed("db2:3306", None)]);
        for now in [0, 5] {
            assert_eq!(roster.compare("db", &group, &seeds, seconds(now)), []);
        }
    }

    #[test]
    fn a_found_one_leaves_when_its_group_has_been_without_it_for_long() {
        let found = Enrolled { address: "db2:3306", uuid: Some("b"), is_found: true };
        let backends = [seed("db1:3306", Some("a")), found];
        let (mut roster, without) = (Roster::default(), [member("a", "db1")]);
        let with = [member("a", "db1"), member("b", "db2")];
        assert_eq!(roster.compare("db", &without, &backends, seconds(0)), []);
        assert_eq!(roster.compare("db", &with, &backends, seconds(100)), [], "it is back");
        assert_eq!(roster.compare("db", &without, &backends, seconds(110)), []);
        assert_eq!(roster.compare("db", &without, &backends, seconds(229)), []);
        let changes = roster.compare("db", &without, &backends, seconds(230));
        assert!(matches!(&changes[..], [RosterChange::Leave { address, .. }] if address == "db2:3306"));
    }

    #[test]
    fn a_found_one_that_turns_out_to_be_a_seed_leaves_at_once() {
        let found = Enrolled { address: "db1:3306", uuid: Some("a"), is_found: true };
        let backends = [seed("10.0.0.1:3306", Some("a")), found];
        let changes = Roster::default().compare("db", &[member("a", "db1")], &backends, seconds(0));
        assert!(matches!(&changes[..], [RosterChange::Leave { address, .. }] if address == "db1:3306"));
    }

    #[test]
    fn no_more_are_found_than_a_group_can_have() {
        let names: Vec<String> = (0..MOST_MEMBERS).map(|number| format!("old{number}:3306")).collect();
        let found = |name| Enrolled { address: name, uuid: None, is_found: true };
        let backends: Vec<_> = names.iter().map(|name| found(name.as_str())).collect();
        let (mut roster, group) = (Roster::default(), [member("n", "new")]);
        for now in [0, 5] {
            assert_eq!(roster.compare("db", &group, &backends, seconds(now)), []);
        }
    }
}
