//! Has requests judged for SQL injection before they are forwarded. What an injection is, is weir-screen's to say.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use weir_config::{Sqli, SqliMode};
use weir_http::RequestHead;
use weir_io::clock;
use weir_screen::sqli::{BodyKind, Found, Screen, Unreadable};
use weir_stats::table::{ListenerCells, SqliVerdict};

use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::ledger::Ledger;
use crate::http::reply;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::http::upload::{Upload, failure_of};
use crate::worker::WorkerListener;

thread_local! {
    /// Room of this worker for looking at requests; a worker is one thread.
    static SCREEN: RefCell<Screen> = RefCell::default();
}

/// The first injection in a request's head.
pub fn in_head<'a>(
    screen: &mut Screen,
    path: &[u8],
    query: Option<&[u8]>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Option<Found> {
    let in_target = screen.path(path).or_else(|| screen.query(query?));
    in_target.or_else(|| fields.into_iter().find_map(|(name, value)| screen.header(name, value)))
}

/// What `weir explain` says of a request's head: the sentence, and whether the request is refused.
pub fn explain<'a>(
    asked: Sqli,
    path: &[u8],
    query: Option<&[u8]>,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> (String, bool) {
    match in_head(&mut Screen::default(), path, query, fields) {
        None => ("nothing was found in path, query and headers".to_owned(), false),
        Some(found) if asked.mode == SqliMode::Block => (found.to_string(), true),
        Some(found) => (format!("{found}; reported, and passed"), false),
    }
}

/// Looks at a request's head.
pub(super) fn head(
    asked: Sqli,
    session: &Session,
    listener: &WorkerListener,
    (request, received): (&RequestHead, &[u8]),
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    if asked.mode == SqliMode::Off {
        return Ok(());
    }
    let fields = request.fields(received).map(|field| (field.name, field.value));
    let found = SCREEN
        .with_borrow_mut(|screen| in_head(screen, request.path(received), request.query(received), fields));
    let cells = listener.shared.cells.of(session.requester.worker.number);
    let judged = match (found, body_kind(asked, request, received)) {
        (Some(found), _) => Judged::Injection(found),
        (None, Err(unreadable)) => Judged::Unreadable(unreadable),
        (None, Ok(None)) => Judged::Passed,
        // The body decides.
        (None, Ok(Some(_))) => return Ok(()),
    };
    settle(asked, judged, cells, ledger)
}

/// How a request's body is to be read; `None` when it is not.
///
/// # Errors
/// It is to be read and cannot be, which is for [`head`] to settle.
pub(super) fn body_kind(
    asked: Sqli,
    request: &RequestHead,
    received: &[u8],
) -> Result<Option<BodyKind>, Unreadable> {
    if asked.mode == SqliMode::Off || asked.body_bytes == 0 || request.body().is_empty() {
        return Ok(None);
    }
    let lines = |name: &'static [u8]| {
        let fields = request.fields(received);
        fields.filter(move |field| field.name.eq_ignore_ascii_case(name)).map(|field| field.value)
    };
    BodyKind::of(lines(b"content-type"), lines(b"content-encoding"))
}

/// What came of looking at a request's head or body.
enum Judged {
    Passed,
    Injection(Found),
    Unreadable(Unreadable),
}

/// Notes and counts what came of it; `Err` when the request is refused.
fn settle(asked: Sqli, judged: Judged, cells: &ListenerCells, ledger: &mut Ledger) -> Result<(), Failure> {
    let blocks = asked.mode == SqliMode::Block;
    let verdict = match judged {
        Judged::Passed => {
            cells.sqli[SqliVerdict::Passed as usize].increment();
            return Ok(());
        }
        Judged::Injection(found) => {
            ledger.note_sqli(|| format!("{}: {}", found.location, found.finding.reason.word()));
            if blocks { SqliVerdict::Blocked } else { SqliVerdict::Reported }
        }
        Judged::Unreadable(unreadable) => {
            ledger.note_sqli(|| format!("body: unreadable {}", unreadable.word()));
            SqliVerdict::Unreadable
        }
    };
    cells.sqli[verdict as usize].increment();
    if blocks { Err(Failure::Injection) } else { Ok(()) }
}

/// Holds back as much of a request's body as the route says, and looks at it. It leaves with the head, and can be sent once more.
pub(super) async fn body(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
) -> Result<(), Failure> {
    let Some(kind) = &facts.inspected else { return Ok(()) };
    let asked = forwarding.sqli();
    let cells = forwarding.listener.shared.cells.of(session.requester.worker.number);
    let Some(_charge) = session.requester.worker.buffers.charge(asked.body_bytes) else {
        // What can't be held can't be looked at.
        cells.sqli[SqliVerdict::Cut as usize].increment();
        return if asked.mode == SqliMode::Block { Err(Failure::OutOfMemory) } else { Ok(()) };
    };
    if facts.expect_continue && upload.is_awaited() && !exchange.continued {
        exchange.continued = true;
        reply::send_continue(&mut session.stream, &session.requester.deadline).await?;
    }
    upload.resume(clock::now());
    hold(session, exchange, forwarding, asked, upload).await?;
    upload.pause(clock::now());
    exchange.ledger.note_wait();
    let content = upload.take_copy();
    if !upload.is_received() {
        cells.sqli[SqliVerdict::Cut as usize].increment();
    }
    let judged = match SCREEN.with_borrow_mut(|screen| screen.body(kind, &content)) {
        Ok(Some(found)) => Judged::Injection(found),
        Err(unreadable) => Judged::Unreadable(unreadable),
        // A request that its head was reported for has been counted.
        Ok(None) if exchange.ledger.is_noted_by_sqli() => return Ok(()),
        Ok(None) => Judged::Passed,
    };
    settle(asked, judged, cells, &mut exchange.ledger)
}

/// Receives until the body is over or there is enough of it.
async fn hold(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    asked: Sqli,
    upload: &mut Upload,
) -> Result<(), Failure> {
    let config = &forwarding.listener.shared.config;
    let patience = config.timeout.client_body;
    let mut held = u64::MAX;
    poll_fn(|context| {
        let Session { stream, requester: Requester { worker, .. }, .. } = &mut *session;
        let polled =
            upload.poll_hold(context, stream, &worker.buffers, &mut exchange.outgoing, asked.body_bytes);
        if let Poll::Ready(result) = polled {
            return Poll::Ready(result.map_err(failure_of));
        }
        if held != upload.received_bytes() {
            held = upload.received_bytes();
            let now = clock::now();
            if upload.is_too_slow(now, config.http().limits.min_body_rate) {
                return Poll::Ready(Err(Failure::BodyTimeout));
            }
            session.requester.wait(now, patience);
        } else if session.requester.deadline.has_passed() {
            return Poll::Ready(Err(Failure::BodyTimeout));
        }
        Poll::Pending
    })
    .await
}
