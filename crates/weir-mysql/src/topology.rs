//! Finds the primary, the secondaries that are fit for reads, and the other members of the cluster, from what
//! the members report about themselves and each other.
//!
//! Only a server's own report makes it writable: it must see itself as the primary in a view with a majority,
//! and not be read-only. What other members say about it is never enough. So none of these counts as a
//! primary: one that was partitioned from its group, one that still applies its predecessor's backlog, and
//! the primary of a replica cluster.
//!
//! Source: MySQL 8.4 Reference Manual, sections 29.12.11.17 (`replication_group_members`), 20.1.4.2 ("Failure
//! Detection") and 7.1.8 (`super_read_only`).

/// Asks a member for its view of the group. It gives one row for each member in the view, or one row with
/// NULLs if the server is in no group.
pub const GROUP_SQL: &str = "SELECT @@server_uuid, @@super_read_only, member_id, member_host, member_port, \
     member_state, member_role FROM (SELECT 1) AS one \
     LEFT JOIN performance_schema.replication_group_members ON member_id <> ''";

/// Asks a server whether it is read-only. MariaDB has this variable, too.
pub const READ_ONLY_SQL: &str = "SELECT @@read_only";

/// Most members that a group can have (MySQL 8.4 Reference Manual section 20.3.2). A larger view is rejected.
pub const MOST_MEMBERS: usize = 9;

/// The state of a member as another sees it, `MEMBER_STATE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Takes part in the group.
    Online,
    /// Takes part, and is still catching up by distributed recovery.
    Recovering,
    /// Belongs to the group but does not respond.
    Unreachable,
    /// Not in the group, or no longer: `OFFLINE`, `ERROR`, or a state added by a later version.
    Out,
}

impl MemberState {
    fn of(word: &[u8]) -> MemberState {
        match word {
            b"ONLINE" => MemberState::Online,
            b"RECOVERING" => MemberState::Recovering,
            b"UNREACHABLE" => MemberState::Unreachable,
            _ => MemberState::Out,
        }
    }

    /// The state as a word, for people.
    pub const fn word(self) -> &'static str {
        match self {
            MemberState::Online => "online",
            MemberState::Recovering => "recovering",
            MemberState::Unreachable => "unreachable",
            MemberState::Out => "out of the group",
        }
    }

    /// Whether the member counts towards the majority.
    fn takes_part(self) -> bool {
        matches!(self, MemberState::Online | MemberState::Recovering)
    }
}

/// A member as another, or itself, sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewMember {
    /// `server_uuid`.
    pub uuid: String,
    /// `report_host`, or the server's own host name; clients may know it by another name.
    pub host: String,
    /// `report_port`.
    pub port: u16,
    /// Its state.
    pub state: MemberState,
    /// Whether its role is PRIMARY.
    pub is_primary: bool,
}

/// What a server reported about itself and its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberReport {
    /// `server_uuid`; empty if it was not asked for.
    pub uuid: String,
    /// `super_read_only`; outside of groups, `read_only`.
    pub is_read_only: bool,
    /// The members in its view; empty if it is in no group.
    pub view: Vec<ViewMember>,
}

/// A row of an answer; `None` is NULL.
pub type TextRow = Vec<Option<Vec<u8>>>;

impl MemberReport {
    /// Reads the answer to [`GROUP_SQL`]; `None` if the rows do not fit that query.
    pub fn of_group(rows: &[TextRow]) -> Option<MemberReport> {
        let [Some(uuid), Some(read_only), ..] = rows.first()?.as_slice() else { return None };
        if rows.len() > MOST_MEMBERS {
            return None;
        }
        let view: Option<Vec<ViewMember>> = rows
            .iter()
            .filter(|row| row.get(2).is_some_and(Option::is_some))
            .map(|row| ViewMember::of(row.as_slice()))
            .collect();
        Some(MemberReport { uuid: text(uuid)?, is_read_only: flag(read_only)?, view: view? })
    }

    /// Reads the answer to [`READ_ONLY_SQL`]; `None` if the rows do not fit that query.
    pub fn of_read_only(rows: &[TextRow]) -> Option<MemberReport> {
        let [row] = rows else { return None };
        let [Some(read_only)] = row.as_slice() else { return None };
        Some(MemberReport { uuid: String::new(), is_read_only: flag(read_only)?, view: Vec::new() })
    }

    /// Its own entry in its view; `None` if it is not in the view.
    pub fn own(&self) -> Option<&ViewMember> {
        self.view.iter().find(|member| member.uuid == self.uuid)
    }

