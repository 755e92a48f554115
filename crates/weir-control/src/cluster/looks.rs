//! When the members of a cluster are asked, and when their answers suffice for a decision.
//!
//! Each member is asked every interval, in turn, so that a change of the group, which all of them see, is
//! noticed by the first one that is asked after it. If one has something new, all others are asked at once;
//! that is a round, and the decision comes at its end. This module reads no clock and does no I/O.

use std::time::Duration;

use weir_mysql::topology::{MemberReport, MemberState, Topology, TopologyVerdict, judge, of_other_groups};

/// How often members are asked, and how long they may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) interval: Duration,
    /// Interval while there is no primary, or members see different ones.
    pub(super) fast_interval: Duration,
    /// How long to wait for the first answer of a new member before a decision is made without it.
    pub(super) patience: Duration,
}

/// A round ends after this fraction of an interval, whether or not all have answered.
const ROUND_SHARE: u32 = 5;

/// The members of a pool, in its order, with the last answer of each.
pub(super) struct Looks {
    topology: Topology,
    pace: Pace,
    members: Vec<Look>,
    /// When the current round ends.
    round: Option<Duration>,
    /// Whether, at the last decision, all members saw the same single primary.
    is_settled: bool,
    /// The members of the group when it last had a primary, by `server_uuid`.
    believed: Vec<String>,
}

/// What is known about a member.
#[derive(Clone, Debug)]
pub(super) struct Look {
    /// Its last answer; `None` if it does not answer.
    pub(super) report: Option<MemberReport>,
    /// Since when it has been watched without a first answer.
    pending: Option<Duration>,
    is_connected: bool,
    /// It was asked and has not answered yet.
    is_awaited: bool,
    /// It was late to confirm that it is still the primary, while another said that it is.
    is_doubted: bool,
    /// It belongs to another group than the established one.
    is_of_another_group: bool,
    /// When it is asked next.
    due: Duration,
}

impl Look {
    /// For a new member.
    pub(super) fn new(now: Duration) -> Look {
        Look {
            report: None,
            pending: Some(now),
            is_connected: false,
            is_awaited: false,
            is_doubted: false,
            is_of_another_group: false,
            due: now,
        }
    }

    /// Whether its first answer is still awaited.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// Whether the time for its first answer has just run out; it is no longer awaited then.
    fn is_given_up(&mut self, now: Duration, patience: Duration) -> bool {
        self.pending.take_if(|since| *since + patience <= now).is_some()
    }

    /// Whether it belongs to another group than the established one, so that it can't be used.
    pub(super) fn is_of_another_group(&self) -> bool {
        self.is_of_another_group
    }
}

/// Whether a member of a group said that it is the primary.
fn says_primary(report: &MemberReport) -> bool {
    report.own().is_some_and(|own| own.is_primary)
}

/// Whether a member of a group sees another one as a primary that is present.
fn sees_as_primary(report: &MemberReport, other: &MemberReport) -> bool {
    let seen = report.view.iter().find(|member| member.uuid == other.uuid);
    seen.is_some_and(|seen| seen.is_primary && seen.state == MemberState::Online)
}

/// What to do now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LookStep {
    /// Ask the members with these indexes.
    Ask(Vec<usize>),
    /// Decide.
    Decide,
    /// Do nothing until then.
    Wait(Duration),
}

impl Looks {
    /// Without members.
    pub(super) fn new(topology: Topology, pace: Pace) -> Looks {
        Looks { topology, pace, members: Vec::new(), round: None, is_settled: false, believed: Vec::new() }
    }

    /// The members, in the order of the pool.
    pub(super) fn members(&self) -> &[Look] {
        &self.members
    }

    /// Watches these members from now on; a round begins.
    pub(super) fn adopt(&mut self, topology: Topology, pace: Pace, members: Vec<Look>, now: Duration) {
        (self.topology, self.pace, self.members) = (topology, pace, members);
        self.begin_round(None, now);
    }

