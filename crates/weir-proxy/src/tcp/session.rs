//! One TCP session: identify the client, choose a backend, connect, relay.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::TcpStream;
use weir_config::ExchangeTimeouts;
use weir_io::buffers::{Buffer, Buffers};
use weir_io::clock;
use weir_io::deadline::Deadline;
use weir_io::handshake::Secure;
use weir_io::stream::Duplex as _;
use weir_io::stream::Stream;
use weir_state::key::{Transport, flow_key};
use weir_state::listener::ClientConnection;
use weir_stats::table::{End, Rejected};

use super::relay::{self, FirstBytes, Heard, Paces, Pair, Relayed, Terms};
use crate::access_log::{Record, Spoken, Timers};
use crate::admission;
use crate::backends::{Chosen, ConnectError, Connection, ProxyHeader, WorkerPool, elapsed};
use crate::client::Client;
use crate::handshake;
use crate::identify;
use crate::pace::{Pace, Way};
use crate::reach::{Attempt, Reach, RetryVerdict, Unavailable, Wish};
use crate::shares;
use crate::timers::{self, ExchangeTimers};
use crate::worker::{ListenerSlot, Worker, WorkerListener};

/// Serves one connection to its end.
pub async fn serve(worker: Rc<Worker>, slot: Rc<ListenerSlot>, stream: TcpStream, peer: SocketAddr) {
    serve_in(Spoken::Tcp, Wish::default(), worker, slot, stream, peer).await;
}

/// Serves one connection, whose bytes are in the protocol `spoken`, to its end. `wish` says which backend it
/// wants, except for the key.
pub async fn serve_in(
    spoken: Spoken,
    wish: Wish,
    worker: Rc<Worker>,
    slot: Rc<ListenerSlot>,
    stream: TcpStream,
    peer: SocketAddr,
) {
    let waker = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let deadline = worker.deadlines.register(waker);
    let listener = slot.current();
    let client = Client::of_peer(peer);
    let buffers = worker.buffers.clone();
    let timers = ExchangeTimers::of(&listener.shared.config.timeout, None, None);
    let mut session = Session {
        spoken,
        wish,
        worker,
        slot,
        listener,
        secure: None,
        client,
        buffers,
        _client_connection: None,
        deadline,
        timers,
        idle_end: End::ClientIdle,
        report: Report::new(),
    };
    let mut stream = Some(Stream::plain(stream));
    let end = session.run(&mut stream).await;
    if let Some(stream) = stream.as_mut().filter(|_| end != End::Done && !session.report.is_relayed) {
        // No backend ever spoke: the client must not take silence for a complete answer.
        stream.reset_on_close();
    }
    session.finish(end);
}

struct Session {
    spoken: Spoken,
    wish: Wish,
    worker: Rc<Worker>,
    slot: Rc<ListenerSlot>,
    /// The listener as configured when the session began.
    listener: Rc<WorkerListener>,
    /// The result of the TLS handshake; `None` without TLS.
    secure: Option<Rc<Secure>>,
    client: Client,
    /// Whose memory it takes: see [`crate::shares`].
    buffers: Rc<Buffers>,
    /// Counts the client that a PROXY header named, while the session lasts.
    _client_connection: Option<ClientConnection>,
    deadline: Deadline,
    /// The timers in force, set once the pool is known.
    timers: ExchangeTimers,
    /// How a session ends when no byte passes for `timers.tunnel`.
    idle_end: End,
    report: Report,
}

/// What counters and the access log need at the end.
struct Report {
    begun: Duration,
    /// The server name (SNI) that the client asks for, if it was read and the connection passed on unchanged.
    server_name: Option<String>,
    /// Name of the route that took the connection.
    route: Option<Arc<str>>,
    pool: Option<Rc<WorkerPool>>,
    /// Index of the backend used last.
    backend: Option<usize>,
    queue: Option<Duration>,
    connect: Option<Duration>,
    retries: u32,
    is_relayed: bool,
    /// What the session is counted under, if `end` alone does not say.
    rejected: Option<Rejected>,
    from_client: u64,
    from_backend: u64,
}

impl Report {
    fn new() -> Report {
        Report {
            begun: clock::now(),
            server_name: None,
            route: None,
            pool: None,
            backend: None,
            queue: None,
            connect: None,
            retries: 0,
            is_relayed: false,
            rejected: None,
            from_client: 0,
            from_backend: 0,
        }
    }
}