    /// Whether it takes part itself and more than half of the members in its view take part.
    pub fn has_majority(&self) -> bool {
        let count = self.view.iter().filter(|member| member.state.takes_part()).count();
        self.own().is_some_and(|own| own.state.takes_part()) && count * 2 > self.view.len()
    }

    /// Whether it accepts writes according to its own report.
    fn is_writable(&self, topology: Topology) -> bool {
        let is_primary = self.own().is_some_and(|own| own.is_primary && own.state == MemberState::Online);
        !self.is_read_only
            && match topology {
                Topology::Group => is_primary && self.has_majority(),
                Topology::ReadOnly => true,
            }
    }

    /// Whether a majority has continued without `other`, which has not noticed yet: `other` still sees this
    /// member, but this member no longer sees `other`. A member that shuts down leaves its group first; for
    /// seconds after that, until it has closed its connections, it may still report itself as the writable
    /// primary. A member that was suspended and resumes does the same until it notices its expulsion.
    fn went_on_without(&self, other: &MemberReport) -> bool {
        self.has_majority() && !self.sees(&other.uuid) && other.sees(&self.uuid)
    }

    fn sees(&self, uuid: &str) -> bool {
        self.view.iter().any(|member| member.uuid == uuid)
    }
}

impl ViewMember {
    fn of(row: &[Option<Vec<u8>>]) -> Option<ViewMember> {
        let [_, _, Some(uuid), Some(host), Some(port), Some(state), role] = row else { return None };
        Some(ViewMember {
            uuid: text(uuid)?,
            host: text(host)?,
            port: text(port)?.parse().ok()?,
            state: MemberState::of(state),
            is_primary: role.as_deref() == Some(b"PRIMARY"),
        })
    }
}

/// Text from a peer that may go to logs: printable, and no longer than a host name can be.
fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_fit = text.len() <= 255 && text.bytes().all(|byte| byte.is_ascii_graphic());
    is_fit.then(|| text.to_owned())
}

fn flag(bytes: &[u8]) -> Option<bool> {
    match bytes {
        b"1" | b"ON" => Some(true),
        b"0" | b"OFF" => Some(false),
        _ => None,
    }
}

/// How the primary is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// By its state in Group Replication.
    Group,
    /// It is the one server that is not read-only.
    ReadOnly,
}

/// What a member can be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberRole {
    /// Takes writes.
    Primary,
    /// Can be read from.
    Secondary,
}

/// Why there is no primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPrimary {
    /// No member answered.
    NobodyAnswers,
    /// No member that answered is in a group.
    NoGroup,
    /// The members that answered see no majority of their group.
    NoMajority,
    /// The primary is read-only: its election is not complete, or its cluster is a replica of another.
    ReadOnly,
    /// The group has a primary, but it does not answer Weir.
    Silent,
    /// No member reports that it is the primary.
    NoneElected,
    /// There are several groups, or several primaries that are not in one group, so none can be trusted.
    Several,
}

impl NoPrimary {
    /// The reason in words, for logs and status.
    pub const fn words(self) -> &'static str {
        match self {
            NoPrimary::NobodyAnswers => "no member answers",
            NoPrimary::NoGroup => "no member is in a group",
            NoPrimary::NoMajority => "the members that answer see fewer than half of their group",
            NoPrimary::ReadOnly => "the primary is read-only",
            NoPrimary::Silent => "the primary does not answer",
            NoPrimary::NoneElected => "no member says that it is the primary",
            NoPrimary::Several => "the members are of several groups, or have several primaries",
        }
    }
}

/// The conclusion from the reports of all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyVerdict {
    /// Index of the primary among the reports.
    pub primary: Result<usize, NoPrimary>,
    /// The roles, by index of the report; `None` for a member that cannot be used now.
    pub roles: Vec<Option<MemberRole>>,
    /// The group's members in the view that is trusted; empty if there is no group, or no trusted view.
    pub group: Vec<ViewMember>,
}

