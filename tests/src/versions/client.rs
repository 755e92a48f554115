//! One client for all versions.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http::{HeaderMap, Request, StatusCode, Uri, Version};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt as _, Either, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

use super::tls;
use crate::dialogue::Authority;

/// Flow-control window: small, so that a body of some megabytes fills all windows on the way.
const WINDOW_BYTES: u32 = 64 << 10;

/// A client's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Front {
    Http1,
    Http1Tls,
    Http2,
    Http2Tls,
    Http3,
}

impl Front {
    /// All of them.
    pub const ALL: [Front; 5] = [Front::Http1, Front::Http1Tls, Front::Http2, Front::Http2Tls, Front::Http3];

    /// Whether it speaks TLS.
    pub fn is_tls(self) -> bool {
        !matches!(self, Front::Http1 | Front::Http2)
    }

    /// Its version as an access log writes it.
    pub fn version(self) -> &'static str {
        match self {
            Front::Http1 | Front::Http1Tls => "HTTP/1.1",
            Front::Http2 | Front::Http2Tls => "HTTP/2.0",
            Front::Http3 => "HTTP/3.0",
        }
    }

    fn protocol(self) -> &'static [u8] {
        match self {
            Front::Http1 | Front::Http1Tls => b"http/1.1",
            Front::Http2 | Front::Http2Tls => b"h2",
            Front::Http3 => b"h3",
        }
    }
}

/// What a client does after the head of its request, in order.
#[derive(Clone, Debug)]
pub enum Part {
    /// Sends this content.
    Content(Bytes),
    /// Sends these trailers.
    Trailers(HeaderMap),
    /// Waits until this much of the answer's content has arrived; zero stands for its head.
    Until(usize),
    /// Sends nothing for so long.
    Pause(Duration),
    /// Sends pieces, each after the one before was echoed, until told to stop.
    Turns(Arc<Turns>),
}

/// A conversation that lasts.
#[derive(Debug)]
pub struct Turns {
    count: AtomicUsize,
    stopped: AtomicBool,
    /// Time between an echoed piece and the next.
    pause: Duration,
}

impl Default for Turns {
    /// Five milliseconds apart.
    fn default() -> Turns {
        Turns::with_pause(Duration::from_millis(5))
    }
}

impl Turns {
    /// Bytes of each piece.
    pub const PIECE_BYTES: usize = 100;

    /// Turns with this pause between an echoed piece and the next.
    pub fn with_pause(pause: Duration) -> Turns {
        Turns { count: AtomicUsize::new(0), stopped: AtomicBool::new(false), pause }
    }

    /// Pieces that have come back so far.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Sends no more.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its fields.
    pub fields: HeaderMap,
    /// Its content.
    pub content: Vec<u8>,
    /// Its trailer fields.
    pub trailers: HeaderMap,
    /// Whether the server wanted no more of the request before all was sent.
    pub is_cut: bool,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Failed {
    /// The client knows that the request was not processed; every client sends such a request again.
    Refused(String),
    /// The client can't know whether it was processed.
    Broken(String),
}

/// A connection.
pub struct Client {
    kind: Kind,
    host: String,
}

type Outgoing = Either<Empty<Bytes>, Channel<Bytes>>;

enum Kind {
    Http1(hyper::client::conn::http1::SendRequest<Outgoing>),
    Http2(hyper::client::conn::http2::SendRequest<Outgoing>),
    // The endpoint ends with its last handle.
    Http3(h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>, quinn::Endpoint),
}

/// How much of an answer has arrived: nothing, its head, or this much content.
type Seen = Option<usize>;

/// One side of a request that is being sent.
trait Sender {
    /// False when the other side wants no more.
    async fn content(&mut self, content: Bytes) -> bool;
    async fn trailers(&mut self, trailers: HeaderMap) -> bool;
}

impl Sender for http_body_util::channel::Sender<Bytes> {
    async fn content(&mut self, content: Bytes) -> bool {
        self.send_data(content).await.is_ok()
    }

    async fn trailers(&mut self, trailers: HeaderMap) -> bool {
        self.send_trailers(trailers).await.is_ok()
    }
}

impl<S: h3::quic::SendStream<Bytes>> Sender for h3::client::RequestStream<S, Bytes> {
    async fn content(&mut self, content: Bytes) -> bool {
        self.send_data(content).await.is_ok()
    }

