//! One connection to another Weir, which is told what this one counts.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf, split};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use weir_io::{clock, handshake};

use super::Common;
use super::hear::{Heard, plain, read_frame};
use super::outbox::Outbox;
use super::wire::{self, Frame, ProcessId, VERSION};
use crate::{lock, outgoing};

/// Time for a connection, with its handshake and greetings.
const CONNECT: Duration = Duration::from_secs(5);
/// How long a peer may take nothing of what is sent.
const STALLED: Duration = Duration::from_secs(10);
/// How long a peer may be silent; it gives a sign each second.
const SILENT: Duration = Duration::from_secs(10);
/// Interval of signs where nothing else is said.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// First pause before the next attempt; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Pause where there is nobody else to talk to.
const OWN_PAUSE: Duration = Duration::from_secs(30);

/// A Weir that is told.
pub(super) struct Peer {
    pub address: String,
    pub outbox: Outbox,
    pub standing: Mutex<Standing>,
    pub bytes: AtomicU64,
    /// Counts and debts of keys.
    pub entries: AtomicU64,
    /// How often it was too slow and had to be told everything again.
    pub behind: AtomicU64,
}

/// Whether a peer is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// Not tried yet.
    #[default]
    Unknown,
    /// It is told; the process on the other side.
    Told(ProcessId),
    /// It is this Weir.
    Own,
    /// It is not reached.
    Away(String),
}

impl Peer {
    pub fn new(address: String) -> Peer {
        Peer {
            address,
            outbox: Outbox::default(),
            standing: Mutex::default(),
            bytes: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            behind: AtomicU64::new(0),
        }
    }

    /// Whether it is this process.
    pub fn is_own(&self) -> bool {
        *lock(&self.standing) == Standing::Own
    }

    /// Has it told these frames, with so many entries.
    pub fn put(&self, frames: &[u8], entries: usize) {
        if !frames.is_empty() {
            self.note(entries, self.outbox.put(frames));
        }
    }

    /// So many entries were put in for it, or it has fallen behind.
    pub fn note(&self, entries: usize, is_put: bool) {
        match is_put {
            true => _ = self.entries.fetch_add(entries as u64, Relaxed),
            false => _ = self.behind.fetch_add(1, Relaxed),
        }
    }

    fn stand(&self, standing: Standing) {
        let mut before = lock(&self.standing);
        if *before == standing {
            return;
        }
        match (&standing, &*before) {
            (Standing::Told(_), _) => tracing::info!(peer = self.address, "peers: told from now on"),
            // Once is enough, whatever the reasons of later attempts.
            (Standing::Away(error), Standing::Told(_) | Standing::Unknown | Standing::Own) => {
                tracing::warn!(peer = self.address, error, "peers: not told, so it counts without this Weir");
            }
            _ => {}
        }
        *before = standing;
    }
}

/// Why a peer is not told.
enum Ended {
    /// The other side is this process.
    Own,
    Failed(String),
}

