//! Packets of MySQL's protocol, as far as a client must read them to know where an answer ends.
//!
//! Source: MySQL's source, "Client/Server Protocol" (page_protocol_basic_packets,
//! page_protocol_command_phase).

use std::fmt::Write as _;

/// A capability flag of the protocol.
pub const FOUND_ROWS: u32 = 1 << 1;
const LONG_PASSWORD_AND_FLAG: u32 = 1 | 1 << 2;
/// As [`FOUND_ROWS`].
pub const CONNECT_WITH_DB: u32 = 1 << 3;
/// As [`FOUND_ROWS`]: zlib.
pub const COMPRESS: u32 = 1 << 5;
/// As [`FOUND_ROWS`].
pub const LOCAL_FILES: u32 = 1 << 7;
/// As [`FOUND_ROWS`].
pub const TLS: u32 = 1 << 11;
/// As [`FOUND_ROWS`].
pub const SESSION_TRACK: u32 = 1 << 23;
/// As [`FOUND_ROWS`].
pub const DEPRECATE_EOF: u32 = 1 << 24;
/// The flags of every current client: PROTOCOL_41, TRANSACTIONS, SECURE_CONNECTION, multi statements and
/// results, PLUGIN_AUTH.
pub const USUAL: u32 =
    LONG_PASSWORD_AND_FLAG | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 19;

/// Flags of a session's status.
const MORE_RESULTS: u16 = 1 << 3;
const CURSOR_EXISTS: u16 = 1 << 6;
const STATE_CHANGED: u16 = 1 << 14;
/// The status flags that are reliable after columns: autocommit, backslashes, and whether a cursor is open. A
/// server hides the session's transaction while it reads tables of its own, as for HELP.
const KNOWN_BEHIND_COLUMNS: u16 = 1 << 1 | CURSOR_EXISTS | 1 << 9;

/// The kind of answer to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Results, one or more.
    Results,
    /// A prepared statement.
    Statement,
    /// Rows of a cursor.
    Rows,
    /// One packet.
    One,
    /// Nothing.
    Nothing,
}

/// The payloads of an answer's packets, with their sequence ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// In order.
    pub packets: Vec<(u8, Vec<u8>)>,
}

/// The number and the text of an error packet; `None` for another packet.
pub fn error_of(payload: &[u8]) -> Option<(u16, String)> {
    let rest = payload.strip_prefix(&[0xff])?;
    let code = u16::from_le_bytes([*rest.first()?, *rest.get(1)?]);
    let message = rest.get(2..).unwrap_or_default();
    let message = if message.first() == Some(&b'#') { message.get(6..).unwrap_or_default() } else { message };
    Some((code, String::from_utf8_lossy(message).into_owned()))
}

impl Answer {
    /// Number and text of the error that it ends with.
    pub fn error(&self) -> Option<(u16, String)> {
        self.packets.last().and_then(|(_, payload)| error_of(payload))
    }

    /// Whether it begins with an OK packet.
    pub fn is_ok(&self) -> bool {
        self.packets.first().is_some_and(|(_, payload)| payload.first() == Some(&0))
    }

    /// Of an OK packet: affected rows, the last insert id, status, and warnings (count).
    pub fn ok(&self) -> Option<(u64, u64, u16, u16)> {
        let payload = &self.packets.first().filter(|_| self.is_ok())?.1;
        let mut at = 1;
        let (rows, id) = (integer(payload, &mut at)?, integer(payload, &mut at)?);
        Some((rows, id, short(payload, at)?, short(payload, at + 2)?))
    }

    /// Of the answer to a preparation: the statement's number.
    pub fn statement(&self) -> Option<u32> {
        let payload = &self.packets.first().filter(|_| self.is_ok())?.1;
        Some(u32::from_le_bytes(payload.get(1..5)?.try_into().ok()?))
    }

