//! One health probe: connects, and then does what the check requires. `probe_http`, `probe_h2`, `probe_grpc`,
//! `probe_tcp` and `probe_mysql` implement the checks, and `probe_vip` the choice of addresses. A probe never
//! takes more than some KiB, nor longer than its limit.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use weir_config::{GrpcProbe, HttpProbe, PoolProtocol, ProxyVersion, Step};
use weir_io::at::At;
use weir_io::handshake;
use weir_io::local_end::LocalEnd;
use weir_io::{race, system};
use weir_state::{Choice, ServerFacts};
use weir_tls::{BackendTls, OwnAccount};

use super::vips::{AskedAtVips, By, place_of};
use super::{probe_grpc, probe_h2, probe_http, probe_mysql, probe_tcp};
use crate::cluster::client::LoginAs;
use crate::kernel::{NotAsked, PassingProbe};

/// Most received bytes that are shown.
const SHOWN_BYTES: usize = 80;

/// The user agent of probes.
pub const USER_AGENT: &str = concat!("weir-health/", env!("CARGO_PKG_VERSION"));

/// What is probed, and how.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The address.
    pub at: At,
    /// Other addresses to try if that one does not accept.
    pub choice: Option<Arc<Choice>>,
    /// The source of the connection.
    pub local_end: LocalEnd,
    /// TLS; for a check that only connects, the handshake is part of it.
    pub tls: Option<Secured>,
    /// PROXY protocol header that the backend expects before anything else.
    pub send_proxy: Option<ProxyVersion>,
    /// The check to make.
    pub question: Question,
    /// The listener addresses (VIPs) at which the backend is probed; `None` if only its own address is
    /// probed.
    pub at_vips: Option<AskedAtVips>,
}

impl Target {
    /// " at VIP 192.0.2.1:80 through the tunnel", or nothing.
    pub fn asked(&self) -> String {
        let (Some(asked), Some(at)) = (&self.at_vips, self.at.inet()) else { return String::new() };
        let places = asked.each().map(|way| place_of(way, at.port()));
        format!(" {}", places.collect::<Vec<_>>().join(" and "))
    }
}

/// TLS settings; equal if they have the same effect on the backend.
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

/// The PROXY header in each version: a probe has no client, so v1 has UNKNOWN (section 2.1 of the
/// specification) and v2 has LOCAL (section 2.2), with length 0.
pub(crate) fn announcement(version: ProxyVersion) -> &'static [u8] {
    match version {
        ProxyVersion::V1 => b"PROXY UNKNOWN\r\n",
        ProxyVersion::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00",
    }
}

/// An account with which a probe logs in.
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

/// The check of a probe.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// Does it accept a connection?
    Connect,
    /// Does it answer as expected in this conversation?
    Talk(Vec<Step>),
    /// Does it answer a MySQL login, within TLS if the pool uses it?
    Login {
        /// Weir's own account; without one, a user whom no server knows.
        account: Option<LoginAccount>,
        /// Whether a server that offers no TLS counts as down, if the pool uses TLS.
        requires_tls: bool,
    },
    /// Does it answer a request with an expected status and body?
    Http {
        /// The request, with its host, and the expected answer.
        probe: HttpProbe,
        /// The HTTP version that exchanges with this backend use.
        protocol: PoolProtocol,
    },
    /// Does it report by gRPC's health protocol that it serves?
    Grpc(GrpcProbe),
}

impl Question {
    /// Whether the check uses HTTP/2; over TLS that is first negotiated.
    fn is_in_h2(&self) -> bool {
        matches!(self, Question::Http { protocol: PoolProtocol::H2, .. } | Question::Grpc(_))
    }
}

/// The result of a good probe.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// A connection.
    Accepted,
    /// All expected texts, in this number of steps.
    Told(usize),
    /// An answer that the watch of its cluster has just had; no probe was sent.
    Watched,
    /// An expected status, with an expected body.
    Status(u16),
    /// SERVING.
    Serving,
    /// The answer to a login; what the server said about itself.
    Greeted(ServerFacts),
}

