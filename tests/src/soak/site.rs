//! What the soak runs: Weir, its config in several variants, and what stands behind it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::backend::version_file;
use super::sql_servers::SqlServers;
use crate::dialogue::{Authority, Draws, NameServer, Weir, free_address, until};
use crate::storm::Process;
use crate::versions::{Behind, VersionedBackend};

/// The host of all requests.
pub(super) const HOST: &str = "soak.test";
/// The name that the name server answers for.
pub(super) const NAME: &str = "app.weir.test";
/// `runtime.drain` in seconds: longer than every conversation of the clients.
pub(super) const DRAIN_SECONDS: u64 = 15;
/// Certificates for [`HOST`] that are in use one after the other.
pub(super) const CERTIFICATES: usize = 4;
/// Requests a second, and at once, of the listener with a rate limit.
pub(super) const LIMIT: (u64, u64) = (2, 5);
/// Size of the file system that the access log and the files of buffered bodies are on.
const SMALL_DISK: &str = "8m";

/// Which of several configs is in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Variant {
    /// Whether pools have the third backend.
    third: bool,
    /// Whether there are a listener and a pool besides the others.
    pub(super) extra: bool,
    /// Whether connections go to the backend with the fewest.
    least: bool,
    /// Whether uploads are buffered.
    buffer: bool,
    /// Whether responses are compressed for clients that ask for it.
    compress: bool,
    /// Whether half of the plain GETs are copied to another pool.
    mirror: bool,
    /// Whether a second backend is asked beside one that takes its time.
    hedge: bool,
    /// Whether relayed connections are ended when their backend goes down.
    cut: bool,
    /// Whether reads of MySQL go to the primary as well.
    all_read: bool,
    /// Whether clients of MySQL may compress.
    pack: bool,
}

impl Variant {
    /// Another one than this.
    pub(super) fn next(self, draws: &mut Draws) -> Variant {
        loop {
            let mut draw = || draws.below(2) == 0;
            let next = Variant {
                third: draw(),
                extra: draw(),
                least: draw(),
                buffer: draw(),
                compress: draw(),
                mirror: draw(),
                hedge: draw(),
                cut: draw(),
                all_read: draw(),
                pack: draw(),
            };
            if next != self {
                return next;
            }
        }
    }

    /// Its config text.
    pub(super) fn config(self) -> String {
        let third = if self.third { ", \"@c\"" } else { "" };
        let balance = if self.least { "balance = \"least-connections\"" } else { "" };
        let buffer = if self.buffer {
            "buffer = { requests = \"64KiB\", requests_file = \"1MiB\", responses = \"64KiB\", responses_file = \"4MiB\" }"
        } else {
            ""
        };
        let compress = if self.compress { "compress = true" } else { "" };
        let mirror = if self.mirror { "mirror = { pool = \"modern\", share = 0.5 }" } else { "" };
        let hedge = if self.hedge { "retry = { hedge = { after = \"100ms\" } }" } else { "" };
        let cut = if self.cut { ", on_down = \"end-sessions\"" } else { "" };
        let reads = if self.all_read { "reads = \"all\"" } else { "" };
        let pack = if self.pack { "" } else { "compression = [\"uncompressed\"]" };
        let mut text = [BASE, SQL]
            .concat()
            .replace("THIRD", third)
            .replace("READS", reads)
            .replace("PACK", pack)
            .replace("BALANCE", balance)
            .replace("BUFFER", buffer)
            .replace("COMPRESS", compress)
            .replace("MIRROR", mirror)
            .replace("HEDGE", hedge)
            .replace("CUT", cut)
            .replace("HEALTH", HEALTH)
            .replace("TIMEOUT", TIMEOUT)
            .replace("DRAIN", &format!("{DRAIN_SECONDS}s"))
            .replace("LIMIT", &format!("{{ rate = \"{}/s\", burst = {} }}", LIMIT.0, LIMIT.1));
        if self.extra {
            text += &EXTRA.replace("HEALTH", HEALTH).replace("TIMEOUT", TIMEOUT);
        }
        text
    }
}

const HEALTH: &str = r#"health = { check = "http", interval = "1s", fast_interval = "200ms", timeout = "1s", rise = 1, fall = 3, passive = { errors = 3, eject = "500ms" } }
keep_alive = { idle = "3s" }"#;
/// Short, so that all that waits has waited long enough soon after the clients have left.
const TIMEOUT: &str = r#"timeout = { client_idle = "5s", header = "6s", handshake = "6s", connect = "1s", backend = "5s", client_body = "8s", stream = "10s", tunnel = "12s" }"#;

