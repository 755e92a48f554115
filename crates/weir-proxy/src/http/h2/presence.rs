//! Detects whether the backend at the other end of a connection is still there while requests wait for it.
//!
//! If the network path is gone (a firewall forgot the connection, a host lost its power), nothing ever comes,
//! and exchanges that share the connection would wait in vain, one after the other.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::Sleep;
use weir_io::clock;

use super::heard::Heard;

/// A backend that sends nothing for this long although it has a request seems dead. HTTP/3 waits as long
/// ([`crate::http::h3::IDLE_TIMEOUT`]).
pub const SILENCE: Duration = Duration::from_secs(10);
/// After this much silence the backend is sent a `PING`.
const ASK_AFTER: Duration = SILENCE.checked_div(2).expect("not zero");

/// Watches one connection for the task that drives it.
pub struct Presence {
    ping_pong: Option<PingPong>,
    /// The beginning of the silence for which the backend was pinged.
    asked_of: Option<Duration>,
    /// When to check again. `None` while no answer is awaited.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Presence {
    /// For a connection whose backend can be pinged by `ping_pong`.
    pub fn new(ping_pong: Option<PingPong>) -> Presence {
        Presence { ping_pong, asked_of: None, timer: None }
    }

    /// Ready when the connection seems dead. Otherwise the task is woken when it is time to check again, or
    /// when data arrives.
    pub fn poll_lost(&mut self, heard: &Heard, context: &mut Context<'_>) -> Poll<()> {
        loop {
            // The timer is set for the first of many requests, and not again for each.
            if let Some(timer) = &mut self.timer {
                match timer.as_mut().poll(context) {
                    Poll::Ready(()) => self.timer = None,
                    Poll::Pending => return Poll::Pending,
                }
            }
            let Some(since) = heard.silent_since() else { return Poll::Pending };
            let silent = clock::now().saturating_sub(since);
            let was_asked = self.asked_of == Some(since);
            let left = match silent.checked_sub(ASK_AFTER) {
                None => ASK_AFTER - silent,
                Some(_) if !was_asked => {
                    self.asked_of = Some(since);
                    if !self.ask(heard, context) {
                        // A backend that can't be pinged is not considered dead. Its silence begins anew.
                        self.asked_of = None;
                    }
                    ASK_AFTER
                }
                Some(more) if more < ASK_AFTER => ASK_AFTER - more,
                Some(_) => return Poll::Ready(()),
            };
            self.timer = Some(Box::pin(tokio::time::sleep(left)));
        }
    }

    /// Sends a ping; false if that is not possible now.
    fn ask(&mut self, heard: &Heard, context: &mut Context<'_>) -> bool {
        let Some(ping_pong) = &mut self.ping_pong else { return false };
        // The answer to the previous ping is taken, so that another can be sent.
        let _ = ping_pong.poll_pong(context);
        heard.may_ping() && ping_pong.send_ping(Ping::opaque()).is_ok()
    }
}
