//! The independent clock: when the database accepts writes again, whatever load balancer is in front of it.
//!
//! One thread per member tries to write to it directly until a write succeeds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use mysql::prelude::Queryable;

use super::member::{Member, connect};

const TABLE: &str = "lab_clock";
/// Pause between two writes that a member refuses, and so the clock's greatest error.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a member may take for one write. A newly elected primary delays it until it has applied its
/// predecessor's transactions.
const PATIENCE: Duration = Duration::from_secs(20);

/// The first write that a member accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writable {
    /// The member's number.
    pub member: u32,
    /// When its answer arrived, since the clients began.
    pub at: Duration,
    /// The same as time since 1970.
    pub unix: Duration,
}

/// Members being written to.
pub struct Clock {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    writable: Receiver<Writable>,
}

impl Clock {
    /// Makes its table, through the primary.
    pub fn prepare(primary: &Member) -> io::Result<()> {
        let database = super::DATABASE;
        let table = format!(
            "CREATE TABLE IF NOT EXISTS {database}.{TABLE} \
             (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, member INT UNSIGNED NOT NULL)"
        );
        primary.execute(&[&table])
    }

    /// Begins to write to `members`, which must not accept writes yet. Times are since `origin`.
    pub fn start<'a>(members: impl Iterator<Item = &'a Member>, origin: Instant) -> Self {
        let (stop, (sender, writable)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let threads = members.map(|member| {
            let (port, number) = (member.port, member.number as u32);
            let (stop, sender) = (Arc::clone(&stop), sender.clone());
            thread::spawn(move || write_until_taken(port, number, &stop, origin, &sender))
        });
        Self { threads: threads.collect(), stop, writable }
    }

    /// Waits at most `patience` for the first write that a member accepts, and ends. `None` if there was
    /// none.
    pub fn finish(self, patience: Duration) -> Option<Writable> {
        let first = self.writable.recv_timeout(patience).ok();
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // A thread that panicked has measured nothing.
            let _ = thread.join();
        }
        first
    }
}

fn write_until_taken(port: u16, number: u32, stop: &AtomicBool, origin: Instant, taken: &Sender<Writable>) {
    let statement = format!("INSERT INTO {TABLE} (member) VALUES ({number})");
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        if connection.is_none() {
            connection = connect(port, PATIENCE).ok();
        }
        if let Some(open) = &mut connection {
            match open.query_drop(&statement) {
                Ok(()) => {
                    let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                    // Nothing receives this if another member was first.
                    let _ = taken.send(Writable { member: number, at: origin.elapsed(), unix });
                    return;
                }
                // It is read-only.
                Err(mysql::Error::MySqlError(_)) => {}
                Err(_) => connection = None,
            }
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::{Answer, serve};

    #[test]
    fn the_first_write_that_is_taken_stops_it() {
        let begin = Instant::now();
        let port = serve(move |_| match begin.elapsed() < Duration::from_millis(50) {
            true => Answer::Error(1290),
            false => Answer::Ok,
        });
        let (sender, writable) = mpsc::channel();
        write_until_taken(port, 2, &AtomicBool::new(false), begin, &sender);
        let found = writable.recv().unwrap();
        assert_eq!(found.member, 2);
        assert!(found.at >= Duration::from_millis(50), "{found:?}");
        assert!(found.unix > Duration::from_secs(1_700_000_000), "{found:?}");
    }
}
