//! Asks the screens of the listener and of the route whether a request may pass. weir-screen implements the
//! decisions.

use weir_http::KnownHeader;
use weir_http::values::cookies;
use weir_io::clock;
use weir_screen::Facts;
use weir_screen::Screen;
pub use weir_screen::{Checkpoint, ScreenCheck};
use weir_stats::table::ListenerCells;

use crate::admission::end_of;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::Forwarding;
use crate::http::ledger::Ledger;
use crate::http::plan::{Paths, Received};
use crate::http::request_values::Values;
use crate::http::requester::Requester;
use crate::http::route::Route;
use crate::worker::WorkerListener;

/// Asks at the edge, for a request whose route is known.
#[inline]
pub(super) fn at_edge(
    requester: &Requester,
    listener: &WorkerListener,
    route: Option<&Route>,
    request: &Received<'_>,
    paths: &Paths,
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    let screens = [listener.compiled.screen.as_deref(), route.and_then(|route| route.screen.as_deref())];
    if screens.iter().all(Option::is_none) {
        return Ok(());
    }
    let cells = listener.shared.cells.of(requester.worker.number);
    let values = Values::of_head(requester, listener, request, ledger.client(requester).address).along(paths);
    with_facts(request, &values, |facts| ask(screens, Checkpoint::Edge, facts, cells, ledger))
}

/// Called for a request that matches no route, or that a proxy does not handle; screens are not asked about
/// it, but limits of the listener that count answers still count its refusal.
#[cold]
pub(super) fn unasked(
    requester: &Requester,
    listener: &WorkerListener,
    request: &Received<'_>,
    paths: &Paths,
    ledger: &mut Ledger,
) {
    let Some(screen) = listener.compiled.screen.as_deref().filter(|screen| screen.counts_answers()) else {
        return;
    };
    let values = Values::of_head(requester, listener, request, ledger.client(requester).address).along(paths);
    let now = ledger.nearly_now();
    with_facts(request, &values, |facts| screen.count_unasked(facts, now, &mut ledger.passage));
}

/// Asks at the origin, for a request that goes to a backend.
#[inline]
pub(super) fn at_origin(
    requester: &Requester,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
) -> Result<(), Failure> {
    let WorkerListener { shared, compiled, .. } = &**forwarding.listener;
    let of_route = forwarding.route.and_then(|route| route.screen.as_deref());
    let screens =
        [compiled.screen.as_deref(), of_route].map(|screen| screen.filter(|screen| screen.asks_at_origin()));
    if screens.iter().all(Option::is_none) {
        return Ok(());
    }
    let text = requester.received();
    let Exchange { request, paths, ledger, .. } = exchange;
    let cells = shared.cells.of(requester.worker.number);
    let client = ledger.client(requester).address;
    let request = Received { head: request, text, tls: None, client: client.ip() };
    let values = Values::of_head(requester, forwarding.listener, &request, client).along(paths);
    with_facts(&request, &values, |facts| ask(screens, Checkpoint::Origin, facts, cells, ledger))
}

/// Passes to `look` the request in the form that screens see.
fn with_facts<R>(request: &Received<'_>, values: &Values<'_>, look: impl FnOnce(&Facts<'_>) -> R) -> R {
    let Received { head, text, .. } = *request;
    let user_agent = head.combined(KnownHeader::UserAgent.name().as_bytes(), text);
    look(&Facts {
        client: values.client.ip(),
        path: values.path,
        method: head.method_text(text),
        user_agent: user_agent.as_deref().unwrap_or_default(),
        header: &|name| head.combined(name, text),
        cookie: &|name| cookies::first(head.values(KnownHeader::Cookie, text), name),
        values,
    })
}

fn ask(
    screens: [Option<&Screen>; 2],
    checkpoint: Checkpoint,
    facts: &Facts<'_>,
    cells: &ListenerCells,
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    // The head came a moment ago, because a limit at the origin is checked before any wait.
    let now = ledger.nearly_now();
    let mut passage = std::mem::take(&mut ledger.passage);
    let admitted = weir_screen::admit(screens, checkpoint, facts, now, &mut passage);
    for reason in passage.would_refuse() {
        if let Some(rejected) = end_of(reason).rejected() {
            ledger.note_would_reject(cells, rejected);
        }
    }
    ledger.passage = passage;
    admitted.map_err(Failure::Screened)
}

/// The answer of one check of a screen, without counting.
pub struct Step {
    /// `listener` or `route`.
    pub of: &'static str,
    /// Its answer.
    pub check: ScreenCheck,
    /// The word for it in the log and in the answer to a refused client.
    pub word: &'static str,
}

/// Every check of the screens of a listener and of a route, in order: the edge checks of both come before all
/// others.
pub(super) fn explain(
    screens: [Option<&Screen>; 2],
    request: &Received<'_>,
    values: &Values<'_>,
) -> Vec<Step> {
    let now = clock::now();
    let steps = ["listener", "route"].into_iter().zip(screens).flat_map(|(of, screen)| {
        let explain = |screen: &Screen| with_facts(request, values, |facts| screen.explain(facts, now));
        let checks = screen.map(explain).unwrap_or_default().into_iter();
        checks.map(move |check| Step { of, word: end_of(check.refused_as).word(), check })
    });
    let mut steps: Vec<Step> = steps.collect();
    steps.sort_by_key(|step| step.check.at == Checkpoint::Origin);
    steps
}
