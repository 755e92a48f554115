//! Sends lines to a daemon, as datagrams or over a connection.
//!
//! A daemon that is away or accepts nothing delays only its own lines: the batch is tried again, the queue
//! behind it fills, and workers drop lines when it is full.
//!
//! What was written to a connection is kept until the daemon's host has acknowledged it, and sent again on
//! the next connection if it has not. What was acknowledged but not read before the daemon ended is lost.
//! Weir can't detect that: RFC 6587 has no responses.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};
use std::time::{Duration, Instant};

use weir_config::{Syslog, SyslogAddress};
use weir_io::system::tcp::acknowledged;
use weir_io::system::unsent_bytes;

use super::target::{Written, wait_writable};

/// The socket of systemd's journal (systemd, "Native Journal Protocol").
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Time limit for connecting.
const CONNECT: Duration = Duration::from_secs(1);
/// How long a daemon's host may acknowledge nothing. TCP itself goes on for a quarter of an hour, although a
/// new connection may find its way: a firewall has forgotten this one, or another host has the address.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);
/// Somewhat less than the largest UDP datagram, bytes: a line that was too long is cut to at most this.
const LARGEST_DATAGRAM: usize = 60_000;
/// If a line cut to this many bytes still does not fit, it is given up.
const SMALLEST_CUT: usize = 400;
/// Size of the kernel's send buffer for lines that a daemon has not read, in bytes, and so the most that is
/// kept of them. The kernel doubles it for its own bookkeeping (socket(7)).
const SEND_BUFFER: usize = 256 << 10;
/// Reads of what a daemon says before a batch is written to it (count).
const READS: usize = 16;

/// A daemon's socket.
pub struct Socket {
    to: SyslogAddress,
    link: Option<Link>,
    /// The bytes before each line in a datagram, and after it.
    around: (Vec<u8>, &'static [u8]),
    /// A buffer for datagrams that are assembled.
    room: Vec<u8>,
    /// On a connection: the lines that were not acknowledged yet and the batch that is being sent, each
    /// preceded by its length.
    framed: Vec<u8>,
    /// Bytes of `framed` that were written.
    done: usize,
    /// Whether `framed` already includes the batch, which is then being tried again.
    is_begun: bool,
    /// Since when the daemon's host has been seen to owe an acknowledgement, at each look.
    awaited: Option<Instant>,
}

enum Link {
    Unix(UnixDatagram),
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Socket {
    /// To a syslog daemon. Lines already have their header.
    pub fn syslog(address: &SyslogAddress) -> Socket {
        Socket {
            to: address.clone(),
            link: None,
            around: (Vec::new(), b""),
            room: Vec::new(),
            framed: Vec::new(),
            done: 0,
            is_begun: false,
            awaited: None,
        }
    }

    /// To the journal: a line becomes an entry's message.
    pub fn journal(syslog: &Syslog) -> Socket {
        let before = format!(
            "PRIORITY={}\nSYSLOG_FACILITY={}\nSYSLOG_IDENTIFIER={}\nMESSAGE=",
            syslog.severity as u16, syslog.facility as u16, syslog.app_name
        );
        let around = (before.into_bytes(), &b"\n"[..]);
        Socket { around, ..Socket::syslog(&SyslogAddress::Unix(JOURNAL.to_owned())) }
    }

    /// Sends a batch of lines. If the result is `is_later`, the rest must be passed again unchanged.
    pub fn send(&mut self, batch: &[u8]) -> Written {
        let sent = match self.to {
            SyslogAddress::Tcp(_) => self.send_framed(batch),
            SyslogAddress::Unix(_) | SyslogAddress::Udp(_) => self.send_datagrams(batch),
        };
        // On a connection, a frame may be half sent to a daemon that takes no more for now, so the connection
        // is kept. That can't happen with a datagram, and another daemon may listen in place of one that
        // hangs.
        let is_slow = sent.error.as_ref().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut);
        if sent.is_later && !(is_slow && matches!(self.to, SyslogAddress::Tcp(_))) {
            self.hang_up();
        }
        sent
    }

    /// Makes the next batch go to whoever listens then.
    pub fn reconnect(&mut self) {
        // When a connection is closed in the normal way, the kernel still delivers what it has accepted.
        if !self.is_begun {
            (self.link, self.awaited, self.done) = (None, None, 0);
            self.framed.clear();
        }
    }

    /// Ends the connection. What its peer has not acknowledged will be sent again, beginning at the start of
    /// a line.
    fn hang_up(&mut self) {
        self.forget_acknowledged();
        (self.link, self.awaited) = (None, None);
        self.done = 0;
    }

