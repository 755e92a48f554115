//! Renders a record as a line, in three formats.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_config::AccessFormat;
use weir_http::write_address;
use weir_stats::table::End;

use super::escape;
use super::record::{Reasons, Record};
use super::timestamp::Calendar;
use crate::client::is_unix;

/// Written in place of the address of a client on a Unix socket.
const UNIX_CLIENT: &[u8] = b"unix:";

/// Renders lines; caches the calendar fields of the current second.
#[derive(Debug, Default)]
pub struct Renderer {
    pub calendar: Calendar,
    /// A buffer for values that are assembled.
    pub room: Vec<u8>,
}

impl Renderer {
    /// Appends one line, with its line feed.
    pub fn line(&mut self, out: &mut Vec<u8>, format: AccessFormat, record: &Record<'_>) {
        self.fixed(out, format, record);
        out.push(b'\n');
    }

    /// Appends one line, without its line feed.
    pub fn fixed(&mut self, out: &mut Vec<u8>, format: AccessFormat, record: &Record<'_>) {
        match format {
            AccessFormat::Json => {
                out.push(b'{');
                self.json_fields(out, record);
                out.push(b'}');
            }
            AccessFormat::Combined => self.combined(out, record),
            AccessFormat::Haproxy => self.haproxy(out, record),
        }
    }

    /// Appends the fields of a line in JSON, without the braces.
    pub fn json_fields(&mut self, out: &mut Vec<u8>, record: &Record<'_>) {
        out.extend_from_slice(b"\"time\":\"");
        self.calendar.rfc3339(out, record.time);
        out.push(b'"');
        json_text(out, "listener", Some(record.listener.as_bytes()));
        json_text(out, "route", record.route.map(str::as_bytes));
        json_text(out, "pool", record.pool.map(str::as_bytes));
        json_text(out, "backend", record.backend.map(str::as_bytes));
        json_key(out, "client");
        out.push(b'"');
        address(out, record);
        out.push(b'"');
        json_text(out, "protocol", Some(record.protocol.word().as_bytes()));
        json_text(out, "method", record.method);
        json_text(out, "host", record.host);
        json_text(out, "path", record.path);
        json_number(out, "status", record.status.map(u64::from));
        json_number(out, "bytes_received", Some(record.bytes_received));
        json_number(out, "bytes_sent", Some(record.bytes_sent));
        json_text(out, "request_id", record.request_id);
        json_text(out, "cache", record.cache.map(str::as_bytes));
        json_number(out, "retries", Some(u64::from(record.retries)));
        json_text(out, "hedge", record.hedge.map(str::as_bytes));
        json_seconds(out, "client_header", record.timers.client_header);
        json_seconds(out, "auth", record.timers.auth);
        json_seconds(out, "queue", record.timers.queue);
        json_seconds(out, "connect", record.timers.connect);
        json_seconds(out, "backend_header", record.timers.backend_header);
        json_seconds(out, "total", Some(record.timers.total));
        json_text(out, "end", Some(record.end.word().as_bytes()));
        would_reject(out, record.would_reject);
        json_text(out, "sqli", record.sqli.map(str::as_bytes));
        json_text(out, "user", record.user);
        json_text(out, "user_agent", record.user_agent);
        json_text(out, "referer", record.referer);
        if let Some(tls) = record.tls {
            json_text(out, "tls_version", Some(tls.version_word().as_bytes()));
            json_text(out, "tls_cipher", Some(tls.cipher_word().as_bytes()));
        }
        json_text(out, "server_name", record.server_name.map(str::as_bytes));
    }

    /// `$remote_addr - $remote_user [$time_local] "$request" $status $body_bytes_sent "$http_referer"
    /// "$http_user_agent"`.
    ///
    /// Source: nginx, ngx_http_log_module; Apache, "Log Files", Combined Log Format.
    fn combined(&mut self, out: &mut Vec<u8>, record: &Record<'_>) {
        match is_unix(record.client.ip()) {
            true => out.extend_from_slice(UNIX_CLIENT),
            false => write_address(out, record.client.ip()),
        }
        out.extend_from_slice(b" - ");
        match record.user {
            // A space would shift all columns after it.
            Some(user) => escape::value(out, user, |byte| byte == b' '),
            None => out.push(b'-'),
        }
        out.extend_from_slice(b" [");
        self.calendar.common(out, record.time);
        out.extend_from_slice(b"] \"");
        request_line(out, record, b"-", escape::combined);
        out.extend_from_slice(b"\" ");
        number_or(out, record.status.map(u64::from), b"-");
        out.push(b' ');
        number(out, record.body_bytes_sent());
        for field in [record.referer, record.user_agent] {
            out.extend_from_slice(b" \"");
            escape::combined(out, field.unwrap_or(b"-"));
            out.push(b'"');
        }
    }