impl Session {
    /// `held` is empty afterwards if the connection has been given up.
    async fn run(&mut self, held: &mut Option<Stream>) -> End {
        let Some(stream) = held else { return End::Internal };
        // Small messages must not wait for the acknowledgement of the ones before.
        stream.send_at_once();
        let mut first = None;
        match identify::by_header(
            &self.listener,
            stream,
            self.client.peer,
            &mut first,
            &self.worker,
            &self.deadline,
        )
        .await
        {
            Ok((client, counted)) => {
                self.client = client;
                self._client_connection = counted;
            }
            Err(end) => return end,
        }
        self.buffers = shares::of_connection(&self.worker, &self.client, false);
        if let Some(first) = &mut first {
            first.counts_for(&self.buffers);
        }
        let (listener, buffers) = (self.listener.clone(), self.buffers.clone());
        if let Err(end) = admission::admit(&self.worker, &listener, self.client.address.ip()) {
            return end;
        }
        if let Some(plain) = held.take_if(|_| listener.shared.tls.is_some()) {
            let (worker, deadline) = (&self.worker, &self.deadline);
            let shaken = handshake::with_client(worker, &listener, &buffers, plain, &mut first, deadline);
            match Box::pin(shaken).await {
                Ok((shaken, secure)) => (*held, self.secure) = (Some(shaken), secure),
                // An alert has already told the client why.
                Err(end) => return end,
            }
        }
        let Some(stream) = held else { return End::Internal };
        let (index, of_route) = match self.pool(stream, &mut first).await {
            Ok(found) => found,
            Err(end) => return end,
        };
        let pool = self.listener.pools[index].clone();
        let of_pool = pool.own_timeouts();
        let of_listener = &self.listener.shared.config.timeout;
        self.timers = ExchangeTimers::of(of_listener, of_pool, of_route.as_ref());
        self.idle_end = timers::idle_end(of_listener, of_pool, of_route.as_ref());
        self.report.pool = Some(pool.clone());
        match self.reach(&pool, stream, first.is_some()).await {
            Ok((chosen, backend)) => self.relay(stream, backend, &chosen, first).await,
            Err(end) => end,
        }
    }

    /// The pool for the connection, chosen by the server name that the client asks for if there are routes,
    /// and the route's timers.
    async fn pool(
        &mut self,
        stream: &mut Stream,
        first: &mut Option<Buffer>,
    ) -> Result<(usize, Option<ExchangeTimeouts>), End> {
        let Session { worker, listener, buffers, deadline, .. } = self;
        let routes = &listener.compiled.routes;
        if !routes.is_empty() && self.secure.is_none() {
            self.report.server_name =
                Box::pin(handshake::server_name(worker, listener, buffers, stream, first, deadline)).await?;
        }
        let name = server_name(self.secure.as_deref(), &self.report);
        let passed = routes.decide_connection(name, self.client.address.ip()).ok_or(End::NoRoute)?;
        self.report.route = passed.route.map(|route| route.name.clone());
        Ok((passed.pool, passed.route.and_then(|route| route.timeout)))
    }