    /// Handles a member's answer, or that it does not answer; `is_connected` says whether it can be asked.
    pub(super) fn heard(
        &mut self,
        index: usize,
        report: Option<MemberReport>,
        is_connected: bool,
        now: Duration,
    ) {
        let member = &mut self.members[index];
        let is_news = member.report != report || member.pending.is_some() || member.is_doubted;
        member.report = report;
        (member.pending, member.is_awaited, member.is_doubted) = (None, false, false);
        member.is_connected = is_connected;
        if is_news && self.round.is_none() {
            self.begin_round(Some(index), now);
        }
    }

    /// Has all members asked now, except the one that has just answered.
    pub(super) fn begin_round(&mut self, heard: Option<usize>, now: Duration) {
        self.round = Some(now + self.interval() / ROUND_SHARE);
        let others = self.members.iter_mut().enumerate().filter(|(index, _)| Some(*index) != heard);
        others.for_each(|(_, member)| member.due = now);
    }

    /// What to do now; the members in `Ask` then count as asked.
    pub(super) fn step(&mut self, now: Duration) -> LookStep {
        if self.members.iter_mut().any(|member| member.is_given_up(now, self.pace.patience)) {
            self.begin_round(None, now);
        }
        let interval = self.interval();
        let mut asked = Vec::new();
        for (index, member) in self.members.iter_mut().enumerate() {
            // A member without a connection is asked as well, which requests one, as long as there is no
            // primary.
            if member.due <= now && !member.is_awaited {
                member.due = now + interval;
                member.is_awaited = member.is_connected;
                if member.is_connected || !self.is_settled {
                    asked.push(index);
                }
            }
        }
        if !asked.is_empty() {
            return LookStep::Ask(asked);
        }
        let is_over = |until: Duration| until <= now || self.members.iter().all(|it| !it.is_awaited);
        if self.round.is_some_and(is_over) {
            self.round = None;
            return LookStep::Decide;
        }
        let idle = self.members.iter().filter(|member| !member.is_awaited).map(|member| member.due);
        let expected = self.members.iter().filter_map(|member| Some(member.pending? + self.pace.patience));
        let moments = idle.chain(self.round).chain(expected);
        LookStep::Wait(moments.min().unwrap_or(now + interval))
    }

    /// Evaluates the last answers. `before` is the index of the current primary. `None` when it is too early:
    /// there is no primary, and the first answer of a new member is still awaited.
    pub(super) fn decide(&mut self, before: Option<usize>, now: Duration) -> Option<TopologyVerdict> {
        let verdict = judge(self.topology, &self.reports(), before);
        let is_early = verdict.primary.is_err() && self.members.iter().any(Look::is_pending);
        self.is_settled = verdict.primary.is_ok() && self.agree();
        if verdict.primary.is_ok() {
            self.believed = verdict.group.iter().map(|member| member.uuid.clone()).collect();
        }
        let (interval, count) = (self.interval(), self.members.len().max(1) as u32);
        for (index, member) in self.members.iter_mut().enumerate() {
            member.due = now + interval * (index as u32 + 1) / count;
        }
        (!is_early).then_some(verdict)
    }

    /// The last answer of each member of the group. One that is late may have been the primary when it
    /// answered: it gives way to its successor in the group, which sees that it is no longer primary. A
    /// server that only accepts writes as well, as in a group with several primaries or a server that is not
    /// read-only by mistake, is not a successor: the primary stays until it counts as silent.
    fn reports(&mut self) -> Vec<Option<MemberReport>> {
        let said: Vec<_> = self.members.iter().map(|member| member.report.clone()).collect();
        for (member, is_other) in self.members.iter_mut().zip(of_other_groups(&said, &self.believed)) {
            member.is_of_another_group = is_other;
        }
        let in_time = |member: &Look| {
            member.report.clone().filter(|_| !member.is_awaited && !member.is_of_another_group)
        };
        let prompt: Vec<_> = self.members.iter().map(in_time).collect();
        let successor = judge(self.topology, &prompt, None).primary.ok();
        let successor = successor.and_then(|index| prompt.get(index)?.as_ref());
        let said = self.members.iter_mut().map(|member| {
            let late = member.report.as_ref().filter(|_| member.is_awaited);
            member.is_doubted = late
                .zip(successor)
                .is_some_and(|(late, successor)| says_primary(late) && !sees_as_primary(successor, late));
            member.report.clone().filter(|_| !member.is_doubted && !member.is_of_another_group)
        });
        said.collect()
    }