    /// HAProxy's `option httplog` or, without a request, `option tcplog`.
    ///
    /// The counts of concurrent connections and queue positions are not recorded by Weir and always 0;
    /// retries are real. Source: HAProxy configuration manual, sections 8.2.2, 8.2.3 and 8.5.
    fn haproxy(&mut self, out: &mut Vec<u8>, record: &Record<'_>) {
        let is_http = record.protocol.is_http();
        address(out, record);
        out.extend_from_slice(b" [");
        // HAProxy logs the time of accepting, not the time of the end.
        self.calendar.haproxy(out, record.time.checked_sub(record.timers.total).unwrap_or(record.time));
        out.extend_from_slice(b"] ");
        escape::haproxy(out, record.listener.as_bytes());
        out.push(b' ');
        escape::haproxy(out, record.pool.unwrap_or(record.listener).as_bytes());
        out.push(b'/');
        escape::haproxy(out, record.backend.unwrap_or("<NOSRV>").as_bytes());
        out.push(b' ');
        let timers = &record.timers;
        // HAProxy writes -1 if the request left the queue without a backend; one that never had to wait spent
        // 0 in it.
        let queue = timers.queue.or(record.backend.map(|_| Duration::ZERO));
        let phases = [timers.client_header, queue, timers.connect, timers.backend_header];
        let shown = if is_http { &phases[..] } else { &phases[1..3] };
        for phase in shown {
            number_or(out, phase.map(milliseconds), b"-1");
            out.push(b'/');
        }
        number(out, milliseconds(timers.total));
        out.push(b' ');
        if is_http {
            number_or(out, record.status.map(u64::from), b"-1");
            out.push(b' ');
        }
        number(out, record.bytes_sent);
        out.push(b' ');
        if is_http {
            // There are no captured cookies.
            out.extend_from_slice(b"- - ");
        }
        out.extend_from_slice(&termination(record));
        if is_http {
            out.extend_from_slice(b"--");
        }
        out.extend_from_slice(b" 0/0/0/0/");
        number(out, u64::from(record.retries));
        out.extend_from_slice(b" 0/0");
        if is_http {
            out.extend_from_slice(b" \"");
            request_line(out, record, b"<BADREQ>", escape::haproxy);
            out.push(b'"');
        }
    }
}

/// The first two letters of HAProxy's termination state: who or what ended the session, and in which phase.
///
/// Source: HAProxy configuration manual, section 8.5.
fn termination(record: &Record<'_>) -> [u8; 2] {
    let is_http = record.protocol.is_http();
    // R: the request was incomplete; H: waiting for the response's head; D: data in transit.
    let phase = match (is_http, record.timers.client_header, record.timers.backend_header) {
        (true, None, _) => b'R',
        (true, Some(_), None) => b'H',
        _ => b'D',
    };
    match record.end {
        End::Done => *b"--",
        End::Responded | End::Maintenance => *b"LR",
        End::ClientClosed => [b'C', phase],
        End::TunnelIdle => *b"cD",
        End::ClientIdle => [b'c', if is_http { b'R' } else { b'D' }],
        End::ClientHeader | End::LoginTimeout => *b"cR",
        End::ClientBody => *b"cD",
        End::NotCached => *b"PH",
        End::AuthUnavailable
        | End::NoBackend
        | End::BreakerOpen
        | End::ConnectFailed
        | End::NoTunnel
        | End::BackendTls => *b"SC",
        End::BadRequest
        | End::BadProxyHeader
        | End::BodyTooLarge
        | End::NoRoute
        | End::MethodRefused
        | End::Looped
        | End::AuthDenied
        | End::Misdirected
        | End::Handshake
        | End::Sqli
        | End::LoginRefused
        | End::LoginLimited => *b"PR",
        End::DeniedAddress
        | End::DeniedMethod
        | End::DeniedPath
        | End::DeniedUserAgent
        | End::RateLimited
        | End::ConcurrencyLimited => *b"PR",
        End::QueueFull | End::ParkFull => *b"SQ",
        End::QueueTimeout | End::ParkTimeout => *b"sQ",
        End::ConnectTimeout => *b"sC",
        End::BackendTimeout | End::StreamTimeout | End::RequestTotal => {
            [b's', if phase == b'R' { b'H' } else { phase }]
        }
        End::BackendDown => [b'D', phase],
        End::BackendClosed => [b'S', if phase == b'R' { b'H' } else { phase }],
        End::BadResponse => *b"PH",
        End::Overload | End::BufferLost => [b'R', phase],
        End::TooManyConnections | End::AccountConnections => *b"PC",
        End::Draining | End::Killed => [b'K', phase],
        End::Internal => [b'I', phase],
    }
}