/// Keeps a connection to the peer.
pub(super) async fn keep(common: Arc<Common>, peer: Arc<Peer>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let ended = once(&common, &peer).await;
        peer.outbox.close();
        if matches!(*lock(&peer.standing), Standing::Told(_)) {
            pause = FIRST_PAUSE;
        }
        let wait = match ended {
            Ended::Own => {
                peer.stand(Standing::Own);
                OWN_PAUSE
            }
            Ended::Failed(why) => {
                peer.stand(Standing::Away(why));
                pause
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = common.has_come.notified() => sleep(FIRST_PAUSE / 2).await,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn once(common: &Common, peer: &Peer) -> Ended {
    let connected = match timeout(CONNECT, connect(common, peer)).await {
        Ok(connected) => connected,
        Err(_) => Err(format!("no answer within {CONNECT:?}")),
    };
    let (process, stream) = match connected {
        Ok(connected) => connected,
        Err(why) => return Ended::Failed(why),
    };
    if process == common.process {
        return Ended::Own;
    }
    let is_told = |other: &&Arc<Peer>| *lock(&other.standing) == Standing::Told(process);
    if let Some(other) =
        lock(&common.peers).iter().filter(|other| other.address != peer.address).find(is_told)
    {
        return Ended::Failed(format!("it is the same Weir as {}", other.address));
    }
    peer.outbox.open();
    peer.stand(Standing::Told(process));
    common.changed.notify_one();
    let (reader, writer) = split(stream);
    let why = tokio::select! {
        why = write(common, peer, writer) => why,
        why = read(peer, common, reader) => why,
    };
    Ended::Failed(why)
}

async fn connect(common: &Common, peer: &Peer) -> Result<(ProcessId, TlsStream<TcpStream>), String> {
    let keys = lock(&common.keys).clone().ok_or("there is no secret")?;
    let stream = outgoing::connect_to(&peer.address).await.map_err(|error| plain(&error))?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    // Names mean nothing: who has the key is a peer.
    let name = ServerName::try_from("peer.invalid").map_err(|error| error.to_string())?;
    let connecting = TlsConnector::from(keys.client.clone()).connect(name, stream).await;
    let mut stream = connecting.map_err(|error| format!("no TLS: {}", handshake::describe(&error)))?;
    let mut hello = Vec::new();
    wire::put(&mut hello, &Frame::Hello { version: VERSION, process: common.process });
    stream.write_all(&hello).await.map_err(greeting_failed)?;
    stream.flush().await.map_err(greeting_failed)?;
    match read_frame(&mut stream, &mut Vec::new()).await? {
        Heard { frame: Some(Frame::Hello { version: VERSION, process }), .. } => Ok((process, stream)),
        Heard { frame: Some(Frame::Hello { version, .. }), .. } => {
            Err(format!("it speaks version {version}, expected {VERSION}"))
        }
        _ => Err("it said something else than who it is".to_owned()),
    }
}

/// With TLS 1.3 a server refuses a client only after the client has finished its handshake.
fn greeting_failed(error: io::Error) -> String {
    format!("it ended the connection, as one with another secret does: {}", plain(&error))
}

/// Sends what waits; returns why it ended.
async fn write(common: &Common, peer: &Peer, mut writer: WriteHalf<TlsStream<TcpStream>>) -> String {
    loop {
        let mut bytes = peer.outbox.take();
        if bytes.is_empty() {
            tokio::select! {
                () = peer.outbox.filled.notified() => continue,
                () = sleep(BEAT) => wire::put(&mut bytes, &Frame::Beat { sent_ms: clock_ms() }),
            }
        }
        let written = async {
            writer.write_all(&bytes).await?;
            writer.flush().await
        };
        match timeout(STALLED, written).await {
            Ok(Ok(())) => _ = peer.bytes.fetch_add(bytes.len() as u64, Relaxed),
            Ok(Err(error)) => return format!("the connection broke: {}", plain(&error)),
            Err(_) => return format!("it took nothing for {STALLED:?}"),
        }
        if !peer.outbox.is_complete() {
            // There is room again.
            common.changed.notify_one();
        }
    }
}

/// Waits for signs of life; returns why it ended.
async fn read(peer: &Peer, common: &Common, mut reader: ReadHalf<TlsStream<TcpStream>>) -> String {
    let mut buffer = Vec::new();
    loop {
        match timeout(SILENT, read_frame(&mut reader, &mut buffer)).await {
            Ok(Ok(Heard { frame: Some(Frame::Again), .. })) => {
                peer.outbox.tell_again();
                common.changed.notify_one();
            }
            Ok(Ok(_)) => {}
            Ok(Err(why)) => return why,
            Err(_) => return format!("it was silent for {SILENT:?}"),
        }
    }
}

pub(super) fn clock_ms() -> u64 {
    u64::try_from(clock::now().as_millis()).unwrap_or(u64::MAX)
}
