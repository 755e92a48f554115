//! Whether the backend at the other end of a connection is still there, while it is asked for something.
//!
//! Where the way to it is gone (a firewall forgot the connection, a host lost its power), nothing ever comes,
//! and who shares the connection would wait for nothing, one after the other.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::Sleep;
use weir_io::clock;

use super::heard::Heard;

/// A backend that says nothing for so long although it was asked for something seems dead: what HTTP/3 waits
/// ([`crate::http::h3::IDLE_TIMEOUT`]).
pub const SILENCE: Duration = Duration::from_secs(10);
/// After so much of it the backend is asked whether it is there (`PING`).
const ASK_AFTER: Duration = SILENCE.checked_div(2).expect("not zero");

/// Watches one connection for whoever drives it.
pub struct Presence {
    ping_pong: Option<PingPong>,
    /// Of which silence the backend was asked whether it is there.
    asked_of: Option<Duration>,
    /// When to look again. `None` while nobody is waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Presence {
    /// Of a connection that can be asked by `ping_pong`.
    pub fn new(ping_pong: Option<PingPong>) -> Presence {
        Presence { ping_pong, asked_of: None, timer: None }
    }

    /// Ready when the connection seems dead. Else the task is woken when to look again, or when something
    /// comes.
    pub fn poll_lost(&mut self, heard: &Heard, context: &mut Context<'_>) -> Poll<()> {
        loop {
            // Set for the first of many requests, it is not set anew for each.
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
                        // What cannot be asked is not held against it. Its silence counts anew.
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

    /// Asks whether it is there; false where that is not possible now.
    fn ask(&mut self, heard: &Heard, context: &mut Context<'_>) -> bool {
        let Some(ping_pong) = &mut self.ping_pong else { return false };
        // The answer to the one before is taken, so that another can be sent.
        let _ = ping_pong.poll_pong(context);
        heard.may_ping() && ping_pong.send_ping(Ping::opaque()).is_ok()
    }
}
