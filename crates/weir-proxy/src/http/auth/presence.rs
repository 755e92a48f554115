//! Waits for something on behalf of a client, as long as the client stays.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use weir_io::clock;
use weir_io::stream::{Duplex as _, Sight};

use crate::client::is_unix;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::session::Session;

/// The address that counts as one client where requests wait; `None` if unknown, as behind a Unix socket.
pub(super) fn client_of(session: &Session, exchange: &Exchange) -> Option<IpAddr> {
    let address = exchange.ledger.client(&session.requester).address.ip().to_canonical();
    (!is_unix(address)).then(|| weir_screen::address_key(address))
}

/// Waits for `other`, at most to `until` or to the end of the request's total time, unless the client leaves.
///
/// # Errors
/// The client has left, or the time is over.
pub(super) async fn while_present<T>(
    session: &mut Session,
    until: Duration,
    other: impl Future<Output = T>,
) -> Result<T, Failure> {
    let Session { requester, stream, .. } = session;
    let mut other = pin!(other);
    let now = clock::now();
    requester.wait(now, until.saturating_sub(now));
    let mut watched = true;
    poll_fn(|context| {
        if let Poll::Ready(done) = other.as_mut().poll(context) {
            return Poll::Ready(Ok(done));
        }
        stream.gather(context);
        if watched {
            watched = requester.look_at(stream, context)? == Sight::Quiet;
        }
        match requester.is_late() {
            true if requester.is_drained() => Poll::Ready(Err(Failure::Drained)),
            true => Poll::Ready(Err(Failure::AuthUnavailable)),
            false => Poll::Pending,
        }
    })
    .await
}
