//! A socket, together with the listener that makes decisions about its connections.

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

/// A listener's decisions about its connections.
pub trait Front {
    /// Settings for a connection that begins now; `None` when none may.
    fn settings(&self) -> Option<Settings>;
    /// Admits one more connection from `remote`, if allowed; returns a guard that counts it until dropped.
    fn admit(&self, remote: SocketAddr) -> Option<Box<dyn Any>>;
    /// Serves a connection whose handshake is complete.
    fn serve(&self, connection: Rc<Connection>);
    /// Counts a client that sent too many frames without content, and returns the code to close its
    /// connection with.
    fn flooded(&self) -> u64;
}

/// See [`Front::settings`].
pub struct Settings {
    /// The protocol's settings.
    pub server: Arc<ServerConfig>,
    /// Longest handshake.
    pub handshake_timeout: Duration,
    /// Idle timeout of a connection.
    pub idle_timeout: Duration,
    /// Frames without content that a client may send before it has earned any.
    pub control_frames: u32,
    /// Whether clients must prove their address before they are admitted, because the limit is near.
    pub wants_proof: bool,
}

/// A socket and its listener.
pub struct Port {
    /// The socket.
    pub socket: Socket,
    /// The listener.
    pub front: Rc<dyn Front>,
    /// Whether it accepts new connections.
    pub(crate) is_open: Cell<bool>,
    /// Connections that send on it.
    pub(crate) connections: Cell<usize>,
    /// Woken when the last of them is over.
    pub(crate) unused: RefCell<Option<Waker>>,
}

/// Whether a socket is still served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// Yes.
    Open,
    /// No longer; until it is closed, only this process receives from it.
    Closing,
    /// No longer; the next process, if there is one, has the socket too.
    HandedOver,
}

impl Port {
    /// A socket that serves `front`.
    pub fn new(socket: Socket, front: Rc<dyn Front>) -> Rc<Port> {
        let (is_open, connections) = (Cell::new(true), Cell::new(0));
        Rc::new(Port { socket, front, is_open, connections, unused: RefCell::default() })
    }

    /// For a socket that is being closed: whether it no longer has to receive, because it has no connections,
    /// or because the next process also has the socket, receives, and forwards what belongs to them. `waker`
    /// is woken when that may have changed.
    pub(crate) fn is_released(&self, has_another_receiver: bool, waker: &Waker) -> bool {
        self.is_open.set(false);
        if self.connections.get() == 0 || has_another_receiver {
            return true;
        }
        *self.unused.borrow_mut() = Some(waker.clone());
        false
    }

    /// The port for new connections that arrive at this one: itself, or the one of `ports` that has replaced
    /// it since it began to close.
    pub(crate) fn replacement(self: &Rc<Self>, ports: &[Rc<Port>]) -> Rc<Port> {
        let place = self.socket.place();
        let is_replacement = |other: &&Rc<Port>| other.is_open.get() && other.socket.place().meets(place);
        let replacement = if self.is_open.get() { None } else { ports.iter().rfind(is_replacement) };
        replacement.unwrap_or(self).clone()
    }

    /// Call this when one of its connections is over.
    pub(crate) fn leave(&self) {
        self.connections.set(self.connections.get() - 1);
        if self.connections.get() == 0
            && let Some(waker) = self.unused.take()
        {
            waker.wake();
        }
    }
}
