//! Accepts a new connection: file descriptors, limits, then the session of its protocol.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpStream;
use weir_config::Protocol;
use weir_io::clock;
use weir_io::listener::{Listener, is_end};
use weir_io::system;
use weir_state::listener::ClientConnection;
use weir_state::sockets::BACKLOG;
use weir_stats::table::Rejected;

use crate::listener_socket::{Closing, ListenerSocket};
use crate::worker::{ListenerSlot, SessionCount, Worker, WorkerListener};
use crate::{evictions, http, mysql, tcp};

/// Pause after the kernel had no descriptor left for us: long enough not to spin, short enough not to be
/// noticed.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);
/// After this many pauses in which no room was made, connections are accepted only to be closed.
const PATIENT_PAUSES: u32 = 3;

/// How often a Unix socket that is being withdrawn is checked.
const UNIX_PAUSE: Duration = Duration::from_millis(5);

/// Connections of a closing socket that are accepted before other tasks get their turn.
const TURN: u16 = 64;

/// Serves one listening socket of one worker.
pub struct Acceptor {
    worker: Rc<Worker>,
    socket: Rc<ListenerSocket>,
    listener: Listener,
    spare: SpareDescriptor,
    /// Pauses for lack of a descriptor since the last accepted connection.
    short_for: u32,
}

impl Acceptor {
    /// While the acceptor exists, the worker counts it.
    pub fn new(worker: &Rc<Worker>, socket: &Rc<ListenerSocket>, listener: Listener) -> Acceptor {
        worker.totals.accepting.fetch_add(1, Ordering::Relaxed);
        let (worker, socket) = (worker.clone(), socket.clone());
        Acceptor { worker, socket, listener, spare: SpareDescriptor::open(), short_for: 0 }
    }

    /// Accepts until the socket is given up; then for as long as it lingers, and finally what waits in its
    /// accept queue.
    pub async fn run(mut self) {
        let closing = loop {
            let (listener, socket) = (&self.listener, &self.socket);
            let accepted = poll_fn(|context| match listener.poll_accept(context) {
                Poll::Ready(accepted) => Poll::Ready(Ok(accepted)),
                Poll::Pending => {
                    socket.closing(context.waker()).map_or(Poll::Pending, |it| Poll::Ready(Err(it)))
                }
            });
            match accepted.await {
                Ok(accepted) => self.take(accepted).await,
                Err(closing) => break closing,
            }
        };
        match closing {
            Closing::After(linger) => self.linger(linger).await,
            Closing::IfWithdrawnAfter(linger) if system::is_withdrawn(&self.listener) => {
                self.linger(linger).await;
            }
            Closing::IfWithdrawnAfter(_) => {}
        }
        serve_what_waits(&self.worker, &self.socket, &self.listener).await;
    }

