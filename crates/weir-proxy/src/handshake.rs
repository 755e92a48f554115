//! What a listener does about TLS before it serves a connection: it makes the handshake, or only reads the
//! server name (SNI) that the client asks for. Both are counted.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};

use weir_io::buffers::{Buffer, Buffers};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::{self, Secure};
use weir_io::server_name::{self, Unread};
use weir_io::stream::Stream;
use weir_stats::table::{End, Handshake};
use weir_tls::{ServerTls, acme, hello};

use crate::worker::{Worker, WorkerListener};

/// Makes the handshake with a client if its listener uses TLS; otherwise gives the connection back unchanged.
///
/// `buffers` are those of the client. `buffer` may hold bytes received after a PROXY header; it is taken. The
/// deadline is `timeout.handshake` from now. The connection counts as idle meanwhile: when room is needed,
/// connections that make no progress are closed first (threat D1).
///
/// # Errors
/// The handshake failed, or was all that the connection was for; that has been counted, and there is nobody
/// to answer.
pub async fn with_client(
    worker: &Worker,
    listener: &WorkerListener,
    buffers: &Rc<Buffers>,
    mut stream: Stream,
    buffer: &mut Option<Buffer>,
    deadline: &Deadline,
) -> Result<(Stream, Option<Rc<Secure>>), End> {
    let Some(server) = &listener.shared.tls else { return Ok((stream, None)) };
    let now = clock::now();
    deadline.set(now + listener.shared.config.timeout.handshake);
    deadline.set_idle(Some(now));
    let mut config = server.stream_config();
    let challenges = &listener.shared.challenges;
    let is_awaited = challenges.stream_config().is_some() || challenges.shares_handshakes();
    if is_awaited || !server.on_demand().is_empty() {
        let read = Box::pin(server_name::read(&mut stream, buffer, buffers, deadline)).await;
        let name = match read {
            // The handshake detects this as well and sends the client an alert.
            Err(Unread::Malformed) => None,
            read => counted(worker, listener, read).inspect_err(|_| deadline.set_idle(None))?,
        };
        let received = buffer.as_ref().map_or(&[][..], Buffer::filled);
        match (hello::offers_only(received, acme::PROTOCOL), name) {
            // An authority that checks whether a domain is ours must not wait for that domain's certificate.
            (true, name) => {
                if name.is_some_and(|name| challenges.may_be_shared_handshake(&name)) {
                    let waited = Box::pin(shared_proof(listener, &mut stream, deadline)).await;
                    waited.inspect_err(|_| deadline.set_idle(None))?;
                }
                config = challenges.stream_config().cloned().unwrap_or(config);
            }
            (false, Some(name)) => {
                let waited = Box::pin(certificate(listener, server, &name, &mut stream, deadline)).await;
                waited.inspect_err(|_| deadline.set_idle(None))?;
            }
            (false, None) => {}
        }
    }
    let made = handshake::accept(server, &config, stream, buffers, buffer.take(), deadline).await;
    deadline.set_idle(None);
    let cells = listener.shared.cells.of(worker.number);
    match made {
        Ok((mut stream, secure, _)) if secure.alpn.as_deref() == Some(acme::PROTOCOL) => {
            // The connection was only made for the handshake (RFC 8737 section 3).
            cells.handshakes[Handshake::Challenge as usize].increment();
            stream.say_farewell().await;
            Err(End::Responded)
        }
        Ok((stream, secure, result)) => {
            cells.handshakes[result as usize].increment();
            Ok((stream, Some(Rc::new(secure))))
        }
        Err(failed) => {
            cells.handshakes[failed as usize].increment();
            Err(if failed == Handshake::Overload { End::Overload } else { End::Handshake })
        }
    }
}

/// Waits for the certificate of a name that has none yet, if one can be obtained (`on_demand`). The deadline
/// is `timeout.handshake` from the end of the wait.
///
/// # Errors
/// The client has left, or must make room.
async fn certificate(
    listener: &WorkerListener,
    server: &ServerTls,
    name: &str,
    stream: &mut Stream,
    deadline: &Deadline,
) -> Result<(), End> {
    let Some(mut waiting) = server.wanted(name) else { return Ok(()) };
    deadline.set(clock::now() + waiting.limit());
    if !waits(stream, deadline, |context| waiting.poll(context)).await? {
        waiting.time_out();
    }
    deadline.set(clock::now() + listener.shared.config.timeout.handshake);
    Ok(())
}

/// Waits until the shared store has been checked for a proof of another Weir; a proof that is found is used
/// from then on. The wait never extends the deadline.
///
/// # Errors
/// The client has left, or must make room.
async fn shared_proof(
    listener: &WorkerListener,
    stream: &mut Stream,
    deadline: &Deadline,
) -> Result<(), End> {
    let mut look = listener.shared.challenges.look();
    waits(stream, deadline, |context| look.poll_ended(context)).await.map(drop)
}

/// Waits until `ends` is ready, or for the deadline; gives whether `ends` was ready first.
///
/// # Errors
/// The client has left, or must make room.
async fn waits(
    stream: &mut Stream,
    deadline: &Deadline,
    mut ends: impl FnMut(&mut Context<'_>) -> Poll<()>,
) -> Result<bool, End> {
    poll_fn(|context| match ends(context) {
        Poll::Ready(()) => Poll::Ready(Ok(true)),
        Poll::Pending if deadline.is_shed() => Poll::Ready(Err(End::Overload)),
        Poll::Pending if stream.poll_left(context) => Poll::Ready(Err(End::ClientClosed)),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Ok(false)),
        Poll::Pending => Poll::Pending,
    })
    .await
}

/// Reads the server name (SNI) that a client asks for, and answers nothing. `None` for a client that asks for
/// no name, or does not speak TLS.
///
/// Received bytes are appended to `first`. The deadline is `timeout.handshake` from now.
pub async fn server_name(
    worker: &Worker,
    listener: &WorkerListener,
    buffers: &Rc<Buffers>,
    stream: &mut Stream,
    first: &mut Option<Buffer>,
    deadline: &Deadline,
) -> Result<Option<String>, End> {
    deadline.set(clock::now() + listener.shared.config.timeout.handshake);
    let read = server_name::read(stream, first, buffers, deadline).await;
    counted(worker, listener, read)
}

/// Returns what was read. Counts a ClientHello that did not arrive.
fn counted(
    worker: &Worker,
    listener: &WorkerListener,
    read: Result<Option<String>, Unread>,
) -> Result<Option<String>, End> {
    let failed = match read {
        Ok(name) => return Ok(name),
        Err(Unread::Closed) => return Err(End::ClientClosed),
        Err(Unread::NoMemory) => return Err(End::Overload),
        Err(Unread::Malformed) => Handshake::Malformed,
        Err(Unread::TimedOut) => Handshake::TimedOut,
    };
    listener.shared.cells.of(worker.number).handshakes[failed as usize].increment();
    Err(End::Handshake)
}