    async fn trailers(&mut self, trailers: HeaderMap) -> bool {
        self.send_trailers(trailers).await.is_ok()
    }
}

/// Sends all parts; false when the other side wanted no more.
async fn send_all(sender: &mut impl Sender, parts: Vec<Part>, seen: &mut watch::Receiver<Seen>) -> bool {
    for part in parts {
        let goes_on = match part {
            Part::Content(content) => sender.content(content).await,
            Part::Trailers(trailers) => sender.trailers(trailers).await,
            Part::Until(count) => reaches(seen, count).await,
            Part::Pause(time) => {
                tokio::time::sleep(time).await;
                true
            }
            Part::Turns(turns) => take_turns(sender, &turns, seen).await,
        };
        if !goes_on {
            return false;
        }
    }
    true
}

async fn take_turns(sender: &mut impl Sender, turns: &Turns, seen: &mut watch::Receiver<Seen>) -> bool {
    while !turns.stopped.load(Ordering::SeqCst) {
        let turn = turns.count() + 1;
        let piece = Bytes::from(vec![turn as u8; Turns::PIECE_BYTES]);
        if !sender.content(piece).await || !reaches(seen, turn * Turns::PIECE_BYTES).await {
            return false;
        }
        turns.count.store(turn, Ordering::SeqCst);
        tokio::time::sleep(turns.pause).await;
    }
    true
}

impl Client {
    /// Connects to `address` as to `host`, a name in a certificate of `authority`.
    pub async fn connect(
        front: Front,
        authority: &Authority,
        address: SocketAddr,
        host: &str,
    ) -> Result<Client, Failed> {
        let kind = match front {
            Front::Http3 => connect_quic(authority, address, host).await?,
            _ => {
                let stream = tokio::net::TcpStream::connect(address).await.map_err(broken)?;
                stream.set_nodelay(true).map_err(broken)?;
                if front.is_tls() {
                    let config = tls::of_client(authority, front.protocol());
                    let name = host.to_owned().try_into().map_err(broken)?;
                    let stream =
                        TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(broken)?;
                    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(front.protocol()), "ALPN");
                    begin(front, stream).await?
                } else {
                    begin(front, stream).await?
                }
            }
        };
        Ok(Client { kind, host: host.to_owned() })
    }

    /// A second handle on the same connection; `None` in HTTP/1.1, where requests follow each other.
    pub fn share(&self) -> Option<Client> {
        let kind = match &self.kind {
            Kind::Http1(_) => return None,
            Kind::Http2(sender) => Kind::Http2(sender.clone()),
            Kind::Http3(sender, endpoint) => Kind::Http3(sender.clone(), endpoint.clone()),
        };
        Some(Client { kind, host: self.host.clone() })
    }

    /// Sends requests for this host from now on, over the same connection.
    pub fn asks_for(&mut self, host: &str) {
        host.clone_into(&mut self.host);
    }

