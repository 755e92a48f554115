//! QUIC's place in a process and in each of its workers, whether or not a listener speaks it.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use weir_io::buffers::Buffers;

use crate::cid;
use crate::counts::Counts;
use crate::endpoint::Driver;
use crate::forward::{Line, Mail, Mailbox, mailbox};
use crate::keys::Keys;
use crate::kin::Kin;

/// What the process before hands over; nothing when there was none.
#[derive(Default)]
pub struct Heritage {
    /// The keys, already those of a successor.
    pub keys: Option<Keys>,
    /// The ways to the workers of older processes that still have connections.
    pub lines: Vec<(cid::Place, Line)>,
}

/// What the workers of a process share.
pub struct Office {
    keys: Arc<Keys>,
    kin: Arc<Kin>,
    siblings: Arc<[Mailbox]>,
    counts: Arc<[Counts]>,
}

/// What one worker starts with.
pub struct Seat {
    number: u16,
    keys: Arc<Keys>,
    kin: Arc<Kin>,
    siblings: Arc<[Mailbox]>,
    counts: Arc<[Counts]>,
    mail: Mail,
    lines: Vec<Line>,
}

impl Office {
    /// With a seat for each of `workers`.
    pub fn open(heritage: Heritage, workers: usize) -> io::Result<(Office, Vec<Seat>)> {
        let keys = Arc::new(heritage.keys.map_or_else(Keys::random, Ok)?);
        let kin = Arc::new(Kin::default());
        let (siblings, mails): (Vec<Mailbox>, Vec<Mail>) = (0..workers).map(|_| mailbox()).unzip();
        let siblings: Arc<[Mailbox]> = siblings.into();
        let counts: Arc<[Counts]> = (0..workers).map(|_| Counts::default()).collect();
        let mut seats: Vec<Seat> = mails
            .into_iter()
            .zip(0..)
            .map(|(mail, number)| Seat {
                number,
                keys: keys.clone(),
                kin: kin.clone(),
                siblings: siblings.clone(),
                counts: counts.clone(),
                mail,
                lines: Vec::new(),
            })
            .collect();
        for (index, (place, line)) in heritage.lines.into_iter().enumerate() {
            seats[index % workers.max(1)].lines.push(line.try_clone()?);
            kin.add(place, line);
        }
        Ok((Office { keys, kin, siblings, counts }, seats))
    }

    /// What to hand to the next process, and for each worker its end of a new line to it.
    pub fn bequeath(&self) -> io::Result<(Heritage, Vec<Line>)> {
        let keys = self.keys.of_successor();
        self.disown();
        let mut lines = self.kin.duplicates()?;
        let mut own = Vec::with_capacity(self.siblings.len());
        for worker in 0..self.siblings.len() as u16 {
            let (ours, theirs) = Line::pair()?;
            lines.push((cid::Place { process: self.keys.process(), worker }, theirs));
            // For the moment in which both processes receive.
            self.kin.add(cid::Place { process: keys.process(), worker }, ours.try_clone()?);
            own.push(ours);
        }
        Ok((Heritage { keys: Some(keys), lines }, own))
    }

    /// What the workers have counted, each for itself.
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// The next process has not come about.
    pub fn disown(&self) {
        self.kin.remove(self.keys.of_successor().process());
    }
}

/// QUIC on one worker: nothing runs before a listener needs it.
pub struct Place {
    keys: Arc<Keys>,
    seat: RefCell<Option<Seat>>,
    buffers: Rc<Buffers>,
    driver: OnceCell<Rc<Driver>>,
}

impl Place {
    /// The worker's own.
    pub fn new(seat: Seat, buffers: &Rc<Buffers>) -> Place {
        let keys = seat.keys.clone();
        Place { keys, seat: RefCell::new(Some(seat)), buffers: buffers.clone(), driver: OnceCell::new() }
    }

    /// The keys of the process.
    pub fn keys(&self) -> Arc<Keys> {
        self.keys.clone()
    }

    /// The driver, which is set going when it is first asked for.
    pub fn driver(&self) -> Rc<Driver> {
        if let Some(seat) = self.seat.take() {
            let Seat { number, keys, kin, siblings, counts, mail, lines } = seat;
            let driver = Driver::new(keys, number, siblings, kin, counts, self.buffers.clone());
            tokio::task::spawn_local(driver.clone().run_sender());
            tokio::task::spawn_local(driver.clone().run_timers());
            tokio::task::spawn_local(driver.clone().run_mail(mail));
            lines.into_iter().for_each(|line| listen(&driver, line));
            let _ = self.driver.set(driver);
        }
        self.driver.get().cloned().expect("set when the seat was taken")
    }

    /// Takes what comes over `line` while there may be connections that it is for.
    pub fn listen(&self, line: Line) {
        if let Some(driver) = self.driver.get() {
            listen(driver, line);
        }
    }

    /// Closes the connections that are left, with an application's code (RFC 9000 section 10.2).
    pub fn close(&self, code: u64) {
        if let Some(driver) = self.driver.get() {
            driver.close_all(code, "");
        }
    }
}

fn listen(driver: &Rc<Driver>, line: Line) {
    let driver = driver.clone();
    tokio::task::spawn_local(async move {
        if let Err(error) = driver.run_line(line).await {
            tracing::warn!(%error, "datagrams passed on by another process are not received any more");
        }
    });
}
