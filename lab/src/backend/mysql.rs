//! A canned MySQL server: it accepts the lab's account and gives one answer to every SELECT.
//!
//! It looks nothing up, so that the load balancer in front of it is what is measured. It is strict where a
//! load balancer could cheat: it gives every connection its own nonce and checks the response to it, keeps
//! transactions, autocommit and the session trackers as a server does, and counts the statements that reach
//! it. It never asks for full authentication, like a server whose authentication cache is warm.

mod session;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mysql::prelude::Queryable;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use rustls::ServerConfig;

use super::Counters;
use crate::certificate;
use crate::channel::{self, Channel, PIECE_BYTES, Received};
use crate::cluster::member::connect;
use crate::cluster::{ACCOUNT, PASSWORD};
use crate::packets::{self, HEAD_BYTES, NONCE_BYTES, PLUGIN, Packet, capability, command};
pub use session::ROW;
use session::{Answers, Counted, Session};

/// The server version that it reports.
const VERSION: &str = "9.7.4-lab";
/// Longest command that it accepts; the lab's own are below a kilobyte.
const MAX_COMMAND_BYTES: usize = 1024 * 1024;

/// Serves connections of `listener` (non-blocking) until the process ends. With `encrypts`, offers TLS with a
/// new certificate. Err if epoll fails or the certificate can't be made.
pub fn serve(listener: &OwnedFd, encrypts: bool) -> io::Result<()> {
    const LISTENER: u64 = u64::MAX;
    let mut server = Server {
        tls: if encrypts { Some(make_tls()?) } else { None },
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        answers: Rc::new(Answers::new()),
        counted: Counted::default(),
        connections: Vec::new(),
        last_id: 0,
    };
    epoll::add(&server.epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)?;
    let mut events = Vec::with_capacity(256);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        events.clear();
        match epoll::wait(&server.epoll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            match event.data.u64() {
                LISTENER => server.accept_all(listener)?,
                key => server.answer(key as usize, &mut piece),
            }
        }
    }
}

/// Fetches the counters of the canned server at `address`.
pub fn counters(address: SocketAddr) -> io::Result<Counters> {
    let asked = connect(address.port(), Duration::from_secs(5))
        .and_then(|mut client| client.query_first("SELECT @@lab_connections, @@lab_statements"))
        .map_err(|error| io::Error::other(error.to_string()))?;
    asked
        .map(|(connections, requests)| Counters { connections, requests })
        .ok_or_else(|| io::Error::other("the canned server did not say what it has served"))
}

