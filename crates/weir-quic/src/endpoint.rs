//! QUIC on one worker: receives datagrams, drives connections, sends datagrams.
//!
//! One [`Driver`] per worker holds the protocol's state for all its connections. Three kinds of task drive
//! it: one per socket that receives, one that sends for all, and one for timers. A connection with something
//! to do is queued once, however many packets and answers there were, so that related frames are sent
//! together.

pub mod connect;
mod send;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::BytesMut;
use quinn_proto::{ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, Incoming, Transmit};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use weir_io::buffers::Buffers;
use weir_io::system::datagrams::Inbox;

use crate::cid::{self, Generator, Owner};
use crate::connection::{Admission, Connection};
use crate::counts::{Counts, Drop as Dropped};
use crate::forward::{self, ForwardReceiver, ForwardSender, ForwardSocket, Forwarded};
use crate::keys::{Keys, RESET_INTERVAL};
use crate::other_processes::OtherProcesses;
use crate::path::FreeDatagrams;
use crate::port::{Port, Serving, Settings};
use crate::socket::{Arrived, each_datagram};
use crate::timers::Timers;
use crate::windows::SendWindows;

/// Handshakes in progress on one worker, from unproved addresses, above which further clients must first
/// prove theirs (RFC 9000 §8.1.2). A handshake costs a signature, and some kilobytes until it ends or times
/// out; a Retry costs neither (row C2).
pub const RETRY_ABOVE: usize = 100;
/// Handshakes in progress on one worker above which no more begin, whether or not the address is proved.
const REFUSE_ABOVE: usize = 4096;
/// Messages taken from another process before other tasks get their turn.
const MESSAGES_PER_TURN: usize = 64;

/// All QUIC state of one worker.
pub struct Driver {
    keys: Arc<Keys>,
    /// The owner that this worker's connection IDs name.
    owner: Owner,
    endpoint: RefCell<quinn_proto::Endpoint>,
    /// Indexed by handle.
    connections: RefCell<Vec<Option<Rc<Connection>>>>,
    half_open: Cell<usize>,
    pub(crate) send_windows: SendWindows,
    /// Budget that counts unacknowledged bytes.
    pub(crate) buffers: Rc<Buffers>,
    queue: RefCell<VecDeque<Rc<Connection>>>,
    sender: RefCell<Option<Waker>>,
    ports: RefCell<Vec<Rc<Port>>>,
    timers: Timers,
    /// Free datagrams sent to unproved addresses of hosts where their clients have proved nothing.
    pub(crate) free_datagrams: Cell<FreeDatagrams>,
    siblings: Arc<[ForwardSender]>,
    others: Arc<OtherProcesses>,
    counts: Arc<[Counts]>,
}

impl Driver {
    /// For worker number `worker`; `siblings` and `counts` have an element for each worker.
    pub fn new(
        keys: Arc<Keys>,
        worker: u16,
        siblings: Arc<[ForwardSender]>,
        others: Arc<OtherProcesses>,
        counts: Arc<[Counts]>,
        buffers: Rc<Buffers>,
    ) -> Rc<Driver> {
        let mut config = EndpointConfig::new(keys.reset());
        let generator_keys = keys.clone();
        config.cid_generator(move || Box::new(Generator::new(generator_keys.clone(), worker)));
        config.supported_versions(vec![1]);
        config.min_reset_interval(RESET_INTERVAL);
        let endpoint = quinn_proto::Endpoint::new(Arc::new(config), None, true, None);
        Rc::new(Driver {
            owner: Owner { process: keys.process(), worker },
            keys,
            endpoint: RefCell::new(endpoint),
            connections: RefCell::default(),
            half_open: Cell::new(0),
            send_windows: SendWindows::default(),
            buffers,
            queue: RefCell::default(),
            sender: RefCell::default(),
            ports: RefCell::default(),
            timers: Timers::default(),
            free_datagrams: Cell::default(),
            siblings,
            others,
            counts,
        })
    }

    /// This worker's counters.
    pub fn counts(&self) -> &Counts {
        &self.counts[usize::from(self.owner.worker)]
    }

    /// Connections that have not ended, including those in their handshake.
    #[cfg(test)]
    pub fn connections(&self) -> usize {
        self.endpoint.borrow().open_connections()
    }

