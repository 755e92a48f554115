//! A plane in this process, serving a config whose listeners have ports of the kernel's choice.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use weir_balance::{PickInput, Picker};
use weir_proxy::access_log::AccessLog;
use weir_proxy::compiled::CompiledSnapshot;
use weir_proxy::plane::{Options, ProxyPlane};
use weir_state::Snapshot;
use weir_state::plane::Placements;
use weir_state::sockets::Sockets;
use weir_stats::table::{End, ListenerCells, PoolCells};

/// No step of a test takes this long unless something is wrong.
pub const LONG: Duration = Duration::from_secs(20);

pub struct Rig {
    plane: Option<ProxyPlane>,
    sockets: Sockets,
    pub snapshot: Arc<Snapshot>,
    pub log: AccessLog,
    runtime: Runtime,
}

impl Rig {
    /// Serves `config` with one worker.
    pub fn serve(config: &str) -> Rig {
        let rig = Rig::idle(config);
        let plane = rig.plane.as_ref().unwrap();
        rig.runtime.block_on(plane.apply(&compiled(&rig.snapshot), &rig.sockets)).unwrap();
        rig
    }

    /// A plane with one worker that serves nothing yet.
    pub fn plane() -> ProxyPlane {
        start(&AccessLog::start(&weir_config::Log::default(), &[]).unwrap())
    }

    /// Listens for `config`, and accepts nothing yet.
    pub fn idle(config: &str) -> Rig {
        let config = Arc::new(parse(config));
        let log = AccessLog::start(&config.log, &config.access_logs).unwrap();
        let plane = start(&log);
        let sockets = Sockets::bind(&config, &Placements::default(), 1, &Sockets::default()).unwrap();
        let snapshot = Arc::new(Snapshot::compile(config, &Default::default(), None, 1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Rig { plane: Some(plane), sockets, snapshot, log, runtime }
    }

    /// Puts what it listens for in force, and `next`, which listens elsewhere, before the worker has had time
    /// to accept.
    pub fn reload_at_once(&mut self, next: &str) {
        let config = Arc::new(parse(next));
        let sockets = Sockets::bind(&config, &Placements::default(), 1, &Sockets::default()).unwrap();
        let snapshot = Arc::new(Snapshot::compile(config, &Default::default(), Some(&self.snapshot), 1));
        let plane = self.plane.as_ref().unwrap();
        let (before, after) = (compiled(&self.snapshot), compiled(&snapshot));
        let both = async { tokio::join!(plane.apply(&before, &self.sockets), plane.apply(&after, &sockets)) };
        let (first, second) = self.runtime.block_on(both);
        first.and(second).unwrap();
        (self.sockets, self.snapshot) = (sockets, snapshot);
    }

    /// Puts another config in force, as a reload does.
    pub fn reload(&mut self, config: &str) {
        let config = Arc::new(parse(config));
        let sockets = Sockets::bind(&config, &Placements::default(), 1, &self.sockets).unwrap();
        let snapshot = Arc::new(Snapshot::compile(config, &Default::default(), Some(&self.snapshot), 1));
        let plane = self.plane.as_ref().unwrap();
        self.runtime.block_on(plane.apply(&compiled(&snapshot), &sockets)).unwrap();
        (self.sockets, self.snapshot) = (sockets, snapshot);
    }

    /// Where the only listener accepts.
    pub fn address(&self) -> SocketAddr {
        let endpoint = self.sockets.endpoints().next().unwrap();
        self.sockets.local_address(&endpoint).unwrap()
    }

    /// The backend that the only pool gives a flow by the hash of all of it.
    pub fn owner_of_flow(&self, client: SocketAddr, destination: SocketAddr, protocol: u8) -> usize {
        let key = Some(weir_balance::flow_hash(client, destination, protocol));
        let input =
            PickInput { now: Duration::ZERO, draw: [0; 2], key, sticky: None, exclude: &[], role: None };
        let explanation = Picker::new(self.snapshot.pools[0].balance.clone()).explain(&input);
        explanation.outcome.expect("a backend").index
    }

    pub fn connect(&self) -> TcpStream {
        patient(TcpStream::connect(self.address()).unwrap())
    }

    pub fn listener(&self) -> &ListenerCells {
        self.snapshot.listeners[0].cells.of(0)
    }

    pub fn pool(&self) -> &PoolCells {
        self.snapshot.pools[0].cells.of(0)
    }

    pub fn ends(&self, end: End) -> u64 {
        self.listener().ends[end as usize].total()
    }

    /// Waits until `end` has been counted `count` times.
    pub fn await_ends(&self, end: End, count: u64) {
        eventually(&format!("{count} sessions end with {end:?}"), || self.ends(end) >= count);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if let Some(plane) = self.plane.take() {
            plane.stop();
        }
    }
}

fn start(log: &AccessLog) -> ProxyPlane {
    // Nobody acts on events here; sending to a closed channel is as good as to an open one.
    let (events, _) = tokio::sync::mpsc::unbounded_channel();
    let options = Options {
        workers: 1,
        pin: false,
        events,
        access_log: log.clone(),
        quic: Default::default(),
        sockets: Sockets::default(),
    };
    ProxyPlane::start(options).unwrap()
}

fn compiled(snapshot: &Arc<Snapshot>) -> Arc<CompiledSnapshot> {
    let log = AccessLog::start(&weir_config::Log::default(), &[]).unwrap();
    Arc::new(CompiledSnapshot::compile(snapshot.clone(), None, 1, &log))
}

fn parse(text: &str) -> weir_config::Config {
    weir_config::parse("test.toml", text).unwrap_or_else(|report| panic!("{report}"))
}

/// Waits for what another thread is about to bring about.
pub fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LONG, "waited in vain until {what}");
        std::thread::yield_now();
    }
}

pub fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.set_write_timeout(Some(LONG)).unwrap();
    stream
}

/// A TCP backend that gives every connection to `serve`, one after the other.
pub struct Backend {
    pub address: SocketAddr,
    listener: Option<TcpListener>,
}

impl Backend {
    pub fn open() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Backend { address: listener.local_addr().unwrap(), listener: Some(listener) }
    }

    pub fn accept(&self) -> TcpStream {
        patient(self.listener.as_ref().unwrap().accept().unwrap().0)
    }

    /// Serves each connection on a thread of its own, for the rest of the test.
    pub fn serve(mut self, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> SocketAddr {
        let listener = self.listener.take().unwrap();
        let serve = Arc::new(serve);
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let serve = serve.clone();
                std::thread::spawn(move || serve(patient(stream)));
            }
        });
        self.address
    }

    /// An address where nobody listens.
    pub fn absent() -> SocketAddr {
        // Bound and never listening: no other test can be given the port meanwhile.
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&"127.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        std::mem::forget(socket);
        address
    }
}

/// Bytes whose every window differs from others, so that loss, repetition and reordering all show.
pub fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    std::thread::spawn(work)
}
