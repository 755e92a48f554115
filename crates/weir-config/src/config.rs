//! The whole file: its tables, and the conversion between them and a [`Config`].

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::admin::{self, Admin};
use crate::buffer;
use crate::cache::Cache;
use crate::dns::{self, Dns};
use crate::fallback;
use crate::fields::{Fields, KeyValue, Value};
use crate::hidden::Hidden;
use crate::kernel::Kernel;
use crate::keys::{Key, Kind, Row, Table};
use crate::listener::{self, Listener};
use crate::log::{self, AccessLog, Log};
use crate::map::{self, MapFile};
use crate::mirror;
use crate::peers::{self, Peers};
use crate::plane;
use crate::plane::forward::Forward;
use crate::pool::health::{Check, ProbedAt};
use crate::pool::{self, Pool};
use crate::report::{Findings, Span};
use crate::runtime::Runtime;
use crate::setting::{One as _, Part, Section, Setting};
use crate::shared;
use crate::split;
use crate::uses::Uses;
use crate::values::bind::Bind;

/// A whole configuration, checked: every pool that is named exists, every value is within its bounds.
///
/// Listeners and pools are shared: a config that differs from another one in a single pool costs only the
/// memory of that pool.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `[runtime]`
    pub runtime: Runtime,
    /// `[admin]`; `None` when `bind = "off"`.
    pub admin: Option<Admin>,
    /// `[log]`
    pub log: Log,
    /// `[access_log.NAME]`, in file order.
    pub access_logs: Vec<Arc<AccessLog>>,
    /// `[cache]`
    pub cache: Cache,
    /// `[kernel]`
    pub kernel: Kernel,
    /// `[dns]`
    pub dns: Dns,
    /// `[peers]`; `None` if no other Weir counts together with this one.
    pub peers: Option<Peers>,
    /// `[map.NAME]`, in file order.
    pub maps: Vec<Arc<MapFile>>,
    /// `[listener.NAME]`, in file order.
    pub listeners: Vec<Arc<Listener>>,
    /// `[pool.NAME]`, in file order.
    pub pools: Vec<Arc<Pool>>,
    /// Which values came from the environment or from files.
    pub hidden: Hidden,
}

/// The table of the whole file.
pub static ROOT: Table = Table {
    path: "the file",
    doc: "Eleven kinds of tables, and two ways to say things once. At least one listener is needed; all the rest has defaults.",
    rows: &[
        Row::Key(shared::INCLUDE),
        Row::Key(Key::new(Kind::Table(Runtime::TABLE)).named("runtime", "Settings of the whole process.")),
        Row::Key(Key::new(Kind::Table(Admin::TABLE)).named("admin", "The admin API, metrics and dashboard.")),
        Row::Key(Key::new(Kind::Table(Log::TABLE)).named("log", "Access log and program log.")),
        Row::Key(
            Key::new(Kind::NamedTables(AccessLog::TABLE))
                .named("access_log", "Access logs beside that of `[log]`."),
        ),
        Row::Key(
            Key::new(Kind::Table(Cache::TABLE))
                .named("cache", "The memory that routes with a `cache` share."),
        ),
        Row::Key(
            Key::new(Kind::Table(Kernel::TABLE))
                .named("kernel", "What all listeners on the kernel plane share."),
        ),
        Row::Key(
            Key::new(Kind::Table(Dns::TABLE))
                .also(&["resolvers", "resolver"])
                .named("dns", "Who is asked what host names of backends stand for."),
        ),
        Row::Key(
            Key::new(Kind::Table(Peers::TABLE))
                .default("none: each Weir counts alone")
                .also(&["peer"])
                .named("peers", "Other Weirs that count together with this one."),
        ),
        Row::Key(
            Key::new(Kind::NamedTables(MapFile::TABLE))
                .also(&["maps", "geo"])
                .named("map", "Keys and values from files, for conditions and values."),
        ),
        Row::Key(
            Key::new(Kind::NamedTables(Listener::TABLE))
                .also(&["frontend", "server", "listen"])
                .named("listener", "Where clients are accepted."),
        ),
        Row::Key(
            Key::new(Kind::NamedTables(Pool::TABLE))
                .also(&["upstream", "cluster"])
                .named("pool", "Backends, and how to choose among them."),
        ),
        Row::Key(shared::TABLES),
    ],
};

/// Fills in the values of every table that follow from other tables. Returns which listeners use which pool.
pub(crate) fn assume(root: &mut Fields) -> Uses {
    for map in root.below_mut("map") {
        map::assume(map);
    }
    for listener in root.below_mut("listener") {
        listener::assume(listener);
    }
    let uses = Uses::of_file(root);
    for pool in root.below_mut("pool") {
        pool::assume(pool, &uses);
    }
    uses
}

impl Config {
    /// Why a listener of this config cannot be on the kernel plane, whatever this machine supports: the
    /// reason why a listener with `plane = "auto"` is on the proxy plane. `None` if no setting of the
    /// listener or its pool prevents it. The addresses of its backends' names and the interfaces that exist
    /// are not known here.
    pub fn kernel_obstacle(&self, listener: &Listener) -> Option<String> {
        let named = |name: &str| self.pools.iter().find(|pool| pool.name == name);
        let pool = listener.pool.as_deref().and_then(named);
        plane::obstacle(&listener.fields(), pool.map(|pool| pool.fields()).as_ref())
    }

