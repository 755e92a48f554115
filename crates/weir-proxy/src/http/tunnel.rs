//! After a 101: both connections become one byte stream each way (RFC 9110 §7.8).

use weir_http::Violation;
use weir_io::clock;
use weir_io::wait::send_all;
use weir_stats::table::End;

use crate::http::ask::Answered;
use crate::http::exchange::{After, Exchange};
use crate::http::failure::Failure;
use crate::http::forwarding::{Facts, Forwarding};
use crate::http::reply;
use crate::http::requester::Requester;
use crate::http::session::Session;
use crate::tcp::relay::{self, FirstBytes, Heard, Paces, Pair, Terms};

/// Passes the 101 on and relays until either side ends.
///
/// Only exactly the protocol that the client asked for opens the tunnel, and no byte from the client is
/// passed on before (A18).
///
/// # Errors
/// Nothing has been sent to the client.
pub async fn run(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    answered: Answered,
) -> Result<After, Failure> {
    let Answered { chosen, mut connection, mut received } = answered;
    if !facts.upgrade
        || !exchange.response.accepts_upgrade(received.filled(), &exchange.upgrade)
        || !facts.handshake.is_proven_by(&exchange.response, received.filled())
    {
        return Err(Failure::BadResponse(Violation::UpgradeNotNamed));
    }
    reply::write_head(session, exchange, forwarding, received.filled(), true, facts.beside(None))?;
    received.consume(exchange.response.head_bytes());
    exchange.ledger.answers(101);
    exchange.ledger.head_bytes_sent = exchange.reply.len() as u64 + exchange.reply_head_bytes;
    exchange.ledger.bytes_sent = exchange.ledger.head_bytes_sent;
    session.requester.wait(clock::now(), forwarding.timers().client_body);
    if let Err(error) =
        send_all(&mut session.stream, &exchange.reply, &session.requester.deadline, || {}).await
    {
        let end = session.requester.judge(error.into()).end();
        exchange.ledger.close(&session.requester, forwarding.listener, &exchange.request_id, end);
        return Ok(After::Reset);
    }
    let first = FirstBytes {
        from_client: session.requester.buffer.take(),
        from_backend: Some(received).filter(|rest| !rest.is_empty()),
    };
    let Session { requester: Requester { worker, slot, buffers, deadline, .. }, stream, .. } = session;
    let backend = chosen.backend().cells();
    let client = forwarding.listener.shared.cells.of(worker.number);
    let ender = connection.connection().ender();
    let relayed = relay::run(
        Pair { client: stream, backend: &mut **connection.connection() },
        first,
        Terms {
            buffers,
            deadline,
            idle: forwarding.timers().tunnel,
            idle_end: End::TunnelIdle,
            ends_unsaid: false,
            paces: Paces::default(),
            ender,
            heard: Heard::default(),
        },
        || slot.draining_until(),
        relay::counting(client, backend, 0),
    )
    .await;
    exchange.ledger.tunnelled(relayed.from_client, relayed.from_backend);
    exchange.ledger.close(&session.requester, forwarding.listener, &exchange.request_id, relayed.end);
    Ok(After::Close)
}
