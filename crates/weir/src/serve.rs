//! The life of a serving process: workers, control side, admin API, signals, drain.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{OwnedRwLockWriteGuard, mpsc, watch};
use tokio::task::JoinHandle;
use weir_admin::server::{Admin, WhenTaken};
use weir_config::{AdminBind, Checked, Config};
use weir_control::blocking::blocking;
use weir_control::control::{Control, Start};
use weir_control::events::What;
use weir_control::notify::Notifier;
use weir_control::publish::PublishError;
use weir_control::reload::{Reread, Source};
use weir_control::this_host;
use weir_control::upgrade::{self, Handoff, Passed, Program, Purpose, Successor};
use weir_proxy::access_log::AccessLog;
use weir_proxy::plane::{Leaving, Options, ProxyPlane};

use crate::exit::Exit;
use crate::{limits, log};

/// Time to write the last lines of the access log.
const LOG_FLUSH: Duration = Duration::from_secs(2);
/// Process number of a PID namespace's init, whose end ends all others (pid_namespaces(7)).
const FIRST_PROCESS: u32 = 1;
/// Time to write the last lines of the program's own log.
const OWN_LOG_FLUSH: Duration = Duration::from_secs(1);

/// What to serve.
pub struct Plan {
    /// Where the config comes from, now and at a reload.
    pub source: Source,
    /// Worker threads; overrides the config.
    pub workers: Option<usize>,
    /// Whether USR2 can start this program again with the same arguments.
    pub upgradable: bool,
    /// What to do if the admin API's address is taken.
    pub admin_taken: WhenTaken,
    /// Called once all listeners are being served.
    pub on_ready: Box<dyn FnOnce()>,
}

impl Plan {
    /// The usual plan, which overrides nothing.
    pub fn of(source: Source) -> Plan {
        Plan {
            source,
            workers: None,
            upgradable: true,
            admin_taken: WhenTaken::Refuse,
            on_ready: Box::new(|| ()),
        }
    }
}

/// Serves until a signal ends the process.
pub fn serve(plan: Plan) -> Result<Exit, Exit> {
    let checked = plan.source.read_telling(|waits| tell!("weir: {waits}"));
    let checked = checked.map_err(|error| Exit::refusing(&error))?;
    let (threshold, lines) = log::start(checked.config.log.level)
        .map_err(|error| Exit::Failed.saying(format!("the log's thread could not be started: {error}")))?;
    let ended = serve_checked(plan, checked, threshold);
    lines.finish(OWN_LOG_FLUSH);
    ended
}

fn serve_checked(plan: Plan, checked: Checked, threshold: log::Threshold) -> Result<Exit, Exit> {
    limits::raise_descriptors();
    limits::grow_descriptor_table();
    limits::refuse_huge_pages();
    for warning in &checked.warnings.problems {
        tracing::warn!("{warning}");
    }
    for doubt in this_host::short_of_ports(&checked.config) {
        tracing::warn!("{doubt}");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| {
        tracing::error!(%error, "the control thread could not be started");
        Exit::Failed
    })?;
    let ended = runtime.block_on(async move {
        let process = start(plan, checked.config, threshold).await?;
        Ok::<_, StartError>(process.live().await)
    });
    // Ends all tasks, so that the returned handle is the last one. A resolver thread that hangs is not waited
    // for.
    runtime.shutdown_background();
    let (exit, control, access_log) = ended.map_err(|StartError { exit, why }| {
        tracing::error!("{why}");
        exit
    })?;
    if let Some(control) = Arc::into_inner(control) {
        control.notifier().finish(OWN_LOG_FLUSH);
        control.stop();
    }
    if !access_log.finish(LOG_FLUSH) {
        tracing::warn!("the last lines of the access log were not written within {LOG_FLUSH:?}");
    }
    Ok(exit)
}

/// A process that serves.
struct Process {
    control: Arc<Control>,
    access_log: AccessLog,
    admin: Option<JoinHandle<()>>,
    /// Tells the admin API that another process answers from now on.
    leave: watch::Sender<bool>,
    /// The admin API's socket. Its file is removed by the process that ends the service, not by one that
    /// hands it over.
    admin_socket: Option<Passed>,
    signals: Signals,
    program: Program,
    upgradable: bool,
    /// Held once another process serves, because changes made here would have no effect.
    held: Option<OwnedRwLockWriteGuard<()>>,
}

