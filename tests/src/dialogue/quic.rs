//! QUIC packet by packet and frame by frame, for what no proper client would send. Written apart from the
//! product's on purpose; only TLS and the ciphers are rustls's. It retransmits nothing, because no path loses
//! packets.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{ClientConnection, KeyChange, Keys, PacketKeySet, Secrets, Version};
use rustls::{ClientConfig, RootCertStore, Side};

use super::PATIENCE;
use wire::{Reader, put};

pub mod frame;
mod received;
pub mod wire;

pub use received::{Close, Incoming, Seen, code};

/// Least bytes of a datagram with a client's first packets (RFC 9000 §14.1).
const INITIAL_BYTES: usize = 1200;
/// Bytes of a packet number as we write it.
const NUMBER_BYTES: usize = 4;
/// Bytes that a cipher puts behind a packet.
const TAG_BYTES: usize = 16;

/// How long a client waits for an answer in the handshake before it repeats its part.
const AGAIN: Duration = Duration::from_millis(500);
/// How long a wait for the end tolerates a silent server before it prompts it.
const POKE: Duration = Duration::from_millis(20);
/// Number of undecryptable datagrams in a row that mean that the server forgot us (RFC 9000 §10.3).
const RESETS: u32 = 3;

/// Packet number spaces (RFC 9000 §12.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// First packets.
    Initial,
    /// The rest of the handshake.
    Handshake,
    /// Everything else.
    Data,
}

const SPACES: [Space; 3] = [Space::Initial, Space::Handshake, Space::Data];

/// A client's connection.
pub struct Quic {
    socket: UdpSocket,
    tls: ClientConnection,
    own_id: [u8; 8],
    peer_id: Vec<u8>,
    token: Vec<u8>,
    keys: [Option<Keys>; 3],
    /// The secrets of the next keys, those keys once they were needed, and the number of key updates. Servers
    /// update keys early, to see whether clients can (RFC 9001 §6).
    secrets: Option<Secrets>,
    coming: Option<PacketKeySet>,
    key_updates: u32,
    next: [u64; 3],
    received: [BTreeSet<u64>; 3],
    handshake: [Incoming; 3],
    handshake_sent: [u64; 3],
    hello: Vec<u8>,
    finish: Vec<u8>,
    level: Space,
    is_confirmed: bool,
    events: VecDeque<u64>,
    streams: BTreeMap<u64, Incoming>,
    close: Option<Close>,
    /// Number of consecutive undecryptable datagrams.
    sealed: u32,
    /// Whether packets are acknowledged as they arrive. A test that does so itself switches it off.
    pub acknowledges: bool,
    /// What was received so far.
    pub seen: Seen,
}

/// TLS for a client that trusts the authority in this PEM file and speaks HTTP/3.
pub fn trusting(authority: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).expect("a certificate")).expect("an authority");
    // A key share that is small enough for the whole ClientHello to fit one datagram.
    let provider = rustls::crypto::CryptoProvider {
        kx_groups: vec![rustls::crypto::aws_lc_rs::kx_group::X25519],
        ..rustls::crypto::aws_lc_rs::default_provider()
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h3".to_vec()];
    Arc::new(config)
}

impl Quic {
    /// Connects to the server that proves to be `name`, and waits until it says that the handshake is done.
    pub fn connect(address: SocketAddr, name: &'static str, config: &Arc<ClientConfig>) -> Quic {
        let connected = Quic::try_connect(address, name, config, PATIENCE);
        connected.unwrap_or_else(|problem| panic!("client can't connect to {address}: {problem}"))
    }

    /// [`Self::connect`]; an error is the caller's to judge.
    pub fn try_connect(
        address: SocketAddr,
        name: &'static str,
        config: &Arc<ClientConfig>,
        patience: Duration,
    ) -> io::Result<Quic> {
        let mut quic = Quic::silent(address, name, config);
        quic.greets();
        let deadline = Instant::now() + patience;
        while !quic.is_confirmed {
            if let Some(close) = &quic.close {
                return Err(io::Error::other(format!("refused: {close:?}")));
            }
            match quic.receives_datagram(deadline.min(Instant::now() + AGAIN)) {
                Err(problem) if problem.kind() == ErrorKind::TimedOut && Instant::now() < deadline => {
                    quic.says_again();
                }
                received => received?,
            }
        }
        Ok(quic)
    }

