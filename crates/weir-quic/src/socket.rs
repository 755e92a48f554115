//! A UDP socket for QUIC: many datagrams per call in both directions, with ECN marks and our own address.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU32;
use std::task::{Context, Poll, ready};

use quinn_proto::{EcnCodepoint, Transmit};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use weir_io::system::datagrams::{self, BATCH, Inbox, Outgoing, Route};

/// Sends collected before they are made in one call.
const SENDS: usize = 8;
/// Most datagrams in one send. With the largest packets for a path MTU of 1,500 bytes they stay below the 64
/// KiB limit of one call.
const SEGMENTS: usize = 40;
/// Capacity of a send buffer that is kept for reuse; larger ones are freed.
const KEPT_BYTES: usize = 16 << 10;

/// Where a socket receives: two sockets on one address may be bound to two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundAt {
    /// The address that the socket is bound to.
    pub address: SocketAddr,
    /// Index of the interface that it is bound to; `None` if datagrams may arrive on any.
    pub interface: Option<NonZeroU32>,
}

impl BoundAt {
    /// Whether what arrives at one may belong to connections of the other. When a reload binds a listener to
    /// an interface, or unbinds it, a socket with an interface and one without exist for the same address for
    /// a while, and the kernel may choose either. What arrives on one interface is never for another.
    pub fn meets(self, other: BoundAt) -> bool {
        let is_any = self.interface.is_none() || other.interface.is_none();
        self.address == other.address && (is_any || self.interface == other.interface)
    }
}

impl From<SocketAddr> for BoundAt {
    fn from(address: SocketAddr) -> BoundAt {
        BoundAt { address, interface: None }
    }
}

/// One socket of one worker.
pub struct Socket {
    /// Registered for reading only: if it were registered for writing too, the kernel would notify us after
    /// every datagram sent.
    socket: AsyncFd<UdpSocket>,
    /// The same socket, registered for writing; present while the kernel accepts no more.
    blocked: RefCell<Option<AsyncFd<UdpSocket>>>,
    place: BoundAt,
    outbox: RefCell<Outbox>,
    /// Whether the kernel supports cutting what we send into datagrams; found out by trying.
    segments: Cell<bool>,
}

#[derive(Default)]
struct Outbox {
    waiting: Vec<(Transmit, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
}

/// A received datagram.
#[derive(Clone, Copy, Debug)]
pub struct Arrived<'a> {
    /// Its payload.
    pub bytes: &'a [u8],
    /// Its sender.
    pub remote: SocketAddr,
    /// Which of our addresses it was sent to, if the kernel reported that.
    pub local: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
}

impl Socket {
    /// Prepares the non-blocking `socket`, bound at `place`. Features that the kernel does not offer are not
    /// used.
    ///
    /// # Errors
    /// The runtime can't watch it.
    pub fn new(socket: UdpSocket, place: impl Into<BoundAt>) -> io::Result<Socket> {
        let place = place.into();
        let address = place.address;
        let is_ipv6 = address.is_ipv6();
        let note = |what: &str, result: io::Result<()>| {
            if let Err(error) = result {
                tracing::debug!(%address, %error, "quic socket does without {what}");
            }
        };
        if address.ip().is_unspecified() {
            note("destination addresses", datagrams::tell_destinations(&socket, is_ipv6));
        }
        note("congestion marks", datagrams::tell_congestion(&socket, is_ipv6));
        note("merged datagrams", datagrams::merge_received(&socket));
        note("path MTU discovery", datagrams::never_fragment(&socket, is_ipv6));
        Ok(Socket {
            socket: datagrams::watch(socket, Interest::READABLE)?,
            blocked: RefCell::default(),
            place,
            outbox: RefCell::default(),
            segments: Cell::new(true),
        })
    }