    /// The values of the first result's rows, as text; NULL is "NULL". Of the text protocol.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let Some((_, first)) = self.packets.first() else { return Vec::new() };
        if matches!(first.first(), None | Some(0 | 0xff | 0xfb)) {
            return Vec::new();
        }
        let columns = integer(first, &mut 0).unwrap_or(0) as usize;
        let behind = self.packets.iter().skip(1 + columns).map(|(_, payload)| payload);
        // If the EOF packet after the columns is not left out, it comes first here.
        let behind = behind.skip_while(|payload| is_eof(payload) && payload.len() == 5);
        behind
            .take_while(|payload| !is_eof(payload) && payload.first() != Some(&0xff))
            .map(|it| row(it))
            .collect()
    }

    /// Clears in EOF packets after column definitions what a server says there about the rest of the
    /// statement: its warnings, and whether more results follow. For a long result another server does not
    /// know this before the end, and no client relies on it.
    pub fn forget_what_columns_foretell(&mut self) {
        let mut is_behind_rows = true;
        for (_, eof) in self.packets.iter_mut().filter(|(_, payload)| is_eof(payload) && payload.len() == 5) {
            is_behind_rows = !is_behind_rows;
            if !is_behind_rows {
                eof[1..3].fill(0);
                let status = short(eof, 3).unwrap_or(0) & KNOWN_BEHIND_COLUMNS;
                eof[3..5].copy_from_slice(&status.to_le_bytes());
            }
        }
    }

    /// The first value of the first row.
    ///
    /// Panics where there is none.
    pub fn value(&self) -> String {
        let rows = self.rows();
        rows.into_iter()
            .next()
            .and_then(|row| row.into_iter().next())
            .unwrap_or_else(|| panic!("no row: {self}"))
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (sequence, payload) in &self.packets {
            let shown = payload.get(..payload.len().min(200)).unwrap_or_default();
            let mut text = String::new();
            for byte in shown {
                let _ = match byte {
                    b' '..=b'~' => write!(text, "{}", char::from(*byte)),
                    _ => write!(text, "\\{byte:02x}"),
                };
            }
            write!(out, "\n        {sequence}: {text}")?;
        }
        Ok(())
    }
}

fn is_eof(payload: &[u8]) -> bool {
    payload.first() == Some(&0xfe) && payload.len() < 0xff_ffff
}

fn row(payload: &[u8]) -> Vec<String> {
    let (mut at, mut values) = (0, Vec::new());
    while at < payload.len() {
        if payload[at] == 0xfb {
            at += 1;
            values.push("NULL".to_owned());
            continue;
        }
        let length = integer(payload, &mut at).unwrap_or(0) as usize;
        let value = payload.get(at..at + length).unwrap_or_default();
        values.push(String::from_utf8_lossy(value).into_owned());
        at += length;
    }
    values
}

fn short(payload: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*payload.get(at)?, *payload.get(at + 1)?]))
}

