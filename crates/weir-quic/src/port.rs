//! A socket together with the listener that decides about its connections.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use quinn_proto::ServerConfig;

use crate::connection::Connection;
use crate::socket::Socket;

/// Decisions of a listener about its connections.
pub trait Front {
    /// Settings for a connection that begins now; `None` when none may.
    fn settings(&self) -> Option<Settings>;
    /// Whether one more may begin from `remote`; what counts it, until dropped.
    fn admit(&self, remote: SocketAddr) -> Option<Box<dyn Any>>;
    /// Serves a connection whose handshake is over.
    fn serve(&self, connection: Rc<Connection>);
    /// Counts a client that sent more frames without content than it may, and gives the code that its
    /// connection is closed with.
    fn flooded(&self) -> u64;
}

/// See [`Front::settings`].
pub struct Settings {
    /// The protocol's.
    pub server: Arc<ServerConfig>,
    /// Longest handshake.
    pub handshake_timeout: Duration,
    /// Longest silence of a connection.
    pub idle_timeout: Duration,
    /// Frames without content that a client may send ahead of what earns it more.
    pub control_frames: u32,
    /// Whether a client proves its address before it takes a place, since places are becoming few.
    pub wants_proof: bool,
}

/// A socket and the listener that it is for.
pub struct Port {
    /// The socket.
    pub socket: Socket,
    /// The listener.
    pub front: Rc<dyn Front>,
    /// Whether it takes new connections.
    pub(crate) is_open: Cell<bool>,
    /// Connections that send on it.
    pub(crate) connections: Cell<usize>,
    /// Woken when the last of them is over.
    pub(crate) unused: RefCell<Option<Waker>>,
}

/// Whether a socket is still served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// It is.
    Open,
    /// It is given up: what comes to it until it is closed comes to this process alone.
    Closing,
    /// It is given up, and the next process, if there is one, has it too.
    HandedOver,
}

impl Port {
    /// A socket that serves `front`.
    pub fn new(socket: Socket, front: Rc<dyn Front>) -> Rc<Port> {
        let (is_open, connections) = (Cell::new(true), Cell::new(0));
        Rc::new(Port { socket, front, is_open, connections, unused: RefCell::default() })
    }

    /// For a socket that is being closed: whether nobody needs what arrives at it, because it has no
    /// connections, or because the next process has it too, receives, and passes on what is theirs. `waker`
    /// is woken when that may have changed.
    pub(crate) fn is_released(&self, has_another_receiver: bool, waker: &Waker) -> bool {
        self.is_open.set(false);
        if self.connections.get() == 0 || has_another_receiver {
            return true;
        }
        *self.unused.borrow_mut() = Some(waker.clone());
        false
    }

    /// The port that takes new connections that come to this one: itself, or one of `ports` that was opened
    /// in its place since it began to close.
    pub(crate) fn replacement(self: &Rc<Self>, ports: &[Rc<Port>]) -> Rc<Port> {
        let place = self.socket.place();
        let is_replacement = |other: &&Rc<Port>| other.is_open.get() && other.socket.place().meets(place);
        let replacement = if self.is_open.get() { None } else { ports.iter().rfind(is_replacement) };
        replacement.unwrap_or(self).clone()
    }

    /// One of its connections is over.
    pub(crate) fn leave(&self) {
        self.connections.set(self.connections.get() - 1);
        if self.connections.get() == 0
            && let Some(waker) = self.unused.take()
        {
            waker.wake();
        }
    }
}
