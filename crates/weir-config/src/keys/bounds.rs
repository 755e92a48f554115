//! The tables of what a client may take of a listener: time and size.

use super::{Key, Kind, Table};
use crate::limits as at;

/// `[listener.NAME.timeout]`
pub static TIMEOUT: Table = Table {
    path: "[listener.NAME.timeout]",
    doc: "The timers of a listener. Every wait has one.",
    keys: &[
        Key::new("client_idle", Kind::Duration(&at::CLIENT_IDLE), "Idle client: HTTP between requests, TCP without a byte either way, UDP flow without a datagram.")
            .also(&["client", "idle", "keep_alive", "keepalive", "http_keep_alive"]),
        Key::new("header", Kind::Duration(&at::HEADER), "From the first byte of a request to the end of its head; not renewed by bytes. Also for a PROXY header.")
            .stream()
            .also(&["http_request", "client_header", "request"]),
        Key::new("handshake", Kind::Duration(&at::HANDSHAKE), "From the first moment of a connection to the end of its TLS handshake, or, where `sni` chooses, of its greeting.")
            .stream()
            .also(&["tls", "ssl", "ssl_handshake"]),
        Key::new("connect", Kind::Duration(&at::CONNECT), "For one backend to accept a connection.").stream().also(&["proxy_connect"]),
        Key::new("backend", Kind::Duration(&at::BACKEND), "For a backend's next byte while an exchange waits for it.")
            .http()
            .also(&["server", "read", "proxy_read", "response", "upstream"]),
        Key::new("client_body", Kind::Duration(&at::CLIENT_BODY), "Longest time without progress while a client sends a body or reads a response.")
            .http()
            .also(&["body", "send"]),
    ],
};

/// `[listener.NAME.limits]`
pub static LIMITS: Table = Table {
    path: "[listener.NAME.limits]",
    doc: "HTTP sizes, all inclusive.",
    keys: &[
        Key::new("request_line", Kind::Size(&at::REQUEST_LINE), "Request line; beyond it 414.")
            .http()
            .also(&["uri", "url"]),
        Key::new("header", Kind::Size(&at::HEADER_BYTES), "Whole head; beyond it 431.").http().also(&[
            "headers",
            "head",
            "header_size",
        ]),
        Key::new("header_count", Kind::Count(&at::HEADER_COUNT), "Header fields in a head; beyond it 431.")
            .http()
            .also(&["max_headers"]),
        Key::new(
            "min_body_rate",
            Kind::Rate(&at::MIN_BODY_RATE),
            "Slowest client body, averaged since it began, after 5 s of grace and until the answer begins.",
        )
        .http(),
        Key::new(
            "streams",
            Kind::Count(&at::STREAMS),
            "Requests under way at once on one HTTP/2 or HTTP/3 connection; what is beyond waits or is refused.",
        )
        .http()
        .also(&["max_concurrent_streams", "concurrent_streams"]),
        Key::new(
            "control_frames",
            Kind::Count(&at::CONTROL_FRAMES),
            "Frames without content that a client may send in HTTP/2 or HTTP/3 ahead of the requests it gets answered; beyond it the connection is closed.",
        )
        .http(),
    ],
};
