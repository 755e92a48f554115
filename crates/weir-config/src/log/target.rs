//! The targets of an access log.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use crate::fields::Value;
use crate::keys::Shape;
use crate::report::quote;
use crate::setting::one;
use crate::suggest::nearest;
use crate::units::{Refused, refuse};

/// Where access-log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessTarget {
    /// Nowhere (default); costs nothing.
    Off,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// A file, opened for appending and opened anew on USR1.
    File(PathBuf),
    /// A syslog daemon.
    Syslog(SyslogAddress),
    /// The journal of systemd, by its own protocol.
    Journal,
}

/// Where a syslog daemon listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogAddress {
    /// A datagram socket on this machine: a path, or `@name` in the abstract namespace.
    Unix(String),
    /// UDP, with one datagram for each line (RFC 5426).
    Udp(SocketAddr),
    /// TCP, with the length before each line (RFC 6587 section 3.4.1).
    Tcp(SocketAddr),
}

/// The socket to which syslog(3) writes.
const LOCAL: &str = "/dev/log";
/// Longest path of a Unix socket, in bytes (unix(7)).
const PATH_BYTES: usize = 107;

pub(super) static ACCESS_TARGET: Shape = Shape::new(
    "`\"off\"`, `\"stdout\"`, `\"stderr\"`, a file name, `\"syslog\"`, `\"syslog:udp:…\"`, `\"syslog:tcp:…\"`, `\"syslog:unix:…\"` or `\"journal\"`,",
    "/var/log/weir/access.log",
    |text| access_target(text).map(|target| target.to_string()),
);
/// The name by which a syslog daemon knows the writer.
pub(super) static APP_NAME: Shape = Shape::new("a name", "weir", app_name);

one!(AccessTarget, Value::Text(text) => access_target(text).ok(), |it| Value::Text(it.to_string()), AccessTarget::Off);

impl fmt::Display for AccessTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccessTarget::Off => f.write_str("off"),
            AccessTarget::Stdout => f.write_str("stdout"),
            AccessTarget::Stderr => f.write_str("stderr"),
            AccessTarget::File(path) => write!(f, "{}", path.display()),
            AccessTarget::Syslog(address) => write!(f, "syslog:{address}"),
            AccessTarget::Journal => f.write_str("journal"),
        }
    }
}

impl fmt::Display for SyslogAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SyslogAddress::Unix(path) => write!(f, "unix:{path}"),
            SyslogAddress::Udp(address) => write!(f, "udp:{address}"),
            SyslogAddress::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

fn access_target(text: &str) -> Result<AccessTarget, Refused> {
    match text {
        "off" => Ok(AccessTarget::Off),
        "stdout" => Ok(AccessTarget::Stdout),
        "stderr" => Ok(AccessTarget::Stderr),
        "journal" => Ok(AccessTarget::Journal),
        "syslog" => Ok(AccessTarget::Syslog(SyslogAddress::Unix(LOCAL.to_owned()))),
        text if text.starts_with("syslog:") => syslog(text).map(AccessTarget::Syslog),
        // A path must contain a slash, so that `stdot` does not become a file in the working directory.
        path if path.contains('/') && !path.ends_with('/') && !path.contains('\0') => {
            Ok(AccessTarget::File(PathBuf::from(path)))
        }
        other => {
            let hint = match nearest(other, ["off", "stdout", "stderr", "syslog", "journal"]) {
                Some(word) => format!("did you mean \"{word}\"?"),
                None => format!(
                    "expected \"off\", \"stdout\", \"stderr\", \"syslog\", \"journal\" or a path with a slash, such as \"./{other}\""
                ),
            };
            refuse(format!("{} is not a place for the access log", quote(other)), hint)
        }
    }
}

/// Parses the text after `syslog:`.
fn syslog(text: &str) -> Result<SyslogAddress, Refused> {
    let message = format!("{} is not a place for the access log", quote(text));
    let address = text.strip_prefix("syslog:").unwrap_or_default();
    if let Some(path) = address.strip_prefix("unix:") {
        let is_path = path.starts_with('/') || (path.starts_with('@') && path.len() > 1);
        if !is_path || path.len() > PATH_BYTES || path.chars().any(char::is_control) {
            let hint =
                format!("expected a path of at most {PATH_BYTES} bytes, such as \"syslog:unix:/dev/log\"");
            return refuse(message, hint);
        }
        return Ok(SyslogAddress::Unix(path.to_owned()));
    }
    let (over, rest, usual_port) = match address.split_once(':') {
        Some(("udp", rest)) => (SyslogAddress::Udp as fn(SocketAddr) -> SyslogAddress, rest, 514),
        Some(("tcp", rest)) => (SyslogAddress::Tcp as fn(SocketAddr) -> SyslogAddress, rest, 601),
        _ => {
            let hint = "expected \"syslog:unix:/dev/log\", \"syslog:udp:10.0.0.1:514\" or \"syslog:tcp:10.0.0.1:601\"";
            return refuse(message, hint);
        }
    };
    let hint = match (rest.parse::<SocketAddr>(), rest.parse::<IpAddr>()) {
        (Ok(address), _) if address.port() != 0 => return Ok(over(address)),
        (_, Ok(ip)) => format!("say the port: \"syslog:{}\"", over(SocketAddr::new(ip, usual_port))),
        _ => "expected an IP address and a port: names are not looked up for it".to_owned(),
    };
    refuse(message, hint)
}

/// RFC 5424 section 6.2.5.
fn app_name(text: &str) -> Result<String, Refused> {
    let is_good = |c: char| c.is_ascii_graphic() && !matches!(c, ':' | '[' | ']');
    if text.is_empty() || text.len() > 48 || !text.chars().all(is_good) {
        return refuse(
            format!("{} is not a name for syslog", quote(text)),
            "expected 1 to 48 printable ASCII characters without blanks, `:`, `[` and `]`",
        );
    }
    Ok(text.to_owned())
}