/// How far a probe has got, for whatever ends it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Whether the connection was established.
    pub connected: bool,
    /// The address of the name that accepted it, if not the current one.
    pub other: Option<SocketAddr>,
    /// The received part of an incomplete answer.
    pub came: Vec<u8>,
    /// What is still expected in it, in readable form; `None` before any answer is waited for.
    pub expected: Option<String>,
}

/// Why a probe was bad.
#[derive(Debug)]
pub enum Failure {
    /// The connection could not be established.
    Connect(io::Error),
    /// TLS could not be established.
    Tls(String),
    /// The connection broke.
    Broken(io::Error),
    /// There was no complete answer in time.
    TimedOut {
        /// The time limit.
        after: Duration,
        /// Whether the connection was established.
        connected: bool,
    },
    /// The backend closed before a status line.
    ClosedEarly,
    /// The answer was not an HTTP/1 status line; its first bytes.
    NotHttp(Vec<u8>),
    /// The answer was not MySQL's protocol.
    NotMysql(String),
    /// The server refuses logins: its error, with number and text.
    Refused(String),
    /// The answer was not HTTP/2.
    NotHttp2(String),
    /// Such an answer would be unusable in exchanges; says what was found and expected.
    Unusable(String),
    /// The answer's status is not one of those expected.
    Status {
        /// The status.
        status: u16,
        /// The expected ones, as ranges.
        expected: String,
        /// The part of the body received with it; may be empty.
        came: Vec<u8>,
    },
    /// The received text is not the expected one.
    Unexpected {
        /// The received text; may be empty.
        came: Vec<u8>,
        /// The expected text, in words.
        expected: String,
        /// Why the probe did not wait for more.
        end: End,
    },
    /// The server itself reports, in gRPC's words, that it does not serve, or can't tell.
    NotServing(String),
    /// A failure at a listener's address, or at the backend's own address if both are probed.
    AtVip {
        /// "at VIP 192.0.2.1:80 through the tunnel".
        place: String,
        /// What went wrong.
        failure: Box<Failure>,
    },
}

/// Why a probe did not wait for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The answer was complete.
    Whole,
    /// The backend closed.
    Closed,
    /// The most bytes that are searched were received.
    Enough(usize),
    /// The time limit was reached.
    Late(Duration),
}

impl Failure {
    /// The failure itself, wherever it occurred.
    fn bare(&self) -> &Failure {
        if let Failure::AtVip { failure, .. } = self { failure.bare() } else { self }
    }

    /// Whether the time limit was reached, and nothing else is wrong so far.
    pub fn is_late(&self) -> bool {
        matches!(self.bare(), Failure::TimedOut { .. } | Failure::Unexpected { end: End::Late(_), .. })
    }

    /// Whether the connection was accepted, and no part of an answer arrived in time.
    pub fn is_unanswered(&self) -> bool {
        matches!(self.bare(), Failure::TimedOut { connected: true, .. })
    }

    /// Whether nothing was sent to this target because this process or host had run out of something: that
    /// says nothing about the backend.
    pub fn is_unsent(&self, target: &Target) -> bool {
        let Failure::Connect(error) = self.bare() else { return false };
        NotAsked::is_in(error)
            || system::is_shortage(error)
            || target.at.inet().is_some_and(|to| system::is_out_of_ports(error, to))
    }
}

