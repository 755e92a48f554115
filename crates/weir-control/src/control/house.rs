//! What time and the workers' reports ask for, until the process ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use weir_proxy::clock;
use weir_proxy::plane;
use weir_proxy::snapshot::Pool;

use super::Control;
use crate::events::What;

/// Longest wait between two looks at what time alone changes: steps of slow start that began in between.
const HOUSE_KEEPING: Duration = Duration::from_millis(250);

/// Does what time and the workers' reports ask for, until the process ends.
pub(super) async fn keep(
    control: Arc<Control>,
    mut reports: mpsc::UnboundedReceiver<plane::Event>,
    resolved: Arc<Notify>,
) {
    loop {
        let now = clock::now();
        let snapshot = control.snapshot();
        let mut next = now + HOUSE_KEEPING;
        for pool in &snapshot.pools {
            if pool.balance.next_change(now).is_some_and(|at| at <= now) {
                refresh(pool, now);
            }
            next = pool.balance.next_change(now).map_or(next, |at| next.min(at));
        }
        tokio::select! {
            report = reports.recv() => match report {
                Some(report) => control.take_report(report),
                None => return,
            },
            () = resolved.notified() => control.board.adopt(&control.snapshot()),
            // Never at once: a moment that stays due would make this loop spin.
            () = tokio::time::sleep((next - now).max(Duration::from_millis(1))) => {}
        }
    }
}

fn refresh(pool: &Pool, now: Duration) {
    for index in pool.balance.refresh(now).readmitted {
        if let Some(backend) = pool.backends.get(index) {
            tracing::info!(pool = pool.config.name, backend = backend.address, "ejection is over");
        }
    }
}

impl Control {
    fn take_report(&self, report: plane::Event) {
        match report {
            plane::Event::Ejected { pool: name, backend: address, until } => {
                let now = clock::now();
                let seconds = until.saturating_sub(now).as_secs_f64();
                tracing::warn!(
                    pool = name,
                    backend = address,
                    seconds,
                    "backend ejected: traffic to it failed"
                );
                let snapshot = self.snapshot();
                if let Some(pool) = snapshot.pool(&name) {
                    pool.balance.refresh(now);
                    if let Some(backend) = pool.backends.iter().find(|it| it.address == address) {
                        self.board.hasten(pool, backend);
                    }
                }
                self.bus.tell(What::Ejected { pool: name, backend: address, seconds });
            }
            plane::Event::DescriptorsShort { shed } => {
                tracing::error!(
                    shed,
                    "file descriptors ran out; idle connections were shed (raise LimitNOFILE)"
                );
                self.bus.tell(What::DescriptorsShort { shed });
            }
        }
    }
}