    /// Whether all members that see a majority of the group see the same primaries. If not, the group is just
    /// changing.
    fn agree(&self) -> bool {
        let of_group = self.members.iter().filter(|member| !member.is_of_another_group);
        let majorities = of_group.filter_map(|it| it.report.as_ref()).filter(|it| it.has_majority());
        let mut primaries = majorities.map(|report| {
            let primaries = report.view.iter().filter(|member| member.is_primary);
            let mut uuids: Vec<&str> = primaries.map(|member| member.uuid.as_str()).collect();
            uuids.sort_unstable();
            uuids
        });
        let first = primaries.next();
        primaries.all(|others| Some(others) == first)
    }

    fn interval(&self) -> Duration {
        if self.is_settled { self.pace.interval } else { self.pace.fast_interval }
    }
}

#[cfg(test)]
mod tests {
    use weir_mysql::topology::{NoPrimary, ViewMember};

    use super::*;

    const fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    const PACE: Pace = Pace { interval: ms(100), fast_interval: ms(20), patience: ms(1000) };

    fn report(of: &str, primary: &str) -> Option<MemberReport> {
        let member = |uuid: &str| ViewMember {
            uuid: uuid.to_owned(),
            host: "db".to_owned(),
            port: 3306,
            state: MemberState::Online,
            is_primary: uuid == primary,
        };
        let view = ["a", "b", "c"].map(member).to_vec();
        Some(MemberReport { uuid: of.to_owned(), is_read_only: of != primary, view })
    }

