//! The packets that end an answer: OK, ERR and EOF.
//!
//! Source: MySQL internals, "Generic Response Packets".

use std::fmt;

use crate::capability::{Capabilities, StatusFlags};
use crate::value::{PayloadCursor, write_integer, write_string};
use crate::wire_error::WireError;

/// First byte of an OK packet.
pub const OK: u8 = 0x00;
/// First byte of an EOF packet, and of the OK packet that replaces it.
pub const EOF: u8 = 0xFE;
/// First byte of an ERR packet.
pub const ERR: u8 = 0xFF;

/// The SQL state of errors without one of their own: "general error".
pub const GENERAL_STATE: [u8; 5] = *b"HY000";

/// The session state information of an OK packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionChanges<'a> {
    /// No tracked state has changed.
    None,
    /// The changes, for [`crate::session_track::TrackedChanges`].
    Told(&'a [u8]),
    /// There was more than the reader could hold: anything may have changed.
    TooLong,
}

/// An OK packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OkPacket<'a> {
    /// Rows inserted, updated or deleted (count).
    pub affected_rows: u64,
    /// The first AUTO_INCREMENT value that was generated, or 0.
    pub insert_id: u64,
    /// The session's status after the statement.
    pub status: StatusFlags,
    /// Warnings that SHOW WARNINGS would list (count).
    pub warnings: u16,
    /// A human-readable message.
    pub info: &'a [u8],
    /// The session state changes; only with [`Capabilities::SESSION_TRACK`].
    pub changes: SessionChanges<'a>,
}

/// An EOF packet: ends columns and rows for clients without [`Capabilities::DEPRECATE_EOF`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EofPacket {
    /// Warnings that SHOW WARNINGS would list (count).
    pub warnings: u16,
    /// The session's status after the statement.
    pub status: StatusFlags,
}

/// An ERR packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrPacket<'a> {
    /// The server's error number, such as 1290.
    pub code: u16,
    /// The SQL state, five characters; [`GENERAL_STATE`] if the packet has none, as during the handshake.
    pub state: [u8; 5],
    /// A human-readable message.
    pub message: &'a [u8],
}

impl<'a> OkPacket<'a> {
    /// An OK packet with nothing but a status.
    pub fn of(status: StatusFlags) -> OkPacket<'static> {
        OkPacket {
            affected_rows: 0,
            insert_id: 0,
            status,
            warnings: 0,
            info: b"",
            changes: SessionChanges::None,
        }
    }

    /// Parses the payload of an OK packet, including its first byte ([`OK`] or [`EOF`]). `capabilities` are
    /// those of the connection.
    pub fn parse(payload: &'a [u8], capabilities: Capabilities) -> Result<OkPacket<'a>, WireError> {
        let (ok, mut cursor) = OkPacket::parse_numbers(payload)?;
        // A server omits the text if both it and the changes are empty.
        let info = if cursor.is_at_end() { b"" } else { cursor.string()? };
        let is_told = capabilities.has(Capabilities::SESSION_TRACK)
            && ok.status.has(StatusFlags::SESSION_STATE_CHANGED);
        let changes = match is_told {
            true => SessionChanges::Told(cursor.string()?),
            false => SessionChanges::None,
        };
        cursor.end()?;
        Ok(OkPacket { info, changes, ..ok })
    }

    /// Parses the fields before the text, if only the beginning of the packet is available.
    pub(crate) fn parse_beginning(beginning: &[u8]) -> Result<OkPacket<'static>, WireError> {
        let (ok, _) = OkPacket::parse_numbers(beginning)?;
        Ok(OkPacket { changes: SessionChanges::TooLong, info: b"", ..ok })
    }

    fn parse_numbers(payload: &[u8]) -> Result<(OkPacket<'static>, PayloadCursor<'_>), WireError> {
        let mut cursor = PayloadCursor::new(payload);
        if !matches!(cursor.u8()?, OK | EOF) {
            return Err(WireError::UnexpectedPacket);
        }
        let (affected_rows, insert_id) = (cursor.integer()?, cursor.integer()?);
        let (status, warnings) = (StatusFlags(cursor.u16()?), cursor.u16()?);
        Ok((OkPacket { affected_rows, insert_id, warnings, ..OkPacket::of(status) }, cursor))
    }

    /// Appends the payload for a client with these capabilities. `first` is [`OK`], or [`EOF`] at the end of
    /// rows. [`SessionChanges::TooLong`] cannot be written and is left out.
    pub fn write(&self, out: &mut Vec<u8>, first: u8, capabilities: Capabilities) {
        let told = match self.changes {
            SessionChanges::Told(told) if capabilities.has(Capabilities::SESSION_TRACK) => Some(told),
            _ => None,
        };
        let mut status = self.status.0 & !StatusFlags::SESSION_STATE_CHANGED.0;
        if told.is_some() {
            status |= StatusFlags::SESSION_STATE_CHANGED.0;
        }
        out.push(first);
        write_integer(out, self.affected_rows);
        write_integer(out, self.insert_id);
        out.extend_from_slice(&status.to_le_bytes());
        out.extend_from_slice(&self.warnings.to_le_bytes());
        // Servers write the length of the text even without CLIENT_SESSION_TRACK, where the protocol
        // documentation has none, and clients expect it.
        if told.is_some() || !self.info.is_empty() {
            write_string(out, self.info);
            if let Some(told) = told {
                write_string(out, told);
            }
        }
    }

    /// The same without its texts.
    pub(crate) fn numbers(self) -> OkPacket<'static> {
        OkPacket { info: b"", changes: SessionChanges::TooLong, ..self }
    }
}

