//! Where the process is in its life, and how it ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_io::clock;
use weir_proxy::access_log::Missing;
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::plane::Leaving;

use super::Control;
use crate::carried;
use crate::events::What;
use crate::timestamp::Timestamp;
use crate::token_keys;
use crate::upgrade::{self, Passed, Purpose};

/// Where the process is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Serving.
    Serving,
    /// No longer accepting; what runs may end.
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
    /// Stops accepting, waits for running work at most `runtime.drain`, and gives the number of sessions that
    /// were cut off.
    ///
    /// The service manager is not told that the service stops where another process serves on, since it does
    /// not.
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
        // Whoever comes after must not wait for what nobody here will serve.
        self.orders().stop();
        if succeeded {
            self.kernel.leave();
            return self.proxy.drain(limit, leaving).await;
        }
        let (cut_off, flows) = tokio::join!(self.proxy.drain(limit, leaving), self.kernel.drain(limit));
        cut_off + flows
    }

    /// Client connections and flows that are open now, on all planes.
    pub fn sessions(&self) -> u64 {
        self.proxy.sessions() + self.kernel.open_flows()
    }

    /// Ends the worker threads; what they still hold is cut off.
    pub fn stop(self) {
        self.proxy.stop();
    }

    /// Duplicates of every listening socket, for a new process.
    pub async fn listening_sockets(&self) -> std::io::Result<Vec<Passed>> {
        let sockets = self.proxy.listening_sockets().await?;
        Ok(sockets
            .into_iter()
            .map(|(endpoint, socket)| Passed { purpose: Purpose::Listener(endpoint), socket })
            .collect())
    }

    /// What a new process needs of QUIC: sockets, and a line among what is known.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn quic_for_successor(&self) -> std::io::Result<(Vec<Passed>, Option<String>)> {
        let speaks_h3 = |listener: &std::sync::Arc<weir_state::Listener>| {
            listener.config.http().versions.contains(&weir_config::HttpVersion::H3)
        };
        if !self.snapshot().listeners.iter().any(speaks_h3) {
            return Ok((Vec::new(), None));
        }
        Ok(upgrade::pass_quic(self.proxy.hand_over_quic()?))
    }

    /// What a new process needs of the kernel plane.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn kernel_for_successor(&self) -> std::io::Result<Option<Passed>> {
        let held = self.kernel.hand_over()?;
        Ok(held.map(|socket| Passed { purpose: Purpose::KernelPlane, socket }))
    }

    /// The new process did not come up: what was prepared for it is undone.
    pub fn cancel_hand_over(&self) {
        self.proxy.cancel_hand_over();
        self.kernel.cancel_hand_over();
    }

    /// What is known about the backends, for a new process.
    pub fn carried_lines(&self) -> Vec<String> {
        let snapshot = self.snapshot();
        let mut lines = carried::lines(&snapshot, clock::now());
        lines.extend(snapshot.maintenance.lines().into_iter().map(|line| line + "\n"));
        lines.extend(self.publisher.tickets().lines());
        lines.extend(token_keys::lines(&snapshot, clock::now()));
        let names = |it: &Arc<weir_state::Listener>| {
            it.named.lines(&it.config.name, clock::now(), it.config.timeout.client_idle)
        };
        lines.extend(snapshot.listeners.iter().flat_map(names));
        lines
    }

    /// Opens the log file anew.
    pub fn reopen_logs(&self) {
        tracing::info!("reopening the access log");
        self.access_log.reopen();
    }

    /// Access-log lines that the target did not take.
    pub fn lost_log_lines(&self) -> u64 {
        self.access_log.lost_lines()
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

    /// Where the process is in its life.
    pub fn phase(&self) -> Phase {
        if self.phase.load(Ordering::Relaxed) == Phase::Serving as u8 {
            Phase::Serving
        } else {
            Phase::Draining
        }
    }

    /// When the process started.
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// For how long the process has been serving.
    pub fn uptime(&self) -> Duration {
        clock::now().saturating_sub(self.started_at)
    }

    /// What the proxy plane serves, as it was compiled for its workers.
    pub fn compiled(&self) -> Arc<CompiledSnapshot> {
        self.proxy.compiled().expect("the control side is there once the first snapshot is served")
    }
}