    /// Begins to serve a socket; [`Self::run_socket`] receives from it.
    pub fn open(&self, port: &Rc<Port>) {
        self.ports.borrow_mut().push(port.clone());
    }

    /// Lets the kernel deliver the datagrams of a port's `SO_REUSEPORT` group to the workers that their
    /// connection IDs name.
    pub fn steer(&self, port: &Port) {
        if let Err(error) = port.socket.steer(&cid::steering_program(&self.keys)) {
            // Everything still arrives, but some datagrams take the way through another worker.
            tracing::info!(address = %port.socket.address(), %error, "quic connections are not steered by the kernel");
        }
    }

    /// Established connections.
    #[cfg(test)]
    pub fn established(&self) -> Vec<Rc<Connection>> {
        let connections = self.connections.borrow();
        let is_established = |it: &&Rc<Connection>| !it.is_half_open.get() && !it.inner.borrow().is_over();
        connections.iter().flatten().filter(is_established).cloned().collect()
    }

    /// For each established connection, the client's address and where its packets come from.
    #[cfg(test)]
    pub fn addresses(&self) -> Vec<(std::net::SocketAddr, std::net::SocketAddr)> {
        let addresses = |it: &Rc<Connection>| (it.client(), it.inner.borrow().quic.remote_address());
        self.established().iter().map(addresses).collect()
    }

    /// Stops receiving from a socket. Its connections still send on it, and receive what others forward.
    pub fn retire(&self, port: &Port) {
        port.is_open.set(false);
        self.close_unused();
    }

    fn close_unused(&self) {
        self.ports.borrow_mut().retain(|port| port.is_open.get() || port.connections.get() > 0);
    }

    /// Receives from a socket until it is closed and its last connection is over, or another process receives
    /// for those connections. One such task runs per socket.
    pub async fn run_socket(self: Rc<Self>, port: Rc<Port>, serving: impl Fn(&Waker) -> Serving) {
        let mut inbox = Inbox::empty();
        loop {
            let received = poll_fn(|context| match port.socket.poll_receive(&mut inbox, context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending if self.is_released(&port, serving(context.waker()), context.waker()) => {
                    Poll::Ready(None)
                }
                Poll::Pending => Poll::Pending,
            });
            match received.await {
                None => break,
                Some(Ok(_)) => {
                    let receiving = port.replacement(&self.ports.borrow());
                    self.receive(&receiving, &inbox);
                }
                Some(Err(error)) => {
                    tracing::debug!(address = %port.socket.address(), %error, "quic receive");
                }
            }
            if self.is_released(&port, serving(Waker::noop()), Waker::noop()) {
                break;
            }
            tokio::task::coop::consume_budget().await;
        }
        self.retire(&port);
    }

    fn is_released(&self, port: &Port, serving: Serving, waker: &Waker) -> bool {
        match serving {
            Serving::Open => false,
            Serving::Closing => port.is_released(false, waker),
            Serving::HandedOver => port.is_released(self.has_successor(), waker),
        }
    }

    fn has_successor(&self) -> bool {
        self.others.knows(self.keys.of_successor().process())
    }

    /// Handles datagrams that have just arrived at `port`.
    fn receive(self: &Rc<Self>, port: &Rc<Port>, inbox: &Inbox) {
        let now = Instant::now();
        let mut touched = Vec::new();
        each_datagram(inbox, |arrived| self.take(port, &arrived, now, &mut touched));
        self.settle_all(touched);
    }

    /// Handles what another process forwards to this worker, until that process ends. One such task runs per
    /// socket.
    pub async fn run_forward_socket(self: Rc<Self>, socket: ForwardSocket) -> std::io::Result<()> {
        // Tokio has no type for SOCK_SEQPACKET sockets; this one can also wait for readiness.
        let waiting = UnixDatagram::from_std(socket.try_clone()?.into_socket().into())?;
        let mut room = vec![0; forward::MESSAGE_BYTES];
        loop {
            waiting.readable().await?;
            let (now, mut touched) = (Instant::now(), Vec::new());
            for _ in 0..MESSAGES_PER_TURN {
                match waiting.try_io(Interest::READABLE, || socket.receive(&mut room)) {
                    Ok(Some(datagram)) => self.take_forwarded(&datagram, now, &mut touched),
                    Ok(None) => {}
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                        self.others.remove_ended();
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                }
            }
            self.settle_all(touched);
            tokio::task::yield_now().await;
        }
    }