impl EofPacket {
    /// Bytes of an EOF packet's payload.
    pub const BYTES: usize = 5;

    /// Reads the payload of an EOF packet.
    pub fn parse(payload: &[u8]) -> Result<EofPacket, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        if cursor.u8()? != EOF {
            return Err(WireError::UnexpectedPacket);
        }
        let packet = EofPacket { warnings: cursor.u16()?, status: StatusFlags(cursor.u16()?) };
        cursor.end()?;
        Ok(packet)
    }

    /// Appends the payload.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(EOF);
        out.extend_from_slice(&self.warnings.to_le_bytes());
        out.extend_from_slice(&self.status.0.to_le_bytes());
    }
}

impl<'a> ErrPacket<'a> {
    /// Parses the payload of an ERR packet. The SQL state is optional: servers omit it before the login.
    pub fn parse(payload: &'a [u8]) -> Result<ErrPacket<'a>, WireError> {
        let mut cursor = PayloadCursor::new(payload);
        if cursor.u8()? != ERR {
            return Err(WireError::UnexpectedPacket);
        }
        let code = cursor.u16()?;
        let mut state = GENERAL_STATE;
        if cursor.remaining().first() == Some(&b'#') {
            cursor.u8()?;
            state = cursor.array()?;
        }
        Ok(ErrPacket { code, state, message: cursor.rest() })
    }

    /// Appends the payload, including the SQL state.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.push(ERR);
        out.extend_from_slice(&self.code.to_le_bytes());
        out.push(b'#');
        out.extend_from_slice(&self.state);
        out.extend_from_slice(self.message);
    }

    /// Appends the payload for an ERR packet sent in place of a greeting: without SQL state, because nothing
    /// is known of the client yet.
    pub fn write_as_greeting(&self, out: &mut Vec<u8>) {
        out.push(ERR);
        out.extend_from_slice(&self.code.to_le_bytes());
        out.extend_from_slice(self.message);
    }
}

impl fmt::Display for ErrPacket<'_> {
    /// For logs: the error number, and the message as [`printable`].
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.code, printable(self.message))
    }
}

/// Most characters of a peer's text that are shown.
const SHOWN_CHARACTERS: usize = 200;