fn make_tls() -> io::Result<Arc<ServerConfig>> {
    let directory = std::env::temp_dir().join(format!("weir-lab-canned-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let read = |name: &str| std::fs::read(directory.join(name));
    let made = certificate::make(&directory)
        .and_then(|_| channel::server(&read("certificate.pem")?, &read("key.pem")?));
    std::fs::remove_dir_all(&directory)?;
    made
}

struct Server {
    tls: Option<Arc<ServerConfig>>,
    epoll: OwnedFd,
    answers: Rc<Answers>,
    counted: Counted,
    /// Indexed by file descriptor.
    connections: Vec<Option<Connection>>,
    last_id: u32,
}

impl Server {
    fn accept_all(&mut self, listener: &OwnedFd) -> io::Result<()> {
        loop {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let stream = match rustix::net::accept_with(listener, flags) {
                Ok(stream) => TcpStream::from(stream),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            };
            let key = stream.as_raw_fd() as usize;
            epoll::add(&self.epoll, &stream, EventData::new_u64(key as u64), EventFlags::IN)?;
            self.last_id += 1;
            let mut connection = Connection {
                channel: Channel::new(stream)?,
                input: Vec::new(),
                nonce: nonce(self.last_id, 0),
                nonces: 0,
                id: self.last_id,
                stage: Stage::Greeted,
                session: Session::new(Rc::clone(&self.answers)),
            };
            if self.connections.len() <= key {
                self.connections.resize_with(key + 1, || None);
            }
            let greeted = connection.greet(self.tls.is_some());
            self.connections[key] = greeted.is_ok().then_some(connection);
        }
    }

    fn answer(&mut self, key: usize, piece: &mut [u8]) {
        let slot = &mut self.connections[key];
        let Some(connection) = slot else { return };
        // A client that breaks the protocol or the connection is closed; other connections are not affected.
        if !connection.go_on(piece, self.tls.as_ref(), &mut self.counted).unwrap_or(false) {
            *slot = None;
        }
    }
}

/// The state of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Waiting for the client's first packet, or its second after TLS began.
    Greeted,
    /// Waiting for the response to a nonce.
    Asked,
    /// Logged in.
    Ready,
}

struct Connection {
    channel: Channel,
    /// Bytes received but not understood yet.
    input: Vec<u8>,
    nonce: [u8; NONCE_BYTES],
    /// Number of nonces that it was sent before this one.
    nonces: u32,
    id: u32,
    stage: Stage,
    session: Session,
}

impl Connection {
    fn greet(&mut self, encrypts: bool) -> io::Result<()> {
        let mut offered = capability::USUAL
            | capability::CONNECT_ATTRIBUTES
            | capability::PLUGIN_AUTH_LENENC
            | capability::SESSION_TRACK;
        if encrypts {
            offered |= capability::SSL;
        }
        let [low, high] = [offered as u16, (offered >> 16) as u16].map(u16::to_le_bytes);
        let (begin, end) = self.nonce.split_at(8);
        let mut payload = vec![10];
        packets::append_ended(&mut payload, VERSION.as_bytes());
        payload.extend_from_slice(&self.id.to_le_bytes());
        packets::append_ended(&mut payload, begin);
        payload.extend_from_slice(&low);
        payload.push(packets::UTF8MB4);
        payload.extend_from_slice(&session::AUTOCOMMIT.to_le_bytes());
        payload.extend_from_slice(&high);
        payload.push(NONCE_BYTES as u8 + 1);
        payload.extend_from_slice(&[0; 10]);
        packets::append_ended(&mut payload, end);
        packets::append_ended(&mut payload, PLUGIN.as_bytes());
        let mut output = Vec::new();
        packets::append(&mut output, 0, &payload);
        self.channel.send(&output)
    }

    /// Handles what was received; false if the connection is over.
    fn go_on(
        &mut self,
        piece: &mut [u8],
        tls: Option<&Arc<ServerConfig>>,
        counted: &mut Counted,
    ) -> io::Result<bool> {
        if self.channel.receive(piece, &mut self.input)? == Received::End {
            return Ok(false);
        }
        let input = std::mem::take(&mut self.input);
        let mut output = Vec::new();
        let mut used = 0;
        let mut goes_on = true;
        while let Some(packet) = goes_on.then(|| Packet::first(&input[used..])).flatten() {
            used += packet.bytes();
            match tls {
                Some(tls) if self.stage == Stage::Greeted && is_ssl_request(packet.payload) => {
                    if self.channel.is_encrypted() {
                        return Ok(false);
                    }
                    // Whatever follows the request is TLS, even in the same segment.
                    let mut plain = Vec::new();
                    self.channel.encrypt(channel::accept(tls)?, &input[used..], &mut plain)?;
                    self.input = plain;
                    return Ok(true);
                }
                _ => goes_on = self.take(packet, &mut output, counted),
            }
        }
        // Usually all input was used, and the buffer is used again.
        let mut input = input;
        input.drain(..used);
        self.input = input;
        if !output.is_empty() {
            self.channel.send(&output)?;
        }
        Ok(goes_on && self.input.len() <= HEAD_BYTES + MAX_COMMAND_BYTES)
    }

    /// Answers one packet; false when the connection is over after that.
    fn take(&mut self, packet: Packet<'_>, output: &mut Vec<u8>, counted: &mut Counted) -> bool {
        let next = packet.sequence.wrapping_add(1);
        match self.stage {
            Stage::Greeted => match self.session.log_in(packet.payload) {
                Some(login) if login.plugin == PLUGIN.as_bytes() => {
                    let proven = login.user == ACCOUNT.as_bytes() && self.is_right(login.answer);
                    self.settle(proven, next, output)
                }
                Some(login) if login.user == ACCOUNT.as_bytes() => {
                    self.ask_again(next, output);
                    true
                }
                _ => self.settle(false, next, output),
            },
            Stage::Asked => {
                let proven = self.is_right(packet.payload);
                self.settle(proven, next, output)
            }
            Stage::Ready => match packet.payload.split_first() {
                Some((&command::QUIT, _)) | None => false,
                Some((&command::CHANGE_USER, mut rest)) => {
                    self.session.begin_anew();
                    if packets::take_ended(&mut rest) == Some(ACCOUNT.as_bytes()) {
                        // A server sends a new nonce for this and ignores a response to the old one.
                        self.ask_again(next, output);
                        true
                    } else {
                        self.settle(false, next, output)
                    }
                }
                Some((command, rest)) => self.session.answer(*command, rest, next, output, counted),
            },
        }
    }

    fn is_right(&self, answer: &[u8]) -> bool {
        answer == packets::scramble(PASSWORD, &self.nonce)
    }

    /// Ends the login with success or refusal.
    fn settle(&mut self, proven: bool, sequence: u8, output: &mut Vec<u8>) -> bool {
        if proven {
            packets::append(output, sequence, &[1, packets::FAST]);
            self.session.append_ok(output, sequence.wrapping_add(1));
            self.stage = Stage::Ready;
        } else {
            session::append_error(
                output,
                sequence,
                1045,
                "28000",
                "Access denied: the lab knows one account",
            );
        }
        proven
    }

    /// AuthSwitchRequest with a new nonce.
    fn ask_again(&mut self, sequence: u8, output: &mut Vec<u8>) {
        self.nonces += 1;
        self.nonce = nonce(self.id, self.nonces);
        let mut payload = vec![0xfe];
        packets::append_ended(&mut payload, PLUGIN.as_bytes());
        packets::append_ended(&mut payload, &self.nonce);
        packets::append(output, sequence, &payload);
        self.stage = Stage::Asked;
    }
}

/// Nonces need only differ and need not be secret: the account is no secret either. As on a server, no byte
/// is zero or `$`.
fn nonce(id: u32, nth: u32) -> [u8; NONCE_BYTES] {
    let text = format!("{id:010}{nth:010}");
    std::array::from_fn(|index| text.as_bytes()[index])
}

/// Whether a packet is only the beginning of a login, which a client sends to ask for TLS.
fn is_ssl_request(payload: &[u8]) -> bool {
    payload.len() == 32 && payload[1] & (capability::SSL >> 8) as u8 != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// A server on a port of its own.
    fn served(encrypts: bool) -> SocketAddr {
        let listener = crate::backend::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        thread::spawn(move || serve(&listener, encrypts));
        address
    }

    #[test]
    fn a_client_that_is_not_the_labs_own_is_content() {
        let address = served(false);
        let mut client = connect(address.port(), Duration::from_secs(5)).unwrap();
        let found: Option<String> = client.query_first("SELECT c FROM sbtest1 WHERE id=1").unwrap();
        assert_eq!(found.as_deref().map(str::as_bytes), Some(ROW));
        let found: Option<String> = client.exec_first("SELECT c FROM sbtest1 WHERE id=?", (7,)).unwrap();
        assert_eq!(found.as_deref().map(str::as_bytes), Some(ROW));
        let found: Option<(u8, String)> = client.query_first("SELECT @@super_read_only, @@version").unwrap();
        assert_eq!(found, Some((0, VERSION.to_owned())));
        client.query_drop("BEGIN").unwrap();
        client.query_drop("UPDATE sbtest1 SET k = 1").unwrap();
        client.query_drop("COMMIT").unwrap();
        client.ping().unwrap();
        client.reset().unwrap();
        client.change_user(mysql::ChangeUserOpts::default()).unwrap();
        // Two reads and three statements of a transaction, from one client. Asking for the counters does not
        // count.
        assert_eq!(counters(address).unwrap(), Counters { connections: 1, requests: 5 });
    }

    #[test]
    fn a_wrong_password_is_refused() {
        let options = mysql::OptsBuilder::new()
            .ip_or_hostname(Some("127.0.0.1"))
            .tcp_port(served(false).port())
            .user(Some(ACCOUNT))
            .pass(Some("guessed"));
        let error = mysql::Conn::new(options).unwrap_err().to_string();
        assert!(error.contains("1045"), "{error}");
    }

    #[test]
    fn two_connections_have_two_nonces() {
        assert_ne!(nonce(1, 0), nonce(2, 0));
        assert_ne!(nonce(1, 0), nonce(1, 1));
        assert!(!nonce(u32::MAX, u32::MAX).contains(&0));
    }
}