    /// Connects to a backend, and to another one if the first does not accept.
    ///
    /// `has_spoken` says that bytes from the client have been read off its socket.
    async fn reach(
        &mut self,
        pool: &Rc<WorkerPool>,
        stream: &mut Stream,
        has_spoken: bool,
    ) -> Result<(Chosen, Connection), End> {
        let Client { address, destination, .. } = self.client;
        let destination = || destination.or_else(|| stream.local_addr().ok());
        let key = flow_key(&pool.shared.config, Transport::Tcp, address, destination);
        let wish = Wish { key, ..self.wish };
        let mut reach = Reach::begin(pool, wish, self.report.begun);
        loop {
            let client_gone = |context: &mut Context<'_>| match has_spoken {
                true => stream.is_broken_off(context),
                false => stream.poll_left(context),
            };
            let got = reach.choose(&self.worker, pool, &self.deadline, clock::now(), client_gone).await;
            let queued = got.as_ref().map_or_else(|refusal| refusal.queued(), |got| got.queued);
            if let Some(queued) = queued {
                self.report.queue = Some(self.report.queue.unwrap_or_default() + queued);
            }
            let chosen = got.map_err(Unavailable::end)?.chosen;
            let failure = match self.connect(&chosen, stream).await {
                Ok(backend) => return Ok((chosen, backend)),
                Err(failure) => failure,
            };
            tracing::debug!(pool = %pool.shared.config.name, %failure, "connect");
            let (now, reason) = (clock::now(), || failure.to_string());
            if failure.may_be_of_client() {
                chosen.observe_failure_for(address.ip(), &self.worker, now, reason);
            } else if failure.blames_backend() {
                chosen.observe_failure(&self.worker, now, reason);
            }
            let attempt = Attempt::unsent(failure.retried_as());
            let cells = self.listener.shared.cells.of(self.worker.number);
            let verdict = reach.after(pool, &chosen, &attempt, cells);
            self.report.retries = reach.retries();
            if verdict == RetryVerdict::Leave {
                return Err(match failure {
                    ConnectError::OutOfDescriptors => {
                        self.report.rejected = Some(Rejected::Descriptors);
                        End::Overload
                    }
                    ConnectError::TimedOut { .. } => End::ConnectTimeout,
                    ConnectError::Tls { .. } => End::BackendTls,
                    _ => End::ConnectFailed,
                });
            }
        }
    }

    /// One connection attempt: gives a connection on which the PROXY header has been sent, if one is wanted.
    async fn connect(&mut self, chosen: &Chosen, stream: &Stream) -> Result<Connection, ConnectError> {
        let begun = clock::now();
        self.report.backend = Some(chosen.index);
        self.report.pool = Some(chosen.pool.clone());
        self.deadline.set(begun + self.timers.connect);
        let header = ProxyHeader::of(&chosen.pool, &self.client, || stream.local_addr());
        let backend = match self.spoken {
            Spoken::Mysql => chosen.open_counted(&self.worker, &self.deadline, &header).await?,
            _ => {
                let client = Some(self.client.address.ip());
                let backend = chosen.backend();
                backend.open(&self.worker, &self.deadline, &header, client).await?
            }
        };
        let now = clock::now();
        let latency = now.saturating_sub(begun);
        chosen.observe_success(now, latency);
        self.report.connect = Some(self.report.connect.unwrap_or_default() + latency);
        Ok(backend)
    }

    async fn relay(
        &mut self,
        stream: &mut Stream,
        mut backend: Connection,
        chosen: &Chosen,
        from_client: Option<Buffer>,
    ) -> End {
        self.report.is_relayed = true;
        let client_cells = self.listener.shared.cells.of(self.worker.number);
        let backend_cells = chosen.backend().cells();
        backend_cells.requests[0].increment();
        backend.counts_for(&self.buffers);
        let terms = Terms {
            buffers: &self.buffers,
            deadline: &self.deadline,
            idle: self.timers.tunnel,
            idle_end: self.idle_end,
            ends_unsaid: false,
            paces: Paces {
                from_client: Pace::of(&self.listener.shared, self.worker.number, Way::FromClient),
                to_client: Pace::of(&self.listener.shared, self.worker.number, Way::ToClient),
            },
            ender: backend.ender(),
            heard: Heard::default(),
        };
        let relayed = relay::run(
            Pair { client: stream, backend: &mut *backend },
            FirstBytes { from_client, from_backend: None },
            terms,
            || self.slot.draining_until(),
            relay::counting(client_cells, backend_cells, 0),
        );
        let Relayed { end, from_client, from_backend, .. } = relayed.await;
        self.report.from_client = from_client;
        self.report.from_backend = from_backend;
        end
    }

    /// Counts the session and writes its access log line.
    fn finish(&self, end: End) {
        let (report, listener) = (&self.report, &self.listener);
        listener.finish(&self.worker, end, report.rejected, || {
            let pool = report.pool.as_ref();
            let backend = pool.zip(report.backend).map(|(pool, index)| &pool.backends[index]);
            let name = &listener.shared.config.name;
            Record {
                route: report.route.as_deref(),
                pool: pool.map(|pool| pool.shared.config.name.as_str()),
                backend: backend.map(|backend| backend.shared.address.as_str()),
                bytes_received: report.from_client,
                bytes_sent: report.from_backend,
                retries: report.retries,
                timers: Timers {
                    queue: report.queue,
                    connect: report.connect,
                    total: elapsed(report.begun),
                    ..Timers::default()
                },
                tls: self.secure.as_deref(),
                server_name: server_name(self.secure.as_deref(), report),
                ..Record::of_session(name, self.spoken, self.client.address, end)
            }
        });
    }
}

/// The server name that the client asks for, from the handshake or from a ClientHello that was passed on.
fn server_name<'s>(secure: Option<&'s Secure>, report: &'s Report) -> Option<&'s str> {
    secure.map_or(report.server_name.as_deref(), |secure| secure.server_name.as_deref())
}
