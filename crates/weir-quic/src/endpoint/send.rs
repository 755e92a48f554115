//! Sends datagrams for all connections, in turn.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use crate::connection::Connection;
use crate::endpoint::Driver;

/// Transmits for one connection before the next gets its turn.
const TRANSMITS_PER_TURN: usize = 4;
/// Transmits for all connections before other tasks get their turn.
const TRANSMITS_PER_ROUND: usize = 64;

impl Driver {
    /// Sends for all connections, for ever. One such task runs per worker.
    pub async fn run_sender(self: Rc<Self>) {
        poll_fn(|context| self.poll_send(context)).await
    }

    pub(super) fn poll_send(self: &Rc<Self>, context: &mut Context<'_>) -> Poll<()> {
        *self.sender.borrow_mut() = Some(context.waker().clone());
        let now = Instant::now();
        let mut sent = 0;
        let mut held = Vec::new();
        while sent < TRANSMITS_PER_ROUND {
            let Some(connection) = self.queue.borrow_mut().pop_front() else { break };
            match self.transmit(&connection, now, context) {
                Sent::All(count) => sent += count,
                Sent::Some(count) => {
                    sent += count;
                    self.queue.borrow_mut().push_back(connection);
                }
                Sent::Blocked => held.push(connection),
            }
        }
        let is_blocked = !held.is_empty();
        self.queue.borrow_mut().extend(held);
        for port in self.ports.borrow().iter() {
            let _ = port.socket.poll_flush(context);
        }
        if !is_blocked && !self.queue.borrow().is_empty() {
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// Sends what one connection has, up to the limit of its turn.
    fn transmit(
        self: &Rc<Self>,
        connection: &Rc<Connection>,
        now: Instant,
        context: &mut Context<'_>,
    ) -> Sent {
        let socket = &connection.port.socket;
        let mut sent = 0;
        while sent < TRANSMITS_PER_TURN {
            if socket.is_full() && socket.poll_flush(context).is_pending() {
                return Sent::Blocked;
            }
            let mut buffer = socket.buffer();
            let inner = &mut *connection.inner.borrow_mut();
            connection.fit_send_window(inner);
            let unproved = connection.unproved(inner);
            let Some(transmit) = inner.quic.poll_transmit(now, socket.segments(), &mut buffer) else {
                socket.put_back(buffer);
                break;
            };
            if let Some(before) = unproved {
                connection.note_path(inner, transmit.destination, before);
            }
            sent += 1;
            if connection.may_send(transmit.destination, transmit.size, now) {
                socket.enqueue(transmit, buffer);
            } else {
                socket.put_back(buffer);
            }
        }
        if sent == TRANSMITS_PER_TURN {
            return Sent::Some(sent);
        }
        connection.is_queued.set(false);
        self.exchange_events(connection);
        self.arm(connection);
        Sent::All(sent)
    }
}

/// Result of a connection's turn.
enum Sent {
    /// Nothing more to send; the number of transmits.
    All(usize),
    /// There may be more to send; the number of transmits.
    Some(usize),
    /// The kernel accepts no more on its socket for now.
    Blocked,
}
