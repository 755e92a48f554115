//! USR2: another process takes over the listening sockets, while this one continues to serve until the other
//! reports that it is ready.
//!
//! The sockets are sent as SCM_RIGHTS messages (unix(7)) over a socket pair that is the new process's
//! standard input. That needs no unsafe code on either side, no path in the file system, and no descriptor
//! numbers in the environment. The sockets stay open in both processes all the time, so no connection in an
//! accept queue is lost.
//!
//! Each message consists of lines of text, one per descriptor it carries: `tcp 127.0.0.1:80`, `udp …` or
//! `admin …`, and for a socket bound to an interface `tcp-of eth0 127.0.0.1:80`. The lock of the kernel plane
//! is sent in the same way. Messages without descriptors follow: the files of the Unix sockets (`socket-file
//! 2049:1234 nobody /run/web.sock`, or `none none` if that is not known any more), and what is known about
//! the backends ([`crate::carried`]); the last one is `end`. The new process answers `ready`, or exits. Then,
//! in a message with lines as above but without descriptors, it names the sockets that it does not use, which
//! the old process should give up.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair, sockopt,
};
use weir_config::AdminBind;
use weir_io::at::UnixName;
use weir_io::unix_socket::{Listening, SocketFile};
use weir_l4::lock::DirectoryLock;
use weir_quic::forward::ForwardSocket;
use weir_quic::keys::Keys;
use weir_quic::process::HandOver;
use weir_state::sockets::{Endpoint, Sockets, Transport};

mod files;
mod purpose;
mod start;

use self::files::HandedFiles;
pub use self::purpose::Purpose;
use self::start::{Begun, computed_by};
pub use self::start::{HAND_ON, Program, hand_on};
use crate::carried::Carried;

/// Set in the new process's environment to the process number of the old one, so that a copy of the
/// environment in any other process has no effect.
pub const HANDOFF_VARIABLE: &str = "WEIR_HANDOFF";

/// How long the new process may take until it serves, or until it is found to be computing.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// How many times that long to wait for a process that is computing: on a slow or busy machine a start takes
/// long, above all because of the kernel's check of the packet program, and the old process serves meanwhile.
const MOST_WAITS: u32 = 4;

/// Descriptors in one message; the kernel takes at most 253 (SCM_MAX_FD).
const PER_MESSAGE: usize = 64;

/// Longest message: 64 lines of at most 120 bytes for sockets, or as many lines of state as fit.
const MESSAGE_BYTES: usize = 8 * 1024;

/// The first word of the line with QUIC's keys.
const QUIC_KEYS: &str = "quic-keys ";

/// Sockets and a line of state with the content of `hand_over`.
pub fn pass_quic(hand_over: HandOver) -> (Vec<Passed>, Option<String>) {
    let keys = hand_over.keys.map(|keys| format!("{QUIC_KEYS}{}\n", keys.to_text()));
    let passed = hand_over
        .sockets
        .into_iter()
        .map(|(owner, socket)| Passed::of(Purpose::QuicForward(owner), socket.into_socket()));
    (passed.collect(), keys)
}

/// A descriptor, usually a listening socket, to be handed over.
#[derive(Debug)]
pub struct Passed {
    /// Its purpose.
    pub purpose: Purpose,
    /// The socket.
    pub socket: OwnedFd,
    /// Its file, for a Unix socket.
    pub file: Option<SocketFile>,
}

impl Passed {
    /// For one without a file.
    pub fn of(purpose: Purpose, socket: OwnedFd) -> Passed {
        Passed { purpose, socket, file: None }
    }

    /// For a listening socket.
    pub fn listening(purpose: Purpose, Listening { socket, file }: Listening) -> Passed {
        Passed { purpose, socket, file }
    }
}

/// The new process's end: what it was given, and the means to report that it serves.
pub struct Handoff {
    channel: OwnedFd,
    /// What it was given.
    pub given: Given,
}

/// What an old process hands over.
#[derive(Default)]
pub struct Given {
    /// The listeners' sockets.
    pub listeners: Sockets,
    /// The admin API's socket, and what it is bound to.
    pub admin: Option<(AdminBind, Listening)>,
    /// What is needed to forward datagrams of its QUIC connections.
    pub quic: HandOver,
    /// The lock of its kernel plane.
    pub kernel: Option<DirectoryLock>,
    /// Where it listened to other Weirs.
    pub peers: Option<(SocketAddr, OwnedFd)>,
    /// What it knew about the backends.
    pub carried: Carried,
}

