//! What is said and read when rustls does not: alerts for errors that it ends a connection over without a
//! word, and early data that it has skipped and goes on counting.

use std::io;
use std::net::Shutdown;
use std::task::{Context, Poll, ready};

use rustls::{AlertDescription, Error, PeerMisbehaved, ProtocolVersion};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::{End, Tls, Wish};
use crate::buffers::{LARGE, SMALL};
use crate::socket::receive_ready;

/// Most bytes read away behind an alert.
const LINGER_BYTES: usize = 1 << 20;
/// States of rustls until it has made the alert for an error: what it has made before comes first.
const ALERT_TURNS: usize = 6;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;

const HEAD_BYTES: usize = 5;
const TAG_BYTES: usize = 16;

impl Tls {
    /// Ends the connection by an error of the peer's, and has the alert that tells it of that in `outgoing`.
    pub(super) fn end_by(&mut self, error: &io::Error) {
        self.ended = Some(End::Cut);
        let alert = alert_of(error);
        if !self.is_broken
            && let Some(alert) = alert
        {
            self.collect_alert(alert);
        }
        self.is_broken = true;
    }

    fn collect_alert(&mut self, alert: AlertDescription) {
        // It goes behind what is to be sent already.
        let Ok(mut outgoing) = self.outgoing.take().map_or_else(|| self.borrow(LARGE), Ok) else { return };
        for _ in 0..ALERT_TURNS {
            let before = outgoing.filled().len();
            // The records at which it failed are shown to rustls again: it keeps places in them. What it
            // can't decrypt a second time is an error of its own, and so is a record of no type, which it
            // gets where nothing is left.
            if self.incoming.is_none() && self.encrypts {
                self.incoming = self.borrow(SMALL).ok();
                self.incoming.iter_mut().for_each(|incoming| incoming.append(&NO_RECORD));
            }
            let (discard, _) = self.turn(Wish::Nothing, &mut outgoing);
            self.consume(discard);
            let made = outgoing.filled().get(before..).unwrap_or_default();
            if is_alert(made) {
                break;
            }
            if made.is_empty() && !self.encrypts {
                outgoing.append(&plain_alert(alert));
                break;
            }
        }
        if !outgoing.is_empty() {
            self.outgoing = Some(outgoing);
        }
    }

    /// After an error: sends the alert, says that nothing more comes, and reads away what the peer is still
    /// sending. Ready when the peer has closed, or has sent [`LINGER_BYTES`]; at once where there was no
    /// error.
    ///
    /// To close with bytes unread would make the kernel send a reset, which can destroy the alert before the
    /// peer has read it.
    pub fn poll_linger(&mut self, socket: &TcpStream, context: &mut Context<'_>) -> Poll<()> {
        if !self.is_broken {
            return Poll::Ready(());
        }
        self.incoming = None;
        let mut lingered = match self.lingered {
            Some(lingered) => lingered,
            None => {
                let flushed = ready!(self.poll_flush(socket, context));
                if flushed.is_err() || SockRef::from(socket).shutdown(Shutdown::Write).is_err() {
                    return Poll::Ready(());
                }
                0
            }
        };
        while lingered < LINGER_BYTES {
            self.lingered = Some(lingered);
            // No buffer while waiting: an attacker's closing connections hold nothing.
            if ready!(socket.poll_read_ready(context)).is_err() {
                return Poll::Ready(());
            }
            let Some(mut waste) = self.buffers.borrow(SMALL) else { return Poll::Ready(()) };
            match ready!(receive_ready(socket, context, &mut waste)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(count) => lingered += count,
            }
        }
        Poll::Ready(())
    }
}

/// The alert that an error is told by (RFC 8446 §6.2); `None` for one that the peer told us of.
fn alert_of(error: &io::Error) -> Option<AlertDescription> {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match inner.unwrap_or(&Error::DecryptError) {
        Error::AlertReceived(_) => None,
        Error::PeerMisbehaved(PeerMisbehaved::ServerNameDifferedOnRetry) => {
            Some(AlertDescription::IllegalParameter)
        }
        Error::PeerMisbehaved(_) => Some(AlertDescription::UnexpectedMessage),
        _ => Some(AlertDescription::DecodeError),
    }
}

/// The record of a fatal alert that is sent before anything is encrypted.
fn plain_alert(alert: AlertDescription) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, 2, alert.into()]
}

/// A record of a type that does not exist: rustls answers it with an alert, encrypted where that is due.
const NO_RECORD: [u8; HEAD_BYTES] = [0, 3, 3, 0, 1];

/// Whether `record`, which was just made, is an alert. Encrypted by TLS 1.3 it is known by its size: level,
/// description, type and tag.
fn is_alert(record: &[u8]) -> bool {
    match record.first() {
        Some(&ALERT) => true,
        Some(&APPLICATION_DATA) => record.len() == HEAD_BYTES + 2 + 1 + TAG_BYTES,
        _ => false,
    }
}

/// Whether all that follows `record`, which was just made, is encrypted.
pub fn begins_encryption(record: &[u8], version: Option<ProtocolVersion>) -> bool {
    match record.first() {
        // TLS 1.3 sends it for the sake of old middleboxes only.
        Some(&CHANGE_CIPHER_SPEC) => version == Some(ProtocolVersion::TLSv1_2),
        Some(&APPLICATION_DATA) => true,
        _ => false,
    }
}

/// Bytes of early data at the front of `incoming` that rustls has tried to decrypt and skipped (RFC 8446
/// §4.2.10), when whole records of it are all that is there.
///
/// Rustls discards such records only together with one behind them that it could decrypt. Until that comes it
/// tries them all anew for each byte received, and counts them again each time: 8 KiB would exceed a limit of
/// 16. They are known by what aws-lc leaves of what it could not decrypt, which is zeros; of what it could,
/// the type of the content is left at least. So no record is taken for skipped whose content rustls keeps to
/// put a message together.
pub fn skipped_bytes(incoming: &[u8]) -> usize {
    let mut skipped = 0;
    while let Some([kind, _, _, high, low, rest @ ..]) = incoming.get(skipped..) {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let Some(payload) = rest.get(..length) else { break };
        let content = payload.get(..length.saturating_sub(TAG_BYTES)).unwrap_or_default();
        if *kind != APPLICATION_DATA || content.iter().any(|&byte| byte != 0) {
            return 0;
        }
        skipped += HEAD_BYTES + length;
    }
    skipped
}
