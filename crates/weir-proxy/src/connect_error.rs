//! Why a connection to a backend could not be made.

use std::io;
use std::net::IpAddr;

use weir_config::RetryOn;
use weir_io::at::At;
use weir_io::wait::WaitError;

/// Why a connection to a backend could not be made. In every case nothing was sent: another backend may be
/// tried.
#[derive(Debug)]
pub enum ConnectError {
    /// The backend's name has never resolved.
    Unresolved { backend: String },
    /// The backend, or the network, refused the connection.
    Refused { backend: At, source: io::Error },
    /// Nothing can leave for it from the local address or interface that the pool prescribes (`source`,
    /// `interface`), or from the address of `client` if that is prescribed: not the backend's fault.
    Source { backend: At, client: Option<IpAddr>, source: io::Error },
    /// It did not accept within `timeout.connect`.
    TimedOut { backend: At },
    /// It accepted, but the TLS handshake failed. `speaks_none` if it speaks none of the protocols that were
    /// offered (ALPN).
    Tls { backend: At, reason: String, speaks_none: bool },
    /// It has as many open connections as allowed, and none of them is idle.
    Full { backend: String },
    /// This process has no descriptor left: not the backend's fault.
    OutOfDescriptors,
    /// This host has no free local port for this backend: not its fault, and another backend may be
    /// reachable.
    OutOfPorts { backend: At },
    /// It accepts no further request on a shared connection, and guarantees that it did not process this one
    /// (RFC 9113 §8.7).
    Declined,
}

impl ConnectError {
    /// The error for a failed wait on a connection on which no part of a request has been sent. `at` is the
    /// address of the backend called `name`, as far as it is known.
    pub fn from_wait(error: WaitError, at: Option<At>, name: &str) -> ConnectError {
        match (error, at) {
            (_, None) => ConnectError::Unresolved { backend: name.to_owned() },
            (WaitError::TimedOut, Some(backend)) => ConnectError::TimedOut { backend },
            (WaitError::Broken(source), Some(backend)) => ConnectError::Refused { backend, source },
        }
    }

    /// Its name in `retry.on`; `None` if this process is short of descriptors, which another backend would
    /// not change.
    pub fn retried_as(&self) -> Option<RetryOn> {
        match self {
            ConnectError::OutOfDescriptors => None,
            ConnectError::Declined => Some(RetryOn::RefusedStream),
            _ => Some(RetryOn::Connect),
        }
    }

    /// Whether it counts against the backend in passive health: not if the backend was never contacted.
    pub fn blames_backend(&self) -> bool {
        matches!(
            self,
            ConnectError::Refused { .. } | ConnectError::TimedOut { .. } | ConnectError::Tls { .. }
        )
    }

    /// Whether the reason may be that the connection leaves from its client's address: the backend may accept
    /// nothing from there, or its answers may not come back here. Once TLS has been spoken, both are known to
    /// work.
    pub fn may_be_of_client(&self) -> bool {
        matches!(self, ConnectError::Refused { .. } | ConnectError::TimedOut { .. })
    }
}

impl std::fmt::Display for ConnectError {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConnectError::Unresolved { backend } => {
                write!(out, "backend {backend} has no address yet: its name does not resolve")
            }
            ConnectError::Refused { backend, source } => {
                write!(out, "backend {backend} did not accept: {source}")
            }
            ConnectError::Source { backend, client: Some(client), source } => {
                write!(
                    out,
                    "no connection to backend {backend} can leave from its client's address {client}: {source}"
                )
            }
            ConnectError::Source { backend, client: None, source } => {
                write!(
                    out,
                    "no connection to backend {backend} can leave from its pool's `source` or `interface`: {source}"
                )
            }
            ConnectError::TimedOut { backend } => write!(out, "backend {backend} did not accept in time"),
            ConnectError::Full { backend } => {
                write!(out, "backend {backend} has `max_connections` open, and none is idle")
            }
            ConnectError::Declined => write!(out, "the backend took no further request on its connection"),
            ConnectError::Tls { backend, reason, .. } => {
                write!(out, "backend {backend} could not be spoken TLS with: {reason}")
            }
            ConnectError::OutOfPorts { backend } => {
                write!(
                    out,
                    "no port is left for a connection to backend {backend}; widen net.ipv4.ip_local_port_range"
                )
            }
            ConnectError::OutOfDescriptors => {
                write!(out, "no file descriptor is left for a connection; raise LimitNOFILE")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_free_port_is_not_held_against_the_backend_and_another_is_tried() {
        let error = ConnectError::OutOfPorts { backend: At::Inet("10.0.0.1:80".parse().unwrap()) };
        assert!(!error.blames_backend() && error.retried_as() == Some(RetryOn::Connect));
    }

    #[test]
    fn a_backend_whose_address_is_not_known_is_reported_by_its_name_and_by_no_other_address() {
        for error in [WaitError::TimedOut, WaitError::Broken(io::ErrorKind::ConnectionReset.into())] {
            let error = ConnectError::from_wait(error, None, "app.internal:80");
            assert_eq!(
                error.to_string(),
                "backend app.internal:80 has no address yet: its name does not resolve"
            );
            assert!(!error.blames_backend());
        }
        let at = At::Inet("10.0.0.1:80".parse().unwrap());
        let error = ConnectError::from_wait(WaitError::TimedOut, Some(at), "app.internal:80");
        assert_eq!(error.to_string(), "backend 10.0.0.1:80 did not accept in time");
    }
}