const BASE: &str = r#"
[runtime]
workers = 2
drain = "DRAIN"
buffer_directory = "@small/bodies"
[log]
access = "@small/access.log"
[access_log.judge]
target = "@dir/judge.log"
[cache]
memory = "16MiB"
[dns]
resolvers = ["@names"]
[admin]
bind = "@admin"

[listener.web]
bind = "@web"
pool = "app"
route_metrics = true
COMPRESS
TIMEOUT
[[listener.web.route]]
name = "plain"
path = "/r/*"
pool = "app"
MIRROR
[[listener.web.route]]
name = "cached"
path = "/c/*"
pool = "app"
cache = { ignore_query = true, stale_while_revalidate = "5s" }
[[listener.web.route]]
name = "named"
path = "/n/*"
rewrite = { prefix = "/" }
pool = "named"
[[listener.web.route]]
name = "buffered"
path = "/u/*"
rewrite = { prefix = "/" }
pool = "uploads"

[listener.secure]
bind = "@secure"
http = ["h1", "h2", "h3"]
pool = "app"
tls = { certificates = [{ cert = "@dir/site.pem", key = "@dir/site.key" }] }
COMPRESS
TIMEOUT
[[listener.secure.route]]
path = "/c/*"
pool = "app"
cache = { ignore_query = true }
[[listener.secure.route]]
path = "/m2/*"
rewrite = { prefix = "/" }
pool = "modern"
[[listener.secure.route]]
path = "/m3/*"
rewrite = { prefix = "/" }
pool = "quick"
[[listener.secure.route]]
path = "/u/*"
rewrite = { prefix = "/" }
pool = "uploads"

[listener.limited]
bind = "@limited"
pool = "app"
rate_limit = LIMIT
TIMEOUT

[listener.relay]
protocol = "tcp"
bind = "@relay"
pool = "raw"
timeout = { client_idle = "10s", connect = "1s" }

[listener.flow]
protocol = "udp"
bind = "@flow"
pool = "datagrams"
timeout = { client_idle = "3s" }

[pool.app]
backends = ["@a", "@b"THIRD]
BALANCE
HEDGE
HEALTH
[pool.uploads]
backends = ["@a", "@b"THIRD]
BUFFER
HEALTH
[pool.raw]
backends = ["@a", "@b"THIRD]
BALANCE
health = { check = "tcp", interval = "1s", fast_interval = "200ms", timeout = "1s", rise = 1, fall = 3CUT, passive = { errors = 3, eject = "500ms" } }
[pool.datagrams]
backends = ["@a", "@b"]
health = { check = "http", interval = "1s", fast_interval = "200ms", timeout = "1s", rise = 1, fall = 3 }
[pool.named]
backends = [{ address = "@named", resolve = "all" }]
HEALTH
[pool.modern]
backends = ["@modern"]
protocol = "h2"
health = "off"
keep_alive = { idle = "3s" }
tls = { ca = "@dir/ca.pem", server_name = "soak.test" }
[pool.quick]
backends = ["@quick"]
protocol = "h3"
# It has no TCP: whoever fell back to that would fail, for a minute.
fall_back_after = "off"
health = "off"
keep_alive = { idle = "3s" }
tls = { ca = "@dir/ca.pem", server_name = "soak.test" }
"#;

const SQL: &str = r#"
[listener.db]
protocol = "mysql"
bind = "@db"
access = "auto"
pool = "cluster"
tls = { certificates = [{ cert = "@dir/site.pem", key = "@dir/site.key" }] }
PACK
[listener.writes]
protocol = "mysql"
bind = "@writes"
access = "read-write"
pool = "cluster"
tls = { certificates = [{ cert = "@dir/site.pem", key = "@dir/site.key" }] }
PACK
[pool.cluster]
backends = ["@one", "@two"]
keep_alive = { idle = "3s" }
BALANCE
[pool.cluster.mysql]
topology = "replication"
user = "weir"
park = "60s"
READS
"#;

const EXTRA: &str = r#"
[listener.copies]
protocol = "mysql"
bind = "@copies"
access = "read-only"
pool = "cluster"
tls = { certificates = [{ cert = "@dir/site.pem", key = "@dir/site.key" }] }
[listener.extra]
bind = "@extra"
pool = "more"
TIMEOUT
[pool.more]
backends = ["@a", "@b"]
HEALTH
"#;

/// Weir and everything behind it; all of it ends when dropped.
pub(super) struct Site {
    pub(super) weir: Weir,
    /// Those of most pools, in the order of their names `a`, `b`, `c`.
    pub(super) backends: Vec<Process>,
    /// Those behind [`NAME`], which are left alone.
    named: Vec<Process>,
    versioned: [VersionedBackend; 2],
    pub(super) sql: SqlServers,
    pub(super) names: NameServer,
    pub(super) authority: Arc<Authority>,
    pub(super) ledger: PathBuf,
    program: PathBuf,
    mount: PathBuf,
    /// Whether the small disk is one; else it is a folder.
    pub(super) has_small_disk: bool,
}

