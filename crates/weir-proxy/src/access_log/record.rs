//! The data in a line of an access log.

use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use weir_io::handshake::Secure;
use weir_stats::table::{End, Rejected};

/// The facts about one exchange, session or flow. A field that is `None` does not apply, or never came about.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Wall-clock time at the end; the beginning is `total` earlier.
    pub time: SystemTime,
    /// Name of the listener.
    pub listener: &'a str,
    /// Name of the route that matched.
    pub route: Option<&'a str>,
    /// Name of the pool.
    pub pool: Option<&'a str>,
    /// The backend that was used last, as configured.
    pub backend: Option<&'a str>,
    /// The protocol in which that backend was asked.
    pub backend_protocol: Option<Spoken>,
    /// The client: the TCP peer, or whoever a trusted PROXY header names.
    pub client: SocketAddr,
    /// The client's protocol.
    pub protocol: Spoken,
    /// Request method, as sent.
    pub method: Option<&'a [u8]>,
    /// Host the request was for, as sent.
    pub host: Option<&'a [u8]>,
    /// Request target: path and query, as sent.
    pub path: Option<&'a [u8]>,
    /// Status sent to the client.
    pub status: Option<u16>,
    /// Bytes from the client.
    pub bytes_received: u64,
    /// Bytes to the client.
    pub bytes_sent: u64,
    /// How many of them belong to the response's head.
    pub head_bytes_sent: u64,
    /// The value of `x-request-id`, as forwarded or made.
    pub request_id: Option<&'a [u8]>,
    /// The result of the cache, in one word.
    pub cache: Option<&'a str>,
    /// Attempts after the first (count).
    pub retries: u32,
    /// The result of asking a second backend in parallel, in one word.
    pub hedge: Option<&'a str>,
    /// How long each phase took.
    pub timers: Timers,
    /// Why it ended.
    pub end: End,
    /// What would have refused it if it were no dry run.
    pub would_reject: Reasons,
    /// Where in the request SQL injection was found, and of what kind.
    pub sqli: Option<&'a str>,
    /// The authenticated user.
    pub user: Option<&'a [u8]>,
    /// `user-agent`, as sent.
    pub user_agent: Option<&'a [u8]>,
    /// The TLS of the connection; `None` without TLS.
    pub tls: Option<&'a Secure>,
    /// The server name (SNI) that the client asked for, in a handshake with us or in a ClientHello that was
    /// passed on.
    pub server_name: Option<&'a str>,
    /// `referer`, as sent.
    pub referer: Option<&'a [u8]>,
}

impl<'a> Record<'a> {
    /// For a session or a flow, which has no requests; the fields that only some of them have are empty: no
    /// pool was found and no byte moved.
    pub fn of_session(listener: &'a str, protocol: Spoken, client: SocketAddr, end: End) -> Record<'a> {
        Record {
            time: SystemTime::now(),
            listener,
            route: None,
            pool: None,
            backend: None,
            backend_protocol: None,
            client,
            protocol,
            method: None,
            host: None,
            path: None,
            status: None,
            bytes_received: 0,
            bytes_sent: 0,
            head_bytes_sent: 0,
            request_id: None,
            cache: None,
            retries: 0,
            hedge: None,
            timers: Timers::default(),
            end,
            would_reject: Reasons::default(),
            sqli: None,
            user: None,
            user_agent: None,
            tls: None,
            server_name: None,
            referer: None,
        }
    }

    /// Bytes of the response's content sent to the client.
    pub fn body_bytes_sent(&self) -> u64 {
        self.bytes_sent.saturating_sub(self.head_bytes_sent)
    }
}

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reasons(u64);

impl Reasons {
    /// Adds a reason; gives whether it was new.
    pub fn add(&mut self, reason: Rejected) -> bool {
        let before = self.0;
        self.0 |= 1 << reason as u8;
        self.0 != before
    }

    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The reasons in the set.
    pub fn iter(self) -> impl Iterator<Item = Rejected> {
        Rejected::ALL.iter().copied().filter(move |reason| self.0 & (1 << *reason as u8) != 0)
    }
}

const _: () = assert!(Rejected::ALL.len() <= 64, "a set of reasons is one number");

/// How long the phases took. `None`: the phase was never reached, or does not exist in this protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// From the first byte of the request to the end of its head.
    pub client_header: Option<Duration>,
    /// Waiting because every backend was at `max_connections`.
    pub queue: Option<Duration>,
    /// Until a backend had accepted, all attempts together; zero on a reused connection.
    pub connect: Option<Duration>,
    /// From sending the request to receiving the head of the response.
    pub backend_header: Option<Duration>,
    /// Until it was known whether the client may make the request.
    pub auth: Option<Duration>,
    /// The whole duration.
    pub total: Duration,
}

/// The protocol of a client or a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Spoken {
    Http10,
    Http11,
    Http2,
    Http3,
    Tcp,
    Udp,
    Mysql,
}

impl Spoken {
    /// Whether it has requests.
    pub const fn is_http(self) -> bool {
        matches!(self, Spoken::Http10 | Spoken::Http11 | Spoken::Http2 | Spoken::Http3)
    }

    /// The name in a log line.
    pub const fn word(self) -> &'static str {
        match self {
            Spoken::Http10 => "HTTP/1.0",
            Spoken::Http11 => "HTTP/1.1",
            Spoken::Http2 => "HTTP/2.0",
            Spoken::Http3 => "HTTP/3.0",
            Spoken::Tcp => "TCP",
            Spoken::Udp => "UDP",
            Spoken::Mysql => "MySQL",
        }
    }
}