    /// A cluster of three that has been decided on at 0 ms, with `a` for its primary.
    fn settled() -> Looks {
        let mut looks = Looks::new(Topology::Group, PACE);
        looks.adopt(Topology::Group, PACE, vec![Look::new(ms(0)); 3], ms(0));
        for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
            looks.heard(index, report(name, "a"), true, ms(0));
        }
        while looks.step(ms(0)) != LookStep::Decide {
            (0..3).for_each(|index| looks.heard(index, report(["a", "b", "c"][index], "a"), true, ms(0)));
        }
        assert_eq!(looks.decide(None, ms(0)).unwrap().primary, Ok(0));
        looks
    }

    #[test]
    fn members_are_asked_one_after_the_other_and_nothing_new_decides_nothing() {
        let mut looks = settled();
        for turn in 0..2 {
            for (index, name) in ["a", "b", "c"].into_iter().enumerate() {
                let LookStep::Wait(until) = looks.step(ms(turn * 100 + index as u64 * 33 + 1)) else {
                    panic!("nothing is due yet")
                };
                assert_eq!(looks.step(until), LookStep::Ask(vec![index]), "{until:?}");
                looks.heard(index, report(name, "a"), true, until + ms(1));
            }
        }
    }

    #[test]
    fn what_is_new_to_one_has_the_others_asked_at_once_and_their_answers_decide() {
        let mut looks = settled();
        assert_eq!(looks.step(ms(34)), LookStep::Ask(vec![0]));
        looks.heard(0, report("a", "b"), true, ms(35));
        assert_eq!(looks.step(ms(35)), LookStep::Ask(vec![1, 2]));
        looks.heard(1, report("b", "b"), true, ms(36));
        assert_eq!(looks.step(ms(36)), LookStep::Wait(ms(55)), "until the round is over");
        looks.heard(2, report("c", "b"), true, ms(37));
        assert_eq!(looks.step(ms(37)), LookStep::Decide);
        assert_eq!(looks.decide(Some(0), ms(37)).unwrap().primary, Ok(1));
    }

    #[test]
    fn a_round_does_not_wait_for_one_who_is_late_and_who_was_the_primary_gives_way() {
        let mut looks = settled();
        assert_eq!(looks.step(ms(34)), LookStep::Ask(vec![0]), "it is frozen, and does not answer");
        assert_eq!(looks.step(ms(67)), LookStep::Ask(vec![1]));
        looks.heard(1, report("b", "b"), true, ms(68));
        assert_eq!(looks.step(ms(68)), LookStep::Ask(vec![2]));
        looks.heard(2, report("c", "b"), true, ms(69));
        assert_eq!(looks.step(ms(88)), LookStep::Decide);
        let verdict = looks.decide(Some(0), ms(88)).unwrap();
        assert_eq!((verdict.primary, verdict.roles[0]), (Ok(1), None));
        // It says again what it said before: that is news, since it was not believed.
        looks.heard(0, report("a", "a"), true, ms(90));
        assert!(matches!(looks.step(ms(90)), LookStep::Ask(_)));
    }

    #[test]
    fn one_who_is_late_keeps_its_role_while_nobody_else_claims_it() {
        let mut looks = settled();
        looks.step(ms(34));
        looks.begin_round(None, ms(40));
        assert_eq!(looks.step(ms(40)), LookStep::Ask(vec![1, 2]));
        looks.heard(1, report("b", "a"), true, ms(41));
        looks.heard(2, report("c", "a"), true, ms(41));
        assert_eq!(looks.step(ms(60)), LookStep::Decide);
        assert_eq!(looks.decide(Some(0), ms(60)).unwrap().primary, Ok(0));
    }

    /// A server that was not read-only got all writes as soon as the primary was late by a fifth of an
    /// interval.
    #[test]
    fn one_who_is_late_gives_way_to_nobody_who_takes_writes_beside_it() {
        let other_primary = |report: Option<MemberReport>| {
            let mut report = report.unwrap();
            report.is_read_only = false;
            report.view.iter_mut().filter(|member| member.uuid == "b").for_each(|b| b.is_primary = true);
            Some(report)
        };
        for topology in [Topology::Group, Topology::ReadOnly] {
            let mut looks = settled();
            looks.topology = topology;
            looks.step(ms(34));
            looks.begin_round(None, ms(40));
            assert_eq!(looks.step(ms(40)), LookStep::Ask(vec![1, 2]));
            looks.heard(1, other_primary(report("b", "a")), true, ms(41));
            looks.heard(2, other_primary(report("c", "a")), true, ms(41));
            assert_eq!(looks.step(ms(60)), LookStep::Decide);
            assert_eq!(looks.decide(Some(0), ms(60)).unwrap().primary, Ok(0), "{topology:?}");
            looks.heard(0, None, false, ms(1000));
            looks.members[2].report.as_mut().unwrap().is_read_only = true;
            assert_eq!(looks.decide(Some(0), ms(1001)).unwrap().primary, Ok(1), "{topology:?}");
        }
    }

    #[test]
    fn without_a_primary_looks_are_fast_and_connections_wanted() {
        let mut looks = settled();
        looks.heard(0, None, false, ms(10));
        assert_eq!(looks.step(ms(10)), LookStep::Ask(vec![1, 2]));
        looks.heard(1, report("b", "a"), true, ms(11));
        looks.heard(2, report("c", "a"), true, ms(11));
        assert_eq!(looks.step(ms(11)), LookStep::Decide);
        assert_eq!(looks.decide(Some(0), ms(11)).unwrap().primary, Err(NoPrimary::Silent));
        let LookStep::Wait(until) = looks.step(ms(11)) else { panic!("nothing is due") };
        assert!(until <= ms(18), "{until:?}");
        assert_eq!(looks.step(until), LookStep::Ask(vec![0]), "it is asked for a connection");
    }

    #[test]
    fn members_that_see_different_primaries_are_looked_at_again_soon() {
        let mut looks = settled();
        looks.step(ms(34));
        looks.heard(0, report("a", "a"), true, ms(34));
        looks.step(ms(67));
        looks.heard(1, report("b", "b"), true, ms(67));
        assert_eq!(looks.step(ms(67)), LookStep::Ask(vec![0, 2]));
        looks.heard(0, report("a", "a"), true, ms(68));
        looks.heard(2, report("c", "b"), true, ms(68));
        assert_eq!(looks.step(ms(68)), LookStep::Decide);
        assert_eq!(looks.decide(Some(0), ms(68)).unwrap().primary, Ok(0), "it stays for a moment");
        let LookStep::Wait(until) = looks.step(ms(68)) else { panic!("nothing is due") };
        assert!(until <= ms(75), "{until:?}");
    }

    /// A primary that was late for a fifth of an interval lost its role to a member that had been told to
    /// begin a group of its own.
    #[test]
    fn who_has_begun_a_group_of_its_own_gets_nothing_though_the_primary_is_late_or_gone() {
        let mut looks = settled();
        let alone = |of: &str, others: &[&str], primary: &str| {
            let mut report = report(of, primary).unwrap();
            report.view.retain(|member| member.uuid == of || others.contains(&&*member.uuid));
            Some(report)
        };
        looks.step(ms(34));
        looks.heard(0, alone("a", &["b"], "a"), true, ms(35));
        looks.heard(1, alone("b", &["a"], "a"), true, ms(36));
        looks.heard(2, alone("c", &[], "c"), true, ms(36));
        let mut verdict = None;
        for at in 36..60 {
            match looks.step(ms(at)) {
                LookStep::Decide => verdict = looks.decide(Some(0), ms(at)),
                // The primary answers no more.
                LookStep::Ask(_) => {
                    looks.heard(1, alone("b", &["a"], "a"), true, ms(at));
                    looks.heard(2, alone("c", &[], "c"), true, ms(at));
                }
                LookStep::Wait(_) => {}
            }
        }
        assert_eq!(verdict.unwrap().primary, Ok(0), "it is late, and nobody of its group says otherwise");
        looks.heard(0, None, false, ms(60));
        looks.heard(1, alone("b", &["a"], "a"), true, ms(60));
        looks.heard(2, alone("c", &[], "c"), true, ms(60));
        let verdict = looks.decide(Some(0), ms(61)).unwrap();
        assert_eq!(verdict.primary, Err(NoPrimary::Silent));
        assert_eq!(verdict.roles[2], None, "what it has is not what the group has");
        assert!(looks.members()[2].is_of_another_group());
        looks.heard(1, None, true, ms(62));
        assert_eq!(looks.decide(None, ms(63)).unwrap().primary, Ok(2), "nobody of the first group is left");
    }

    #[test]
    fn nobody_is_deposed_before_all_new_members_had_time_to_answer() {
        let mut looks = Looks::new(Topology::Group, PACE);
        looks.adopt(Topology::Group, PACE, vec![Look::new(ms(0)); 2], ms(0));
        looks.heard(0, report("b", "a"), true, ms(5));
        assert_eq!(looks.step(ms(5)), LookStep::Ask(vec![0, 1]));
        looks.heard(0, report("b", "a"), true, ms(6));
        assert_eq!(looks.step(ms(6)), LookStep::Decide);
        assert_eq!(looks.decide(Some(1), ms(6)), None);
        looks.step(ms(1000));
        let verdict = looks.decide(Some(1), ms(1000)).unwrap();
        assert_eq!(verdict.primary, Err(NoPrimary::Silent));
    }
}