    /// Whether the daemon's host does not acknowledge what was sent to it. A daemon that reads nothing does
    /// not count: its host acknowledges, and then has no room, so that nothing is sent.
    fn is_unreachable(&mut self) -> bool {
        let Some(Link::Tcp(stream)) = &self.link else { return false };
        let seen = acknowledged(stream).filter(|seen| seen.is_awaited);
        self.awaited = seen.map(|_| self.awaited.unwrap_or_else(Instant::now));
        // The last acknowledgement of a connection that was idle is old when something is sent.
        let is_overdue = self.awaited.is_some_and(|since| since.elapsed() >= UNACKNOWLEDGED);
        is_overdue && seen.is_some_and(|seen| seen.last >= UNACKNOWLEDGED)
    }

    fn forget_acknowledged(&mut self) {
        // The kernel also tells this after a reset.
        let Some(Link::Tcp(stream)) = &self.link else { return };
        let unsent = usize::try_from(unsent_bytes(stream)).unwrap_or(usize::MAX);
        let end = frame_start(&self.framed, self.done.saturating_sub(unsent));
        self.framed.drain(..end);
        self.done -= end;
    }

    fn send_datagrams(&mut self, batch: &[u8]) -> Written {
        let mut written = Written::default();
        for line in batch.split_inclusive(|&byte| byte == b'\n') {
            match self.send_fitting(line.strip_suffix(b"\n").unwrap_or(line)) {
                Ok(is_whole) => written.cut += u64::from(!is_whole),
                // It is too large, and will be again.
                Err(error) if is_too_large(&error) => {
                    written.lost += 1;
                    written.error = Some(error);
                }
                Err(error) => {
                    (written.is_later, written.error) = (true, Some(error));
                    return written;
                }
            }
            written.taken += line.len();
        }
        written
    }

    /// Sends a line, or as much of it as fits into a datagram; gives whether it was the whole line.
    fn send_fitting(&mut self, line: &[u8]) -> io::Result<bool> {
        let mut sent = self.send_datagram(line);
        let mut most = LARGEST_DATAGRAM.min(line.len() / 2);
        // Only the kernel knows how much a Unix socket takes.
        while most >= SMALLEST_CUT && sent.as_ref().is_err_and(is_too_large) {
            sent = self.send_datagram(&cut(line, most));
            if sent.is_ok() {
                return Ok(false);
            }
            most /= 2;
        }
        sent.map(|()| true)
    }

    fn send_datagram(&mut self, line: &[u8]) -> io::Result<()> {
        let (before, after) = &self.around;
        let message = match before.is_empty() {
            true => line,
            false => {
                self.room.clear();
                self.room.extend_from_slice(before);
                self.room.extend_from_slice(line);
                self.room.extend_from_slice(after);
                &self.room
            }
        };
        if self.link.is_none() {
            self.link = Some(connect(&self.to)?);
        }
        let mut is_second = false;
        loop {
            let sent = match &self.link {
                Some(Link::Unix(socket)) => socket.send(message),
                Some(Link::Udp(socket)) => socket.send(message),
                Some(Link::Tcp(_)) | None => return Ok(()),
            };
            match (sent, &self.link) {
                (Ok(_), _) => return Ok(()),
                (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => {}
                (Err(error), Some(Link::Unix(socket))) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_writable(socket)?;
                }
                (Err(error), Some(Link::Udp(socket))) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_writable(socket)?;
                }
                // This error is about an earlier datagram, which is lost: it says nothing about this one.
                (Err(error), Some(Link::Udp(_)))
                    if error.kind() == io::ErrorKind::ConnectionRefused && !is_second =>
                {
                    is_second = true;
                }
                (Err(error), _) => return Err(error),
            }
        }
    }

    fn send_framed(&mut self, batch: &[u8]) -> Written {
        if self.link.as_ref().is_some_and(Link::was_closed) || self.is_unreachable() {
            self.hang_up();
        }
        if !self.is_begun {
            self.forget_acknowledged();
            frame(batch, &mut self.framed);
            self.is_begun = true;
        }
        match self.write_framed() {
            Ok(()) => {
                self.is_begun = false;
                Written::default()
            }
            Err(error) => Written { is_later: true, error: Some(error), ..Written::default() },
        }
    }

