//! A bounded waiting line for a small number of places. Clients take turns, however many requests of one
//! client wait, and one client may fill only its part of the line. Otherwise a client that sends one request
//! after another would keep everybody else out (threat J7).

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The places and the line for them, shared by all workers.
#[derive(Debug)]
pub(super) struct Line {
    bounds: Bounds,
    standing: Mutex<Standing>,
}

/// The limits of a line, as counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// How many places there are.
    pub places: usize,
    /// Most requests that wait in line.
    pub waiting: usize,
    /// Most requests of one client that wait in line. Clients without an address have no limit of their own.
    pub waiting_of_client: usize,
}

/// Who waits for a place. While anybody waits, no place is free.
#[derive(Debug, Default)]
struct Standing {
    taken: usize,
    waiting: usize,
    /// Counts the requests that have entered the line.
    came: u64,
    /// The waiting requests of each client, in order of arrival.
    lines: HashMap<Option<IpAddr>, VecDeque<Ticket>>,
    /// The clients with waiting requests, each once, in order of their turns.
    turns: VecDeque<Option<IpAddr>>,
}

#[derive(Debug)]
struct Ticket {
    number: u64,
    tell: oneshot::Sender<HeldPlace>,
}

/// A place; when it is dropped, the next in line gets it.
#[derive(Debug)]
pub(super) struct HeldPlace(Arc<Line>);

/// A request's position in line, until dropped.
#[derive(Debug)]
pub(super) struct InLine {
    line: Arc<Line>,
    client: Option<IpAddr>,
    number: u64,
    told: oneshot::Receiver<HeldPlace>,
}

/// The result of entering.
#[derive(Debug)]
pub(super) enum Entered {
    /// A place was free.
    Place(HeldPlace),
    /// All places are taken.
    InLine(InLine),
}

/// Why a request may not wait in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// Its client has as many requests in line as it may.
    OfClient,
    /// The line is full.
    OfAll,
}

impl Line {
    /// A line that nobody has entered.
    pub(super) fn new(bounds: Bounds) -> Arc<Line> {
        Arc::new(Line { bounds, standing: Mutex::default() })
    }

