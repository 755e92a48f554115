//! The watch of one pool: has its members asked, decides on their roles, and puts these in force.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use weir_balance::Role;
use weir_config::{MysqlTopology, PoolMysql, ServerTlsMode};
use weir_io::clock;
use weir_mysql::gtid::GtidSet;
use weir_mysql::lag::Progress;
use weir_mysql::topology::{MOST_MEMBERS, MemberRole, Topology, TopologyVerdict, ViewMember};
use weir_state::{Backend, Pool};

use super::hidden;
use super::looks::{Look, LookStep, Looks, Pace};
use super::member::{Asker, Heard, Manner, Said};
use super::receipt::{FailoverLedger, Moment, OpenReceipt, Tally};
use super::roster::{Enrolled, Roster, RosterChange};
use super::seen::PoolSeen;
use crate::events::{Bus, What};
use crate::health::Board;
use crate::publish::InForce;
use crate::tasks;

/// Answers that may be queued for a watch: one from each member, and late ones.
const ANSWERS: usize = 4 * MOST_MEMBERS;
/// Interval between two comparisons of the group with the pool's backends.
const ROLL_CALL: Duration = Duration::from_secs(1);
/// How long after a failover its receipt is closed: clients of the former primary have been notified by then.
const TOLD_WITHIN: Duration = Duration::from_millis(100);
/// Least time between two rounds requested from outside: every failing statement may be a reason to ask, and
/// that must not keep the servers busy.
const NUDGES: Duration = Duration::from_millis(10);
/// For how many intervals an answer replaces probes: one may be missed.
const VOUCHED_INTERVALS: u32 = 3;

/// What a watch reads and reports to.
#[derive(Clone)]
pub(super) struct Audience {
    pub(super) in_force: InForce,
    pub(super) board: Arc<Board>,
    pub(super) bus: Arc<Bus>,
    /// Gets the backends to add and remove.
    pub(super) roster: mpsc::UnboundedSender<RosterChange>,
}

/// The watch of one pool.
pub(super) struct Vigil {
    audience: Audience,
    pool: Arc<Pool>,
    seen: Arc<PoolSeen>,
    looks: Looks,
    /// In the order of the pool.
    members: Vec<Member>,
    heard: (mpsc::Sender<Said>, mpsc::Receiver<Said>),
    last_number: u64,
    ledger: FailoverLedger,
    /// The receipt of a failover that has just ended, and when to close it.
    open: Option<(OpenReceipt, Duration)>,
    roster: Roster,
    /// The search for stored code in the current pool; ends with this.
    search: JoinSet<()>,
    /// What the primary has executed, from which the lag of others is computed.
    progress: Progress,
    /// The group as last established, while there is a primary.
    group: Vec<ViewMember>,
    /// Why there is no primary, as last reported.
    told: Option<Result<usize, &'static str>>,
}

struct Member {
    /// Number by which its answers are recognized.
    number: u64,
    backend: Arc<Backend>,
    manner: Manner,
    asker: Asker,
    /// What it had executed when it was last asked.
    executed: Option<GtidSet>,
    /// Its lag exceeds `max_lag`, so it gets no reads.
    is_too_late: bool,
    /// It was reported as a member of another group.
    is_of_another_group: bool,
}

/// The config and topology by which the answers are judged; `None` if the pool's roles are not watched.
pub(super) fn watched(pool: &Pool) -> Option<(&PoolMysql, Topology)> {
    let mysql = pool.config.mysql.as_ref()?;
    match mysql.topology {
        MysqlTopology::GroupReplication => Some((mysql, Topology::Group)),
        MysqlTopology::Replication => Some((mysql, Topology::ReadOnly)),
        MysqlTopology::Static => None,
    }
}

impl Vigil {
    /// For a pool; `None` if it is not watched.
    pub(super) fn new(audience: Audience, pool: Arc<Pool>, seen: Arc<PoolSeen>) -> Option<Vigil> {
        let (mysql, topology) = watched(&pool)?;
        let looks = Looks::new(topology, pace(&pool, mysql));
        let primary = pool.backends.iter().find(|backend| backend.balance.role() == Some(Role::Primary));
        let ledger = FailoverLedger::of(primary.map(|backend| backend.address.clone()), Moment::now());
        let mut vigil = Vigil {
            audience,
            seen,
            looks,
            members: Vec::new(),
            heard: mpsc::channel(ANSWERS),
            last_number: 0,
            ledger,
            open: None,
            roster: Roster::default(),
            search: JoinSet::new(),
            progress: Progress::default(),
            group: Vec::new(),
            told: None,
            pool: pool.clone(),
        };
        vigil.adopt(pool);
        Some(vigil)
    }

