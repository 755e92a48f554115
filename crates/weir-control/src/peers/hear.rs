//! Listens to other Weirs: who may speak, and what follows from what they say.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use weir_io::{clock, handshake};
use weir_proxy::compiled::{LimitId, SharedLimit};

use super::lag::Lag;
use super::tell::{BEAT, clock_ms};
use super::wire::{self, Frame, ProcessId, VERSION};
use super::{Common, HeardCounts};
use crate::health::probe;
use crate::{lock, tasks};

/// Time for a handshake and the greeting.
const GREETING: Duration = Duration::from_secs(5);
/// How long a peer may be silent; it gives a sign each second.
const SILENT: Duration = Duration::from_secs(10);
/// Most connections that have not yet proved to come from a peer. The oldest gives way to a new one: a flood
/// of silent ones keeps no peer out, whose handshake takes milliseconds.
const GUESTS: usize = 64;
/// Most of them from one address.
const GUESTS_OF_ONE: usize = 8;
/// Most peers that are listened to.
const HEARINGS: usize = 256;
/// Pause after each connection: a handshake takes a fifth of a millisecond, so strangers get a part of one
/// CPU at most.
const BETWEEN: Duration = Duration::from_millis(4);
/// Pause when no connection can be accepted.
const CANNOT_ACCEPT: Duration = Duration::from_millis(100);
/// Shortest time between two log lines about strangers.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A peer that is listened to.
pub(super) struct Hearing {
    pub from: SocketAddr,
    pub entries: AtomicU64,
    /// Set once the same process has connected again: what this connection still says is in what the new one
    /// says.
    is_over: AtomicBool,
    over: Notify,
}

/// Connections that have not yet proved to come from a peer, the oldest first.
#[derive(Default)]
struct Guests {
    all: Mutex<VecDeque<(u64, IpAddr, AbortHandle)>>,
    reported: Mutex<Option<Duration>>,
}

impl Guests {
    fn enter(&self, number: u64, ip: IpAddr, task: AbortHandle) {
        let mut all = lock(&self.all);
        let of_one = all.iter().filter(|(_, other, _)| *other == ip).count();
        let victim = match (of_one >= GUESTS_OF_ONE, all.len() >= GUESTS) {
            (true, _) => all.iter().position(|(_, other, _)| *other == ip),
            (false, true) => Some(0),
            (false, false) => None,
        };
        if let Some((.., victim)) = victim.and_then(|at| all.remove(at)) {
            victim.abort();
        }
        all.push_back((number, ip, task));
    }

    fn leave(&self, number: u64) {
        lock(&self.all).retain(|(other, ..)| *other != number);
    }

    /// Whether to log this one.
    fn may_report(&self) -> bool {
        let mut reported = lock(&self.reported);
        let now = clock::now();
        let may = reported.is_none_or(|at| now.saturating_sub(at) >= REPORT_INTERVAL);
        if may {
            *reported = Some(now);
        }
        may
    }
}

/// Accepts connections. All of them end with this.
pub(super) async fn accept(common: Arc<Common>, listener: TcpListener) {
    let guests = Arc::new(Guests::default());
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        while let Some(ended) = connections.try_join_next() {
            if ended.is_err_and(|error: tokio::task::JoinError| error.is_panic()) {
                tasks::count_panic();
                tracing::error!("a connection of a peer ended by a panic: a mistake of Weir's own");
            }
        }
        match listener.accept().await {
            Ok((stream, from)) => {
                number += 1;
                let of = (common.clone(), guests.clone());
                let task = connections.spawn(serve(of, number, stream, from));
                guests.enter(number, from.ip(), task);
                sleep(BETWEEN).await;
            }
            Err(error) => {
                if guests.may_report() {
                    tracing::warn!(%error, "peers: a connection could not be accepted");
                }
                sleep(CANNOT_ACCEPT).await;
            }
        }
    }
}