    /// Takes a place, or waits in line for one. `client` identifies those who share one part of the line, as
    /// given by [`weir_screen::address_key`]; `None` if the address is not known. O(1).
    pub(super) fn enter(self: &Arc<Line>, client: Option<IpAddr>) -> Result<Entered, Full> {
        let Bounds { places, waiting, waiting_of_client } = self.bounds;
        let mut standing = self.standing();
        if standing.taken < places {
            standing.taken += 1;
            return Ok(Entered::Place(HeldPlace(self.clone())));
        }
        let of_client = standing.lines.get(&client).map_or(0, VecDeque::len);
        if standing.waiting >= waiting {
            return Err(Full::OfAll);
        }
        if client.is_some() && of_client >= waiting_of_client {
            return Err(Full::OfClient);
        }
        let (tell, told) = oneshot::channel();
        let number = standing.came;
        standing.came += 1;
        standing.waiting += 1;
        if of_client == 0 {
            standing.turns.push_back(client);
        }
        standing.lines.entry(client).or_default().push_back(Ticket { number, tell });
        Ok(Entered::InLine(InLine { line: self.clone(), client, number, told }))
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Standing {
    /// The first request of the client whose turn it is; that client's next turn comes after all others'.
    fn next(&mut self) -> Option<Ticket> {
        let client = self.turns.pop_front()?;
        let line = self.lines.get_mut(&client)?;
        let ticket = line.pop_front()?;
        if line.is_empty() {
            self.lines.remove(&client);
        } else {
            self.turns.push_back(client);
        }
        self.waiting -= 1;
        Some(ticket)
    }

    /// Removes a request that has left. O(n) in its client's requests, and in clients if it was the last one.
    fn leave(&mut self, client: Option<IpAddr>, number: u64) {
        let Some(line) = self.lines.get_mut(&client) else { return };
        let Some(place) = line.iter().position(|ticket| ticket.number == number) else { return };
        line.remove(place);
        self.waiting -= 1;
        if line.is_empty() {
            self.lines.remove(&client);
            self.turns.retain(|other| *other != client);
        }
    }
}

impl InLine {
    /// Waits for a place.
    pub(super) async fn place(mut self) -> Option<HeldPlace> {
        // Only the line itself drops a ticket without sending a place, and `self` keeps the line alive.
        (&mut self.told).await.ok()
    }
}

impl Drop for InLine {
    fn drop(&mut self) {
        self.line.standing().leave(self.client, self.number);
    }
}

impl Drop for HeldPlace {
    fn drop(&mut self) {
        let next = {
            let mut standing = self.0.standing();
            let next = standing.next();
            if next.is_none() {
                standing.taken -= 1;
            }
            next
        };
        if let Some(Ticket { tell, .. }) = next {
            // If that request leaves at this moment, the place is dropped at once and goes to the one after
            // it.
            let _ = tell.send(HeldPlace(self.0.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn client(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, number]))
    }

    fn line(places: usize, waiting: usize, waiting_of_client: usize) -> Arc<Line> {
        Line::new(Bounds { places, waiting, waiting_of_client })
    }

    fn placed(entry: Result<Entered, Full>) -> HeldPlace {
        match entry {
            Ok(Entered::Place(place)) => place,
            other => panic!("{other:?} in place of a place"),
        }
    }

    fn in_line(entry: Result<Entered, Full>) -> InLine {
        match entry {
            Ok(Entered::InLine(in_line)) => in_line,
            other => panic!("{other:?} in place of a ticket"),
        }
    }

    /// The place that it has got by now, if any.
    fn got(in_line: &mut InLine) -> Option<HeldPlace> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(&mut in_line.told).poll(&mut context) {
            Poll::Ready(place) => place.ok(),
            Poll::Pending => None,
        }
    }

    #[test]
    fn clients_take_turns_however_many_of_one_stand_in_line() {
        let line = line(1, 8, 4);
        let mut place = placed(line.enter(client(1)));
        let mut all: Vec<(u8, InLine)> = Vec::new();
        for number in [1, 1, 1, 2, 3, 2] {
            all.push((number, in_line(line.enter(client(number)))));
        }
        let mut order = Vec::new();
        while !all.is_empty() {
            drop(place);
            let mut turn = all.iter_mut().enumerate().filter_map(|(at, (_, it))| Some((at, got(it)?)));
            let (at, next) = turn.next().expect("somebody's turn");
            assert!(turn.next().is_none(), "there is one place");
            place = next;
            order.push(all.remove(at).0);
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
        drop(place);
        placed(line.enter(client(4)));
    }

    #[test]
    fn one_client_has_its_part_of_the_line_and_all_together_the_whole() {
        let line = line(2, 5, 2);
        let places = [placed(line.enter(client(1))), placed(line.enter(client(1)))];
        let first = in_line(line.enter(client(1)));
        let second = in_line(line.enter(client(1)));
        assert_eq!(line.enter(client(1)).unwrap_err(), Full::OfClient);
        // Requests without an address may come from many clients.
        let others = [(); 3].map(|()| in_line(line.enter(None)));
        assert_eq!(line.enter(client(2)).unwrap_err(), Full::OfAll);
        drop(first);
        let third = in_line(line.enter(client(1)));
        assert_eq!(line.enter(client(2)).unwrap_err(), Full::OfAll);
        drop((second, third, others));
        drop(places);
        let standing = line.standing();
        assert_eq!((standing.taken, standing.waiting), (0, 0));
        assert!(standing.lines.is_empty() && standing.turns.is_empty());
    }

    #[test]
    fn who_leaves_when_its_place_comes_gives_it_to_the_next() {
        let line = line(1, 4, 1);
        let place = placed(line.enter(client(1)));
        let first = in_line(line.enter(client(2)));
        let mut second = in_line(line.enter(client(3)));
        drop(place);
        drop(first);
        assert!(got(&mut second).is_some());
        assert_eq!(line.standing().taken, 0, "it was given back");
    }

    #[test]
    fn without_a_line_there_are_places_alone() {
        let line = line(1, 0, 0);
        let place = placed(line.enter(client(1)));
        assert_eq!(line.enter(None).unwrap_err(), Full::OfAll);
        drop(place);
        placed(line.enter(None));
    }
}
