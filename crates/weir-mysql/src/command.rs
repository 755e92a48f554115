//! The commands of a client by their first byte, and the position of the ids in them that Weir rewrites.
//!
//! Source: MySQL internals, "Command Phase"; `my_command.h` for the numbers.

use crate::wire_error::WireError;

/// The kind of answer to a command, as far as framing needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerShape {
    /// Nothing at all.
    Nothing,
    /// An OK, EOF or ERR packet.
    Simple,
    /// One packet of text.
    Text,
    /// Results with text rows, or OK, or ERR.
    TextResults,
    /// Results with binary rows, or OK, or ERR.
    BinaryResults,
    /// Binary rows without column definitions before them.
    BinaryRows,
    /// Column definitions alone.
    Columns,
    /// A prepared statement's id, parameters and columns.
    Prepared,
    /// A login: see [`crate::authentication::LoginAnswer`].
    Login,
    /// Not defined here: after this command, the connection to the server is used for nothing else.
    Dedicated,
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $byte:literal, $manual:literal, $answer:ident;)*) => {
        /// A command that a client may send.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum ClientCommand {
            $($(#[$doc])* $name,)*
        }

        impl ClientCommand {
            /// All commands.
            pub const ALL: &[ClientCommand] = &[$(ClientCommand::$name),*];

            /// The command that a payload's first byte names. `None` for commands that no server supports,
            /// and for MariaDB's own commands, which Weir does not offer; the answer to both is error 1047.
            pub fn of(byte: u8) -> Option<ClientCommand> {
                match byte {
                    $($byte => Some(ClientCommand::$name),)*
                    _ => None,
                }
            }

            /// Its command byte.
            pub const fn byte(self) -> u8 {
                match self {
                    $(ClientCommand::$name => $byte,)*
                }
            }

            /// Its name in the manual.
            pub fn name(self) -> &'static str {
                match self {
                    $(ClientCommand::$name => $manual,)*
                }
            }

            /// The kind of answer that the server gives.
            pub fn answer(self) -> AnswerShape {
                match self {
                    $(ClientCommand::$name => AnswerShape::$answer,)*
                }
            }
        }
    };
}

commands! {
    /// Ends the connection.
    Quit = 0x01, "COM_QUIT", Nothing;
    /// Changes the default schema.
    InitDb = 0x02, "COM_INIT_DB", Simple;
    /// Runs one or more statements as text.
    Query = 0x03, "COM_QUERY", TextResults;
    /// Lists the columns of a table.
    FieldList = 0x04, "COM_FIELD_LIST", Columns;
    /// CREATE DATABASE, on servers before 5.7.
    CreateDb = 0x05, "COM_CREATE_DB", Simple;
    /// DROP DATABASE, on servers before 5.7.
    DropDb = 0x06, "COM_DROP_DB", Simple;
    /// FLUSH.
    Refresh = 0x07, "COM_REFRESH", Simple;
    /// SHUTDOWN.
    Shutdown = 0x08, "COM_SHUTDOWN", Simple;
    /// Asks for a line of text about the server.
    Statistics = 0x09, "COM_STATISTICS", Text;
    /// SHOW PROCESSLIST.
    ProcessInfo = 0x0A, "COM_PROCESS_INFO", TextResults;
    /// KILL CONNECTION.
    ProcessKill = 0x0C, "COM_PROCESS_KILL", Simple;
    /// Makes the server write debug information to its log.
    Debug = 0x0D, "COM_DEBUG", Simple;
    /// Checks that the server is alive.
    Ping = 0x0E, "COM_PING", Simple;
    /// Changes the account.
    ChangeUser = 0x11, "COM_CHANGE_USER", Login;
    /// Streams the binary log from a file and position.
    BinlogDump = 0x12, "COM_BINLOG_DUMP", Dedicated;
    /// Dumps a table, on servers before 5.
    TableDump = 0x13, "COM_TABLE_DUMP", Dedicated;
    /// Registers a replica.
    RegisterSlave = 0x15, "COM_REGISTER_SLAVE", Simple;
    /// Prepares a statement.
    StmtPrepare = 0x16, "COM_STMT_PREPARE", Prepared;
    /// Executes a prepared statement.
    StmtExecute = 0x17, "COM_STMT_EXECUTE", BinaryResults;
    /// Sends a piece of a parameter.
    StmtSendLongData = 0x18, "COM_STMT_SEND_LONG_DATA", Nothing;
    /// Closes a prepared statement.
    StmtClose = 0x19, "COM_STMT_CLOSE", Nothing;
    /// Closes a statement's cursor, and drops the pieces of its parameters.
    StmtReset = 0x1A, "COM_STMT_RESET", Simple;
    /// Turns multi-statements on or off.
    SetOption = 0x1B, "COM_SET_OPTION", Simple;
    /// Fetches rows from a statement's cursor.
    StmtFetch = 0x1C, "COM_STMT_FETCH", BinaryRows;
    /// Streams the binary log without a given set of transactions.
    BinlogDumpGtid = 0x1E, "COM_BINLOG_DUMP_GTID", Dedicated;
    /// Starts a new session of the same account.
    ResetConnection = 0x1F, "COM_RESET_CONNECTION", Simple;
    /// Copies the server's data.
    Clone = 0x20, "COM_CLONE", Dedicated;
    /// Streams Group Replication between members.
    SubscribeGroupReplicationStream = 0x21, "COM_SUBSCRIBE_GROUP_REPLICATION_STREAM", Dedicated;
}

