//! The clients of a failover step: writers that keep a ledger, and readers.
//!
//! They behave like a plain application: one connection each, opened again after an error; no statement is
//! ever sent twice. Writers also change their connection once in a while, as connection pools do, so that the
//! load balancer's handling of new sessions shows as well.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use mysql::Conn;
use mysql::prelude::Queryable;

use super::ledger::{Read, RecordedWrite, Told};
use super::member::{Member, Role, connect, role_over};

/// Writers of one contender.
pub const WRITERS: u64 = 2;
/// Readers of one contender.
pub const READERS: usize = 3;
/// Readers of one contender that connect where its writers do.
pub const PRIMARY_READERS: usize = 2;
/// All clients of one contender.
pub const CLIENTS: u32 = WRITERS as u32 + (READERS + PRIMARY_READERS) as u32;
/// Pause between two writes of one writer, and before it tries again after a failure.
const WRITE_PAUSE: Duration = Duration::from_millis(10);
/// Pause between two reads of one reader, and before it tries again after a failure.
const READ_PAUSE: Duration = Duration::from_millis(5);
/// Writes after which a writer changes its connection: about once a second.
const WRITES_PER_CONNECTION: u32 = 80;
/// How long a client waits for an answer before it gives up the connection.
const PATIENCE: Duration = Duration::from_secs(20);

/// How a client finds the member it wants.
#[derive(Debug, Clone)]
pub enum Route {
    /// Through a load balancer on this port of 127.0.0.1, or straight to one member.
    Port(u16),
    /// By asking these members which one is primary: the lower bound, which no load balancer can beat.
    Primary(Vec<u16>),
}

impl Route {
    fn open(&self) -> mysql::Result<Conn> {
        match self {
            Self::Port(port) => connect(*port, PATIENCE),
            Self::Primary(ports) => {
                for port in ports {
                    let Ok(mut connection) = connect(*port, Duration::from_secs(1)) else { continue };
                    if role_over(&mut connection).is_ok_and(|role| role == Role::Primary) {
                        return Ok(connection);
                    }
                }
                let problem = io::Error::new(io::ErrorKind::NotFound, "no member says it is primary");
                Err(mysql::Error::IoError(problem))
            }
        }
    }
}

/// Where one contender's clients go.
#[derive(Debug, Clone)]
pub struct Target {
    /// The table its writers write; made by [`Target::prepare`].
    pub table: String,
    /// How writers connect.
    pub write: Route,
    /// How each reader connects.
    pub read: [Route; READERS],
}

/// The table all readers read: one row that never changes.
const PAGE: &str = "lab_page";

impl Target {
    /// Makes, through the primary, the tables its clients need, emptying those of an earlier step.
    pub fn prepare(&self, primary: &Member) -> io::Result<()> {
        let table = &self.table;
        let database = super::DATABASE;
        primary.execute(&[
            &format!("DROP TABLE IF EXISTS {database}.{table}"),
            // The number is deliberately not a key, so that a statement that was sent twice shows.
            &format!(
                "CREATE TABLE {database}.{table} \
                 (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, number BIGINT UNSIGNED NOT NULL, \
                 member INT UNSIGNED NOT NULL)"
            ),
            &format!(
                "CREATE TABLE IF NOT EXISTS {database}.{PAGE} (id INT PRIMARY KEY, note VARCHAR(80) NOT NULL)"
            ),
            &format!("REPLACE INTO {database}.{PAGE} VALUES (1, 'Hello World!')"),
        ])
    }

    /// How often `member` holds each number of the ledger.
    pub fn rows_on(&self, member: &Member) -> io::Result<BTreeMap<u64, u64>> {
        let table = &self.table;
        let statement = format!("SELECT number, COUNT(*) FROM {}.{table} GROUP BY number", super::DATABASE);
        Ok(member.rows::<(u64, u64)>(&statement)?.into_iter().collect())
    }

    /// Which member executed each write, according to `member`: `server_id` by number.
    pub fn carried(&self, member: &Member) -> io::Result<BTreeMap<u64, u32>> {
        let statement = format!("SELECT number, member FROM {}.{}", super::DATABASE, self.table);
        Ok(member.rows::<(u64, u32)>(&statement)?.into_iter().collect())
    }
}

