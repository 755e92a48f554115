//! TLS handshakes: with clients before their first byte is read, and with backends before the first byte is
//! sent.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use rustls::{
    AlertDescription, CertificateError, CipherSuite, Error, HandshakeKind, InvalidMessage, ProtocolVersion,
    ServerConfig,
};
use weir_stats::table::Handshake;
use weir_tls::{BackendTls, ServerTls};

use crate::buffers::{Buffer, Buffers};
use crate::clock;
use crate::deadline::Deadline;
use crate::stream::Stream;
use crate::tls::Tls;

/// Longest wait for a client to read the alert and close.
const LINGER: Duration = Duration::from_secs(2);

/// Outcome of a handshake with a client, kept as long as the connection.
#[derive(Debug)]
pub struct Secure {
    /// The listener's TLS settings when the connection began.
    pub server: Arc<ServerTls>,
    /// The name that the client asked for (SNI), lower case.
    pub server_name: Option<Box<str>>,
    /// The agreed application protocol (ALPN); `None` when the client offered none.
    pub alpn: Option<Box<[u8]>>,
    /// TLS 1.2 or 1.3.
    pub version: ProtocolVersion,
    /// The agreed cipher suite.
    pub cipher: Option<CipherSuite>,
    /// The client's certificate, in DER; the client has proved that it holds the key.
    pub client_certificate: Option<Box<[u8]>>,
    /// The subject of that certificate (RFC 4514).
    pub client_subject: Option<Box<str>>,
}

impl Secure {
    /// The version as logs name it.
    pub fn version_word(&self) -> &'static str {
        match self.version {
            ProtocolVersion::TLSv1_3 => "TLSv1.3",
            _ => "TLSv1.2",
        }
    }

    /// The cipher suite's IANA name.
    pub fn cipher_word(&self) -> &'static str {
        match self.cipher {
            // The rustls names of TLS 1.3 suites have a prefix of their own.
            Some(CipherSuite::TLS13_AES_128_GCM_SHA256) => "TLS_AES_128_GCM_SHA256",
            Some(CipherSuite::TLS13_AES_256_GCM_SHA384) => "TLS_AES_256_GCM_SHA384",
            Some(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256) => "TLS_CHACHA20_POLY1305_SHA256",
            Some(suite) => suite.as_str().unwrap_or("unknown"),
            None => "unknown",
        }
    }
}

/// Completes the handshake with a client, using `config`, which is one of `server`'s. `first` is what was
/// already received. The caller sets the deadline.
///
/// # Errors
/// The handshake failed; the counter for the reason. The client has been sent an alert, and nothing else can
/// be said to it.
pub async fn accept(
    server: &Arc<ServerTls>,
    config: &Arc<ServerConfig>,
    stream: Stream,
    buffers: &Rc<Buffers>,
    first: Option<Buffer>,
    deadline: &Deadline,
) -> Result<(Stream, Secure, Handshake), Handshake> {
    let Some(socket) = stream.into_socket() else { return Err(Handshake::Malformed) };
    let mut tls = Tls::server(config.clone(), buffers, first).map_err(|error| reason(&error))?;
    let shaken = poll_fn(|context| match tls.poll_handshake(&socket, context) {
        Poll::Ready(result) => Poll::Ready(result.map_err(|error| {
            tracing::debug!(peer = ?socket.peer_addr().ok(), %error, "TLS handshake");
            reason(&error)
        })),
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(Handshake::TimedOut)),
        Poll::Pending if deadline.is_shed() => Poll::Ready(Err(Handshake::Overload)),
        Poll::Pending => Poll::Pending,
    });
    if let Err(failed) = shaken.await {
        deadline.set(clock::now() + LINGER);
        poll_fn(|context| match tls.poll_linger(&socket, context) {
            Poll::Pending if !deadline.has_passed() && !deadline.is_shed() => Poll::Pending,
            _ => Poll::Ready(()),
        })
        .await;
        return Err(failed);
    }
    let state = tls.state();
    let result = match state.handshake_kind() {
        Some(HandshakeKind::Resumed) => Handshake::Resumed,
        _ => Handshake::Full,
    };
    let client_certificate: Option<Box<[u8]>> = state
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|certificate| certificate.as_ref().into());
    let secure = Secure {
        server: server.clone(),
        server_name: tls.server_name().map(|name| name.to_ascii_lowercase().into()),
        alpn: state.alpn_protocol().map(Into::into),
        version: state.protocol_version().unwrap_or(ProtocolVersion::TLSv1_2),
        cipher: state.negotiated_cipher_suite().map(|suite| suite.suite()),
        client_subject: subject_of(client_certificate.as_deref()),
        client_certificate,
    };
    Ok((Stream::encrypted(socket, tls), secure, result))
}