    /// Watches until dropped. `changed` is notified when another snapshot is in force.
    pub(super) async fn keep(mut self, changed: Arc<Notify>) {
        let mut roll_call = clock::now() + ROLL_CALL;
        let mut nudges = clock::now();
        loop {
            let now = clock::now();
            if self.open.as_ref().is_some_and(|(_, due)| *due <= now) {
                self.close_receipt();
            }
            if now >= roll_call {
                roll_call = now + ROLL_CALL;
                self.call_the_roll(now);
            }
            let until = match self.looks.step(now) {
                LookStep::Ask(members) => {
                    members.into_iter().for_each(|index| self.members[index].asker.ask());
                    continue;
                }
                LookStep::Decide => {
                    self.decide();
                    continue;
                }
                LookStep::Wait(until) => until.min(roll_call),
            };
            let until = self.open.as_ref().map_or(until, |(_, due)| until.min(*due));
            let is_open = now >= nudges;
            let until = if is_open { until } else { until.min(nudges) };
            tokio::select! {
                // Answers come first: they may be what is being requested.
                biased;
                Some(said) = self.heard.1.recv() => match said {
                    Said::Look(heard) => self.take(heard),
                    Said::Executed { number, executed, at } => self.measure(number, executed, at),
                },
                () = self.pool.nudge.asked(), if is_open => {
                    nudges = clock::now() + NUDGES;
                    self.looks.begin_round(None, clock::now());
                }
                () = changed.notified() => self.follow(),
                () = tokio::time::sleep(until.saturating_sub(now)) => {}
            }
        }
    }

    /// Switches to the current pool. One that was removed, or is no longer watched, is still watched here
    /// until the watch ends this task.
    fn follow(&mut self) {
        let Some(snapshot) = self.audience.in_force.snapshot() else { return };
        let Some(pool) = snapshot.pool(&self.pool.config.name).filter(|pool| watched(pool).is_some()) else {
            return;
        };
        if !Arc::ptr_eq(pool, &self.pool) {
            self.adopt(pool.clone());
        }
    }

    /// Switches to the pool's current members; those that were asked in the same manner before are kept.
    fn adopt(&mut self, pool: Arc<Pool>) {
        let Some((mysql, topology)) = watched(&pool) else { return };
        let now = clock::now();
        let manner = Manner {
            topology,
            account: pool.account.clone(),
            requires_tls: pool.config.tls.as_ref().is_none_or(|tls| tls.mode == ServerTlsMode::Required),
            send_proxy: pool.config.send_proxy,
            local_end: pool
                .local_end
                .as_ref()
                .map(|local_end| local_end.without_client())
                .unwrap_or_default(),
            patience: pool.config.health.timeout,
        };
        let known = std::mem::take(&mut self.members).into_iter().zip(self.looks.members().to_vec());
        let mut known: Vec<(Member, Look)> = known.collect();
        let mut looks = Vec::with_capacity(pool.backends.len());
        for backend in &pool.backends {
            let is_it = |(member, _): &(Member, Look)| {
                Arc::ptr_eq(&member.backend, backend) && member.manner.is_same(&manner)
            };
            let (member, look) = match known.iter().position(is_it) {
                Some(at) => known.swap_remove(at),
                None => (self.ask_anew(backend, &manner), Look::new(now)),
            };
            self.members.push(member);
            looks.push(look);
        }
        self.looks.adopt(topology, pace(&pool, mysql), looks, now);
        self.search.abort_all();
        let begin = {
            let (pool, seen) = (pool.clone(), self.seen.clone());
            move || hidden::search(pool.clone(), manner.clone(), seen.clone())
        };
        let task = format!("search for stored code in pool {}", pool.config.name);
        self.search.spawn(tasks::keep_on(task, begin));
        self.seen.adopt(mysql.topology, pool.backends.iter().map(|backend| backend.address.clone()));
        self.pool = pool;
    }

    fn ask_anew(&mut self, backend: &Arc<Backend>, manner: &Manner) -> Member {
        self.last_number += 1;
        let number = self.last_number;
        let asker = Asker::start(number, backend.clone(), manner.clone(), self.heard.0.clone());
        Member {
            number,
            backend: backend.clone(),
            manner: manner.clone(),
            asker,
            is_too_late: false,
            executed: None,
            is_of_another_group: false,
        }
    }

