//! Asks the operator's service whether a name may have a certificate: one request on its own connection, with
//! limits on time and size.

use std::convert::Infallible;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::ACCEPT;
use http::{Request, StatusCode, Uri};
use http_body_util::Empty;
use weir_config::{OnDemand, PoolProtocol, PoolTls};
use weir_tls::ClientTls;

use crate::{lock, outgoing};

/// A client for one service.
pub struct Service {
    /// Its URL, without the name.
    url: String,
    timeout: Duration,
    ca: Option<PathBuf>,
    /// Made when first needed, since it may read all authorities of the system.
    tls: Mutex<Option<Arc<ClientTls>>>,
}

impl Service {
    pub fn new(settings: &OnDemand) -> Service {
        let (url, ca) = (settings.ask.clone(), settings.ca.clone());
        Service { url, timeout: settings.ask_timeout, ca, tls: Mutex::default() }
    }

    /// Makes the authorities be read again when next needed: their file may have changed.
    pub fn forget(&self) {
        *lock(&self.tls) = None;
    }

    /// Whether `name`, which is a host name, may have a certificate. A redirect means no, since its target is
    /// not what the operator configured.
    ///
    /// # Errors
    /// The service did not answer in time, or answered that it can't tell.
    pub async fn allows(&self, name: &str) -> Result<bool, Unanswered> {
        let asked = tokio::time::timeout(self.timeout, self.ask(name)).await;
        let asked = asked.unwrap_or_else(|_| Err(format!("no answer within {:?}", self.timeout)));
        match asked {
            Ok(status) if status.is_server_error() => Err(Unanswered(format!("it answered {status}"))),
            Ok(status) => Ok(status.is_success()),
            Err(reason) => Err(Unanswered(reason)),
        }
    }

    async fn ask(&self, name: &str) -> Result<StatusCode, String> {
        let uri = question(&self.url, name)?;
        let tls = if uri.scheme_str() == Some("https") { Some(self.tls()?) } else { None };
        let stream = outgoing::connect(&uri, tls.as_deref()).await?;
        let request = Request::get("/").header(ACCEPT, "*/*").body(Empty::<Bytes>::new());
        let request = request.map_err(|error| error.to_string())?;
        // Nothing after the head is read.
        outgoing::ask(stream, &uri, request, async |answer| Ok::<_, Infallible>(answer.status())).await
    }

    fn tls(&self) -> Result<Arc<ClientTls>, String> {
        if let Some(tls) = &*lock(&self.tls) {
            return Ok(tls.clone());
        }
        let config = PoolTls { ca: self.ca.clone(), ..PoolTls::default() };
        let tls = ClientTls::load(&config, PoolProtocol::H1).map_err(|error| error.to_string())?;
        Ok(lock(&self.tls).insert(Arc::new(tls)).clone())
    }
}

/// The URL with the name added. A host name needs no escaping.
fn question(url: &str, name: &str) -> Result<Uri, String> {
    let joint = match url.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    format!("{url}{joint}domain={name}").parse().map_err(|error: http::uri::InvalidUri| error.to_string())
}

/// The service gave no answer; the reason in readable form.
#[derive(Debug)]
pub struct Unanswered(String);

impl fmt::Display for Unanswered {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the service at `ask` can't be asked: {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_stands_behind_what_the_url_asks_already() {
        let asked = |url: &str| question(url, "a.example").unwrap().path_and_query().unwrap().to_string();
        assert_eq!(asked("http://127.0.0.1:5555"), "/?domain=a.example");
        assert_eq!(asked("http://127.0.0.1:5555/allowed"), "/allowed?domain=a.example");
        assert_eq!(asked("http://[::1]/allowed?token=x"), "/allowed?token=x&domain=a.example");
        assert_eq!(asked("http://127.0.0.1/allowed?"), "/allowed?domain=a.example");
    }
}
