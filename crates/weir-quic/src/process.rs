//! The QUIC state of a process and of each of its workers, whether or not a listener uses QUIC.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::rc::Rc;
use std::sync::Arc;

use weir_io::buffers::Buffers;

use crate::cid::Owner;
use crate::counts::Counts;
use crate::endpoint::Driver;
use crate::endpoint::connect::Nobody;
use crate::forward::{ForwardReceiver, ForwardSender, ForwardSocket, forward_queue};
use crate::keys::Keys;
use crate::other_processes::OtherProcesses;
use crate::port::{Port, Serving};
use crate::socket::Socket;

/// What a process hands to the next one; empty if there was none before.
#[derive(Default)]
pub struct HandOver {
    /// Keys of the next process.
    pub keys: Option<Keys>,
    /// Sockets to the workers of all older processes that still have connections.
    pub sockets: Vec<(Owner, ForwardSocket)>,
}

/// State shared by all workers of a process.
pub struct Process {
    keys: Arc<Keys>,
    others: Arc<OtherProcesses>,
    siblings: Arc<[ForwardSender]>,
    counts: Arc<[Counts]>,
}

/// Parts of one worker's endpoint.
pub struct WorkerSetup {
    number: u16,
    keys: Arc<Keys>,
    others: Arc<OtherProcesses>,
    siblings: Arc<[ForwardSender]>,
    counts: Arc<[Counts]>,
    forwarded: ForwardReceiver,
    sockets: Vec<ForwardSocket>,
}

impl Process {
    /// The state of the process, with a setup for each of `workers`.
    ///
    /// # Errors
    /// The kernel has no random bytes or no more descriptors.
    pub fn open(hand_over: HandOver, workers: usize) -> io::Result<(Process, Vec<WorkerSetup>)> {
        let keys = Arc::new(hand_over.keys.map_or_else(Keys::random, Ok)?);
        let others = Arc::new(OtherProcesses::default());
        let (siblings, receivers): (Vec<ForwardSender>, Vec<ForwardReceiver>) =
            (0..workers).map(|_| forward_queue()).unzip();
        let siblings: Arc<[ForwardSender]> = siblings.into();
        let counts: Arc<[Counts]> = (0..workers).map(|_| Counts::default()).collect();
        let mut setups: Vec<WorkerSetup> = receivers
            .into_iter()
            .zip(0..)
            .map(|(forwarded, number)| WorkerSetup {
                number,
                keys: keys.clone(),
                others: others.clone(),
                siblings: siblings.clone(),
                counts: counts.clone(),
                forwarded,
                sockets: Vec::new(),
            })
            .collect();
        for (index, (owner, socket)) in hand_over.sockets.into_iter().enumerate() {
            setups[index % workers.max(1)].sockets.push(socket.try_clone()?);
            others.add(owner, socket);
        }
        Ok((Process { keys, others, siblings, counts }, setups))
    }

    /// What to hand to the next process, and for each worker its end of a new socket to that process.
    ///
    /// # Errors
    /// The kernel has no descriptors left.
    pub fn hand_over(&self) -> io::Result<(HandOver, Vec<ForwardSocket>)> {
        let keys = self.keys.of_successor();
        self.cancel_hand_over();
        let mut sockets = self.others.duplicates()?;
        let mut own = Vec::with_capacity(self.siblings.len());
        for worker in 0..self.siblings.len() as u16 {
            let (ours, theirs) = ForwardSocket::pair()?;
            sockets.push((Owner { process: self.keys.process(), worker }, theirs));
            // Used while both processes receive.
            self.others.add(Owner { process: keys.process(), worker }, ours.try_clone()?);
            own.push(ours);
        }
        Ok((HandOver { keys: Some(keys), sockets }, own))
    }

    /// Removes the next process, which has failed to start.
    pub fn cancel_hand_over(&self) {
        self.others.remove(self.keys.of_successor().process());
    }

    /// The counters of all workers, one element per worker.
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }
}

/// QUIC on one worker: no task runs before a listener needs it.
pub struct WorkerEndpoint {
    keys: Arc<Keys>,
    setup: RefCell<Option<WorkerSetup>>,
    buffers: Rc<Buffers>,
    driver: OnceCell<Rc<Driver>>,
    /// Sockets for outgoing connections, for IPv4 and IPv6.
    own_ports: [OnceCell<Rc<Port>>; 2],
}

impl WorkerEndpoint {
    /// For one worker; memory is counted against `buffers`.
    pub fn new(setup: WorkerSetup, buffers: &Rc<Buffers>) -> WorkerEndpoint {
        let keys = setup.keys.clone();
        let setup = RefCell::new(Some(setup));
        WorkerEndpoint {
            keys,
            setup,
            buffers: buffers.clone(),
            driver: OnceCell::new(),
            own_ports: Default::default(),
        }
    }

    /// The keys of the process.
    pub fn keys(&self) -> Arc<Keys> {
        self.keys.clone()
    }

    /// The driver, which is started when first asked for.
    pub fn driver(&self) -> Rc<Driver> {
        if let Some(setup) = self.setup.take() {
            let WorkerSetup { number, keys, others, siblings, counts, forwarded, sockets } = setup;
            let driver = Driver::new(keys, number, siblings, others, counts, self.buffers.clone());
            tokio::task::spawn_local(driver.clone().run_sender());
            tokio::task::spawn_local(driver.clone().run_timers());
            tokio::task::spawn_local(driver.clone().run_forwarded(forwarded));
            sockets.into_iter().for_each(|socket| receive_from(&driver, socket));
            let _ = self.driver.set(driver);
        }
        self.driver.get().cloned().expect("set when the setup was taken")
    }

    /// The socket for outgoing connections to addresses of one family; opened when first asked for. `flooded`
    /// is the error code for a server that sends too many frames without content.
    ///
    /// # Errors
    /// The kernel could not open a socket.
    pub fn own_port(&self, is_ipv6: bool, flooded: u64) -> io::Result<Rc<Port>> {
        let place = &self.own_ports[usize::from(is_ipv6)];
        if let Some(port) = place.get() {
            return Ok(port.clone());
        }
        let any: IpAddr = if is_ipv6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let port = Port::new(Socket::new(socket, address)?, Rc::new(Nobody { flooded }));
        let driver = self.driver();
        driver.open(&port);
        tokio::task::spawn_local(driver.run_socket(port.clone(), |_| Serving::Open));
        Ok(place.get_or_init(|| port).clone())
    }

    /// Receives what another process forwards over `socket`, as long as this process may still have
    /// connections.
    pub fn receive_from(&self, socket: ForwardSocket) {
        if let Some(driver) = self.driver.get() {
            receive_from(driver, socket);
        }
    }

    /// Closes the remaining connections with an application error code (RFC 9000 section 10.2).
    pub fn close(&self, code: u64) {
        if let Some(driver) = self.driver.get() {
            driver.close_all(code, "");
        }
    }
}

fn receive_from(driver: &Rc<Driver>, socket: ForwardSocket) {
    let driver = driver.clone();
    tokio::task::spawn_local(async move {
        if let Err(error) = driver.run_forward_socket(socket).await {
            tracing::warn!(%error, "datagrams passed on by another process are not received any more");
        }
    });
}