struct Signals {
    hang_up: Signal,
    interrupt: Signal,
    terminate: Signal,
    user_1: Signal,
    user_2: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        // With a handler, exceeding a limit on the size of files (`LimitFSIZE=`) makes a write fail and does
        // not kill the process.
        drop(signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw()))?);
        Ok(Signals {
            hang_up: signal(SignalKind::hangup())?,
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            user_1: signal(SignalKind::user_defined1())?,
            user_2: signal(SignalKind::user_defined2())?,
        })
    }
}

/// Why serving could not start.
struct StartError {
    exit: Exit,
    why: String,
}

impl From<String> for StartError {
    fn from(why: String) -> StartError {
        StartError { exit: Exit::Failed, why }
    }
}

impl From<PublishError> for StartError {
    fn from(error: PublishError) -> StartError {
        // Files have changed since they were checked, and would be refused again.
        let exit = if matches!(error, PublishError::Tls(_)) { Exit::Refused } else { Exit::Failed };
        StartError { exit, why: error.to_string() }
    }
}

async fn start(plan: Plan, config: Config, threshold: log::Threshold) -> Result<Process, StartError> {
    // This comes first: a signal that arrives while sockets are being opened must not kill the process.
    let signals = Signals::listen().map_err(|error| format!("signals can't be received: {error}"))?;
    let program = Program::of_this_process();
    let mut handoff = Handoff::from_environment()
        .map_err(|error| format!("the old process's sockets did not come: {error}"))?;
    let admin = config.admin.clone();
    let given = handoff.as_mut().map(|handoff| std::mem::take(&mut handoff.given)).unwrap_or_default();
    let is_ours = |(bind, _): &(AdminBind, _)| admin.as_ref().is_some_and(|admin| admin.bind == *bind);
    // The previous process leaves the socket's file to us, and we have no use for it.
    let left_over = given.admin.as_ref().filter(|it| !is_ours(it)).and_then(|(_, it)| it.file.clone());
    let inherited_admin = given.admin.filter(is_ours).map(|(_, listening)| listening);
    let mut admin = admin
        .map(|admin| {
            Admin::bind(&admin, inherited_admin, plan.admin_taken).map(|opened| (admin.bind, opened))
        })
        .transpose()?;

    let access_log = AccessLog::start(&config.log, &config.access_logs)
        .map_err(|error| format!("the access log can't be opened: {error}"))?;
    let (events, reports) = mpsc::unbounded_channel();
    let workers = plan.workers.or(config.runtime.workers).unwrap_or_else(limits::cpu_count);
    let plane = ProxyPlane::start(Options {
        workers,
        // With fewer workers than CPUs the kernel places them better than a fixed choice would: all that are
        // granted a share of this machine would choose the same ones.
        pin: workers == limits::allowed_cpu_count(),
        events,
        access_log: access_log.clone(),
        quic: given.quic,
        sockets: given.listeners,
    });
    let plane = plane.map_err(|error| format!("the worker threads could not be started: {error}"))?;
    let control = Control::start(Start {
        source: plan.source,
        config,
        workers: plan.workers,
        plane,
        reports,
        access_log: access_log.clone(),
        admin_files: admin.as_ref().map(|(_, admin)| admin.files() as Arc<dyn Reread>),
        carried: given.carried,
        kernel: given.kernel,
        peers: given.peers,
        on_level: Box::new(move |level| threshold.set(level)),
        notifier: Notifier::from_environment(),
    });
    let control = control.await?;
    let admin_socket = admin.as_mut().map(|(bind, admin)| pass_admin(bind, admin)).transpose()?;
    announce(&control, admin.as_ref().map(|(_, admin)| admin));
    let (leave, leaving) = watch::channel(false);
    let admin = admin.map(|(_, admin)| tokio::spawn(admin.serve(control.clone(), leaving)));
    if let Some(handoff) = handoff {
        let before = handoff.ready(&control.proxy().unused_endpoints());
        control.follows(before.map_err(|error| format!("the old process is gone: {error}"))?);
        if let Some(left_over) = left_over {
            left_over.remove();
        }
        tracing::info!("took over from the process before");
    }
    control.notifier().ready(&control.summary());
    watch(&control);
    (plan.on_ready)();
    Ok(Process {
        control,
        access_log,
        admin,
        leave,
        admin_socket,
        signals,
        program,
        upgradable: plan.upgradable,
        held: None,
    })
}