async fn serve(
    (common, guests): (Arc<Common>, Arc<Guests>),
    number: u64,
    stream: TcpStream,
    from: SocketAddr,
) {
    let greeted = match timeout(GREETING, greet(&common, stream)).await {
        Ok(greeted) => greeted,
        Err(_) => Err(format!("it has not said who it is within {GREETING:?}")),
    };
    guests.leave(number);
    let (process, stream) = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            common.heard.strangers.fetch_add(1, Relaxed);
            if guests.may_report() {
                tracing::warn!(%from, error, "peers: somebody is not listened to");
            }
            return;
        }
    };
    if process == common.process {
        return;
    }
    let Some(hearing) = begin(&common, process, from) else {
        tracing::warn!(%from, "peers: {HEARINGS} are listened to already");
        return;
    };
    let registered = Registered { common: &common, process, hearing: &hearing };
    tracing::info!(%from, "peers: listened to from now on");
    common.has_come.notify_waiters();
    let (reader, writer) = split(stream);
    let generation = common.limits_generation.subscribe();
    let why = tokio::select! {
        why = hear(&common, &hearing, reader) => why,
        why = answer(writer, generation) => why,
        () = hearing.over.notified() => "it has connected again".to_owned(),
    };
    if registered.is_last() {
        tracing::warn!(%from, error = why, "peers: no longer listened to");
    }
}

/// A peer that is listened to, until this is dropped: a task can end anywhere.
struct Registered<'h> {
    common: &'h Common,
    process: ProcessId,
    hearing: &'h Arc<Hearing>,
}

impl Registered<'_> {
    /// Whether no newer connection of the same process has taken its place.
    fn is_last(&self) -> bool {
        let hearings = lock(&self.common.hearings);
        hearings.get(&self.process).is_some_and(|other| Arc::ptr_eq(other, self.hearing))
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if self.is_last() {
            lock(&self.common.hearings).remove(&self.process);
        }
    }
}

/// The newer connection of a process takes the place of the older one.
fn begin(common: &Common, process: ProcessId, from: SocketAddr) -> Option<Arc<Hearing>> {
    let (entries, over) = (AtomicU64::new(0), Notify::new());
    let hearing = Arc::new(Hearing { from, entries, is_over: AtomicBool::new(false), over });
    let mut hearings = lock(&common.hearings);
    if hearings.len() >= HEARINGS && !hearings.contains_key(&process) {
        return None;
    }
    if let Some(before) = hearings.insert(process, hearing.clone()) {
        before.is_over.store(true, Relaxed);
        before.over.notify_one();
    }
    Some(hearing)
}

async fn greet(common: &Common, stream: TcpStream) -> Result<(ProcessId, TlsStream<TcpStream>), String> {
    let keys = lock(&common.keys).clone().ok_or("there is no secret")?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let accepting = TlsAcceptor::from(keys.server.clone()).accept(stream).await;
    let mut stream = accepting.map_err(|error| format!("no TLS: {}", handshake::describe(&error)))?;
    let Heard { frame: Some(Frame::Hello { version, process }), .. } =
        read_frame(&mut stream, &mut Vec::new()).await?
    else {
        return Err("it said something else than who it is".to_owned());
    };
    let mut hello = Vec::new();
    wire::put(&mut hello, &Frame::Hello { version: VERSION, process: common.process });
    stream.write_all(&hello).await.map_err(|error| plain(&error))?;
    stream.flush().await.map_err(|error| plain(&error))?;
    match version {
        VERSION => Ok((process, stream)),
        _ => Err(format!("it speaks version {version}, expected {VERSION}")),
    }
}