    fn write_framed(&mut self) -> io::Result<()> {
        if self.link.is_none() {
            self.link = Some(connect(&self.to)?);
        }
        while self.done < self.framed.len() {
            let Some(Link::Tcp(stream)) = &mut self.link else { return Ok(()) };
            match stream.write(&self.framed[self.done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait_writable(&*stream)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Link {
    /// Whether the daemon has closed the connection: what is written to it now would be lost without notice
    /// (RFC 6587 section 3.1). Anything that the daemon sends is read and discarded, because syslog does not
    /// use it.
    fn was_closed(&self) -> bool {
        let Link::Tcp(stream) = self else { return false };
        // Bounded, because a daemon that never stops sending would keep the writer from writing.
        for _ in 0..READS {
            match (&*stream).read(&mut [0; 256]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() != io::ErrorKind::WouldBlock,
            }
        }
        false
    }
}

fn connect(to: &SyslogAddress) -> io::Result<Link> {
    Ok(match to {
        SyslogAddress::Unix(path) => {
            let socket = UnixDatagram::unbound()?;
            match path.strip_prefix('@') {
                Some(name) => socket.connect_addr(&UnixAddr::from_abstract_name(name)?)?,
                None => socket.connect(path)?,
            }
            socket.set_nonblocking(true)?;
            Link::Unix(socket)
        }
        SyslogAddress::Udp(address) => {
            let any = match address {
                SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            };
            let socket = UdpSocket::bind(any)?;
            socket.connect(address)?;
            socket.set_nonblocking(true)?;
            Link::Udp(socket)
        }
        SyslogAddress::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, CONNECT)?;
            socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
            stream.set_nonblocking(true)?;
            Link::Tcp(stream)
        }
    })
}

fn is_too_large(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::MSGSIZE)
}

/// Cuts a line to at most `most` bytes. If it ends with a JSON object it still does: the object's last fields
/// are left out. Other lines just end where they are cut.
fn cut(line: &[u8], most: usize) -> Vec<u8> {
    let object = line.iter().position(|byte| *byte == b'{').filter(|_| line.ends_with(b"}"));
    let comma = object.and_then(|start| last_comma(line, start, most.saturating_sub(1)));
    if let Some(end) = comma {
        return [&line[..end], b"}"].concat();
    }
    let mut end = most.min(line.len());
    while end > 0 && line.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    line[..end].to_vec()
}

/// The last comma, up to `most`, between two fields of the object that begins at `start`.
fn last_comma(line: &[u8], start: usize, most: usize) -> Option<usize> {
    let (mut depth, mut is_text, mut is_escaped, mut last) = (0, false, false, None);
    for (at, byte) in line.iter().enumerate().take(most + 1).skip(start) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_text => is_escaped = true,
            b'"' => is_text = !is_text,
            _ if is_text => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b',' if depth == 1 => last = Some(at),
            _ => {}
        }
    }
    last
}

/// Appends each line after its length and a space (RFC 6587 section 3.4.1).
fn frame(batch: &[u8], out: &mut Vec<u8>) {
    for line in batch.split_inclusive(|&byte| byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        super::render::number(out, line.len() as u64);
        out.push(b' ');
        out.extend_from_slice(line);
    }
}

