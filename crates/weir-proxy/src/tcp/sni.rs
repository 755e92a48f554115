//! Learns which server name a TLS client asks for, and answers nothing: the connection is passed on as it is.

use weir_io::buffers::{Buffer, LARGE, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Stream;
use weir_io::wait::WaitError;
use weir_io::wait::receive;
use weir_stats::table::{End, Handshake};
use weir_tls::hello::{self, Greeting};

use crate::worker::{Worker, WorkerListener};

/// Receives into `first` until the greeting is whole. `None` for a client that asks for no name, or does not speak TLS.
///
/// The deadline is `timeout.handshake` from now; the connection counts as idle meanwhile, as one in a handshake of ours does.
pub async fn read(
    worker: &Worker,
    listener: &WorkerListener,
    stream: &mut Stream,
    first: &mut Option<Buffer>,
    deadline: &Deadline,
) -> Result<Option<String>, End> {
    let now = clock::now();
    deadline.set(now + listener.shared.config.timeout.handshake);
    let count = |result: Handshake| {
        listener.shared.cells.of(worker.number).handshakes[result as usize].increment();
        End::Handshake
    };
    loop {
        let received = first.as_ref().map_or(&[][..], Buffer::filled);
        match hello::read(received) {
            Greeting::Hello(name) => return Ok(name),
            Greeting::NotTls => return Ok(None),
            Greeting::Malformed => return Err(count(Handshake::Malformed)),
            Greeting::Partial => {}
        }
        let mut buffer = match first.take() {
            None => worker.buffers.borrow(SMALL).ok_or(End::Overload)?,
            Some(mut full) => {
                full.compact();
                if full.is_full() {
                    let mut larger = worker.buffers.borrow(LARGE).ok_or(End::Overload)?;
                    larger.append(full.filled());
                    larger
                } else {
                    full
                }
            }
        };
        let got = receive(stream, &mut buffer, deadline).await;
        *first = Some(buffer);
        match got {
            Ok(0) | Err(WaitError::Broken(_)) => return Err(End::ClientClosed),
            Ok(_) => {}
            Err(WaitError::TimedOut) => return Err(count(Handshake::TimedOut)),
        }
    }
}
