//! A new connection: limits, then the PROXY protocol header where one is due, then the session.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use weir_config::{Protocol, ProxyVersion};
use weir_http::proxy_protocol::{self, ProxyAddresses, ProxyProgress};
use weir_io::buffers::{Buffer, SMALL};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::stream::Stream;
use weir_io::system;
use weir_io::wait::WaitError;
use weir_io::wait::receive;
use weir_stats::table::{End, Rejected};

use crate::snapshot::ClientSeat;
use crate::sockets::BACKLOG;
use crate::worker::{ListenerSlot, ListenerSocket, SessionCount, Worker, WorkerListener};
use crate::{http, seats, tcp};

/// Wait after the kernel had no descriptor left for us: long enough not to spin, short enough not to be noticed.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);
/// Pauses without any room made before connections are accepted only to be closed.
const PATIENT_PAUSES: u32 = 3;

/// Connections of a closing socket accepted before others get their turn.
const TURN: u16 = 64;

/// Who is at the other end.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The TCP peer.
    pub peer: SocketAddr,
    /// The client: the TCP peer, or whom a PROXY header from an accepted peer names.
    pub address: SocketAddr,
    /// The address the client connected to, as far as known: ours, or the one in the PROXY header.
    pub destination: Option<SocketAddr>,
}

