//! Receiving and sending with the session's deadline.

use std::future::poll_fn;
use std::task::Poll;

use weir_io::buffers::Buffer;
use weir_io::deadline::Deadline;
use weir_io::wait::{WaitError, timed_out};

use crate::stream::Stream;

/// Receives once, or ends with the deadline.
#[inline]
pub async fn receive(
    stream: &mut Stream,
    buffer: &mut Buffer,
    deadline: &Deadline,
) -> Result<usize, WaitError> {
    poll_fn(|context| match stream.poll_receive(context, buffer) {
        Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
        Poll::Pending => timed_out(deadline),
    })
    .await
}

/// Sends all of `bytes`, or ends with the deadline, which `progress` is called to renew after each part sent.
#[inline]
pub async fn send_all(
    stream: &mut Stream,
    mut bytes: &[u8],
    deadline: &Deadline,
    mut progress: impl FnMut(),
) -> Result<(), WaitError> {
    while !bytes.is_empty() {
        let sent = poll_fn(|context| match stream.poll_send(context, bytes) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => timed_out(deadline),
        })
        .await?;
        bytes = &bytes[sent..];
        if !bytes.is_empty() {
            progress();
        }
    }
    Ok(())
}
