//! Closes a connection whose client may still be sending.
//!
//! Closing with bytes unread makes the kernel send a reset, which can destroy the answer before the client
//! has read it. So the connection is half-closed first, and then what the client sends is read and discarded,
//! for a bounded time and amount (RFC 9112 §9.6).

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use weir_io::buffers::SMALL;
use weir_io::clock;
use weir_io::stream::Duplex as _;
use weir_io::wait::receive;

use crate::http::session::Session;

/// Longest wait for the client to read the answer and close.
const LONGEST: Duration = Duration::from_secs(2);
/// Most bytes that are read and discarded. A client on a fast line has sent several MiB of an upload before
/// it looks at the answer that refuses it.
const MOST_BYTES: usize = 16 << 20;

/// The longest wait for a stream, whose client is then told to stop by a reset.
const LONGEST_OF_STREAM: Duration = Duration::from_millis(500);
/// Most bytes for a stream: a few of its windows.
const MOST_BYTES_OF_STREAM: usize = 1 << 20;

/// Half-closes, then reads until the client closes or one of the bounds is reached.
pub async fn until_quiet(session: &mut Session) {
    session.requester.buffer = None;
    let shut = poll_fn(|context| session.stream.poll_shutdown(context)).await;
    if shut.is_err() {
        return;
    }
    read_away(session, LONGEST, MOST_BYTES).await;
}

/// Reads and discards the rest of a request on a stream whose answer has been sent. Dropping the stream at
/// once would reset it right after the answer, and some clients in the middle of an upload (seen with curl
/// 7.88 and 8.23) then only report the reset, although RFC 9113 §8.1 forbids them to discard the answer.
pub async fn until_stream_is_read(session: &mut Session) {
    read_away(session, LONGEST_OF_STREAM, MOST_BYTES_OF_STREAM).await;
}

async fn read_away(session: &mut Session, longest: Duration, most_bytes: usize) {
    session.requester.deadline.set(clock::now() + longest);
    let mut read = 0;
    while read < most_bytes {
        // No buffer is held while waiting, so an attacker's closing connections hold none.
        let readable = poll_fn(|context| match session.stream.poll_readable(context) {
            Poll::Ready(result) => Poll::Ready(result.is_ok()),
            Poll::Pending
                if session.requester.deadline.has_passed() || session.requester.deadline.is_shed() =>
            {
                Poll::Ready(false)
            }
            Poll::Pending => Poll::Pending,
        });
        if !readable.await {
            return;
        }
        let Some(mut waste) = session.requester.buffers.borrow(SMALL) else { return };
        match receive(&mut session.stream, &mut waste, &session.requester.deadline).await {
            Ok(0) | Err(_) => return,
            Ok(count) => read += count,
        }
    }
}
