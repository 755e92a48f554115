//! The control side as a whole: everything that changes what is in force goes through here.
//!
//! There is one file for each task: [`apply`] puts the config file in force; [`change`] makes operators'
//! changes to single backends, [`maintenance`] to parts of the service, [`uploads`] to certificates and
//! [`map_lines`] to maps; [`roster`] makes the changes for watched clusters and [`members`] for names;
//! [`shared_keys`] watches files of ticket keys, and [`interfaces`] the interfaces that listeners are bound
//! to; [`house`] handles what is due by time and what workers report, and [`life`] ends the process.

mod apply;
mod change;
mod house;
mod interfaces;
mod life;
mod maintenance;
mod map_lines;
mod members;
mod rates;
mod roster;
mod shared_keys;
mod uploads;
mod validity;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{RwLock, mpsc};
use weir_config::Config;
use weir_io::clock;
use weir_l4::lock::DirectoryLock;
use weir_proxy::access_log::AccessLog;
use weir_proxy::events;
use weir_proxy::plane::ProxyPlane;
use weir_state::Snapshot;
use weir_state::plane::Plane;

use crate::acme::Orders;
use crate::carried::Carried;
use crate::cluster::watch::Watch;
use crate::dns::{Moved, Names};
use crate::events::{Bus, What};
use crate::health::Board;
use crate::kernel::KernelPlane;
use crate::maps;
use crate::notify::Notifier;
use crate::peers::Sharing;
use crate::publish::{Followers, InForce, Planes, PublishError, Publisher};
use crate::reload::{ReloadLedger, Reread, Source};
use crate::tasks::{keep_on, spawn_hearing};
use crate::timestamp::Timestamp;
use crate::token_keys::Fetches;
use crate::upgrade::ProcessBefore;

pub use crate::maps::MapLineError;
pub use change::ChangeError;
pub use life::Phase;
pub use uploads::UploadError;

/// What the control side is started with.
pub struct Start {
    /// Where the config came from.
    pub source: Source,
    /// The config, checked.
    pub config: Config,
    /// Number of worker threads from the command line, which overrides every config, now and at reloads;
    /// `None` leaves it to the config.
    pub workers: Option<usize>,
    /// Running workers that serve nothing yet.
    pub plane: ProxyPlane,
    /// What the workers report.
    pub reports: mpsc::UnboundedReceiver<events::Event>,
    /// The access log, reconfigured at each reload.
    pub access_log: AccessLog,
    /// The files of the admin API, read again at each reload; `None` without an admin API.
    pub admin_files: Option<Arc<dyn Reread>>,
    /// What an older process knew about the backends.
    pub carried: Carried,
    /// What an older process hands over of its kernel plane.
    pub kernel: Option<DirectoryLock>,
    /// The socket where an older process listened to other Weirs.
    pub peers: Option<(SocketAddr, OwnedFd)>,
    /// Called with the log level at each reload.
    pub on_level: Box<dyn Fn(weir_config::Level) + Send + Sync>,
    /// The connection to the service manager.
    pub notifier: Notifier,
}

/// The current state, and the means to change it.
pub struct Control {
    publisher: Publisher,
    proxy: Arc<ProxyPlane>,
    kernel: Arc<KernelPlane>,
    followers: Arc<Followers>,
    bus: Arc<Bus>,
    ledger: Mutex<ReloadLedger>,
    /// The last failure of each backend that passive health ejected, by pool and address.
    ejections: Mutex<BTreeMap<(String, String), String>>,
    /// What the last look at interfaces found.
    interfaces: Mutex<interfaces::States>,
    /// Allows one reload at a time; the next one waits and then reads the file again.
    reloading: tokio::sync::Mutex<()>,
    /// Held shared by changes for operators, and exclusively by an upgrade before it reads what it hands
    /// over: the new process would not know about changes made after that.
    changing: Arc<RwLock<()>>,
    source: Source,
    /// Digest of the files for TLS when the config in force was read.
    files: Mutex<Option<[u8; 32]>>,
    admin_files: Option<Arc<dyn Reread>>,
    workers: Option<usize>,
    access_log: AccessLog,
    on_level: Box<dyn Fn(weir_config::Level) + Send + Sync>,
    notifier: Notifier,
    phase: AtomicU8,
    /// Set as long as it is not known to have ended.
    process_before: Mutex<Option<ProcessBefore>>,
    started: Timestamp,
    started_at: Duration,
}

