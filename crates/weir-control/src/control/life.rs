//! The life cycle of the process, and how it ends.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard};
use weir_io::clock;
use weir_proxy::access_log::Missing;
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::plane::Leaving;

use super::Control;
use crate::carried;
use crate::events::What;
use crate::lock;
use crate::timestamp::Timestamp;
use crate::token_keys;
use crate::told;
use crate::upgrade::{self, Passed, ProcessBefore, Purpose};

/// How long an upgrade waits for changes in progress.
const LONGEST_CHANGE: Duration = Duration::from_secs(60);

/// The phase of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Serving.
    Serving,
    /// No longer accepting; existing sessions may end.
    Draining,
}

impl Phase {
    /// The word in the API.
    pub fn word(self) -> &'static str {
        match self {
            Phase::Serving => "serving",
            Phase::Draining => "draining",
        }
    }
}

impl Control {
    /// Stops accepting, waits at most `runtime.drain` for work in progress, and returns the number of
    /// sessions that were cut off.
    ///
    /// If another process serves on, the service manager is not told that the service stops.
    pub async fn drain(&self, leaving: Leaving<'_>) -> u64 {
        let succeeded = matches!(leaving, Leaving::ToSuccessorBut(_));
        let limit = self.snapshot().config.runtime.drain;
        self.phase.store(Phase::Draining as u8, Ordering::Relaxed);
        let sessions = self.sessions();
        tracing::info!(sessions, ?limit, "draining");
        if !succeeded {
            self.notifier.stopping(&format!("draining {sessions} sessions, at most {limit:?}"));
        }
        self.bus.tell(What::Process { phase: "draining", detail: format!("{sessions} sessions") });
        // The next process must not wait for what this one will no longer do.
        self.orders().stop();
        if succeeded {
            self.kernel.leave();
            self.sharing().leave();
            let cut_off = self.proxy.drain(limit, leaving).await;
            self.sharing().settle().await;
            return cut_off;
        }
        let (cut_off, flows) = tokio::join!(self.proxy.drain(limit, leaving), self.kernel.drain(limit));
        self.sharing().settle().await;
        cut_off + flows
    }

    /// Client connections and flows that are open now, on all planes.
    pub fn sessions(&self) -> u64 {
        self.proxy.sessions() + self.kernel.open_flows()
    }

    /// Ends the worker threads; the sessions that are left are cut off.
    pub fn stop(self) {
        self.proxy.stop();
    }

    /// To be held while making a change for an operator. `None` during an upgrade, in which nothing may be
    /// changed.
    pub fn begin_change(&self) -> Option<OwnedRwLockReadGuard<()>> {
        self.changing.clone().try_read_owned().ok()
    }

    /// Waits for operators' changes in progress, and allows no others until this is dropped.
    ///
    /// # Errors
    /// A change takes too long.
    pub async fn hold_changes(&self) -> io::Result<OwnedRwLockWriteGuard<()>> {
        let held = tokio::time::timeout(LONGEST_CHANGE, self.changing.clone().write_owned()).await;
        let why =
            || format!("a change by the admin API, or a reload, has taken longer than {LONGEST_CHANGE:?}");
        held.map_err(|_| io::Error::new(io::ErrorKind::TimedOut, why()))
    }

