//! Resolves host names, outside the data path and again and again. Addresses are never dropped because a
//! look-up fails.
//!
//! A name may stand for one backend, and gives its address ([`one`]), or for several backends of its pool,
//! which are added and removed as its addresses or services change ([`many`]; the decisions are in
//! [`members`]). [`ask`] queries name servers, and [`message`] interprets their answers.

mod ask;
mod many;
pub mod members;
mod message;
mod one;
mod settings;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use weir_config::{Dns, is_host_name};
use weir_state::{Backend, Origin, Pool, Snapshot};

pub use self::many::Group;
use self::many::Heard;
use self::members::{Change, Present, Wanted};
use self::one::Known;
pub use self::one::{Member, Moved};
pub use self::settings::Counts;
use self::settings::Settings;
use crate::events::{Bus, What};
use crate::{lock, tasks};

/// How long to wait for the first answers for new names before they are served: without an answer, a backend
/// starts as down.
const FIRST_ANSWER: Duration = Duration::from_secs(2);

/// All names that are being resolved.
pub struct Names {
    table: Mutex<Table>,
    moved: Arc<Moved>,
    bus: Arc<Bus>,
    counts: Arc<Counts>,
    /// Gets names that stand for several backends: after each good answer, and when one should be looked at
    /// again.
    tell: mpsc::UnboundedSender<Group>,
}

struct Table {
    settings: Arc<Settings>,
    ones: HashMap<String, Followed<Known>>,
    many: BTreeMap<Group, Followed<Heard>>,
}

/// A name that is being resolved.
struct Followed<T> {
    shared: Arc<Mutex<T>>,
    /// Whether there has been a result, good or bad.
    answered: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl<T> Drop for Followed<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A name that stands for several backends, as the status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The name as configured.
    pub name: String,
    /// Why the last look-up failed; `None` when it succeeded.
    pub error: Option<String>,
    /// How long the last answer is valid; `None` if it has no TTL.
    pub ttl: Option<Duration>,
}

impl Names {
    /// `moved` gets backends whose address has changed. The receiver gets names that stand for several
    /// backends whenever they were answered, or their answers should be looked at again.
    pub fn new(bus: Arc<Bus>, moved: Arc<Moved>) -> (Names, mpsc::UnboundedReceiver<Group>) {
        let (tell, heard) = mpsc::unbounded_channel();
        let table = Table {
            settings: Arc::new(Settings::of(&Dns::default())),
            ones: HashMap::new(),
            many: BTreeMap::new(),
        };
        (Names { table: Mutex::new(table), moved, bus, counts: Arc::default(), tell }, heard)
    }

    /// What was counted.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Resolves the names in `snapshot` from now on. Names that it had before continue, and are not looked up
    /// again unless the name servers have changed.
    pub fn adopt(&self, snapshot: &Snapshot) {
        let mut ones: HashMap<String, Vec<Member>> = HashMap::new();
        for pool in &snapshot.pools {
            for backend in pool.backends.iter().filter(|backend| is_host_name(&backend.address)) {
                let member = Member { pool: pool.config.name.clone(), backend: backend.clone() };
                ones.entry(backend.address.clone()).or_default().push(member);
            }
        }
        let groups: Vec<Group> = snapshot.pools.iter().flat_map(|pool| groups_of(pool)).collect();
        let mut table = lock(&self.table);
        if table.settings.config != snapshot.config.dns {
            self.ask_others(&mut table, &snapshot.config.dns);
        }
        table.ones.retain(|name, _| ones.contains_key(name));
        for (name, members) in ones {
            match table.ones.get(&name) {
                Some(known) => lock(&known.shared).serve(members),
                None => self.resolve(&mut table, &name, Known::of(members)),
            }
        }
        table.many.retain(|group, _| groups.contains(group));
        for group in groups {
            if !table.many.contains_key(&group) {
                self.follow(&mut table, group, Arc::default());
            }
        }
    }

    /// Looks every name up again at the name servers that the config now has. Known addresses stay, except
    /// for those that are no longer allowed.
    fn ask_others(&self, table: &mut Table, config: &Dns) {
        table.settings = Arc::new(Settings::of(config));
        let known: Vec<_> =
            table.ones.drain().map(|(name, followed)| (name, followed.shared.clone())).collect();
        for (name, known) in known {
            lock(&known).restrict(config);
            self.resolve_again(table, name, known);
        }
        let heard: Vec<_> = table.many.iter().map(|(group, it)| (group.clone(), it.shared.clone())).collect();
        for (group, heard) in heard {
            lock(&heard).restrict(config);
            self.follow(table, group, heard);
        }
    }

    /// Resolves the name of a backend that is to be added to a pool, from now on. Other names continue, and
    /// are not looked up again.
    pub fn add(&self, pool: &str, backend: &Arc<Backend>) {
        let name = &backend.address;
        if !is_host_name(name) {
            return;
        }
        let member = Member { pool: pool.to_owned(), backend: backend.clone() };
        let mut table = lock(&self.table);
        match table.ones.get(name) {
            Some(known) => {
                let mut known = lock(&known.shared);
                let members = known.members.iter().cloned().chain([member]).collect();
                known.serve(members);
            }
            None => self.resolve(&mut table, name, Known::of(vec![member])),
        }
    }