/// Errors as the client saw them, and how often each occurred.
pub type Problems = BTreeMap<String, u64>;

/// What one contender's clients wrote down.
#[derive(Debug, Clone, Default)]
pub struct Record {
    /// Every write of all its writers.
    pub entries: Vec<RecordedWrite>,
    /// The good reads of each of its readers.
    pub reads: Vec<Vec<Read>>,
    /// When a read, or a connection for reads, failed.
    pub failed_reads: Vec<Duration>,
    /// The same for readers that connect where the writers do.
    pub failed_primary_reads: Vec<Duration>,
    /// The errors that writers and readers got.
    pub problems: Problems,
}

/// Good reads, when others failed, and the errors.
type Readings = (Vec<Read>, Vec<Duration>, Problems);

/// One contender's clients, at work until [`Clients::finish`].
pub struct Clients {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<(Vec<RecordedWrite>, Problems)>>,
    readers: Vec<JoinHandle<Readings>>,
    primary_readers: Vec<JoinHandle<Readings>>,
}

impl Clients {
    /// Starts them. All times are since `origin`.
    pub fn start(target: &Target, origin: Instant) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let writers = (0..WRITERS).map(|writer| {
            let (route, table, stop) = (target.write.clone(), target.table.clone(), Arc::clone(&stop));
            thread::spawn(move || write_until(&stop, &route, &table, writer, origin))
        });
        let writers = writers.collect();
        let read = |route: &Route| {
            let (route, stop) = (route.clone(), Arc::clone(&stop));
            thread::spawn(move || read_until(&stop, &route, origin))
        };
        let readers = target.read.iter().map(read).collect();
        let primary_readers = (0..PRIMARY_READERS).map(|_| read(&target.write)).collect();
        Self { stop, writers, readers, primary_readers }
    }

    /// Tells them to stop without waiting, so that several contenders' clients end together.
    pub fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Stops them and collects what they wrote down. Waits for statements in flight, at most 20 s.
    pub fn finish(self) -> io::Result<Record> {
        self.tell_to_stop();
        let mut record = Record::default();
        let panicked = |_| io::Error::other("a client of the failover step panicked");
        for writer in self.writers {
            let (entries, problems) = writer.join().map_err(panicked)?;
            record.entries.extend(entries);
            merge(&mut record.problems, problems);
        }
        for reader in self.readers {
            let (reads, failed, problems) = reader.join().map_err(panicked)?;
            record.reads.push(reads);
            record.failed_reads.extend(failed);
            merge(&mut record.problems, problems);
        }
        for reader in self.primary_readers {
            let (_, failed, problems) = reader.join().map_err(panicked)?;
            record.failed_primary_reads.extend(failed);
            merge(&mut record.problems, problems);
        }
        Ok(record)
    }
}

fn merge(into: &mut Problems, more: Problems) {
    for (problem, count) in more {
        *into.entry(problem).or_default() += count;
    }
}

fn write_until(
    stop: &AtomicBool,
    route: &Route,
    table: &str,
    writer: u64,
    origin: Instant,
) -> (Vec<RecordedWrite>, Problems) {
    let (mut entries, mut problems) = (Vec::new(), Problems::new());
    let mut connection: Option<(Conn, u32)> = None;
    let mut number = writer;
    while !stop.load(Ordering::Relaxed) {
        number += WRITERS;
        let begun = origin.elapsed();
        let written = write(&mut connection, route, table, number);
        let told = match written {
            Ok(()) => Told::Done,
            Err((told, problem)) => {
                *problems.entry(problem).or_default() += 1;
                told
            }
        };
        if told != Told::Done
            || connection.as_ref().is_some_and(|(_, writes)| *writes >= WRITES_PER_CONNECTION)
        {
            connection = None;
        }
        entries.push(RecordedWrite { number, begun, ended: origin.elapsed(), told });
        thread::sleep(WRITE_PAUSE);
    }
    (entries, problems)
}