impl Given {
    fn know_files(&mut self, files: &HandedFiles) {
        self.listeners.know_files(|path| files.at(path));
        if let Some((AdminBind::Unix(name), listening)) = &mut self.admin {
            listening.file = UnixName::new(name).path().and_then(|path| files.at(path));
        }
    }
}

impl Handoff {
    /// What an older process hands over; `None` if this process was started in any other way.
    pub fn from_environment() -> io::Result<Option<Handoff>> {
        if std::env::var(HANDOFF_VARIABLE).ok().is_none_or(|old| !start::was_begun_by(&old)) {
            return Ok(None);
        }
        let channel = io::stdin().as_fd().try_clone_to_owned()?;
        rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
        Self::receive(channel).map(Some)
    }

    fn receive(channel: OwnedFd) -> io::Result<Handoff> {
        sockopt::set_socket_timeout(&channel, sockopt::Timeout::Recv, Some(READY_TIMEOUT))?;
        let (mut given, mut files) = (Given::default(), HandedFiles::default());
        loop {
            let (text, descriptors) = receive(&channel)?;
            if text == "end" {
                given.know_files(&files);
                return Ok(Handoff { channel, given });
            }
            if text.is_empty() {
                return Err(io::Error::other("the old process ended before it had handed over its sockets"));
            }
            if descriptors.is_empty() && !text.lines().any(|line| Purpose::of_line(line).is_some()) {
                for line in text.lines().filter(|line| !files.take(line)) {
                    match line.strip_prefix(QUIC_KEYS) {
                        Some(keys) => given.quic.keys = Keys::of_text(keys),
                        None => given.carried.take(line),
                    }
                }
                continue;
            }
            if text.lines().count() != descriptors.len() {
                return Err(io::Error::other("the old process named other sockets than it sent"));
            }
            for (line, socket) in text.lines().zip(descriptors) {
                match Purpose::of_line(line) {
                    Some(Purpose::Listener(endpoint)) => given.listeners.adopt(endpoint, socket),
                    Some(Purpose::Admin(bind)) => {
                        given.admin = Some((bind, Listening { socket, file: None }));
                    }
                    Some(Purpose::QuicForward(owner)) => {
                        given.quic.sockets.push((owner, ForwardSocket::adopt(socket)));
                    }
                    Some(Purpose::Peers(bind)) => given.peers = Some((bind, socket)),
                    Some(Purpose::KernelPlane) => given.kernel = Some(DirectoryLock::adopt(socket)),
                    // An unknown kind of socket is closed; the old process has it until it exits.
                    None => {}
                }
            }
        }
    }

    /// Tells the old process that it may stop accepting, and which of its sockets this process does not use.
    pub fn ready(self, unused: &[Endpoint]) -> io::Result<ProcessBefore> {
        rustix::net::send(&self.channel, b"ready", SendFlags::NOSIGNAL)?;
        let mut lines: String = unused
            .iter()
            .map(|endpoint| match endpoint.transport {
                // A process of an older version would withdraw the socket, and its connections could no
                // longer send.
                Transport::Quic => format!("kept {}", Purpose::Listener(endpoint.clone()).line()),
                _ => Purpose::Listener(endpoint.clone()).line(),
            })
            .collect();
        // Sockets that do not fit into the message are simply closed.
        lines.truncate(lines[..lines.len().min(MESSAGE_BYTES)].rfind('\n').map_or(0, |at| at + 1));
        // A process of an older version has closed its end after the first message.
        let _ = rustix::net::send(&self.channel, lines.as_bytes(), SendFlags::NOSIGNAL);
        Ok(ProcessBefore(self.channel))
    }
}

/// The old process, which finishes its sessions.
#[derive(Debug)]
pub struct ProcessBefore(OwnedFd);

impl ProcessBefore {
    /// Whether it still runs. For an older version that is not known, and the result is false.
    pub fn is_there(&self) -> bool {
        // It sends nothing any more, so readable means that it has ended.
        let looked = poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&Timespec::default()));
        looked.is_ok_and(|count| count == 0)
    }
}