/// Makes a peer's text safe for a log line or a status. Control characters become spaces, because they would
/// end the line or affect a terminal; bytes that are not UTF-8 become U+FFFD; long texts are cut.
pub fn printable(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    text.chars().take(SHOWN_CHARACTERS).map(|it| if it.is_control() { ' ' } else { it }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACKED: Capabilities = Capabilities::SESSION_TRACK;

    #[test]
    fn an_ok_packet_is_read_as_it_was_written() {
        let ok = OkPacket {
            affected_rows: 300,
            insert_id: u64::MAX,
            status: StatusFlags(0x4002),
            warnings: 3,
            info: b"Rows matched: 300",
            changes: SessionChanges::Told(b"\x01\x05\x04shop"),
        };
        let mut out = Vec::new();
        ok.write(&mut out, OK, TRACKED);
        assert_eq!(OkPacket::parse(&out, TRACKED), Ok(ok));
        let mut plain = Vec::new();
        ok.write(&mut plain, OK, Capabilities::NONE);
        let read = OkPacket::parse(&plain, Capabilities::NONE).expect("it is an OK packet");
        assert_eq!((read.info, read.changes), (ok.info, SessionChanges::None));
        assert_eq!(read.status, StatusFlags(2), "nothing is told, so nothing is said to have changed");
    }

    #[test]
    fn a_text_has_its_length_before_it_without_session_tracking_too() {
        // As mysqld 9.7.4 answers an UPDATE of a client without CLIENT_SESSION_TRACK.
        let packet = b"\0\x03\0\x02\0\0\0\x28Rows matched: 3  Changed: 3  Warnings: 0";
        let ok = OkPacket::parse(packet, Capabilities::NONE).expect("an OK packet");
        assert_eq!(ok.info, b"Rows matched: 3  Changed: 3  Warnings: 0");
        let mut out = Vec::new();
        ok.write(&mut out, OK, Capabilities::NONE);
        assert_eq!(out, packet);
    }

    #[test]
    fn the_shortest_ok_packet_has_neither_text_nor_changes() {
        let ok = OkPacket::parse(b"\0\0\0\x02\0\0\0", TRACKED).expect("a server's answer to COM_PING");
        assert_eq!(ok, OkPacket::of(StatusFlags::AUTOCOMMIT));
    }

    #[test]
    fn an_ok_packet_cut_anywhere_is_refused() {
        let whole = b"\0\x01\0\x02\x40\0\0\x02hi\x07\x01\x05\x04shop";
        assert!(OkPacket::parse(whole, TRACKED).is_ok());
        for cut in (0..whole.len()).filter(|cut| *cut != 7) {
            assert!(OkPacket::parse(&whole[..cut], TRACKED).is_err(), "cut at {cut}");
        }
        assert_eq!(OkPacket::parse(b"\0\x01\0\x02\0\0\0\x02hi!", TRACKED), Err(WireError::TrailingBytes));
    }

    #[test]
    fn an_error_has_a_state_only_after_the_greeting() {
        let refused = ErrPacket::parse(b"\xff\x10\x04Too many connections").expect("1040 as greeting");
        assert_eq!((refused.code, refused.state), (1040, GENERAL_STATE));
        assert_eq!(refused.message, b"Too many connections");
        let mut out = Vec::new();
        refused.write_as_greeting(&mut out);
        assert_eq!(out, b"\xff\x10\x04Too many connections");
        let denied = ErrPacket { code: 1045, state: *b"28000", message: b"Access denied" };
        out.clear();
        denied.write(&mut out);
        assert_eq!(out, b"\xff\x15\x04#28000Access denied");
        assert_eq!(ErrPacket::parse(&out), Ok(denied));
        assert_eq!(ErrPacket::parse(b"\xff\x15\x04#280"), Err(WireError::Truncated));
    }

    #[test]
    fn an_eof_packet_has_five_bytes() {
        let eof = EofPacket { warnings: 1, status: StatusFlags(0x22) };
        let mut out = Vec::new();
        eof.write(&mut out);
        assert_eq!(out, b"\xfe\x01\0\x22\0");
        assert_eq!(EofPacket::parse(&out), Ok(eof));
        assert_eq!(EofPacket::parse(b"\xfe\x01\0\x22"), Err(WireError::Truncated));
        assert_eq!(EofPacket::parse(b"\xfe\x01\0\x22\0\0"), Err(WireError::TrailingBytes));
    }

    #[test]
    fn what_a_server_says_is_one_line_in_a_log() {
        let message = "Zugriff f\u{fc}r dich\nverweigert\x1b[2J\0".as_bytes();
        let error = ErrPacket { code: 1045, state: *b"28000", message };
        assert_eq!(error.to_string(), "1045 Zugriff f\u{fc}r dich verweigert [2J ");
        assert_eq!(printable(b"\xff\x9b7"), "\u{fffd}\u{fffd}7");
        assert_eq!(printable(&[b'x'; 300]).len(), 200);
    }
}
