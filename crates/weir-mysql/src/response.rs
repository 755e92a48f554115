//! Finds where a server's answer to one command ends, and what each of its packets is.
//!
//! [`ResponseFraming`] decides by the first bytes of a packet; [`crate::answer::AnswerReader`] applies it to
//! the bytes of a connection.
//!
//! Source: MySQL internals, "Text Resultset", "Binary Protocol Resultset", "COM_STMT_PREPARE Response",
//! "LOCAL INFILE Request", and the pages of each command.

use crate::capability::{Capabilities, StatusFlags};
use crate::command::{AnswerShape, ClientCommand};
use crate::outcome::{EOF, ERR, EofPacket, ErrPacket, OK, OkPacket, SessionChanges};
use crate::packet::{MAX_PAYLOAD_BYTES, PacketHead};
use crate::value::PayloadCursor;
use crate::wire_error::WireError;

/// Most columns of a result (count): servers keep the number in two bytes.
pub const MAX_COLUMNS: u64 = 0xFFFF;

/// The first byte of a LOCAL INFILE request.
pub const LOCAL_INFILE: u8 = 0xFB;

/// The default limit for the bytes of a packet that must be in one piece. An OK packet whose session state
/// information exceeds it is reported as [`SessionChanges::TooLong`].
pub const DEFAULT_HEAD_BYTES: usize = 16 * 1024 - 4;

/// The smallest limit: enough for the numbers of an OK packet, or of an answer to COM_STMT_PREPARE.
pub const LEAST_HEAD_BYTES: usize = 64;

/// The content of COM_STMT_PREPARE_OK, the first packet of the answer to COM_STMT_PREPARE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreparedStatement {
    /// The statement's id on this connection; it is in the payload at [`crate::command::STATEMENT_ID`].
    pub statement_id: u32,
    /// Columns of its result (count); 0 if it has no result.
    pub column_count: u16,
    /// Its parameters (count).
    pub parameter_count: u16,
    /// Warnings (count).
    pub warnings: u16,
}

