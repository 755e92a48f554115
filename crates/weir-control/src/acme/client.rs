//! An HTTP client for certificate authorities: one connection for each request, over verified TLS, with
//! limits on time and size.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use weir_config::{PoolProtocol, PoolTls};
use weir_http::values::retry_after;
use weir_tls::{ClientTls, LoadError};

use crate::{lock, outgoing};

/// Longest time for one request, from name resolution to the last byte of the answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest answer, in bytes: a certificate chain has some KiB.
const ANSWER_BYTES: usize = 1 << 20;
/// Longest wait that an authority may ask for; later times may not be representable by the clock.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 3600);
/// Longest interval between two polls of an order: if an authority could ask for more, the order would time
/// out.
const LONGEST_LOOK: Duration = Duration::from_secs(5);
/// How long an answer without `retry-after` is valid, in seconds (RFC 9773 section 4.3 requires that field).
const GOOD_FOR: &str = "21600";

/// A client for one authority.
#[derive(Clone)]
pub struct Client {
    tls: Arc<ClientTls>,
    /// The wait that the last refusal asked for.
    asked_for: Arc<Mutex<Option<Duration>>>,
    /// Whether the last request got no answer.
    is_away: Arc<AtomicBool>,
}

impl Client {
    /// Trusts the authorities in `ca`, or the system's.
    ///
    /// # Errors
    /// They can't be read.
    pub fn new(ca: Option<&Path>) -> Result<Client, LoadError> {
        let tls = PoolTls { ca: ca.map(Path::to_owned), ..PoolTls::default() };
        let tls = ClientTls::load(&tls, PoolProtocol::H1)?;
        Ok(Client { tls: Arc::new(tls), asked_for: Arc::default(), is_away: Arc::default() })
    }

    /// The wait that the last refusal asked for.
    pub fn asked_for(&self) -> Option<Duration> {
        *lock(&self.asked_for)
    }

    /// Whether the authority did not answer the last request.
    pub fn is_away(&self) -> bool {
        self.is_away.load(Ordering::Relaxed)
    }

    async fn ask(&self, request: Request<BodyWrapper<Bytes>>) -> Result<Response<Full<Bytes>>, Away> {
        let uri = request.uri().clone();
        let from = uri.authority().map_or_else(String::new, ToString::to_string);
        let asked = tokio::time::timeout(PATIENCE, self.exchange(&uri, request)).await;
        self.is_away.store(!matches!(asked, Ok(Ok(_))), Ordering::Relaxed);
        match asked {
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
        // URLs in a directory must be as secure as that of the directory itself.
        if uri.scheme_str() != Some("https") {
            return Err(format!("{uri} is not an https URL"));
        }
        request.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        let stream = outgoing::connect(uri, Some(&self.tls)).await?;
        outgoing::ask(stream, uri, request, async |answer| {
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, ANSWER_BYTES).collect().await?;
            Ok::<_, Box<dyn StdError + Send + Sync>>(Response::from_parts(head, Full::new(body.to_bytes())))
        })
        .await
    }
}

impl HttpClient for Client {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let client = self.clone();
        Box::pin(async move {
            // Everything about accounts and orders is sent by POST; public resources are fetched by GET.
            let is_of_order = request.method() == Method::POST;
            let mut answer = client.ask(request).await.map_err(|away| Error::Other(Box::new(away)))?;
            let said = answer.headers().get(RETRY_AFTER).and_then(|said| said.to_str().ok());
            let has_said = said.is_some();
            let wait = said.and_then(|said| bounded_wait(said, SystemTime::now()));
            if let Some(wait) = wait {
                let wait = if is_of_order { wait.min(LONGEST_LOOK) } else { wait };
                answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs()));
            } else if has_said && is_of_order {
                answer.headers_mut().remove(RETRY_AFTER);
            }
            if !answer.status().is_success() {
                *lock(&client.asked_for) = wait;
            } else if !has_said && !is_of_order {
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

/// The wait that a certificate authority asks for in `Retry-After`, in seconds or as a date (RFC 9110 section
/// 10.2.3), capped at [`LONGEST_WAIT`]. `None` if the value is neither.
fn bounded_wait(said: &str, now: SystemTime) -> Option<Duration> {
    let said = said.trim();
    if said.is_empty() {
        return None;
    }
    // What is no number for being too long is a long wait.
    if said.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(said.parse().unwrap_or(u64::MAX)).min(LONGEST_WAIT));
    }
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    retry_after::parse(said.as_bytes(), now.as_secs()).map(|wait| wait.min(LONGEST_WAIT))
}

/// The authority did not answer, or answered that it is unavailable.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_bounded_and_what_is_none_is_none() {
        // 1999-12-31 23:58:59 UTC.
        let now = UNIX_EPOCH + Duration::from_secs(946_684_739);
        let seconds = |said: &str| bounded_wait(said, now).map(|wait| wait.as_secs());
        assert_eq!(seconds("60"), Some(60));
        assert_eq!(seconds(" Fri, 31 Dec 1999 23:59:59 GMT"), Some(60));
        assert_eq!(seconds("Fri, 31 Dec 1999 23:00:00 GMT"), Some(0));
        for absurd in
            ["18446744073709551615", "99999999999999999999999", "90000", "Sun, 31 Dec 2299 23:59:59 GMT"]
        {
            assert_eq!(seconds(absurd), Some(86_400), "{absurd}");
        }
        for none in ["", "-1", "soon", "Fri, 31 Dec"] {
            assert_eq!(seconds(none), None, "{none}");
        }
    }
}
