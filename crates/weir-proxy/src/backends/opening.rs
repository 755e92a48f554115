//! Opens connections to backends: TCP, the PROXY header, TLS.

use std::future::Future as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use rustls::HandshakeKind;
use socket2::Socket;
use tokio::net::TcpStream;
use weir_io::at::At;
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::{self, Offer, Shaken};
use weir_io::local_end;
use weir_io::race;
use weir_io::stream::Stream;
use weir_io::system;
use weir_io::wait::{WaitError, send_all, timed_out};
use weir_quic::allowance::OwnSettings;
use weir_quic::connection::Connection as QuicConnection;
use weir_quic::endpoint::connect::Wanted;
use weir_state::Choice;
use weir_tls::BackendTls;

use super::{Chosen, ConnectError, Connection, OpenCount, Reservation, WorkerBackend, WorkerPool};
use crate::client::Client;
use crate::events::Event;
use crate::worker::Worker;

/// How long to wait for a descriptor to become free.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(10);

/// The PROXY header that a connection to a backend begins with, if its pool has `send_proxy`. It is written
/// on every connection that is opened for a client, even if nothing that the client sent goes there, because
/// such a backend serves no connection without it.
pub struct ProxyHeader(Option<Vec<u8>>);

impl ProxyHeader {
    /// The header for backends of `pool` and this client. `local` gives the address of ours that the client
    /// connected to, and is called only if a header is sent.
    pub fn of(
        pool: &WorkerPool,
        client: &Client,
        local: impl FnOnce() -> io::Result<SocketAddr>,
    ) -> ProxyHeader {
        let version = pool.shared.config.send_proxy;
        ProxyHeader(version.map(|version| client.proxy_header(version, local)))
    }
}

/// Parameters of a new connection.
struct OpenHow<'a> {
    /// The header that is sent first.
    proxy_header: Option<&'a ProxyHeader>,
    /// The client whose address it may leave from.
    client: Option<IpAddr>,
    /// Its share of the backend's `max_connections`.
    reserved: Option<Reservation>,
    /// Whether another address of the backend's name may be used: not if something known about the backend
    /// was learnt from what it said.
    takes_any: bool,
}

impl WorkerBackend {
    /// Opens a connection that is ready for the protocol's first byte: the PROXY header has been sent if one
    /// is wanted, and the TLS handshake made if the pool uses TLS. The caller sets the deadline. `client` is
    /// the client whose address the connection may leave from.
    ///
    /// `Err(OutOfDescriptors)` only if no descriptor became free before the deadline.
    pub async fn open(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        proxy_header: &ProxyHeader,
        client: Option<IpAddr>,
    ) -> Result<Connection, ConnectError> {
        let proxy_header = Some(proxy_header);
        let opening = OpenHow { proxy_header, client, reserved: None, takes_any: true };
        let connection = self.open_plain(worker, deadline, opening).await?;
        match &self.shared.tls {
            None => Ok(connection),
            Some(tls) => Box::pin(self.secure(tls, worker, connection, deadline)).await,
        }
    }

    /// As [`Self::open`], but lets the backend choose between HTTP/2 and HTTP/1.1 ([`Connection::is_h2`]),
    /// and notes the choice for others. The pool sends no PROXY header, because requests of several clients
    /// may share a connection.
    pub async fn open_either(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        client: IpAddr,
    ) -> Result<Connection, ConnectError> {
        let opening = OpenHow { proxy_header: None, client: Some(client), reserved: None, takes_any: true };
        let connection = self.open_plain(worker, deadline, opening).await?;
        // Without TLS there is no choice; the config's check refuses such a pool.
        let Some(tls) = &self.shared.tls else { return Ok(connection) };
        let connection = Box::pin(self.shake(tls, Offer::Either, worker, connection, deadline)).await?;
        self.shared.picked.note(connection.is_h2);
        let cells = self.cells();
        let counter = if connection.is_h2 { &cells.picked_h2 } else { &cells.picked_h1 };
        counter.increment();
        Ok(connection)
    }