    /// Handles a member's answer, or that it does not answer.
    fn take(&mut self, heard: Heard) {
        let Some(index) = self.members.iter().position(|member| member.number == heard.number) else {
            return;
        };
        let (backend, now) = (&self.members[index].backend, heard.moment.at);
        self.seen.looked(index, &heard.result, heard.moment.time);
        let had_answered = self.looks.members()[index].report.is_some();
        let is_first = self.looks.members()[index].is_pending();
        let (pool, address) = (&*self.pool.config.name, &*backend.address);
        match &heard.result {
            Ok(report) => {
                let until = now + self.vouched();
                self.audience.board.vouch(backend, until, !had_answered);
                if !had_answered {
                    tracing::info!(pool, backend = address, uuid = report.uuid, "cluster: member answers");
                }
                if backend.balance.role() == Some(Role::Primary) {
                    self.ledger.saw(address, heard.moment, Tally::of(&self.pool));
                }
            }
            Err(reason) => {
                if had_answered || is_first {
                    tracing::warn!(pool, backend = address, reason, "cluster: member does not answer");
                    self.audience.board.hasten(backend);
                }
            }
        }
        self.looks.heard(index, heard.result.ok(), heard.is_connected, clock::now());
    }

    /// Handles what a member has executed; `None` if that can't be known. A member that is too far behind
    /// gets no reads until it has caught up.
    fn measure(&mut self, number: u64, executed: Option<GtidSet>, at: Duration) {
        let Some(index) = self.members.iter().position(|member| member.number == number) else { return };
        let member = &mut self.members[index];
        let before = std::mem::replace(&mut member.executed, executed.clone());
        if let Some(before) = before
            && executed.as_ref().is_none_or(|executed| !executed.contains(&before))
        {
            let (pool, backend) = (&*self.pool.config.name, &*member.backend.address);
            tracing::warn!(pool, backend, "cluster: has executed less than it had before");
            member.backend.gtid_resets.fetch_add(1, Ordering::Release);
        }
        let lag = match (executed, member.backend.balance.role()) {
            (Some(executed), Some(Role::Primary)) => {
                self.progress.note(executed, at);
                None
            }
            (Some(executed), _) => self.progress.lag(&executed, at),
            (None, _) => None,
        };
        self.seen.lags(index, lag);
        let longest = watched(&self.pool).and_then(|(mysql, _)| mysql.max_lag);
        let is_too_late = lag.zip(longest).is_some_and(|(lag, longest)| lag.time > longest);
        if is_too_late != member.is_too_late {
            member.is_too_late = is_too_late;
            let (pool, backend) = (&*self.pool.config.name, &*member.backend.address);
            let seconds = lag.map_or(0.0, |lag| lag.time.as_secs_f64());
            match is_too_late {
                true => tracing::warn!(pool, backend, seconds, "cluster: too far behind, gets no reads"),
                false => tracing::info!(pool, backend, seconds, "cluster: has caught up"),
            }
            self.looks.begin_round(None, clock::now());
        }
    }

    /// For how long an answer replaces probes.
    fn vouched(&self) -> Duration {
        watched(&self.pool).map_or(Duration::ZERO, |(mysql, _)| mysql.interval * VOUCHED_INTERVALS)
    }

    /// Decides from what the members have said, and puts that in force.
    fn decide(&mut self) {
        let is_primary = |member: &Member| member.backend.balance.role() == Some(Role::Primary);
        let before = self.members.iter().position(is_primary);
        let Some(verdict) = self.looks.decide(before, clock::now()) else { return };
        let roles: Vec<Option<Role>> = self.roles(&verdict);
        self.apply(&roles);
        self.tell_of_other_groups();
        let primary = verdict.primary.map(|index| &*self.members[index].backend.address);
        let now = Moment::now();
        let receipt = self.ledger.decided(primary, now, Tally::of(&self.pool));
        self.seen.decided(&roles, primary.map_err(|why| why.words()), now.at);
        let told = verdict.primary.map_err(|why| why.words());
        if self.told != Some(told) {
            self.tell(told);
            self.told = Some(told);
        }
        if let Some(receipt) = receipt {
            self.close_receipt();
            self.open = Some((receipt, now.at + TOLD_WITHIN));
        }
        self.group = if verdict.primary.is_ok() { verdict.group } else { Vec::new() };
    }

    /// Closes the receipt of the last failover, if it is open, and reports it.
    fn close_receipt(&mut self) {
        let Some((receipt, _)) = self.open.take() else { return };
        let receipt = receipt.close(Tally::of(&self.pool));
        let pool = self.pool.config.name.clone();
        tracing::warn!(
            pool,
            from = receipt.from,
            to = receipt.to,
            reason = receipt.reason,
            last_seen = receipt.last_seen.rfc3339(),
            detected = receipt.detected.rfc3339(),
            writable = receipt.writable.rfc3339(),
            parked = receipt.parked,
            moved = receipt.moved,
            failed = receipt.failed,
            "cluster: failover"
        );
        self.audience.bus.tell(What::Failover { pool, receipt: receipt.clone() });
        self.seen.keep(receipt);
    }