/// Sets who may connect to the admin API, as the config says, and returns its socket for a later process.
fn pass_admin(bind: &AdminBind, admin: &mut Admin) -> Result<Passed, String> {
    admin.allow()?;
    let listening =
        admin.listening().map_err(|error| format!("the admin socket can't be duplicated: {error}"))?;
    Ok(Passed::listening(Purpose::Admin(bind.clone()), listening))
}

/// Logs what is served at which addresses.
fn announce(control: &Control, admin: Option<&Admin>) {
    let snapshot = control.snapshot();
    for listener in &snapshot.listeners {
        let protocol = listener.config.protocol().word();
        let interfaces: Vec<String> = listener.config.interfaces.iter().map(ToString::to_string).collect();
        let interface = (!interfaces.is_empty()).then(|| interfaces.join(","));
        for bind in &listener.config.bind {
            tracing::info!(
                listener = listener.config.name,
                protocol,
                %bind,
                interface = interface.as_deref(),
                "listening"
            );
        }
    }
    if let Some(address) = admin.map(Admin::place) {
        tracing::info!(%address, "admin API and status page");
    }
    tracing::info!(
        workers = control.proxy().workers(),
        config = control.source_name(),
        "serving: {}",
        control.summary()
    );
}

/// Tells the service manager's watchdog that the control thread works, as often as the manager requires.
fn watch(control: &Arc<Control>) {
    let Some(period) = control.notifier().watchdog() else { return };
    let control = control.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(period);
        loop {
            ticks.tick().await;
            control.notifier().alive();
        }
    });
}

/// The result of starting a new process, and the guard that keeps operators from changing anything in this
/// one.
type Upgrade = Pin<Box<dyn Future<Output = io::Result<(Successor, OwnedRwLockWriteGuard<()>)>>>>;

/// Why serving ends.
enum End {
    Signal,
    /// Another process serves.
    Upgraded(Successor),
}

impl Process {
    /// Serves until told to end, then drains.
    async fn live(mut self) -> (Exit, Arc<Control>, AccessLog) {
        let end = self.serve().await;
        let _ = self.leave.send(matches!(end, End::Upgraded(_)));
        let leaving = match &end {
            End::Signal => Leaving::ToNobody,
            End::Upgraded(successor) => Leaving::ToSuccessorBut(&successor.unused),
        };
        let exit = self.drain(leaving).await;
        if matches!(end, End::Upgraded(_))
            && let Some(admin) = self.admin.take()
        {
            // It ends by itself after it has answered its open requests.
            let _ = admin.await;
        }
        if let (End::Signal, Some(Passed { file: Some(file), .. })) = (end, &self.admin_socket) {
            file.remove();
        }
        (exit, self.control, self.access_log)
    }

    /// Lets running work end, or ends at once on SIGINT.
    async fn drain(&mut self, leaving: Leaving<'_>) -> Exit {
        let control = self.control.clone();
        let draining = control.drain(leaving);
        tokio::pin!(draining);
        loop {
            tokio::select! {
                cut_off = &mut draining => {
                    match cut_off {
                        0 => tracing::info!("drained"),
                        cut_off => tracing::warn!(cut_off, "the drain time is over; the rest was cut off"),
                    }
                    return Exit::Done;
                }
                _ = self.signals.interrupt.recv() => {
                    tracing::warn!("interrupted while draining: ending at once");
                    return Exit::Failed;
                }
                _ = self.signals.user_1.recv() => self.control.reopen_logs(),
                _ = self.signals.terminate.recv() => tracing::info!("already draining"),
                _ = self.signals.hang_up.recv() => tracing::warn!("no reload while draining"),
                _ = self.signals.user_2.recv() => tracing::warn!("no upgrade while draining"),
            }
        }
    }