/// How a result, or an answer, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerEnd<'a> {
    /// With an OK packet. With [`Capabilities::DEPRECATE_EOF`], rows end this way, too.
    Ok(OkPacket<'a>),
    /// With an EOF packet.
    Eof(EofPacket),
    /// With an error. Nothing follows, whatever came before.
    Err(ErrPacket<'a>),
    /// With the last parameter or column definition of a prepared statement.
    Prepared(PreparedStatement),
    /// With the text that COM_STATISTICS asked for.
    Text,
}

/// The meaning of a packet in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerPart<'a> {
    /// A packet in the middle: a column or a row.
    Middle,
    /// A statement is prepared; its parameters and columns follow.
    Prepared(PreparedStatement),
    /// The last parameter or column definition, if the answer continues after it. Reported only on request:
    /// [`ResponseFraming::telling_definitions`].
    DefinitionsOver,
    /// The server asks for a local file of the client. The client's packets follow, up to an empty one, and
    /// then the server's continue.
    LocalInfile {
        /// The name of the file, which should be the one in the client's statement.
        name: &'a [u8],
    },
    /// The end of a result that is followed by another.
    ResultOver(AnswerEnd<'a>),
    /// The end of the answer.
    Over(AnswerEnd<'a>),
}

/// Follows an answer, packet by packet.
#[derive(Clone, Debug)]
pub struct ResponseFraming {
    capabilities: Capabilities,
    shape: AnswerShape,
    phase: AnswerPhase,
    head_limit: usize,
    tells_definitions: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerPhase {
    /// The first packet of the answer or of a result.
    First,
    /// The packet that ends LOAD DATA LOCAL, after the client's file.
    AfterInfile,
    Columns {
        left: u64,
    },
    /// The EOF packet between columns and rows.
    AfterColumns,
    Rows,
    /// The columns of COM_FIELD_LIST, whose number is not announced.
    FieldList,
    Definitions {
        prepared: PreparedStatement,
        group: DefinitionGroup,
        left: u16,
    },
    AfterDefinitions {
        prepared: PreparedStatement,
        group: DefinitionGroup,
    },
    Over,
}

/// The definitions in the answer to COM_STMT_PREPARE, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DefinitionGroup {
    Parameters,
    Columns,
}

impl ResponseFraming {
    /// Framing for the answer to `command` on a connection with these capabilities. `None` for commands
    /// without an answer, and for those whose answer is not framed here: [`AnswerShape::Login`] and
    /// [`AnswerShape::Dedicated`].
    ///
    /// At most `head_limit` bytes of a packet must be in one piece, and never fewer than
    /// [`LEAST_HEAD_BYTES`]; [`DEFAULT_HEAD_BYTES`] is a good choice.
    pub fn new(
        command: ClientCommand,
        capabilities: Capabilities,
        head_limit: usize,
    ) -> Option<ResponseFraming> {
        let phase = match command.answer() {
            AnswerShape::Nothing | AnswerShape::Login | AnswerShape::Dedicated => return None,
            AnswerShape::BinaryRows => AnswerPhase::Rows,
            AnswerShape::Columns => AnswerPhase::FieldList,
            _ => AnswerPhase::First,
        };
        let head_limit = head_limit.max(LEAST_HEAD_BYTES);
        let shape = command.answer();
        Some(ResponseFraming { capabilities, shape, phase, head_limit, tells_definitions: false })
    }

    /// Also reports where definitions end, and requires the packet that ends rows to be in one piece. The
    /// caller needs this to rewrite the answer for a client without [`Capabilities::DEPRECATE_EOF`].
    pub fn telling_definitions(self, tells_definitions: bool) -> ResponseFraming {
        ResponseFraming { tells_definitions, ..self }
    }

    /// Whether the last packet of the answer has been read.
    pub fn is_over(&self) -> bool {
        self.phase == AnswerPhase::Over
    }

    /// How many bytes of the next packet [`Self::packet`] needs in one piece, given its first byte and the
    /// length in its first header.
    pub fn head_bytes(&self, first: Option<u8>, payload_bytes: u32) -> usize {
        let whole = (payload_bytes as usize).min(self.head_limit);
        match (self.phase, first) {
            (_, Some(ERR)) | (AnswerPhase::First | AnswerPhase::AfterInfile, _) => match self.shape {
                AnswerShape::Text if first != Some(ERR) => 1,
                _ => whole,
            },
            (_, Some(EOF)) if (payload_bytes as usize) < MAX_PAYLOAD_BYTES => whole,
            _ => 1,
        }
    }

    /// Interprets the next packet. Err if the protocol does not allow it here. After [`AnswerPart::Over`]
    /// every packet is an error.
    pub fn packet<'a>(&mut self, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        let first = *head.bytes.first().ok_or(WireError::UnexpectedPacket)?;
        if first == ERR && self.phase != AnswerPhase::Over {
            return self.error(head);
        }
        match self.phase {
            AnswerPhase::First => self.first(first, head),
            AnswerPhase::AfterInfile if first == OK => self.ok(head),
            AnswerPhase::Columns { left } => {
                definition(first)?;
                self.after_column(left);
                Ok(self.behind_definitions(left <= 1))
            }
            AnswerPhase::AfterColumns => {
                let eof = whole_eof(head)?;
                // The rows of a cursor are fetched by COM_STMT_FETCH.
                if self.shape == AnswerShape::BinaryResults && eof.status.has(StatusFlags::CURSOR_EXISTS) {
                    return Ok(self.over(AnswerEnd::Eof(eof)));
                }
                self.phase = AnswerPhase::Rows;
                Ok(AnswerPart::Middle)
            }
            AnswerPhase::Rows => self.row(first, head),
            AnswerPhase::FieldList if first == EOF => self.end_of_rows(head),
            AnswerPhase::FieldList => definition(first).map(|()| AnswerPart::Middle),
            AnswerPhase::Definitions { prepared, group, left } => {
                definition(first)?;
                match left.saturating_sub(1) {
                    0 if self.has_eof() => self.phase = AnswerPhase::AfterDefinitions { prepared, group },
                    0 => return Ok(self.after_group(prepared, group)),
                    left => self.phase = AnswerPhase::Definitions { prepared, group, left },
                }
                Ok(AnswerPart::Middle)
            }
            AnswerPhase::AfterDefinitions { prepared, group } => {
                whole_eof(head)?;
                Ok(self.after_group(prepared, group))
            }
            AnswerPhase::AfterInfile | AnswerPhase::Over => Err(WireError::UnexpectedPacket),
        }
    }

    /// Whether the next packet, which is whole and has this first byte, is a column or a row; if so, counts
    /// it. It is true only if [`Self::packet`] would return [`AnswerPart::Middle`], but not in every such
    /// case.
    #[inline]
    pub fn passes(&mut self, first: u8) -> bool {
        match self.phase {
            AnswerPhase::Columns { left: ..=1 } if self.tells_definitions => false,
            AnswerPhase::Columns { left } if definition(first).is_ok() => {
                self.after_column(left);
                true
            }
            AnswerPhase::Rows => match self.shape {
                AnswerShape::BinaryResults | AnswerShape::BinaryRows => first == OK,
                _ => !matches!(first, EOF | ERR),
            },
            _ => false,
        }
    }

    fn behind_definitions(&self, is_last: bool) -> AnswerPart<'static> {
        if is_last && self.tells_definitions { AnswerPart::DefinitionsOver } else { AnswerPart::Middle }
    }

    /// Counts a column; `left` includes it.
    fn after_column(&mut self, left: u64) {
        self.phase = match left.saturating_sub(1) {
            0 if self.has_eof() => AnswerPhase::AfterColumns,
            0 => AnswerPhase::Rows,
            left => AnswerPhase::Columns { left },
        };
    }

    fn first<'a>(&mut self, first: u8, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        match self.shape {
            AnswerShape::Text => Ok(self.over(AnswerEnd::Text)),
            AnswerShape::Prepared => self.prepared(first, head),
            AnswerShape::Simple if first == EOF => self.end_of_rows(head),
            _ if first == OK => self.ok(head),
            AnswerShape::TextResults if first == LOCAL_INFILE => {
                if !self.capabilities.has(Capabilities::LOCAL_FILES) {
                    return Err(WireError::LocalInfileNotOffered);
                }
                if !head.is_whole {
                    return Err(WireError::UnexpectedPacket);
                }
                self.phase = AnswerPhase::AfterInfile;
                Ok(AnswerPart::LocalInfile { name: head.bytes.get(1..).unwrap_or_default() })
            }
            AnswerShape::TextResults | AnswerShape::BinaryResults if first != EOF => {
                let mut cursor = PayloadCursor::new(head.bytes);
                let left = cursor.integer()?;
                cursor.end()?;
                if !(1..=MAX_COLUMNS).contains(&left) {
                    return Err(WireError::ColumnCount);
                }
                if !head.is_whole {
                    return Err(WireError::TrailingBytes);
                }
                self.phase = AnswerPhase::Columns { left };
                Ok(AnswerPart::Middle)
            }
            _ => Err(WireError::UnexpectedPacket),
        }
    }

    fn prepared<'a>(&mut self, first: u8, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        if first != OK || !head.is_whole {
            return Err(WireError::UnexpectedPacket);
        }
        let mut cursor = PayloadCursor::new(head.bytes);
        cursor.u8()?;
        let statement_id = cursor.u32()?;
        let (column_count, parameter_count) = (cursor.u16()?, cursor.u16()?);
        cursor.u8()?;
        let warnings = cursor.u16()?;
        cursor.end()?;
        let prepared = PreparedStatement { statement_id, column_count, parameter_count, warnings };
        match (parameter_count, column_count) {
            (0, 0) => return Ok(self.over(AnswerEnd::Prepared(prepared))),
            (0, left) => {
                self.phase = AnswerPhase::Definitions { prepared, group: DefinitionGroup::Columns, left };
            }
            (left, _) => {
                self.phase = AnswerPhase::Definitions { prepared, group: DefinitionGroup::Parameters, left };
            }
        }
        Ok(AnswerPart::Prepared(prepared))
    }

    fn after_group(&mut self, prepared: PreparedStatement, group: DefinitionGroup) -> AnswerPart<'static> {
        if group == DefinitionGroup::Columns || prepared.column_count == 0 {
            return self.over(AnswerEnd::Prepared(prepared));
        }
        let group = DefinitionGroup::Columns;
        self.phase = AnswerPhase::Definitions { prepared, group, left: prepared.column_count };
        self.behind_definitions(true)
    }

    fn row<'a>(&mut self, first: u8, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        // A text row whose first value is longer than 16 MiB also begins with 0xFE, but its packet is longer
        // as well.
        if first == EOF && (head.header.payload_bytes as usize) < MAX_PAYLOAD_BYTES {
            return self.end_of_rows(head);
        }
        match self.shape {
            AnswerShape::BinaryResults | AnswerShape::BinaryRows if first != OK => {
                Err(WireError::UnexpectedPacket)
            }
            _ => Ok(AnswerPart::Middle),
        }
    }

    /// An EOF packet, or the OK packet that replaces it.
    fn end_of_rows<'a>(&mut self, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        if self.tells_definitions && !head.is_whole {
            return Err(WireError::TrailingBytes);
        }
        if !self.has_eof() {
            return self.ok(head);
        }
        let eof = whole_eof(head)?;
        Ok(self.end(AnswerEnd::Eof(eof), eof.status))
    }

    fn ok<'a>(&mut self, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        let ok = match head.is_whole {
            true => OkPacket::parse(head.bytes, self.capabilities)?,
            false => OkPacket::parse_beginning(head.bytes)?,
        };
        Ok(self.end(AnswerEnd::Ok(ok), ok.status))
    }

    fn error<'a>(&mut self, head: &PacketHead<'a>) -> Result<AnswerPart<'a>, WireError> {
        let error = ErrPacket::parse(head.bytes)?;
        Ok(self.over(AnswerEnd::Err(error)))
    }

    fn end<'a>(&mut self, end: AnswerEnd<'a>, status: StatusFlags) -> AnswerPart<'a> {
        let has_results = matches!(self.shape, AnswerShape::TextResults | AnswerShape::BinaryResults);
        if has_results && status.has(StatusFlags::MORE_RESULTS_EXISTS) {
            self.phase = AnswerPhase::First;
            return AnswerPart::ResultOver(end);
        }
        self.over(end)
    }

    fn over<'a>(&mut self, end: AnswerEnd<'a>) -> AnswerPart<'a> {
        self.phase = AnswerPhase::Over;
        AnswerPart::Over(end)
    }

    /// Whether the answer has EOF packets (no [`Capabilities::DEPRECATE_EOF`]).
    fn has_eof(&self) -> bool {
        !self.capabilities.has(Capabilities::DEPRECATE_EOF)
    }
}