impl Client {
    /// The PROXY protocol header that names this client to a backend; `local` says which address of ours its connection came to.
    pub fn proxy_header(
        &self,
        version: ProxyVersion,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> Vec<u8> {
        let destination = self.destination.or_else(|| local().ok());
        let addresses = destination.map(|destination| ProxyAddresses { source: self.address, destination });
        let mut header = Vec::with_capacity(proxy_protocol::V1_LONGEST_BYTES);
        match version {
            ProxyVersion::V1 => proxy_protocol::write_v1(addresses, &mut header),
            ProxyVersion::V2 => proxy_protocol::write_v2(addresses, &mut header),
        }
        header
    }
}

/// Accepts on one socket until it is closed; then serves what waits in its accept queue and ends.
pub async fn run(worker: Rc<Worker>, socket: Rc<ListenerSocket>, listener: TcpListener) {
    let mut spare = SpareDescriptor::open();
    let mut short_for = 0;
    loop {
        let accepted = poll_fn(|context| match listener.poll_accept(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if socket.is_closing(context.waker()) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        match accepted.await {
            None => return serve_what_waits(&worker, &socket, &listener).await,
            Some(Ok((stream, peer))) => {
                short_for = 0;
                let is_high = stream.as_raw_fd() >= worker.accept_ceiling;
                begin(&worker, &socket, stream, peer);
                if is_high {
                    worker.make_room();
                    tokio::time::sleep(DESCRIPTOR_PAUSE).await;
                }
            }
            Some(Err(error)) if system::is_shortage(&error) => {
                let slot = socket.slot();
                slot.current().shared.cells.of(worker.number).rejected[Rejected::Descriptors as usize]
                    .increment();
                short_for += 1;
                if worker.make_room() == 0 && short_for >= PATIENT_PAUSES {
                    // Nobody can make room: the first in line is told at once instead of being left hanging.
                    spare.refuse_one(&listener);
                }
                tokio::time::sleep(DESCRIPTOR_PAUSE).await;
            }
            // A connection that was reset while it waited, or the like: not ours to mend, and the next may be good.
            Some(Err(error)) => {
                tracing::debug!(%error, "accept");
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Serves every connection in the accept queue of a socket that is about to be closed, which would reset them.
///
/// The kernel is asked, not tokio: that says `Pending` too when the task has had its turn, or has not heard of a readiness yet.
async fn serve_what_waits(worker: &Rc<Worker>, socket: &ListenerSocket, listener: &TcpListener) {
    let mut patience = PATIENT_PAUSES;
    // No more than can have waited: after a binary upgrade, what comes from now on is for the new process.
    for turn in 1..=BACKLOG {
        match system::accept_now(listener) {
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
            Err(error) => tracing::debug!(%error, "accept"),
        }
        if turn.is_multiple_of(TURN) {
            tokio::task::yield_now().await;
        }
    }
}

/// A descriptor held in reserve: giving it up lets one connection be accepted and closed when there is no other.
struct SpareDescriptor(Option<std::fs::File>);

impl SpareDescriptor {
    fn open() -> SpareDescriptor {
        SpareDescriptor(std::fs::File::open("/dev/null").ok())
    }

    fn refuse_one(&mut self, listener: &TcpListener) {
        self.0 = None;
        drop(socket2::SockRef::from(listener).accept());
        *self = SpareDescriptor::open();
    }
}

/// Admits one connection and starts its session; when the listener is full, as soon as an idle connection has made room.
fn begin(worker: &Rc<Worker>, socket: &ListenerSocket, stream: TcpStream, peer: SocketAddr) {
    let slot = socket.slot();
    let listener = slot.current();
    let cells = listener.shared.cells.of(worker.number);
    // Asked first: who has its share already must not drive others out. Behind a balancer it is asked for once its header has
    // named the client ([`identify`]).
    let client_seat = if listener.shared.expects_proxy_header(peer.ip()) {
        None
    } else {
        match listener.shared.seat_client(peer.ip()) {
            Ok(seat) => seat,
            Err(_) => {
                cells.rejected[Rejected::ClientConnections as usize].increment();
                return;
            }
        }
    };
    let newcomer = Newcomer { slot, stream, peer, client_seat };
    if listener.shared.admit() {
        return newcomer.serve(worker, &listener);
    }
    let worker = worker.clone();
    tokio::task::spawn_local(async move {
        if seats::by_eviction(&worker, &listener.shared).await {
            newcomer.serve(&worker, &listener);
        } else {
            let cells = listener.shared.cells.of(worker.number);
            cells.rejected[Rejected::ListenerConnections as usize].increment();
        }
    });
}

/// An accepted connection without a session yet.
struct Newcomer {
    slot: Rc<ListenerSlot>,
    stream: TcpStream,
    peer: SocketAddr,
    client_seat: Option<ClientSeat>,
}

impl Newcomer {
    /// Starts the session; `listener` has admitted it.
    fn serve(self, worker: &Rc<Worker>, listener: &WorkerListener) {
        let Newcomer { slot, stream, peer, client_seat } = self;
        let count = SessionCount::enter(worker, &listener.shared);
        let worker = worker.clone();
        match listener.shared.config.protocol() {
            Protocol::Tcp => {
                tokio::task::spawn_local(async move {
                    let _held = (count, client_seat);
                    tcp::session::serve(worker, slot, stream, peer).await;
                });
            }
            Protocol::Http | Protocol::Udp => {
                tokio::task::spawn_local(async move {
                    let _held = (count, client_seat);
                    http::session::serve(worker, slot, stream, peer).await;
                });
            }
        }
    }
}

/// Finds out who the client is; reads the PROXY protocol header when `peer` must send one.
///
/// `buffer` keeps whatever came behind the header. The deadline is `timeout.header` from now. The seat is that of the client whom
/// the header names, to be held as long as the session.
pub async fn identify(
    listener: &WorkerListener,
    stream: &mut Stream,
    peer: SocketAddr,
    buffer: &mut Option<Buffer>,
    worker: &Worker,
    deadline: &Deadline,
) -> Result<(Client, Option<ClientSeat>), End> {
    let plain = Client { peer, address: peer, destination: None };
    if !listener.shared.expects_proxy_header(peer.ip()) {
        return Ok((plain, None));
    }
    deadline.set(clock::now() + listener.shared.config.timeout.header);
    let mut received = worker.buffers.borrow(SMALL).ok_or(End::Overload)?;
    loop {
        match proxy_protocol::parse(received.filled(), proxy_protocol::V2_DEFAULT_LIMIT_BYTES) {
            Ok(ProxyProgress::Complete { header, header_bytes }) => {
                received.consume(header_bytes);
                *buffer = (!received.is_empty()).then_some(received);
                let Some(told) = header.addresses else { return Ok((plain, None)) };
                let seat =
                    listener.shared.seat_client(told.source.ip()).map_err(|_| End::TooManyConnections)?;
                let client = Client { peer, address: told.source, destination: Some(told.destination) };
                return Ok((client, seat));
            }
            Ok(ProxyProgress::Partial) => {}
            Err(violation) => {
                tracing::debug!(%peer, %violation, "PROXY protocol header");
                return Err(End::BadProxyHeader);
            }
        }
        match receive(stream, &mut received, deadline).await {
            Ok(0) | Err(WaitError::Broken(_)) => return Err(End::ClientClosed),
            Ok(_) => {}
            Err(WaitError::TimedOut) => return Err(End::ClientHeader),
        }
    }
}