    /// As [`Self::open`] without TLS, for a protocol in which TLS begins in mid-stream ([`Self::secure`]).
    async fn open_plain(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        opening: OpenHow<'_>,
    ) -> Result<Connection, ConnectError> {
        let mut connection = self.connect(worker, deadline, &opening).await?;
        connection.count._reserved = opening.reserved;
        if let Some(ProxyHeader(Some(header))) = opening.proxy_header {
            let sent = send_all(&mut *connection, header, deadline, || {}).await;
            sent.map_err(|error| self.wait_failed(error))?;
            self.cells().bytes_sent.add(header.len() as u64);
        }
        Ok(connection)
    }

    async fn connect(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        opening: &OpenHow<'_>,
    ) -> Result<Connection, ConnectError> {
        let mut was_short = false;
        loop {
            match self.try_to_connect(worker, deadline, opening).await {
                // The shortage is ours: connections end or make room, and this one waits for a descriptor
                // until its deadline.
                Err(ConnectError::OutOfDescriptors) if !deadline.has_passed() => {
                    was_short = true;
                    worker.make_room();
                    tokio::time::sleep(DESCRIPTOR_PAUSE).await;
                }
                // The backend did not get all the time that it should have.
                Err(ConnectError::TimedOut { .. }) if was_short => {
                    return Err(ConnectError::OutOfDescriptors);
                }
                connected => {
                    if let Err(ConnectError::Refused { .. } | ConnectError::TimedOut { .. }) = connected {
                        self.cells().connect_failures.increment();
                    }
                    return connected;
                }
            }
        }
    }

    /// Makes the TLS handshake. It comes after the PROXY header, and nothing received before it is taken for
    /// an answer (threat A21); the caller makes sure that no received bytes are left unread.
    pub async fn secure(
        &self,
        tls: &BackendTls,
        worker: &Worker,
        connection: Connection,
        deadline: &Deadline,
    ) -> Result<Connection, ConnectError> {
        self.shake(tls, Offer::Usual, worker, connection, deadline).await
    }

    async fn shake(
        &self,
        tls: &BackendTls,
        offer: Offer,
        worker: &Worker,
        connection: Connection,
        deadline: &Deadline,
    ) -> Result<Connection, ConnectError> {
        let Some(backend) = self.shared.resolved.at() else {
            return Err(ConnectError::Unresolved { backend: self.shared.address.clone() });
        };
        let moves = connection.moves;
        let (stream, count) = connection.into_parts();
        match handshake::connect(tls, offer, stream, &worker.buffers, deadline).await {
            Ok(Shaken { stream, kind, is_h2 }) => {
                match kind {
                    HandshakeKind::Resumed => self.cells().tls_resumed.increment(),
                    _ => self.cells().tls_full.increment(),
                }
                Ok(Connection { stream, count, moves, is_h2 })
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                self.cells().tls_failures.increment();
                Err(ConnectError::TimedOut { backend })
            }
            Err(error) => {
                self.cells().tls_failures.increment();
                let speaks_none = handshake::speaks_none_of_them(&error);
                Err(ConnectError::Tls { backend, reason: handshake::describe(&error), speaks_none })
            }
        }
    }

