//! Outgoing connections, to backends. They use the same driver as those from clients, and sockets of their
//! own that admit no clients.

use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::Driver;
use crate::allowance::OwnSettings;
use crate::connection::{Admission, Connection};
use crate::port::{Front, Port, Settings};
use crate::wakers::watch;

/// Frames without content that a server may send before its answers have earned any: many more than for a
/// client, as the operator chose the server.
const CONTROL_FRAMES: u32 = 100_000;

/// Parameters of an outgoing connection.
pub struct Wanted<'a> {
    /// The protocol's settings.
    pub settings: OwnSettings,
    /// The address to connect to.
    pub remote: SocketAddr,
    /// The name that the server must prove.
    pub name: &'a str,
    /// Idle timeout of the connection while there is no request on it.
    pub idle_timeout: Duration,
}

/// The front of a socket that admits no clients.
pub(crate) struct Nobody {
    /// The code to close a connection with if its server sent too many frames without content.
    pub flooded: u64,
}

impl Front for Nobody {
    fn settings(&self) -> Option<Settings> {
        None
    }

    fn admit(&self, _: SocketAddr) -> Option<Box<dyn Any>> {
        None
    }

    fn serve(&self, _: Rc<Connection>) {}

    fn flooded(&self) -> u64 {
        self.flooded
    }
}

impl Driver {
    /// Begins a connection; [`Connection::poll_established`] reports when it is established. Close it if it
    /// is no longer wanted.
    ///
    /// # Errors
    /// It can't begin, because the name or the address is unusable. Nothing was sent.
    pub fn connect(
        self: &Rc<Self>,
        port: &Rc<Port>,
        wanted: Wanted<'_>,
    ) -> Result<Rc<Connection>, quinn_proto::ConnectError> {
        let now = Instant::now();
        let Wanted { settings: OwnSettings { config, allowance }, remote, name, idle_timeout } = wanted;
        let (handle, quic) = self.endpoint.borrow_mut().connect(now, config, remote, name)?;
        let (guard, control_frames) = (Box::new(()), CONTROL_FRAMES);
        let admission = Admission { handle, is_proved: true, guard, idle_timeout, control_frames };
        let connection = Rc::new(Connection::new(self, port, quic, admission, now));
        connection.is_ours.set(true);
        connection.inner.borrow_mut().allowance = Some(allowance);
        self.enrol(&connection);
        self.settle(&connection);
        self.wake_sender();
        Ok(connection)
    }
}

impl Connection {
    /// Whether it has ended, for whatever reason.
    pub fn is_over(&self) -> bool {
        self.inner.borrow().is_over()
    }

    /// Whether a server allows so little more that further requests may have to wait until it has read what
    /// was sent for others.
    pub fn is_narrow(&self) -> bool {
        self.inner.borrow().allowance.as_ref().is_some_and(|allowance| allowance.is_narrow())
    }

    /// Ready once the handshake has ended; `Err` with the reason if it failed.
    pub fn poll_established(&self, context: &mut Context<'_>) -> Poll<Result<(), String>> {
        let inner = &mut *self.inner.borrow_mut();
        if inner.is_over() {
            let why = inner.lost.as_ref().map_or_else(|| "it was closed".to_owned(), ToString::to_string);
            return Poll::Ready(Err(why));
        }
        if self.is_confirmed.get() {
            return Poll::Ready(Ok(()));
        }
        watch(&mut inner.closed, context);
        Poll::Pending
    }
}
