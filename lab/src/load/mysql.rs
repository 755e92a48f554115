//! Statements for the canned MySQL server, as fast as answers arrive: a closed loop of one thread. Or one
//! statement on each connection, which then stays open.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};

use super::LoadResult;
use crate::backend::mysql::ROW;
use crate::channel::{self, Channel, PIECE_BYTES, Received};
use crate::cluster::{ACCOUNT, DATABASE, PASSWORD};
use crate::metric::Metric;
use crate::packets::{self, PLUGIN, Packet, capability, command};

/// What each connection does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// One SELECT after another.
    Query,
    /// Like `Query`, but prepared once.
    Execute,
    /// BEGIN, nine SELECTs and an UPDATE, COMMIT; all but the first and the last prepared once.
    Transaction,
    /// Login, one SELECT and quit, repeatedly on new connections.
    Connect,
    /// Login and one SELECT; then the connection stays open, idle.
    Idle,
}

impl Work {
    /// Its name on the command line.
    pub fn argument(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Execute => "execute",
            Self::Transaction => "transaction",
            Self::Connect => "connect",
            Self::Idle => "idle",
        }
    }

    /// What each of its connections prepares before its first statement.
    fn prepared(self) -> &'static [Prepared] {
        match self {
            Self::Query | Self::Connect | Self::Idle => &[],
            Self::Execute => &[POINT_SELECT],
            Self::Transaction => &[POINT_SELECT, INDEX_UPDATE],
        }
    }

    /// What each of its connections sends in turn, given the numbers of what it prepared.
    fn statements(self, numbers: &[[u8; 4]]) -> Vec<Statement> {
        let executed = |number: &[u8; 4], has_row| {
            Statement::new(command::EXECUTE, &[number, PARAMETERS].concat(), has_row)
        };
        match numbers {
            [select, update] => {
                let mut statements = vec![Statement::new(command::QUERY, b"BEGIN", false)];
                statements.extend((0..9).map(|_| executed(select, true)));
                statements.push(executed(update, false));
                statements.push(Statement::new(command::QUERY, b"COMMIT", false));
                statements
            }
            [select] => vec![executed(select, true)],
            _ => vec![Statement::new(command::QUERY, QUERY, true)],
        }
    }
}

/// The query: sysbench's point select.
const QUERY: &[u8] = b"SELECT c FROM sbtest1 WHERE id=5013";
/// The same query, to be prepared.
const POINT_SELECT: Prepared = Prepared { text: b"SELECT c FROM sbtest1 WHERE id=?", has_row: true };
/// sysbench's update of an indexed column.
const INDEX_UPDATE: Prepared = Prepared { text: b"UPDATE sbtest1 SET k=k+1 WHERE id=?", has_row: false };
/// The parameter of both statements: 5013 as a LONGLONG.
const PARAMETERS: &[u8] = b"\x00\x01\x00\x00\x00\x00\x01\x08\x00\x95\x13\x00\x00\x00\x00\x00\x00";
/// For connections that are to stay: how many are between connect and answer at a time.
const BATCH: u32 = 64;
/// Errors after which the load gives up.
const TOO_MANY: u64 = 100;

/// A statement with one parameter that is prepared.
struct Prepared {
    text: &'static [u8],
    has_row: bool,
}

/// A statement that is sent over and over.
struct Statement {
    /// The whole packet.
    packet: Vec<u8>,
    /// Whether it is answered with the canned row; otherwise with OK.
    has_row: bool,
}

impl Statement {
    fn new(command: u8, rest: &[u8], has_row: bool) -> Self {
        Self { packet: said(command, rest), has_row }
    }
}

/// How the load is asked for.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct MysqlLoad {
    /// Where to, as ADDRESS:PORT
    #[arg(long)]
    target: SocketAddr,
    /// How many connections
    #[arg(long)]
    pub connections: u32,
    /// How long; connections that are to stay have no more time to log in
    #[arg(long)]
    seconds: u64,
    #[arg(long, value_enum, default_value = "query")]
    work: Work,
    /// Over TLS
    #[arg(long)]
    tls: bool,
}