    /// Sends its part of the handshake again: earlier packets may have been lost behind a flood.
    fn says_again(&mut self) {
        let (space, said) = match self.finish.is_empty() {
            true => (Space::Initial, &self.hello),
            false => (Space::Handshake, &self.finish),
        };
        let again = frame::crypto(0, said);
        let _ = self.tries_to_send_in(space, &again);
    }

    /// A client that has sent nothing yet.
    pub fn silent(address: SocketAddr, name: &'static str, config: &Arc<ClientConfig>) -> Quic {
        let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.connect(address).expect("a route");
        let mut random = [0; 16];
        let provider = config.crypto_provider();
        provider.secure_random.fill(&mut random).expect("randomness");
        let (own_id, peer_id) = random.split_at(8);
        let (own_id, peer_id): ([u8; 8], _) = (own_id.try_into().expect("eight"), peer_id.to_vec());
        let name = ServerName::try_from(name).expect("a host name");
        let tls = ClientConnection::new(config.clone(), Version::V1, name, parameters(&own_id)).expect("TLS");
        Quic {
            socket,
            tls,
            own_id,
            keys: [Some(first_keys(&peer_id)), None, None],
            secrets: None,
            coming: None,
            key_updates: 0,
            peer_id,
            token: Vec::new(),
            next: [0; 3],
            received: Default::default(),
            handshake: Default::default(),
            handshake_sent: [0; 3],
            hello: Vec::new(),
            finish: Vec::new(),
            level: Space::Initial,
            is_confirmed: false,
            events: VecDeque::new(),
            streams: BTreeMap::new(),
            close: None,
            sealed: 0,
            acknowledges: true,
            seen: Seen::default(),
        }
    }

    /// Sends whatever TLS has to send.
    pub fn greets(&mut self) {
        loop {
            let mut said = Vec::new();
            let level = self.level;
            let change = self.tls.write_hs(&mut said);
            match change {
                Some(KeyChange::Handshake { keys }) => {
                    self.keys[1] = Some(keys);
                    self.level = Space::Handshake;
                }
                Some(KeyChange::OneRtt { keys, next }) => {
                    self.keys[2] = Some(keys);
                    self.secrets = Some(next);
                    self.level = Space::Data;
                }
                None if said.is_empty() => return,
                None => {}
            }
            if said.is_empty() {
                continue;
            }
            match level {
                Space::Initial => self.hello.extend(&said),
                Space::Handshake => self.finish.extend(&said),
                Space::Data => {}
            }
            let offset = self.handshake_sent[level as usize];
            self.handshake_sent[level as usize] += said.len() as u64;
            let _ = self.tries_to_send_in(level, &frame::crypto(offset, &said));
        }
    }

    /// Sends one packet with these frames.
    pub fn sends(&mut self, frames: impl AsRef<[u8]>) {
        self.tries_to_send(frames).expect("a datagram is taken");
    }

    /// [`Self::sends`], or returns why the kernel did not accept it.
    pub fn tries_to_send(&mut self, frames: impl AsRef<[u8]>) -> io::Result<()> {
        self.tries_to_send_in(Space::Data, frames.as_ref())
    }

    /// [`Self::tries_to_send`] in one of the spaces, whose keys must be known.
    pub fn tries_to_send_in(&mut self, space: Space, frames: &[u8]) -> io::Result<()> {
        let packet = self.packet(space, frames);
        self.socket.send(&packet).map(drop)
    }

