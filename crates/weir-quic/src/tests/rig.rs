//! Workers without the rest of a worker: they echo streams.

use std::any::Any;
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::net::{SocketAddr, UdpSocket as StdSocket};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

use quinn_proto::{ConnectionIdGenerator, Dir, StreamId};
use tokio::net::UdpSocket;
use weir_io::buffers::Buffers;

use crate::cid::{Generator, Owner};
use crate::connection::Connection;
use crate::counts::Counts;
use crate::endpoint::Driver;
use crate::forward::{ForwardSocket, forward_queue};
use crate::keys::Keys;
use crate::other_processes::OtherProcesses;
use crate::port::{Front, Port, Serving, Settings};
use crate::socket::Socket;

const PATIENCE: Duration = Duration::from_secs(20);
const ALPN: &[u8] = b"echo";

/// Runs a test on a runtime like a worker's.
pub fn local(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .unwrap()
        .block_on(test);
}

/// Some workers on one address.
pub struct Rig {
    drivers: Vec<Rc<Driver>>,
    sockets: Vec<OwnedFd>,
    keys: Arc<Keys>,
    identity: Arc<rcgen::CertifiedKey<rcgen::KeyPair>>,
    closing: Rc<RefCell<(bool, Vec<Waker>)>>,
    address: SocketAddr,
}

impl Rig {
    /// Workers that have nothing to do with any others.
    pub fn start(workers: u16) -> Rc<Rig> {
        let names = vec!["localhost".to_owned()];
        let identity = Arc::new(rcgen::generate_simple_self_signed(names).unwrap());
        Rig::with(workers, Arc::new(Keys::random().unwrap()), identity, new_group(workers), Arc::default())
    }

    /// Workers of the process after `old`, on an address of their own.
    pub fn start_after(old: &Rig, workers: u16) -> Rc<Rig> {
        let keys = Arc::new(old.keys.of_successor());
        Rig::with(workers, keys, old.identity.clone(), new_group(workers), Arc::default())
    }

    /// Workers of the process after `old`, to which `old` hands its sockets.
    pub fn take_over(old: &Rig, workers: u16) -> Rc<Rig> {
        let keys = Arc::new(old.keys.of_successor());
        let sockets = old.sockets.iter().map(|socket| socket.try_clone().unwrap()).collect();
        let others = Arc::new(OtherProcesses::default());
        for (worker, driver) in old.drivers.iter().enumerate() {
            let (ours, theirs) = ForwardSocket::pair().unwrap();
            others.add(Owner { process: old.keys.process(), worker: worker as u16 }, theirs);
            tokio::task::spawn_local(driver.clone().run_forward_socket(ours));
        }
        let mut closing = old.closing.borrow_mut();
        closing.0 = true;
        closing.1.drain(..).for_each(Waker::wake);
        Rig::with(workers, keys, old.identity.clone(), sockets, others)
    }