/// Reads an integer whose first byte says how long it is.
fn integer(payload: &[u8], at: &mut usize) -> Option<u64> {
    let first = *payload.get(*at)?;
    let bytes = match first {
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => 0,
    };
    let place = payload.get(*at + 1..*at + 1 + bytes)?;
    *at += 1 + bytes;
    if bytes == 0 {
        return Some(u64::from(first));
    }
    Some(place.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Finds the end of an answer.
#[derive(Debug)]
pub struct Reading {
    asked: Asked,
    has_eof: bool,
    place: Place,
}

#[derive(Debug)]
enum Place {
    First,
    /// Definitions that are still to come, and what follows them.
    Definitions(u32, Behind),
    Rows,
    Over,
}

#[derive(Clone, Copy, Debug)]
enum Behind {
    Rows,
    /// So many more definitions.
    Definitions(u32),
    Nothing,
}

impl Reading {
    /// For a new answer; `has_eof` says that EOF packets were not left out by agreement.
    pub fn of(asked: Asked, has_eof: bool) -> Reading {
        let place = if asked == Asked::Nothing { Place::Over } else { Place::First };
        Reading { asked, has_eof, place }
    }

    /// Whether the answer is over.
    pub fn is_over(&self) -> bool {
        matches!(self.place, Place::Over)
    }

    /// Takes a packet. Returns `true` if the server waits for a file.
    pub fn take(&mut self, payload: &[u8]) -> bool {
        let first = payload.first().copied().unwrap_or(0);
        let is_error = first == 0xff;
        match &mut self.place {
            _ if is_error => self.place = Place::Over,
            Place::First => match (self.asked, first) {
                (Asked::Results, 0) => self.result_over(ok_status(payload)),
                (Asked::Results, 0xfb) => return true,
                (Asked::Results, _) => {
                    let columns = integer(payload, &mut 0).unwrap_or(0) as u32;
                    let more = u32::from(self.has_eof);
                    self.place = Place::Definitions(columns + more, Behind::Rows);
                }
                (Asked::Statement, _) => {
                    let (columns, parameters) =
                        (short(payload, 5).unwrap_or(0), short(payload, 7).unwrap_or(0));
                    let of =
                        |count: u16| if count == 0 { 0 } else { u32::from(count) + u32::from(self.has_eof) };
                    self.place = match (of(parameters), of(columns)) {
                        (0, 0) => Place::Over,
                        (0, columns) => Place::Definitions(columns, Behind::Nothing),
                        (parameters, 0) => Place::Definitions(parameters, Behind::Nothing),
                        (parameters, columns) => Place::Definitions(parameters, Behind::Definitions(columns)),
                    };
                }
                (Asked::Rows, _) => {
                    self.place = Place::Rows;
                    return self.take(payload);
                }
                (Asked::One | Asked::Nothing, _) => self.place = Place::Over,
            },
            Place::Definitions(left, behind) => {
                *left -= 1;
                let (is_last, behind) = (*left == 0, *behind);
                if is_last {
                    let has_cursor = self.has_eof && is_eof(payload) && {
                        short(payload, 3).is_some_and(|status| status & CURSOR_EXISTS != 0)
                    };
                    self.place = match behind {
                        Behind::Rows if has_cursor => Place::Over,
                        Behind::Rows => Place::Rows,
                        Behind::Definitions(more) => Place::Definitions(more, Behind::Nothing),
                        Behind::Nothing => Place::Over,
                    };
                }
            }
            Place::Rows if is_eof(payload) => {
                let status = if self.has_eof { short(payload, 3) } else { ok_status(payload) };
                self.result_over(status);
            }
            Place::Rows | Place::Over => {}
        }
        false
    }

    /// A file was sent.
    pub fn file_sent(&mut self) {
        self.place = Place::First;
    }

    fn result_over(&mut self, status: Option<u16>) {
        let more = status.is_some_and(|status| status & MORE_RESULTS != 0);
        self.place = if more && self.asked == Asked::Results { Place::First } else { Place::Over };
    }
}

fn ok_status(payload: &[u8]) -> Option<u16> {
    let mut at = 1;
    integer(payload, &mut at)?;
    integer(payload, &mut at)?;
    short(payload, at)
}

/// Removes from an OK packet what a server reports once in a session, at varying times: the transaction
/// state, although `session_track_transaction_info` is OFF, and that there is no schema if there was none.
/// Unless the step changes the schema, also removes which one it is: it is reported late, and again, if the
/// preparation of a CALL passed through another schema and came back.
pub fn forget_first_changes(payload: &mut Vec<u8>, changes_schema: bool) {
    if let Some(without) = without_first_changes(payload, changes_schema) {
        *payload = without;
    }
}

fn without_first_changes(payload: &[u8], changes_schema: bool) -> Option<Vec<u8>> {
    let mut at = 1;
    matches!(payload.first(), Some(0 | 0xfe)).then_some(())?;
    integer(payload, &mut at)?;
    integer(payload, &mut at)?;
    let status_at = at;
    let status = short(payload, at).filter(|status| status & STATE_CHANGED != 0)?;
    at += 4;
    let info = integer(payload, &mut at)? as usize;
    at += info;
    let head = payload.get(..at)?;
    let length = integer(payload, &mut at)? as usize;
    let mut changes = payload.get(at..at + length).filter(|_| at + length == payload.len())?;
    let mut kept = Vec::new();
    while let Some(kind) = changes.first() {
        let mut end = 1;
        let bytes = integer(changes, &mut end)? as usize;
        let (change, rest) = changes.split_at_checked(end + bytes)?;
        let is_late = *kind == 1 && (!changes_schema || change == [1, 1, 0]);
        if !matches!(kind, 4 | 5) && !is_late {
            kept.extend_from_slice(change);
        }
        changes = rest;
    }
    let mut out = head.to_vec();
    if kept.is_empty() {
        out[status_at..status_at + 2].copy_from_slice(&(status & !STATE_CHANGED).to_le_bytes());
        if info == 0 {
            out.pop();
        }
    } else {
        assert!(kept.len() < 251, "a length of one byte");
        out.push(kept.len() as u8);
        out.extend(kept);
    }
    Some(out)
}

/// A parameter of a prepared statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// NULL.
    Null,
    /// MYSQL_TYPE_LONGLONG.
    Number(i64),
    /// MYSQL_TYPE_VAR_STRING.
    Text(String),
    /// Sent before in pieces: MYSQL_TYPE_BLOB without a value here.
    Long,
}

/// The payload of COM_STMT_EXECUTE.
pub fn execution(statement: u32, cursor: bool, values: &[Value], with_types: bool) -> Vec<u8> {
    let mut out = vec![0x17];
    out.extend(statement.to_le_bytes());
    out.push(u8::from(cursor));
    out.extend(1_u32.to_le_bytes());
    if values.is_empty() {
        return out;
    }
    let mut nulls = vec![0_u8; values.len().div_ceil(8)];
    for (index, value) in values.iter().enumerate() {
        nulls[index / 8] |= u8::from(*value == Value::Null) << (index % 8);
    }
    out.extend(nulls);
    out.push(u8::from(with_types));
    if with_types {
        for value in values {
            out.extend(match value {
                Value::Null => [6, 0],
                Value::Number(_) => [8, 0],
                Value::Text(_) => [253, 0],
                Value::Long => [252, 0],
            });
        }
    }
    for value in values {
        match value {
            Value::Null | Value::Long => {}
            Value::Number(number) => out.extend(number.to_le_bytes()),
            Value::Text(text) => {
                assert!(text.len() < 251, "a length of one byte");
                out.push(text.len() as u8);
                out.extend(text.as_bytes());
            }
        }
    }
    out
}