impl<'a> AnswerEnd<'a> {
    /// The status flags after the answer, if the packet has any.
    pub fn status(&self) -> Option<StatusFlags> {
        match self {
            AnswerEnd::Ok(ok) => Some(ok.status),
            AnswerEnd::Eof(eof) => Some(eof.status),
            AnswerEnd::Err(_) | AnswerEnd::Prepared(_) | AnswerEnd::Text => None,
        }
    }

    /// The session state changes, if an OK packet reported any.
    pub fn changes(&self) -> SessionChanges<'a> {
        match self {
            AnswerEnd::Ok(ok) => ok.changes,
            _ => SessionChanges::None,
        }
    }

    /// The same without its texts, which are no longer available at the end of a packet longer than the
    /// limit.
    pub(crate) fn numbers(self) -> AnswerEnd<'static> {
        match self {
            AnswerEnd::Ok(ok) => AnswerEnd::Ok(ok.numbers()),
            AnswerEnd::Eof(eof) => AnswerEnd::Eof(eof),
            AnswerEnd::Err(ErrPacket { code, state, .. }) => {
                AnswerEnd::Err(ErrPacket { code, state, message: b"" })
            }
            AnswerEnd::Prepared(prepared) => AnswerEnd::Prepared(prepared),
            AnswerEnd::Text => AnswerEnd::Text,
        }
    }
}

/// Whether a packet can be a column definition: its first byte is then the length of the catalog name.
pub(crate) fn definition(first: u8) -> Result<(), WireError> {
    if (1..=0xFA).contains(&first) { Ok(()) } else { Err(WireError::UnexpectedPacket) }
}

fn whole_eof(head: &PacketHead<'_>) -> Result<EofPacket, WireError> {
    if head.bytes.first() != Some(&EOF) {
        return Err(WireError::UnexpectedPacket);
    }
    if !head.is_whole {
        return Err(WireError::TrailingBytes);
    }
    EofPacket::parse(head.bytes)
}

#[cfg(test)]
#[path = "response_tests.rs"]
mod tests;
