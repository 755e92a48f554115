//! Asks the screens of the listener and of the route whether a request may pass. What they decide by, and how, is weir-screen's.

use std::time::Duration;

use weir_http::{KnownHeader, RequestHead};
use weir_screen::Screen;
pub use weir_screen::{Checkpoint, Facts, ScreenCheck};

use crate::compiled::CompiledListener;
use crate::http::exchange::Exchange;
use crate::http::failure::{Failure, counted_as};
use crate::http::forwarding::Forwarding;
use crate::http::ledger::Ledger;
use crate::http::requester::Requester;
use crate::http::route::Route;
use crate::http::sticky;
use crate::worker::WorkerListener;

/// Asks for a request whose route is known, on the edge. `path` is the normalised one.
#[inline]
pub(super) fn at_edge(
    requester: &Requester,
    listener: &WorkerListener,
    route: Option<&Route>,
    (request, received, path): (&RequestHead, &[u8], &[u8]),
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    let screens = [listener.compiled.screen.as_deref(), route.and_then(|route| route.screen.as_deref())];
    if screens.iter().all(Option::is_none) {
        return Ok(());
    }
    ask(screens, Checkpoint::Edge, requester, listener, (request, received, path), ledger)
}

/// Asks for a request that goes to a backend.
#[inline]
pub(super) fn at_origin(
    requester: &Requester,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
) -> Result<(), Failure> {
    let of_route = forwarding.route.and_then(|route| route.screen.as_deref());
    let screens = [forwarding.listener.compiled.screen.as_deref(), of_route]
        .map(|screen| screen.filter(|screen| screen.asks_at_origin()));
    if screens.iter().all(Option::is_none) {
        return Ok(());
    }
    let received = requester.received();
    let request = &exchange.request;
    let path = request.path(received);
    ask(
        screens,
        Checkpoint::Origin,
        requester,
        forwarding.listener,
        (request, received, path),
        &mut exchange.ledger,
    )
}

fn ask(
    screens: [Option<&Screen>; 2],
    checkpoint: Checkpoint,
    requester: &Requester,
    listener: &WorkerListener,
    (request, received, path): (&RequestHead, &[u8], &[u8]),
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    let values =
        |known| request.fields(received).filter(move |field| field.known == known).map(|field| field.value);
    let user_agent = request.combined(KnownHeader::UserAgent.name().as_bytes(), received);
    let facts = Facts {
        client: ledger.client(requester).address.ip(),
        path,
        method: request.method_text(received),
        user_agent: user_agent.as_deref().unwrap_or_default(),
        header: &|name| request.combined(name, received),
        cookie: &|name| sticky::cookie(values(KnownHeader::Cookie), name),
    };
    // The head came a moment ago, and a limit at the origin is asked before anything is waited for.
    let now = ledger.nearly_now();
    let cells = listener.shared.cells.of(requester.worker.number);
    let mut passage = std::mem::take(&mut ledger.passage);
    let admitted = weir_screen::admit(screens, checkpoint, &facts, now, &mut passage);
    for reason in passage.would_refuse() {
        ledger.note_would_reject(cells, counted_as(reason));
    }
    ledger.passage = passage;
    admitted.map_err(Failure::Screened)
}

/// Every step of the screens of a listener and of a route, without counting; each with whose it is.
pub fn explain(
    listener: &CompiledListener,
    route: Option<&Route>,
    facts: &Facts<'_>,
    now: Duration,
) -> Vec<(&'static str, ScreenCheck)> {
    let steps = |whose, screen: Option<&Screen>| {
        let steps = screen.map(|screen| screen.explain(facts, now)).unwrap_or_default();
        steps.into_iter().map(move |step| (whose, step))
    };
    let of_route = route.and_then(|route| route.screen.as_deref());
    steps("listener", listener.screen.as_deref()).chain(steps("route", of_route)).collect()
}