impl MysqlLoad {
    /// Whether its connections stay once all have had an answer.
    pub fn stays(&self) -> bool {
        self.work == Work::Idle
    }
}

/// The open connections of a finished load; dropping them closes them.
pub struct Held(Vec<Talk>);

impl Held {
    /// Counts those that the other side has closed by now.
    pub fn count_closed(&mut self) -> u64 {
        let mut piece = vec![0; PIECE_BYTES];
        let is_closed = |talk: &mut Talk| {
            !matches!(talk.channel.receive(&mut piece, &mut talk.input), Ok(Received::Some))
        };
        self.0.iter_mut().map(is_closed).filter(|is_closed| *is_closed).count() as u64
    }
}

/// Runs the load until its time is over, or until all connections that are to stay have had an answer.
///
/// An answer that is not the canned row is an error. Latencies are those of statements, for [`Work::Connect`]
/// and [`Work::Idle`] from the connect to the answer.
pub fn run(asked: &MysqlLoad) -> io::Result<(LoadResult, Held)> {
    let MysqlLoad { target, connections, seconds, work, tls } = *asked;
    super::users::descriptor_limit();
    let duration = Duration::from_secs(seconds);
    let mut load = Load {
        target,
        work,
        tls: if tls { Some(channel::client()?) } else { None },
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        latencies: Vec::new(),
        result: LoadResult::default(),
    };
    let mut talks = Vec::new();
    let mut events = Vec::with_capacity(256);
    let mut piece = vec![0; PIECE_BYTES];
    let begin = Instant::now();
    while begin.elapsed() < duration && load.result.error_count() < TOO_MANY {
        let answered = load.latencies.len() as u32;
        let wanted = if work == Work::Idle { connections.min(answered + BATCH) } else { connections };
        if work == Work::Idle && answered >= connections {
            break;
        }
        for key in talks.len() as u64..u64::from(wanted) {
            talks.push(load.open(key)?);
        }
        events.clear();
        let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        match epoll::wait(&load.epoll, rustix::buffer::spare_capacity(&mut events), Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let key = event.data.u64();
            let talk = &mut talks[key as usize];
            match load.go_on(talk, &mut piece) {
                Ok(Next::Same) => {}
                // Dropping the old connection closes it, which removes it from the epoll.
                Ok(Next::Another) => *talk = load.open(key)?,
                Err(error) => {
                    load.result.fail(talk.stage.name(), 1);
                    load.result.problem = Some(format!("{}: {error}", talk.stage.name()));
                    *talk = load.open(key)?;
                }
            }
        }
    }
    let mut result = load.result;
    result.seconds = begin.elapsed().as_secs_f64();
    result.requests = load.latencies.len() as u64;
    result.figures.insert(Metric::QUERY_RATE, result.requests as f64 / result.seconds);
    result.put_latencies(&mut load.latencies);
    Ok((result, Held(talks)))
}

struct Load {
    target: SocketAddr,
    work: Work,
    tls: Option<Arc<ClientConfig>>,
    epoll: OwnedFd,
    /// Microseconds.
    latencies: Vec<u32>,
    result: LoadResult,
}

/// The state of a connection: what it waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Greeting,
    Login,
    Preparing,
    /// How many packets of the answer have come, and how many rows.
    Answer {
        packets: u32,
        rows: u32,
    },
    /// Nothing: it has its answer.
    Idle,
}

impl Stage {
    const ANSWER: Self = Self::Answer { packets: 0, rows: 0 };

    /// The kind under which errors in this state are counted.
    fn name(self) -> &'static str {
        match self {
            Self::Greeting | Self::Login => "login",
            Self::Preparing => "prepare",
            Self::Answer { .. } => "answer",
            Self::Idle => "idle",
        }
    }
}

