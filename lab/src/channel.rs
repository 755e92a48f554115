//! A connection on a non-blocking socket that may change to TLS part-way, as in MySQL's protocol.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme,
};

/// Most bytes read from a socket at once.
pub const PIECE_BYTES: usize = 16 * 1024;

/// One connection.
pub struct Channel {
    stream: TcpStream,
    tls: Option<Box<Connection>>,
}

/// The result of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// Data, or nothing yet.
    Some,
    /// The other side has closed.
    End,
}

impl Channel {
    /// A channel over `stream`, unencrypted at first.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        // An answer must not wait for the other side to acknowledge the one before.
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, tls: None })
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Switches to TLS, which begins with the bytes of `received`. Decrypted bytes are appended to `input`.
    /// Err if the other side does not speak TLS.
    pub fn encrypt(
        &mut self,
        tls: impl Into<Connection>,
        mut received: &[u8],
        input: &mut Vec<u8>,
    ) -> io::Result<()> {
        let mut tls = Box::new(tls.into());
        while !received.is_empty() {
            tls.read_tls(&mut received)?;
            tls.process_new_packets().map_err(io::Error::other)?;
        }
        self.tls = Some(tls);
        self.flush()?;
        self.take_plain(input)
    }

    /// Appends received bytes to `input`.
    pub fn receive(&mut self, piece: &mut [u8], input: &mut Vec<u8>) -> io::Result<Received> {
        let Some(tls) = &mut self.tls else {
            return match self.stream.read(piece) {
                Ok(0) => Ok(Received::End),
                Ok(count) => {
                    input.extend_from_slice(&piece[..count]);
                    Ok(Received::Some)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Received::Some),
                Err(error) => Err(error),
            };
        };
        match tls.read_tls(&mut self.stream) {
            Ok(0) => return Ok(Received::End),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Received::Some),
            Err(error) => return Err(error),
        }
        tls.process_new_packets().map_err(io::Error::other)?;
        self.flush()?;
        self.take_plain(input)?;
        Ok(Received::Some)
    }

    fn take_plain(&mut self, input: &mut Vec<u8>) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        match tls.reader().read_to_end(input) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends all of `bytes`. Err also when the socket's buffer is full: messages are small here, so the other
    /// side does not read.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => {
                tls.writer().write_all(bytes)?;
                self.flush()
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            tls.write_tls(&mut self.stream)?;
        }
        Ok(())
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The server's side of TLS with a certificate and its key as PEM.
pub fn server(certificate: &[u8], key: &[u8]) -> io::Result<Arc<ServerConfig>> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(io::Error::other)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(io::Error::other)?;
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(io::Error::other)?;
    Ok(Arc::new(config))
}

/// The client's side, which accepts any certificate: MySQL's own name no host.
pub fn client() -> io::Result<Arc<ClientConfig>> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone(provider)))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A new TLS session of a server.
pub fn accept(config: &Arc<ServerConfig>) -> io::Result<ServerConnection> {
    ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)
}

/// A new TLS session of a client.
pub fn connect(config: &Arc<ClientConfig>) -> io::Result<ClientConnection> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)
}

/// Accepts every server certificate: the lab measures its own servers on loopback.
#[derive(Debug)]
struct Anyone(Arc<CryptoProvider>);

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