    fn packet(&mut self, space: Space, frames: &[u8]) -> Vec<u8> {
        let number = self.next[space as usize];
        self.next[space as usize] += 1;
        let mut payload = frames.to_vec();
        let least = if space == Space::Initial { INITIAL_BYTES - 40 } else { 4 };
        payload.resize(payload.len().max(least), 0);
        let mut bytes = Vec::new();
        if space == Space::Data {
            let phase = (self.key_updates % 2) as u8;
            bytes.push(0x40 | phase << 2 | (NUMBER_BYTES as u8 - 1));
            bytes.extend(&self.peer_id);
        } else {
            let kind = if space == Space::Initial { 0 } else { 2 };
            bytes.push(0xc0 | kind << 4 | (NUMBER_BYTES as u8 - 1));
            bytes.extend(1u32.to_be_bytes());
            for id in [&self.peer_id[..], &self.own_id] {
                bytes.push(id.len() as u8);
                bytes.extend(id);
            }
            if space == Space::Initial {
                put(&mut bytes, self.token.len() as u64);
                bytes.extend(&self.token);
            }
            let rest = NUMBER_BYTES + payload.len() + TAG_BYTES;
            bytes.extend((0x4000 | rest as u16).to_be_bytes());
        }
        let at = bytes.len();
        bytes.extend((number as u32).to_be_bytes());
        let keys = &self.keys[space as usize].as_ref().expect("keys of this space").local;
        let tag = keys.packet.encrypt_in_place(number, &bytes, &mut payload).expect("encrypts");
        bytes.extend(payload);
        bytes.extend(tag.as_ref());
        let (header, body) = bytes.split_at_mut(at + NUMBER_BYTES);
        let (first, header) = header.split_first_mut().expect("a header");
        let sample = &body[..keys.header.sample_len()];
        keys.header.encrypt_in_place(sample, first, &mut header[at - 1..]).expect("protects");
        bytes
    }

    /// Receives one datagram, acknowledges it and goes on with the handshake.
    pub fn receives_datagram(&mut self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut room = [0; 2048];
        match self.socket.recv(&mut room) {
            Ok(count) => {
                self.take_datagram(&mut room[..count]);
                Ok(())
            }
            Err(problem) if problem.kind() == ErrorKind::Interrupted => Ok(()),
            Err(problem) if problem.kind() == ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            Err(problem) => Err(problem),
        }
    }

    /// Takes in whatever has arrived by now; does not wait.
    pub fn looks(&mut self) {
        self.socket.set_nonblocking(true).expect("non-blocking");
        let mut room = [0; 2048];
        while let Ok(count) = self.socket.recv(&mut room) {
            self.take_datagram(&mut room[..count]);
        }
        self.socket.set_nonblocking(false).expect("blocking");
    }

    fn take_datagram(&mut self, datagram: &mut [u8]) {
        self.seen.datagrams += 1;
        self.seen.bytes += datagram.len() as u64;
        let mut owed = [false; 3];
        let mut rest = datagram;
        self.sealed += 1;
        while !rest.is_empty() {
            let Some((space, taken, count)) = self.open(rest) else { break };
            self.sealed = 0;
            rest = &mut rest[count..];
            owed[space as usize] |= taken;
        }
        if self.sealed >= RESETS && self.is_confirmed && self.close.is_none() {
            let reason = "stateless reset".to_owned();
            self.close = Some(Close { code: code::STATELESS_RESET, is_application: false, reason });
        }
        if self.close.is_some() {
            return;
        }
        if self.acknowledges {
            for space in SPACES.into_iter().filter(|space| owed[*space as usize]) {
                let numbers = &self.received[space as usize];
                let _ = self.tries_to_send_in(space, &frame::ack_of(numbers));
            }
        }
        self.greets();
    }

    /// Takes the first packet in `bytes`: its space, whether it wants to be acknowledged, and its length.
    fn open(&mut self, bytes: &mut [u8]) -> Option<(Space, bool, usize)> {
        let total = bytes.len();
        let mut reader = Reader(&*bytes);
        let first = reader.byte()?;
        let (space, length) = if first & 0x80 == 0 {
            reader.bytes(self.own_id.len())?;
            (Space::Data, reader.0.len())
        } else {
            reader.bytes(4)?;
            let own = reader.byte()?;
            reader.bytes(own.into())?;
            let theirs = reader.byte()?;
            let theirs = reader.bytes(theirs.into())?;
            let space = match first >> 4 & 3 {
                0 => Space::Initial,
                2 => Space::Handshake,
                3 => {
                    let (theirs, token) = (theirs.to_vec(), reader.0[..reader.0.len() - TAG_BYTES].to_vec());
                    self.greets_again(theirs, token);
                    return None;
                }
                _ => return None,
            };
            if space == Space::Initial {
                if self.received[0].is_empty() {
                    self.peer_id = theirs.to_vec();
                }
                let count = reader.number()?;
                reader.bytes(count as usize)?;
            }
            let length = reader.number()? as usize;
            (space, length.min(reader.0.len()))
        };
        let at = total - reader.0.len();
        let end = at + length;
        let (number, payload) = self.unprotect(space, &mut bytes[..end], at)?;
        let is_new = self.received[space as usize].insert(number);
        while self.received[space as usize].len() > 4096 {
            self.received[space as usize].pop_first();
        }
        let elicits = is_new && self.take_frames(space, &payload)?;
        Some((space, elicits, end))
    }