/// One connection.
struct Talk {
    channel: Channel,
    /// Bytes received but not understood yet.
    input: Vec<u8>,
    stage: Stage,
    /// The numbers of what it has prepared.
    numbers: Vec<[u8; 4]>,
    /// The statements that it sends in turn, and the index of the current one.
    statements: Vec<Statement>,
    at: usize,
    capabilities: u32,
    /// When the measured operation began.
    begun: Instant,
}

/// What follows on a connection.
#[derive(PartialEq, Eq)]
enum Next {
    /// It continues.
    Same,
    /// A new connection replaces it.
    Another,
}

impl Load {
    fn open(&self, key: u64) -> io::Result<Talk> {
        let begun = Instant::now();
        let channel = Channel::new(TcpStream::connect(self.target)?)?;
        epoll::add(&self.epoll, &channel, EventData::new_u64(key), EventFlags::IN)?;
        Ok(Talk {
            channel,
            input: Vec::new(),
            stage: Stage::Greeting,
            numbers: Vec::new(),
            statements: Vec::new(),
            at: 0,
            capabilities: 0,
            begun,
        })
    }

    /// Handles what was received. Err if the other side closes or sends something unexpected.
    fn go_on(&mut self, talk: &mut Talk, piece: &mut [u8]) -> io::Result<Next> {
        let before = talk.input.len();
        let received = talk.channel.receive(piece, &mut talk.input)?;
        self.result.bytes += (talk.input.len() - before) as u64;
        let input = std::mem::take(&mut talk.input);
        let mut used = 0;
        let mut next = Next::Same;
        while let Some(packet) = Packet::first(&input[used..]) {
            used += packet.bytes();
            next = self.take(talk, packet)?;
            if next == Next::Another {
                return Ok(next);
            }
        }
        if received == Received::End {
            return Err(io::Error::other("the connection was closed"));
        }
        let mut input = input;
        input.drain(..used);
        talk.input = input;
        Ok(next)
    }

    fn take(&mut self, talk: &mut Talk, packet: Packet<'_>) -> io::Result<Next> {
        if let Some(refusal) = packets::refusal(packet.payload) {
            return Err(io::Error::other(refusal));
        }
        let reply = packet.sequence.wrapping_add(1);
        match talk.stage {
            Stage::Greeting => self.log_in(talk, packet.payload, reply)?,
            Stage::Login => match packet.payload {
                [0, ..] => talk.prepare_or_begin(self.work)?,
                [1, packets::FAST] => {}
                // Over TLS the password may be sent; the lab's other clients use RSA.
                [1, packets::FULL] if talk.channel.is_encrypted() => {
                    let mut password = Vec::new();
                    packets::append_ended(&mut password, PASSWORD.as_bytes());
                    talk.send(reply, &password)?;
                }
                [0xfe, rest @ ..] => {
                    let nonce = rest.strip_prefix(PLUGIN.as_bytes()).and_then(|rest| rest.get(1..));
                    let nonce = nonce.and_then(|nonce| nonce.get(..packets::NONCE_BYTES));
                    let nonce = nonce.ok_or_else(|| unexpected("asked for another plugin", rest))?;
                    talk.send(reply, &packets::scramble(PASSWORD, nonce))?;
                }
                other => return Err(unexpected("answered a login with", other)),
            },
            Stage::Preparing => {
                // The statement's number comes first, then its parameter and its columns are described.
                if let [0, a, b, c, d, ..] = *packet.payload
                    && packet.sequence == 1
                {
                    talk.numbers.push([a, b, c, d]);
                }
                let has_row =
                    talk.numbers.len().checked_sub(1).map(|last| self.work.prepared()[last].has_row);
                let described = 1 + u8::from(has_row.unwrap_or(false));
                let each = if talk.has(capability::DEPRECATE_EOF) { 1 } else { 2 };
                if packet.sequence == 1 + described * each {
                    talk.prepare_or_begin(self.work)?;
                }
            }
            Stage::Answer { packets, rows } => return self.take_answer(talk, packet.payload, packets, rows),
            Stage::Idle => return Err(unexpected("said unasked", packet.payload)),
        }
        Ok(Next::Same)
    }

