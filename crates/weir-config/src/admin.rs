//! `[admin]`: where the admin API, `/metrics` and the dashboard are served.

use std::fmt;
use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use crate::fields::{Fields, Value};
use crate::keys::{Shape, table as below, text, text_or};
use crate::listener::unix::UnixSocket;
use crate::report::Findings;
use crate::setting::{Section as _, one, table};
use crate::values::address::{FILE, KEY_FILE, PEM_FILE, bind};
use crate::values::unix::{self, unix_name};

table! {
    /// Where the admin API, `/metrics` and the dashboard are served.
    pub struct Admin at "[admin]" {
        /// Address and port, a Unix socket such as `"unix:/run/weir/admin.sock"`, or `"off"`. An address
        /// that is not loopback needs `token_file`, or `tls` with `client_ca`.
        bind: AdminBind = text_or(&ADMIN_BIND, "127.0.0.1:9900").restart().also(&["listen", "address"]);
        /// Who may connect to the Unix socket of `bind`.
        unix_socket: UnixSocket = below(UnixSocket::TABLE).restart();
        /// File whose trimmed content is the bearer token: changing calls need it and, where `bind` is an
        /// address that is not loopback, all but `/livez` and `/readyz`. It is read at start and at each
        /// reload.
        token_file: Option<PathBuf> = text(&FILE).default("none: loopback only").restart();
        /// Serves it over TLS.
        tls: Option<AdminTls> = below(AdminTls::TABLE).default("off").restart().also(&["ssl"]);
    }
}

table! {
    /// Serves the admin API over TLS. Files are read at start and at each reload.
    #[derive(Eq)]
    pub struct AdminTls at "[admin.tls]" {
        /// PEM file of the certificate chain, Weir's own first.
        cert: PathBuf = text(&PEM_FILE).required().also(&["certificate", "crt"]);
        /// PEM file of its private key, without a passphrase.
        key: PathBuf = text(&KEY_FILE).required();
        /// PEM file of the authorities that client certificates must come from: nobody is let in without one.
        client_ca: Option<PathBuf> =
            text(&PEM_FILE).default("none: no client certificate is asked for").also(&["ca", "ca_file"]);
    }
}

/// Where the admin API is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminBind {
    /// At an address.
    Inet(SocketAddr),
    /// A Unix socket; the name is that after `unix:`.
    Unix(Arc<str>),
}

impl AdminBind {
    /// Whether it can be reached from this machine only.
    pub fn is_local(&self) -> bool {
        match self {
            AdminBind::Inet(address) => address.ip().to_canonical().is_loopback(),
            AdminBind::Unix(_) => true,
        }
    }

    /// The address; `None` for a Unix socket.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            AdminBind::Inet(address) => Some(*address),
            AdminBind::Unix(_) => None,
        }
    }
}

impl fmt::Display for AdminBind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdminBind::Inet(address) => write!(out, "{address}"),
            AdminBind::Unix(name) => write!(out, "unix:{name}"),
        }
    }
}

impl FromStr for AdminBind {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<AdminBind, AddrParseError> {
        match unix_name(text) {
            Some(name) => Ok(AdminBind::Unix(name.into())),
            None => text.parse().map(AdminBind::Inet),
        }
    }
}

one!(
    AdminBind,
    Value::Text(text) => text.parse().ok(),
    |it| Value::Text(it.to_string()),
    AdminBind::Inet(SocketAddr::from(([127, 0, 0, 1], 9900)))
);

static ADMIN_BIND: Shape =
    Shape::new("an address and port, a Unix socket, or \"off\",", "127.0.0.1:9900", |text| match text {
        OFF => Ok(OFF.to_owned()),
        text => unix_name(text).map_or_else(|| bind(text), |name| unix::check_bind(text, name)),
    });

const OFF: &str = "off";

/// `None` if it is switched off.
pub(crate) fn read(fields: &Fields) -> Option<Admin> {
    use crate::setting::Part as _;
    (fields.text("bind") != Some(OFF)).then(|| Admin::of(fields))
}

/// Writes the table back.
pub(crate) fn write(admin: Option<&Admin>) -> Fields {
    admin.map_or_else(
        || {
            let mut fields = Fields::new(Admin::TABLE, Default::default());
            fields.put("bind", Some(Value::Text(OFF.to_owned())));
            fields
        },
        Admin::fields,
    )
}

pub(crate) fn check(fields: &Fields, findings: &mut Findings<'_>) {
    let Some(text) = fields.text("bind") else { return };
    let Ok(bind) = text.parse::<AdminBind>() else {
        for name in ["token_file", "tls", "unix_socket"] {
            if let Some(entry) = fields.get(name) {
                findings.warning(entry.key, format!("`{name}` has no effect"), "the admin API is off");
            }
        }
        return;
    };
    let is_file = matches!(&bind, AdminBind::Unix(name) if name.starts_with('/'));
    if let Some(entry) = fields.get("unix_socket").filter(|_| !is_file) {
        let hint = format!("`bind` is no Unix socket that is a file ({})", findings.place(fields.at("bind")));
        findings.warning(entry.key, "`unix_socket` has no effect", hint);
    }
    if let (AdminBind::Unix(name), true) = (&bind, fields.get("token_file").is_none())
        && name.starts_with('@')
    {
        let hint = "every process of the network namespace may connect to a name in the abstract namespace: \
                    add `token_file = \"…\"`, or use a path";
        findings.error(fields.at("bind"), format!("the admin API at {bind} would be open to everyone"), hint);
    }
    let proves_clients =
        fields.is_bad("tls") || fields.table("tls").is_some_and(|tls| !tls.lacks("client_ca"));
    if !bind.is_local() && fields.get("token_file").is_none() && !proves_clients {
        findings.error(
            fields.at("bind"),
            format!("the admin API at {bind} would be open to everyone who can reach it"),
            "add `token_file = \"…\"`, or `[admin.tls]` with `client_ca`, or bind it to 127.0.0.1",
        );
    }
}
