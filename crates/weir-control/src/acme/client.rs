//! HTTP towards a certificate authority: one connection for each request, over TLS that is verified, with
//! bounds on time and size.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use weir_config::{HttpVersion, PoolTls};
use weir_io::handshake;
use weir_tls::{ClientTls, LoadError};

use crate::health::probe::plain;
use crate::lock;

/// For one request, from the look-up of the name to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer: a chain of certificates has some KiB.
const ANSWER_BYTES: usize = 1 << 20;
/// How long an answer is good that does not say (RFC 9773 section 4.3 requires that it does).
const GOOD_FOR: &str = "21600";

/// How we name ourselves (RFC 8555 section 6.1 wants that).
const NAME: &str = concat!("weir/", env!("CARGO_PKG_VERSION"));

/// Speaks with one authority.
#[derive(Clone)]
pub struct Client {
    tls: Arc<ClientTls>,
    /// How long the last answer that said no asked us to wait.
    asked_for: Arc<Mutex<Option<Duration>>>,
}

impl Client {
    /// Believes the authorities in `ca`, or the system's.
    ///
    /// # Errors
    /// They can't be read.
    pub fn new(ca: Option<&Path>) -> Result<Client, LoadError> {
        let tls = PoolTls { ca: ca.map(Path::to_owned), ..PoolTls::default() };
        let tls = ClientTls::load(&tls, HttpVersion::H1)?;
        Ok(Client { tls: Arc::new(tls), asked_for: Arc::default() })
    }

    /// How long the authority has asked us to wait since the last time this was called.
    pub fn take_asked_for(&self) -> Option<Duration> {
        lock(&self.asked_for).take()
    }

    async fn ask(&self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, Away> {
        let uri = request.uri().clone();
        let from = uri.authority().map_or_else(String::new, ToString::to_string);
        let asking = tokio::time::timeout(PATIENCE, self.exchange(&uri, request));
        match asking.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(what)) => Err(Away { from, what }),
            Err(_) => Err(Away { from, what: format!("no whole answer within {PATIENCE:?}") }),
        }
    }

    async fn exchange(
        &self,
        uri: &Uri,
        mut request: Request<BodyWrapper<Bytes>>,
    ) -> Result<Response<Full<Bytes>>, String> {
        // What a directory names elsewhere must be reached as safely as the directory itself.
        if uri.scheme_str() != Some("https") {
            return Err(format!("{uri} is not an https URL"));
        }
        let host = uri.host().ok_or_else(|| format!("{uri} has no host"))?;
        let address = format!("{host}:{}", uri.port_u16().unwrap_or(443));
        let shape = || format!("{address} can't be connected to");
        let tls = self.tls.for_backend(&address, None).map_err(|_| shape())?;
        let stream = TcpStream::connect(&address)
            .await
            .map_err(|error| format!("no connection: {}", plain(&error)))?;
        let stream = TlsConnector::from(tls.config.clone()).connect(tls.name.clone(), stream).await;
        let stream = stream.map_err(|error| format!("no TLS: {}", handshake::describe(&error)))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let authority = uri.authority().map_or(host, http::uri::Authority::as_str);
        let value = HeaderValue::from_str(authority).map_err(|error| error.to_string())?;
        request.headers_mut().insert(HOST, value);
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(NAME));
        request.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        *request.uri_mut() = uri
            .path_and_query()
            .map_or("/", http::uri::PathAndQuery::as_str)
            .parse()
            .map_err(|error: http::uri::InvalidUri| error.to_string())?;
        let driver = tokio::spawn(connection);
        let asking = async {
            let (head, body) = sender.send_request(request).await?.into_parts();
            let body = Limited::new(body, ANSWER_BYTES).collect().await?;
            Ok::<_, Box<dyn StdError + Send + Sync>>(Response::from_parts(head, Full::new(body.to_bytes())))
        };
        let answer = asking.await;
        driver.abort();
        answer.map_err(|error| error.to_string())
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            let mut answer = client.ask(request).await.map_err(|away| Error::Other(Box::new(away)))?;
            let said = answer.headers().get(RETRY_AFTER).and_then(|said| said.to_str().ok());
            let seconds = said.and_then(|said| said.parse().ok()).map(Duration::from_secs);
            if !answer.status().is_success() {
                *lock(&client.asked_for) = seconds;
            } else if said.is_none() && answer.headers().get("replay-nonce").is_none() {
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(GOOD_FOR));
            }
            if answer.status().is_server_error() {
                let from = "it".to_owned();
                let what = format!("answered {}", answer.status());
                return Err(Error::Other(Box::new(Away { from, what })));
            }
            Ok(BytesResponse::from(answer))
        })
    }
}

/// No answer of the authority, or one that says it can't answer.
#[derive(Debug)]
pub struct Away {
    from: String,
    what: String,
}

impl fmt::Display for Away {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.from, self.what)
    }
}

impl StdError for Away {}
