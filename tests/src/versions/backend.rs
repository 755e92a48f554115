//! A backend for each HTTP version, with and without TLS, whose answers show how they were requested.

mod http3;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::channel::Channel;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Body;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use super::tls;
use crate::dialogue::{Authority, fingerprint, listen_at, pattern};

/// Flow-control window: small, so that a body of some megabytes fills all windows on the way.
const WINDOW_BYTES: u32 = 64 << 10;

/// A backend's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Behind {
    Http1,
    Http1Tls,
    Http2,
    Http2Tls,
    Http3,
}

impl Behind {
    /// All of them.
    pub const ALL: [Behind; 5] =
        [Behind::Http1, Behind::Http1Tls, Behind::Http2, Behind::Http2Tls, Behind::Http3];
    /// Protocols over a byte stream.
    pub const OVER_STREAMS: [Behind; 4] = [Behind::Http1, Behind::Http1Tls, Behind::Http2, Behind::Http2Tls];

    /// A word for names in a config.
    pub fn word(self) -> &'static str {
        match self {
            Behind::Http1 => "http1",
            Behind::Http1Tls => "http1_tls",
            Behind::Http2 => "http2",
            Behind::Http2Tls => "http2_tls",
            Behind::Http3 => "http3",
        }
    }

    /// Whether it speaks TLS.
    pub fn is_tls(self) -> bool {
        matches!(self, Behind::Http1Tls | Behind::Http2Tls | Behind::Http3)
    }

    /// Its value of a pool's `protocol`.
    pub fn protocol(self) -> &'static str {
        match self {
            Behind::Http1 | Behind::Http1Tls => "h1",
            Behind::Http2 | Behind::Http2Tls => "h2",
            Behind::Http3 => "h3",
        }
    }

    /// Its value of `x-behind` in answers.
    pub fn name(self) -> String {
        let version = match self.protocol() {
            "h1" => "HTTP/1.1",
            "h2" => "HTTP/2.0",
            _ => "HTTP/3.0",
        };
        format!("{version} {}", self.is_tls())
    }
}

/// A backend with these paths:
///
/// - `/echo`: the request's content, as it comes, and its trailers
/// - `/digest`: length and fingerprint of the request's content
/// - `/bytes/N`: N bytes of `pattern(1, N)`
/// - `/fields`: the fields that it was asked with, one a line, `:authority` the first where there is one
/// - `/unknown`: `one two three`, in pieces, of a length that is not told
/// - `/early`: 403 before any of the request's content is read
/// - anything else: `hello`
///
/// `x-behind` has the version of the request, and `x-scheme` has `:scheme`, which HTTP/1.1 lacks.
#[derive(Debug)]
pub struct VersionedBackend {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl VersionedBackend {
    /// Starts one at this address; with TLS it shows `NAME.pem` of the authority.
    pub fn start(address: SocketAddr, behind: Behind, authority: &Authority, name: &str) -> VersionedBackend {
        if behind == Behind::Http3 {
            let endpoint = http3::endpoint(tls::of_server(authority, name, b"h3"), address);
            return VersionedBackend::run(address, async { http3::accept(endpoint.await).await });
        }
        let listener = listen_at(address);
        let acceptor = behind.is_tls().then(|| {
            let protocol: &[u8] = if behind.protocol() == "h2" { b"h2" } else { b"http/1.1" };
            TlsAcceptor::from(Arc::new(tls::of_server(authority, name, protocol)))
        });
        VersionedBackend::run(address, async move {
            listener.set_nonblocking(true).expect("non-blocking");
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            accept(listener, behind, acceptor).await;
        })
    }

    fn run(address: SocketAddr, serves: impl Future<Output = ()> + Send + 'static) -> VersionedBackend {
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = serves => {}
                    _ = stopped => {}
                }
            });
        });
        VersionedBackend { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for VersionedBackend {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, behind: Behind, acceptor: Option<TlsAcceptor>) {
    while let Ok((stream, _)) = listener.accept().await {
        let _ = stream.set_nodelay(true);
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            match acceptor {
                None => serve(stream, behind).await,
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        serve(stream, behind).await;
                    }
                }
            }
        });
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, behind: Behind) {
    let (io, service) = (TokioIo::new(stream), service_fn(move |request| answer(request, behind)));
    // How a connection ends is for the client to judge.
    let _ = if behind.protocol() == "h2" {
        hyper::server::conn::http2::Builder::new(TokioExecutor::new())
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .serve_connection(io, service)
            .await
    } else {
        hyper::server::conn::http1::Builder::new().serve_connection(io, service).await
    };
}

type Content = BoxBody<Bytes, Failure>;
/// Why a request broke off.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn whole(bytes: impl Into<Bytes>) -> Content {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

async fn answer<B>(request: Request<B>, behind: Behind) -> Result<Response<Content>, Failure>
where
    B: Body<Data = Bytes, Error: Into<Failure>> + Send + Sync + 'static,
{
    let name = format!("{:?} {}", request.version(), behind.is_tls());
    let scheme = request.uri().scheme_str().unwrap_or_default().to_owned();
    let is_head = request.method() == Method::HEAD;
    let path = request.uri().path().to_owned();
    let mut response = match path.as_str() {
        "/echo" => {
            let named = request.headers().get(header::TRAILER).cloned();
            let mut response = Response::new(request.into_body().map_err(Into::into).boxed());
            // hyper sends trailers in HTTP/1.1 only if they are announced.
            named.map(|named| response.headers_mut().insert(header::TRAILER, named));
            response
        }
        "/digest" => {
            let content = request.into_body().collect().await.map_err(Into::into)?.to_bytes();
            Response::new(whole(format!("{} {:016x}", content.len(), fingerprint(&content))))
        }
        "/fields" => Response::new(whole(fields_of(&request))),
        "/unknown" => Response::new(in_pieces()),
        "/early" => {
            let mut response = Response::new(whole("not for you"));
            *response.status_mut() = StatusCode::FORBIDDEN;
            response
        }
        other => {
            let count = other.strip_prefix("/bytes/").and_then(|count| count.parse().ok());
            let content = count.map_or(b"hello".to_vec(), |count| pattern(1, count));
            let length = HeaderValue::from(content.len());
            let content =
                if is_head { Empty::new().map_err(|never| match never {}).boxed() } else { whole(content) };
            let mut response = Response::new(content);
            response.headers_mut().insert(header::CONTENT_LENGTH, length);
            response
        }
    };
    response.headers_mut().insert("x-behind", HeaderValue::from_str(&name).expect("a value"));
    response.headers_mut().insert("x-scheme", HeaderValue::from_str(&scheme).expect("a value"));
    Ok(response)
}

fn fields_of<B>(request: &Request<B>) -> String {
    let authority = request.uri().authority().map(|authority| format!(":authority: {authority}\n"));
    let fields = request.headers().iter();
    let fields =
        fields.map(|(name, value)| format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
    authority.into_iter().chain(fields).collect()
}

fn in_pieces() -> Content {
    let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(async move {
        for piece in ["one ", "two ", "three"] {
            if sender.send_data(Bytes::from_static(piece.as_bytes())).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    body.map_err(|never| match never {}).boxed()
}
