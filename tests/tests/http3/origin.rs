//! A server of HTTP/3 by the `h3` crate over quinn, that does as it is asked.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use h3::error::Code;
use h3::server::RequestStream;
use http::{HeaderMap, Request, Response};
use quinn::crypto::rustls::QuicServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::Notify;
use weir_tests::dialogue::http3::{capacity, insertion};
use weir_tests::dialogue::{Authority, free_address};

type Stream = RequestStream<h3_quinn::BidiStream<Bytes>, Bytes>;

/// What a server without an HTTP/3 of its own says to everybody.
#[derive(Clone, Copy)]
enum Raw {
    Bytes(&'static [u8], After),
    Nothing,
    /// Nothing, but for fields of an answer that are put into the table of QPACK.
    Insertions,
}

/// What follows an answer that is given so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum After {
    /// The end of its stream.
    Ends,
    /// `RESET_STREAM`.
    Resets,
    /// `CONNECTION_CLOSE`.
    Closes,
}

/// What it has seen.
#[derive(Default)]
pub struct Seen {
    pub connections: AtomicUsize,
    /// Method and path of each request, as they came.
    pub requests: Mutex<Vec<String>>,
    /// Error codes with which answers were asked to stop.
    pub stops: Mutex<Vec<u64>>,
    /// Requests that wait for as many others.
    waiting: AtomicUsize,
    /// Told when a server is to leave that waits for it.
    pub leave: Notify,
    all_here: Notify,
}

/// Ends when dropped.
pub struct Origin {
    pub address: SocketAddr,
    pub seen: Arc<Seen>,
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl Origin {
    /// With the certificate `inner` of an authority; lets so many requests be under way on a connection.
    pub fn start(authority: &Authority, streams: u32) -> Origin {
        Origin::with(authority, streams, None)
    }

    /// One that allows so many bytes on a connection before it has read any.
    pub fn narrow(authority: &Authority, window: u32) -> Origin {
        let mut transport = quinn::TransportConfig::default();
        transport.receive_window(window.into());
        Origin::over(authority, transport, None)
    }

    /// One that answers every request with these bytes.
    pub fn raw(authority: &Authority, answer: &'static [u8]) -> Origin {
        Origin::with(authority, 100, Some(Raw::Bytes(answer, After::Ends)))
    }

    /// The same, which then leaves.
    pub fn raw_and_then(authority: &Authority, answer: &'static [u8], after: After) -> Origin {
        Origin::with(authority, 100, Some(Raw::Bytes(answer, after)))
    }

    /// One that never answers.
    pub fn silent(authority: &Authority) -> Origin {
        Origin::with(authority, 100, Some(Raw::Nothing))
    }

    /// One that never answers, and puts a kilobyte into the table of QPACK for each request.
    pub fn inserting(authority: &Authority) -> Origin {
        Origin::with(authority, 100, Some(Raw::Insertions))
    }

    fn with(authority: &Authority, streams: u32, raw: Option<Raw>) -> Origin {
        let mut transport = quinn::TransportConfig::default();
        transport.max_concurrent_bidi_streams(streams.into());
        Origin::over(authority, transport, raw)
    }

    fn over(authority: &Authority, transport: quinn::TransportConfig, raw: Option<Raw>) -> Origin {
        let chain = vec![CertificateDer::from_pem_file(authority.path("inner.pem")).expect("a certificate")];
        let key = PrivateKeyDer::from_pem_file(authority.path("inner.key")).expect("a key");
        let mut tls = rustls::ServerConfig::builder_with_provider(Arc::new(
            rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("a pair");
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let crypto = QuicServerConfig::try_from(tls).expect("a suite for first packets");
        let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        let (seen, stop) = (Arc::new(Seen::default()), Arc::new(Notify::new()));
        let (address, (seen_too, stop_too)) = (free_address(), (seen.clone(), stop.clone()));
        let (told, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let endpoint = quinn::Endpoint::server(config, address).expect("a free address");
                told.send(()).expect("somebody waits");
                tokio::select! {
                    () = accept(endpoint, seen_too, raw) => {}
                    () = stop_too.notified() => {}
                }
            });
        });
        ready.recv().expect("it starts");
        Origin { address, seen, stop, thread: Some(thread) }
    }

