//! The pools in force and their backends, with what is known about them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use weir_balance::{Readers, Refreshed, Role};
use weir_config::{Dns, MysqlTopology, Reads, Source};
use weir_io::at::{At, UnixName};
use weir_io::clock;
use weir_io::local_end::LocalEnd;
use weir_stats::PerWorker;
use weir_stats::table::{BackendCells, PoolCells};
use weir_tls::accounts::Accounts;
use weir_tls::full_logins::FullLogins;
use weir_tls::{BackendTls, ClientLogin, ClientTls, ListFacts, Loaded, OwnAccount, StickyKey};

use crate::connections::ConnectionCount;
use crate::counterparts::Counterparts;
use crate::departure::Departure;
use crate::hidden::{self, HiddenNames};
use crate::nudge::Nudge;
use crate::picked::Picked;
use crate::plane::Bell;
use crate::queue::Queue;
use crate::server::ServerFacts;

/// Live backends with the settings that a snapshot has changed.
pub(crate) type Displaced = Vec<(Arc<weir_balance::Backend>, weir_balance::BackendSettings)>;

/// One pool and its live state.
pub struct Pool {
    /// As configured, with the backends that it has: each is one of its own, in their order.
    pub config: Arc<weir_config::Pool>,
    /// As configured: with names that stand for several backends, and without those that came since.
    pub configured: Arc<weir_config::Pool>,
    /// The choice among its backends.
    pub balance: Arc<weir_balance::Pool>,
    /// In the order of the config; a `Pick`'s index points in here.
    pub backends: Vec<Arc<Backend>>,
    /// Where connections to its backends leave from; `None` where the kernel chooses.
    pub local_end: Option<Arc<Departure>>,
    /// What TLS is spoken with; `None` where it is not.
    pub(crate) tls: Option<Arc<ClientTls>>,
    /// What its sticky cookies are sealed with; `None` where it has none.
    pub sticky: Option<Arc<StickyKey>>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<PoolCells>>,
    /// Exchanges that wait because every backend is at `max_connections`.
    pub queue: Arc<Queue>,
    /// Rung at each new view of the choice, for a plane that keeps tables of its own; mostly nobody's.
    pub bell: Arc<ArcSwapOption<Bell>>,
    /// For who finds that a server is not what it is taken for; heard where the servers' roles are watched.
    pub nudge: Arc<Nudge>,
    /// Tables and views of its MySQL servers with stored code that leaves something on a connection.
    pub hidden: Arc<HiddenNames>,
    /// The account that Weir has on its MySQL servers; `None` where it has none.
    pub account: Option<Arc<OwnAccount>>,
    /// What clients of its MySQL servers log in by; `None` for servers of another kind.
    pub client_login: Option<Arc<ClientLogin>>,
    /// The accounts that have logged in, across reloads.
    pub accounts: Arc<Accounts>,
    /// Turns for those who are asked for their password, across reloads.
    pub full_logins: Arc<FullLogins>,
}

/// One backend of one pool.
pub struct Backend {
    /// As configured; its name in logs and metrics.
    pub address: String,
    /// Why it is in its pool.
    pub origin: Origin,
    /// Its state as the balancer sees it.
    pub balance: Arc<weir_balance::Backend>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<BackendCells>>,
    /// Where connections go.
    pub resolved: Arc<Resolved>,
    /// What TLS is spoken with; `None` where it is not.
    pub tls: Option<BackendTls>,
    /// What it picked last, where its pool lets it.
    pub picked: Arc<Picked>,
    /// Connections to it that are open, idle ones too, over all workers; counted where `max_connections`
    /// bounds those: a MySQL server lets nobody in any more once it has as many as it may.
    pub open: Arc<ConnectionCount>,
    /// What its MySQL server says of itself; `None` while none was seen there, and where none is looked for.
    /// [`Backend::learn`] writes it.
    pub server: Arc<ArcSwapOption<ServerFacts>>,
    /// How often its MySQL server was seen to have executed less than before
    /// (`RESET BINARY LOGS AND GTIDS`): what is known of that counts until the next time.
    pub gtid_resets: Arc<AtomicU32>,
    /// Statements that are prepared on connections to its MySQL server, over all workers and across reloads.
    pub prepared: Arc<AtomicU32>,
}