/// A process that has taken over.
#[derive(Debug)]
pub struct Successor {
    /// Its process number.
    pub pid: u32,
    /// The sockets handed over to it that it does not use.
    pub unused: Vec<Endpoint>,
    /// Open as long as this process runs, so that the new one can tell.
    _line: OwnedFd,
}

/// Starts the new process, hands over `sockets` and what is `known` about the backends (lines), and returns
/// once it serves. Blocks up to half a minute, and up to two minutes while the new process is computing.
///
/// On `Err` the new process has ended and nothing has changed here.
pub fn hand_over(sockets: &[Passed], known: &[String], program: &Program) -> io::Result<Successor> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let begun = Begun::of(program, theirs, &ours)?;
    let pid = begun.pid;
    let patience = Patience { once: READY_TIMEOUT, times: MOST_WAITS, computed: &|| computed_by(pid) };
    match exchange(&ours, sockets, known, &patience) {
        Ok(unused) => Ok(Successor { pid, unused, _line: ours }),
        // If it has ended by itself, the reason is in its log.
        Err(error) => {
            Err(begun.end().map_or(error, |how| io::Error::other(format!("the new process {how}"))))
        }
    }
}

/// How long to wait for a new process.
struct Patience<'c> {
    /// Longest wait for one that uses almost no CPU time.
    once: Duration,
    /// Number of such waits for one that is computing.
    times: u32,
    /// CPU time that it has used, user and system.
    computed: &'c dyn Fn() -> Duration,
}

/// Returns the sockets that the new process does not use.
fn exchange(
    channel: &OwnedFd,
    sockets: &[Passed],
    known: &[String],
    patience: &Patience<'_>,
) -> io::Result<Vec<Endpoint>> {
    for timeout in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(channel, timeout, Some(patience.once))?;
    }
    for chunk in sockets.chunks(PER_MESSAGE) {
        let text: String = chunk.iter().map(|passed| passed.purpose.line()).collect();
        let descriptors: Vec<BorrowedFd<'_>> = chunk.iter().map(|passed| passed.socket.as_fd()).collect();
        send(channel, &text, &descriptors)?;
    }
    let files: Vec<String> = sockets.iter().filter_map(files::line_of).collect();
    let mut message = String::with_capacity(MESSAGE_BYTES);
    for line in files.iter().chain(known) {
        if message.len() + line.len() > MESSAGE_BYTES {
            send(channel, &message, &[])?;
            message.clear();
        }
        message.push_str(line);
    }
    if !message.is_empty() {
        send(channel, &message, &[])?;
    }
    send(channel, "end", &[])?;
    match first_word(channel, patience) {
        Ok(answer) if answer == "ready" => {
            // An older version sends nothing more.
            let unused = receive(channel).map(|(lines, _)| lines).unwrap_or_default();
            let lines = unused.lines().map(|line| line.strip_prefix("kept ").unwrap_or(line));
            let purposes = lines.filter_map(Purpose::of_line);
            Ok(purposes.filter_map(Purpose::endpoint).collect())
        }
        Ok(answer) if answer.is_empty() => {
            Err(io::Error::other("the new process ended before it was ready; its log says why"))
        }
        Ok(answer) => Err(io::Error::other(format!("the new process said {answer:?}, expected \"ready\""))),
        Err(error) => Err(error),
    }
}