/// The beginning of the received bytes in readable form, with escapes for what is not printable.
pub(super) fn excerpt(came: &[u8]) -> String {
    let shown = &came[..came.len().min(SHOWN_BYTES)];
    let more = if came.len() > shown.len() { " …" } else { "" };
    format!("\"{}\"{more}", shown.escape_ascii())
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
            Failure::NotHttp(came) => {
                write!(out, "answered {}, expected an HTTP/1 status line", excerpt(came))
            }
            Failure::NotMysql(what) => write!(out, "answered against MySQL's protocol: {what}"),
            Failure::Refused(what) => write!(out, "refused the login: {what}"),
            Failure::NotHttp2(what) => write!(out, "answered against HTTP/2: {what}"),
            Failure::Unusable(what) => write!(out, "answered what an exchange can't use: {what}"),
            Failure::Status { status, expected, came } if came.is_empty() => {
                write!(out, "answered {status}, expected {expected}")
            }
            Failure::Status { status, expected, came } => {
                write!(out, "answered {status} with {}, expected {expected}", excerpt(came))
            }
            Failure::Unexpected { came, expected, end } => {
                match came.is_empty() {
                    true => write!(out, "answered nothing")?,
                    false => write!(out, "answered {}", excerpt(came))?,
                }
                match end {
                    End::Whole => {}
                    End::Closed => write!(out, " and closed")?,
                    End::Enough(bytes) => write!(out, " and more than {bytes} bytes")?,
                    End::Late(after) => write!(out, " and no more within {after:?}")?,
                }
                write!(out, ", expected {expected}")
            }
            Failure::NotServing(what) => write!(out, "answered {what}, expected SERVING"),
            Failure::AtVip { place, failure } => match &**failure {
                Failure::TimedOut { .. } => write!(out, "no answer {place}: {failure}"),
                failure => write!(out, "{place}: {failure}"),
            },
        }
    }
}

/// The kernel's error text in lower case, without Rust's `(os error N)`.
pub(crate) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_ascii_lowercase()
}

/// Probes once, at the backend's own address or on a path to a listener's address. `other` is set to another
/// address of the name that accepted, if one did.
pub(super) async fn probe_by(
    target: &Target,
    by: Option<By<'_>>,
    limit: Duration,
    other: &mut Option<SocketAddr>,
) -> Result<Answer, Failure> {
    let mut progress = Progress::default();
    let asked = timeout(limit, ask(target, by, &mut progress)).await;
    *other = progress.other;
    if let Ok(answer) = asked {
        return answer;
    }
    let Progress { connected, came, expected, .. } = progress;
    Err(match expected.filter(|_| !came.is_empty()) {
        Some(expected) => Failure::Unexpected { came, expected, end: End::Late(limit) },
        None => Failure::TimedOut { after: limit, connected },
    })
}

async fn ask(target: &Target, by: Option<By<'_>>, progress: &mut Progress) -> Result<Answer, Failure> {
    // The connection stays on its path as long as the second value exists, so that is dropped after it.
    let (mut stream, _passing) = connect(target, by, progress).await.map_err(Failure::Connect)?;
    progress.connected = true;
    if let Some(version) = target.send_proxy {
        stream.write_all(announcement(version)).await.map_err(Failure::Broken)?;
    }
    if let Question::Login { account, requires_tls } = &target.question {
        let account = account.as_ref().map(|LoginAccount(account)| &**account);
        let tls = target.tls.as_ref().map(|Secured(tls)| (tls, *requires_tls));
        let greeted = probe_mysql::login(stream, LoginAs { account, tls }).await?;
        return Ok(greeted.map_or(Answer::Accepted, Answer::Greeted));
    }
    match &target.tls {
        None => put(stream, &target.question, ("http", target.question.is_in_h2()), progress).await,
        Some(Secured(tls)) => {
            let config = match &target.question {
                Question::Http { protocol: PoolProtocol::H1, .. } => tls.for_http1.clone(),
                Question::Http { protocol: PoolProtocol::Auto | PoolProtocol::H3, .. } => {
                    tls.for_either.as_ref().unwrap_or(&tls.for_http1).clone()
                }
                question if question.is_in_h2() => with_h2(&tls.config),
                _ => tls.config.clone(),
            };
            let shaken = TlsConnector::from(config).connect(tls.name.clone(), stream).await;
            let stream = shaken.map_err(|error| Failure::Tls(handshake::describe(&error)))?;
            let is_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            if target.question.is_in_h2() && !is_h2 {
                return Err(Failure::Tls("it does not agree to HTTP/2 (ALPN)".to_owned()));
            }
            put(stream, &target.question, ("https", is_h2), progress).await
        }
    }
}