    /// What a new process is given: sockets, and lines with this process's state. Nothing may be changed
    /// meanwhile ([`Control::hold_changes`]).
    ///
    /// # Errors
    /// The kernel has no descriptors left; says for what. [`Control::cancel_hand_over`] undoes what was
    /// prepared.
    pub async fn for_successor(&self) -> io::Result<(Vec<Passed>, Vec<String>)> {
        let failed = |what: &'static str| {
            move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"))
        };
        let sockets = self.proxy.listening_sockets().await;
        let sockets = sockets.map_err(failed("the listening sockets can't be duplicated"))?;
        let passed = |(endpoint, listening)| Passed::listening(Purpose::Listener(endpoint), listening);
        let mut sockets: Vec<Passed> = sockets.into_iter().map(passed).collect();
        let (lines, quic_keys) =
            self.quic_for_successor().map_err(failed("QUIC connections can't be kept"))?;
        sockets.extend(lines);
        let kernel = self.kernel.hand_over().map_err(failed("the kernel plane can't be handed over"))?;
        sockets.extend(kernel.map(|lock| Passed::of(Purpose::KernelPlane, lock)));
        let peers = self.sharing().for_successor();
        let peers = peers.map_err(failed("the socket for peers can't be duplicated"))?;
        sockets.extend(peers.map(|(bind, socket)| Passed::of(Purpose::Peers(bind), socket)));
        Ok((sockets, self.carried_lines().into_iter().chain(quic_keys).collect()))
    }

    /// What a new process needs for QUIC: sockets, and a line of state.
    fn quic_for_successor(&self) -> io::Result<(Vec<Passed>, Option<String>)> {
        let speaks_h3 = |listener: &Arc<weir_state::Listener>| {
            listener.config.http().versions.contains(&weir_config::HttpVersion::H3)
        };
        if !self.snapshot().listeners.iter().any(speaks_h3) {
            return Ok((Vec::new(), None));
        }
        Ok(upgrade::pass_quic(self.proxy.hand_over_quic()?))
    }

    /// Undoes what was prepared for a new process that failed to start.
    pub fn cancel_hand_over(&self) {
        self.proxy.cancel_hand_over();
        self.kernel.cancel_hand_over();
    }

    /// What is known about the backends, for a new process.
    fn carried_lines(&self) -> Vec<String> {
        let snapshot = self.snapshot();
        let mut lines = carried::lines(&snapshot, clock::now());
        lines.extend(snapshot.maintenance.lines().into_iter().map(|line| line + "\n"));
        lines.extend(self.publisher.tickets().lines());
        lines.extend(token_keys::lines(&snapshot, clock::now()));
        let names = |it: &Arc<weir_state::Listener>| {
            it.named.lines(&it.config.name, clock::now(), it.config.timeout.client_idle)
        };
        lines.extend(snapshot.listeners.iter().flat_map(names));
        lines.extend(told::lines(&snapshot));
        lines
    }

    /// Reopens the log files.
    pub fn reopen_logs(&self) {
        tracing::info!("reopening the access log");
        self.access_log.reopen();
    }

    /// Access-log lines that the target did not accept.
    pub fn lost_log_lines(&self) -> u64 {
        self.access_log.lost_lines()
    }

    /// The name of each access log and why its lines are held in memory; `None` if they are not.
    pub fn waiting_logs(&self) -> Vec<(String, Option<String>)> {
        self.access_log.waiting()
    }

    /// The logs whose lines are held in memory, each as a message for people.
    pub fn waiting_log_words(&self) -> Vec<String> {
        let words = |(name, why): (String, Option<String>)| why.map(|why| format!("`{name}` waits: {why}"));
        self.waiting_logs().into_iter().filter_map(words).collect()
    }

    /// The access logs by name, and how many lines are not in them, and why.
    pub fn missing_log_lines(&self) -> Vec<(String, [Missing; 5])> {
        self.access_log.missing()
    }

    /// One line for `systemctl status` and the log.
    pub fn summary(&self) -> String {
        let snapshot = self.snapshot();
        let last = self.last_reload();
        let reload = match last {
            Some(last) if !last.result.is_good() => format!(", last reload {}", last.result.word()),
            _ => String::new(),
        };
        let (listeners, pools) = (snapshot.listeners.len(), snapshot.pools.len());
        format!("generation {}, listeners {listeners}, pools {pools}{reload}", snapshot.generation)
    }

    /// The phase of the process.
    pub fn phase(&self) -> Phase {
        if self.phase.load(Ordering::Relaxed) == Phase::Serving as u8 {
            Phase::Serving
        } else {
            Phase::Draining
        }
    }

    /// Records that this process has taken over from another one.
    pub fn follows(&self, before: ProcessBefore) {
        *lock(&self.process_before) = Some(before);
    }

    /// Whether the process before an upgrade is still serving its sessions.
    pub fn has_process_before(&self) -> bool {
        let mut before = lock(&self.process_before);
        *before = before.take().filter(ProcessBefore::is_there);
        before.is_some()
    }

    /// When the process started.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// How long the process has been running.
    pub fn uptime(&self) -> Duration {
        clock::now().saturating_sub(self.started_at)
    }

    /// What the proxy plane serves, compiled for its workers.
    pub fn compiled(&self) -> Arc<CompiledSnapshot> {
        self.proxy.compiled().expect("the control side is there once the first snapshot is served")
    }
}
