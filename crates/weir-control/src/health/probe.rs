//! One health probe: connect, and for HTTP ask and read the answer's head, for MySQL log in. Never more
//! than a few KiB, never longer than its limit.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use weir_config::ProxyVersion;
use weir_io::handshake;
use weir_state::ServerFacts;
use weir_tls::{BackendTls, OwnAccount};

/// Most of an answer that is read: a status line and a head fit, a body is nobody's business here.
const HEAD_BYTES: usize = 16 * 1024;

/// How probes name themselves.
pub const USER_AGENT: &str = concat!("weir-health/", env!("CARGO_PKG_VERSION"));

/// What is probed, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Where.
    pub address: SocketAddr,
    /// TLS; for a mere connect its handshake is part of the question.
    pub tls: Option<Secured>,
    /// PROXY protocol header that the backend expects before anything else.
    pub send_proxy: Option<ProxyVersion>,
    /// What is asked.
    pub question: Question,
}

/// What TLS is spoken with; the same as another that says the same to the backend.
#[derive(Clone, Debug)]
pub struct Secured(pub BackendTls);

impl PartialEq for Secured {
    fn eq(&self, other: &Secured) -> bool {
        self.0.is_same(&other.0)
    }
}

impl Eq for Secured {}

impl Hash for Secured {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

/// The announcement in a version of the PROXY protocol: a probe speaks for itself, so v1 says UNKNOWN
/// (section 2.1 of its specification) and v2 says LOCAL (section 2.2), with length 0.
pub(crate) fn announcement(version: ProxyVersion) -> &'static [u8] {
    match version {
        ProxyVersion::V1 => b"PROXY UNKNOWN\r\n",
        ProxyVersion::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00",
    }
}

/// An account that a probe logs in as.
#[derive(Clone, Debug)]
pub struct LoginAccount(pub Arc<OwnAccount>);

impl PartialEq for LoginAccount {
    fn eq(&self, other: &LoginAccount) -> bool {
        self.0.is_same(&other.0)
    }
}

impl Eq for LoginAccount {}

impl Hash for LoginAccount {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.user.hash(state);
    }
}

/// What a probe asks.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// Does it accept a connection?
    Connect,
    /// Does it answer a MySQL login, as Weir's own account, or as nobody whom it knows?
    Login(Option<LoginAccount>),
    /// Does it answer `GET path` with a good status?
    Get {
        /// Path and query.
        path: String,
        /// The host field.
        host: String,
        /// Inclusive ranges of good statuses.
        expect_status: Vec<(u16, u16)>,
        /// In HTTP/2, as exchanges are spoken with this backend.
        over_h2: bool,
    },
}

/// What a good probe got.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A connection.
    Accepted,
    /// What the watch of its cluster has just got; no probe was sent.
    Watched,
    /// A status that is expected.
    Status(u16),
    /// A login's answer; what the server said of itself.
    Greeted(ServerFacts),
}

/// Why a probe was bad.
#[derive(Debug)]
pub enum Failure {
    /// No connection came about.
    Connect(io::Error),
    /// No TLS came about.
    Tls(String),
    /// The connection broke.
    Broken(io::Error),
    /// No whole answer in time.
    TimedOut {
        /// How long it had.
        after: Duration,
        /// Whether the connection had come about.
        connected: bool,
    },
    /// The backend closed before a status line.
    ClosedEarly,
    /// What came was no HTTP/1 status line.
    NotHttp(String),
    /// What came was no MySQL.
    NotMysql(String),
    /// The server refuses logins: its error, with number and text.
    Refused(String),
    /// What came was no HTTP/2.
    NotHttp2(String),
    /// Exchanges could not use such an answer; says what was found and expected.
    Unusable(String),
    /// The answer's status is not one of the expected.
    Status {
        /// What it said.
        status: u16,
        /// What was expected, as ranges.
        expected: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Connect(error) => write!(out, "no connection: {}", plain(error)),
            Failure::Tls(what) => write!(out, "no TLS: {what}"),
            Failure::Broken(error) => write!(out, "connection broke: {}", plain(error)),
            Failure::TimedOut { after, connected: false } => write!(out, "did not accept within {after:?}"),
            Failure::TimedOut { after, connected: true } => {
                write!(out, "accepted but did not answer within {after:?}")
            }
            Failure::ClosedEarly => write!(out, "closed before a status line"),
            Failure::NotHttp(start) => write!(out, "answered {start:?}, expected an HTTP/1 status line"),
            Failure::NotMysql(what) => write!(out, "answered against MySQL's protocol: {what}"),
            Failure::Refused(what) => write!(out, "refused the login: {what}"),
            Failure::NotHttp2(what) => write!(out, "answered against HTTP/2: {what}"),
            Failure::Unusable(what) => write!(out, "answered what an exchange can't use: {what}"),
            Failure::Status { status, expected } => write!(out, "answered {status}, expected {expected}"),
        }
    }
}

