//! Who the client of a new connection is: its peer, or whoever the PROXY protocol header names that the
//! connection begins with.

use std::net::SocketAddr;

use weir_http::proxy_protocol::{self, ProxyProgress};
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Stream;
use weir_io::wait::{WaitError, receive};
use weir_state::listener::ClientConnection;
use weir_stats::table::End;

use crate::client::{Client, is_unix};
use crate::worker::{Worker, WorkerListener};

/// Finds out who the client is; reads the PROXY protocol header if `peer` must send one.
///
/// `buffer` keeps whatever came after the header. The deadline is `timeout.header` from now. The count is for
/// the client that the header names, and must be held as long as the session.
pub async fn by_header(
    listener: &WorkerListener,
    stream: &mut Stream,
    peer: SocketAddr,
    buffer: &mut Option<Buffer>,
    worker: &Worker,
    deadline: &Deadline,
) -> Result<(Client, Option<ClientConnection>), End> {
    let plain = Client::of_peer(peer);
    if !listener.shared.expects_proxy_header(peer.ip()) {
        return Ok((plain, None));
    }
    deadline.set(clock::now() + listener.shared.config.timeout.header);
    let mut received = worker.buffers.borrow(SMALL).ok_or(End::Overload)?;
    loop {
        match proxy_protocol::parse(received.filled(), proxy_protocol::V2_DEFAULT_LIMIT_BYTES) {
            Ok(ProxyProgress::Complete { header, header_bytes }) => {
                received.consume(header_bytes);
                *buffer = (!received.is_empty()).then_some(received);
                let Some(told) = header.addresses.filter(|told| !is_unix(told.source.ip().to_canonical()))
                else {
                    return Ok((plain, None));
                };
                let counted =
                    listener.shared.count_client(told.source.ip()).map_err(|_| End::TooManyConnections)?;
                let client = Client { peer, address: told.source, destination: Some(told.destination) };
                return Ok((client, counted));
            }
            Ok(ProxyProgress::Partial) => {}
            Err(violation) => {
                tracing::debug!(%peer, %violation, "PROXY protocol header");
                return Err(End::BadProxyHeader);
            }
        }
        match receive(stream, &mut received, deadline).await {
            Ok(0) | Err(WaitError::Broken(_)) => return Err(End::ClientClosed),
            Ok(_) => {}
            Err(WaitError::TimedOut) => return Err(End::ClientHeader),
        }
    }
}