    /// Handles datagrams that other workers have forwarded.
    fn take_all_forwarded(self: &Rc<Self>, first: Forwarded, receiver: &mut ForwardReceiver) {
        let now = Instant::now();
        let mut touched = Vec::new();
        let mut next = Some(first);
        while let Some(datagram) = next {
            self.take_forwarded(&datagram, now, &mut touched);
            next = receiver.try_recv().ok();
        }
        self.settle_all(touched);
    }

    /// Handles one forwarded datagram.
    fn take_forwarded(
        self: &Rc<Self>,
        datagram: &Forwarded,
        now: Instant,
        touched: &mut Vec<Rc<Connection>>,
    ) {
        let is_meant = |port: &&Rc<Port>| port.socket.place().meets(datagram.place);
        let port = self.ports.borrow().iter().rfind(is_meant).cloned();
        let Some(port) = port else { return self.counts().dropped(Dropped::NoSocket) };
        self.take(&port, &datagram.arrived(), now, touched);
    }

    /// Drives the connections that received something.
    fn settle_all(self: &Rc<Self>, touched: Vec<Rc<Connection>>) {
        touched.iter().for_each(|connection| self.settle(connection));
        // Not earlier: woken tasks write first, and what they write is sent together with the
        // acknowledgements.
        self.wake_sender();
    }

    fn take(
        self: &Rc<Self>,
        port: &Rc<Port>,
        arrived: &Arrived<'_>,
        now: Instant,
        touched: &mut Vec<Rc<Connection>>,
    ) {
        let owner = cid::destination(arrived.bytes).and_then(|id| Some((id, cid::owner(&self.keys, id)?)));
        match owner {
            Some((id, owner)) if owner != self.owner && self.forward(port, arrived, id, owner) => {}
            _ => self.handle(port, arrived, now, touched),
        }
    }

    /// Forwards a datagram to its owner; `false` when there is no other owner.
    fn forward(&self, port: &Port, arrived: &Arrived<'_>, id: &[u8], owner: Owner) -> bool {
        let datagram = || Forwarded::of(port.socket.place(), arrived);
        let sent = if owner.process == self.owner.process {
            let Some(sibling) = self.siblings.get(usize::from(owner.worker)) else { return false };
            // Checked this late because few datagrams get here by chance.
            if !cid::is_genuine(&self.keys, id) {
                return false;
            }
            sibling.try_send(datagram()).is_ok()
        } else {
            if !self.others.knows(owner.process) || !cid::is_genuine(&self.keys, id) {
                return false;
            }
            match self.others.send(owner, datagram) {
                Some(sent) => sent,
                // The process has ended, and its connections with it; a stateless reset tells the client.
                None => return false,
            }
        };
        if sent {
            self.counts().forwarded()
        } else {
            self.counts().dropped(Dropped::QueueFull)
        }
        true
    }

    /// Passes a datagram to the protocol.
    fn handle(
        self: &Rc<Self>,
        port: &Rc<Port>,
        arrived: &Arrived<'_>,
        now: Instant,
        touched: &mut Vec<Rc<Connection>>,
    ) {
        let mut buffer = port.socket.buffer();
        let endpoint = &mut *self.endpoint.borrow_mut();
        if arrived.bytes.first().is_some_and(|first| first & 0x80 != 0) {
            endpoint.set_server_config(port.front.settings().map(|settings| settings.server));
        }
        let ecn = EcnCodepoint::from_bits(arrived.ecn);
        let bytes = BytesMut::from(arrived.bytes);
        match endpoint.handle(now, arrived.remote, arrived.local, ecn, bytes, &mut buffer) {
            None => {
                self.counts().dropped(Dropped::Unknown);
                port.socket.put_back(buffer);
            }
            Some(DatagramEvent::Response(transmit)) => {
                self.counts().responded();
                self.send(port, transmit, buffer);
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.begin(endpoint, port, incoming, buffer, now, touched);
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                port.socket.put_back(buffer);
                let Some(connection) = self.connection(handle) else { return };
                // A connection stays with the listener that it began with, and with that listener's rules.
                if !Rc::ptr_eq(&connection.port, port)
                    && !connection.port.socket.place().meets(port.socket.place())
                {
                    return self.counts().dropped(Dropped::OtherListener);
                }
                connection.note_received(arrived.remote, arrived.bytes.len(), now);
                connection.inner.borrow_mut().quic.handle_event(event);
                connection.charge_frames(now);
                note_touched(&connection, touched);
            }
        }
    }