impl ClientCommand {
    /// Whether its payload has a statement id after the first byte.
    pub fn has_statement_id(self) -> bool {
        matches!(
            self,
            ClientCommand::StmtExecute
                | ClientCommand::StmtSendLongData
                | ClientCommand::StmtClose
                | ClientCommand::StmtReset
                | ClientCommand::StmtFetch
        )
    }
}

/// The position of the statement id in the commands that have one, and in the first packet of the answer to
/// COM_STMT_PREPARE.
pub const STATEMENT_ID: std::ops::Range<usize> = 1..5;

/// The statement id in the payload of a command that has one, or of the answer to COM_STMT_PREPARE.
pub fn statement_id(payload: &[u8]) -> Result<u32, WireError> {
    let bytes = payload.get(STATEMENT_ID).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_le_bytes).ok_or(WireError::Truncated)
}

/// Replaces that statement id.
pub fn set_statement_id(payload: &mut [u8], id: u32) -> Result<(), WireError> {
    let place = payload.get_mut(STATEMENT_ID).ok_or(WireError::Truncated)?;
    place.copy_from_slice(&id.to_le_bytes());
    Ok(())
}

/// Whether COM_SET_OPTION turns multi-statements on or off; `None` for options that no server supports.
pub fn multi_statements_option(payload: &[u8]) -> Result<Option<bool>, WireError> {
    let option = payload.get(1..3).and_then(|bytes| bytes.try_into().ok()).ok_or(WireError::Truncated)?;
    Ok(match u16::from_le_bytes(option) {
        0 => Some(true),
        1 => Some(false),
        _ => None,
    })
}

/// The connection id in a COM_PROCESS_KILL.
pub fn killed_connection(payload: &[u8]) -> Result<u32, WireError> {
    statement_id(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_found_by_its_byte_and_mariadbs_are_not() {
        for command in ClientCommand::ALL {
            assert_eq!(ClientCommand::of(command.byte()), Some(*command));
            assert!(command.name().starts_with("COM_"));
        }
        for byte in [0x00, 0x0B, 0x0F, 0x10, 0x14, 0x1D, 0x22, 0xFA, 0xFE, 0xFF] {
            assert_eq!(ClientCommand::of(byte), None, "{byte:#x}");
        }
    }

    #[test]
    fn the_commands_without_answer_are_these_three() {
        let silent: Vec<_> = ClientCommand::ALL
            .iter()
            .filter(|command| command.answer() == AnswerShape::Nothing)
            .map(|command| command.name())
            .collect();
        assert_eq!(silent, ["COM_QUIT", "COM_STMT_SEND_LONG_DATA", "COM_STMT_CLOSE"]);
    }

    #[test]
    fn a_statements_id_is_changed_in_place() {
        let mut payload = b"\x17\x07\0\0\0\0\x01\0\0\0".to_vec();
        assert_eq!(statement_id(&payload), Ok(7));
        assert_eq!(set_statement_id(&mut payload, 0x0102_0304), Ok(()));
        assert_eq!(payload, b"\x17\x04\x03\x02\x01\0\x01\0\0\0");
        assert_eq!(statement_id(b"\x17\x07\0\0"), Err(WireError::Truncated));
        assert_eq!(set_statement_id(&mut [0x17, 7], 1), Err(WireError::Truncated));
    }

    #[test]
    fn an_option_is_multi_statements_or_none() {
        assert_eq!(multi_statements_option(b"\x1b\0\0"), Ok(Some(true)));
        assert_eq!(multi_statements_option(b"\x1b\x01\0"), Ok(Some(false)));
        assert_eq!(multi_statements_option(b"\x1b\x02\0"), Ok(None));
        assert_eq!(multi_statements_option(b"\x1b\0"), Err(WireError::Truncated));
        assert_eq!(killed_connection(b"\x0c\x01\0\0\x80"), Ok(0x8000_0001));
    }
}