fn write(
    connection: &mut Option<(Conn, u32)>,
    route: &Route,
    table: &str,
    number: u64,
) -> Result<(), (Told, String)> {
    let (open, writes) = match connection {
        Some(connection) => connection,
        // Nothing was sent yet, so whatever went wrong, the write did not happen.
        None => connection.insert((
            route.open().map_err(|error| (Told::Refused, format!("connecting: {}", short(&error))))?,
            0,
        )),
    };
    *writes += 1;
    open.query_drop(format!("INSERT INTO {table} (number, member) VALUES ({number}, @@server_id)"))
        .map_err(|error| (fate(&error), format!("writing: {}", short(&error))))
}

/// What an error says about the write that it answers.
///
/// Only a read-only server is known to have done nothing. After any other error the outcome is unknown: a
/// member that is leaving the group may return one for a write that the others still execute.
fn fate(error: &mysql::Error) -> Told {
    /// `ER_OPTION_PREVENTS_STATEMENT`: the server runs with `--super-read-only`.
    const PREVENTED: u16 = 1290;
    /// `ER_READ_ONLY_MODE`.
    const READ_ONLY: u16 = 1836;
    match error {
        mysql::Error::MySqlError(answer) if [PREVENTED, READ_ONLY].contains(&answer.code) => Told::Refused,
        _ => Told::Nothing,
    }
}

/// An error's text without its variable parts, so that equal errors can be counted.
fn short(error: &mysql::Error) -> String {
    match error {
        mysql::Error::MySqlError(answer) => format!("error {}: {}", answer.code, answer.message),
        mysql::Error::IoError(error) => format!("{}: {error}", error.kind()),
        mysql::Error::CodecError(error) => error.to_string(),
        mysql::Error::DriverError(mysql::DriverError::CouldNotConnect(Some((_, _, kind)))) => {
            kind.to_string()
        }
        other => other.to_string(),
    }
}

fn read_until(stop: &AtomicBool, route: &Route, origin: Instant) -> Readings {
    let (mut reads, mut failed, mut problems) = (Vec::new(), Vec::new(), Problems::new());
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        match read(&mut connection, route) {
            Ok(member) => reads.push(Read { ended: origin.elapsed(), member }),
            Err(problem) => {
                connection = None;
                failed.push(origin.elapsed());
                *problems.entry(problem).or_default() += 1;
            }
        }
        thread::sleep(READ_PAUSE);
    }
    (reads, failed, problems)
}