/// Connects as the data path does: if the current address does not accept, to another one of the name.
async fn connect(
    target: &Target,
    by: Option<By<'_>>,
    progress: &mut Progress,
) -> io::Result<(TcpStream, Option<PassingProbe>)> {
    let local_end = &target.local_end;
    let try_one = |at: At| async move {
        match (by, at.inet()) {
            (Some(by), Some(to)) => by.connect(local_end, to).await.map(|(stream, it)| (stream, Some(it))),
            _ => local_end.connect(&at).await.map(|stream| (stream, None)),
        }
    };
    let (Some(choice), Some(first)) = (&target.choice, target.at.inet()) else {
        return try_one(target.at.clone()).await;
    };
    let addresses = race::order(first, &choice.addresses);
    let (address, connected) =
        race::connect(&addresses, choice.pause, |address| try_one(At::Inet(address))).await?;
    progress.other = (address != first).then_some(address);
    Ok(connected)
}

/// As `config`, but for HTTP/2, whatever the pool's protocol is.
fn with_h2(config: &Arc<ClientConfig>) -> Arc<ClientConfig> {
    if config.alpn_protocols == [b"h2"] {
        return config.clone();
    }
    let mut config = ClientConfig::clone(config);
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

/// Makes the check on an established connection with this scheme, using HTTP/2 or not.
async fn put(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    question: &Question,
    (scheme, is_h2): (&str, bool),
    progress: &mut Progress,
) -> Result<Answer, Failure> {
    match question {
        Question::Connect | Question::Login { .. } => Ok(Answer::Accepted),
        Question::Talk(steps) => probe_tcp::talk(stream, steps, progress).await,
        Question::Http { probe, .. } if is_h2 => probe_h2::ask(stream, scheme, probe, progress).await,
        Question::Http { probe, .. } => probe_http::ask(stream, probe, progress).await,
        Question::Grpc(probe) => probe_grpc::ask(stream, scheme, probe).await,
    }
}

/// Evaluates an answer's status. `came` is the received part of its body.
pub(super) fn judge_status(probe: &HttpProbe, status: u16, came: &[u8]) -> Result<(), Failure> {
    if probe.expect_status.iter().any(|&(from, to)| (from..=to).contains(&status)) {
        return Ok(());
    }
    let came = came[..came.len().min(SHOWN_BYTES + 1)].to_vec();
    Err(Failure::Status { status, expected: ranges(&probe.expect_status), came })
}

/// Ranges as they are written in the config.
fn ranges(ranges: &[(u16, u16)]) -> String {
    let words =
        ranges.iter().map(|&(from, to)| if from == to { from.to_string() } else { format!("{from}-{to}") });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    pub(in crate::health) fn http_probe(path: &str) -> HttpProbe {
        HttpProbe {
            path: path.into(),
            method: "GET".into(),
            host: Some("shop".into()),
            headers: BTreeMap::new(),
            expect_status: vec![(200, 299), (401, 401)],
            expect_body: None,
        }
    }

    fn get(address: SocketAddr, send_proxy: Option<ProxyVersion>) -> Target {
        let probe = http_probe("/healthz");
        Target {
            at: address.into(),
            choice: None,
            local_end: LocalEnd::default(),
            tls: None,
            send_proxy,
            question: Question::Http { probe, protocol: PoolProtocol::H1 },
            at_vips: None,
        }
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

    async fn probe(target: &Target, limit: Duration) -> Result<Answer, Failure> {
        probe_by(target, None, limit, &mut None).await
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
        let (address, _asked) = backend(
            b"SSH-2.0-OpenSSH_9.2 and much more, which is longer than what anybody needs to see of it",
        )
        .await;
        let failure = probe(&get(address, None), LONG).await.unwrap_err();
        assert!(failure.to_string().starts_with("answered \"SSH-2.0-OpenSSH_9.2 and"), "{failure}");
        assert!(!failure.to_string().contains("see of it"), "{failure}");
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
    fn what_came_is_shown_in_part_and_without_control_bytes() {
        assert_eq!(excerpt(b"-ERR \x1b[31mno\r\n"), "\"-ERR \\x1b[31mno\\r\\n\"");
        let long = excerpt(&[b'a'; 1000]);
        assert!(long.ends_with("a\" …") && long.len() < 100, "{long}");
    }
}
