//! A line between two Weirs that can be cut, and on which nothing may move.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use weir_tests::dialogue::{free_address, listen_at};

/// Accepts connections and relays them to another address. Ends when dropped.
pub struct Line {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_frozen: Mutex<bool>,
    thawed: Condvar,
    is_cut: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Line {
    pub fn to(target: SocketAddr) -> Line {
        let address = free_address();
        let listener = listen_at(address);
        let state = Arc::new(State::default());
        let of = state.clone();
        std::thread::spawn(move || accept(&listener, target, &of));
        Line { address, state }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Nothing moves any more, and nobody is told.
    pub fn freezes(&self) {
        *self.state.is_frozen.lock().unwrap() = true;
    }

    /// What was held moves on.
    pub fn thaws(&self) {
        *self.state.is_frozen.lock().unwrap() = false;
        self.state.thawed.notify_all();
    }

    /// Ends all connections, and each new one at once.
    pub fn breaks(&self) {
        self.state.is_cut.store(true, Ordering::SeqCst);
        for stream in self.state.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connections pass again.
    pub fn mends(&self) {
        self.state.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.breaks();
        self.thaws();
    }
}

fn accept(listener: &TcpListener, target: SocketAddr, state: &Arc<State>) {
    for stream in listener.incoming() {
        let (Ok(one), false) = (stream, state.is_cut.load(Ordering::SeqCst)) else { continue };
        let Ok(other) = TcpStream::connect(target) else { continue };
        for (from, to) in [(&one, &other), (&other, &one)] {
            let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            state.open.lock().unwrap().push(from.try_clone().unwrap());
            let state = state.clone();
            std::thread::spawn(move || copy(from, to, &state));
        }
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream, state: &State) {
    let mut buffer = vec![0; 65_536];
    loop {
        let frozen = state.is_frozen.lock().unwrap();
        drop(state.thawed.wait_while(frozen, |is_frozen| *is_frozen).unwrap());
        match from.read(&mut buffer) {
            Ok(count @ 1..) if to.write_all(&buffer[..count]).is_ok() => {}
            _ => {
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
    }
}
