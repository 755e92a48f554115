//! Texts with a form of their own: addresses, networks, patterns, header fields. Each [`Shape`] reads one.

mod acme;
mod address;
mod http;
mod screen;

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use weir_balance::Algorithm;
use weir_screen::{Key, Pattern, Rate};

use crate::fields::{Entry, Fields};
use crate::limits;
use crate::report::{Span, quote};
use crate::schema::{AccessTarget, HashKey, HostPattern, PathPattern};
use crate::units::Refused;

pub(crate) use acme::{CONTACT, DIRECTORY_URL, DOMAIN};
pub(crate) use address::{
    ACCESS_TARGET, ADMIN_BIND, BACKEND_ADDRESS, BIND, FILE, FOLDER, NETWORK, PEM_FILE, same_backend,
};
pub(crate) use http::{
    CONTENT_TYPE, COOKIE_NAME, FIELD_VALUE, HASH_KEY, HOST, HOST_FIELD, MEDIA_RANGE, METHOD, PARAMETER, PATH,
    PREFIX, PROBE_PATH, PROBED_HEADER, REDIRECT_TO, REQUEST_HEADER, RESPONSE_HEADER, SERVER_NAME, SET_VALUE,
    STATUS_RANGE, written_value,
};
pub(crate) use screen::{LIMIT_KEY, METHOD_PATTERN, PATH_PATTERN, REQUEST_RATE, USER_AGENT_PATTERN};

/// A text with a form of its own.
pub struct Shape {
    /// What it is, with its article: "a network".
    pub name: &'static str,
    /// One that is right.
    pub example: &'static str,
    /// A bare number is read as its digits: a port, a status.
    pub(crate) takes_numbers: bool,
    pub(crate) read: fn(&str) -> Result<Value, Refused>,
}

impl Shape {
    const fn new(
        name: &'static str,
        example: &'static str,
        read: fn(&str) -> Result<Value, Refused>,
    ) -> Self {
        Self { name, example, takes_numbers: false, read }
    }

    const fn or_number(mut self) -> Self {
        self.takes_numbers = true;
        self
    }
}

impl std::fmt::Debug for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// A value that was read, or the place of one that could not be.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// Already reported; whoever meets it stays silent.
    Bad,
    Bool(bool),
    Duration(Duration),
    Bytes(u64),
    Count(u64),
    Factor(f64),
    Word(&'static str),
    Algorithm(Algorithm),
    /// Checked text: a name, a file, a header value …
    Text(String),
    Bind(SocketAddr),
    /// `"off"` where a table or an address may stand.
    Off,
    Network(IpNet),
    Access(AccessTarget),
    Host(HostPattern),
    Path(PathPattern),
    HashKey(HashKey),
    StatusRange(u16, u16),
    RequestRate(Rate),
    LimitKey(Key),
    Pattern(Pattern),
    List(Vec<(Span, Value)>),
    Map(Vec<Entry>),
    Table(Fields),
}

pub(crate) fn refuse<T>(message: impl Into<String>, hint: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { message: message.into(), hint: hint.into() })
}

/// The name of a listener, pool or route. It ends up in metric labels, log lines, admin paths and cookies.
pub(crate) static NAME: Shape = Shape::new("a name", "app", read_name);

/// Any text without NUL.
pub(crate) static TEXT: Shape = Shape::new("a text", "ok\\n", |text| Ok(Value::Text(text.to_owned())));

pub(crate) fn read_name(text: &str) -> Result<Value, Refused> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > limits::NAME_BYTES {
        return refuse(
            format!("{} is not a name", quote(text)),
            format!("expected 1 to {} characters of a-z, A-Z, 0-9, `-`, `_` and `.`", limits::NAME_BYTES),
        );
    }
    if !text.chars().all(good) || !text.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return refuse(
            format!("{} is not a name", quote(text)),
            "expected a letter or digit, then letters, digits, `-`, `_` and `.` (it becomes a metric label)",
        );
    }
    Ok(Value::Text(text.to_owned()))
}
