//! After a 101: both connections become one byte stream each way (RFC 9110 §7.8).

use weir_http::Violation;
use weir_http::h1::connection::Busy;
use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::wait::send_all;

use crate::backends::Chosen;
use crate::http::connection::Connection;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::session::{Session, due};
use crate::http::upload::Upload;
use crate::http::{answer, reply};
use crate::tcp::relay::{self, FirstBytes, Pair, Terms};

/// Passes the 101 on and relays until either side ends.
///
/// Only the very protocol that the client asked for opens the tunnel, and no byte of the client's passes before (A18).
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    chosen: Chosen,
    mut connection: Busy<Connection>,
    mut received: Buffer,
) -> After {
    if !facts.upgrade
        || !exchange.response.accepts_upgrade(received.filled(), &exchange.upgrade)
        || !facts.handshake.is_proven_by(&exchange.response, received.filled())
    {
        let failure = Failure::BadResponse(Violation::UpgradeNotNamed);
        return answer::failed_exchange(session, forwarding, exchange, Upload::none(), &failure).await;
    }
    if let Err(failure) =
        reply::write_head(session, exchange, forwarding, facts, received.filled(), true, None)
    {
        return answer::failed_exchange(session, forwarding, exchange, Upload::none(), &failure).await;
    }
    received.consume(exchange.response.head_bytes());
    exchange.ledger.status = 101;
    let timeout = forwarding.listener.shared.config.timeout;
    session.deadline.set(due(&session.slot, clock::now(), timeout.client_body));
    if let Err(error) = send_all(&mut session.stream, &exchange.reply, &session.deadline, || {}).await {
        exchange.ledger.close(session, forwarding.listener, &exchange.request_id, Failure::from(error).end());
        return After::Reset;
    }
    let first = FirstBytes {
        from_client: session.buffer.take(),
        from_backend: Some(received).filter(|rest| !rest.is_empty()),
    };
    let Session { worker, slot, stream, deadline, .. } = session;
    let backend = chosen.backend().cells();
    let client = forwarding.listener.shared.cells.of(worker.number);
    let relayed = relay::run(
        Pair { client: stream, backend: &mut **connection.connection() },
        first,
        Terms { buffers: &worker.buffers, deadline, idle: timeout.client_idle },
        || slot.draining_until(),
        |from_client, from_backend| {
            client.bytes_received.add(from_client);
            backend.bytes_sent.add(from_client);
            backend.bytes_received.add(from_backend);
            client.bytes_sent.add(from_backend);
        },
    )
    .await;
    exchange.ledger.tunnelled(relayed.from_client, relayed.from_backend);
    exchange.ledger.close(session, forwarding.listener, &exchange.request_id, relayed.end);
    After::Close
}
