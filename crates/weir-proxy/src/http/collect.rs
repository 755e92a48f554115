//! Receives the content of a response that Weir itself has requested on behalf of clients: for the cache, or
//! from an authentication service.

use std::future::poll_fn;
use std::task::Poll;

use weir_http::h1::connection::Busy;
use weir_io::clock;

use crate::backends::Chosen;
use crate::http::ask;
use crate::http::connection::Connection;
use crate::http::drive::{self, KeptWaiting, Turn};
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forwarding::Forwarding;
use crate::http::kept;
use crate::http::pump::Pump;
use crate::http::requester::{Recipient, Requester};
use crate::http::sink::Sink;
use crate::http::stream::Stream;
use crate::http::upload::Upload;

/// A response whose head was received and whose content is to come.
pub struct Incoming {
    pub chosen: Chosen,
    pub connection: Busy<Connection>,
    pub download: Pump,
}

/// Receives the content until it ends, or `recipient` does not want it any more. Counts it, and keeps the
/// connection if all of it came. The request had no content.
///
/// # Errors
/// The content broke off; if the backend is to blame, that has been reported to passive health.
pub async fn content(
    recipient: &mut (impl Recipient + Sink),
    requester: &Requester,
    exchange: &Exchange,
    forwarding: &Forwarding<'_>,
    incoming: Incoming,
) -> Result<(), Failure> {
    let Incoming { chosen, mut connection, mut download } = incoming;
    let ended = receive(recipient, requester, connection.connection(), forwarding, &mut download).await;
    let head_bytes = exchange.response.head_bytes() as u64;
    chosen.backend().cells().bytes_received.add(head_bytes + download.received);
    match &ended {
        Ok(()) if exchange.response.keep_alive() => {
            if let Some(request) = Upload::none().take_rest().1 {
                kept::keep(&chosen, connection, request, download, clock::now());
            }
        }
        Ok(()) => {}
        Err(failure) => ask::broke_off(requester, forwarding, &chosen, failure),
    }
    ended
}

async fn receive(
    recipient: &mut (impl Recipient + Sink),
    requester: &Requester,
    backend: &mut Stream,
    forwarding: &Forwarding<'_>,
    download: &mut Pump,
) -> Result<(), Failure> {
    if download.is_done() {
        return Ok(());
    }
    let mut is_first = true;
    let mut kept_waiting = KeptWaiting::default();
    poll_fn(|context| {
        let mut moved = std::mem::take(&mut is_first);
        let polled = download.poll(context, backend, recipient, &requester.buffers, &mut moved);
        if let Poll::Ready(result) = polled {
            let failure = |error| drive::download_failure(error).while_awaiting(kept_waiting.awaited());
            return Poll::Ready(result.map_err(failure));
        }
        kept_waiting.gives(download);
        let awaits_backend = download.waits_for_source();
        recipient.gather_body(context);
        if awaits_backend {
            requester.look_at(recipient, context)?;
        }
        // Otherwise the wait is for the slowest of those that read it.
        let turn = match awaits_backend {
            true => Turn::of_backend(forwarding.timers(), download),
            false => Turn::of_client(forwarding.timers(), Failure::ClientStalled),
        };
        drive::go_on(requester, moved, turn)
    })
    .await
}
