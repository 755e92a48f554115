//! Counters of requests by route, if a listener asks for them (`route_metrics`).

use std::sync::Arc;
use std::time::Duration;

use weir_stats::PerWorker;
use weir_stats::table::RouteCells;

/// The counters of a listener's routes, and of requests that match no route.
pub struct ByRoute {
    /// In the order of the routes; the last one is for requests that match none.
    counts: Box<[RouteCount]>,
}

struct RouteCount {
    name: Arc<str>,
    cells: Arc<PerWorker<RouteCells>>,
}

impl ByRoute {
    /// The counters for `config`; `None` if it does not ask for them. Routes continue the counters of the
    /// routes of the same name in `old`.
    pub fn compile(
        config: &weir_config::Listener,
        old: Option<&ByRoute>,
        workers: usize,
    ) -> Option<Box<ByRoute>> {
        if !config.http().route_metrics {
            return None;
        }
        let known = |name: &str| {
            let mut counts = old.into_iter().flat_map(|old| old.counts.iter());
            counts.find(|count| *count.name == *name).map(|count| count.cells.clone())
        };
        let names = config.routes.iter().map(|route| route.name.as_str()).chain(["(default)"]);
        let counts = names.map(|name| RouteCount {
            name: name.into(),
            cells: known(name).unwrap_or_else(|| Arc::new(PerWorker::new(workers))),
        });
        Some(Box::new(ByRoute { counts: counts.collect() }))
    }

    /// Counts one request.
    pub fn count(&self, worker: usize, route: Option<usize>, status: u16, total: Duration) {
        let last = self.counts.len() - 1;
        let cells = self.counts[route.unwrap_or(last).min(last)].cells.of(worker);
        cells.requests[usize::from(status / 100).min(5)].increment();
        cells.request_seconds.record(total);
    }

    /// Each route's name and counters.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &PerWorker<RouteCells>)> {
        self.counts.iter().map(|count| (&*count.name, &*count.cells))
    }
}