    /// Admits a new client, has it prove its address first, or refuses it.
    fn begin(
        self: &Rc<Self>,
        endpoint: &mut quinn_proto::Endpoint,
        port: &Rc<Port>,
        incoming: Incoming,
        mut buffer: Vec<u8>,
        now: Instant,
        touched: &mut Vec<Rc<Connection>>,
    ) {
        // The address was given up and no other listener has taken it over.
        let Some(settings) = port.front.settings().filter(|_| port.is_open.get()) else {
            let transmit = endpoint.refuse(incoming, &mut buffer);
            self.counts().refused();
            return self.send(port, transmit, buffer);
        };
        let is_proved = incoming.remote_address_validated();
        let wants_proof = settings.wants_proof || self.half_open.get() >= RETRY_ABOVE;
        if !is_proved && wants_proof && incoming.may_retry() {
            if let Ok(transmit) = endpoint.retry(incoming, &mut buffer) {
                self.counts().retried();
                self.send(port, transmit, buffer);
            }
            return;
        }
        let remote = incoming.remote_address();
        let guard = if self.half_open.get() < REFUSE_ABOVE { port.front.admit(remote) } else { None };
        let Some(guard) = guard else {
            // Ignored silently: the client retries, and there may be room then; a flood gets no answers.
            endpoint.ignore(incoming);
            self.counts().dropped(Dropped::NoRoom);
            return port.socket.put_back(buffer);
        };
        match endpoint.accept(incoming, now, &mut buffer, Some(settings.server.clone())) {
            Ok((handle, quic)) => {
                port.socket.put_back(buffer);
                let Settings { idle_timeout, control_frames, .. } = settings;
                let admission = Admission { handle, is_proved, guard, idle_timeout, control_frames };
                let connection = Rc::new(Connection::new(self, port, quic, admission, now));
                connection.own_due.set(Some(now + settings.handshake_timeout));
                connection.is_half_open.set(true);
                self.half_open.set(self.half_open.get() + 1);
                self.enrol(&connection);
                self.counts().began();
                note_touched(&connection, touched);
            }
            Err(error) => {
                tracing::debug!(%remote, cause = %error.cause, "quic connection refused");
                self.counts().refused();
                match error.response {
                    Some(transmit) => self.send(port, transmit, buffer),
                    None => port.socket.put_back(buffer),
                }
            }
        }
    }

    /// Registers a new connection under its handle.
    fn enrol(&self, connection: &Rc<Connection>) {
        let (connections, handle) = (&mut *self.connections.borrow_mut(), connection.handle);
        if connections.len() <= handle.0 {
            connections.resize(handle.0 + 1, None);
        }
        connections[handle.0] = Some(connection.clone());
        connection.port.connections.set(connection.port.connections.get() + 1);
    }

    pub(crate) fn connection(&self, handle: ConnectionHandle) -> Option<Rc<Connection>> {
        self.connections.borrow().get(handle.0)?.clone()
    }

    pub(crate) fn leave_handshake(&self, connection: &Connection) {
        if connection.is_half_open.replace(false) {
            self.half_open.set(self.half_open.get() - 1);
        }
    }

    /// Exchanges events between the connection and the endpoint, and distributes the connection's own.
    fn settle(self: &Rc<Self>, connection: &Rc<Connection>) {
        connection.is_queued.set(true);
        self.queue.borrow_mut().push_back(connection.clone());
        self.exchange_events(connection);
    }