    /// The address it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.place.address
    }

    /// Where it receives; no other socket of the process has the same place.
    pub fn place(&self) -> BoundAt {
        self.place
    }

    /// Lets the kernel deliver each datagram to the worker named by its connection ID.
    pub fn steer(&self, program: &[libc::sock_filter]) -> io::Result<()> {
        datagrams::steer_group(self.socket.get_ref(), program)
    }

    /// Receives a batch when there is one; returns how many messages it has.
    pub fn poll_receive(&self, inbox: &mut Inbox, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(context))?;
            match inbox.receive(self.socket.get_ref()) {
                Ok(count) => {
                    // A batch that is not full has drained the socket. Telling tokio saves the call that
                    // would only find that out.
                    if count < BATCH {
                        ready.clear_ready();
                    }
                    return Poll::Ready(Ok(count));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Most datagrams in one transmit.
    pub fn segments(&self) -> usize {
        if self.segments.get() { SEGMENTS } else { 1 }
    }

    /// An empty buffer for one transmit.
    pub fn buffer(&self) -> Vec<u8> {
        self.outbox.borrow_mut().spare.pop().unwrap_or_default()
    }

    /// Returns an unused buffer.
    pub fn put_back(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        buffer.shrink_to(KEPT_BYTES);
        let spare = &mut self.outbox.borrow_mut().spare;
        if spare.len() < SENDS {
            spare.push(buffer);
        }
    }

    /// Queues a transmit.
    pub fn enqueue(&self, transmit: Transmit, bytes: Vec<u8>) {
        self.outbox.borrow_mut().waiting.push((transmit, bytes));
    }

    /// Whether enough is queued to be sent in one call.
    pub fn is_full(&self) -> bool {
        self.outbox.borrow().waiting.len() >= SENDS
    }

    /// Sends what is queued. `Pending` when the kernel accepts no more for now; the task is woken when it
    /// does.
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.outbox.borrow().waiting.is_empty() {
                return Poll::Ready(());
            }
            match self.send_some() {
                Ok(()) => {
                    self.blocked.take();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = ready!(self.poll_room(context)) {
                        self.drop_first(&error);
                    }
                }
                Err(error) => self.drop_first(&error),
            }
        }
    }

    /// Ready when the kernel may accept more.
    fn poll_room(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let blocked = &mut *self.blocked.borrow_mut();
        let socket = match blocked {
            Some(socket) => socket,
            None => {
                let socket = self.socket.get_ref().try_clone()?;
                blocked.insert(datagrams::watch(socket, Interest::WRITABLE)?)
            }
        };
        ready!(socket.poll_write_ready(context))?.clear_ready();
        Poll::Ready(Ok(()))
    }

    /// Sends what fits into one call.
    fn send_some(&self) -> io::Result<()> {
        let outbox = &mut *self.outbox.borrow_mut();
        let count = outbox.waiting.len().min(SENDS);
        let (first, bytes) = &outbox.waiting[0];
        let sent = if count == 1 {
            datagrams::send_each(self.socket.get_ref(), &[outgoing(first, bytes)])?
        } else {
            let mut list = [outgoing(first, bytes); SENDS];
            for (place, (transmit, bytes)) in list.iter_mut().zip(&outbox.waiting) {
                *place = outgoing(transmit, bytes);
            }
            datagrams::send_each(self.socket.get_ref(), &list[..count])?
        };
        for (_, mut bytes) in outbox.waiting.drain(..sent) {
            bytes.clear();
            bytes.shrink_to(KEPT_BYTES);
            if outbox.spare.len() < SENDS {
                outbox.spare.push(bytes);
            }
        }
        Ok(())
    }

    /// Drops the first queued transmit, which the kernel refused. It is treated as lost: QUIC retransmits
    /// what matters.
    fn drop_first(&self, error: &io::Error) {
        let outbox = &mut *self.outbox.borrow_mut();
        let (transmit, bytes) = outbox.waiting.remove(0);
        let refuses_segments = matches!(error.raw_os_error(), Some(libc::EIO | libc::EINVAL));
        if let Some(size) = transmit.segment_size
            && refuses_segments
            && self.segments.replace(false)
        {
            tracing::debug!(address = %self.address(), %error, "quic socket sends datagrams one by one");
            for (index, part) in bytes.chunks(size).enumerate() {
                let single = Transmit { size: part.len(), segment_size: None, ..copy(&transmit) };
                outbox.waiting.insert(index, (single, part.to_vec()));
            }
            return;
        }
        // This is how a probe for a larger path MTU that does not fit is meant to end.
        tracing::trace!(address = %self.address(), to = %transmit.destination, %error, "quic send");
    }
}

fn copy(transmit: &Transmit) -> Transmit {
    Transmit {
        destination: transmit.destination,
        ecn: transmit.ecn,
        size: transmit.size,
        segment_size: transmit.segment_size,
        src_ip: transmit.src_ip,
    }
}

fn outgoing<'a>(transmit: &Transmit, bytes: &'a [u8]) -> Outgoing<'a> {
    // A single segment is an ordinary datagram; the kernel rejects a segment size that is not below the
    // length.
    let segment = transmit.segment_size.filter(|&size| size < transmit.size);
    Outgoing {
        bytes: &bytes[..transmit.size],
        route: Route { to: transmit.destination, from: transmit.src_ip },
        ecn: transmit.ecn.map_or(0, |ecn: EcnCodepoint| ecn as u8),
        segment_bytes: segment.and_then(|size| u16::try_from(size).ok()),
    }
}

/// Calls `take` for every datagram in `inbox`; those that the kernel merged are split again.
pub fn each_datagram(inbox: &Inbox, mut take: impl FnMut(Arrived<'_>)) {
    for index in 0..inbox.count() {
        let message = inbox.datagram(index);
        let Some(remote) = message.source else { continue };
        let length = message.segment_bytes.unwrap_or(message.bytes.len()).max(1);
        for bytes in message.bytes.chunks(length) {
            take(Arrived { bytes, remote, local: message.destination, ecn: message.ecn });
        }
    }
}
