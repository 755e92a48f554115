//! A path between client and Weir that can be held up, listened to and cut.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use weir_tests::dialogue::Weir;

/// Stands between a client and Weir: passes on what the client sends and, once it is opened, what Weir
/// answers. So as long as it is closed no handshake can end. Dropped, it is a client that has gone without a
/// word.
pub struct Relay {
    pub address: SocketAddr,
    state: Arc<RelayState>,
}

struct RelayState {
    is_open: AtomicBool,
    is_over: AtomicBool,
    /// What came from Weir while it was closed.
    held: Mutex<Vec<Vec<u8>>>,
    /// What came from the client while it was closed.
    flight: Mutex<Vec<Vec<u8>>>,
    client: Mutex<Option<SocketAddr>>,
    front: UdpSocket,
    /// Another one each time that the relay moves.
    back: Mutex<Arc<UdpSocket>>,
}

impl Relay {
    /// Open.
    pub fn to(weir: &Weir) -> Relay {
        let (front, back) = (bind(), bind());
        back.connect(weir.address("web")).unwrap();
        let address = front.local_addr().unwrap();
        let state = Arc::new(RelayState {
            is_open: AtomicBool::new(true),
            is_over: AtomicBool::new(false),
            held: Mutex::default(),
            flight: Mutex::default(),
            client: Mutex::default(),
            front,
            back: Mutex::new(Arc::new(back)),
        });
        for direction in [RelayState::forth, RelayState::back] {
            let state = state.clone();
            std::thread::spawn(move || {
                while !state.is_over.load(Ordering::Relaxed) {
                    direction(&state);
                }
            });
        }
        Relay { address, state }
    }

    /// Holds what Weir answers from now on.
    pub fn closes(&self) {
        self.state.is_open.store(false, Ordering::Relaxed);
    }

    /// Passes on what was held, and all that comes.
    pub fn opens(&self) {
        self.state.is_open.store(true, Ordering::Relaxed);
        let client = self.state.client.lock().unwrap().expect("a client");
        for datagram in self.state.held.lock().unwrap().drain(..) {
            self.state.front.send_to(&datagram, client).unwrap();
        }
    }

    /// Goes on from another port, as a translation of addresses does that forgets the client. What Weir sends
    /// before it hears of that still gets through: a client that only receives would never tell it.
    pub fn moves(&self) {
        let back = bind();
        let mut held = self.state.back.lock().unwrap();
        back.connect(held.peer_addr().unwrap()).unwrap();
        let before = std::mem::replace(&mut *held, Arc::new(back));
        let state = self.state.clone();
        std::thread::spawn(move || {
            while !state.is_over.load(Ordering::Relaxed) {
                state.back_by(&before);
            }
        });
    }

    /// What the client has sent while it was closed.
    pub fn flight(&self) -> Vec<Vec<u8>> {
        self.state.flight.lock().unwrap().clone()
    }
}

fn bind() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    socket
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::Relaxed);
    }
}

impl RelayState {
    fn forth(&self) {
        let mut room = [0; 2048];
        let Ok((count, client)) = self.front.recv_from(&mut room) else { return };
        *self.client.lock().unwrap() = Some(client);
        if !self.is_open.load(Ordering::Relaxed) {
            self.flight.lock().unwrap().push(room[..count].to_vec());
        }
        let _ = self.back.lock().unwrap().send(&room[..count]);
    }

    fn back(&self) {
        let back = self.back.lock().unwrap().clone();
        self.back_by(&back);
    }

    fn back_by(&self, back: &UdpSocket) {
        let mut room = [0; 2048];
        let Ok(count) = back.recv(&mut room) else { return };
        let mut held = self.held.lock().unwrap();
        match *self.client.lock().unwrap() {
            Some(client) if self.is_open.load(Ordering::Relaxed) => {
                self.front.send_to(&room[..count], client).unwrap();
            }
            _ => held.push(room[..count].to_vec()),
        }
    }
}