/// Where the frame begins that byte `done` belongs to.
fn frame_start(framed: &[u8], done: usize) -> usize {
    let mut start = 0;
    loop {
        let rest = framed.get(start..).unwrap_or_default();
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit());
        let (count, length) =
            digits.fold((0, 0), |(count, length), byte| (count + 1, length * 10 + usize::from(byte - b'0')));
        let end = start + count + 1 + length;
        if count == 0 || end > done {
            return start;
        }
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn each_line_stands_behind_its_length_and_a_frame_that_was_cut_off_begins_again() {
        let mut framed = Vec::new();
        frame(b"<1>one\n<1>three\n\n", &mut framed);
        assert_eq!(framed, b"6 <1>one8 <1>three0 ");
        for (done, start) in [(0, 0), (3, 0), (7, 0), (8, 8), (12, 8), (17, 8), (18, 18), (20, 20)] {
            assert_eq!(frame_start(&framed, done), start, "{done}");
        }
    }

    #[test]
    fn a_daemon_that_is_away_holds_its_lines_and_gets_them_when_it_is_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut socket = Socket::syslog(&SyslogAddress::Tcp(address));
        assert!(!socket.send(b"one\n").is_later);
        let (mut first, _) = listener.accept().unwrap();
        drop(listener);
        let mut got = [0; 5];
        first.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"3 one");
        drop(first);
        // The end of the connection is noticed before anything is written.
        let away = socket.send(b"two\nthree\n");
        assert!(away.is_later && away.error.is_some() && away.lost == 0, "{away:?}");
        let listener = TcpListener::bind(address).unwrap();
        assert!(!socket.send(b"two\nthree\n").is_later);
        let (mut second, _) = listener.accept().unwrap();
        drop(socket);
        let mut got = String::new();
        second.read_to_string(&mut got).unwrap();
        assert_eq!(got, "3 two5 three");
    }

    #[test]
    fn lines_go_to_the_daemon_that_has_taken_the_place_of_one_that_hangs() {
        let place = std::env::temp_dir().join(format!("weir-hung-{}", std::process::id()));
        let _ = std::fs::remove_file(&place);
        let hung = UnixDatagram::bind(&place).unwrap();
        let mut socket = Socket::syslog(&SyslogAddress::Unix(place.display().to_string()));
        let line = [b'x'; 1000];
        let batch = [&line[..], b"\n"].concat();
        while !socket.send(&batch).is_later {}
        std::fs::remove_file(&place).unwrap();
        let next = UnixDatagram::bind(&place).unwrap();
        assert!(!socket.send(&batch).is_later);
        next.set_nonblocking(true).unwrap();
        assert_eq!(next.recv(&mut [0; 2000]).unwrap(), line.len());
        std::fs::remove_file(&place).unwrap();
        drop(hung);
    }

    #[test]
    fn a_daemon_that_talks_without_end_is_written_to() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::syslog(&SyslogAddress::Tcp(listener.local_addr().unwrap()));
        assert!(!socket.send(b"one\n").is_later);
        let (mut daemon, _) = listener.accept().unwrap();
        let mut talk = daemon.try_clone().unwrap();
        let talking = std::thread::spawn(move || while talk.write_all(&[b'x'; 1 << 16]).is_ok() {});
        for _ in 0..100 {
            assert!(!socket.send(b"two\n").is_later);
        }
        let mut got = vec![0; 5 * 101];
        daemon.read_exact(&mut got).unwrap();
        assert_eq!(&got[500..], b"3 two");
        drop(socket);
        talking.join().unwrap();
    }

    #[test]
    fn a_line_that_is_too_large_for_a_datagram_is_cut_and_those_around_it_are_not() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut socket = Socket::syslog(&SyslogAddress::Udp(receiver.local_addr().unwrap()));
        let batch = [b"before\n".to_vec(), vec![b'x'; 70_000], b"\nafter\n".to_vec()].concat();
        let sent = socket.send(&batch);
        assert!(sent.lost == 0 && sent.cut == 1 && !sent.is_later, "{sent:?}");
        let mut got = vec![0; 1 << 16];
        assert_eq!(receiver.recv(&mut got).map(|count| got[..count].to_vec()).unwrap(), b"before");
        let count = receiver.recv(&mut got).unwrap();
        assert!(count > 10_000 && got[..count].iter().all(|byte| *byte == b'x'), "{count}");
        assert_eq!(receiver.recv(&mut got).map(|count| got[..count].to_vec()).unwrap(), b"after");
    }

    #[test]
    fn a_line_that_is_cut_loses_whole_fields_and_stays_json() {
        let line = br#"<1>1 head {"a":"x,}\"{,","b":[1,{"c":2}],"d":"y"}"#;
        for (most, expected) in [
            (line.len() - 1, r#"<1>1 head {"a":"x,}\"{,","b":[1,{"c":2}]}"#),
            (34, r#"<1>1 head {"a":"x,}\"{,"}"#),
            (12, r#"<1>1 head {""#),
        ] {
            assert_eq!(String::from_utf8_lossy(&cut(line, most)), expected, "{most}");
        }
        assert_eq!(cut("aé".as_bytes(), 2), b"a");
        let name = format!("@weir-cut-{}", std::process::id());
        let receiver = UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(&name[1..]).unwrap()).unwrap();
        let mut socket = Socket::syslog(&SyslogAddress::Unix(name));
        let long = format!("<1>h {{\"a\":1,\"b\":\"{}\"}}\n", "x".repeat(1 << 20));
        let sent = socket.send(long.as_bytes());
        assert!(sent.lost == 0 && sent.cut == 1, "{sent:?}");
        let mut got = vec![0; 1 << 20];
        let count = receiver.recv(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got[..count]), "<1>h {\"a\":1}");
    }

    #[test]
    fn an_entry_of_the_journal_names_its_fields() {
        let name = format!("@weir-journal-{}", std::process::id());
        let receiver = UnixDatagram::bind_addr(&UnixAddr::from_abstract_name(&name[1..]).unwrap()).unwrap();
        let mut socket = Socket::journal(&Syslog::default());
        socket.to = SyslogAddress::Unix(name);
        assert!(!socket.send(b"{\"status\":200}\n").is_later);
        let mut got = [0; 256];
        let count = receiver.recv(&mut got).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&got[..count]),
            "PRIORITY=6\nSYSLOG_FACILITY=16\nSYSLOG_IDENTIFIER=weir\nMESSAGE={\"status\":200}\n"
        );
    }
}