/// The kernel's words in lower case and without Rust's `(os error N)`.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_ascii_lowercase()
}

/// Probes once.
pub async fn probe(target: &Target, limit: Duration) -> Result<Answer, Failure> {
    let mut connected = false;
    match timeout(limit, ask(target, &mut connected)).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::TimedOut { after: limit, connected }),
    }
}

async fn ask(target: &Target, connected: &mut bool) -> Result<Answer, Failure> {
    let mut stream = TcpStream::connect(target.address).await.map_err(Failure::Connect)?;
    *connected = true;
    if let Some(version) = target.send_proxy {
        stream.write_all(announcement(version)).await.map_err(Failure::Broken)?;
    }
    if let Question::Login(account) = &target.question {
        let account = account.as_ref().map(|LoginAccount(account)| &**account);
        let greeted = super::probe_mysql::login(stream, account).await?;
        return Ok(greeted.map_or(Answer::Accepted, Answer::Greeted));
    }
    match &target.tls {
        None => put(stream, &target.question, false).await,
        Some(Secured(tls)) => {
            let config = if target.question == Question::Connect { &tls.config } else { &tls.for_http1 };
            let shaken = TlsConnector::from(config.clone()).connect(tls.name.clone(), stream).await;
            let stream = shaken.map_err(|error| Failure::Tls(handshake::describe(&error)))?;
            put(stream, &target.question, true).await
        }
    }
}

/// Puts the question on a connection that came about.
async fn put(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    question: &Question,
    is_secured: bool,
) -> Result<Answer, Failure> {
    let Question::Get { path, host, expect_status, over_h2 } = question else { return Ok(Answer::Accepted) };
    let status = match over_h2 {
        true => {
            let scheme = if is_secured { "https" } else { "http" };
            super::probe_h2::status(stream, scheme, host, path).await?
        }
        false => {
            let request = format!(
                "GET {path} HTTP/1.1\r\nhost: {host}\r\nuser-agent: {USER_AGENT}\r\naccept: */*\r\nconnection: close\r\n\r\n"
            );
            stream.write_all(request.as_bytes()).await.map_err(Failure::Broken)?;
            read_status(&mut stream).await?
        }
    };
    if expect_status.iter().any(|&(from, to)| (from..=to).contains(&status)) {
        Ok(Answer::Status(status))
    } else {
        Err(Failure::Status { status, expected: ranges(expect_status) })
    }
}

/// Reads to the end of the head, or of the bound, so that a backend does not see its answer cut off in the
/// status line.
async fn read_status(stream: &mut (impl AsyncRead + Unpin)) -> Result<u16, Failure> {
    let mut head = Vec::with_capacity(1024);
    loop {
        let read = stream.read_buf(&mut head).await.map_err(Failure::Broken)?;
        let whole = head.windows(4).any(|four| four == b"\r\n\r\n") || head.len() >= HEAD_BYTES;
        let over = read == 0 || whole || (head.len() >= 9 && !head.starts_with(b"HTTP/1."));
        if over {
            let status = status_of(&head)?;
            // A backend whose every answer would become a 502 is not up.
            weir_proxy::http::probe_status(&head).map_err(Failure::Unusable)?;
            return Ok(status);
        }
    }
}