    /// Requests `path` with these fields; without `parts` nothing follows the head.
    pub async fn ask(
        &mut self,
        method: &str,
        path: &str,
        fields: &[(&'static str, &str)],
        parts: Vec<Part>,
    ) -> Result<Answer, Failed> {
        let mut request = Request::builder().method(method);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = match &self.kind {
            Kind::Http1(_) => request.header("host", &self.host).uri(path),
            Kind::Http2(_) | Kind::Http3(..) => {
                let uri = format!("https://{}{path}", self.host).parse::<Uri>().expect("a URI");
                request.uri(uri)
            }
        };
        let head = request.body(()).expect("a request");
        match &mut self.kind {
            Kind::Http1(sender) => {
                sender.ready().await.map_err(of_hyper)?;
                exchange(head, parts, |request| sender.send_request(request)).await
            }
            Kind::Http2(sender) => {
                sender.ready().await.map_err(of_hyper)?;
                exchange(head, parts, |request| sender.send_request(request)).await
            }
            Kind::Http3(sender, _) => exchange_http3(sender, head, parts).await,
        }
    }
}

fn broken(error: impl std::fmt::Display) -> Failed {
    Failed::Broken(error.to_string())
}

async fn begin(
    front: Front,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<Kind, Failed> {
    let io = TokioIo::new(stream);
    Ok(match front {
        Front::Http1 | Front::Http1Tls => {
            let (sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(of_hyper)?;
            tokio::spawn(connection);
            Kind::Http1(sender)
        }
        _ => {
            let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(WINDOW_BYTES).initial_connection_window_size(WINDOW_BYTES);
            let (sender, connection) = builder.handshake(io).await.map_err(of_hyper)?;
            tokio::spawn(connection);
            Kind::Http2(sender)
        }
    })
}

async fn connect_quic(authority: &Authority, address: SocketAddr, host: &str) -> Result<Kind, Failed> {
    let tls = tls::of_client(authority, b"h3");
    let crypto = quinn::crypto::rustls::QuicClientConfig::try_from(tls).map_err(broken)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    let mut transport = quinn::TransportConfig::default();
    transport.stream_receive_window(WINDOW_BYTES.into()).receive_window((2 * WINDOW_BYTES).into());
    config.transport_config(Arc::new(transport));
    let mut endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().expect("an address")).map_err(broken)?;
    endpoint.set_default_client_config(config);
    let connection = endpoint.connect(address, host).map_err(broken)?.await.map_err(broken)?;
    let (mut driver, sender) =
        h3::client::new(h3_quinn::Connection::new(connection)).await.map_err(broken)?;
    tokio::spawn(async move { std::future::poll_fn(|context| driver.poll_close(context)).await });
    Ok(Kind::Http3(sender, endpoint))
}

/// Waits until this much of an answer has arrived; false if no more will.
async fn reaches(seen: &mut watch::Receiver<Seen>, count: usize) -> bool {
    seen.wait_for(|seen| seen.is_some_and(|seen| seen >= count)).await.is_ok()
}

async fn exchange<F>(
    head: Request<()>,
    parts: Vec<Part>,
    send: impl FnOnce(Request<Outgoing>) -> F,
) -> Result<Answer, Failed>
where
    F: Future<Output = hyper::Result<hyper::Response<hyper::body::Incoming>>>,
{
    let (sender, body) = Channel::<Bytes>::new(1);
    let body = if parts.is_empty() { Either::Left(Empty::new()) } else { Either::Right(body) };
    let (told, mut seen) = watch::channel(None);
    let sending = async move {
        let mut sender = sender;
        !send_all(&mut sender, parts, &mut seen).await
    };
    let response = send(head.map(|()| body));
    let receiving = async move {
        let (parts, mut body) = response.await.map_err(of_hyper)?.into_parts();
        let mut answer = Answer {
            status: parts.status,
            fields: parts.headers,
            content: Vec::new(),
            trailers: HeaderMap::new(),
            is_cut: false,
        };
        let _ = told.send(Some(0));
        while let Some(frame) = body.frame().await {
            match frame.map_err(of_hyper)?.into_data() {
                Ok(data) => {
                    answer.content.extend_from_slice(&data);
                    let _ = told.send(Some(answer.content.len()));
                }
                Err(frame) => answer.trailers = frame.into_trailers().unwrap_or_default(),
            }
        }
        Ok(answer)
    };
    let (is_cut, answer) = tokio::join!(sending, receiving);
    answer.map(|answer| Answer { is_cut, ..answer })
}

async fn exchange_http3(
    sender: &mut h3::client::SendRequest<h3_quinn::OpenStreams, Bytes>,
    mut head: Request<()>,
    parts: Vec<Part>,
) -> Result<Answer, Failed> {
    *head.version_mut() = Version::HTTP_3;
    // A request that can't be sent was not processed.
    let stream = sender.send_request(head).await.map_err(|error| Failed::Refused(error.to_string()))?;
    let (mut sending, mut receiving) = stream.split();
    let (told, mut seen) = watch::channel(None);
    let sending =
        async move { !send_all(&mut sending, parts, &mut seen).await || sending.finish().await.is_err() };
    let receiving = async move {
        let response = receiving.recv_response().await.map_err(|error| of_http3(&error, false))?;
        let (parts, ()) = response.into_parts();
        let mut answer = Answer {
            status: parts.status,
            fields: parts.headers,
            content: Vec::new(),
            trailers: HeaderMap::new(),
            is_cut: false,
        };
        let _ = told.send(Some(0));
        while let Some(mut data) = receiving.recv_data().await.map_err(|error| of_http3(&error, true))? {
            answer.content.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            let _ = told.send(Some(answer.content.len()));
        }
        let trailers = receiving.recv_trailers().await.map_err(|error| of_http3(&error, true))?;
        answer.trailers = trailers.unwrap_or_default();
        Ok(answer)
    };
    let (is_cut, answer) = tokio::join!(sending, receiving);
    answer.map(|answer| Answer { is_cut, ..answer })
}

/// Converts hyper's error with its causes. A request that was not processed (RFC 9113 §8.7) is refused.
fn of_hyper(error: hyper::Error) -> Failed {
    let mut text = error.to_string();
    let mut refused = error.is_canceled() || error.is_closed();
    let mut cause = error.source();
    while let Some(next) = cause {
        text += &format!(": {next}");
        if let Some(error) = next.downcast_ref::<h2::Error>() {
            let is_end =
                error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
            refused |= is_end || error.reason() == Some(h2::Reason::REFUSED_STREAM);
        }
        cause = next.source();
    }
    if refused { Failed::Refused(text) } else { Failed::Broken(text) }
}

/// Converts an error of the `h3` crate. The crate does not tell the number in a GOAWAY, so a request without
/// an answer on a connection that was ended in order counts as refused (RFC 9114 §5.2).
fn of_http3(error: &h3::error::StreamError, has_head: bool) -> Failed {
    use h3::error::{Code, StreamError};
    let is_rejected =
        matches!(error, StreamError::RemoteTerminate { code, .. } if *code == Code::H3_REQUEST_REJECTED);
    let is_over = !has_head && (error.is_h3_no_error() || matches!(error, StreamError::RemoteClosing { .. }));
    let text = error.to_string();
    if is_rejected || is_over { Failed::Refused(text) } else { Failed::Broken(text) }
}