    /// The current address of a name did not accept a connection, and another did: uses that one from now on,
    /// for all its backends. False if nothing changes.
    pub fn settle(&self, name: &str, first: SocketAddr, address: SocketAddr) -> bool {
        let known = lock(&self.table).ones.get(name).map(|followed| followed.shared.clone());
        let Some(known) = known else { return false };
        let members = {
            let mut known = lock(&known);
            if !known.settle(first, address) {
                return false;
            }
            known.members.clone()
        };
        self.moved.tell(&members);
        Counts::add(&self.counts.other_address, 1);
        tracing::warn!(name, silent = %first, %address, "an address does not accept; another of the name does");
        self.bus.tell(What::Resolved { backend: name.to_owned(), address: address.to_string() });
        true
    }

    /// Ends what was begun for a backend that was removed from its pool, or was not added to it.
    pub fn remove(&self, backend: &Arc<Backend>) {
        let mut table = lock(&self.table);
        let Some(known) = table.ones.get(&backend.address) else { return };
        let is_left = {
            let members = &mut lock(&known.shared).members;
            members.retain(|member| !Arc::ptr_eq(&member.backend, backend));
            !members.is_empty()
        };
        if !is_left {
            table.ones.remove(&backend.address);
        }
    }

    fn resolve(&self, table: &mut Table, name: &str, known: Known) {
        self.resolve_again(table, name.to_owned(), Arc::new(Mutex::new(known)));
    }

    fn resolve_again(&self, table: &mut Table, name: String, shared: Arc<Mutex<Known>>) {
        let following = one::Following {
            name: name.clone(),
            known: shared.clone(),
            settings: table.settings.clone(),
            counts: self.counts.clone(),
            moved: self.moved.clone(),
            bus: self.bus.clone(),
        };
        let (answer, answered) = watch::channel(false);
        let (following, answer) = (Arc::new(following), Arc::new(answer));
        let begin = move || one::follow(following.clone(), answer.clone());
        let task = tokio::spawn(tasks::keep_on(format!("name {name}"), begin));
        table.ones.insert(name, Followed { shared, answered, task });
    }

    fn follow(&self, table: &mut Table, group: Group, shared: Arc<Mutex<Heard>>) {
        let following = many::Following {
            group: group.clone(),
            heard: shared.clone(),
            settings: table.settings.clone(),
            counts: self.counts.clone(),
            tell: self.tell.clone(),
        };
        let (answer, answered) = watch::channel(false);
        let (following, answer) = (Arc::new(following), Arc::new(answer));
        let begin = move || many::follow(following.clone(), answer.clone());
        let task = format!("name {} of pool {}", group.name, group.pool);
        let task = tokio::spawn(tasks::keep_on(task, begin));
        table.many.insert(group, Followed { shared, answered, task });
    }

    /// Waits until this name, or each one if `None`, has had a result, good or bad; at most two seconds.
    /// Names that were there before need no wait.
    pub async fn first_answers(&self, of: Option<&str>) {
        let pending: Vec<_> = {
            let table = lock(&self.table);
            let ones = table.ones.iter().filter(|(name, _)| of.is_none_or(|of| *name == of));
            let ones = ones.map(|(_, followed)| followed.answered.clone());
            let many = table.many.iter().filter(|(group, _)| of.is_none_or(|of| group.name == of));
            ones.chain(many.map(|(_, followed)| followed.answered.clone())).collect()
        };
        let all_answered = async {
            for mut answered in pending {
                let _ = answered.wait_for(|answered| *answered).await;
            }
        };
        let _ = tokio::time::timeout(FIRST_ANSWER, all_answered).await;
    }

    /// The snapshot, with the backends of each of its names that was answered and has none yet.
    pub fn populated(&self, snapshot: Arc<Snapshot>) -> Arc<Snapshot> {
        let mut populated = snapshot.clone();
        for (index, pool) in snapshot.pools.iter().enumerate() {
            for group in groups_of(pool) {
                if pool.backends.iter().any(|it| is_of(it, &group)) {
                    continue;
                }
                for wanted in self.wanted(&group) {
                    let pool = &populated.pools[index];
                    let Some(config) = config_of(pool, &group, &wanted) else { continue };
                    match populated.with_member(index, config, &group.name, true) {
                        Ok(change) => populated = change.snapshot,
                        Err(error) => {
                            tracing::warn!(pool = group.pool, name = group.name, %error, "a backend is left out")
                        }
                    }
                }
            }
        }
        populated
    }

    /// The addresses of a name that has no members yet.
    fn wanted(&self, group: &Group) -> Vec<Wanted> {
        let table = lock(&self.table);
        let most = table.settings.config.max_members;
        let heard = table.many.get(group).map(|followed| followed.shared.clone());
        heard.and_then(|heard| lock(&heard).wanted(&[], most, &self.counts)).unwrap_or_default()
    }