/// Does what the peer says; returns why it ended.
async fn hear(common: &Common, hearing: &Hearing, mut reader: ReadHalf<TlsStream<TcpStream>>) -> String {
    let (mut buffer, mut lag) = (Vec::new(), Lag::default());
    loop {
        let heard = match timeout(SILENT, read_frame(&mut reader, &mut buffer)).await {
            Ok(Ok(heard)) => heard,
            Ok(Err(why)) => {
                common.heard.mistakes.fetch_add(u64::from(!why.starts_with(BROKE)), Relaxed);
                return why;
            }
            Err(_) => return format!("it was silent for {SILENT:?}"),
        };
        if hearing.is_over.load(Relaxed) {
            return "it has connected again".to_owned();
        }
        common.heard.bytes.fetch_add(heard.bytes as u64, Relaxed);
        let limits = lock(&common.limits).clone();
        let entries = heard.frame.map_or(0, |frame| take(frame, &limits, &mut lag, &common.heard));
        hearing.entries.fetch_add(entries, Relaxed);
        common.heard.entries.fetch_add(entries, Relaxed);
    }
}

/// Changes the limits by what a peer said; returns how many entries that were.
fn take(frame: Frame, limits: &HashMap<LimitId, SharedLimit>, lag: &mut Lag, counts: &HeardCounts) -> u64 {
    let now = clock::now();
    let find = |limit: &LimitId| {
        let found = limits.get(limit);
        counts.unknown.fetch_add(u64::from(found.is_none()), Relaxed);
        found
    };
    match frame {
        Frame::Counts { limit, sent_ms, counts } => {
            let age = lag.of(sent_ms, now);
            let Some(limit) = find(&limit) else { return 0 };
            counts.iter().for_each(|count| limit.merge_count(*count, age, now));
            counts.len() as u64
        }
        Frame::Debts { limit, debts } => {
            let Some(limit) = find(&limit) else { return 0 };
            debts.iter().for_each(|debt| limit.merge_debt(*debt, now));
            debts.len() as u64
        }
        Frame::Cleared { limit, key } => {
            let Some(limit) = find(&limit) else { return 0 };
            limit.merge_clear(key, now);
            1
        }
        Frame::Beat { sent_ms } => {
            lag.of(sent_ms, now);
            0
        }
        Frame::Hello { .. } | Frame::Again => 0,
    }
}

/// Gives signs of life, and asks for everything again when the limits are other ones; returns why it ended.
async fn answer(mut writer: WriteHalf<TlsStream<TcpStream>>, mut generation: watch::Receiver<u64>) -> String {
    loop {
        let mut bytes = Vec::new();
        tokio::select! {
            () = sleep(BEAT) => wire::put(&mut bytes, &Frame::Beat { sent_ms: clock_ms() }),
            changed = generation.changed() => match changed {
                Ok(()) => wire::put(&mut bytes, &Frame::Again),
                Err(_) => return "this process ends".to_owned(),
            },
        }
        let written = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        match timeout(SILENT, written).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return format!("{BROKE}{}", plain(&error)),
            Err(_) => return format!("it took nothing for {SILENT:?}"),
        }
    }
}

/// An error as a message for people. Processes that are killed send no `close_notify`.
pub(super) fn plain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
        _ => probe::plain(error),
    }
}

/// How a connection that ended without a mistake begins its reason.
const BROKE: &str = "the connection broke: ";

/// What was read.
pub(super) struct Heard {
    /// `None` for one of an unknown kind.
    pub frame: Option<Frame>,
    pub bytes: usize,
}

/// Reads a frame. Memory is only used for bytes that have come.
pub(super) async fn read_frame(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<Heard, String> {
    let mut head = [0; 4];
    reader.read_exact(&mut head).await.map_err(|error| format!("{BROKE}{}", plain(&error)))?;
    let length = wire::length(head).map_err(|mistake| mistake.to_string())?;
    buffer.clear();
    let read = reader.take(length as u64).read_to_end(buffer).await;
    read.map_err(|error| format!("{BROKE}{}", plain(&error)))?;
    if buffer.len() < length {
        return Err(format!("{BROKE}it ended within a frame"));
    }
    let frame = wire::decode(buffer).map_err(|mistake| mistake.to_string())?;
    Ok(Heard { frame, bytes: length + 4 })
}