    pub fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> Vec<String> {
        self.seen.requests.lock().expect("a lock").clone()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.stop.notify_one();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn accept(endpoint: quinn::Endpoint, seen: Arc<Seen>, raw: Option<Raw>) {
    while let Some(incoming) = endpoint.accept().await {
        let seen = seen.clone();
        tokio::spawn(async move {
            let Ok(connection) = incoming.await else { return };
            seen.connections.fetch_add(1, Ordering::SeqCst);
            if let Some(answer) = raw {
                return answer_raw(&connection, answer, &seen).await;
            }
            let closing = connection.clone();
            let Ok(mut requests) = h3::server::Connection::new(h3_quinn::Connection::new(connection)).await
            else {
                return;
            };
            while let Ok(Some(resolver)) = requests.accept().await {
                let Ok((request, stream)) = resolver.resolve_request().await else { continue };
                let line = format!("{} {}", request.method(), request.uri().path());
                seen.requests.lock().expect("a lock").push(line);
                match request.uri().path() {
                    // Nothing is taken any more; what is here gets its answer.
                    "/away" => {
                        let _ = requests.shutdown(1).await;
                        tokio::spawn(serve(request, stream, seen.clone()));
                    }
                    // The one that came first is none that was looked at.
                    "/turn" if seen.connections.load(Ordering::SeqCst) == 1 => {
                        let _ = requests.shutdown(0).await;
                        tokio::spawn(async move {
                            let _unanswered = stream;
                            std::future::pending::<()>().await;
                        });
                    }
                    // It has looked at nothing, and is gone at once.
                    "/last-words" if seen.connections.load(Ordering::SeqCst) == 1 => {
                        seen.leave.notified().await;
                        let _ = requests.shutdown(0).await;
                        // What has not left by then is not sent any more.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        closing.close(0x100_u32.into(), b"");
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        seen.requests.lock().expect("a lock").push("gone".to_owned());
                    }
                    "/die" => closing.close(0u32.into(), b"gone"),
                    _ => drop(tokio::spawn(serve(request, stream, seen.clone()))),
                }
            }
        });
    }
}

/// Settings on a control stream, and then this answer.
async fn answer_raw(connection: &quinn::Connection, answer: Raw, seen: &Arc<Seen>) {
    let Ok(mut control) = connection.open_uni().await else { return };
    let _ = control.write_all(&[0x00, 0x04, 0x00]).await;
    let Ok(mut encoder) = connection.open_uni().await else { return };
    let _ = encoder.write_all(&[&[2][..], &capacity(4096)].concat()).await;
    while let Ok((mut send, mut receive)) = connection.accept_bi().await {
        let _ = receive.read_to_end(10_000).await;
        if matches!(answer, Raw::Insertions) {
            let _ = encoder.write_all(&insertion(b"x-part", &[b'x'; 1000])).await;
            seen.requests.lock().expect("a lock").push("inserted".to_owned());
        }
        let Raw::Bytes(answer, after) = answer else {
            let seen = seen.clone();
            tokio::spawn(async move {
                if let Ok(Some(code)) = send.stopped().await {
                    seen.stops.lock().expect("a lock").push(code.into_inner());
                }
            });
            continue;
        };
        let _ = send.write_all(answer).await;
        if after == After::Ends {
            let _ = send.finish();
            continue;
        }
        // What has not arrived by then is taken back.
        tokio::time::sleep(Duration::from_millis(500)).await;
        match after {
            After::Resets => drop(send.reset(0x10b_u32.into())),
            _ => connection.close(0x100_u32.into(), b""),
        }
    }
}

async fn serve(request: Request<()>, mut stream: Stream, seen: Arc<Seen>) {
    let _ = answer(&request, &mut stream, &seen).await;
}

async fn answer(
    request: &Request<()>,
    stream: &mut Stream,
    seen: &Seen,
) -> Result<(), h3::error::StreamError> {
    let ok = || Response::builder().status(200);
    let path = request.uri().path();
    let times = seen.requests.lock().expect("a lock").iter().filter(|line| line.ends_with(path)).count();
    match path {
        "/reject" if times == 1 => {
            stream.stop_sending(Code::H3_REQUEST_REJECTED);
            stream.stop_stream(Code::H3_REQUEST_REJECTED);
            return Ok(());
        }
        "/echo" => {
            stream.send_response(ok().body(()).expect("a head")).await?;
            while let Some(mut data) = stream.recv_data().await? {
                stream.send_data(data.copy_to_bytes(data.remaining())).await?;
            }
            let mut trailers = HeaderMap::new();
            let sent = stream.recv_trailers().await?.unwrap_or_default();
            trailers
                .insert("x-echoed", sent.get("x-end").cloned().unwrap_or("none".parse().expect("a value")));
            stream.send_trailers(trailers).await?;
        }
        "/details" => {
            stream.send_response(ok().body(()).expect("a head")).await?;
            let mut trailers = HeaderMap::new();
            trailers.insert("x-details", "y".repeat(30_000).parse().expect("a value"));
            for _ in 0..50 {
                trailers.append("x-more", "1".parse().expect("a value"));
            }
            stream.send_trailers(trailers).await?;
        }
        "/early" => {
            // It has its answer before it has the request, of which it wants no more.
            stream.stop_sending(Code::H3_NO_ERROR);
            stream.send_response(ok().body(()).expect("a head")).await?;
            stream.send_data(Bytes::from_static(b"enough")).await?;
        }
        "/broken" => {
            stream.send_response(ok().header("content-length", "10").body(()).expect("a head")).await?;
            stream.send_data(Bytes::from_static(b"half")).await?;
        }
        "/hints" => {
            let hints = Response::builder().status(103).header("link", "</a.css>").body(()).expect("a head");
            stream.send_response(hints).await?;
            stream.send_response(ok().body(()).expect("a head")).await?;
            stream.send_data(Bytes::from_static(b"hinted")).await?;
        }
        "/deaf" => {
            // It has its answer, and neither reads the request nor says that it will not.
            stream.send_response(ok().body(()).expect("a head")).await?;
            stream.send_data(Bytes::from_static(b"enough")).await?;
            stream.finish().await?;
            std::future::pending().await
        }
        "/never" => std::future::pending().await,
        path if path.starts_with("/all/") => {
            let count: usize = path[5..].parse().expect("a number");
            if seen.waiting.fetch_add(1, Ordering::SeqCst) + 1 >= count {
                seen.all_here.notify_waiters();
            } else {
                seen.all_here.notified().await;
            }
            stream.send_response(ok().body(()).expect("a head")).await?;
            stream.send_data(Bytes::from_static(b"together")).await?;
        }
        path if path.starts_with("/bytes/") => {
            let count: usize = path[7..].parse().expect("a number");
            stream.send_response(ok().body(()).expect("a head")).await?;
            // Made piece by piece, as it is taken: all at once it would hold up the connection, and a slow
            // machine for longer than Weir waits before it takes that for dead.
            for start in (0..count).step_by(50_000) {
                let piece = weir_tests::dialogue::pattern(start as u64, 50_000.min(count - start));
                stream.send_data(Bytes::from(piece)).await?;
            }
        }
        _ => {
            stream.send_response(ok().header("x-path", path).body(()).expect("a head")).await?;
            stream.send_data(Bytes::from_static(b"hello")).await?;
        }
    }
    stream.finish().await
}