    /// The resulting roles. A new member that has not answered yet keeps the role that the previous process
    /// knew, except that it can't be a second primary.
    fn roles(&self, verdict: &TopologyVerdict) -> Vec<Option<Role>> {
        let members = self.members.iter().zip(self.looks.members()).zip(&verdict.roles);
        let role = |((member, look), role): ((&Member, &Look), &Option<MemberRole>)| match role {
            Some(MemberRole::Primary) => Some(Role::Primary),
            Some(MemberRole::Secondary) if member.is_too_late => None,
            Some(MemberRole::Secondary) => Some(Role::Secondary),
            None if look.is_pending() => {
                member.backend.balance.role().filter(|role| *role == Role::Secondary)
            }
            None => None,
        };
        members.map(role).collect()
    }

    /// Puts roles in force where they differ from the current ones, in the pool of the current snapshot. This
    /// may not be the watched one, whose backends get the same roles.
    fn apply(&self, roles: &[Option<Role>]) {
        let snapshot = self.audience.in_force.snapshot();
        let pool = snapshot.as_ref().and_then(|snapshot| snapshot.pool(&self.pool.config.name));
        let pool = pool.unwrap_or(&self.pool);
        let index_of = |member: &Member| {
            pool.backends.iter().position(|it| Arc::ptr_eq(&it.balance, &member.backend.balance))
        };
        let mut changed = Vec::new();
        for (member, role) in self.members.iter().zip(roles) {
            let before = member.backend.balance.role();
            if let Some(index) = index_of(member).filter(|_| before != *role) {
                changed.push((index, *role));
            }
        }
        if changed.is_empty() {
            return;
        }
        pool.set_roles(changed.iter().copied(), clock::now());
        for (index, role) in changed {
            let (pool, backend) = (pool.config.name.clone(), pool.backends[index].address.clone());
            let role = role.map_or("none", Role::word);
            tracing::info!(pool, backend, role, "cluster: role");
            self.audience.bus.tell(What::Role { pool, backend, role });
        }
    }

    /// Logs once which members are of another group than the established one.
    fn tell_of_other_groups(&mut self) {
        let pool = &*self.pool.config.name;
        let mut of_other_groups = Vec::new();
        for (index, (member, look)) in self.members.iter_mut().zip(self.looks.members()).enumerate() {
            let is_so = look.is_of_another_group();
            if is_so {
                of_other_groups.push(index);
            }
            if std::mem::replace(&mut member.is_of_another_group, is_so) == is_so {
                continue;
            }
            let backend = &*member.backend.address;
            match is_so {
                true => tracing::error!(
                    pool,
                    backend,
                    "cluster: has begun a group of its own, while the one before goes on: gets nothing"
                ),
                false => tracing::info!(pool, backend, "cluster: is of another group no more"),
            }
        }
        self.seen.of_other_groups(of_other_groups);
    }

    fn tell(&self, primary: Result<usize, &'static str>) {
        let pool = &*self.pool.config.name;
        match primary {
            Ok(index) => {
                tracing::info!(pool, primary = self.members[index].backend.address, "cluster: primary")
            }
            Err(reason) => tracing::error!(pool, reason, "cluster: no primary, writes wait"),
        }
    }

    /// Compares the group with the backends, while there is a primary.
    fn call_the_roll(&mut self, now: Duration) {
        if self.group.is_empty() {
            return;
        }
        let facts: Vec<_> = self.pool.backends.iter().map(|backend| backend.server.load_full()).collect();
        let backends = self.pool.backends.iter().zip(&facts).map(|(backend, facts)| Enrolled {
            address: &backend.address,
            uuid: facts.as_ref().and_then(|facts| facts.uuid.as_deref()),
            is_found: backend.origin == weir_state::Origin::Group,
        });
        let backends: Vec<Enrolled<'_>> = backends.collect();
        for change in self.roster.compare(&self.pool.config.name, &self.group, &backends, now) {
            // Nobody receives it while the process ends.
            let _ = self.audience.roster.send(change);
        }
    }
}

fn pace(pool: &Pool, mysql: &PoolMysql) -> Pace {
    Pace {
        interval: mysql.interval,
        fast_interval: mysql.fast_interval.min(mysql.interval),
        patience: pool.config.health.timeout,
    }
}
