//! Counting and logging sessions and flows that have ended; `http::ledger` does it for exchanges.

use weir_stats::table::{End, Rejected};

use crate::access_log::{Captured, Record};
use crate::worker::{Worker, WorkerListener};

impl WorkerListener {
    /// Whether its access log lines are written anywhere.
    #[inline]
    pub fn is_logged(&self, worker: &Worker) -> bool {
        match &self.compiled.logs {
            None => worker.log.enabled(),
            Some(logs) => logs.is_any(),
        }
    }

    /// Counts a session or a flow that has ended, and writes its access log line if lines are written.
    /// `rejected` is the kind of refusal, if `end` alone does not say it.
    pub fn finish<'a>(
        &self,
        worker: &Worker,
        end: End,
        rejected: Option<Rejected>,
        record: impl FnOnce() -> Record<'a>,
    ) {
        let cells = self.shared.cells.of(worker.number);
        cells.count_end(end);
        if let Some(reason) = rejected.or_else(|| end.rejected()) {
            cells.count_rejected(reason);
        }
        if !self.is_logged(worker) {
            return;
        }
        match &self.compiled.logs {
            None => worker.log.write(&record(), cells),
            Some(logs) => worker.log.write_to(logs, None, &record(), &Captured::default(), cells),
        }
    }
}