    fn with(
        workers: u16,
        keys: Arc<Keys>,
        identity: Arc<rcgen::CertifiedKey<rcgen::KeyPair>>,
        sockets: Vec<OwnedFd>,
        others: Arc<OtherProcesses>,
    ) -> Rc<Rig> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..workers).map(|_| forward_queue()).unzip();
        let senders: Arc<[_]> = senders.into();
        let counts: Arc<[Counts]> = (0..workers).map(|_| Counts::default()).collect();
        let address = socket2::SockRef::from(&sockets[0]).local_addr().unwrap().as_socket().unwrap();
        let closing: Rc<RefCell<(bool, Vec<Waker>)>> = Rc::default();
        let mut drivers = Vec::new();
        for ((number, receiver), socket) in receivers.into_iter().enumerate().zip(&sockets) {
            let (siblings, others) = (senders.clone(), others.clone());
            let driver = Driver::new(
                keys.clone(),
                number as u16,
                siblings,
                others,
                counts.clone(),
                Buffers::new(1 << 30),
            );
            let socket = Socket::new(socket.try_clone().unwrap().into(), address).unwrap();
            let front = Echo { server: server_config(&identity, &keys) };
            let port = Port::new(socket, Rc::new(front));
            driver.open(&port);
            let closing = closing.clone();
            let serving = move |waker: &Waker| {
                let mut closing = closing.borrow_mut();
                closing.1.push(waker.clone());
                if closing.0 { Serving::HandedOver } else { Serving::Open }
            };
            tokio::task::spawn_local(driver.clone().run_socket(port, serving));
            tokio::task::spawn_local(driver.clone().run_sender());
            tokio::task::spawn_local(driver.clone().run_timers());
            tokio::task::spawn_local(driver.clone().run_forwarded(receiver));
            drivers.push(driver);
        }
        Rc::new(Rig { drivers, sockets, keys, identity, closing, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn counts(&self, worker: usize) -> &Counts {
        self.drivers[worker].counts()
    }

    pub fn open_connections(&self, worker: usize) -> usize {
        self.drivers[worker].connections()
    }

    /// A genuine ID of a connection that is not, or no longer, there.
    pub fn id_of_nobody(&self, worker: u16) -> quinn_proto::ConnectionId {
        Generator::new(self.keys.clone(), worker).generate_cid()
    }

    /// The addresses of clients that are believed.
    pub fn clients(&self) -> Vec<SocketAddr> {
        self.drivers.iter().flat_map(|driver| driver.addresses()).map(|(client, _)| client).collect()
    }

    /// The one connection that is established.
    pub fn connection(&self) -> Rc<Connection> {
        let mut connections: Vec<_> = self.drivers.iter().flat_map(|driver| driver.established()).collect();
        assert_eq!(connections.len(), 1);
        connections.remove(0)
    }

    /// The addresses that clients' packets come from.
    pub fn paths(&self) -> Vec<SocketAddr> {
        self.drivers.iter().flat_map(|driver| driver.addresses()).map(|(_, path)| path).collect()
    }

    pub fn client(&self) -> quinn::Endpoint {
        let mut client = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        client.set_default_client_config(client_config(&self.identity));
        client
    }

    pub async fn connect(&self) -> quinn::Connection {
        let client = self.client();
        self.connect_with(&client).await
    }

    pub async fn connect_with(&self, client: &quinn::Endpoint) -> quinn::Connection {
        self.connect_to(client, self.address).await
    }

    pub async fn connect_to(&self, client: &quinn::Endpoint, address: SocketAddr) -> quinn::Connection {
        let connecting = client.connect(address, "localhost").unwrap();
        tokio::time::timeout(PATIENCE, connecting).await.expect("a handshake in time").unwrap()
    }

    /// What comes back of `sent`.
    pub async fn echo(&self, connection: &quinn::Connection, sent: &[u8]) -> Vec<u8> {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        let talk = async {
            let write = async {
                send.write_all(sent).await.unwrap();
                send.finish().unwrap();
            };
            tokio::join!(write, receive.read_to_end(usize::MAX)).1.unwrap()
        };
        tokio::time::timeout(PATIENCE, talk).await.expect("an echo in time")
    }

    /// Waits until `holds`.
    pub async fn until(&self, what: &str, holds: impl Fn() -> bool) {
        let start = Instant::now();
        while !holds() {
            assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Sockets of a `SO_REUSEPORT` group on a port of loopback that the kernel chooses, one for each worker.
pub fn new_group(workers: u16) -> Vec<OwnedFd> {
    let mut address: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let open = |_| {
        let kind = socket2::Type::DGRAM.nonblocking().cloexec();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
        socket.set_recv_buffer_size(4 << 20).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&address.into()).unwrap();
        address = socket.local_addr().unwrap().as_socket().unwrap();
        socket.into()
    };
    (0..workers).map(open).collect()
}

fn server_config(
    identity: &rcgen::CertifiedKey<rcgen::KeyPair>,
    keys: &Keys,
) -> Arc<quinn_proto::ServerConfig> {
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(identity.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.cert.der().clone()], key)
        .unwrap();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = quinn_proto::crypto::rustls::QuicServerConfig::try_from(Arc::new(tls)).unwrap();
    Arc::new(quinn_proto::ServerConfig::new(Arc::new(crypto), keys.token()))
}

fn client_crypto(
    identity: &rcgen::CertifiedKey<rcgen::KeyPair>,
) -> quinn_proto::crypto::rustls::QuicClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(identity.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    quinn_proto::crypto::rustls::QuicClientConfig::try_from(Arc::new(tls)).unwrap()
}

fn client_config(identity: &rcgen::CertifiedKey<rcgen::KeyPair>) -> quinn::ClientConfig {
    quinn::ClientConfig::new(Arc::new(client_crypto(identity)))
}

/// One worker, a relay before it, and a client that has been answered through it.
pub async fn behind_a_relay() -> (Rc<Rig>, Relay, quinn::Endpoint, quinn::Connection) {
    let rig = Rig::start(1);
    let relay = Relay::start(rig.address()).await;
    let client = rig.client();
    let connection = rig.connect_to(&client, relay.address()).await;
    assert_eq!(rig.echo(&connection, b"before").await, b"before");
    (rig, relay, client, connection)
}

/// First datagrams of `count` clients that will say nothing more.
pub fn initials(count: usize) -> Vec<Vec<u8>> {
    let identity = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let config = quinn_proto::ClientConfig::new(Arc::new(client_crypto(&identity)));
    let mut endpoint = quinn_proto::Endpoint::new(Arc::default(), None, false, None);
    let server = "127.0.0.1:443".parse().unwrap();
    let initial = |_| {
        let now = Instant::now();
        let (_, mut connection) = endpoint.connect(now, config.clone(), server, "localhost").unwrap();
        let mut bytes = Vec::new();
        let transmit = connection.poll_transmit(now, 1, &mut bytes).unwrap();
        bytes[..transmit.size].to_vec()
    };
    (0..count).map(initial).collect()
}

/// Echoes every stream.
struct Echo {
    server: Arc<quinn_proto::ServerConfig>,
}

impl Front for Echo {
    fn settings(&self) -> Option<Settings> {
        Some(Settings {
            server: self.server.clone(),
            handshake_timeout: Duration::from_secs(2),
            idle_timeout: Duration::from_secs(30),
            control_frames: 1000,
            wants_proof: false,
        })
    }

    fn admit(&self, _: SocketAddr) -> Option<Box<dyn Any>> {
        Some(Box::new(()))
    }

    fn serve(&self, connection: Rc<Connection>) {
        tokio::task::spawn_local(async move {
            while let Some(id) = poll_fn(|context| connection.poll_accept(Dir::Bi, context)).await {
                tokio::task::spawn_local(echo(connection.clone(), id));
            }
        });
    }

    fn flooded(&self) -> u64 {
        7
    }
}

async fn echo(connection: Rc<Connection>, id: StreamId) {
    connection.enter_request();
    while let Ok(Some(mut bytes)) = poll_fn(|context| connection.poll_read(id, 1 << 14, context)).await {
        while !bytes.is_empty() {
            if poll_fn(|context| connection.poll_write(id, &mut bytes, context)).await.is_err() {
                return;
            }
        }
    }
    let _ = connection.finish(id);
    connection.forget(id);
    connection.leave_request();
}

/// A relay of datagrams between one client and a server, that can lie about where the client is.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: Mutex<SocketAddr>,
    front: UdpSocket,
    client: Mutex<Option<SocketAddr>>,
    /// What the client's datagrams leave from.
    back: Mutex<Arc<UdpSocket>>,
    elsewhere: Mutex<Vec<StdSocket>>,
    is_diverted: AtomicBool,
    spoofed_bytes: AtomicU64,
}

impl Relay {
    pub async fn start(server: SocketAddr) -> Relay {
        let front = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let back = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
        let address = front.local_addr().unwrap();
        let shared = Arc::new(Shared {
            server: server.into(),
            front,
            client: Mutex::default(),
            back: Mutex::new(back.clone()),
            elsewhere: Mutex::default(),
            is_diverted: AtomicBool::new(false),
            spoofed_bytes: AtomicU64::new(0),
        });
        tokio::task::spawn_local(shared.clone().forth());
        tokio::task::spawn_local(shared.clone().back(back, 0));
        Relay { address, shared }
    }

    /// Where clients send to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on the client's datagrams come from an address of its own on another host, which does not
    /// answer.
    pub fn divert(&self) -> SocketAddr {
        let socket = StdSocket::bind("127.0.0.2:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        self.shared.elsewhere.lock().unwrap().push(socket);
        self.shared.is_diverted.store(true, Ordering::Relaxed);
        address
    }

    /// From now on they come from where they came from at first.
    pub fn restore(&self) {
        self.shared.is_diverted.store(false, Ordering::Relaxed);
    }

    /// From now on the client is at another port of `host`, where the first `lost` datagrams do not reach it.
    pub async fn moves(&self, host: &str, lost: usize) -> SocketAddr {
        let back = Arc::new(UdpSocket::bind((host, 0)).await.unwrap());
        let address = back.local_addr().unwrap();
        *self.shared.back.lock().unwrap() = back.clone();
        tokio::task::spawn_local(self.shared.clone().back(back, lost));
        address
    }

    /// From now on they go to another server.
    pub fn lead_to(&self, server: SocketAddr) {
        *self.shared.server.lock().unwrap() = server;
    }

    /// What was sent from other addresses.
    pub fn spoofed_bytes(&self) -> u64 {
        self.shared.spoofed_bytes.load(Ordering::Relaxed)
    }

    /// What was sent to them.
    pub fn diverted_bytes(&self) -> u64 {
        let mut room = [0; 4096];
        let elsewhere = self.shared.elsewhere.lock().unwrap();
        elsewhere
            .iter()
            .map(|socket| {
                let mut bytes = 0;
                while let Ok(count) = socket.recv(&mut room) {
                    bytes += count as u64;
                }
                bytes
            })
            .sum()
    }
}

impl Shared {
    async fn forth(self: Arc<Self>) {
        let mut room = [0; 4096];
        loop {
            let (count, from) = self.front.recv_from(&mut room).await.unwrap();
            *self.client.lock().unwrap() = Some(from);
            let server = *self.server.lock().unwrap();
            if self.is_diverted.load(Ordering::Relaxed) {
                self.spoofed_bytes.fetch_add(count as u64, Ordering::Relaxed);
                let elsewhere = self.elsewhere.lock().unwrap();
                elsewhere.last().unwrap().send_to(&room[..count], server).unwrap();
            } else {
                let back = self.back.lock().unwrap().clone();
                back.send_to(&room[..count], server).await.unwrap();
            }
        }
    }

    async fn back(self: Arc<Self>, back: Arc<UdpSocket>, mut lost: usize) {
        let mut room = [0; 4096];
        loop {
            let (count, _) = back.recv_from(&mut room).await.unwrap();
            let client = *self.client.lock().unwrap();
            match lost.checked_sub(1) {
                Some(left) => lost = left,
                None => drop(self.front.send_to(&room[..count], client.unwrap()).await.unwrap()),
            }
        }
    }
}
