//! Checks requests for SQL injection before they are forwarded. weir-screen decides what an injection is.

use std::cell::RefCell;

use weir_config::{Sqli, SqliMode};
use weir_http::RequestHead;
use weir_io::buffers::Charge;
use weir_screen::sqli::{BodyKind, Found, Screen, Unreadable};
use weir_stats::table::{ListenerCells, SqliVerdict};

use crate::http::claim::HeldClaim;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::hold;
use crate::http::ledger::Ledger;
use crate::http::plan::Received;
use crate::http::session::Session;
use crate::http::upload::Upload;

thread_local! {
    /// This worker's screen, whose buffers are reused; a worker is one thread.
    static SCREEN: RefCell<Screen> = RefCell::default();
}

/// The first injection in a request's head.
fn in_head(screen: &mut Screen, request: &Received<'_>) -> Option<Found> {
    let Received { head, text, .. } = request;
    let in_target = screen.path(head.path(text)).or_else(|| screen.query(head.query(text)?));
    in_target.or_else(|| head.fields(text).find_map(|field| screen.header(field.name, field.value)))
}

/// The verdict on a request's head; `None` if the body decides.
fn judge_head(asked: Sqli, screen: &mut Screen, request: &Received<'_>) -> Option<Judged> {
    match (in_head(screen, request), body_kind(asked, request.head, request.text)) {
        (Some(found), _) => Some(Judged::Injection(found)),
        (None, Err(unreadable)) => Some(Judged::Unreadable(unreadable)),
        (None, Ok(None)) => Some(Judged::Passed),
        (None, Ok(Some(_))) => None,
    }
}

/// What `weir explain` says about a request's head: the sentence, and whether the request is refused. `None`
/// if the check is off.
pub(super) fn explain(asked: Sqli, request: &Received<'_>) -> Option<(String, bool)> {
    let blocks = match asked.mode {
        SqliMode::Off => return None,
        SqliMode::Block => true,
        SqliMode::Report => false,
    };
    let sentence = match judge_head(asked, &mut Screen::default(), request) {
        None | Some(Judged::Passed) => {
            return Some(("nothing was found in path, query and headers".to_owned(), false));
        }
        Some(Judged::Injection(found)) => found.to_string(),
        Some(Judged::Unreadable(unreadable)) => format!("the body is unreadable: {}", unreadable.word()),
    };
    Some((if blocks { sentence } else { format!("{sentence}; reported, and passed") }, blocks))
}

/// Checks a request's head.
pub(super) fn head(
    asked: Sqli,
    request: &Received<'_>,
    cells: &ListenerCells,
    ledger: &mut Ledger,
) -> Result<(), Failure> {
    if asked.mode == SqliMode::Off {
        return Ok(());
    }
    match SCREEN.with_borrow_mut(|screen| judge_head(asked, screen, request)) {
        Some(judged) => settle(asked, judged, cells, ledger),
        None => Ok(()),
    }
}

/// How a request's body is to be parsed for the check; `None` if it is not checked.
///
/// # Errors
/// It should be checked but can't be parsed, which [`head`] has to deal with.
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

/// The verdict on a request's head or body.
enum Judged {
    Passed,
    Injection(Found),
    Unreadable(Unreadable),
}

/// Notes and counts the verdict; `Err` if the request is refused.
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

/// Holds back as much of a request's body as the route configures, and checks it. The body is then sent with
/// the head, and can be sent again; `charge` accounts for its memory.
pub(super) async fn body(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    upload: &mut Upload,
    charge: &mut Option<Charge>,
) -> Result<(), Failure> {
    let Some(kind) = &facts.inspected else { return Ok(()) };
    let asked = forwarding.sqli();
    let cells = forwarding.listener.shared.cells.of(session.requester.worker.number);
    let buffers = session.requester.buffers.clone();
    let mut claim = HeldClaim::new(&buffers, charge, asked.body_bytes, 1).expecting(exchange.request.body());
    hold::hold(session, exchange, forwarding, facts, upload, &mut claim).await?;
    if claim.is_refused() && asked.mode == SqliMode::Block {
        // What can't be held can't be checked.
        cells.sqli[SqliVerdict::Cut as usize].increment();
        return Err(Failure::OutOfMemory);
    }
    let content = upload.take_copy();
    if !upload.is_received() {
        cells.sqli[SqliVerdict::Cut as usize].increment();
    }
    let judged = match SCREEN.with_borrow_mut(|screen| screen.body(kind, &content)) {
        Ok(Some(found)) => Judged::Injection(found),
        Err(unreadable) => Judged::Unreadable(unreadable),
        // A request whose head was reported has been counted.
        Ok(None) if exchange.ledger.is_noted_by_sqli() => return Ok(()),
        Ok(None) => Judged::Passed,
    };
    settle(asked, judged, cells, &mut exchange.ledger)
}
