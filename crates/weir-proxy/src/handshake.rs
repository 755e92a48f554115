//! What a listener does about TLS before it serves a connection: the handshake, or a look at the name that
//! the client asks for. Both are counted.

use std::rc::Rc;

use weir_io::buffers::Buffer;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::{self, Secure};
use weir_io::server_name::{self, Unread};
use weir_io::stream::Stream;
use weir_stats::table::{End, Handshake};
use weir_tls::{acme, hello};

use crate::worker::{Worker, WorkerListener};

/// Makes the handshake with a client where its listener speaks TLS; gives the connection back as it is where
/// it does not.
///
/// `buffer` may hold what was received behind a PROXY header; it is taken. The deadline is
/// `timeout.handshake` from now. The connection counts as idle meanwhile: when room is needed, those that do
/// not get on go first (threat D1).
///
/// # Errors
/// No connection came about, or none that is to last; it has been counted, and there is nobody to answer.
pub async fn with_client(
    worker: &Worker,
    listener: &WorkerListener,
    mut stream: Stream,
    buffer: &mut Option<Buffer>,
    deadline: &Deadline,
) -> Result<(Stream, Option<Rc<Secure>>), End> {
    let Some(server) = &listener.shared.tls else { return Ok((stream, None)) };
    let now = clock::now();
    deadline.set(now + listener.shared.config.timeout.handshake);
    deadline.set_idle(Some(now));
    let mut config = server.stream_config();
    if let Some(awaited) = listener.shared.challenges.stream_config() {
        let read = Box::pin(server_name(worker, listener, &mut stream, buffer, deadline)).await;
        read.inspect_err(|_| deadline.set_idle(None))?;
        let received = buffer.as_ref().map_or(&[][..], Buffer::filled);
        if hello::offers_only(received, acme::PROTOCOL) {
            config = awaited;
        }
    }
    let made = handshake::accept(server, config, stream, &worker.buffers, buffer.take(), deadline).await;
    deadline.set_idle(None);
    let cells = listener.shared.cells.of(worker.number);
    match made {
        Ok((mut stream, secure, _)) if secure.alpn.as_deref() == Some(acme::PROTOCOL) => {
            // The handshake was all that it was for (RFC 8737 section 3).
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

/// The name that a client asks for, which is read and answered nothing. `None` for a client that asks for no
/// name, or does not speak TLS.
///
/// What is received goes behind what is in `first`. The deadline is `timeout.handshake` from now.
pub async fn server_name(
    worker: &Worker,
    listener: &WorkerListener,
    stream: &mut Stream,
    first: &mut Option<Buffer>,
    deadline: &Deadline,
) -> Result<Option<String>, End> {
    deadline.set(clock::now() + listener.shared.config.timeout.handshake);
    let failed = match server_name::read(stream, first, &worker.buffers, deadline).await {
        Ok(name) => return Ok(name),
        Err(Unread::Closed) => return Err(End::ClientClosed),
        Err(Unread::NoMemory) => return Err(End::Overload),
        Err(Unread::Malformed) => Handshake::Malformed,
        Err(Unread::TimedOut) => Handshake::TimedOut,
    };
    listener.shared.cells.of(worker.number).handshakes[failed as usize].increment();
    Err(End::Handshake)
}