impl Control {
    /// Puts the first config in force and starts probing and resolving. Must be called on the control
    /// runtime.
    pub async fn start(mut start: Start) -> Result<Arc<Control>, PublishError> {
        start.config.runtime.workers = start.workers.or(start.config.runtime.workers);
        let config = Arc::new(start.config);
        let files = Mutex::new(weir_tls::fingerprint(&config));
        let bus = Arc::new(Bus::default());
        let (moved, in_force) = (Arc::new(Moved::default()), InForce::default());
        let (kernel_reports, of_kernel) = mpsc::unbounded_channel();
        let (board, fallen) = Board::new(bus.clone(), in_force.clone(), kernel_reports.clone());
        let board = Arc::new(board);
        let (watch, roster) = Watch::new(bus.clone(), in_force.clone(), board.clone());
        let (names, answered) = Names::new(bus.clone(), moved.clone());
        let (orders, token_keys) = (Orders::new(bus.clone()), Fetches::new(bus.clone()));
        let proxy = Arc::new(start.plane);
        let served = proxy.clone();
        let sharing = Sharing::new(Box::new(move || served.compiled()), start.peers);
        let followers = Arc::new(Followers { names, board, watch, orders, token_keys, sharing });
        let kernel = Arc::new(KernelPlane::new(bus.clone(), kernel_reports, start.kernel));
        followers.board.ask_by(kernel.vip_probes());
        let others = vec![proxy.clone() as Arc<dyn Plane>];
        // One copy of each counter for every worker, and one for the kernel plane's thread.
        let (workers, planes) = (proxy.workers() + 1, Planes { kernel: kernel.clone(), others });
        let publisher =
            Publisher::start(planes, workers, config, &start.carried, followers.clone(), in_force).await?;
        let control = Arc::new(Control {
            followers,
            bus,
            ledger: Mutex::default(),
            ejections: Mutex::default(),
            interfaces: Mutex::default(),
            reloading: tokio::sync::Mutex::default(),
            changing: Arc::default(),
            source: start.source,
            files,
            admin_files: start.admin_files,
            workers: start.workers,
            access_log: start.access_log,
            on_level: start.on_level,
            notifier: start.notifier,
            phase: AtomicU8::new(Phase::Serving as u8),
            process_before: Mutex::default(),
            started: Timestamp::now(),
            started_at: clock::now(),
            publisher,
            proxy,
            kernel,
        });
        control.bus.tell(What::Process { phase: "started", detail: control.summary() });
        let reports = house::Reports { of_workers: start.reports, of_kernel };
        let of = control.clone();
        spawn_hearing("house keeping", reports, move |heard| house::keep(of.clone(), heard, moved.clone()));
        let of = control.clone();
        spawn_hearing("roster", roster, move |heard| roster::keep(of.clone(), heard));
        let of = control.proxy.clone();
        spawn_hearing("sessions of backends that went down", fallen, move |heard| {
            house::end_sessions(of.clone(), heard)
        });
        let of = control.clone();
        spawn_hearing("members of names", answered, move |heard| members::keep(of.clone(), heard));
        let (in_force, bus) = (control.publisher.in_force(), control.bus.clone());
        tokio::spawn(keep_on("maps".to_owned(), move || maps::keep(in_force.clone(), bus.clone())));
        let of = control.clone();
        tokio::spawn(keep_on("shared ticket keys".to_owned(), move || shared_keys::keep(of.clone())));
        let of = control.clone();
        tokio::spawn(keep_on("interfaces".to_owned(), move || interfaces::keep(of.clone())));
        let of = control.clone();
        tokio::spawn(keep_on("validity of certificates".to_owned(), move || validity::keep(of.clone())));
        Ok(control)
    }

    /// The snapshot in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.publisher.snapshot()
    }

    /// Where the config came from.
    pub fn source_name(&self) -> String {
        self.source.full_name()
    }

    /// The proxy plane.
    pub fn proxy(&self) -> &ProxyPlane {
        &self.proxy
    }

    /// The kernel plane.
    pub fn kernel(&self) -> &KernelPlane {
        &self.kernel
    }

    /// Events.
    pub fn bus(&self) -> &Bus {
        &self.bus
    }

    /// The connection to the service manager.
    pub fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// The results of probes.
    pub fn board(&self) -> &Board {
        &self.followers.board
    }

    /// Roles of servers that replicate from each other.
    pub fn watch(&self) -> &Watch {
        &self.followers.watch
    }

    /// Certificates to order.
    pub fn orders(&self) -> &Orders {
        &self.followers.orders
    }

    /// Rate limits that are counted together with other Weirs.
    pub fn sharing(&self) -> &Sharing {
        &self.followers.sharing
    }

    /// The addresses of host names.
    pub fn names(&self) -> &Names {
        &self.followers.names
    }
}