    /// Whether probes of `pool` address its backends by the address of a kernel-plane listener that forwards
    /// to it, instead of by their own.
    pub fn asks_at_vip(pool: &Pool, listener: &Listener) -> bool {
        let health = &pool.health;
        let has = |port: u32| {
            let mut binds = listener.bind.iter().filter_map(Bind::inet);
            binds.any(|bind| bind.ports().any(|one| u32::from(one) == port))
        };
        let is_asked = match health.at {
            Some(ProbedAt::Vip) => true,
            Some(ProbedAt::Backend) => false,
            None => health.port.is_none_or(has),
        };
        let is_answered_past = matches!(listener.forward, Forward::Dsr | Forward::Ipip);
        is_asked && is_answered_past && health.check != Check::Off
    }

    /// The pools that stand in for `pool`, in the order in which they are tried; `of_route` is the fallback
    /// of a route, which takes precedence over the pool's.
    pub fn fallbacks<'c>(&'c self, pool: &str, of_route: Option<&'c str>) -> Vec<&'c str> {
        let of_pool = |name: &str| {
            self.pools.iter().find(|pool| pool.name == name).and_then(|pool| pool.fallback_pool.as_deref())
        };
        fallback::follow(pool, of_route.or_else(|| of_pool(pool)), of_pool)
    }

    /// The listeners that use `pool`: directly or by a route, for a share or a mirror, as a fallback, or for
    /// authentication. Searches the whole config.
    pub fn users_of(&self, pool: &str) -> Vec<&Listener> {
        let uses = Uses::of_file(&self.fields());
        let all = self.listeners.iter().map(|listener| &**listener);
        all.filter(|listener| uses.is_used_by(pool, &listener.name)).collect()
    }

    /// The pools that the listeners selected by `is_meant` use, in any way. Walks the whole config.
    pub fn pools_used_by(&self, is_meant: impl Fn(&Listener) -> bool) -> BTreeSet<String> {
        let uses = Uses::of_file(&self.fields());
        let meant = self.listeners.iter().filter(|one| is_meant(one));
        let meant: BTreeSet<&str> = meant.map(|one| one.name.as_str()).collect();
        let is_used = |pool: &&str| uses.of(pool).iter().any(|place| meant.contains(place.listener.as_str()));
        self.pools.iter().map(|pool| pool.name.as_str()).filter(is_used).map(str::to_owned).collect()
    }

    /// From a file whose tables say what follows from each other. What could not be read gets its default;
    /// the file is refused anyway.
    pub(crate) fn read(root: &Fields) -> Config {
        Config {
            runtime: table(root, "runtime"),
            admin: root.table("admin").map_or_else(|| Some(Admin::blank()), admin::read),
            log: table(root, "log"),
            access_logs: root.named("access_log").map(<AccessLog as Part>::of).map(Arc::new).collect(),
            cache: table(root, "cache"),
            kernel: table(root, "kernel"),
            dns: table(root, "dns"),
            peers: table(root, "peers"),
            maps: root.named("map").map(<MapFile as Part>::of).map(Arc::new).collect(),
            listeners: root.named("listener").map(<Listener as Part>::of).map(Arc::new).collect(),
            pools: root.named("pool").map(<Pool as Part>::of).map(Arc::new).collect(),
            hidden: Hidden::default(),
        }
    }

    /// Converts it back to tables, with every key that has an effect.
    pub(crate) fn fields(&self) -> Fields {
        let mut root = Fields::new(&ROOT, Span::default());
        root.put("runtime", self.runtime.write());
        root.put("admin", Some(Value::Table(admin::write(self.admin.as_ref()))));
        root.put("log", self.log.write());
        if !self.access_logs.is_empty() {
            root.put("access_log", Some(named(&self.access_logs)));
        }
        root.put("cache", self.cache.write());
        root.put("kernel", self.kernel.write());
        root.put("dns", self.dns.write());
        root.put("peers", self.peers.write());
        if !self.maps.is_empty() {
            root.put("map", Some(named(&self.maps)));
        }
        root.put("listener", Some(named(&self.listeners)));
        root.put("pool", Some(named(&self.pools)));
        root
    }

    /// Reports mistakes that no value shows by itself: names that don't exist, addresses that clash, keys
    /// that contradict each other. Checks whatever could be read; a key that could not be read has been
    /// reported and is not mentioned again.
    pub(crate) fn check(&self, root: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
        let is_empty = root.map("listener").is_empty() && !root.is_bad("listener");
        if is_empty && !root.meant.contains(&"listener") {
            let hint = "expected at least `[listener.web]` with `bind` and `pool`, and a `[pool.NAME]` with `backends`";
            findings.error(root.at("listener"), "no listener is defined", hint);
        }
        let is_bad = root.is_bad("admin") || root.table("admin").is_some_and(|admin| admin.is_bad("bind"));
        let admin = self.admin.as_ref().and_then(|admin| admin.bind.inet()).filter(|_| !is_bad);
        if let Some(admin) = root.table("admin") {
            admin::check(admin, findings);
        }
        if let Some(fields) = root.table("dns") {
            dns::check(&self.dns, &self.pools, fields, findings);
        }
        if let (Some(peers), Some(fields)) = (&self.peers, root.table("peers")) {
            peers::check(peers, fields, findings);
        }
        listener::binds::check(root, &self.listeners, admin, findings);
        listener::check(root, &self.listeners, findings);
        fallback::check(root, findings);
        split::check(root, findings);
        mirror::check(root, findings);
        buffer::check(root, findings);
        map::check(root, findings);
        log::check::check(root, findings);
        pool::check(root, uses, &self.pools, findings);
    }
}

fn table<T: Setting>(root: &Fields, name: &str) -> T {
    T::read(root.value(name))
}

fn named<T: Section>(tables: &[Arc<T>]) -> Value {
    let entry = |table: &Arc<T>| {
        let fields = table.fields();
        KeyValue::new(fields.name.clone(), Span::default(), Span::default(), Value::Table(fields))
    };
    Value::Map(tables.iter().map(entry).collect())
}