/// The status in a status line, RFC 9112 section 4.
fn status_of(head: &[u8]) -> Result<u16, Failure> {
    if head.is_empty() {
        return Err(Failure::ClosedEarly);
    }
    let not_http = || Failure::NotHttp(String::from_utf8_lossy(&head[..head.len().min(40)]).into_owned());
    let rest = head.strip_prefix(b"HTTP/1.").ok_or_else(not_http)?;
    match rest {
        [b'0'..=b'9', b' ', a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ' | b'\r' | b'\n', ..] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Ok(digit(a) * 100 + digit(b) * 10 + digit(c))
        }
        _ => Err(not_http()),
    }
}

/// Ranges as they are written in the config.
fn ranges(ranges: &[(u16, u16)]) -> String {
    let words =
        ranges.iter().map(|&(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn get(address: SocketAddr, send_proxy: Option<ProxyVersion>) -> Target {
        let question = Question::Get {
            path: "/healthz".into(),
            host: "shop".into(),
            expect_status: vec![(200, 299), (401, 401)],
            over_h2: false,
        };
        Target { address, tls: None, send_proxy, question }
    }

    /// A backend that answers one connection with `answer` and gives what it was asked.
    async fn backend(answer: &'static [u8]) -> (SocketAddr, tokio::task::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut asked).await.unwrap() == 0 {
                    break;
                }
            }
            stream.write_all(answer).await.unwrap();
            asked
        });
        (address, task)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_probe_asks_for_the_path_and_takes_an_expected_status() {
        let (address, asked) = backend(b"HTTP/1.1 204 No Content\r\nx: y\r\n\r\n").await;
        assert_eq!(probe(&get(address, None), LONG).await.unwrap(), Answer::Status(204));
        let asked = String::from_utf8(asked.await.unwrap()).unwrap();
        assert!(
            asked.starts_with("GET /healthz HTTP/1.1\r\nhost: shop\r\nuser-agent: weir-health/"),
            "{asked}"
        );
        assert!(asked.contains("\r\nconnection: close\r\n"), "{asked}");
    }

    #[tokio::test]
    async fn a_status_out_of_range_is_named_with_what_was_expected() {
        let (address, _asked) = backend(b"HTTP/1.1 503 Sorry\r\n\r\n").await;
        let failure = probe(&get(address, None), LONG).await.unwrap_err();
        assert_eq!(failure.to_string(), "answered 503, expected 200-299, 401");
    }

    #[tokio::test]
    async fn what_is_not_http_is_quoted_and_bounded() {
        let (address, _asked) = backend(b"SSH-2.0-OpenSSH_9.2 and much more that nobody needs to see").await;
        let failure = probe(&get(address, None), LONG).await.unwrap_err();
        assert!(failure.to_string().starts_with("answered \"SSH-2.0-OpenSSH_9.2 and"), "{failure}");
        assert!(failure.to_string().len() < 100);
    }

    #[tokio::test]
    async fn a_refused_connection_says_so() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let failure = probe(&get(address, None), LONG).await.unwrap_err();
        assert_eq!(failure.to_string(), "no connection: connection refused");
    }

    #[tokio::test]
    async fn a_backend_that_accepts_and_says_nothing_times_out() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = get(listener.local_addr().unwrap(), None);
        let failure = probe(&target, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(failure.to_string(), "accepted but did not answer within 20ms");
        assert_eq!(
            probe(&Target { question: Question::Connect, ..target }, LONG).await.unwrap(),
            Answer::Accepted
        );
    }

    #[tokio::test]
    async fn a_backend_behind_the_proxy_protocol_gets_its_header_first() {
        let (address, asked) = backend(b"HTTP/1.0 200 OK\r\n\r\n").await;
        assert_eq!(probe(&get(address, Some(ProxyVersion::V2)), LONG).await.unwrap(), Answer::Status(200));
        let asked = asked.await.unwrap();
        assert_eq!(&asked[..16], b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00");
        assert_eq!(&asked[16..20], b"GET ");
    }

    #[test]
    fn only_three_digits_after_a_minor_version_are_a_status() {
        for bad in [
            &b"HTTP/1.1 20 OK\r\n"[..],
            b"HTTP/1.1  200 OK\r\n",
            b"HTTP/2 200\r\n",
            b"HTTP/1.1 2000\r\n",
            b"HTTP/1.1",
        ] {
            assert!(matches!(status_of(bad), Err(Failure::NotHttp(_))), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(status_of(b"HTTP/1.1 200\r\n\r\n").unwrap(), 200);
    }
}