    fn exchange_events(self: &Rc<Self>, connection: &Rc<Connection>) {
        let mut is_drained = false;
        {
            let endpoint = &mut *self.endpoint.borrow_mut();
            let inner = &mut *connection.inner.borrow_mut();
            while let Some(event) = inner.quic.poll_endpoint_events() {
                is_drained |= event.is_drained();
                if let Some(event) = endpoint.handle_event(connection.handle, event) {
                    inner.quic.handle_event(event);
                }
            }
        }
        if connection.dispatch() {
            connection.confirm();
        }
        if connection.is_to_be_served() {
            connection.port.front.serve(connection.clone());
        }
        if is_drained {
            connection.end();
            if let Some(place) = self.connections.borrow_mut().get_mut(connection.handle.0) {
                *place = None;
            }
            let port = &connection.port;
            port.leave();
            if !port.is_open.get() {
                self.close_unused();
            }
        }
    }

    /// Queues a connection to send, unless it is queued already.
    pub(crate) fn queue(&self, connection: &Rc<Connection>) {
        if !connection.is_queued.replace(true) {
            self.queue.borrow_mut().push_back(connection.clone());
            self.wake_sender();
        }
    }

    fn wake_sender(&self) {
        if let Some(waker) = self.sender.borrow_mut().take() {
            waker.wake();
        }
    }

    fn send(&self, port: &Port, transmit: Transmit, bytes: Vec<u8>) {
        port.socket.enqueue(transmit, bytes);
        self.wake_sender();
    }

    fn arm(&self, connection: &Rc<Connection>) {
        let protocol = connection.inner.borrow_mut().quic.poll_timeout();
        let due = [protocol, connection.own_due.get()].into_iter().flatten().min();
        if let Some(due) = due
            && self.timers.arm(connection.handle.0, &connection.timer, due)
        {
            let connections = self.connections.borrow();
            self.timers.clear_out(|key, at| {
                connections.get(key).is_some_and(|it| it.as_ref().is_some_and(|it| it.timer.has(at)))
            });
        }
    }

    /// Runs the timers of all connections, for ever. One such task runs per worker.
    pub async fn run_timers(self: Rc<Self>) {
        loop {
            self.timers.wait().await;
            let now = Instant::now();
            let mut touched = Vec::new();
            while let Some((at, handle)) = self.timers.take_due(now) {
                let Some(connection) = self.connection(ConnectionHandle(handle)) else { continue };
                if !connection.timer.take(at) {
                    continue;
                }
                let is_due = {
                    let inner = &mut *connection.inner.borrow_mut();
                    let is_due = inner.quic.poll_timeout().is_some_and(|due| due <= now);
                    if is_due {
                        inner.quic.handle_timeout(now);
                    }
                    is_due
                };
                let own_is_due = connection.own_due.get().is_some_and(|due| due <= now);
                connection.own_timeout(now);
                if is_due || own_is_due {
                    note_touched(&connection, &mut touched);
                } else {
                    self.arm(&connection);
                }
            }
            self.settle_all(touched);
        }
    }

    /// Handles what other workers forward, for ever. One such task runs per worker.
    pub async fn run_forwarded(self: Rc<Self>, mut receiver: ForwardReceiver) {
        while let Some(first) = receiver.recv().await {
            self.take_all_forwarded(first, &mut receiver);
            tokio::task::yield_now().await;
        }
    }

    /// Closes the remaining connections, so that clients need not wait for a timeout to notice.
    pub fn close_all(self: &Rc<Self>, code: u64, reason: &'static str) {
        let all: Vec<Rc<Connection>> = self.connections.borrow().iter().flatten().cloned().collect();
        all.iter().for_each(|connection| connection.close(code, reason));
        let mut context = Context::from_waker(Waker::noop());
        while !self.queue.borrow().is_empty() && !self.is_blocked(&mut context) {
            let _ = self.poll_send(&mut context);
        }
    }

    fn is_blocked(&self, context: &mut Context<'_>) -> bool {
        self.ports.borrow().iter().any(|port| port.socket.poll_flush(context).is_pending())
    }
}

fn note_touched(connection: &Rc<Connection>, touched: &mut Vec<Rc<Connection>>) {
    // Datagrams of one connection mostly arrive in a row.
    if !touched.last().is_some_and(|last| Rc::ptr_eq(last, connection)) {
        touched.push(connection.clone());
    }
}
