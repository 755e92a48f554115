//! A backend that serves by itself and remembers everything it was sent.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::SockRef;

use super::PATIENCE;
use super::message::{Broken, Request};
use super::wire::Wire;

/// What happens to a connection after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// Serves the next request on it.
    Keep,
    /// Ends with FIN.
    Close,
    /// Ends with RST.
    Reset,
}

type Serve = dyn Fn(&Request, &mut Wire) -> After + Send + Sync;

/// An HTTP/1.1 server with a thread a connection. Ends, with all its connections, when dropped or stopped.
pub struct Backend {
    address: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    serve: Box<Serve>,
    stopped: AtomicBool,
    requests: Mutex<Vec<Request>>,
    remember: bool,
    served: AtomicUsize,
    broken: Mutex<Vec<Broken>>,
    connections: AtomicUsize,
    busy: AtomicUsize,
    open: Mutex<HashMap<usize, TcpStream>>,
}

impl Backend {
    /// Answers every request with 200 and this text.
    pub fn saying(text: &str) -> Backend {
        let text = text.to_owned();
        Backend::serving(move |_, wire| {
            wire.answers(200, &[], &text);
            After::Keep
        })
    }

    /// Answers with `serve`, which gets the whole request and the connection to answer on.
    pub fn serving(serve: impl Fn(&Request, &mut Wire) -> After + Send + Sync + 'static) -> Backend {
        Backend::start(super::free_address(), true, serve)
    }

    /// [`Self::serving`] at this address.
    pub fn serving_at(
        address: SocketAddr,
        serve: impl Fn(&Request, &mut Wire) -> After + Send + Sync + 'static,
    ) -> Backend {
        Backend::start(address, true, serve)
    }

    /// [`Self::serving_at`] for load: requests are counted and not kept.
    pub fn counting_at(
        address: SocketAddr,
        serve: impl Fn(&Request, &mut Wire) -> After + Send + Sync + 'static,
    ) -> Backend {
        Backend::start(address, false, serve)
    }

    fn start(
        address: SocketAddr,
        remember: bool,
        serve: impl Fn(&Request, &mut Wire) -> After + Send + Sync + 'static,
    ) -> Backend {
        // A backend that restarts binds its address while connections of its former life are in TIME_WAIT;
        // std sets SO_REUSEADDR.
        let listener = super::listen_at(address);
        // std asks for a backlog of 128, too short for a test with a thousand clients.
        let _ = SockRef::from(&listener).listen(4096);
        let shared = Arc::new(Shared {
            serve: Box::new(serve),
            stopped: AtomicBool::new(false),
            requests: Mutex::default(),
            remember,
            served: AtomicUsize::new(0),
            broken: Mutex::default(),
            connections: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            open: Mutex::default(),
        });
        let acceptor = std::thread::spawn({
            let shared = shared.clone();
            move || accept(&listener, &shared)
        });
        Backend { address, shared, acceptor: Some(acceptor) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whole requests received so far, in order of completion.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.shared.requests).clone()
    }

    /// Number of whole requests received so far.
    pub fn served(&self) -> usize {
        self.shared.served.load(Ordering::SeqCst)
    }

    /// Requests that broke off before they were whole, other than by an end between requests.
    pub fn broken(&self) -> Vec<Broken> {
        lock(&self.shared.broken).clone()
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Requests being answered now.
    pub fn busy(&self) -> usize {
        self.shared.busy.load(Ordering::SeqCst)
    }

    /// Forgets the requests received so far.
    pub fn forgets(&self) {
        lock(&self.shared.requests).clear();
    }

    /// Stops listening and resets every connection, as the kernel does for a killed process. Gives the
    /// address.
    pub fn dies(mut self) -> SocketAddr {
        self.end();
        self.address
    }

    /// Resets every open connection; goes on listening.
    pub fn resets_connections(&self) {
        for stream in lock(&self.shared.open).values() {
            let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn end(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then drops the listening socket.
        let _ = TcpStream::connect_timeout(&self.address, PATIENCE);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.resets_connections();
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        if self.acceptor.is_some() {
            self.end();
        }
    }
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "Backend({}, {} requests)", self.address, self.served())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let number = shared.connections.fetch_add(1, Ordering::SeqCst);
        if let Ok(copy) = stream.try_clone() {
            lock(&shared.open).insert(number, copy);
        }
        let shared = shared.clone();
        std::thread::spawn(move || {
            let after = converse(Wire::over(stream, "backend"), &shared);
            if let Some(stream) = lock(&shared.open).remove(&number)
                && after == After::Reset
            {
                let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
        });
    }
}

fn converse(wire: Wire, shared: &Arc<Shared>) -> After {
    // An idle connection in the proxy's pool may stay idle for as long as the test runs.
    let mut wire = wire.with_patience(Duration::from_secs(3600));
    loop {
        let request = match wire.tries_to_receive_request() {
            Ok(request) => request,
            Err(broken) => {
                if !wire.take_all().is_empty() || matches!(broken, Broken::Malformed(_)) {
                    lock(&shared.broken).push(broken);
                }
                return After::Close;
            }
        };
        if shared.remember {
            lock(&shared.requests).push(request.clone());
        }
        shared.served.fetch_add(1, Ordering::SeqCst);
        shared.busy.fetch_add(1, Ordering::SeqCst);
        // If the proxy goes away while we answer, the test has to notice, not this thread.
        let after =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (shared.serve)(&request, &mut wire)));
        shared.busy.fetch_sub(1, Ordering::SeqCst);
        match after {
            Ok(After::Keep) if !shared.stopped.load(Ordering::SeqCst) => {}
            Ok(after) => return after,
            Err(_) => return After::Close,
        }
    }
}
