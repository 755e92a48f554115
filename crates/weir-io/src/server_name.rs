//! Reads the server name that a TLS client asks for, without answering: the connection is passed on
//! unchanged.

use std::rc::Rc;

use weir_tls::hello::{self, Greeting};

use crate::buffers::{Buffer, Buffers, LARGE, SMALL};
use crate::deadline::Deadline;
use crate::stream::Stream;
use crate::wait::{WaitError, receive};

/// Why no ClientHello was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The client closed or reset the connection.
    Closed,
    /// The memory budget had no buffer left.
    NoMemory,
    /// The client's bytes begin like a ClientHello but are not one.
    Malformed,
    /// The deadline passed.
    TimedOut,
}

/// Receives into `first`, behind what is there, until the ClientHello is complete; its bytes stay there.
/// `None` for a client that asks for no name, or does not speak TLS. The caller sets the deadline.
///
/// # Errors
/// The ClientHello did not arrive, or is malformed.
pub async fn read(
    stream: &mut Stream,
    first: &mut Option<Buffer>,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
) -> Result<Option<String>, Unread> {
    loop {
        let received = first.as_ref().map_or(&[][..], Buffer::filled);
        match hello::read(received) {
            Greeting::Hello(name) => return Ok(name),
            Greeting::NotTls => return Ok(None),
            Greeting::Malformed => return Err(Unread::Malformed),
            Greeting::Partial => {}
        }
        let mut buffer = match first.take() {
            None => buffers.borrow(SMALL).ok_or(Unread::NoMemory)?,
            Some(mut full) => {
                full.compact();
                if full.is_full() {
                    let mut larger = buffers.borrow(LARGE).ok_or(Unread::NoMemory)?;
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
            Ok(0) | Err(WaitError::Broken(_)) => return Err(Unread::Closed),
            Ok(_) => {}
            Err(WaitError::TimedOut) => return Err(Unread::TimedOut),
        }
    }
}