    /// Removes the protection of one packet, whose number stands at `at`.
    fn unprotect(&mut self, space: Space, bytes: &mut [u8], at: usize) -> Option<(u64, Vec<u8>)> {
        let keys = &self.keys[space as usize].as_ref()?.remote;
        let (header, body) = bytes.split_at_mut_checked(at + NUMBER_BYTES)?;
        let sample = body.get(..keys.header.sample_len())?.to_vec();
        let (first, header) = header.split_first_mut()?;
        keys.header.decrypt_in_place(&sample, first, &mut header[at - 1..]).ok()?;
        let count = usize::from(*first & 3) + 1;
        let short =
            header[at - 1..at - 1 + count].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        // RFC 9000 §A.3.
        let expected = self.received[space as usize].last().map_or(0, |last| last + 1);
        let window = 1u64 << (8 * count);
        let mut number = expected & !(window - 1) | short;
        if number + window / 2 <= expected {
            number += window;
        } else if number > expected + window / 2 && number >= window {
            number -= window;
        }
        let is_changed = space == Space::Data && u32::from(*first >> 2 & 1) != self.key_updates % 2;
        let (header, body) = bytes.split_at_mut(at + count);
        if !is_changed {
            let payload = keys.packet.decrypt_in_place(number, header, body).ok()?;
            return Some((number, payload.to_vec()));
        }
        let secrets = self.secrets.as_mut()?;
        let coming = self.coming.get_or_insert_with(|| secrets.next_packet_keys());
        let payload = coming.remote.decrypt_in_place(number, header, body).ok()?.to_vec();
        let keys = self.keys[space as usize].as_mut()?;
        let PacketKeySet { local, remote } = self.coming.take()?;
        (keys.local.packet, keys.remote.packet) = (local, remote);
        self.key_updates += 1;
        Some((number, payload))
    }

    /// Begins again as a Retry packet demands.
    fn greets_again(&mut self, peer_id: Vec<u8>, token: Vec<u8>) {
        self.keys[0] = Some(first_keys(&peer_id));
        self.peer_id = peer_id;
        self.token = token;
        let hello = frame::crypto(0, &self.hello);
        let _ = self.tries_to_send_in(Space::Initial, &hello);
    }

    /// Takes the frames of a packet; returns whether one of them wants to be acknowledged.
    fn take_frames(&mut self, space: Space, payload: &[u8]) -> Option<bool> {
        let mut reader = Reader(payload);
        let mut elicits = false;
        while let Some(kind) = reader.number() {
            elicits |= !matches!(kind, 0 | 2 | 3 | 0x1c | 0x1d);
            match kind {
                0 => {}
                2 | 3 => reader.skip_ack(kind)?,
                6 => {
                    let offset = reader.number()?;
                    let count = reader.number()?;
                    let data = reader.bytes(count as usize)?;
                    let incoming = &mut self.handshake[space as usize];
                    let before = incoming.bytes.len();
                    incoming.take(offset, data, false);
                    let fresh = incoming.bytes[before..].to_vec();
                    if !fresh.is_empty() && self.tls.read_hs(&fresh).is_err() {
                        return None;
                    }
                }
                0x1c | 0x1d => {
                    let code = reader.number()?;
                    if kind == 0x1c {
                        reader.number()?;
                    }
                    let count = reader.number()?;
                    let reason = String::from_utf8_lossy(reader.bytes(count as usize)?).into_owned();
                    self.close = Some(Close { code, is_application: kind == 0x1d, reason });
                }
                _ => self.take_data_frame(kind, &mut reader)?,
            }
            if kind != 0 {
                self.events.push_back(kind);
            }
            if self.events.len() > 64 {
                self.events.pop_front();
            }
        }
        Some(elicits)
    }