    /// Looks again at the last answers for the names of a pool, or of all pools: the pool may no longer have,
    /// for another reason, a backend that a name also has.
    pub fn look_again(&self, pool: Option<&str>) {
        let table = lock(&self.table);
        for group in table.many.keys().filter(|group| pool.is_none_or(|pool| group.pool == pool)) {
            // Nobody listens once the process ends.
            let _ = self.tell.send(group.clone());
        }
    }

    /// Whether the last answer for this name has an address.
    pub fn has(&self, group: &Group, address: SocketAddr) -> bool {
        let table = lock(&self.table);
        table.many.get(group).is_some_and(|followed| lock(&followed.shared).has(address))
    }

    /// The changes to make to the members of a name, after an answer that was not compared yet, or when the
    /// pool was replaced. At `others` the pool has backends for another reason.
    pub fn compare(
        &self,
        group: &Group,
        members: &[Present],
        others: &[SocketAddr],
        now: Duration,
    ) -> Vec<Change> {
        let table = lock(&self.table);
        let most = table.settings.config.max_members;
        let Some(followed) = table.many.get(group) else { return Vec::new() };
        lock(&followed.shared).compare(members, others, most, &self.counts, now)
    }

    /// Members of a name that have left and are done.
    pub fn gone(&self, group: &Group, members: &[Present], patience: Duration, now: Duration) -> Vec<Change> {
        let table = lock(&self.table);
        let Some(followed) = table.many.get(group) else { return Vec::new() };
        lock(&followed.shared).gone(members, patience, now)
    }

    /// Number of names that stand for one backend each.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        lock(&self.table).ones.len()
    }

    /// The error of the last look-up for the name; `None` if it succeeded.
    pub fn error(&self, name: &str) -> Option<String> {
        let table = lock(&self.table);
        table.ones.get(name).and_then(|known| lock(&known.shared).error.clone())
    }

    /// The names of a pool that stand for several backends, in order.
    pub fn groups(&self, pool: &str) -> Vec<GroupStatus> {
        let table = lock(&self.table);
        let of_pool = table.many.iter().filter(|(group, _)| group.pool == pool);
        let status = |(group, followed): (&Group, &Followed<Heard>)| {
            let heard = lock(&followed.shared);
            GroupStatus { name: group.name.clone(), error: heard.error.clone(), ttl: heard.ttl }
        };
        of_pool.map(status).collect()
    }
}

/// The names of a pool that stand for several backends.
pub fn groups_of(pool: &Pool) -> impl Iterator<Item = Group> {
    let groups = pool.configured.backends.iter().filter(|backend| backend.is_group());
    groups.map(|backend| Group { pool: pool.configured.name.clone(), name: backend.address.clone() })
}

/// Whether a backend is in its pool because of a name.
pub fn is_of(backend: &Backend, group: &Group) -> bool {
    matches!(&backend.origin, Origin::Name(name) if **name == *group.name)
}

/// A backend in the form of a config; `None` if the pool already has it, or no longer has the name.
pub fn config_of(pool: &Pool, group: &Group, wanted: &Wanted) -> Option<weir_config::Backend> {
    let address = wanted.address.to_string();
    let configured = pool.configured.backends.iter().find(|it| it.is_group() && it.address == group.name)?;
    if pool.backends.iter().any(|backend| backend.address == address) {
        return None;
    }
    Some(configured.member(address, wanted.weight, wanted.is_backup))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::new(Arc::new(Bus::default()), Arc::new(Moved::default())).0
    }

    fn backend(address: &str) -> Arc<Backend> {
        let text = format!(
            "[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['{address}']\n"
        );
        let config = weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"));
        Snapshot::compile(Arc::new(config), &Default::default(), None, 1).pools[0].backends[0].clone()
    }

    #[tokio::test]
    async fn a_name_is_resolved_as_long_as_a_backend_has_it() {
        let names = names();
        let (one, other) = (backend("app.invalid:80"), backend("app.invalid:80"));
        names.add("app", &one);
        names.add("shop", &other);
        names.add("app", &backend("10.0.0.1:80"));
        names.add("app", &backend("unix:/run/app.sock"));
        assert_eq!(names.count(), 1, "neither an address nor a Unix socket is a name");
        names.remove(&one);
        assert_eq!(names.count(), 1);
        names.remove(&other);
        assert_eq!(names.count(), 0);
    }

    #[tokio::test]
    async fn a_backend_with_a_known_name_has_its_address_at_once_and_nothing_is_asked_anew() {
        let names = names();
        let (one, other) = (backend("app.invalid:80"), backend("app.invalid:80"));
        names.add("app", &one);
        let address = std::net::SocketAddr::from(([10, 0, 0, 1], 80));
        lock(&lock(&names.table).ones["app.invalid:80"].shared).take(Ok(vec![address]), false);
        let task = lock(&names.table).ones["app.invalid:80"].task.id();
        names.add("shop", &other);
        assert_eq!(other.resolved.address(), Some(address));
        assert_eq!(lock(&names.table).ones["app.invalid:80"].task.id(), task);
    }
}