/// Why a backend is in its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The config names it, or the API did until the next reload.
    Config,
    /// Its MySQL group has it. It outlives reloads.
    Group,
    /// This name stands for it, `host:port` or a service as the config has it. It outlives reloads for as
    /// long as the config has the name.
    Name(Arc<str>),
    /// The API, lastingly. It outlives reloads and upgrades.
    Api,
}

impl Origin {
    /// The word in the API and in logs.
    pub const fn word(&self) -> &'static str {
        match self {
            Origin::Config => "config",
            Origin::Group => "group",
            Origin::Name(_) => "name",
            Origin::Api => "api",
        }
    }
}

/// Where a backend is at the moment.
pub struct Resolved {
    at: ArcSwapOption<At>,
    moves: AtomicU32,
    choice: ArcSwapOption<Choice>,
}

/// What there is to choose from where a backend's name has several addresses.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// All addresses of the name that may be used, in ascending order.
    pub addresses: Box<[SocketAddr]>,
    /// How long the one in use, or the one tried before, may be silent until the next is tried beside it.
    pub pause: Duration,
}

impl Resolved {
    /// For a literal address and a Unix socket it is known at once; for a host name the control side finds it
    /// out.
    pub fn of(name: &str) -> Resolved {
        let unix = weir_config::unix_name(name).map(|name| At::Unix(UnixName::new(name)));
        let at = unix.or_else(|| weir_config::backend_at(name).map(At::Inet));
        let at = ArcSwapOption::from(at.map(Arc::new));
        Resolved { at, moves: AtomicU32::new(0), choice: ArcSwapOption::empty() }
    }

    /// The addresses that a connection may go to; `None` where there is only the one in use, or no other is
    /// to be tried.
    #[inline]
    pub fn choice(&self) -> Option<Arc<Choice>> {
        self.choice.load_full()
    }

    /// Called by the control side when there are other addresses to choose from; gives whether that is news.
    pub fn set_choice(&self, choice: Option<Arc<Choice>>) -> bool {
        let is_new = *self.choice.load() != choice;
        if is_new {
            self.choice.store(choice);
        }
        is_new
    }

    /// `None` while a host name has never been resolved: the backend can't be connected to. Port 0 is the one
    /// that the client asked for, on the kernel plane.
    #[inline]
    pub fn at(&self) -> Option<At> {
        self.at.load().as_deref().cloned()
    }

    /// Whether it can be connected to.
    pub fn is_known(&self) -> bool {
        self.at.load().is_some()
    }

    /// As [`Self::at`], for those who need an address: packets and datagrams. `None` for a Unix socket, too.
    #[inline]
    pub fn address(&self) -> Option<SocketAddr> {
        self.at.load().as_deref().and_then(At::inet)
    }