    /// Takes a frame that occurs only in packets after the handshake.
    fn take_data_frame(&mut self, kind: u64, reader: &mut Reader<'_>) -> Option<()> {
        match kind {
            1 => {}
            4 => {
                let (id, code, _) = (reader.number()?, reader.number()?, reader.number()?);
                self.streams.entry(id).or_default().reset = Some(code);
            }
            5 => {
                let (id, code) = (reader.number()?, reader.number()?);
                self.streams.entry(id).or_default().stopped = Some(code);
            }
            7 => {
                let count = reader.number()?;
                reader.bytes(count as usize)?;
            }
            8..=15 => {
                let id = reader.number()?;
                let offset = if kind & 4 != 0 { reader.number()? } else { 0 };
                let count = if kind & 2 != 0 { reader.number()? as usize } else { reader.0.len() };
                let data = reader.bytes(count)?;
                self.streams.entry(id).or_default().take(offset, data, kind & 1 != 0);
            }
            0x12 => self.seen.max_streams = self.seen.max_streams.max(reader.number()?),
            0x10 | 0x13 | 0x14 | 0x16 | 0x17 => reader.skip(1)?,
            0x11 | 0x15 => reader.skip(2)?,
            0x18 => {
                self.seen.new_connection_ids += 1;
                reader.skip(2)?;
                let count = reader.byte()?;
                reader.bytes(usize::from(count) + 16)?;
            }
            0x19 => {
                self.seen.retired_connection_ids += 1;
                reader.number()?;
            }
            0x1a => drop(reader.bytes(8)?),
            0x1b => {
                self.seen.path_responses += 1;
                reader.bytes(8)?;
            }
            0x1e => self.is_confirmed = true,
            _ => return None,
        }
        Some(())
    }

    /// How the other side closed the connection, if it has by now.
    pub fn closed(&mut self) -> Option<&Close> {
        self.looks();
        self.close.as_ref()
    }

    /// Waits until the other side closes the connection. Prompts it, because its close may have been lost.
    pub fn receives_close(&mut self) -> Close {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(close) = self.closed() {
                return close.clone();
            }
            assert!(Instant::now() < deadline, "expected the end of the connection; {}", self.story());
            if self.receives_datagram(Instant::now() + POKE).is_err() && self.keys[2].is_some() {
                let _ = self.tries_to_send(frame::ping());
            }
        }
    }

    fn story(&self) -> String {
        format!("{:?} {:?}, last {:?}", self.close, self.seen, self.events)
    }

    /// What was received of a stream.
    pub fn stream(&mut self, id: u64) -> &Incoming {
        self.streams.entry(id).or_default()
    }

    /// Discards what was received of a stream.
    pub fn forgets(&mut self, id: u64) {
        self.streams.remove(&id);
    }

    /// Waits until a stream or the connection is over; returns what was received of the stream.
    pub fn receives_stream(&mut self, id: u64) -> Incoming {
        self.waits("the end of a stream", |quic| {
            let is_over = quic.close.is_some() || quic.stream(id).is_over();
            is_over.then(|| quic.stream(id).clone())
        })
    }

    /// Receives until `found` returns something, for at most [`PATIENCE`].
    pub fn waits<T>(&mut self, what: &str, mut found: impl FnMut(&mut Quic) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(found) = found(self) {
                return found;
            }
            if let Err(problem) = self.receives_datagram(deadline) {
                panic!(
                    "expected {what}, but {problem}; {:?} {:?} last {:?}",
                    self.close, self.seen, self.events
                );
            }
        }
    }

    /// The largest number of a packet received.
    pub fn largest(&self) -> u64 {
        self.received[Space::Data as usize].last().copied().unwrap_or(0)
    }
}

fn first_keys(peer_id: &[u8]) -> Keys {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let suite = suite.tls13().and_then(|suite| suite.quic_suite()).expect("a suite of QUIC's");
    suite.keys(peer_id, Side::Client, Version::V1)
}

/// Transport parameters (RFC 9000 §18.2) with large windows.
fn parameters(own_id: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let numbers = [
        (0x01, 30_000),
        (0x04, 1 << 30),
        (0x05, 1 << 28),
        (0x06, 1 << 28),
        (0x07, 1 << 28),
        (0x08, 100),
        (0x09, 100),
        (0x0e, 8),
    ];
    for (id, value) in numbers {
        let mut content = Vec::new();
        put(&mut content, value);
        put(&mut bytes, id);
        put(&mut bytes, content.len() as u64);
        bytes.extend(content);
    }
    put(&mut bytes, 0x0f);
    put(&mut bytes, own_id.len() as u64);
    bytes.extend(own_id);
    bytes
}
