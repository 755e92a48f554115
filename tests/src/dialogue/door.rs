//! A relay between Unix sockets and TCP, so that every client and every backend of the tests can be used at a
//! Unix socket.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

/// Accepts connections at one address and relays them to another, including the ends of streams. Ends when
/// dropped; open connections go on.
#[derive(Debug)]
pub struct Door {
    at: SockAddr,
    file: Option<PathBuf>,
    connections: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

/// Converts a config's name after `unix:` to a socket address.
fn unix(name: &str) -> SockAddr {
    let path = name.strip_prefix('@').map_or_else(|| name.to_owned(), |name| format!("\0{name}"));
    SockAddr::unix(&path).unwrap_or_else(|problem| panic!("{name}: {problem}"))
}

impl Door {
    /// From a Unix socket, named as behind `unix:` in a config, to a TCP address.
    pub fn from_unix(name: &str, to: SocketAddr) -> Door {
        let file = (!name.starts_with('@')).then(|| name.into());
        Door::open(unix(name), to.into(), file)
    }

    /// From a free TCP address to a Unix socket.
    pub fn to_unix(name: &str) -> Door {
        Door::open(SocketAddr::from(([127, 0, 0, 1], 0)).into(), unix(name), None)
    }

    fn open(at: SockAddr, to: SockAddr, file: Option<PathBuf>) -> Door {
        let socket = Socket::new(at.domain(), Type::STREAM, None).expect("a socket");
        if at.domain() != Domain::UNIX {
            socket.set_reuse_address(true).expect("SO_REUSEADDR");
        }
        socket.bind(&at).unwrap_or_else(|problem| panic!("can't listen at {at:?}: {problem}"));
        socket.listen(4096).expect("listens");
        // The kernel chooses the port: one that was found free earlier may be in use by now.
        let at = if file.is_none() { socket.local_addr().expect("an address") } else { at };
        let connections = Arc::new(AtomicUsize::new(0));
        let stopped = Arc::new(AtomicBool::new(false));
        let acceptor = std::thread::spawn({
            let (connections, stopped) = (connections.clone(), stopped.clone());
            move || {
                while let Ok((from, _)) = socket.accept() {
                    if stopped.load(Ordering::SeqCst) {
                        return;
                    }
                    connections.fetch_add(1, Ordering::SeqCst);
                    let to = to.clone();
                    std::thread::spawn(move || pass(&from, &to));
                }
            }
        });
        Door { at, file, connections, stopped, acceptor: Some(acceptor) }
    }

    /// Where it takes connections over TCP.
    pub fn address(&self) -> SocketAddr {
        self.at.as_socket().expect("a door to a Unix socket")
    }

    /// Connections taken so far.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Wakes the acceptor, which then drops the listening socket.
        if let Ok(socket) = Socket::new(self.at.domain(), Type::STREAM, None) {
            let _ = socket.connect(&self.at);
        }
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        if let Some(file) = &self.file {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn pass(from: &Socket, to: &SockAddr) {
    let Ok(other) = Socket::new(to.domain(), Type::STREAM, None) else { return };
    if other.connect(to).is_err() {
        return;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| copy(from, &other));
        copy(&other, from);
    });
}

/// Copies one direction up to its end, and passes the same kind of end on.
fn copy(mut from: &Socket, mut to: &Socket) {
    let mut buffer = vec![0; 65_536];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(count) if to.write_all(&buffer[..count]).is_ok() => {}
            _ => {
                for socket in [from, to] {
                    let _ = socket.set_linger(Some(Duration::ZERO));
                    let _ = socket.shutdown(Shutdown::Both);
                }
                return;
            }
        }
    }
}