    async fn try_to_connect(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        opening: &OpenHow<'_>,
    ) -> Result<Connection, ConnectError> {
        let client = opening.client;
        let moves = self.shared.resolved.moves();
        let Some(at) = self.shared.resolved.at() else {
            return Err(ConnectError::Unresolved { backend: self.shared.address.clone() });
        };
        let choice = self.shared.resolved.choice().filter(|_| opening.takes_any);
        let from_somewhere = match &at {
            // If the name has several addresses to choose from, each attempt opens its own socket.
            At::Inet(address) if choice.is_none() => {
                self.socket_for(*address, client, true)?.map(|socket| (socket, *address))
            }
            _ => None,
        };
        let mut connecting = pin!(async {
            match (from_somewhere, choice, at.inet()) {
                (_, Some(choice), Some(first)) => {
                    Box::pin(self.connect_to_any(worker, first, &choice, client)).await
                }
                (None, ..) => at.connect().await,
                (Some((socket, address)), ..) => local_end::connect(socket, address).await,
            }
        });
        let connected = std::future::poll_fn(|context| match connecting.as_mut().poll(context) {
            Poll::Ready(result) => Poll::Ready(result.map_err(WaitError::Broken)),
            Poll::Pending => timed_out(deadline),
        })
        .await;
        match connected {
            Ok(stream) => {
                // Heads and bodies are sent in separate writes; Nagle's algorithm would delay the second one.
                if at.inet().is_some() {
                    let _ = stream.set_nodelay(true);
                }
                let ender = match self.ends_when_down.get() {
                    false => None,
                    true => {
                        let ender = self.enders.register(&stream);
                        Some(ender.map_err(|_| ConnectError::OutOfDescriptors)?)
                    }
                };
                self.cells().connections.increment();
                let stream = Stream::plain(stream);
                let count = OpenCount {
                    cells: self.shared.cells.clone(),
                    number: self.number as u32,
                    _reserved: None,
                    ender,
                };
                Ok(Connection { stream, count, moves, is_h2: false })
            }
            Err(WaitError::TimedOut) => Err(ConnectError::TimedOut { backend: at.clone() }),
            Err(WaitError::Broken(source)) if system::is_shortage(&source) => {
                Err(ConnectError::OutOfDescriptors)
            }
            Err(WaitError::Broken(source))
                if at.inet().is_some_and(|to| system::is_out_of_ports(&source, to)) =>
            {
                Err(ConnectError::OutOfPorts { backend: at.clone() })
            }
            Err(WaitError::Broken(source)) if self.is_about_leaving(&source) => {
                Err(self.cannot_leave(at.clone(), client, source))
            }
            Err(WaitError::Broken(source)) => Err(ConnectError::Refused { backend: at.clone(), source }),
        }
    }