    /// Takes a packet of an answer, of which `packets` have come, `rows` of them rows.
    fn take_answer(&mut self, talk: &mut Talk, payload: &[u8], packets: u32, rows: u32) -> io::Result<Next> {
        let is_end = if talk.statements[talk.at].has_row {
            // The answer: the number of columns, one column, perhaps an EOF packet, rows, and the end.
            let head = if talk.has(capability::DEPRECATE_EOF) { 2 } else { 3 };
            let is_end = packets >= head && payload.first() == Some(&0xfe);
            let is_row = packets >= head && !is_end;
            if (packets == 0 && payload != [1]) || (is_row && !payload.ends_with(ROW)) {
                return Err(unexpected("answered a statement with", payload));
            }
            if is_end && rows != 1 {
                return Err(io::Error::other(format!("answered a statement with {rows} rows")));
            }
            if !is_end {
                talk.stage = Stage::Answer { packets: packets + 1, rows: rows + u32::from(is_row) };
            }
            is_end
        } else if payload.first() == Some(&0) {
            true
        } else {
            return Err(unexpected("answered a statement without rows with", payload));
        };
        if is_end {
            let latency = talk.begun.elapsed().as_micros();
            self.latencies.push(u32::try_from(latency).unwrap_or(u32::MAX));
            talk.at = (talk.at + 1) % talk.statements.len();
            match self.work {
                Work::Connect => {
                    talk.channel.send(&said(command::QUIT, b""))?;
                    return Ok(Next::Another);
                }
                Work::Idle => talk.stage = Stage::Idle,
                Work::Query | Work::Execute | Work::Transaction => talk.ask(self.work)?,
            }
        }
        Ok(Next::Same)
    }

    /// Answers the greeting, over TLS if that is wanted.
    fn log_in(&self, talk: &mut Talk, greeting: &[u8], sequence: u8) -> io::Result<()> {
        let (offered, nonce) = greeted(greeting).ok_or_else(|| unexpected("greeted with", greeting))?;
        talk.capabilities = capability::USUAL & offered;
        let mut sequence = sequence;
        if let Some(tls) = &self.tls {
            if offered & capability::SSL == 0 {
                return Err(io::Error::other("does not offer TLS"));
            }
            talk.capabilities |= capability::SSL;
            talk.send(sequence, &talk.introduction())?;
            sequence = sequence.wrapping_add(1);
            talk.channel.encrypt(channel::connect(tls)?, &[], &mut talk.input)?;
        }
        let answer = packets::scramble(PASSWORD, &nonce);
        let mut payload = talk.introduction();
        packets::append_ended(&mut payload, ACCOUNT.as_bytes());
        payload.push(answer.len() as u8);
        payload.extend_from_slice(&answer);
        packets::append_ended(&mut payload, DATABASE.as_bytes());
        packets::append_ended(&mut payload, PLUGIN.as_bytes());
        talk.stage = Stage::Login;
        talk.send(sequence, &payload)
    }
}

impl Talk {
    fn has(&self, capability: u32) -> bool {
        self.capabilities & capability != 0
    }

    /// The beginning of a login, which is also a whole SSLRequest.
    fn introduction(&self) -> Vec<u8> {
        let mut payload = self.capabilities.to_le_bytes().to_vec();
        payload.extend_from_slice(&(1_u32 << 24).to_le_bytes());
        payload.push(packets::UTF8MB4);
        payload.extend_from_slice(&[0; 23]);
        payload
    }

    fn send(&mut self, sequence: u8, payload: &[u8]) -> io::Result<()> {
        let mut output = Vec::new();
        packets::append(&mut output, sequence, payload);
        self.channel.send(&output)
    }

