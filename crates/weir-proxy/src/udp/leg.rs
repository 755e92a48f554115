//! The connected socket through which a flow reaches its backend.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use weir_balance::NoPick;
use weir_config::{ProxyDatagrams, RetryOn};
use weir_http::proxy_protocol::{self, ProxyAddresses};
use weir_io::local_end::LocalEnd;
use weir_io::system;
use weir_io::system::datagrams;
use weir_state::key::{Transport, flow_key};
use weir_stats::table::Rejected;

use super::{Key, Relay};
use crate::backends::{Chosen, ConnectError, WorkerBackend, WorkerPool};
use crate::reach::{Attempt, Reach, RetryVerdict, Wish};
use crate::worker::{Worker, WorkerListener};

/// A flow's connection to one backend.
pub(super) struct Leg {
    listener: Rc<WorkerListener>,
    pub chosen: Chosen,
    /// The pool as of `listener`, and the backend's index there. A reload replaces both, while `chosen`
    /// stays.
    pub pool: Rc<WorkerPool>,
    index: usize,
    /// Generation of the pool when the backend was last seen to accept work.
    generation: u64,
    pub socket: Rc<UdpSocket>,
    at: LegAddress,
    since: Duration,
    pub has_answered: bool,
    /// The PROXY header that each of its datagrams begins with, or only the first.
    header: Option<Header>,
}

/// The backend's address when the socket was connected.
struct LegAddress {
    address: SocketAddr,
    /// [`weir_state::Resolved::moves`] when the backend was last known to have this address.
    moves: u32,
    /// When the backend was first seen to have another address.
    left_since: Option<Duration>,
}

/// Whether a flow stays with its backend and address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It stays.
    Stays,
    /// The backend accepts no more work.
    Unfit,
    /// The backend's name has had another address for longer than running flows may stay.
    Moved,
}

/// The header in front of datagrams that names the client to a backend.
struct Header {
    bytes: Vec<u8>,
    /// Whether only the first datagram carries it.
    is_once: bool,
    /// Whether a datagram that carries it has been sent.
    is_sent: bool,
}

impl Header {
    fn of(pool: &weir_config::Pool, client: SocketAddr, destination: SocketAddr) -> Header {
        let mut bytes = Vec::new();
        proxy_protocol::write_v2_datagram(ProxyAddresses { source: client, destination }, &mut bytes);
        Header { bytes, is_once: pool.proxy_datagrams == ProxyDatagrams::First, is_sent: false }
    }
}

impl Leg {
    /// Opens a socket to a backend, to another one than the one that the flow has `left`, if any. If the
    /// kernel has no route to a backend, another one is tried, up to `retry.attempts` times.
    pub fn open(
        relay: &Relay,
        listener: Rc<WorkerListener>,
        left: Option<&Chosen>,
        (key, asked): (Key, Option<SocketAddr>),
        now: Duration,
    ) -> Result<Leg, Rejected> {
        let worker = &relay.worker;
        let index = listener.compiled.routes.default_pool().ok_or(Rejected::NoBackend)?;
        let pool = listener.pools[index].clone();
        let generation = pool.shared.balance.generation();
        let client = key.client.ip();
        let asked = asked.unwrap_or_else(|| relay.destination(key));
        let header = pool.shared.config.send_proxy;
        let header = header.map(|_| Header::of(&pool.shared.config, key.client, asked));
        let key = flow_key(&pool.shared.config, Transport::Udp, key.client, || Some(asked));
        let wish = Wish { key, ..Wish::default() };
        let mut reach = Reach::begin(&pool, wish, now);
        if let Some(left) = left {
            reach = reach.leaving(left, home(&listener, left.backend()).map(|(_, index)| index));
        }
        loop {
            // Datagrams do not wait in a queue.
            let chosen = reach.choose_now(worker, &pool, now).map_err(|refusal| match refusal {
                NoPick::AllBusy => Rejected::QueueFull,
                NoPick::NoneUp | NoPick::NoneInRole | NoPick::AllExcluded => Rejected::NoBackend,
            })?;
            // The trial ends now, because many flows are never answered.
            chosen.end_trial();
            if let Some((socket, at)) = open_socket(worker, &chosen, client, now)? {
                let index = chosen.index;
                let (socket, since) = (Rc::new(socket), now);
                return Ok(Leg {
                    listener,
                    chosen,
                    pool,
                    index,
                    generation,
                    socket,
                    at,
                    since,
                    has_answered: false,
                    header,
                });
            }
            let attempt = Attempt::unsent(Some(RetryOn::Connect));
            let cells = listener.shared.cells.of(worker.number);
            if reach.after(&pool, &chosen, &attempt, cells) == RetryVerdict::Leave {
                return Err(Rejected::NoBackend);
            }
        }
    }