    async fn serve(&mut self) -> End {
        let mut upgrade: Option<Upgrade> = None;
        let (mut told_to_end, mut told_to_reload) = (false, false);
        loop {
            tokio::select! {
                _ = self.signals.hang_up.recv() => match upgrade {
                    // The new process may have read its config before the file was changed.
                    Some(_) => {
                        tracing::warn!("told to reload during an upgrade: once the new process serves");
                        told_to_reload = true;
                    }
                    None => self.reload(None),
                },
                _ = self.signals.user_1.recv() => self.control.reopen_logs(),
                _ = self.signals.user_2.recv() => match upgrade {
                    Some(_) => tracing::warn!("an upgrade is under way already"),
                    None => upgrade = self.begin_upgrade(),
                },
                ended = async { upgrade.as_mut().expect("guarded by is_some").await }, if upgrade.is_some() => {
                    upgrade = None;
                    let successor = self.finish_upgrade(ended);
                    if std::mem::take(&mut told_to_reload) {
                        self.reload(successor.as_ref());
                    }
                    if let Some(successor) = successor {
                        // A service manager wants to end the service; a person wants to end the old process.
                        if told_to_end && self.control.notifier().has_manager() {
                            tracing::warn!("the service manager ends the service: the new process is told to end too");
                            tell_process(&successor, rustix::process::Signal::TERM);
                        }
                        return End::Upgraded(successor);
                    }
                    if told_to_end {
                        return End::Signal;
                    }
                }
                _ = self.signals.interrupt.recv() => return End::Signal,
                // Until the new process serves, it depends on this one: ending now would end both.
                _ = self.signals.terminate.recv() => {
                    if upgrade.is_none() || told_to_end {
                        return End::Signal;
                    }
                    tracing::warn!("told to end during an upgrade: once the new process serves; a second TERM ends both");
                    told_to_end = true;
                }
            }
        }
    }

    /// Reloads this process, or has the process that has taken over do so.
    fn reload(&self, successor: Option<&Successor>) {
        let Some(successor) = successor else {
            let (control, change) = (self.control.clone(), self.control.begin_change());
            tokio::spawn(async move {
                control.reload("signal").await;
                drop(change);
            });
            return;
        };
        tell_process(successor, rustix::process::Signal::HUP);
    }

    /// Starts the new process beside this one. Runs on a thread of its own, because it takes as long as the
    /// new process needs to start serving.
    fn begin_upgrade(&self) -> Option<Upgrade> {
        if !self.upgradable {
            tracing::warn!("upgrade refused: `weir demo` holds its backends itself and can't hand them over");
            return None;
        }
        if std::process::id() == FIRST_PROCESS {
            tracing::warn!(
                "upgrade refused: this is the first process (PID 1) of its container, and the new one would end with it; \
                 start another container beside this one, or run Weir under an init (`docker run --init`)"
            );
            return None;
        }
        let (control, program) = (self.control.clone(), self.program.clone());
        let admin = self.admin_socket.as_ref();
        let admin = admin.map(|it| (it.purpose.clone(), it.socket.try_clone(), it.file.clone()));
        Some(Box::pin(async move {
            let held = control.hold_changes().await?;
            let (mut sockets, known) = control.for_successor().await?;
            if let Some((purpose, Ok(socket), file)) = admin {
                sockets.push(Passed { purpose, socket, file });
            }
            tracing::info!(sockets = sockets.len(), "upgrading: starting the new process");
            control.bus().tell(What::Process { phase: "upgrading", detail: String::new() });
            let successor = blocking(move || upgrade::hand_over(&sockets, &known, &program)).await??;
            Ok((successor, held))
        }))
    }

    /// Takes the new process as the successor if it serves.
    fn finish_upgrade(
        &mut self,
        ended: io::Result<(Successor, OwnedRwLockWriteGuard<()>)>,
    ) -> Option<Successor> {
        match ended {
            Ok((successor, held)) => {
                self.held = Some(held);
                let pid = successor.pid;
                tracing::info!(pid, "upgraded: the new process serves, this one drains");
                self.tell("upgraded", format!("process {pid} serves"));
                self.control.notifier().main_process(pid);
                Some(successor)
            }
            Err(error) => {
                tracing::error!(%error, "upgrade failed, this process serves on");
                self.control.cancel_hand_over();
                self.tell("upgrade_failed", error.to_string());
                None
            }
        }
    }

    fn tell(&self, phase: &'static str, detail: String) {
        self.control.bus().tell(What::Process { phase, detail });
    }
}

/// Sends a signal to the process that has taken over.
fn tell_process(successor: &Successor, signal: rustix::process::Signal) {
    let pid = i32::try_from(successor.pid).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(Err(error)) = pid.map(|pid| rustix::process::kill_process(pid, signal)) {
        tracing::error!(%error, ?signal, "the new process could not be told");
    }
}
