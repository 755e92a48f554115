//! Weir's own HTTP requests to services given by a URL: one per connection, in cleartext or over verified
//! TLS. The caller limits the time, and the size of what it reads.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use http::header::{HOST, USER_AGENT};
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::{Body, Incoming};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_io::{handshake, race};
use weir_tls::ClientTls;

use crate::blocking;
use crate::health::probe::plain;

/// Our user agent, which RFC 8555 section 6.1 requires.
pub(crate) const NAME: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// How long an address may take to answer before the next one of its name is also tried (RFC 8305 section 8).
const PAUSE: Duration = Duration::from_millis(250);

/// Longest head of an answer, in bytes.
const HEAD_BYTES: usize = 16 << 10;

/// A connection, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Connects to the host of `uri`; over TLS if `tls` is given.
///
/// # Errors
/// Why there is no connection, in readable form.
pub(crate) async fn connect(uri: &Uri, tls: Option<&ClientTls>) -> Result<Box<dyn Stream>, String> {
    let host = uri.host().ok_or_else(|| format!("{uri} has no host"))?;
    let port = uri.port_u16().unwrap_or(if tls.is_some() { 443 } else { 80 });
    let address = format!("{host}:{port}");
    let tls = tls.map(|tls| tls.for_backend(&address, None)).transpose();
    let tls = tls.map_err(|_| format!("{address} has no name for TLS"))?;
    let stream = connect_to(&address).await;
    let stream = stream.map_err(|error| format!("no connection to {address}: {}", plain(&error)))?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let stream = TlsConnector::from(tls.config.clone()).connect(tls.name.clone(), stream).await;
    Ok(Box::new(stream.map_err(|error| format!("no TLS: {}", handshake::describe(&error)))?))
}

/// Connects to the first address of `address` (host and port) that accepts.
pub(crate) async fn connect_to(address: &str) -> io::Result<TcpStream> {
    let addresses = blocking::addresses(address.to_owned()).await?;
    first_of(&addresses).await
}

/// Connects to the first of `addresses` that accepts. The next is also tried after [`PAUSE`]: the caller
/// limits the total time, which an address that drops packets would use up.
async fn first_of(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let first = *addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
    let addresses = race::order(first, addresses);
    race::connect(&addresses, PAUSE, TcpStream::connect).await.map(|(_, stream)| stream)
}

/// Sends `request` for `uri` over a connection, and lets `read` read the answer. Everything ends with this
/// future, in whatever way it ends.
///
/// # Errors
/// What went wrong, in readable form.
pub(crate) async fn ask<B, T, E, Read>(
    stream: Box<dyn Stream>,
    uri: &Uri,
    mut request: Request<B>,
    read: impl FnOnce(Response<Incoming>) -> Read,
) -> Result<T, String>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    Read: Future<Output = Result<T, E>>,
    E: Display,
{
    let authority = uri.authority().map_or("", http::uri::Authority::as_str);
    let value = HeaderValue::from_str(authority).map_err(|error| error.to_string())?;
    request.headers_mut().insert(HOST, value);
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(NAME));
    *request.uri_mut() = uri
        .path_and_query()
        .map_or("/", http::uri::PathAndQuery::as_str)
        .parse()
        .map_err(|error: http::uri::InvalidUri| error.to_string())?;
    let connecting =
        hyper::client::conn::http1::Builder::new().max_buf_size(HEAD_BYTES).handshake(TokioIo::new(stream));
    let (mut sender, connection) = connecting.await.map_err(|error| error.to_string())?;
    let mut asking = pin!(async {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        read(answer).await.map_err(|error| error.to_string())
    });
    // The connection is driven here, so that it ends with the request, also after a timeout.
    tokio::select! {
        biased;
        asked = &mut asking => asked,
        // The answer may have been the last thing received.
        _ = connection => asking.await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use rustix::net::{
        AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, listen, socket_with,
    };

    /// An address whose queue of connections is full, so that it drops who comes, as a firewall would; with
    /// what keeps it so.
    fn silent() -> (SocketAddr, Vec<std::os::fd::OwnedFd>) {
        let socket = || {
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None)
                .expect("a socket")
        };
        let listener = socket();
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("an address");
        listen(&listener, 0).expect("a listener");
        let address =
            SocketAddr::try_from(getsockname(&listener).expect("a name")).expect("an address of IP");
        let mut kept = vec![listener];
        for _ in 0..8 {
            let filler = socket();
            let _ = connect(&filler, &address);
            kept.push(filler);
        }
        (address, kept)
    }

    #[tokio::test]
    async fn an_address_that_drops_packets_is_followed_by_the_next_while_it_is_silent() {
        let (silent, _kept) = silent();
        let serving = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = serving.local_addr().unwrap();
        let addresses = [silent, good];
        // The kernel gives up on the first long after the connection came about.
        tokio::select! {
            biased;
            stream = first_of(&addresses) => assert_eq!(stream.unwrap().peer_addr().unwrap(), good),
            refused = TcpStream::connect(silent) => panic!("{refused:?} came first"),
        }
        let of_none = first_of(&[]).await;
        assert_eq!(of_none.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    }
}
