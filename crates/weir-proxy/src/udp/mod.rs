//! Relays datagrams by flow: what one client address sends to one of our addresses goes to one backend, and
//! answers go back.
//!
//! One task per listening socket receives from clients; one small task per flow receives from its backend.
//! Both move up to 32 datagrams per system call. `SO_REUSEPORT` spreads clients over workers by a hash of the
//! addresses, so all datagrams of a client reach the same worker and flows are never shared.

mod flow;
mod leg;
mod named;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::task::{Poll, Waker, ready};
use std::time::Duration;

use tokio::io::Interest;
use tokio::net::UdpSocket;
use weir_stats::table::{End, Rejected};

use crate::admission;
use crate::listener_socket::{Closing, ListenerSocket};
use crate::worker::{SessionCount, Worker};
use flow::Flow;
use named::Named;
use weir_io::clock;
use weir_io::system::datagrams::{self, BATCH, Inbox};

/// Full batches read from one socket before other tasks get their turn.
const BATCHES_PER_TURN: u32 = 4;

/// Room for new flows is made at most once in this time, because flows that are asked to end take a moment.
const ROOM_PAUSE: Duration = Duration::from_millis(20);

/// Identifies a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    /// The address that sends its datagrams and receives the answers.
    peer: SocketAddr,
    /// The address of ours that the peer sends to, if the socket has several.
    own: Option<IpAddr>,
    /// The client: the peer, or whoever a PROXY header from the peer names.
    client: SocketAddr,
}

impl Key {
    fn of_peer(peer: SocketAddr, own: Option<IpAddr>) -> Key {
        Key { peer, own, client: peer }
    }
}

/// The state that a listening socket's task shares with its flows.
struct Relay {
    worker: Rc<Worker>,
    socket: Rc<ListenerSocket>,
    datagrams: UdpSocket,
    /// The address that the socket is bound to.
    bound: SocketAddr,
    /// One inbox for all: nothing else runs between receiving datagrams and sending them on.
    inbox: RefCell<Inbox>,
    flows: RefCell<HashMap<Key, Rc<Flow>, foldhash::quality::RandomState>>,
    /// The flows whose client was named by its peer.
    named: Named,
    /// When room was last made for new flows.
    made_room: Cell<Option<Duration>>,
}

/// Relays what arrives on one socket until it is closed. Flows go on until they are idle or draining is over.
pub async fn run(worker: Rc<Worker>, socket: Rc<ListenerSocket>, datagrams: UdpSocket) {
    let Some(address) = socket.endpoint.at.inet() else { return };
    if address.ip().is_unspecified()
        && let Err(error) = datagrams::tell_destinations(&datagrams, address.is_ipv6())
    {
        // Answers then leave from the address that the routing table prefers, which is right on a host with
        // one address.
        tracing::warn!(%address, %error, "udp listener can't learn which of our addresses clients use");
    }
    let bound = datagrams.local_addr().unwrap_or(address);
    let relay = Rc::new(Relay {
        worker,
        socket,
        datagrams,
        bound,
        inbox: RefCell::new(Inbox::empty()),
        flows: RefCell::default(),
        named: Named::default(),
        made_room: Cell::default(),
    });
    let closing = relay.receive_until(|waker| relay.socket.closing(waker)).await;
    if let Closing::After(linger) = closing {
        // The control side withdraws the endpoint only now: no other process receives what arrives until
        // then.
        let _ = tokio::time::timeout(linger, relay.receive_until(|_| None::<Closing>)).await;
    }
}

