//! The pools in force and their backends, with their live state.

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

/// Live backends whose settings a snapshot has changed, with the settings before.
pub(crate) type Displaced = Vec<(Arc<weir_balance::Backend>, weir_balance::BackendSettings)>;

/// One pool and its live state.
pub struct Pool {
    /// The config with one entry for each backend that the pool has now, in the same order.
    pub config: Arc<weir_config::Pool>,
    /// The config as written: names that resolve to several backends are one entry, and backends added since
    /// are absent.
    pub configured: Arc<weir_config::Pool>,
    /// Chooses among the backends.
    pub balance: Arc<weir_balance::Pool>,
    /// In the order of the config; a `Pick`'s index points in here.
    pub backends: Vec<Arc<Backend>>,
    /// Local end of connections to its backends; `None` if the kernel chooses it.
    pub local_end: Option<Arc<Departure>>,
    /// How TLS is spoken to backends; `None` without TLS.
    pub(crate) tls: Option<Arc<ClientTls>>,
    /// The key that seals its sticky cookies; `None` without sticky cookies.
    pub sticky: Option<Arc<StickyKey>>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<PoolCells>>,
    /// Exchanges that wait because every backend is at `max_connections`.
    pub queue: Arc<Queue>,
    /// Rung at each new view of the balancer, for a plane that keeps tables of its own; usually not set.
    pub bell: Arc<ArcSwapOption<Bell>>,
    /// Asks for an immediate check of the servers' roles; without effect in pools whose roles are not
    /// monitored.
    pub nudge: Arc<Nudge>,
    /// Tables and views of its MySQL servers whose stored code leaves state behind on a connection.
    pub hidden: Arc<HiddenNames>,
    /// Weir's own account on its MySQL servers; `None` if it has none.
    pub account: Option<Arc<OwnAccount>>,
    /// How clients of its MySQL servers log in; `None` for other servers.
    pub client_login: Option<Arc<ClientLogin>>,
    /// The accounts that have logged in; kept across reloads.
    pub accounts: Arc<Accounts>,
    /// Limits full password exchanges; kept across reloads.
    pub full_logins: Arc<FullLogins>,
}

/// One backend of one pool.
pub struct Backend {
    /// As configured; its name in logs and metrics.
    pub address: String,
    /// How it came into its pool.
    pub origin: Origin,
    /// Its state as the balancer sees it.
    pub balance: Arc<weir_balance::Backend>,
    /// Counters, one copy per worker.
    pub cells: Arc<PerWorker<BackendCells>>,
    /// The address that connections go to.
    pub resolved: Arc<Resolved>,
    /// How TLS is spoken to it; `None` without TLS.
    pub tls: Option<BackendTls>,
    /// The HTTP version it chose last, if its pool leaves the choice to it.
    pub picked: Arc<Picked>,
    /// Open connections to it over all workers, idle ones included; counted if `max_connections` bounds
    /// connections, since a MySQL server accepts no more than its own limit.
    pub open: Arc<ConnectionCount>,
    /// What its MySQL server's greeting said; `None` until a greeting was seen, and for other servers.
    /// [`Backend::learn`] writes it.
    pub server: Arc<ArcSwapOption<ServerFacts>>,
    /// How often its MySQL server was seen to have executed less than before (`RESET BINARY LOGS AND GTIDS`):
    /// what is known about its executed transactions holds only until the next reset.
    pub gtid_resets: Arc<AtomicU32>,
    /// Prepared statements on connections to its MySQL server, over all workers; kept across reloads.
    pub prepared: Arc<AtomicU32>,
}

/// How a backend came into its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The config names it, or the API added it until the next reload.
    Config,
    /// It is a member of the MySQL group. It outlives reloads.
    Group,
    /// This name, `host:port` or a service as the config has it, resolved to it. It outlives reloads for as
    /// long as the config has the name.
    Name(Arc<str>),
    /// The API added it lastingly. It outlives reloads and upgrades.
    Api,
}

impl Origin {
    /// The word for it in the API and in logs.
    pub const fn word(&self) -> &'static str {
        match self {
            Origin::Config => "config",
            Origin::Group => "group",
            Origin::Name(_) => "name",
            Origin::Api => "api",
        }
    }
}

/// The address of a backend at the moment.
pub struct Resolved {
    at: ArcSwapOption<At>,
    moves: AtomicU32,
    choice: ArcSwapOption<Choice>,
}

/// The addresses to choose from if a backend's name has several.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Choice {
    /// All usable addresses of the name, in ascending order.
    pub addresses: Box<[SocketAddr]>,
    /// How long to wait for an answer from one address before also trying the next.
    pub pause: Duration,
}

impl Resolved {
    /// The address of a literal or a Unix socket is known at once; the control side resolves host names.
    pub fn of(name: &str) -> Resolved {
        let unix = weir_config::unix_name(name).map(|name| At::Unix(UnixName::new(name)));
        let at = unix.or_else(|| weir_config::backend_at(name).map(At::Inet));
        let at = ArcSwapOption::from(at.map(Arc::new));
        Resolved { at, moves: AtomicU32::new(0), choice: ArcSwapOption::empty() }
    }

    /// The addresses that a connection may go to; `None` if there is only the one in use, or no other is to
    /// be tried.
    #[inline]
    pub fn choice(&self) -> Option<Arc<Choice>> {
        self.choice.load_full()
    }