fn request_line(
    out: &mut Vec<u8>,
    record: &Record<'_>,
    missing: &[u8],
    escape: impl Fn(&mut Vec<u8>, &[u8]),
) {
    match record.method {
        None => out.extend_from_slice(missing),
        Some(method) => {
            escape(out, method);
            out.push(b' ');
            escape(out, record.path.unwrap_or(b"*"));
            out.push(b' ');
            out.extend_from_slice(record.protocol.word().as_bytes());
        }
    }
}

fn address(out: &mut Vec<u8>, record: &Record<'_>) {
    match record.client {
        client if is_unix(client.ip()) => out.extend_from_slice(UNIX_CLIENT),
        SocketAddr::V4(client) => {
            write_address(out, IpAddr::V4(*client.ip()));
            out.push(b':');
            number(out, u64::from(client.port()));
        }
        SocketAddr::V6(client) => {
            // Writing to a vector can't fail.
            let _ = write!(out, "{client}");
        }
    }
}

/// Appends a comma and the key of a field.
pub fn json_key(out: &mut Vec<u8>, key: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b"\":");
}

/// Appends a field with a text; nothing for `None`.
pub fn json_text(out: &mut Vec<u8>, key: &str, value: Option<&[u8]>) {
    if let Some(value) = value {
        json_key(out, key);
        out.push(b'"');
        escape::json(out, value);
        out.push(b'"');
    }
}

fn would_reject(out: &mut Vec<u8>, reasons: Reasons) {
    if !reasons.is_empty() {
        json_key(out, "would_reject");
        out.push(b'"');
        put_words(out, reasons);
        out.push(b'"');
    }
}

/// Appends the words for what would have refused the request, separated by commas.
pub fn put_words(out: &mut Vec<u8>, reasons: Reasons) {
    for (number, reason) in reasons.iter().enumerate() {
        if number > 0 {
            out.push(b',');
        }
        out.extend_from_slice(reason.word().as_bytes());
    }
}

fn json_number(out: &mut Vec<u8>, key: &str, value: Option<u64>) {
    if let Some(value) = value {
        json_key(out, key);
        number(out, value);
    }
}

fn json_seconds(out: &mut Vec<u8>, key: &str, value: Option<Duration>) {
    if value.is_some() {
        json_key(out, key);
        put_seconds(out, value);
    }
}

/// Appends seconds with microseconds; nothing for `None`.
pub fn put_seconds(out: &mut Vec<u8>, value: Option<Duration>) {
    let Some(value) = value else { return };
    number(out, value.as_secs());
    out.push(b'.');
    let microseconds = value.subsec_micros();
    digits3(out, (microseconds / 1_000) as u16);
    digits3(out, (microseconds % 1_000) as u16);
}

/// Appends seconds since 1970 with milliseconds.
pub fn unix_seconds(out: &mut Vec<u8>, time: SystemTime) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    number(out, since.as_secs());
    out.push(b'.');
    digits3(out, since.subsec_millis() as u16);
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

fn number_or(out: &mut Vec<u8>, value: Option<u64>, otherwise: &[u8]) {
    match value {
        Some(value) => number(out, value),
        None => out.extend_from_slice(otherwise),
    }
}

/// Appends a number in decimal; this takes a third of the time of `write!`.
pub fn number(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends two digits, with a leading zero. `value` must be below 100.
pub fn digits2(out: &mut Vec<u8>, value: u8) {
    out.extend_from_slice(&[b'0' + value / 10, b'0' + value % 10]);
}

/// Appends three digits, with leading zeros. `value` must be below 1000.
pub fn digits3(out: &mut Vec<u8>, value: u16) {
    out.push(b'0' + (value / 100) as u8);
    digits2(out, (value % 100) as u8);
}
