//! The address of a backend or of a listener: an IP address and port, or a Unix domain socket.
//!
//! A Unix stream socket is held as a tokio `TcpStream`, here and in all layers above. What is done with it
//! (receive, send, splice, peek, shut down, wait for readiness) works for both kinds. The few calls that only
//! TCP has (`TCP_NODELAY`, addresses) fail on it, and their callers accept that. So nothing on the data path
//! asks which kind it has.

use std::fmt;
use std::io;
use std::net::{AddrParseError, SocketAddr};
use std::os::fd::OwnedFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tokio::net::TcpStream;

/// Wait before connecting again to a Unix socket whose queue is full. TCP would repeat its SYN; here the
/// kernel fails at once (connect(2), EAGAIN), and there is no notification when there is room.
const FULL_PAUSE: Duration = Duration::from_millis(5);

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum At {
    /// An address and a port.
    Inet(SocketAddr),
    /// A Unix domain socket.
    Unix(UnixName),
}

/// The name of a Unix domain socket (unix(7)): a path, or, with `@` in front, a name in the abstract
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixName(Arc<str>);

impl At {
    /// Connects. If the queue of a Unix socket is full, tries again until the caller gives up.
    ///
    /// # Errors
    /// Those of connect(2): say, nobody listens, the path does not exist, or permission is denied.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        match self {
            At::Inet(address) => TcpStream::connect(*address).await,
            At::Unix(name) => name.connect().await,
        }
    }

    /// The address and port; `None` for a Unix socket.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            At::Inet(address) => Some(*address),
            At::Unix(_) => None,
        }
    }
}

/// Parses the config's notation: `unix:` and a name, or an address and a port.
impl FromStr for At {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<At, AddrParseError> {
        match text.strip_prefix("unix:") {
            Some(name) => Ok(At::Unix(UnixName::new(name))),
            None => text.parse().map(At::Inet),
        }
    }
}

impl From<SocketAddr> for At {
    fn from(address: SocketAddr) -> At {
        At::Inet(address)
    }
}

/// The config's notation.
impl fmt::Display for At {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Inet(address) => write!(out, "{address}"),
            At::Unix(name) => write!(out, "{name}"),
        }
    }
}

impl UnixName {
    /// From what stands behind `unix:` in a config.
    pub fn new(text: &str) -> UnixName {
        UnixName(text.into())
    }

    /// The path; `None` for a name in the abstract namespace, which has no file.
    pub fn path(&self) -> Option<&str> {
        (!self.0.starts_with('@')).then_some(&self.0)
    }

    /// The address for the kernel.
    ///
    /// # Errors
    /// The name is longer than 107 bytes; the config check rules that out.
    pub fn address(&self) -> io::Result<SocketAddrUnix> {
        Ok(match self.0.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
            None => SocketAddrUnix::new(&*self.0)?,
        })
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let address = self.address()?;
        loop {
            match connect_now(&address) {
                Err(rustix::io::Errno::AGAIN) => tokio::time::sleep(FULL_PAUSE).await,
                socket => return TcpStream::from_std(socket?.into()),
            }
        }
    }
}

impl fmt::Display for UnixName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "unix:{}", self.0)
    }
}

/// Connecting a Unix stream socket succeeds or fails at once.
fn connect_now(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::UnixListener;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn listen_abstract(name: &str) -> (UnixListener, At) {
        let name = format!("weir-{}-{name}", std::process::id());
        let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
        let at = At::Unix(UnixName::new(&format!("@{name}")));
        (UnixListener::bind_addr(&address).unwrap(), at)
    }

    #[tokio::test]
    async fn bytes_go_both_ways_through_a_socket_of_the_unix_domain() {
        let (listener, at) = listen_abstract("both-ways");
        let mut ours = at.connect().await.unwrap();
        let (theirs, _) = listener.accept().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut theirs = tokio::net::UnixStream::from_std(theirs).unwrap();
        ours.write_all(b"ping").await.unwrap();
        ours.shutdown().await.unwrap();
        let mut heard = String::new();
        theirs.read_to_string(&mut heard).await.unwrap();
        theirs.write_all(b"pong").await.unwrap();
        drop(theirs);
        let mut answer = String::new();
        ours.read_to_string(&mut answer).await.unwrap();
        assert_eq!((heard.as_str(), answer.as_str()), ("ping", "pong"));
    }

    #[tokio::test]
    async fn who_finds_the_queue_full_waits_for_room() {
        let name = format!("@weir-{}-full", std::process::id());
        let address = UnixName::new(&name).address().unwrap();
        let listener = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let at = At::Unix(UnixName::new(&name));
        let first = at.connect().await.unwrap();
        assert_eq!(connect_now(&address).err(), Some(rustix::io::Errno::AGAIN));
        let waits = tokio::spawn(async move { at.connect().await });
        tokio::task::yield_now().await;
        rustix::net::accept(&listener).unwrap();
        waits.await.unwrap().unwrap();
        drop(first);
    }

    #[test]
    fn names_are_shown_as_they_are_written() {
        for (text, path) in [("/run/app.sock", Some("/run/app.sock")), ("@app", None)] {
            let name = UnixName::new(text);
            assert_eq!((name.to_string(), name.path()), (format!("unix:{text}"), path));
        }
    }
}