/// What the new process sends once it serves; empty if it has ended.
fn first_word(channel: &OwnedFd, patience: &Patience<'_>) -> io::Result<String> {
    let mut had = Duration::ZERO;
    for wait in 1..=patience.times {
        match receive(channel) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            received => return received.map(|(answer, _)| answer),
        }
        let (waited, computed) = (patience.once * wait, (patience.computed)());
        // A tenth of one CPU: a process that hangs uses almost none.
        if wait == patience.times || computed.saturating_sub(had) < patience.once / 10 {
            return Err(io::Error::other(format!(
                "the new process was not ready within {waited:?}, in which it had {computed:.1?} of processor time"
            )));
        }
        tracing::warn!(?waited, ?computed, "the new process is not ready yet, and still computes");
        had = computed;
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn send(channel: &OwnedFd, text: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    sendmsg(channel, &[IoSlice::new(text.as_bytes())], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message; empty text when the other side has closed.
fn receive(channel: &OwnedFd) -> io::Result<(String, Vec<OwnedFd>)> {
    let mut bytes = vec![0; MESSAGE_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // A receive with a timeout is not restarted after a signal handler ran (signal(7)).
    let message = loop {
        match recvmsg(channel, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            received => break received?,
        }
    };
    let descriptors = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        })
        .flatten()
        .collect();
    bytes.truncate(message.bytes);
    let text = String::from_utf8(bytes)
        .map_err(|_| io::Error::other("the other process sent something that is no text"))?;
    Ok((text, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use weir_io::at::At;
    use weir_quic::forward::{Forwarded, MESSAGE_BYTES as MESSAGE_BYTES_QUIC};
    use weir_quic::process::Process;

    fn exchange(channel: &OwnedFd, sockets: &[Passed], known: &[String]) -> io::Result<Vec<Endpoint>> {
        let patience = Patience { once: READY_TIMEOUT, times: 1, computed: &|| Duration::ZERO };
        super::exchange(channel, sockets, known, &patience)
    }

    /// What comes of a new process that never says anything, and computes as these looks at it say.
    fn silence(looks: &[u64]) -> String {
        let (old, _new) = pair();
        let seen = std::cell::Cell::new(0);
        let computed = || Duration::from_millis(looks[seen.replace(seen.get() + 1)]);
        let patience = Patience { once: Duration::from_millis(20), times: 4, computed: &computed };
        let error = super::exchange(&old, &[], &[], &patience).unwrap_err().to_string();
        assert_eq!(seen.get(), looks.len());
        error
    }

    #[test]
    fn a_new_process_is_waited_for_as_long_as_it_computes_and_no_longer_than_four_times() {
        let hangs = silence(&[1]);
        assert!(hangs.contains("not ready within 20ms, in which it had 1.0ms of processor time"), "{hangs}");
        let stops = silence(&[15, 30, 30]);
        assert!(stops.contains("not ready within 60ms, in which it had 30.0ms"), "{stops}");
        let never_ends = silence(&[15, 30, 45, 60]);
        assert!(never_ends.contains("not ready within 80ms, in which it had 60.0ms"), "{never_ends}");
    }

    #[test]
    fn a_new_process_that_is_late_and_has_computed_is_taken() {
        let (old, new) = pair();
        let handoff = std::cell::RefCell::new(Some(new));
        // It says that it is ready only once it has been waited for in vain.
        let computed = || {
            Handoff::receive(handoff.take().expect("one look")).unwrap().ready(&[]).unwrap();
            Duration::from_millis(15)
        };
        let patience = Patience { once: Duration::from_millis(20), times: 2, computed: &computed };
        assert!(super::exchange(&old, &[], &[], &patience).unwrap().is_empty());
    }

    #[test]
    fn what_this_process_has_computed_is_known() {
        let begun = computed_by(std::process::id());
        while computed_by(std::process::id()) <= begun {}
        assert_eq!(computed_by(u32::MAX), Duration::ZERO);
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    fn passed(listener: &TcpListener, admin: bool) -> Passed {
        let address = listener.local_addr().unwrap();
        let purpose = match admin {
            true => Purpose::Admin(AdminBind::Inet(address)),
            false => Purpose::Listener(Endpoint::new(Transport::Tcp, At::Inet(address))),
        };
        Passed::of(purpose, listener.as_fd().try_clone_to_owned().unwrap())
    }

    #[test]
    fn a_connection_waiting_in_the_old_processs_queue_is_served_by_the_new_one() {
        let (old, new) = pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let admin_endpoint = Endpoint::new(Transport::Tcp, At::Inet(admin.local_addr().unwrap()));
        let sockets = [passed(&listener, false), passed(&admin, true)];
        let mut client = TcpStream::connect(address).unwrap();
        let old_process =
            std::thread::spawn(move || exchange(&old, &sockets, &[]).map(|unused| (drop(sockets), unused).1));

        let mut handoff = Handoff::receive(new).unwrap();
        let bound_to = handoff.given.admin.as_ref().and_then(|(bind, _)| bind.inet());
        assert_eq!(bound_to, Some(admin.local_addr().unwrap()));
        let adopted = std::mem::take(&mut handoff.given.listeners);
        assert_eq!(adopted.endpoints().map(|endpoint| endpoint.at).collect::<Vec<_>>(), [At::Inet(address)]);
        handoff.ready(std::slice::from_ref(&admin_endpoint)).unwrap();
        assert_eq!(old_process.join().unwrap().unwrap(), [admin_endpoint]);
        drop(listener);

        let (_, socket) = adopted.for_worker(0, 1).unwrap().remove(0);
        let (mut served, _) = TcpListener::from(socket).accept().unwrap();
        served.write_all(b"new").unwrap();
        drop(served);
        let mut heard = String::new();
        client.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "new");
    }

    #[test]
    fn quic_connections_can_be_passed_on_to_the_old_process() {
        let (old, new) = pair();
        let (process, _setups) = Process::open(HandOver::default(), 2).unwrap();
        let (hand_over, ends) = process.hand_over().unwrap();
        let (sockets, keys) = pass_quic(hand_over);
        let keys = keys.unwrap();
        let text = keys.clone();
        let old_process =
            std::thread::spawn(move || exchange(&old, &sockets, &[text]).map(|_| drop(sockets)));
        let mut handoff = Handoff::receive(new).unwrap();
        let hand_over = std::mem::take(&mut handoff.given.quic);
        handoff.ready(&[]).unwrap();
        old_process.join().unwrap().unwrap();

        let adopted = hand_over.keys.unwrap();
        assert_eq!(format!("{QUIC_KEYS}{}\n", adopted.to_text()), keys);
        let mut room = vec![0; MESSAGE_BYTES_QUIC];
        assert_eq!(hand_over.sockets.len(), 2);
        for ((owner, socket), end) in hand_over.sockets.iter().zip(&ends) {
            assert_eq!(owner.process, adopted.process().wrapping_sub(1));
            let datagram = Forwarded {
                place: "127.0.0.1:443".parse::<SocketAddr>().unwrap().into(),
                remote: "192.0.2.1:9".parse().unwrap(),
                local: None,
                ecn: 0,
                bytes: owner.worker.to_be_bytes().into(),
            };
            socket.send(&datagram).unwrap();
            assert_eq!(end.receive(&mut room).unwrap(), Some(datagram), "the end of that very worker");
        }
    }

    #[test]
    fn more_sockets_than_fit_one_message_all_arrive() {
        let (old, new) = pair();
        let listeners: Vec<TcpListener> =
            (0..150).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let sockets: Vec<Passed> = listeners.iter().map(|listener| passed(listener, false)).collect();
        let old_process = std::thread::spawn(move || exchange(&old, &sockets, &[]));
        let handoff = Handoff::receive(new).unwrap();
        assert_eq!(handoff.given.listeners.endpoints().count(), 150);
        handoff.ready(&[]).unwrap();
        old_process.join().unwrap().unwrap();
    }

    #[test]
    fn more_backends_than_fit_one_message_all_arrive() {
        let (old, new) = pair();
        let known: Vec<String> =
            (0..5000).map(|port| format!("state app 10.0.0.1:{port} drain up 0 -\n")).collect();
        let old_process = std::thread::spawn(move || exchange(&old, &[], &known));
        let handoff = Handoff::receive(new).unwrap();
        assert_eq!(handoff.given.carried.backend_count(), 5000);
        handoff.ready(&[]).unwrap();
        old_process.join().unwrap().unwrap();
    }

    #[test]
    fn a_new_process_that_ends_early_is_noticed_at_once() {
        let (old, new) = pair();
        drop(new);
        assert!(exchange(&old, &[], &[]).is_err());
        let (old, new) = pair();
        let old_process = std::thread::spawn(move || exchange(&old, &[], &[]));
        drop(Handoff::receive(new).unwrap());
        let error = old_process.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("ended before it was ready"), "{error}");
    }

    #[test]
    fn an_old_process_that_ends_early_is_noticed_at_once() {
        let (old, new) = pair();
        drop(old);
        assert!(Handoff::receive(new).is_err());
    }
}