    /// Sets the addresses to choose from. Called by the control side; returns whether they changed.
    pub fn set_choice(&self, choice: Option<Arc<Choice>>) -> bool {
        let is_new = *self.choice.load() != choice;
        if is_new {
            self.choice.store(choice);
        }
        is_new
    }

    /// The address to connect to; `None` while a host name has never been resolved. Port 0 stands for the
    /// port that the client used, on the kernel plane.
    #[inline]
    pub fn at(&self) -> Option<At> {
        self.at.load().as_deref().cloned()
    }

    /// Whether it can be connected to.
    pub fn is_known(&self) -> bool {
        self.at.load().is_some()
    }

    /// Like [`Self::at`], for packets and datagrams, which need a socket address. `None` for a Unix socket,
    /// too.
    #[inline]
    pub fn address(&self) -> Option<SocketAddr> {
        self.at.load().as_deref().and_then(At::inet)
    }

    /// Sets a new address. Called by the control side when a name resolved to another one.
    pub fn set(&self, address: SocketAddr) {
        self.at.store(Some(Arc::new(At::Inet(address))));
        // After the address: whoever sees the new count must connect to the new address.
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// Withdraws the address, so that the backend can't be connected to. Called by the control side when the
    /// address may not be used any more.
    pub fn forget(&self) {
        self.at.store(None);
        self.moves.fetch_add(1, Ordering::Release);
    }

    /// How often the address has changed. Read it before [`Self::at`], to find out later whether a connection
    /// still goes where the name points.
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
            // Without a name to verify, the backend would be spoken to in the clear.
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
            // Without a server name there would be no TLS; `Loaded` lets no such config through.
            None => {
                // Backends that the config does not name existed before.
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

    /// The certificate revocation lists that apply to its backends.
    pub fn revocations(&self) -> &[ListFacts] {
        self.tls.as_ref().map_or(&[], |tls| tls.revocations())
    }

    /// Whether `config`, with `tls`, `sticky` and `account`, would produce the same pool, and nothing was
    /// changed by hand.
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

    /// Stores the roles found by monitoring, by index, and puts them in force together: no choice sees some
    /// of them without the others. Then calls the exchanges that wait for a role.
    pub fn set_roles(
        &self,
        roles: impl IntoIterator<Item = (usize, Option<Role>)>,
        now: Duration,
    ) -> Refreshed {
        self.balance.set_roles(roles);
        self.refresh(now)
    }

    /// Whether one of the servers is known to be the primary.
    pub fn has_primary(&self) -> bool {
        self.backends.iter().any(|backend| backend.balance.role() == Some(Role::Primary))
    }

    /// Calls [`weir_balance::Pool::refresh`]. If the view changed, it also calls the exchanges that wait for
    /// a backend, since the change may have made room.
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

/// The config of a pool with one entry per backend: those that it names, and those of the others that stay.
/// Names that resolve to several backends get no entry of their own. Also returns the origin of each.
///
/// `kept` decides about each backend that the pool had and that its config does not name.
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

/// The entry of a backend that a pool had and its config does not name; `None` if it goes.
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
            // When the allowed networks are narrowed, backends outside them must go at once.
            let at = weir_config::backend_at(&backend.address).filter(|at| dns.allows(at.ip()))?;
            Some(name.member(at.to_string(), backend.weight, backend.backup))
        }
    }
}

/// The host whose certificate a backend must present over TLS: a backend found by a name must prove that
/// name.
pub(crate) fn tls_host<'n>(origin: &'n Origin, address: &'n str) -> &'n str {
    match origin {
        Origin::Name(name) => name,
        _ => address,
    }
}

/// Local end of connections to backends; `None` if the config names none.
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

/// The settings of a pool's config that concern choosing, in the balancer's terms.
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

/// The role that the config fixes for the backend at `index` of a pool.
pub(crate) fn settled_role(pool: &weir_config::Pool, index: usize) -> Option<Role> {
    let is_settled = pool.mysql.as_ref().is_some_and(|mysql| !mysql.is_watched());
    is_settled.then_some(if index == 0 { Role::Primary } else { Role::Secondary })
}

impl Backend {
    /// Whether connections made to `before` may still be used: clear or TLS, they were set up in the same way
    /// as new ones would be.
    pub fn is_spoken_to_as(&self, before: &Backend) -> bool {
        is_spoken_to_alike(before.tls.as_ref(), self.tls.as_ref())
    }

    pub(crate) fn new(
        config: &weir_config::Backend,
        role: Option<Role>,
        tls: Option<BackendTls>,
        workers: usize,
    ) -> Backend {
        // The name of a new backend is resolved before any plane serves it.
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

    /// Carries over an existing backend: the same `Arc`, unless connections to it have to be set up
    /// differently.
    fn compile(
        config: &weir_config::Backend,
        role: Option<Role>,
        tls: Option<&ClientTls>,
        (old, origin): (&Arc<Backend>, &Origin),
        displaced: &mut Displaced,
    ) -> Arc<Backend> {
        // Over a reload, a backend whose name has not been resolved stays out, and so does one found by a
        // name until a probe finds it up.
        let assumed_up = match origin {
            Origin::Name(_) => old.balance.is_assumed_up(),
            _ => old.resolved.is_known(),
        };
        let settings = settings_of_backend(config, role, assumed_up);
        if !matches!(origin, Origin::Name(_)) {
            // The config now names it, so the end of a name no longer matters.
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

/// Whether both would set up connections in the same way.
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