    /// Called by the control side when a name resolved to another address.
    pub fn set(&self, address: SocketAddr) {
        self.at.store(Some(Arc::new(At::Inet(address))));
        // After the address: whoever sees the new count connects to the new address.
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// Called by the control side when the address may not be used any more: it can't be connected to.
    pub fn forget(&self) {
        self.at.store(None);
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// How often the address has changed. To be asked before [`Self::at`], to know of a connection
    /// whether it still goes where the name points.
    #[inline]
    pub fn moves(&self) -> u32 {
        self.moves.load(Ordering::Acquire)
    }
}

impl Pool {
    pub(crate) fn compile(
        config: &Arc<weir_config::Pool>,
        dns: &Dns,
        loaded: &Loaded,
        old: Option<&Arc<Pool>>,
        workers: usize,
        displaced: &mut Displaced,
    ) -> Arc<Pool> {
        let (tls, sticky) = (loaded.pool(&config.name), loaded.sticky(&config.name));
        let (account, client_login) = (loaded.account(&config.name), loaded.client_login(&config.name));
        hidden::note_config(config);
        let configured = config;
        let kept = |config: &weir_config::Backend, origin: &Origin| {
            let kept = kept_as(config, origin, configured, dns)?;
            // Without a name that it can prove it would be spoken to in the clear.
            let has_name = |tls: &Arc<ClientTls>| tls.name_of(tls_host(origin, &kept.address)).is_ok();
            tls.is_none_or(has_name).then_some(kept)
        };
        let (config, origins) = &with_kept(configured, old, &kept);
        let has_same_origins = |old: &&Arc<Pool>| {
            old.configured == *configured && old.backends.iter().map(|it| &it.origin).eq(origins)
        };
        let is_same_login = |old: &&Arc<Pool>| match (&old.client_login, client_login) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let old_as_is = old.filter(|old| old.is_as_configured(config, tls, sticky, account));
        if let Some(old) = old_as_is.filter(has_same_origins).filter(is_same_login) {
            return old.clone();
        }
        let mut known =
            Counterparts::new(old.map_or(&[][..], |old| &old.backends[..]), |backend| &*backend.address);
        let compile = |(index, backend): (usize, &weir_config::Backend)| match known.find(&*backend.address) {
            Some(old) => {
                let role = settled_role(config, index);
                Backend::compile(backend, role, tls.map(AsRef::as_ref), (old, &origins[index]), displaced)
            }
            // Without a server name there is no TLS; `Loaded` lets no such config through.
            None => {
                // All that no config names were there before.
                let tls = tls.and_then(|tls| tls.for_backend(&backend.address, None).ok());
                Arc::new(Backend::new(backend, settled_role(config, index), tls, workers))
            }
        };
        let backends: Vec<Arc<Backend>> = config.backends.iter().enumerate().map(compile).collect();
        let members = backends.iter().map(|backend| backend.balance.clone()).collect();
        let (settings, now) = (settings_of(config), clock::now());
        let balance = match old {
            Some(old) => old.balance.rebuilt(settings, members, now),
            None => weir_balance::Pool::new(settings, members, now),
        };
        Arc::new(Pool {
            config: config.clone(),
            configured: configured.clone(),
            balance: Arc::new(balance),
            backends,
            local_end: local_end_of(config).map(|it| Arc::new(Departure::new(&config.name, it))),
            tls: tls.cloned(),
            sticky: sticky.cloned(),
            cells: old.map_or_else(|| Arc::new(PerWorker::new(workers)), |old| old.cells.clone()),
            queue: old.map_or_else(Default::default, |old| old.queue.clone()),
            bell: old.map_or_else(Default::default, |old| old.bell.clone()),
            nudge: old.map_or_else(Default::default, |old| old.nudge.clone()),
            hidden: old.map_or_else(Default::default, |old| old.hidden.clone()),
            account: account.cloned(),
            client_login: client_login.cloned(),
            accounts: old.map_or_else(Default::default, |old| old.accounts.clone()),
            full_logins: old.map_or_else(Default::default, |old| old.full_logins.clone()),
        })
    }

    /// The lists of revoked certificates that count for its backends.
    pub fn revocations(&self) -> &[ListFacts] {
        self.tls.as_ref().map_or(&[], |tls| tls.revocations())
    }

    /// Whether `config`, with `tls`, `sticky` and `account`, would make the same pool again: nothing was set
    /// by hand either.
    fn is_as_configured(
        &self,
        config: &weir_config::Pool,
        tls: Option<&Arc<ClientTls>>,
        sticky: Option<&Arc<StickyKey>>,
        account: Option<&Arc<OwnAccount>>,
    ) -> bool {
        let has_same_tls = match (&self.tls, tls) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let has_same_account = match (&self.account, account) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        let mut backends = self.backends.iter().zip(&config.backends);
        has_same_tls
            && has_same_account
            && self.sticky.as_ref() == sticky
            && *self.config == *config
            && backends.all(|(backend, config)| backend.balance.weight() == config.weight)
    }

    /// Takes the roles that were found out, by index, and has them in force at once: no choice sees some of
    /// them without the others. Those who wait for a role are called.
    pub fn set_roles(
        &self,
        roles: impl IntoIterator<Item = (usize, Option<Role>)>,
        now: Duration,
    ) -> Refreshed {
        self.balance.set_roles(roles);
        self.refresh(now)
    }

    /// Whether one of the servers is the primary, as far as is known.
    pub fn has_primary(&self) -> bool {
        self.backends.iter().any(|backend| backend.balance.role() == Some(Role::Primary))
    }

    /// [`weir_balance::Pool::refresh`]; a change calls those who wait for a backend, since it may have made
    /// room.
    pub fn refresh(&self, now: Duration) -> Refreshed {
        let refreshed = self.balance.refresh(now);
        if refreshed.changed {
            self.queue.call_all();
            if let Some(bell) = &*self.bell.load() {
                bell.ring();
            }
        }
        refreshed
    }
}

/// The config of a pool with a backend for each that it has: those that it names, and of the others those
/// that stay. Names that stand for several are none of their own. And why each is there.
///
/// `kept` says what becomes of one that the pool had and that its config does not name.
fn with_kept(
    configured: &Arc<weir_config::Pool>,
    old: Option<&Arc<Pool>>,
    kept: &dyn Fn(&weir_config::Backend, &Origin) -> Option<weir_config::Backend>,
) -> (Arc<weir_config::Pool>, Vec<Origin>) {
    let is_single = |backend: &&weir_config::Backend| !backend.is_group();
    let mut backends: Vec<weir_config::Backend> =
        configured.backends.iter().filter(is_single).cloned().collect();
    let mut origins = vec![Origin::Config; backends.len()];
    for (config, backend) in old.into_iter().flat_map(|old| old.config.backends.iter().zip(&old.backends)) {
        let is_there = |it: &weir_config::Backend| it.address == config.address;
        if !backends.iter().any(is_there)
            && let Some(kept) = kept(config, &backend.origin)
        {
            backends.push(kept);
            origins.push(backend.origin.clone());
        }
    }
    if backends == configured.backends {
        return (configured.clone(), origins);
    }
    let with = weir_config::Pool { backends, ..weir_config::Pool::clone(configured) };
    (Arc::new(with), origins)
}

/// What becomes of a backend that a pool had and its config does not name; `None` where it goes.
fn kept_as(
    backend: &weir_config::Backend,
    origin: &Origin,
    configured: &weir_config::Pool,
    dns: &Dns,
) -> Option<weir_config::Backend> {
    match origin {
        Origin::Config => None,
        Origin::Api => configured.can_have(&backend.address).then(|| backend.clone()),
        Origin::Group => {
            let topology = configured.mysql.as_ref().map(|mysql| mysql.topology);
            (topology == Some(MysqlTopology::GroupReplication)).then(|| backend.clone())
        }
        Origin::Name(name) => {
            let name = configured.backends.iter().find(|it| it.is_group() && it.address == **name)?;
            // Who tightens the networks does not want whoever lies elsewhere for another moment.
            let at = weir_config::backend_at(&backend.address).filter(|at| dns.allows(at.ip()))?;
            Some(name.member(at.to_string(), backend.weight, backend.backup))
        }
    }
}

/// Whom a backend has to be, over TLS: who came by a name has to prove that name.
pub(crate) fn tls_host<'n>(origin: &'n Origin, address: &'n str) -> &'n str {
    match origin {
        Origin::Name(name) => name,
        _ => address,
    }
}

/// Where connections to backends leave from; `None` where the config does not say.
fn local_end_of(config: &weir_config::Pool) -> Option<LocalEnd> {
    let mut local_end =
        LocalEnd { interface: config.interface.as_deref().map(Into::into), ..LocalEnd::default() };
    for source in &config.source {
        match source {
            Source::Address(IpAddr::V4(address)) => local_end.v4 = Some(*address),
            Source::Address(IpAddr::V6(address)) => local_end.v6 = Some(*address),
            Source::Client => local_end.is_clients = true,
        }
    }
    Some(local_end).filter(|local_end| !local_end.is_any())
}

/// What the config says of choosing, in the balancer's terms.
fn settings_of(config: &weir_config::Pool) -> weir_balance::Settings {
    weir_balance::Settings {
        algorithm: config.balance,
        hash_bound: config.hash.bounded,
        slow_start: config.slow_start,
        passive: config.health.passive.as_ref().map(|passive| weir_balance::Passive {
            errors: passive.errors,
            within: passive.within,
            eject: passive.eject,
            max_ejected: passive.max_ejected,
            success_rate: passive.success_rate.map(|rate| weir_balance::SuccessRate {
                interval: rate.interval,
                factor: rate.factor,
                min_backends: rate.min_backends,
                min_requests: rate.min_requests.into(),
            }),
        }),
        rise: config.health.rise,
        fall: config.health.fall,
        last_resort: config.health.last_resort,
        panic_below: config.health.panic_below,
        breaker: config.breaker.map(|breaker| weir_balance::BreakerSettings {
            errors: breaker.errors,
            of: breaker.of,
            within: breaker.within,
            open: breaker.open,
            trials: breaker.trials,
        }),
        retries: weir_balance::RetryShare {
            per_mille: (config.retry.budget.share * 1000.0).round() as u32,
            per_second: config.retry.budget.min_per_second,
        },
        readers: config.mysql.as_ref().map(|mysql| match mysql.reads {
            Reads::Secondaries => Readers::Secondaries,
            Reads::All => Readers::All,
        }),
    }
}

/// The role that the config settles for the backend at `index` of a pool.
pub(crate) fn settled_role(pool: &weir_config::Pool, index: usize) -> Option<Role> {
    let is_settled = pool.mysql.as_ref().is_some_and(|mysql| !mysql.is_watched());
    is_settled.then_some(if index == 0 { Role::Primary } else { Role::Secondary })
}

impl Backend {
    /// Whether connections that were made to it as `before` may go on being used: what was agreed on then, in
    /// the clear or by TLS, is what would be agreed on now.
    pub fn is_spoken_to_as(&self, before: &Backend) -> bool {
        is_spoken_to_alike(before.tls.as_ref(), self.tls.as_ref())
    }

    pub(crate) fn new(
        config: &weir_config::Backend,
        role: Option<Role>,
        tls: Option<BackendTls>,
        workers: usize,
    ) -> Backend {
        // A new backend's name is resolved before anybody serves it.
        let settings = settings_of_backend(config, role, true);
        Backend {
            address: config.address.clone(),
            origin: Origin::Config,
            balance: Arc::new(weir_balance::Backend::new(config.address.as_str(), settings)),
            cells: Arc::new(PerWorker::new(workers)),
            resolved: Arc::new(Resolved::of(&config.address)),
            tls,
            picked: Arc::default(),
            open: Arc::default(),
            server: Arc::default(),
            gtid_resets: Arc::default(),
            prepared: Arc::default(),
        }
    }

    /// What becomes of a backend that was there before: the very same unless it is spoken to otherwise.
    fn compile(
        config: &weir_config::Backend,
        role: Option<Role>,
        tls: Option<&ClientTls>,
        (old, origin): (&Arc<Backend>, &Origin),
        displaced: &mut Displaced,
    ) -> Arc<Backend> {
        // A name that has not been resolved stays out over a reload, and one that has come by a name until it
        // was found up.
        let assumed_up = match origin {
            Origin::Name(_) => old.balance.is_assumed_up(),
            _ => old.resolved.is_known(),
        };
        let settings = settings_of_backend(config, role, assumed_up);
        if !matches!(origin, Origin::Name(_)) {
            // No name stands for it any more: its config does.
            old.balance.set_leaving(false);
        }
        let before = old.balance.settings();
        if before != settings {
            displaced.push((old.balance.clone(), before));
            old.balance.reconfigure(settings);
        }
        let tls =
            tls.and_then(|tls| tls.for_backend(tls_host(origin, &config.address), old.tls.as_ref()).ok());
        if is_spoken_to_alike(old.tls.as_ref(), tls.as_ref()) && old.origin == *origin {
            return old.clone();
        }
        Arc::new(Backend {
            address: old.address.clone(),
            origin: origin.clone(),
            balance: old.balance.clone(),
            cells: old.cells.clone(),
            resolved: old.resolved.clone(),
            tls,
            picked: old.picked.clone(),
            open: old.open.clone(),
            server: old.server.clone(),
            gtid_resets: old.gtid_resets.clone(),
            prepared: old.prepared.clone(),
        })
    }
}

/// Whether what was agreed on with one holds for the other.
fn is_spoken_to_alike(one: Option<&BackendTls>, other: Option<&BackendTls>) -> bool {
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => Arc::ptr_eq(&one.config, &other.config),
        _ => false,
    }
}

fn settings_of_backend(
    config: &weir_config::Backend,
    role: Option<Role>,
    assumed_up: bool,
) -> weir_balance::BackendSettings {
    weir_balance::BackendSettings {
        weight: config.weight,
        backup: config.backup,
        max_connections: config.max_connections,
        assumed_up,
        role,
    }
}
