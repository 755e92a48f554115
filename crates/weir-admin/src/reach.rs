//! Connects to the admin API of another process, for the command line.

use std::io;
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use weir_config::{AdminBind, PoolProtocol, PoolTls, Verify};
use weir_io::at::{At, UnixName};
use weir_io::handshake;
use weir_tls::ClientTls;

/// The TLS configuration of the connection.
pub use weir_tls::ClientTls as Tls;

/// A connection.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Which certificates to trust, and which to present, when the admin API is served over TLS.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Certificate authorities to trust; the system's by default.
    pub ca: Option<PathBuf>,
    /// Name that the certificate must match; the host of the address by default.
    pub name: Option<String>,
    /// Certificates that are trusted themselves, as named in the config of the process.
    pub own: Option<PathBuf>,
    /// The client certificate to present, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Trust {
    /// Reads the files.
    ///
    /// # Errors
    /// A file can't be used; says why.
    pub fn load(&self) -> Result<ClientTls, String> {
        let verify = if self.ca.is_none() && self.own.is_some() { Verify::Authority } else { Verify::Name };
        let (cert, key) = self.client.clone().unzip();
        let config = PoolTls {
            ca: self.ca.clone().or_else(|| self.own.clone()),
            cert,
            key,
            server_name: self.name.clone(),
            verify,
            ..PoolTls::default()
        };
        ClientTls::load(&config, PoolProtocol::H1).map_err(|error| error.to_string())
    }
}

/// Connects; with TLS if `tls` is given.
///
/// # Errors
/// Nothing listens there, or the TLS handshake failed.
pub async fn connect(bind: &AdminBind, tls: Option<&ClientTls>) -> io::Result<Box<dyn Wire>> {
    let at = match bind {
        AdminBind::Inet(address) => At::Inet(*address),
        AdminBind::Unix(name) => At::Unix(UnixName::new(name)),
    };
    let stream = at.connect().await?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let host = bind.inet().map_or_else(|| "localhost:0".to_owned(), |address| address.to_string());
    let tls = tls.for_backend(&host, None).map_err(|error| io::Error::other(error.to_string()))?;
    let shaken = TlsConnector::from(tls.for_http1).connect(tls.name, stream).await;
    let stream =
        shaken.map_err(|error| io::Error::other(format!("no TLS: {}", handshake::describe(&error))))?;
    Ok(Box::new(stream))
}
