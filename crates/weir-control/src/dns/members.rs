//! What happens to the backends of a name when its addresses change: which join, which are drained, which
//! leave. No I/O: it compares an answer with the current backends.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use super::message::Service;

/// Number of answers in a row without a member before it is drained: some name servers return different
/// subsets of the addresses each time.
const MISSED: u32 = 2;

/// Least time before an idle member that is leaving is removed: what the kernel plane has begun is counted a
/// moment later.
const SETTLED: Duration = Duration::from_secs(2);

/// The largest weight of a backend.
const MOST_WEIGHT: u32 = weir_balance::MAX_WEIGHT;

/// One address of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The address.
    pub address: SocketAddr,
    /// Its share; 1 if the name gives none.
    pub weight: u32,
    /// Used only while no other is available.
    pub is_backup: bool,
}

/// A backend of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present {
    /// The address, weight and tier it has now.
    pub wanted: Wanted,
    /// Requests, connections and flows in progress (count).
    pub in_flight: u32,
    /// Whether its name no longer has it, so that it gets no new work.
    pub is_leaving: bool,
    /// Whether it was added recently, and no probe has found yet whether it is up.
    pub is_untried: bool,
    /// Whether an operator has put it into maintenance: if it were removed, it would get work again once the
    /// name has it again.
    pub in_maintenance: bool,
}

/// A change to make to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Add it.
    Join(Wanted),
    /// Change its weight or its tier.
    Alter(Wanted),
    /// Give it no new work.
    Drain(SocketAddr),
    /// Give it work again.
    Return(SocketAddr),
    /// Remove it.
    Leave(SocketAddr),
}

/// What an answer may have left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gap {
    /// Nothing.
    None,
    /// The addresses of a family of which it has none, because the question for them failed. Some name
    /// servers never answer it, so members of the other family that are not in the answer still count as
    /// missing.
    Family,
    /// Any addresses.
    Any,
}

impl Gap {
    fn may_hide(self, address: SocketAddr, answer: &[Wanted]) -> bool {
        match self {
            Gap::None => false,
            Gap::Family => answer.iter().all(|it| it.address.is_ipv4() != address.is_ipv4()),
            Gap::Any => true,
        }
    }
}

/// How many answers in a row members were missing from, and since when they are leaving.
#[derive(Debug, Default)]
pub struct MemberLedger {
    missed: HashMap<SocketAddr, u32>,
    leaving_since: HashMap<SocketAddr, Duration>,
}

impl MemberLedger {
    /// Compares an answer with the members. A member that the `gap` may hide is not missing. No member is
    /// drained either while new ones have not proved to be up: if all are replaced, the old ones serve until
    /// then.
    pub fn compare(
        &mut self,
        answer: &[Wanted],
        members: &[Present],
        gap: Gap,
        now: Duration,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut has_untried = false;
        for wanted in answer {
            self.missed.remove(&wanted.address);
            self.leaving_since.remove(&wanted.address);
            match members.iter().find(|member| member.wanted.address == wanted.address) {
                None => {
                    has_untried = true;
                    changes.push(Change::Join(*wanted));
                }
                Some(member) => {
                    has_untried |= member.is_untried;
                    if member.wanted != *wanted {
                        changes.push(Change::Alter(*wanted));
                    }
                    if member.is_leaving {
                        changes.push(Change::Return(wanted.address));
                    }
                }
            }
        }
        for member in members.iter().filter(|member| !member.is_leaving) {
            let address = member.wanted.address;
            if answer.iter().any(|wanted| wanted.address == address) || gap.may_hide(address, answer) {
                continue;
            }
            let missed = self.missed.entry(address).or_insert(0);
            if has_untried {
                continue;
            }
            *missed += 1;
            if *missed >= MISSED {
                self.missed.remove(&address);
                self.leaving_since.insert(address, now);
                changes.push(Change::Drain(address));
            }
        }
        let is_member = |address: &SocketAddr| members.iter().any(|it| it.wanted.address == *address);
        self.missed.retain(|address, _| is_member(address));
        self.leaving_since.retain(|address, _| is_member(address));
        changes
    }

