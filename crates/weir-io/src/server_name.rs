//! Learns which server name a TLS client asks for, and answers nothing: the connection is passed on as it is.

use std::rc::Rc;

use weir_tls::hello::{self, Greeting};

use crate::buffers::{Buffer, Buffers, LARGE, SMALL};
use crate::deadline::Deadline;
use crate::stream::Stream;
use crate::wait::{WaitError, receive};

/// Why no greeting came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The client closed or reset the connection.
    Closed,
    /// No buffer could be had within the memory budget.
    NoMemory,
    /// The client's bytes begin like a greeting and are none.
    Malformed,
    /// The deadline passed.
    TimedOut,
}

/// Receives behind what is in `first` until the greeting is whole, which stays there. `None` for a client
/// that asks for no name, or does not speak TLS. The deadline is the caller's to set.
///
/// # Errors
/// The greeting did not come, or is none.
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
