//! A flow's way to one backend: a socket that is connected to it.

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

/// The way to one backend.
pub(super) struct Leg {
    listener: Rc<WorkerListener>,
    pub chosen: Chosen,
    /// The pool as of `listener`, and the backend's index there: a reload makes new ones, while `chosen`
    /// stays what it was.
    pub pool: Rc<WorkerPool>,
    index: usize,
    /// The pool's view when the backend was last seen to be fit.
    generation: u64,
    pub socket: Rc<UdpSocket>,
    at: LegAddress,
    since: Duration,
    pub has_answered: bool,
    /// The PROXY header that its datagrams begin with, or its first one.
    header: Option<Header>,
}

/// Where the backend was when its socket was connected.
struct LegAddress {
    address: SocketAddr,
    /// [`weir_state::Resolved::moves`] when the backend was last known to be there.
    moves: u32,
    /// When it was first seen to be somewhere else.
    left_since: Option<Duration>,
}

/// Whether a flow stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does.
    Stays,
    /// The backend takes no more work.
    Unfit,
    /// The backend's name leads somewhere else, and has for as long as what runs may stay.
    Moved,
}

/// What names the client to a backend, at the head of datagrams.
struct Header {
    bytes: Vec<u8>,
    /// Whether only the first datagram has it.
    is_once: bool,
    /// Whether one has got away.
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
    /// A way to a backend, to another one where the flow has `left` one. One that the kernel knows no way to
    /// is replaced by another, `retry.attempts` times.
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
            // A datagram waits for nothing.
            let chosen = reach.choose_now(worker, &pool, now).map_err(|refusal| match refusal {
                NoPick::AllBusy => Rejected::QueueFull,
                NoPick::NoneUp | NoPick::NoneInRole | NoPick::AllExcluded => Rejected::NoBackend,
            })?;
            // Many are never answered.
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

    /// The number of its socket.
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// How long the backend took for its first answer, if it came at `now`.
    pub fn latency(&self, now: Duration) -> Duration {
        now.saturating_sub(self.since)
    }

    /// Sends datagrams to the backend. Gives how many were longer than what the way there can carry, with
    /// their header where they have one: these are lost, and that is nobody's failure, for by its length
    /// alone a client could have a backend ejected.
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

    /// Hands datagrams to the kernel; gives how many it took, 0 where the first one is too long.
    fn give(&self, datagrams: &[&[u8]]) -> io::Result<usize> {
        let send = || datagrams::send(&*self.socket, datagrams, None);
        // The kernel says the same once of whatever comes next when it has learnt that the way carries less
        // than it thought (ip(7), IP_MTU_DISCOVER); asked again it sends in pieces.
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

    /// Whether nothing can be sent any more from where the pool has it leave from, as this error says: the
    /// socket is of no use, and the backend as good as it was. Says so in the log.
    pub fn cannot_leave(&self, client: IpAddr, error: &io::Error) -> bool {
        let backend = self.chosen.backend();
        let is_about_leaving = backend.is_about_leaving(error);
        if is_about_leaving {
            let error = io::Error::new(error.kind(), error.to_string());
            backend.cannot_leave(self.at.address.into(), Some(client), error);
        }
        is_about_leaving
    }

    /// The backend's host refused: whoever listens there from now on has not heard the header.
    pub fn is_refused(&mut self) {
        if let Some(header) = &mut self.header {
            header.is_sent = false;
        }
    }

    /// Whether the backend still takes work under the present config, at the address that the flow goes to or
    /// at another for less than `patience`. Usually three loads.
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

    /// Whether the backend's name no longer has the address that this goes to.
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

    /// Finds the backend in the pool that a reload brought; `false` when it is no longer there.
    fn move_home(&mut self, listener: &Rc<WorkerListener>) -> bool {
        let at_home = listener.compiled.routes.default_pool().map(|index| &listener.pools[index]);
        if at_home.is_some_and(|pool| Rc::ptr_eq(pool, &self.pool)) {
            // Another pool has changed.
            self.listener = listener.clone();
            return true;
        }
        let Some((pool, index)) = home(listener, self.chosen.backend()) else { return false };
        self.listener = listener.clone();
        self.pool = pool;
        self.index = index;
        // No view has this number: the state is looked at once.
        self.generation = u64::MAX;
        true
    }
}

/// Where `backend` stands in the pool that `listener` uses now.
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

/// A socket to the chosen backend. `Ok(None)` when the kernel knows no way there, which counts as the
/// backend's failure as it does for TCP; `Err` when this process has no descriptor left, or this host no
/// port, which is nobody's fault but ours.
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
                // This host may have no address of the family, which says nothing of the backend.
                chosen.observe_failure_for(client, worker, now, || error.to_string());
            }
            Ok(None)
        }
    }
}

/// A socket that hears only `address`, and hears when nobody listens there.
fn connect(address: SocketAddr, from_somewhere: Option<socket2::Socket>) -> io::Result<UdpSocket> {
    let socket = match from_somewhere {
        Some(socket) => socket,
        None => LocalEnd::default().open(address, None, false)?,
    };
    socket.connect(&address.into())?;
    UdpSocket::from_std(socket.into())
}