impl Site {
    /// Starts all of it; `program --backend ADDRESS LEDGER` becomes a backend.
    pub(super) fn start(program: &Path) -> Site {
        let places: Vec<SocketAddr> = (0..3).map(|_| free_address()).collect();
        let number = places[0].port();
        let unique = format!("{}-{number}", std::process::id());
        let ledger = std::env::temp_dir().join(format!("weir-soak-{unique}.executed"));
        let _ = std::fs::remove_file(&ledger);
        std::fs::write(version_file(&ledger), "0").expect("written");
        let start = |at: SocketAddr| Process::start(program, at, &ledger);
        let backends: Vec<Process> = places.iter().copied().map(start).collect();
        let first = free_address();
        let named = [first, SocketAddr::from(([127, 0, 0, 2], first.port()))].map(start);
        let mut authority = Authority::new();
        for number in 0..CERTIFICATES {
            authority = authority.signs(&format!("site{number}"), &[HOST, "localhost"]);
        }
        std::fs::copy(authority.path("site0.pem"), authority.path("site.pem")).expect("copied");
        std::fs::copy(authority.path("site0.key"), authority.path("site.key")).expect("copied");
        let authority = Arc::new(authority);
        let versioned = [Behind::Http2Tls, Behind::Http3]
            .map(|behind| VersionedBackend::start(free_address(), behind, &authority, "site0"));
        let sql = SqlServers::start();
        let names = NameServer::start();
        names.says(NAME, &["1 A 127.0.0.1"]);
        let mount = std::env::temp_dir().join(format!("weir-soak-{unique}.disk"));
        std::fs::create_dir_all(mount.join("bodies")).expect("a folder");
        let mut setup = authority
            .setup(&Variant::default().config())
            .with("small", mount.display())
            .with("names", names.address())
            .with("named", format!("{NAME}:{}", first.port()))
            .with("modern", versioned[0].address())
            .with("quick", versioned[1].address())
            .with("extra", free_address())
            .with("copies", free_address())
            .with("one", sql.addresses()[0])
            .with("two", sql.addresses()[1]);
        for (name, address) in ["a", "b", "c"].iter().zip(&places) {
            setup = setup.with(name, address);
        }
        let has_small_disk = rustix::process::geteuid().is_root();
        let shown = mount.display();
        let script = format!(
            "mount -t tmpfs -o size={SMALL_DISK} none {shown} && mkdir {shown}/bodies && exec \"$@\""
        );
        if has_small_disk {
            setup =
                setup.under(&["unshare", "--mount", "--propagation", "private", "sh", "-c", &script, "sh"]);
        }
        let weir = setup.start();
        let site = Site {
            weir,
            backends,
            named: named.into(),
            versioned,
            sql,
            names,
            authority,
            ledger,
            program: program.to_owned(),
            mount,
            has_small_disk,
        };
        until("all backends to be up", || {
            let of_app = [("pool", "app")];
            let has = |role| site.weir.metric("weir_mysql_role", &[("role", role)]) == 1.0;
            let is_up = site.weir.metric("weir_backend_healthy", &of_app) >= 2.0;
            (is_up && has("primary") && has("secondary")).then_some(())
        });
        site
    }

    /// Starts a killed backend again.
    pub(super) fn revives(&mut self, number: usize) {
        let address = self.backends[number].address();
        self.backends[number] = Process::start(&self.program, address, &self.ledger);
    }

    /// A file of the small disk, as this process can open it: the disk is mounted for Weir alone.
    pub(super) fn on_small_disk(&self, file: &str) -> PathBuf {
        let path = self.mount.join(file);
        if !self.has_small_disk {
            return path;
        }
        let pid = self.weir.pids().last().copied().unwrap_or(0);
        PathBuf::from(format!("/proc/{pid}/root{}", path.display()))
    }

    /// All processes: of Weir, and of what stands behind it.
    pub(super) fn processes(&self) -> Vec<u32> {
        let backends = self.backends.iter().chain(&self.named).map(Process::pid);
        backends.chain(self.sql.pids()).chain(self.weir.pids()).collect()
    }

    /// All backends that configs may name.
    pub(super) fn backend_names(&self) -> Vec<String> {
        let own = self.backends.iter().chain(&self.named).map(|process| process.address().to_string());
        let versioned = self.versioned.iter().map(|backend| backend.address().to_string());
        let sql = self.sql.addresses().map(|address| address.to_string());
        own.chain(versioned).chain(sql).collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.ledger);
        let _ = std::fs::remove_file(version_file(&self.ledger));
        let _ = std::fs::remove_dir_all(&self.mount);
    }
}
