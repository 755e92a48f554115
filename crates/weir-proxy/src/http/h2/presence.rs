//! Detects whether the backend at the other end of a connection is still there while requests wait for it.
//!
//! If the network path is gone (a firewall forgot the connection, a host lost its power), nothing ever comes,
//! and exchanges that share the connection would wait in vain, one after the other. The backend's host says
//! more than the backend: it acknowledges what it receives however busy the backend is.

use std::cell::RefCell;
use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::Sleep;
use weir_io::clock;
use weir_io::stream::Stream;

use super::heard::Heard;

/// A silent backend with a request is looked at this often, and for the first time after this much silence.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A host that acknowledges nothing for this long, or for so many round trips, seems unreachable. HTTP/3
/// waits as long ([`weir_quic::connection::Connection::is_silent`]). In the least time TCP has sent the
/// segment four times.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_ROUND_TRIPS: u32 = 18;
/// Silence after which the backend is sent a `PING`: the first one, and another before it has answered a
/// request.
const ASK_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(10)];
/// Longest time for the answer. A backend that does nothing else while it computes may take longer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(3);

/// What a look at a connection has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing new.
    Nothing,
    /// The backend does not answer a ping, although its host may be there: new requests should not wait for
    /// it.
    Silent,
    /// Its host acknowledges nothing. Nothing else will be found.
    Unreachable,
}

/// Watches one connection for the task that drives it.
pub struct Presence {
    ping_pong: Option<PingPong>,
    /// The beginning of the silence for which the backend was pinged.
    asked_of: Option<Duration>,
    /// When it was pinged.
    asked_at: Duration,
    /// Since when an acknowledgement is awaited, and none has come.
    unacknowledged_since: Option<Duration>,
    /// What was found before.
    found: Finding,
    /// When to look again. `None` while no answer is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Presence {
    /// For a connection whose backend can be pinged by `ping_pong`.
    pub fn new(ping_pong: Option<PingPong>) -> Presence {
        Presence {
            ping_pong,
            asked_of: None,
            asked_at: Duration::ZERO,
            unacknowledged_since: None,
            found: Finding::Nothing,
            timer: None,
        }
    }

    /// Looks at the connection if it is time to; the task is woken when it is time again. Call it when
    /// everything that has come was received.
    pub fn look(&mut self, heard: &Heard, stream: &RefCell<Stream>, context: &mut Context<'_>) -> Finding {
        let mut found = Finding::Nothing;
        while self.found != Finding::Unreachable {
            // The timer is set for the first of many requests, and not again for each.
            if let Some(timer) = &mut self.timer {
                match timer.as_mut().poll(context) {
                    Poll::Ready(()) => self.timer = None,
                    Poll::Pending => return found,
                }
            }
            let Some(since) = heard.silent_since() else { return found };
            let now = clock::now();
            let left = match LOOK_EVERY.checked_sub(now.saturating_sub(since)).filter(|it| !it.is_zero()) {
                Some(left) => left,
                None => {
                    found = self.find(heard, &stream.borrow(), (since, now), context);
                    LOOK_EVERY
                }
            };
            self.timer = Some(Box::pin(tokio::time::sleep(left)));
        }
        found
    }

    /// Looks at a connection on which nothing has come since then.
    fn find(
        &mut self,
        heard: &Heard,
        stream: &Stream,
        (since, now): (Duration, Duration),
        context: &mut Context<'_>,
    ) -> Finding {
        let before = self.found;
        let found = match before {
            _ if self.is_unreachable(stream, now) => Finding::Unreachable,
            Finding::Nothing if self.is_silent(heard, (since, now), context) => Finding::Silent,
            _ => return Finding::Nothing,
        };
        self.found = found;
        found
    }

    /// Whether what was sent is not acknowledged, and nothing else has been since the first look that found
    /// so.
    fn is_unreachable(&mut self, stream: &Stream, now: Duration) -> bool {
        let Some(seen) = stream.acknowledged().filter(|seen| seen.is_awaited) else {
            self.unacknowledged_since = None;
            return false;
        };
        let waited = now.saturating_sub(*self.unacknowledged_since.get_or_insert(now));
        if seen.last < waited {
            self.unacknowledged_since = Some(now);
            return false;
        }
        waited >= LEAST_PATIENCE.max(PATIENCE_ROUND_TRIPS * seen.round_trip)
    }

    /// Whether the backend was pinged and has said nothing since. Pings it if it has not been asked yet. A
    /// backend that can't be pinged is not considered silent.
    fn is_silent(
        &mut self,
        heard: &Heard,
        (since, now): (Duration, Duration),
        context: &mut Context<'_>,
    ) -> bool {
        if self.asked_of == Some(since) {
            return now.saturating_sub(self.asked_at) >= ANSWER_PATIENCE;
        }
        let due = ASK_AFTER.get(heard.pings()).is_some_and(|after| now.saturating_sub(since) >= *after);
        if due && self.ask(heard, context) {
            (self.asked_of, self.asked_at) = (Some(since), now);
        }
        false
    }

    /// Sends a ping; false if that is not possible now.
    fn ask(&mut self, heard: &Heard, context: &mut Context<'_>) -> bool {
        let Some(ping_pong) = &mut self.ping_pong else { return false };
        // The answer to the previous ping is taken, so that another can be sent.
        let _ = ping_pong.poll_pong(context);
        let is_sent = ping_pong.send_ping(Ping::opaque()).is_ok();
        if is_sent {
            heard.note_ping();
        }
        is_sent
    }
}