/// The subject of a client's certificate; `None` without one.
pub fn subject_of(certificate: Option<&[u8]>) -> Option<Box<str>> {
    certificate.and_then(weir_tls::subject).map(String::into_boxed_str)
}

/// The protocols that a backend is offered (ALPN).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The pool's protocol.
    Usual,
    /// HTTP/2 and HTTP/1.1, for pools that let backends choose.
    Either,
}

/// Outcome of a handshake with a backend.
pub struct Shaken {
    /// The encrypted connection.
    pub stream: Stream,
    /// Full or resumed.
    pub kind: HandshakeKind,
    /// Whether the backend chose HTTP/2 (ALPN).
    pub is_h2: bool,
}

/// Completes the handshake with a backend. The caller sets the deadline; `Err` with `TimedOut` when it
/// passed.
pub async fn connect(
    tls: &BackendTls,
    offer: Offer,
    stream: Stream,
    buffers: &Rc<Buffers>,
    deadline: &Deadline,
) -> io::Result<Shaken> {
    let socket = stream.into_socket().ok_or(io::ErrorKind::InvalidInput)?;
    let either = tls.for_either.as_ref().filter(|_| offer == Offer::Either);
    let config = either.unwrap_or(&tls.config).clone();
    let mut session = Tls::client(config, tls.name.clone(), buffers)?;
    poll_fn(|context| match session.poll_handshake(&socket, context) {
        Poll::Pending if deadline.has_passed() => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        polled => polled,
    })
    .await?;
    let agreed = session.state().alpn_protocol();
    tls.check_agreed(agreed).map_err(io::Error::other)?;
    let is_h2 = agreed == Some(b"h2");
    let kind = session.state().handshake_kind().unwrap_or(HandshakeKind::Full);
    Ok(Shaken { stream: Stream::encrypted(socket, session), kind, is_h2 })
}

/// The counter for a failed handshake.
fn reason(error: &io::Error) -> Handshake {
    let Some(error) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return match error.kind() {
            io::ErrorKind::OutOfMemory => Handshake::Overload,
            io::ErrorKind::InvalidData => Handshake::Malformed,
            _ => Handshake::Closed,
        };
    };
    match error {
        Error::NoApplicationProtocol => Handshake::NoProtocol,
        // rustls returns this when the resolver has no certificate.
        Error::General(_) => Handshake::NoCertificate,
        Error::PeerIncompatible(_) => Handshake::NoCommon,
        Error::NoCertificatesPresented | Error::InvalidCertificate(_) => Handshake::ClientCertificate,
        Error::AlertReceived(_) => Handshake::Alert,
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => Handshake::NotTls,
        _ => Handshake::Malformed,
    }
}

/// Whether the handshake failed because the other side speaks none of the protocols that were offered (RFC
/// 7301 section 3.2).
pub fn speaks_none_of_them(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    matches!(inner, Some(Error::AlertReceived(AlertDescription::NoApplicationProtocol)))
}

/// A readable description of what is wrong with a backend's TLS.
pub fn describe(error: &io::Error) -> String {
    let Some(inner) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed within the handshake".to_owned(),
            _ => error.to_string(),
        };
    };
    match inner {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "its certificate comes from an authority that is not in `ca` (or the system's)".to_owned()
        }
        // `openssl req -x509` makes such certificates by default.
        Error::InvalidCertificate(CertificateError::Other(other))
            if matches!(other.0.downcast_ref(), Some(webpki::Error::CaUsedAsEndEntity)) =>
        {
            "its certificate is that of an authority (CA:TRUE), which cannot stand for a server: have that \
             authority sign one for it, or make one with CA:FALSE"
                .to_owned()
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "its certificate has expired".to_owned()
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "its certificate is for another name than `server_name`".to_owned(),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => "it does not speak TLS there".to_owned(),
        Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA),
        ) => format!("it does not take our certificate: {alert:?}"),
        other => other.to_string(),
    }
}