    /// Prepares the next statement if any is left; otherwise sends the first one.
    fn prepare_or_begin(&mut self, work: Work) -> io::Result<()> {
        if let Some(next) = work.prepared().get(self.numbers.len()) {
            self.stage = Stage::Preparing;
            return self.channel.send(&said(command::PREPARE, next.text));
        }
        self.statements = work.statements(&self.numbers);
        self.ask(work)
    }

    fn ask(&mut self, work: Work) -> io::Result<()> {
        if !matches!(work, Work::Connect | Work::Idle) {
            self.begun = Instant::now();
        }
        self.stage = Stage::ANSWER;
        self.channel.send(&self.statements[self.at].packet)
    }
}

/// A command as a packet.
fn said(command: u8, rest: &[u8]) -> Vec<u8> {
    let mut output = Vec::new();
    packets::append(&mut output, 0, &[&[command], rest].concat());
    output
}

/// A greeting's capabilities and nonce; `None` if it is not a HandshakeV10.
fn greeted(payload: &[u8]) -> Option<(u32, Vec<u8>)> {
    let mut rest = payload.strip_prefix(&[10])?;
    packets::take_ended(&mut rest)?;
    packets::take(&mut rest, 4)?;
    let mut nonce = packets::take(&mut rest, 8)?.to_vec();
    let &[_, low, less_low, _, _, _, high, highest, _] = packets::take(&mut rest, 9)? else { return None };
    packets::take(&mut rest, 10)?;
    nonce.extend_from_slice(packets::take(&mut rest, packets::NONCE_BYTES - 8)?);
    Some((u32::from_le_bytes([low, less_low, high, highest]), nonce))
}

fn unexpected(what: &str, payload: &[u8]) -> io::Error {
    let shown = String::from_utf8_lossy(&payload[..payload.len().min(80)]).into_owned();
    io::Error::other(format!("{what} `{}`", shown.escape_debug()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn loaded(work: Work, encrypted: bool) -> LoadResult {
        let listener = crate::backend::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        thread::spawn(move || crate::backend::mysql::serve(&listener, encrypted));
        run(&MysqlLoad { target, connections: 4, seconds: 1, work, tls: encrypted }).unwrap().0
    }

    #[test]
    fn every_kind_of_work_is_done_in_the_clear_and_over_tls() {
        for encrypted in [false, true] {
            for work in [Work::Query, Work::Execute, Work::Transaction, Work::Connect] {
                let result = loaded(work, encrypted);
                assert!(result.requests > 4, "{work:?}, TLS {encrypted}: {result:?}");
                assert_eq!(result.problem, None, "{work:?}, TLS {encrypted}");
                assert!(result.figures[&Metric::LATENCY_P50] > 0.0, "{result:?}");
            }
        }
    }

    #[test]
    fn idle_connections_have_one_answer_each_and_stay_open() {
        for encrypted in [false, true] {
            let listener = crate::backend::listen("127.0.0.1:0".parse().unwrap()).unwrap();
            let target = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
            thread::spawn(move || crate::backend::mysql::serve(&listener, encrypted));
            let asked =
                MysqlLoad { target, connections: BATCH + 6, seconds: 60, work: Work::Idle, tls: encrypted };
            let (result, mut held) = run(&asked).unwrap();
            assert_eq!((result.requests, result.error_count()), (70, 0), "{result:?}");
            assert_eq!((held.0.len(), held.count_closed()), (70, 0));
        }
    }

    #[test]
    fn tls_that_is_not_offered_is_an_error() {
        let listener = crate::backend::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
        thread::spawn(move || crate::backend::mysql::serve(&listener, false));
        let asked = MysqlLoad { target, connections: 1, seconds: 60, work: Work::Query, tls: true };
        let (result, _) = run(&asked).unwrap();
        assert_eq!(result.errors, [("login".to_owned(), TOO_MANY)].into());
        assert_eq!(result.problem.as_deref(), Some("login: does not offer TLS"));
    }
}
