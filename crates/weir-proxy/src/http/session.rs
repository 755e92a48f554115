//! A client as an exchange sees it: the connection or stream that its requests come by, and what is known of
//! whoever is at the other end.

use std::time::Duration;

use weir_http::{ClientIdentity, Scheme};
use weir_io::handshake::Secure;

use crate::client::Client;
use crate::http::requester::Requester;
use crate::http::stream::Stream;
use crate::worker::WorkerListener;

/// While the listener drains, an idle client may send one more request for this long: it may have sent it
/// before it could know, and is told to close in the answer. A connection closed at once would lose it.
pub const LAST_CHANCE: Duration = Duration::from_secs(2);

/// A client's connection, or one request of a connection that carries many.
pub struct Session {
    pub requester: Requester,
    pub stream: Stream,
    /// When the last exchange ended, if that is known.
    pub idle_since: Option<Duration>,
}

/// What backends are told of the client, which connected to `port`, and what may be believed of what it says.
pub fn identify(
    listener: &WorkerListener,
    client: &Client,
    port: u16,
    secure: Option<&Secure>,
) -> ClientIdentity {
    let address = client.address.ip();
    // A balancer that only carries bytes says nothing of whoever speaks through it: trust goes by the address
    // it names.
    let is_trusted = listener.shared.trusts(address);
    let scheme = if secure.is_some() { Scheme::Https } else { Scheme::Http };
    let identity = ClientIdentity::new(address, scheme, is_trusted).at_port(port);
    match secure.and_then(|secure| secure.client_certificate.as_deref()) {
        Some(certificate) => identity.of_certificate(certificate),
        None => identity,
    }
}
