//! Fills two gaps of rustls: it ends some connections with an error but without an alert, and it keeps early
//! data that it has skipped and goes on counting it.

use std::io;
use std::net::Shutdown;
use std::task::{Context, Poll, ready};

use rustls::{AlertDescription, Error, PeerMisbehaved, ProtocolVersion};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::{End, Tls, Wish};
use crate::buffers::{LARGE, SMALL};
use crate::socket::receive_ready;

/// Most bytes read and discarded after an alert.
const LINGER_BYTES: usize = 1 << 20;
/// How many states of rustls to go through until it has made the alert for an error: earlier output comes
/// first.
const ALERT_TURNS: usize = 6;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;

const HEAD_BYTES: usize = 5;
const TAG_BYTES: usize = 16;

impl Tls {
    /// Ends the connection because of an error of the peer's, and puts the alert that reports it into
    /// `outgoing`.
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
        // It goes behind what is already waiting to be sent.
        let mut held = self.outgoing.take().or_else(|| self.borrow(LARGE).ok());
        for _ in 0..ALERT_TURNS {
            let Some(outgoing) = &held else { return };
            let before = outgoing.filled().len();
            // rustls is shown the records at which it failed again, since it keeps offsets into them. Failing
            // to decrypt them a second time makes it emit an alert, and so does a record of an unknown type,
            // which it gets if nothing is left.
            if self.incoming.is_none() && self.encrypts {
                self.incoming = self.borrow(SMALL).ok();
                self.incoming.iter_mut().for_each(|incoming| incoming.append(&NO_RECORD));
            }
            let (discard, _) = self.turn(Wish::Nothing, &mut held);
            self.consume(discard);
            let Some(outgoing) = &mut held else { return };
            let made = outgoing.filled().get(before..).unwrap_or_default();
            if is_alert(made) {
                break;
            }
            if made.is_empty() && !self.encrypts {
                outgoing.append(&plain_alert(alert));
                break;
            }
        }
        self.outgoing = held.filter(|outgoing| !outgoing.is_empty());
    }

    /// After an error: sends the alert, shuts down our direction, and discards what the peer is still
    /// sending. Ready when the peer has closed, or has sent [`LINGER_BYTES`]; at once if there was no error.
    ///
    /// Closing with unread bytes would make the kernel send a reset, which can destroy the alert before the
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
            // No buffer is held while waiting, so that an attacker's closing connections take no memory.
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

/// The alert that reports an error (RFC 8446 §6.2); `None` if the error is an alert from the peer.
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

/// The record of a fatal alert from before encryption begins.
fn plain_alert(alert: AlertDescription) -> [u8; 7] {
    [ALERT, 3, 3, 0, 2, 2, alert.into()]
}

/// A record of a type that does not exist: rustls answers it with an alert, encrypted if need be.
const NO_RECORD: [u8; HEAD_BYTES] = [0, 3, 3, 0, 1];

/// Whether `record`, which was just made, is an alert. Under TLS 1.3 encryption it is recognized by its size:
/// level, description, type and tag.
fn is_alert(record: &[u8]) -> bool {
    match record.first() {
        Some(&ALERT) => true,
        Some(&APPLICATION_DATA) => record.len() == HEAD_BYTES + 2 + 1 + TAG_BYTES,
        _ => false,
    }
}

/// Whether everything that follows `record`, which was just made, is encrypted.
pub fn begins_encryption(record: &[u8], version: Option<ProtocolVersion>) -> bool {
    match record.first() {
        // TLS 1.3 sends it only for the sake of old middleboxes.
        Some(&CHANGE_CIPHER_SPEC) => version == Some(ProtocolVersion::TLSv1_2),
        Some(&APPLICATION_DATA) => true,
        _ => false,
    }
}

/// Bytes of early data at the front of `incoming` that rustls has tried to decrypt and skipped (RFC 8446
/// §4.2.10), if `incoming` consists of nothing but whole such records.
///
/// rustls discards such records only together with a later one that it could decrypt. Until that comes it
/// tries all of them again for each byte received, and counts them again each time: 8 KiB would exceed a
/// limit of 16. Skipped records are recognized by what aws-lc leaves of a record that it could not decrypt,
/// which is zeros; of one that it could decrypt, at least the content type is left. So no record is taken for
/// skipped whose content rustls keeps to put a message together.
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