    /// Members that are leaving and have nothing left to do, or have had `patience` for it. Those in
    /// maintenance stay until it ends.
    pub fn gone(&mut self, members: &[Present], patience: Duration, now: Duration) -> Vec<Change> {
        let mut gone = Vec::new();
        for member in members.iter().filter(|member| member.is_leaving && !member.in_maintenance) {
            let since = *self.leaving_since.entry(member.wanted.address).or_insert(now);
            let is_done = member.in_flight == 0 && now >= since + SETTLED;
            if is_done || now >= since + patience.max(SETTLED) {
                gone.push(Change::Leave(member.wanted.address));
            }
        }
        gone
    }

    /// Whether a member was missing from the last answer, so that it is worth asking again soon.
    pub fn doubts(&self) -> bool {
        !self.missed.is_empty()
    }
}

/// The addresses of a host as members, up to the limit. Existing members come first, so that an answer in
/// another order changes nothing.
pub(super) fn of_addresses(
    addresses: impl IntoIterator<Item = SocketAddr>,
    members: &[Present],
    most: usize,
) -> (Vec<Wanted>, usize) {
    let wanted = |address| Wanted { address, weight: 1, is_backup: false };
    bounded(addresses.into_iter().map(wanted).collect(), members, most)
}

/// The services of a name as members, with the addresses of each host.
///
/// Those of the lowest priority serve, and all others are backups (RFC 2782 lets a client try one priority
/// after the other; here there are two tiers). Weights keep their proportions within the limit of a backend.
/// For a record with weight 0 among others RFC 2782 says that it should be chosen very rarely.
pub(super) fn of_services(
    services: &[(Service, Vec<SocketAddr>)],
    members: &[Present],
    most: usize,
) -> (Vec<Wanted>, usize) {
    let first = services.iter().map(|(service, _)| service.priority).min().unwrap_or(0);
    let heaviest = services.iter().map(|(service, _)| u32::from(service.weight)).max().unwrap_or(0);
    let has_zero = services.iter().any(|(service, _)| service.weight == 0);
    let weight_of = |weight: u16| match u32::from(weight) {
        _ if heaviest == 0 => 1,
        0 => 1,
        weight if heaviest > MOST_WEIGHT || has_zero => (weight * MOST_WEIGHT / heaviest).max(1),
        weight => weight,
    };
    let mut all: HashMap<SocketAddr, Wanted> = HashMap::new();
    for (service, addresses) in services {
        for address in addresses {
            let (weight, is_backup) = (weight_of(service.weight), service.priority > first);
            let wanted = Wanted { address: *address, weight, is_backup };
            let said = all.entry(*address).or_insert(wanted);
            // Two records that lead to the same address are one member, in the better of the two tiers.
            if said.is_backup && !is_backup {
                *said = wanted;
            }
        }
    }
    bounded(all.into_values().collect(), members, most)
}

