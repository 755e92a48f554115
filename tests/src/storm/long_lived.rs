//! Conversations that last over reloads and upgrades.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::dialogue::{Authority, PATIENCE, Wire};
use crate::versions::{self, Answer, Client, Failed, Front, Part, Turns};

/// One conversation.
pub(super) enum LongLived {
    /// Echoed bytes over a connection of its own.
    Wire(Wire),
    /// Echoed content on a stream of a connection that may have others.
    Stream { turns: Arc<Turns>, thread: JoinHandle<Result<Answer, Failed>> },
}

impl LongLived {
    /// One stream in HTTP/2 or HTTP/3 to `path`, which echoes what it gets.
    pub(super) fn stream(
        front: Front,
        authority: Arc<Authority>,
        address: SocketAddr,
        path: &'static str,
    ) -> LongLived {
        let turns = Arc::new(Turns::default());
        let thread = std::thread::spawn({
            let turns = turns.clone();
            move || {
                versions::run(Duration::from_secs(3600), async {
                    let mut client = Client::connect(front, &authority, address, "storm.test").await?;
                    client.ask("POST", path, &[], vec![Part::Turns(turns)]).await
                })
            }
        });
        LongLived::Stream { turns, thread }
    }

    /// Whether what is sent now is echoed.
    pub(super) fn answers(&mut self, text: &str) -> bool {
        match self {
            LongLived::Wire(wire) => {
                let sent = wire.tries_to_send(text);
                let echoed =
                    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| wire.receives_exactly(text)));
                sent.is_ok() && echoed.is_ok()
            }
            LongLived::Stream { turns, thread } => {
                // An echo may be on its way already.
                let (before, begun) = (turns.count(), Instant::now());
                while turns.count() < before + 2 {
                    if thread.is_finished() || begun.elapsed() > PATIENCE {
                        return false;
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
                true
            }
        }
    }

    /// Ends it in order; `Err` says why that failed.
    pub(super) fn ends(self) -> Result<(), String> {
        let LongLived::Stream { turns, thread } = self else { return Ok(()) };
        turns.stop();
        let begun = Instant::now();
        while !thread.is_finished() {
            if begun.elapsed() > PATIENCE {
                return Err(format!("silent for {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let answer =
            thread.join().map_err(|_| "its thread panicked")?.map_err(|failed| format!("{failed:?}"))?;
        let expected = turns.count() * Turns::PIECE_BYTES;
        if answer.status != 200 || answer.content.len() != expected {
            return Err(format!("{} with {} bytes for {expected}", answer.status, answer.content.len()));
        }
        Ok(())
    }
}
