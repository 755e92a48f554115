//! One attempt of an exchange on one backend: connect or reuse, send, receive the response's head.

use std::time::Duration;

use weir_http::h1::connection::Busy;
use weir_http::h1::encode;

use crate::backends::{Chosen, ConnectError, Connection};
use crate::buffers::Buffer;
use crate::clock;
use crate::http::drive;
use crate::http::exchange::Exchange;
use crate::http::failure::Failure;
use crate::http::forward::{Facts, Forwarding};
use crate::http::session::{Session, due};
use crate::http::upload::Upload;
use crate::io::{WaitError, send_all};

/// How long an idle backend connection may have been idle to carry a request that must not be sent twice: one that the
/// backend closes at the very moment would lose it.
const FRESH: Duration = Duration::from_secs(1);

/// A response whose head is complete.
pub struct Answered {
    pub connection: Busy<Connection>,
    /// What was received of the response; its head is at the front.
    pub received: Buffer,
}

/// Why an attempt failed.
pub struct Failed {
    pub failure: Failure,
    /// Whether the connection had served an exchange before.
    pub reused: bool,
}

/// Makes one attempt. On success the response's head is in `exchange.response`.
pub async fn make(
    session: &mut Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    facts: &Facts,
    chosen: &Chosen,
    upload: &mut Upload,
    only_new: bool,
) -> Result<Answered, Failed> {
    // What can't be sent twice, or is not all here to be sent again, must not meet a backend that is just closing.
    let is_repeatable = facts.method.is_idempotent() && upload.is_done();
    let max_idle = if is_repeatable { Duration::MAX } else { FRESH };
    let max_idle = (!only_new).then_some(max_idle);
    let (mut connection, reused) = match open(session, exchange, forwarding, chosen, max_idle).await {
        Ok(opened) => opened,
        Err(failure) => return Err(Failed { failure, reused: false }),
    };
    let failed = |failure| Failed { failure, reused };
    if facts.expect_continue && upload.is_awaited() && !exchange.continued {
        exchange.continued = true;
        let mut interim = Vec::with_capacity(32);
        encode::write_continue(&mut interim);
        send_all(&mut session.stream, &interim, &session.deadline, || {})
            .await
            .map_err(|error| failed(error.into()))?;
    }
    let sent_at = if reused { exchange.ledger.nearly_now() } else { clock::now() };
    let timeout = &forwarding.listener.shared.config.timeout;
    let patience = if upload.is_awaited() { timeout.client_body } else { timeout.backend };
    session.deadline.set(due(&session.slot, sent_at, patience));
    match send_all(connection.connection(), &exchange.outgoing, &session.deadline, || {}).await {
        Ok(()) => {}
        Err(WaitError::TimedOut) => return Err(failed(Failure::BackendTimeout)),
        // It may have answered before it closed; what it said is worth reading.
        Err(WaitError::Broken(_)) => upload.refuse(),
    }
    let cells = chosen.backend().cells();
    cells.bytes_sent.add(exchange.outgoing.len() as u64);
    let received =
        drive::until_response(session, connection.connection(), exchange, forwarding, facts, upload)
            .await
            .map_err(failed)?;
    let latency = clock::now().saturating_sub(sent_at);
    exchange.ledger.backend_header = Some(latency);
    cells.response_seconds.record(latency);
    Ok(Answered { connection, received })
}

/// A connection that has been idle for less than `max_idle`, or a new one.
async fn open(
    session: &Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
    max_idle: Option<Duration>,
) -> Result<(Busy<Connection>, bool), Failure> {
    let backend = chosen.backend();
    let send_proxy = forwarding.pool.shared.config.send_proxy;
    if let Some(max_idle) = max_idle.filter(|_| send_proxy.is_none())
        && let Some(idle) = backend.take_idle(exchange.ledger.nearly_now(), max_idle)
    {
        backend.cells().reused.increment();
        return Ok((idle.begin(), true));
    }
    let stream = Box::pin(connect(session, exchange, forwarding, chosen)).await?;
    Ok((Busy::first(stream), false))
}

/// A new connection, with the PROXY header sent where the pool wants one.
async fn connect(
    session: &Session,
    exchange: &mut Exchange,
    forwarding: &Forwarding<'_>,
    chosen: &Chosen,
) -> Result<Connection, Failure> {
    let backend = chosen.backend();
    let send_proxy = forwarding.pool.shared.config.send_proxy;
    let began = clock::now();
    session.deadline.set(due(&session.slot, began, forwarding.listener.shared.config.timeout.connect));
    let connected = backend.connect(&session.worker, &session.deadline).await;
    exchange.ledger.connect = Some(clock::now().saturating_sub(began));
    let mut stream = connected.map_err(Failure::Connect)?;
    if let Some(version) = send_proxy {
        let header = session.client.proxy_header(version, &session.stream);
        send_all(&mut stream, &header, &session.deadline, || {}).await.map_err(|error| {
            let backend = backend.shared.resolved.address().unwrap_or(session.client.peer);
            Failure::Connect(match error {
                WaitError::TimedOut => ConnectError::TimedOut { backend },
                WaitError::Broken(source) => ConnectError::Refused { backend, source },
            })
        })?;
    }
    Ok(stream)
}
