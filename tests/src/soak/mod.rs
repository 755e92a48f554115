//! One Weir with mixed traffic at a fixed rate for a long time, while configs, backends, names, certificates,
//! disks and the process itself change at random moments.
//!
//! A failure is what the clients of a live pool were not to see (a wrong answer always is one, another
//! failure unless the access log explains it by a backend that was killed or stopped at that moment), and
//! what is left behind when all clients have left: memory that grew, descriptors, threads, counts that do not
//! return to zero, series of what is no longer there, processes that do not end.

mod backend;
mod chaos;
mod clients;
mod end;
mod judge;
mod raw;
mod report;
mod site;
mod sql_chaos;
mod sql_clients;
mod sql_judge;
mod sql_ledger;
mod sql_servers;
mod sql_session;
mod starvation;
mod traffic;
mod usage;

use std::path::PathBuf;
use std::time::{Duration, Instant};

pub use backend::serve_backend;
pub use report::SoakReport;

use chaos::Chaos;
use site::Site;
use traffic::{Shared, Targets};

/// The size of the run.
#[derive(Clone, Debug)]
pub struct SoakPlan {
    /// How long clients arrive.
    pub seconds: u64,
    /// Clients that arrive each second.
    pub rate: u64,
    /// Mean time between two changes, milliseconds.
    pub change_every_ms: u64,
    /// Whether there are upgrades (USR2). They happen in the first half, so that the last process lives long
    /// enough to show whether it grows.
    pub upgrades: bool,
    /// Seed of all draws.
    pub seed: u64,
    /// The program that becomes a backend when called with `--backend ADDRESS LEDGER`.
    pub program: PathBuf,
    /// Where the logs of a failed run are kept; `None` for nowhere.
    pub keep: Option<PathBuf>,
    /// Whether those of a run that passed are kept, too.
    pub keep_always: bool,
    /// Whether a line of progress is printed to standard error every ten seconds.
    pub progress: bool,
}

impl SoakPlan {
    /// The moment (since the begin) from which there are no more upgrades.
    fn last_upgrade(&self) -> Duration {
        Duration::from_secs(if self.upgrades { self.seconds / 2 } else { 0 })
    }
}

/// Runs the plan.
pub fn soak(plan: &SoakPlan) -> SoakReport {
    let site = Site::start(&plan.program);
    // What later processes are compared with: this one has served nobody, and none was before it.
    let first = usage::Holding::of(site.weir.pid(), Duration::ZERO).unwrap_or_default();
    let address = |name: &str| site.weir.address(name);
    let targets = Targets {
        web: address("web"),
        secure: address("secure"),
        limited: address("limited"),
        relay: address("relay"),
        flow: address("flow"),
        extra: address("extra"),
        db: address("db"),
        writes: address("writes"),
        copies: address("copies"),
    };
    let shared = std::sync::Arc::new(Shared::new(targets, site.authority.clone(), plan.seed));
    let begun = Instant::now();
    starvation::watches(shared.clone());
    let traffic = traffic::start(&shared, plan.rate);
    let mut chaos = Chaos::new(site, shared.clone(), plan, begun);
    chaos.runs();
    shared.stop();
    let is_whole = traffic.join().is_ok();
    end::concludes(chaos, plan, &first, is_whole)
}