    /// Opens a QUIC connection, with `settings`, that is ready for the first request. The caller sets the
    /// deadline.
    pub async fn open_quic(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        (settings, tls): (OwnSettings, &BackendTls),
        (idle_timeout, flooded): (Duration, u64),
    ) -> Result<(Rc<QuicConnection>, OpenCount, u32), ConnectError> {
        let moves = self.shared.resolved.moves();
        let Some((at, remote)) = self.shared.resolved.at().and_then(|at| Some((at.clone(), at.inet()?)))
        else {
            return Err(ConnectError::Unresolved { backend: self.shared.address.clone() });
        };
        let refused = |source: io::Error| ConnectError::Refused { backend: at.clone(), source };
        let port = worker.quic.own_port(remote.is_ipv6(), flooded).map_err(refused)?;
        let name = tls.name.to_str();
        let wanted = Wanted { settings, remote, name: &name, idle_timeout };
        let begun = worker.quic.driver().connect(&port, wanted);
        let quic = begun.map_err(|error| refused(io::Error::other(error)))?;
        let established = std::future::poll_fn(|context| match quic.poll_established(context) {
            Poll::Ready(result) => Poll::Ready(Some(result)),
            Poll::Pending if deadline.has_passed() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await;
        match established {
            Some(Ok(())) => {
                let cells = self.cells();
                cells.connections.increment();
                cells.tls_full.increment();
                cells.picked_h3.increment();
                let cells = self.shared.cells.clone();
                let count = OpenCount { cells, number: self.number as u32, _reserved: None, ender: None };
                Ok((quic, count, moves))
            }
            failed => {
                quic.close(0, "");
                self.cells().connect_failures.increment();
                match failed {
                    Some(Err(why)) => Err(ConnectError::Tls { backend: at, reason: why, speaks_none: false }),
                    _ => Err(ConnectError::TimedOut { backend: at }),
                }
            }
        }
    }

    /// Connects to the address in use or, if that does not accept, to another one of its name, which is in
    /// use from then on. A connection that leaves from its client's address only uses addresses of the same
    /// family, and does not change the address in use for others.
    async fn connect_to_any(
        &self,
        worker: &Worker,
        first: SocketAddr,
        choice: &Choice,
        client: Option<IpAddr>,
    ) -> io::Result<TcpStream> {
        let local_end = self.local_end.borrow().clone();
        let begin = self.address_for(first, client);
        let suits = |it: &&SocketAddr| local_end.as_ref().is_none_or(|end| end.suits(**it, client));
        let others: Vec<SocketAddr> = choice.addresses.iter().filter(suits).copied().collect();
        let addresses = race::order(begin, &others);
        let (address, stream) = race::connect(&addresses, choice.pause, |address| {
            let local_end = local_end.clone();
            async move {
                match &local_end {
                    None => TcpStream::connect(address).await,
                    Some(end) => {
                        let socket = end.open(address, client, true).map_err(local_end::not_here)?;
                        local_end::connect(socket, address).await
                    }
                }
            }
        })
        .await?;
        if begin == first && address != first {
            let event = Event::OtherAddress { name: self.shared.address.clone(), first, address };
            let _ = worker.events.send(event);
        }
        Ok(stream)
    }

    /// The address for a connection made for `client`: `in_use`, unless the connection is to leave from the
    /// client's address and that is of another family; then it is the name's first address of the client's
    /// family.
    pub fn address_for(&self, in_use: SocketAddr, client: Option<IpAddr>) -> SocketAddr {
        let local_end = self.local_end.borrow();
        let Some(local_end) = local_end.as_ref().filter(|end| !end.suits(in_use, client)) else {
            return in_use;
        };
        let choice = self.shared.resolved.choice();
        let mut others = choice.iter().flat_map(|choice| choice.addresses.iter().copied());
        others.find(|it| local_end.suits(*it, client)).unwrap_or(in_use)
    }

    /// Whether an error of connecting or sending comes from the local address or interface that the pool
    /// prescribes.
    pub fn is_about_leaving(&self, error: &io::Error) -> bool {
        self.local_end.borrow().as_ref().is_some_and(|local_end| local_end.explains(error))
    }

    /// Makes the error for a connection or datagram for `client` that could not leave for `backend`. It is
    /// logged the first time and then at most once a minute, because it does not count against a backend and
    /// no state shows it.
    pub fn cannot_leave(&self, backend: At, client: Option<IpAddr>, source: io::Error) -> ConnectError {
        let local_end = self.local_end.borrow();
        let client = client.filter(|_| local_end.as_ref().is_some_and(|it| it.is_clients));
        let error = ConnectError::Source { backend, client, source };
        if let Some(departure) = &*local_end
            && departure.note(error.to_string(), clock::now())
        {
            tracing::warn!(pool = departure.pool, %error, "what is for backends can't leave");
        }
        error
    }

    /// A socket that is not yet connected to `address`, bound to the local address that the pool prescribes
    /// for this client; `None` if the kernel chooses.
    ///
    /// # Errors
    /// It can't be bound to that address.
    pub fn socket_for(
        &self,
        address: SocketAddr,
        client: Option<IpAddr>,
        is_stream: bool,
    ) -> Result<Option<Socket>, ConnectError> {
        let Some(departure) = self.local_end.borrow().clone() else { return Ok(None) };
        match departure.open(address, client, is_stream).map_err(local_end::not_here) {
            Ok(socket) => Ok(Some(socket)),
            Err(source) if system::is_shortage(&source) => Err(ConnectError::OutOfDescriptors),
            Err(source) => Err(self.cannot_leave(address.into(), client, source)),
        }
    }

    /// The error for a failed wait on a connection on which no part of a request has been sent.
    pub fn wait_failed(&self, error: WaitError) -> ConnectError {
        ConnectError::from_wait(error, self.shared.resolved.at(), &self.shared.address)
    }
}

impl Chosen {
    /// Opens a connection on which nothing but the PROXY header, if one is wanted, has been sent. It counts
    /// against the backend's `max_connections` as long as it is open. The caller sets the deadline and makes
    /// the TLS handshake ([`WorkerBackend::secure`]).
    pub async fn open_counted(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        proxy_header: &ProxyHeader,
    ) -> Result<Connection, ConnectError> {
        let reserved = Some(self.reserve(worker).await?);
        let opening = OpenHow { proxy_header: Some(proxy_header), client: None, reserved, takes_any: false };
        self.backend().open_plain(worker, deadline, opening).await
    }

    /// As [`Self::open_counted`], but may exceed the backend's `max_connections`, against which it still
    /// counts.
    pub async fn open_beyond(
        &self,
        worker: &Worker,
        deadline: &Deadline,
        proxy_header: &ProxyHeader,
    ) -> Result<Connection, ConnectError> {
        let reserved = Some(self.reserve_beyond());
        let opening = OpenHow { proxy_header: Some(proxy_header), client: None, reserved, takes_any: false };
        self.backend().open_plain(worker, deadline, opening).await
    }
}
