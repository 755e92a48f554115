//! Clients of HTTP/2 and HTTP/3: one connection, several concurrent requests. Like applications, they
//! continue on a new connection when the old one accepts no more requests, and send requests again that the
//! server has promised not to have processed.

use std::cell::{Cell, RefCell};
use std::time::Instant;

use bytes::Bytes;

use super::load::{AFTER_A_FAILURE, Part, Question, Shared};
use crate::dialogue::{Draws, PATIENCE};
use crate::versions::{self, Client, Failed, Front};

/// Requests at once on one connection.
const LANES: u64 = 8;
/// How often one request may be refused before that counts as a failure.
const MOST_REFUSALS: u32 = 10;
/// Longest run of a load.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(3600);

/// Asks in `front` until all requests are taken.
pub(super) fn multiplexed(shared: &Shared, part: &mut Part, seed: u64, front: Front) {
    let all = RefCell::new(std::mem::take(part));
    let connection =
        Connection { shared, front, client: tokio::sync::Mutex::new(None), number: Cell::new(0) };
    versions::run(LONGEST, async {
        let lanes = (0..LANES).map(|lane| connection.lane(&all, seed ^ lane << 20));
        together(lanes).await;
    });
    *part = all.into_inner();
}

/// Runs all of them at once in this task.
async fn together(lanes: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut running: Vec<_> = lanes.map(|lane| Some(Box::pin(lane))).collect();
    std::future::poll_fn(|context| {
        for lane in &mut running {
            if lane.as_mut().is_some_and(|lane| lane.as_mut().poll(context).is_ready()) {
                *lane = None;
            }
        }
        if running.iter().all(Option::is_none) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

/// The connection that all lanes use now.
struct Connection<'a> {
    shared: &'a Shared,
    front: Front,
    client: tokio::sync::Mutex<Option<(u64, Client)>>,
    /// Connections made so far.
    number: Cell<u64>,
}

impl Connection<'_> {
    async fn lane(&self, part: &RefCell<Part>, seed: u64) {
        let mut draws = Draws::seeded(seed);
        while self.shared.takes_one() {
            let question = Question::draw(self.shared, &mut draws);
            let begun = Instant::now();
            let outcome = self.ask(&question, part).await;
            let failed = self.shared.notes(&mut part.borrow_mut(), begun, outcome);
            if failed {
                tokio::time::sleep(AFTER_A_FAILURE).await;
            }
            // Now and then a client goes on with a fresh connection, while other lanes are still busy on the
            // old one.
            if draws.below(500) == 0 {
                self.leaves(self.number.get()).await;
            }
        }
    }

    async fn ask(&self, question: &Question, part: &RefCell<Part>) -> Result<(), String> {
        let name = format!("{:?} {} {}", self.front, question.method(), question.path);
        for _ in 0..MOST_REFUSALS {
            let (number, mut client) =
                self.current().await.map_err(|failed| format!("{name}: can't connect: {failed:?}"))?;
            let parts = match &question.content {
                None => Vec::new(),
                Some(content) => vec![versions::Part::Content(Bytes::copy_from_slice(content))],
            };
            let length = question.content.as_ref().map_or(0, Vec::len).to_string();
            let declared = [("content-length", length.as_str())];
            let fields = if question.content.is_some() && question.is_declared { &declared[..] } else { &[] };
            let asked = client.ask(question.method(), &question.path, fields, parts);
            match tokio::time::timeout(PATIENCE, asked).await {
                Err(_) => return Err(format!("{name}: nothing in {PATIENCE:?}")),
                Ok(Ok(answer)) => {
                    let part = &mut part.borrow_mut();
                    let status = answer.status.as_u16();
                    return question
                        .judge(self.shared, part, status, &answer.content)
                        .map_err(|what| format!("{:?}: {what}", self.front));
                }
                Ok(Err(Failed::Refused(_))) => {
                    part.borrow_mut().repeated += 1;
                    self.leaves(number).await;
                }
                Ok(Err(Failed::Broken(why))) => {
                    self.leaves(number).await;
                    return Err(format!("{name}: {why}"));
                }
            }
        }
        Err(format!("{name}: refused {MOST_REFUSALS} times"))
    }

    async fn current(&self) -> Result<(u64, Client), Failed> {
        let current = &mut *self.client.lock().await;
        if current.is_none() {
            let (address, authority) = self.shared.targets.secure.as_ref().expect("there is one");
            let connecting = Client::connect(self.front, authority, *address, "storm.test");
            let connected = tokio::time::timeout(PATIENCE, connecting).await;
            let client =
                connected.unwrap_or_else(|_| Err(Failed::Broken(format!("nothing in {PATIENCE:?}"))))?;
            self.number.set(self.number.get() + 1);
            *current = Some((self.number.get(), client));
        }
        let (number, client) = current.as_ref().expect("made above");
        Ok((*number, client.share().expect("many at once")))
    }

    /// Uses this connection no more.
    async fn leaves(&self, number: u64) {
        let current = &mut *self.client.lock().await;
        if current.as_ref().is_some_and(|(of, _)| *of == number) {
            *current = None;
        }
    }
}