/// Works out the topology from the members' latest reports; `None` is a member that does not answer. `before`
/// is the primary so far. If there are several primaries, it stays the primary, so that all writes to a
/// multi-primary group go to one server.
pub fn judge(topology: Topology, reports: &[Option<MemberReport>], before: Option<usize>) -> TopologyVerdict {
    let reports = without_those_left_behind(reports);
    let reports = reports.as_slice();
    let primary = primary(topology, reports, before);
    let leader = primary.ok().and_then(|index| reports.get(index)?.as_ref());
    // Without a primary, any view with a majority will do: the views of one group agree.
    let mut believed = reports.iter().flatten().filter(|report| report.has_majority());
    let believed = leader.or_else(|| believed.next());
    let role = |(index, report): (usize, &Option<MemberReport>)| {
        let report = report.as_ref()?;
        if primary == Ok(index) {
            return Some(MemberRole::Primary);
        }
        can_be_read(topology, report, believed).then_some(MemberRole::Secondary)
    };
    let mut roles: Vec<Option<MemberRole>> = reports.iter().enumerate().map(role).collect();
    // A primary that is still read-only delays reads while it applies its predecessor's backlog. So it serves
    // reads only if no other member can.
    if roles.iter().all(Option::is_none) {
        for (role, report) in roles.iter_mut().zip(reports) {
            let is_there = report.as_ref().is_some_and(|report| is_online(report, believed));
            *role = is_there.then_some(MemberRole::Secondary);
        }
    }
    TopologyVerdict { primary, roles, group: believed.map_or_else(Vec::new, |report| report.view.clone()) }
}

fn without_those_left_behind(reports: &[Option<MemberReport>]) -> Vec<Option<MemberReport>> {
    let is_left_behind =
        |report: &MemberReport| reports.iter().flatten().any(|it| it.went_on_without(report));
    reports.iter().map(|report| report.clone().filter(|report| !is_left_behind(report))).collect()
}

/// For each report, whether its server belongs to a different group than the one trusted so far. `believed`
/// has the members of that group by `server_uuid`. A server is in a different group if it sees fewer than
/// half of these members while one that it does not see still takes part in a group. This covers a server
/// that was made to bootstrap a group of its own (`group_replication_bootstrap_group`), whatever happened to
/// the primary: it never receives what its own group lacks. If only members that it sees are left of the old
/// group, then the old group was bootstrapped again. A server that takes part in no group is not in a
/// different one: it was told to leave or was expelled, and sees only itself from then on.
pub fn of_other_groups(reports: &[Option<MemberReport>], believed: &[String]) -> Vec<bool> {
    let current = without_those_left_behind(reports);
    let takes_part = |report: &MemberReport| report.own().is_some_and(|own| own.state.takes_part());
    let is_of_another = |report: &MemberReport| {
        let kept = believed.iter().filter(|uuid| report.sees(uuid)).count();
        let goes_on = |other: &MemberReport| {
            believed.contains(&other.uuid) && !report.sees(&other.uuid) && takes_part(other)
        };
        takes_part(report) && kept * 2 < believed.len() && current.iter().flatten().any(goes_on)
    };
    reports.iter().map(|report| report.as_ref().is_some_and(is_of_another)).collect()
}

fn primary(
    topology: Topology,
    reports: &[Option<MemberReport>],
    before: Option<usize>,
) -> Result<usize, NoPrimary> {
    let writable: Vec<(usize, &MemberReport)> = reports
        .iter()
        .enumerate()
        .filter_map(|(index, report)| Some((index, report.as_ref()?)))
        .filter(|(_, report)| report.is_writable(topology))
        .collect();
    match writable.as_slice() {
        [] => Err(why_none(topology, reports)),
        [(index, report)] => {
            let has_rival = |other: &MemberReport| other.has_majority() && !report.sees(&other.uuid);
            let is_alone = before == Some(*index) || !reports.iter().flatten().any(has_rival);
            if is_alone { Ok(*index) } else { Err(NoPrimary::Several) }
        }
        [(first, report), others @ ..] => {
            if let Some(same) = before.filter(|before| writable.iter().any(|(index, _)| index == before)) {
                return Ok(same);
            }
            // Several primaries of one group see each other; those of two groups do not.
            let is_one_group =
                topology == Topology::Group && others.iter().all(|(_, other)| report.sees(&other.uuid));
            if is_one_group { Ok(*first) } else { Err(NoPrimary::Several) }
        }
    }
}

fn why_none(topology: Topology, reports: &[Option<MemberReport>]) -> NoPrimary {
    let answered = || reports.iter().flatten();
    if answered().next().is_none() {
        return NoPrimary::NobodyAnswers;
    }
    if topology == Topology::ReadOnly {
        return NoPrimary::NoneElected;
    }
    if answered().all(|report| report.view.is_empty()) {
        return NoPrimary::NoGroup;
    }
    let mut majorities = answered().filter(|report| report.has_majority()).peekable();
    if majorities.peek().is_none() {
        return NoPrimary::NoMajority;
    }
    let elected = majorities.flat_map(|report| &report.view).find(|member| member.is_primary);
    match elected {
        None => NoPrimary::NoneElected,
        Some(elected) if answered().any(|report| report.uuid == elected.uuid) => NoPrimary::ReadOnly,
        Some(_) => NoPrimary::Silent,
    }
}