    /// Accepts for a while longer: otherwise clients that were in the middle of the TCP handshake when the
    /// socket was withdrawn would be reset.
    async fn linger(&mut self, time: Duration) {
        if matches!(self.listener, Listener::Unix(_)) {
            return self.linger_at_unix(time).await;
        }
        let mut over = pin!(tokio::time::sleep(time));
        loop {
            let listener = &self.listener;
            let accepted = poll_fn(|context| match over.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending => listener.poll_accept(context).map(Some),
            });
            match accepted.await {
                Some(accepted) => self.take(accepted).await,
                None => return,
            }
        }
    }

    /// As [`Self::linger`], until the socket has been withdrawn and no connection waits. The kernel does not
    /// notify us of that, so it is polled.
    async fn linger_at_unix(&mut self, time: Duration) {
        let until = clock::now() + time;
        while clock::now() < until {
            match self.listener.accept_now() {
                Ok(None) => tokio::time::sleep(UNIX_PAUSE).await,
                Err(error) if is_end(&error) => return,
                Ok(Some(accepted)) => self.take(Ok(accepted)).await,
                Err(error) => self.take(Err(error)).await,
            }
        }
    }

    /// Begins a session for an accepted connection, or makes room if there is no descriptor.
    async fn take(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let (worker, socket) = (&self.worker, &self.socket);
        match accepted {
            Ok((stream, peer)) => {
                self.short_for = 0;
                let is_high = stream.as_raw_fd() >= worker.accept_ceiling;
                begin(worker, socket, stream, peer);
                if is_high {
                    worker.make_room();
                    tokio::time::sleep(DESCRIPTOR_PAUSE).await;
                }
            }
            Err(error) if system::is_shortage(&error) => {
                let slot = socket.slot();
                slot.current().shared.cells.of(worker.number).count_rejected(Rejected::Descriptors);
                self.short_for += 1;
                if worker.make_room() == 0 && self.short_for >= PATIENT_PAUSES {
                    // No room can be made: the first connection in the queue is closed at once instead of
                    // being left hanging.
                    self.spare.refuse_one(&self.listener);
                }
                tokio::time::sleep(DESCRIPTOR_PAUSE).await;
            }
            // For example a connection that was reset while it waited: we can't do anything about it, and the
            // next one may be fine.
            Err(error) => {
                tracing::debug!(%error, "accept");
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.worker.totals.accepting.fetch_sub(1, Ordering::Release);
    }
}

/// Serves every connection in the accept queue of a socket that is about to be closed, which would reset
/// them.
///
/// It asks the kernel and not tokio, because tokio also returns `Pending` when the task has used up its turn,
/// or has not yet seen that the socket is ready.
async fn serve_what_waits(worker: &Rc<Worker>, socket: &ListenerSocket, listener: &Listener) {
    let mut patience = PATIENT_PAUSES;
    // No more than can have waited: after a binary upgrade, later connections are for the new process.
    for turn in 1..=BACKLOG {
        match listener.accept_now() {
            Ok(None) => return,
            Ok(Some((stream, peer))) => begin(worker, socket, stream, peer),
            Err(error) if system::is_shortage(&error) => {
                if worker.make_room() == 0 {
                    patience -= 1;
                }
                if patience == 0 {
                    return;
                }
                tokio::time::sleep(DESCRIPTOR_PAUSE).await;
            }
            Err(error) if is_end(&error) => return,
            Err(error) => tracing::debug!(%error, "accept"),
        }
        if turn.is_multiple_of(TURN) {
            tokio::task::yield_now().await;
        }
    }
}

/// A descriptor held in reserve: closing it lets one connection be accepted and closed when there is no other
/// descriptor.
struct SpareDescriptor(Option<std::fs::File>);

impl SpareDescriptor {
    fn open() -> SpareDescriptor {
        SpareDescriptor(std::fs::File::open("/dev/null").ok())
    }

    fn refuse_one(&mut self, listener: &Listener) {
        self.0 = None;
        drop(socket2::SockRef::from(listener).accept());
        *self = SpareDescriptor::open();
    }
}

/// Admits one connection and starts its session; if the listener is full, it waits until an idle connection
/// has made room.
fn begin(worker: &Rc<Worker>, socket: &ListenerSocket, stream: TcpStream, peer: SocketAddr) {
    let slot = socket.slot();
    let listener = slot.current();
    let cells = listener.shared.cells.of(worker.number);
    // Checked first: a client that has its share already must not drive others out. Behind a balancer it is
    // checked once the PROXY header has named the client ([`crate::identify`]).
    let client_connection = if listener.shared.expects_proxy_header(peer.ip()) {
        None
    } else {
        match listener.shared.count_client(peer.ip()) {
            Ok(counted) => counted,
            Err(_) => {
                cells.count_rejected(Rejected::ClientConnections);
                return;
            }
        }
    };
    let accepted = AcceptedConnection { slot, stream, peer, client_connection };
    if listener.shared.admit() {
        return accepted.serve(worker, &listener);
    }
    let worker = worker.clone();
    tokio::task::spawn_local(async move {
        if evictions::by_eviction(&worker, &listener.shared).await {
            accepted.serve(&worker, &listener);
        } else {
            let cells = listener.shared.cells.of(worker.number);
            cells.count_rejected(Rejected::ListenerConnections);
        }
    });
}

/// An accepted connection that has no session yet.
struct AcceptedConnection {
    slot: Rc<ListenerSlot>,
    stream: TcpStream,
    peer: SocketAddr,
    client_connection: Option<ClientConnection>,
}

impl AcceptedConnection {
    /// Starts the session, which `listener` has admitted.
    fn serve(self, worker: &Rc<Worker>, listener: &WorkerListener) {
        let AcceptedConnection { slot, stream, peer, client_connection } = self;
        let count = SessionCount::enter(worker, &listener.shared);
        let worker = worker.clone();
        match listener.shared.config.protocol() {
            Protocol::Tcp => {
                tokio::task::spawn_local(async move {
                    let _held = (count, client_connection);
                    tcp::session::serve(worker, slot, stream, peer).await;
                });
            }
            Protocol::Mysql => {
                tokio::task::spawn_local(async move {
                    let _held = (count, client_connection);
                    mysql::serve(worker, slot, stream, peer).await;
                });
            }
            Protocol::Http => {
                tokio::task::spawn_local(async move {
                    let _held = (count, client_connection);
                    http::h1::serve(worker, slot, stream, peer).await;
                });
            }
            // UDP sockets don't accept; see [`crate::listen`].
            Protocol::Udp => {}
        }
    }
}