impl Relay {
    /// Delivers what arrives until `end` says that receiving is over and everything that had arrived is
    /// delivered.
    async fn receive_until<E>(self: &Rc<Self>, end: impl Fn(&Waker) -> Option<E>) -> E {
        loop {
            let mut full_batches = 0;
            while full_batches < BATCHES_PER_TURN {
                match self.next_batch(&end).await {
                    Err(end) => return end,
                    Ok(Ok(count)) => {
                        self.deliver();
                        full_batches += u32::from(count == BATCH);
                    }
                    Ok(Err(error)) => {
                        let at = &self.socket.endpoint;
                        tracing::debug!(%at, %error, "udp receive");
                    }
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Waits for datagrams; `Err` with what `end` gives if it ends the wait while none has arrived.
    async fn next_batch<E>(&self, end: &impl Fn(&Waker) -> Option<E>) -> Result<io::Result<usize>, E> {
        poll_fn(|context| match poll_batch(&self.datagrams, &mut self.inbox.borrow_mut(), context) {
            Poll::Ready(result) => Poll::Ready(Ok(result)),
            Poll::Pending => end(context.waker()).map_or(Poll::Pending, |end| Poll::Ready(Err(end))),
        })
        .await
    }

    /// Hands the inbox's datagrams to their flows; consecutive datagrams of one flow go together.
    fn deliver(self: &Rc<Self>) {
        let inbox = self.inbox.borrow();
        let key_of = |index: usize| {
            let datagram = inbox.datagram(index);
            datagram.source.map(|source| (source, datagram.destination))
        };
        let mut group: [&[u8]; BATCH] = [&[]; BATCH];
        let mut start = 0;
        while start < inbox.count() {
            let from = key_of(start);
            let mut count = 0;
            while start + count < inbox.count() && (count == 0 || key_of(start + count) == from) {
                group[count] = inbox.datagram(start + count).bytes;
                count += 1;
            }
            start += count;
            let Some((peer, own)) = from else { continue };
            let listener = self.socket.slot().current();
            if listener.shared.expects_proxy_header(peer.ip()) {
                self.deliver_named(&listener, (peer, own), &group[..count]);
            } else {
                self.deliver_to(Key::of_peer(peer, own), None, &group[..count]);
            }
        }
    }

    /// The address that a flow's client sends to.
    fn destination(&self, key: Key) -> SocketAddr {
        SocketAddr::new(key.own.unwrap_or(self.bound.ip()), self.bound.port())
    }

    /// `asked` is the address that a PROXY header says the client sent to.
    fn deliver_to(self: &Rc<Self>, key: Key, asked: Option<SocketAddr>, datagrams: &[&[u8]]) {
        let known = self.flows.borrow().get(&key).cloned();
        match known {
            Some(flow) => flow.forward(self, datagrams),
            None => {
                if let Err(Some(reason)) = self.open_flow(key, asked, datagrams) {
                    self.count_rejected(reason);
                }
            }
        }
    }

    fn count_rejected(&self, reason: Rejected) {
        let listener = self.socket.slot().current();
        listener.shared.cells.of(self.worker.number).count_rejected(reason);
    }

    /// Descriptors have run out: ends the flows of this listener that have been idle longest.
    fn make_room(&self, listener: usize, now: Duration) {
        if self.made_room.get().is_none_or(|last| last + ROOM_PAUSE <= now) {
            self.made_room.set(Some(now));
            let worker = self.worker.clone();
            // Runs after the tasks of flows that have just begun. Those can be ended only once they have run;
            // before that, the one flow that has been answered would have to end.
            tokio::task::spawn_local(async move {
                worker.make_room_at(listener);
            });
        }
    }

    fn open_flow(
        self: &Rc<Self>,
        key: Key,
        asked: Option<SocketAddr>,
        datagrams: &[&[u8]],
    ) -> Result<(), Option<Rejected>> {
        let slot = self.socket.slot();
        let listener = slot.current();
        admission::admit(&self.worker, &listener, key.client.ip()).map_err(End::rejected)?;
        if !listener.shared.admit() {
            return Err(Some(Rejected::FlowLimit));
        }
        let Ok(counted) = listener.shared.count_client(key.client.ip()) else {
            listener.shared.leave();
            return Err(Some(Rejected::ClientConnections));
        };
        // From here on, dropping the count gives it back.
        let count = SessionCount::enter(&self.worker, &listener.shared);
        let now = clock::now();
        let opened = match Flow::open(self, slot, key, asked, now) {
            // The last descriptors are reserved for connections and for backends.
            Ok(flow) if flow.descriptor() >= self.worker.accept_ceiling => Err(Rejected::Descriptors),
            opened => opened,
        };
        if let Err(Rejected::Descriptors) = opened {
            self.make_room(listener.shared.number(), now);
        }
        let flow = Rc::new(opened?);
        self.flows.borrow_mut().insert(key, flow.clone());
        flow.forward(self, datagrams);
        let relay = self.clone();
        tokio::task::spawn_local(async move {
            let _held = (count, counted);
            // Removed on a panic too, or the client's datagrams would go to a flow that nobody serves.
            let _listed = Listed { relay: &relay, key, flow: &flow };
            flow.serve(&relay).await;
        });
        Ok(())
    }
}

/// A flow's entry in the table, removed when dropped.
struct Listed<'a> {
    relay: &'a Relay,
    key: Key,
    flow: &'a Flow,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.relay.flows.borrow_mut().remove(&self.key);
        self.relay.named.end_flow(&self.key, self.flow.last_active());
    }
}

/// Receives a batch if the socket has one.
fn poll_batch(
    socket: &UdpSocket,
    inbox: &mut Inbox,
    context: &mut std::task::Context<'_>,
) -> Poll<io::Result<usize>> {
    loop {
        ready!(socket.poll_recv_ready(context))?;
        let mut received = None;
        let result = socket.try_io(Interest::READABLE, || match inbox.receive(socket) {
            // A batch that is not full has emptied the socket. Telling tokio so saves the system call that
            // would only find that out.
            Ok(count) if count < BATCH => {
                received = Some(count);
                Err(io::ErrorKind::WouldBlock.into())
            }
            other => other,
        });
        match (received, result) {
            (Some(count), _) | (None, Ok(count)) => return Poll::Ready(Ok(count)),
            (None, Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            (None, Err(error)) => return Poll::Ready(Err(error)),
        }
    }
}
