//! Connections that this side begins: to backends. They live on the same driver as those of clients, on
//! sockets of their own at which nobody is let in.

use std::any::Any;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use quinn_proto::ClientConfig;

use super::Driver;
use crate::connection::{Admission, Connection};
use crate::port::{Front, Port, Settings};
use crate::wakers::watch;

/// Frames without content that a server may send ahead of what its answers earn it: many more than a client,
/// whom nobody chose.
const CONTROL_FRAMES: u32 = 100_000;

/// How one connection is to be made.
pub struct Wanted<'a> {
    /// The protocol's settings.
    pub config: ClientConfig,
    /// Where to.
    pub remote: SocketAddr,
    /// Whom the server must prove to be.
    pub name: &'a str,
    /// Longest silence of the connection, while nothing is asked on it.
    pub idle_timeout: Duration,
}

/// The front of a socket at which nobody is let in.
pub(crate) struct Nobody {
    /// What a connection is closed with whose server sent too many frames without content.
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
    /// Begins a connection; [`Connection::poll_established`] tells when it has come about. Who no longer
    /// wants it closes it.
    ///
    /// # Errors
    /// It can't begin: the name or the address is none that can be connected to. Nothing was sent.
    pub fn connect(
        self: &Rc<Self>,
        port: &Rc<Port>,
        wanted: Wanted<'_>,
    ) -> Result<Rc<Connection>, quinn_proto::ConnectError> {
        let now = Instant::now();
        let Wanted { config, remote, name, idle_timeout } = wanted;
        let (handle, quic) = self.endpoint.borrow_mut().connect(now, config, remote, name)?;
        let (guard, control_frames) = (Box::new(()), CONTROL_FRAMES);
        let admission = Admission { handle, is_proved: true, guard, idle_timeout, control_frames };
        let connection = Rc::new(Connection::new(self, port, quic, admission, now));
        connection.is_ours.set(true);
        self.enrol(&connection);
        self.settle(&connection);
        self.wake_sender();
        Ok(connection)
    }
}

impl Connection {
    /// Whether it has ended, by whatever cause.
    pub fn is_over(&self) -> bool {
        self.inner.borrow().is_over()
    }

    /// Ready once the handshake is over, with why not where nothing came of it.
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
