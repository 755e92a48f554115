//! A socket together with the listener that decides about its connections.

use std::any::Any;
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use quinn_proto::ServerConfig;

use super::connection::Connection;
use super::socket::Socket;

/// What a listener decides about its connections.
pub trait Front {
    /// Settings for a connection that begins now; `None` when none may.
    fn settings(&self) -> Option<Settings>;
    /// Whether one more may begin from `remote`; what counts it, until dropped.
    fn admit(&self, remote: SocketAddr) -> Option<Box<dyn Any>>;
    /// Serves a connection whose handshake is over.
    fn serve(&self, connection: Rc<Connection>);
    /// Counts a client that sent more frames without content than it may, and gives the code that its connection is closed with.
    fn flooded(&self) -> u64;
}

/// See [`Front::settings`].
pub struct Settings {
    /// The protocol's.
    pub server: Arc<ServerConfig>,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a silent connection is kept.
    pub idle_timeout: Duration,
    /// Frames without content that a client may send ahead of what earns it more.
    pub control_frames: u32,
}

/// A socket and the listener that it is for.
pub struct Port {
    /// The socket.
    pub socket: Socket,
    /// The listener.
    pub front: Rc<dyn Front>,
    /// Whether it receives.
    pub(super) is_open: Cell<bool>,
    /// Connections that send on it.
    pub(super) connections: Cell<usize>,
}

impl Port {
    /// A socket that serves `front`.
    pub fn new(socket: Socket, front: Rc<dyn Front>) -> Rc<Port> {
        Rc::new(Port { socket, front, is_open: Cell::new(true), connections: Cell::new(0) })
    }
}