/// At most `most`, existing members first and then by address; also returns how many were left out. If every
/// answer has other addresses, members that are leaving count too: there are at most twice as many.
fn bounded(mut all: Vec<Wanted>, members: &[Present], most: usize) -> (Vec<Wanted>, usize) {
    let present: HashSet<SocketAddr> = members.iter().map(|it| it.wanted.address).collect();
    let is_member = |wanted: &Wanted| present.contains(&wanted.address);
    all.sort_by_key(|wanted| (!is_member(wanted), wanted.address));
    all.dedup_by_key(|wanted| wanted.address);
    let member_count = all.iter().filter(|wanted| is_member(wanted)).count();
    let room = most.saturating_mul(2).saturating_sub(members.len());
    let most = most.min(member_count + room);
    let left_out = all.len().saturating_sub(most);
    all.truncate(most);
    (all, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    fn wanted(last: u8) -> Wanted {
        Wanted { address: at(last), weight: 1, is_backup: false }
    }

    fn member(last: u8) -> Present {
        Present {
            wanted: wanted(last),
            in_flight: 0,
            is_leaving: false,
            is_untried: false,
            in_maintenance: false,
        }
    }

    fn leaving(last: u8, in_flight: u32) -> Present {
        Present { in_flight, is_leaving: true, ..member(last) }
    }

    const fn seconds(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn who_is_new_joins_at_once_and_who_is_missing_twice_is_drained() {
        let (mut ledger, members) = (MemberLedger::default(), [member(1), member(2)]);
        let answer = [wanted(1), wanted(3)];
        assert_eq!(ledger.compare(&answer, &members, Gap::None, seconds(0)), [Change::Join(wanted(3))]);
        assert!(ledger.doubts());
        let members = [member(1), member(2), member(3)];
        assert_eq!(ledger.compare(&answer, &members, Gap::None, seconds(1)), []);
        assert_eq!(ledger.compare(&answer, &members, Gap::None, seconds(2)), [Change::Drain(at(2))]);
        assert!(!ledger.doubts());
    }

    #[test]
    fn nobody_is_drained_while_those_who_come_have_not_been_tried() {
        let mut ledger = MemberLedger::default();
        let untried = [member(1), Present { is_untried: true, ..member(2) }];
        for _ in 0..5 {
            assert_eq!(ledger.compare(&[wanted(2)], &untried, Gap::None, seconds(0)), []);
            assert!(ledger.doubts(), "the name is worth asking again soon");
        }
        let tried = [member(1), member(2)];
        assert_eq!(ledger.compare(&[wanted(2)], &tried, Gap::None, seconds(1)), []);
        assert_eq!(ledger.compare(&[wanted(2)], &tried, Gap::None, seconds(2)), [Change::Drain(at(1))]);
    }

    #[test]
    fn one_that_was_missing_once_stays_and_its_count_begins_anew() {
        let (mut ledger, members) = (MemberLedger::default(), [member(1), member(2)]);
        for answer in [&[wanted(1)][..], &[wanted(1), wanted(2)], &[wanted(1)]] {
            assert_eq!(ledger.compare(answer, &members, Gap::None, seconds(0)), []);
        }
    }

    #[test]
    fn a_partial_answer_takes_nobody_out() {
        let (mut ledger, members) = (MemberLedger::default(), [member(1), member(2)]);
        for _ in 0..5 {
            assert_eq!(ledger.compare(&[wanted(1)], &members, Gap::Any, seconds(0)), []);
        }
    }

    /// A name server that never answers for IPv6 made every answer a partial one, and nobody ever left.
    #[test]
    fn where_one_family_is_not_answered_for_those_of_the_other_leave_as_ever() {
        let six = SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 80));
        let of_six = Present { wanted: Wanted { address: six, ..wanted(0) }, ..member(0) };
        let (mut ledger, members) = (MemberLedger::default(), [member(1), member(2), of_six]);
        assert_eq!(ledger.compare(&[wanted(1)], &members, Gap::Family, seconds(0)), []);
        let changes = ledger.compare(&[wanted(1)], &members, Gap::Family, seconds(1));
        assert_eq!(changes, [Change::Drain(at(2))]);
    }

    #[test]
    fn one_that_leaves_goes_when_it_has_nothing_left_to_do_or_has_had_its_time() {
        let mut ledger = MemberLedger::default();
        let members = [member(1), leaving(2, 3)];
        assert_eq!(ledger.gone(&members, seconds(30), seconds(10)), []);
        assert_eq!(ledger.gone(&members, seconds(30), seconds(39)), []);
        assert_eq!(ledger.gone(&members, seconds(30), seconds(40)), [Change::Leave(at(2))]);
        let idle = [member(1), leaving(2, 0)];
        assert_eq!(ledger.gone(&idle, seconds(300), seconds(11)), []);
        assert_eq!(ledger.gone(&idle, seconds(300), seconds(12)), [Change::Leave(at(2))]);
    }

    #[test]
    fn one_in_maintenance_leaves_when_it_is_ready_again() {
        let mut ledger = MemberLedger::default();
        let held = [member(1), Present { in_maintenance: true, ..leaving(2, 0) }];
        assert_eq!(ledger.gone(&held, seconds(30), seconds(10)), []);
        assert_eq!(ledger.gone(&held, seconds(30), seconds(100)), []);
        let ready = [member(1), leaving(2, 0)];
        assert_eq!(ledger.gone(&ready, seconds(30), seconds(101)), []);
        assert_eq!(ledger.gone(&ready, seconds(30), seconds(104)), [Change::Leave(at(2))]);
    }

    #[test]
    fn one_that_leaves_and_is_named_again_returns() {
        let mut ledger = MemberLedger::default();
        let members = [member(1), leaving(2, 3)];
        let changes = ledger.compare(&[wanted(1), wanted(2)], &members, Gap::None, seconds(0));
        assert_eq!(changes, [Change::Return(at(2))]);
    }

    #[test]
    fn a_crowd_of_addresses_is_cut_and_members_stay() {
        let crowd = (0..200).map(|last| at(last as u8));
        let (answer, left_out) = of_addresses(crowd, &[member(150)], 10);
        assert_eq!((answer.len(), left_out), (10, 190));
        assert_eq!(answer[0], wanted(150));
        assert_eq!(answer[1], wanted(0));
    }

    #[test]
    fn answers_with_ever_other_addresses_make_no_more_than_twice_as_many_members() {
        let mut members: Vec<Present> = Vec::new();
        for first in (0..100).step_by(10) {
            let (answer, _) = of_addresses((first..first + 10).map(at), &members, 10);
            members.extend(answer.iter().map(|wanted| Present { wanted: *wanted, ..member(0) }));
        }
        assert_eq!(members.len(), 20);
    }

    fn service(priority: u16, weight: u16, last: u8) -> (Service, Vec<SocketAddr>) {
        (Service { priority, weight, port: 80, host: String::new() }, vec![at(last)])
    }

    #[test]
    fn services_of_a_higher_priority_number_are_backups_and_weights_keep_their_proportions() {
        let weights = |services: &[(Service, Vec<SocketAddr>)]| {
            let (all, _) = of_services(services, &[], 64);
            all.iter().map(|wanted| (wanted.weight, wanted.is_backup)).collect::<Vec<_>>()
        };
        let backup = weights(&[service(10, 3, 1), service(10, 6, 2), service(20, 1, 3)]);
        assert_eq!(backup, [(3, false), (6, false), (1, true)]);
        assert_eq!(weights(&[service(0, 0, 1), service(0, 0, 2)]), [(1, false), (1, false)]);
        assert_eq!(weights(&[service(0, 0, 1), service(0, 5, 2)]), [(1, false), (256, false)]);
        assert_eq!(weights(&[service(0, 30000, 1), service(0, 60000, 2)]), [(128, false), (256, false)]);
        assert_eq!(weights(&[service(0, 1, 1), service(0, 65535, 2)]), [(1, false), (256, false)]);
    }

    #[test]
    fn two_records_of_one_place_are_one_member() {
        let (all, _) = of_services(&[service(20, 1, 1), service(10, 2, 1)], &[], 64);
        assert_eq!(all, [Wanted { address: at(1), weight: 2, is_backup: false }]);
    }

    /// A server that lies could name sixty hosts of thousands of addresses each. Compared with each other
    /// they would keep the control thread for minutes.
    #[test]
    fn hosts_of_very_many_addresses_are_put_together_without_comparing_each_with_all() {
        let addresses = |host: u32| {
            (0..4000)
                .map(|last| SocketAddr::from(((host * 4000 + last).to_be_bytes(), 80)))
                .collect::<Vec<_>>()
        };
        let services: Vec<_> = (0..64).map(|host| (service(0, 1, 0).0, addresses(host))).collect();
        let (all, left_out) = of_services(&services, &[], 64);
        assert_eq!((all.len(), left_out), (64, 64 * 3999));
    }

    #[test]
    fn another_weight_alters_a_member() {
        let mut ledger = MemberLedger::default();
        let heavier = Wanted { weight: 9, ..wanted(1) };
        assert_eq!(ledger.compare(&[heavier], &[member(1)], Gap::None, seconds(0)), [Change::Alter(heavier)]);
    }
}
