//! The way to the admin API of another process, for the command line.

use std::io;
use std::path::PathBuf;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use weir_config::{AdminBind, PoolProtocol, PoolTls, Verify};
use weir_io::at::{At, UnixName};
use weir_io::handshake;
use weir_tls::ClientTls;

/// What TLS is spoken with.
pub use weir_tls::ClientTls as Tls;

/// A connection.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// Whom to believe, and what to show, where the admin API is served over TLS.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Authorities that its certificate must come from; those of the system without.
    pub ca: Option<PathBuf>,
    /// Name that its certificate must be for; the host of its address without.
    pub name: Option<String>,
    /// Certificates that are taken for themselves, as the config of the process names them.
    pub own: Option<PathBuf>,
    /// The certificate that is shown, and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Trust {
    /// Reads the files.
    ///
    /// # Errors
    /// One that can't be used, in words.
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

/// Connects, over TLS where `tls` says with what.
///
/// # Errors
/// Nobody listens there, or no TLS came about.
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
