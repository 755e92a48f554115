//! How fast the content of one response may go to its client (`bandwidth` of a route).

use std::future::Future as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::Sleep;
use weir_config::RouteBandwidth;
use weir_io::clock;
use weir_io::meter::Meter;
use weir_state::Listener;

use crate::pace::Way;

/// The pace of one response. Other streams of the same connection have their own.
pub struct ResponsePace {
    meter: Meter,
    /// Bytes that pass before any are counted.
    free: u64,
    /// Set while no byte may pass.
    timer: Option<Pin<Box<Sleep>>>,
    listener: Arc<Listener>,
    worker: usize,
}

impl ResponsePace {
    /// The pace of a new response to a client of the listener.
    pub fn new(config: &RouteBandwidth, listener: &Arc<Listener>, worker: usize) -> Box<ResponsePace> {
        Box::new(ResponsePace {
            meter: Meter::new(config.to_client, config.burst),
            free: config.after_bytes,
            timer: None,
            listener: listener.clone(),
            worker,
        })
    }

    /// How many bytes may pass now, at least a piece that is worth a call. While none may, which is counted,
    /// the task is woken once some may.
    pub fn poll_room(&mut self, context: &Context<'_>) -> Poll<usize> {
        if self.free > 0 {
            return Poll::Ready(usize::try_from(self.free).unwrap_or(usize::MAX));
        }
        loop {
            let now = clock::now();
            let until = match self.meter.room_for_piece(now) {
                Ok(room) => {
                    self.timer = None;
                    return Poll::Ready(usize::try_from(room).unwrap_or(usize::MAX));
                }
                Err(until) => until,
            };
            let timer = self.timer.get_or_insert_with(|| {
                self.listener.cells.of(self.worker).throttled[Way::ToClient as usize].increment();
                Box::pin(tokio::time::sleep(until.saturating_sub(now)))
            });
            ready!(timer.as_mut().poll(&mut Context::from_waker(context.waker())));
            self.timer = None;
        }
    }

    /// Notes that bytes have passed.
    pub fn take(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        let counted = bytes.saturating_sub(self.free);
        self.free = self.free.saturating_sub(bytes);
        if counted > 0 {
            self.meter.take(clock::now(), counted);
        }
    }
}