/// Reads the page once; returns the `server_id` of the member that answered.
fn read(connection: &mut Option<Conn>, route: &Route) -> Result<u32, String> {
    let open = match connection {
        Some(connection) => connection,
        None => {
            connection.insert(route.open().map_err(|error| format!("connecting to read: {}", short(&error)))?)
        }
    };
    let row: Option<(u32, String)> = open
        .query_first(format!("SELECT @@server_id, note FROM {PAGE} WHERE id = 1"))
        .map_err(|error| format!("reading: {}", short(&error)))?;
    row.map(|(member, _)| member).ok_or_else(|| "reading: the row is not there".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::fake::{Answer, serve};
    use crate::cluster::ledger::judge;
    use std::net::TcpListener;
    use std::sync::Mutex;

    fn answer(code: u16) -> mysql::Error {
        mysql::Error::MySqlError(mysql::MySqlError {
            state: "HY000".to_owned(),
            message: "no".to_owned(),
            code,
        })
    }

    #[test]
    fn only_a_read_only_server_is_known_to_have_done_nothing() {
        assert_eq!(fate(&answer(1290)), Told::Refused);
        assert_eq!(fate(&answer(1836)), Told::Refused);
        // The group lost this member in the middle of a commit (3100), or the server shuts down (1053).
        assert_eq!(fate(&answer(3100)), Told::Nothing);
        assert_eq!(fate(&answer(1053)), Told::Nothing);
        let reset = io::Error::from(io::ErrorKind::ConnectionReset);
        assert_eq!(fate(&mysql::Error::IoError(reset)), Told::Nothing);
    }

    /// What clients of the server on `port` write down in `time`.
    fn record_of(port: u16, time: Duration) -> Record {
        let target = Target {
            table: "ledger".to_owned(),
            write: Route::Port(port),
            read: [const { Route::Primary(Vec::new()) }; READERS],
        };
        let clients = Clients::start(&target, Instant::now());
        thread::sleep(time);
        clients.finish().unwrap()
    }

    /// The number that `INSERT INTO ledger (number, member) VALUES (7, @@server_id)` carries.
    fn number_in(statement: &str) -> u64 {
        let number = statement.strip_prefix("INSERT INTO ledger (number, member) VALUES (");
        number.and_then(|rest| rest.strip_suffix(", @@server_id)")).unwrap().parse().unwrap()
    }

    #[test]
    fn the_ledger_agrees_with_a_server_that_sometimes_refuses_and_sometimes_hangs_up() {
        let rows = Arc::new(Mutex::new(BTreeMap::new()));
        let written = Arc::clone(&rows);
        let port = serve(move |statement| {
            if !statement.starts_with("INSERT") {
                return Answer::HangUp;
            }
            let number = number_in(statement);
            if number.is_multiple_of(5) {
                return Answer::Error(1290);
            }
            *written.lock().unwrap().entry(number).or_insert(0) += 1;
            if number.is_multiple_of(7) { Answer::HangUp } else { Answer::Ok }
        });
        let record = record_of(port, Duration::from_millis(500));
        let rows = rows.lock().unwrap().clone();
        let verdict = judge(&record.entries, &[rows.clone(), rows]);
        assert!(verdict.is_clean(), "{verdict:?}");
        assert!(verdict.acknowledged >= 10, "{verdict:?}");
        let dividing = |divisor: u64, but_not: u64| {
            record
                .entries
                .iter()
                .filter(|entry| entry.number % divisor == 0 && entry.number % but_not != 0)
                .count()
        };
        assert_eq!(verdict.refused, dividing(5, u64::MAX) as u64);
        assert_eq!((verdict.unknown, verdict.unknown_but_written), (dividing(7, 5) as u64, verdict.unknown));
        assert!(
            record.problems.keys().any(|problem| problem == "writing: error 1290: no"),
            "{:?}",
            record.problems
        );
    }

    #[test]
    fn a_server_that_forgets_and_doubles_is_found_out() {
        let rows = Arc::new(Mutex::new(BTreeMap::new()));
        let written = Arc::clone(&rows);
        let port = serve(move |statement| {
            if !statement.starts_with("INSERT") {
                return Answer::HangUp;
            }
            let number = number_in(statement);
            let times = if number.is_multiple_of(4) {
                0
            } else if number.is_multiple_of(5) {
                2
            } else {
                1
            };
            (0..times).for_each(|_| *written.lock().unwrap().entry(number).or_insert(0) += 1);
            Answer::Ok
        });
        let record = record_of(port, Duration::from_millis(300));
        let rows = rows.lock().unwrap().clone();
        let verdict = judge(&record.entries, &[rows]);
        let count = |picks: &dyn Fn(u64) -> bool| {
            record.entries.iter().filter(|entry| picks(entry.number)).count() as u64
        };
        assert!(verdict.lost > 0 && verdict.doubled > 0, "{verdict:?}");
        assert_eq!(verdict.lost, count(&|number| number.is_multiple_of(4)));
        assert_eq!(verdict.doubled, count(&|number| !number.is_multiple_of(4) && number.is_multiple_of(5)));
    }

    #[test]
    fn writes_to_nobody_are_refused_and_numbered_once() {
        // The port is free again once its listener is dropped.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let record = record_of(port, Duration::from_millis(100));
        assert!(record.entries.len() >= 2, "{record:?}");
        assert!(record.entries.iter().all(|entry| entry.told == Told::Refused), "{record:?}");
        let mut numbers: Vec<u64> = record.entries.iter().map(|entry| entry.number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), record.entries.len());
        assert!(record.reads.iter().all(Vec::is_empty), "{record:?}");
        assert!(record.failed_reads.len() >= READERS, "{record:?}");
        let connecting = record.problems.keys().any(|problem| problem.contains("connection refused"));
        assert!(connecting, "{:?}", record.problems);
    }
}
