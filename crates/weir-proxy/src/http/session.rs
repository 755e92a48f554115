//! A client as an exchange sees it: the connection or stream of its requests, and what is known about the
//! client.

use std::time::Duration;

use weir_http::{ClientIdentity, Scheme};
use weir_io::handshake::Secure;

use crate::client::Client;
use crate::http::requester::Requester;
use crate::http::stream::Stream;
use crate::worker::WorkerListener;

/// While the listener drains, an idle client may send one more request for this long. It may have sent it
/// before it could know of the drain, and the answer tells it to close. Closing at once would lose that
/// request.
pub const LAST_CHANCE: Duration = Duration::from_secs(2);

/// A client's connection, or one request of a connection that carries many.
pub struct Session {
    pub requester: Requester,
    pub stream: Stream,
    /// When the last exchange ended, if that is known.
    pub idle_since: Option<Duration>,
}

/// The identity of the client, which connected to `port`, for requests to backends, and how far it is
/// trusted.
pub fn identify(
    listener: &WorkerListener,
    client: &Client,
    port: u16,
    secure: Option<&Secure>,
) -> ClientIdentity {
    let address = client.address.ip();
    // A balancer that only relays bytes says nothing about the client behind it: trust depends on the address
    // that it names.
    let is_trusted = listener.shared.trusts(address);
    let scheme = if secure.is_some() { Scheme::Https } else { Scheme::Http };
    let identity = ClientIdentity::new(address, scheme, is_trusted).at_port(port);
    match secure.and_then(|secure| secure.client_certificate.as_deref()) {
        Some(certificate) => identity.of_certificate(certificate),
        None => identity,
    }
}