    /// The socket's descriptor.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// How long the backend took for its first answer, if it came at `now`.
    pub fn latency(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// Sends datagrams to the backend. Gives how many were too long for the path, including their header if
    /// they have one. These are lost and do not count as the backend's failure: otherwise a client could have
    /// a backend ejected just by sending long datagrams.
    pub fn send(&mut self, datagrams: &[&[u8]]) -> io::Result<u64> {
        let (mut rest, mut lost) = (datagrams, 0);
        while let Some(first) = rest.first() {
            let taken = match self.header.as_ref().filter(|header| !(header.is_once && header.is_sent)) {
                Some(header) => self.give(&[&[&header.bytes[..], first].concat()])?,
                None => self.give(rest)?,
            };
            if let Some(header) = self.header.as_mut().filter(|_| taken > 0) {
                header.is_sent = true;
            }
            lost += u64::from(taken == 0);
            rest = &rest[taken.max(1)..];
        }
        Ok(lost)
    }

    /// Hands datagrams to the kernel; gives how many it took, 0 if the first one is too long.
    fn give(&self, datagrams: &[&[u8]]) -> io::Result<usize> {
        let send = || datagrams::send(&*self.socket, datagrams, None);
        // When the kernel has learnt that the path's MTU is smaller than it assumed, it reports that once,
        // for whatever is sent next (ip(7), IP_MTU_DISCOVER). Sent again, the datagram goes out in fragments.
        let sent = match send() {
            Err(error) if system::is_too_long(&error) => send(),
            sent => sent,
        };
        match sent {
            Ok(taken) => {
                let bytes = datagrams[..taken].iter().map(|datagram| datagram.len() as u64).sum();
                self.chosen.backend().cells().bytes_sent.add(bytes);
                Ok(taken)
            }
            Err(error) if system::is_too_long(&error) => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Whether this error means that nothing can be sent any more from the local end that the pool
    /// prescribes. The socket is then useless, but that says nothing about the backend. If so, it is logged.
    pub fn cannot_leave(&self, client: IpAddr, error: &io::Error) -> bool {
        let backend = self.chosen.backend();
        let is_about_leaving = backend.is_about_leaving(error);
        if is_about_leaving {
            let error = io::Error::new(error.kind(), error.to_string());
            backend.cannot_leave(self.at.address.into(), Some(client), error);
        }
        is_about_leaving
    }

    /// The backend's host refused a datagram: whoever listens there from now on has not received the header.
    pub fn is_refused(&mut self) {
        if let Some(header) = &mut self.header {
            header.is_sent = false;
        }
    }

    /// Whether the backend still accepts work under the current config, and still has the address that the
    /// flow goes to or lost it less than `patience` ago. Usually costs three loads.
    pub fn fit(&mut self, listener: &Rc<WorkerListener>, patience: Duration, now: Duration) -> Fit {
        if !Rc::ptr_eq(&self.listener, listener) && !self.move_home(listener) {
            return Fit::Unfit;
        }
        let generation = self.pool.shared.balance.generation();
        if self.generation != generation {
            if !self.pool.shared.balance.keeps(self.index) {
                return Fit::Unfit;
            }
            self.generation = generation;
        }
        if self.is_left() {
            let since = *self.at.left_since.get_or_insert(now);
            return if since + patience <= now { Fit::Moved } else { Fit::Stays };
        }
        Fit::Stays
    }

    /// Whether the backend's name no longer has the address that this socket is connected to.
    pub fn is_left(&mut self) -> bool {
        let resolved = &self.chosen.backend().shared.resolved;
        let moves = resolved.moves();
        if self.at.moves == moves {
            return false;
        }
        let has = |address: &SocketAddr| {
            resolved.address() == Some(*address)
                || resolved.choice().is_some_and(|choice| choice.addresses.contains(address))
        };
        if !has(&self.at.address) {
            return true;
        }
        (self.at.moves, self.at.left_since) = (moves, None);
        false
    }

    /// Finds the backend in the pool after a reload; `false` if it is no longer there.
    fn move_home(&mut self, listener: &Rc<WorkerListener>) -> bool {
        let at_home = listener.compiled.routes.default_pool().map(|index| &listener.pools[index]);
        if at_home.is_some_and(|pool| Rc::ptr_eq(pool, &self.pool)) {
            // Only another pool has changed.
            self.listener = listener.clone();
            return true;
        }
        let Some((pool, index)) = home(listener, self.chosen.backend()) else { return false };
        self.listener = listener.clone();
        self.pool = pool;
        self.index = index;
        // No generation has this number, so the backend's state is checked next time.
        self.generation = u64::MAX;
        true
    }
}

/// The pool that `listener` uses now, and the index of `backend` in it.
fn home(listener: &WorkerListener, backend: &WorkerBackend) -> Option<(Rc<WorkerPool>, usize)> {
    let pool = listener.pools[listener.compiled.routes.default_pool()?].clone();
    let same = |other: &Rc<WorkerBackend>| Arc::ptr_eq(&other.shared.resolved, &backend.shared.resolved);
    let index = pool.backends.iter().position(same)?;
    Some((pool, index))
}

impl Drop for Leg {
    fn drop(&mut self) {
        self.chosen.backend().cells().connections_ended.increment();
    }
}

/// A socket to the chosen backend. `Ok(None)` if the kernel has no route to it, which counts as the backend's
/// failure as it does for TCP. `Err` if this process has no descriptor left, or this host no port, which is
/// not the backend's fault.
fn open_socket(
    worker: &Worker,
    chosen: &Chosen,
    client: IpAddr,
    now: Duration,
) -> Result<Option<(UdpSocket, LegAddress)>, Rejected> {
    let resolved = &chosen.backend().shared.resolved;
    let moves = resolved.moves();
    let Some(in_use) = resolved.address() else { return Ok(None) };
    let (backend, cells) = (chosen.backend(), chosen.backend().cells());
    let address = backend.address_for(in_use, Some(client));
    let from_somewhere = match backend.socket_for(address, Some(client), false) {
        Ok(socket) => socket,
        Err(ConnectError::OutOfDescriptors) => return Err(Rejected::Descriptors),
        Err(error) => {
            cells.connect_failures.increment();
            tracing::debug!(%address, %error, "udp flow");
            return Ok(None);
        }
    };
    match connect(address, from_somewhere) {
        Ok(socket) => {
            cells.connections.increment();
            cells.requests[0].increment();
            Ok(Some((socket, LegAddress { address, moves, left_since: None })))
        }
        Err(error) if system::is_shortage(&error) => {
            tracing::debug!(%error, "udp flow");
            Err(Rejected::Descriptors)
        }
        Err(error) if system::is_out_of_datagram_ports(&error) => {
            tracing::debug!(%error, "udp flow");
            Err(Rejected::Ports)
        }
        Err(error) => {
            cells.connect_failures.increment();
            tracing::debug!(%address, %error, "udp flow");
            if backend.is_about_leaving(&error) {
                backend.cannot_leave(address.into(), Some(client), error);
            } else if error.kind() != io::ErrorKind::AddrNotAvailable {
                // This host may have no address of that family, which says nothing about the backend.
                chosen.observe_failure_for(client, worker, now, || error.to_string());
            }
            Ok(None)
        }
    }
}

/// A socket that receives only from `address`, and that reports when nobody listens there.
fn connect(address: SocketAddr, from_somewhere: Option<socket2::Socket>) -> io::Result<UdpSocket> {
    let socket = match from_somewhere {
        Some(socket) => socket,
        None => LocalEnd::default().open(address, None, false)?,
    };
    socket.connect(&address.into())?;
    UdpSocket::from_std(socket.into())
}