/// Whether a member that is not the primary can serve reads.
fn can_be_read(topology: Topology, report: &MemberReport, believed: Option<&MemberReport>) -> bool {
    match topology {
        Topology::ReadOnly => report.is_read_only,
        Topology::Group => is_online(report, believed) && report.own().is_some_and(|own| !own.is_primary),
    }
}

/// Whether a member is online in the trusted group. A member without a majority does not count while others
/// have a majority and continue without it. If no member has a majority, its own report is the best there is.
fn is_online(report: &MemberReport, believed: Option<&MemberReport>) -> bool {
    let is_member = believed.is_none_or(|view| report.has_majority() && view.sees(&report.uuid));
    is_member && report.own().is_some_and(|own| own.state == MemberState::Online)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIMARY: &str = "PRIMARY";
    const SECONDARY: &str = "SECONDARY";

    fn row(of: &str, read_only: bool, member: &str, state: &str, role: &str) -> TextRow {
        let read_only = if read_only { "1" } else { "0" };
        let port = format!("330{}", member.len());
        [of, read_only, member, "10.0.0.1", &port, state, role]
            .map(|text| Some(text.as_bytes().to_vec()))
            .to_vec()
    }

    /// The report of member `of`, whose view is given by name, state and role.
    fn report(of: &str, read_only: bool, view: &[(&str, &str, &str)]) -> Option<MemberReport> {
        let rows: Vec<TextRow> =
            view.iter().map(|(member, state, role)| row(of, read_only, member, state, role)).collect();
        Some(MemberReport::of_group(&rows).expect("rows as a server sends them"))
    }

    fn group(reports: &[Option<MemberReport>], before: Option<usize>) -> TopologyVerdict {
        judge(Topology::Group, reports, before)
    }

    /// A complete group of three with the primary `a`.
    const WHOLE: [(&str, &str, &str); 3] =
        [("a", "ONLINE", PRIMARY), ("b", "ONLINE", SECONDARY), ("c", "ONLINE", SECONDARY)];

    #[test]
    fn the_primary_is_who_says_so_and_is_not_read_only() {
        let verdict =
            group(&[report("a", false, &WHOLE), report("b", true, &WHOLE), report("c", true, &WHOLE)], None);
        assert_eq!(verdict.primary, Ok(0));
        use MemberRole::{Primary, Secondary};
        assert_eq!(verdict.roles, [Some(Primary), Some(Secondary), Some(Secondary)]);
        assert_eq!(verdict.group.len(), 3);
    }

    #[test]
    fn what_others_say_of_a_primary_that_does_not_answer_is_not_enough() {
        let verdict = group(&[None, report("b", true, &WHOLE), report("c", true, &WHOLE)], Some(0));
        assert_eq!(verdict.primary, Err(NoPrimary::Silent));
        assert_eq!(verdict.roles, [None, Some(MemberRole::Secondary), Some(MemberRole::Secondary)]);
    }

    #[test]
    fn a_primary_that_has_left_its_group_is_none_whatever_it_goes_on_to_say() {
        let without = [("b", "ONLINE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        for is_ready in [false, true] {
            let of_b = report("b", !is_ready, &without);
            let verdict = group(&[report("a", false, &WHOLE), of_b, report("c", true, &without)], Some(0));
            assert_eq!(verdict.primary, if is_ready { Ok(1) } else { Err(NoPrimary::ReadOnly) });
            assert_eq!((verdict.roles[0], verdict.group.len()), (None, 2));
        }
        let cut_off = [("a", "UNREACHABLE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        let verdict = group(&[report("a", false, &WHOLE), None, report("c", true, &cut_off)], Some(0));
        assert_eq!(verdict.primary, Ok(0), "one without a majority goes on without nobody");
    }

    #[test]
    fn a_primary_that_is_read_only_gets_neither_writes_nor_reads_while_others_are_there() {
        let elected = [("b", "ONLINE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        let verdict = group(&[None, report("b", true, &elected), report("c", true, &elected)], Some(0));
        assert_eq!(verdict.primary, Err(NoPrimary::ReadOnly));
        assert_eq!(verdict.roles, [None, None, Some(MemberRole::Secondary)]);
        let alone = [("b", "ONLINE", PRIMARY)];
        let verdict = group(&[None, report("b", true, &alone), None], Some(0));
        assert_eq!(verdict.roles, [None, Some(MemberRole::Secondary), None], "a replica cluster of one");
    }

    #[test]
    fn a_primary_in_the_minority_is_not_believed() {
        let cut_off =
            [("a", "ONLINE", PRIMARY), ("b", "UNREACHABLE", SECONDARY), ("c", "UNREACHABLE", SECONDARY)];
        let others = [("b", "ONLINE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        let reports = [report("a", false, &cut_off), report("b", false, &others), report("c", true, &others)];
        let verdict = group(&reports, Some(0));
        assert_eq!(verdict.primary, Ok(1));
        use MemberRole::{Primary, Secondary};
        assert_eq!(verdict.roles, [None, Some(Primary), Some(Secondary)]);
    }

    #[test]
    fn a_secondary_in_the_minority_is_read_only_while_nobody_has_a_majority() {
        let left = [("b", "UNREACHABLE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        let verdict = group(&[None, None, report("c", true, &left)], Some(1));
        assert_eq!(verdict.primary, Err(NoPrimary::NoMajority));
        assert_eq!(verdict.roles, [None, None, Some(MemberRole::Secondary)]);
        assert_eq!(verdict.group, [], "whom it does not see may be anywhere");
        let whole = [("a", "ONLINE", PRIMARY), ("b", "ONLINE", SECONDARY)];
        let verdict =
            group(&[report("a", false, &whole), report("b", true, &whole), report("c", true, &left)], None);
        assert_eq!(verdict.roles[2], None);
        let promoted = [("b", "ONLINE", PRIMARY)];
        let verdict = group(&[None, report("b", true, &promoted), report("c", true, &left)], None);
        assert_eq!(verdict.roles, [None, Some(MemberRole::Secondary), None], "rather the slow one");
    }

    #[test]
    fn exactly_half_is_no_majority() {
        let half = [("a", "ONLINE", PRIMARY), ("b", "UNREACHABLE", SECONDARY)];
        assert_eq!(group(&[report("a", false, &half), None], Some(0)).primary, Err(NoPrimary::NoMajority));
    }

    #[test]
    fn two_groups_with_a_primary_each_are_a_conflict_unless_one_had_the_role() {
        let one = [("a", "ONLINE", PRIMARY)];
        let other = [("b", "ONLINE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        let reports = [report("a", false, &one), report("b", false, &other), report("c", true, &other)];
        assert_eq!(group(&reports, None).primary, Err(NoPrimary::Several));
        let verdict = group(&reports, Some(1));
        assert_eq!(verdict.primary, Ok(1));
        assert_eq!(verdict.roles[0], None, "of another group");
    }

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    /// `c` has bootstrapped a group of its own, while the group of `a` and `b` continues.
    #[test]
    fn a_group_that_a_member_has_begun_by_itself_is_another_one_as_long_as_somebody_is_left_in_the_first() {
        let (own, first) = ([("c", "ONLINE", PRIMARY)], [WHOLE[0], WHOLE[1]]);
        let of_c = || report("c", false, &own);
        let is_other =
            |reports: &[Option<MemberReport>], believed: &[&str]| of_other_groups(reports, &names(believed));
        let all = [report("a", false, &first), report("b", true, &first), of_c()];
        for believed in [&["a", "b"][..], &["a", "b", "c"]] {
            assert_eq!(is_other(&all, believed), [false, false, true], "{believed:?}");
            let without_a = [None, report("b", true, &first), of_c()];
            assert_eq!(is_other(&without_a, believed), [false, false, true], "{believed:?}");
            let left = [("a", "UNREACHABLE", PRIMARY), ("b", "ONLINE", SECONDARY)];
            let in_minority = [None, report("b", true, &left), of_c()];
            assert_eq!(is_other(&in_minority, believed), [false, false, true], "{believed:?}");
        }
        let out = [("b", "OFFLINE", "")];
        let stopped = [None, report("b", true, &out), of_c()];
        assert_eq!(is_other(&stopped, &["a", "b"]), [false; 3], "the operator has begun the group again");
        assert_eq!(is_other(&[None, None, of_c()], &["a", "b"]), [false; 3]);
        let joined = [("c", "ONLINE", PRIMARY), ("b", "ONLINE", SECONDARY)];
        let joined =
            [report("a", false, &first[..1]), report("b", true, &joined), report("c", false, &joined)];
        assert_eq!(is_other(&joined, &["a", "b", "c"]), [true, false, false], "most are there now");
        let promoted = [("b", "ONLINE", PRIMARY), ("c", "ONLINE", SECONDARY)];
        let frozen =
            [report("a", false, &WHOLE), report("b", false, &promoted), report("c", true, &promoted)];
        assert_eq!(is_other(&frozen, &["a", "b", "c"]), [false; 3], "one that was left behind is no rival");
    }

    #[test]
    fn who_knows_of_no_group_believes_none_of_two_that_have_a_majority_each() {
        let (own, first) = ([("c", "ONLINE", PRIMARY)], [WHOLE[0], WHOLE[1]]);
        let reports = [None, report("b", true, &first), report("c", false, &own)];
        assert_eq!(group(&reports, None).primary, Err(NoPrimary::Several));
        assert_eq!(group(&reports, Some(2)).primary, Ok(2));
    }

    #[test]
    fn a_group_with_several_primaries_keeps_one_writer() {
        let all = [("a", "ONLINE", PRIMARY), ("b", "ONLINE", PRIMARY)];
        let reports = [report("a", false, &all), report("b", false, &all)];
        assert_eq!(group(&reports, None).primary, Ok(0));
        let verdict = group(&reports, Some(1));
        assert_eq!(verdict.primary, Ok(1));
    }

    #[test]
    fn a_member_that_is_recovering_is_not_read_and_counts_for_the_majority() {
        let view =
            [("a", "ONLINE", PRIMARY), ("b", "RECOVERING", SECONDARY), ("c", "UNREACHABLE", SECONDARY)];
        let verdict = group(&[report("a", false, &view), report("b", true, &view), None], None);
        assert_eq!(verdict.primary, Ok(0));
        assert_eq!(verdict.roles, [Some(MemberRole::Primary), None, None]);
    }

    #[test]
    fn a_server_in_no_group_is_good_for_nothing() {
        let row: TextRow = vec![Some(b"a".to_vec()), Some(b"0".to_vec()), None, None, None, None, None];
        let report = MemberReport::of_group(&[row]);
        assert_eq!(report.as_ref().map(|report| report.view.len()), Some(0));
        let verdict = group(&[report], Some(0));
        assert_eq!((verdict.primary, verdict.roles), (Err(NoPrimary::NoGroup), vec![None]));
        assert_eq!(group(&[None], Some(0)).primary, Err(NoPrimary::NobodyAnswers));
    }

    #[test]
    fn in_plain_replication_the_one_that_is_not_read_only_is_the_primary() {
        let says = |text: &str| MemberReport::of_read_only(&[vec![Some(text.as_bytes().to_vec())]]);
        let replication =
            |reports: &[Option<MemberReport>], before| judge(Topology::ReadOnly, reports, before);
        let verdict = replication(&[says("ON"), says("0"), says("1"), None], None);
        assert_eq!(verdict.primary, Ok(1));
        use MemberRole::{Primary, Secondary};
        assert_eq!(verdict.roles, [Some(Secondary), Some(Primary), Some(Secondary), None]);
        let two = [says("0"), says("0")];
        assert_eq!(replication(&two, None).primary, Err(NoPrimary::Several));
        let verdict = replication(&two, Some(1));
        assert_eq!((verdict.primary, verdict.roles[0]), (Ok(1), None), "an old primary that came back");
        assert_eq!(replication(&[says("1")], Some(0)).primary, Err(NoPrimary::NoneElected));
    }

    #[test]
    fn answers_of_another_shape_are_no_reports() {
        let good = row("a", false, "a", "ONLINE", PRIMARY);
        let with = |index: usize, text: &[u8]| {
            let mut row = good.clone();
            row[index] = Some(text.to_vec());
            MemberReport::of_group(&[row])
        };
        assert!(with(4, b"3306").is_some());
        for (index, text) in [(0, &b"a b"[..]), (1, b"maybe"), (3, b"host\n"), (4, b"70000"), (2, b"\xff")] {
            assert!(with(index, text).is_none(), "{index}");
        }
        assert!(MemberReport::of_group(&[]).is_none());
        assert!(MemberReport::of_group(&[good[..5].to_vec()]).is_none());
        assert!(MemberReport::of_group(&vec![good.clone(); MOST_MEMBERS + 1]).is_none());
        assert!(MemberReport::of_read_only(&[vec![None]]).is_none());
        assert_eq!(with(5, b"DANCING").unwrap().view[0].state, MemberState::Out);
    }
}
