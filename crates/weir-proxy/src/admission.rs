//! Whether a connection or a flow may begin, according to the access lists and rate limits of its listener;
//! and what a screen's reasons are called, for connections and for requests.

use std::net::IpAddr;

use weir_io::clock;
use weir_screen::Reason;
use weir_stats::table::{End, Rejected};

use crate::worker::{Worker, WorkerListener};

/// Whether a client's connection or flow may begin, for protocols other than HTTP. One that a dry run would
/// refuse is counted.
///
/// # Errors
/// It may not begin; gives the reason.
pub fn admit(worker: &Worker, listener: &WorkerListener, client: IpAddr) -> Result<(), End> {
    let Some(screen) = listener.compiled.screen.as_deref() else { return Ok(()) };
    if screen.admit_client(client, clock::now()).map_err(end_of)? {
        let cells = listener.shared.cells.of(worker.number);
        cells.would_reject[Rejected::RateLimited as usize].increment();
    }
    Ok(())
}

/// The word for a screen's reason in the access log.
pub fn end_of(reason: Reason) -> End {
    match reason {
        Reason::Address => End::DeniedAddress,
        Reason::Method => End::DeniedMethod,
        Reason::Path => End::DeniedPath,
        Reason::UserAgent => End::DeniedUserAgent,
        Reason::Rate => End::RateLimited,
        Reason::Concurrency => End::ConcurrencyLimited,
    }
}
