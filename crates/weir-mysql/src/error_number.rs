//! Error numbers under MySQL's names: those that Weir sends itself, and those by which it interprets a
//! server's errors.
//!
//! Source: MySQL's "Error Message Reference", server and client errors.

/// Out of memory.
pub const ER_OUTOFMEMORY: u16 = 1037;
/// Too many connections.
pub const ER_CON_COUNT_ERROR: u16 = 1040;
/// The server has no memory for a connection.
pub const ER_OUT_OF_RESOURCES: u16 = 1041;
/// The login packet is malformed.
pub const ER_HANDSHAKE_ERROR: u16 = 1043;
/// The account has no access to the schema.
pub const ER_DBACCESS_DENIED_ERROR: u16 = 1044;
/// There is no such account, or the password is wrong.
pub const ER_ACCESS_DENIED_ERROR: u16 = 1045;
/// The command is unknown.
pub const ER_UNKNOWN_COM_ERROR: u16 = 1047;
/// The schema does not exist.
pub const ER_BAD_DB_ERROR: u16 = 1049;
/// The server is shutting down; the connection ends after this error.
pub const ER_SERVER_SHUTDOWN: u16 = 1053;
/// Syntax error; nothing was executed.
pub const ER_PARSE_ERROR: u16 = 1064;
/// KILL names a connection id that does not exist.
pub const ER_NO_SUCH_THREAD: u16 = 1094;
/// KILL names a connection of another account.
pub const ER_KILL_DENIED_ERROR: u16 = 1095;
/// An error without a number of its own; its text says what is meant.
pub const ER_UNKNOWN_ERROR: u16 = 1105;
/// The server blocks the client's address after too many failed connections from it.
pub const ER_HOST_IS_BLOCKED: u16 = 1129;
/// No account may connect from the client's address.
pub const ER_HOST_NOT_PRIVILEGED: u16 = 1130;
/// The server cannot create a thread for the connection.
pub const ER_CANT_CREATE_THREAD: u16 = 1135;
/// A packet is too long; the connection ends after this error.
pub const ER_NET_PACKET_TOO_LARGE: u16 = 1153;
/// A packet has the wrong sequence id.
pub const ER_NET_PACKETS_OUT_OF_ORDER: u16 = 1156;
/// A compressed packet cannot be inflated.
pub const ER_NET_UNCOMPRESS_ERROR: u16 = 1157;
/// The account has reached its limit of connections.
pub const ER_TOO_MANY_USER_CONNECTIONS: u16 = 1203;
/// A function or an execution has invalid arguments.
pub const ER_WRONG_ARGUMENTS: u16 = 1210;
/// The transaction was rolled back and must be restarted.
pub const ER_LOCK_DEADLOCK: u16 = 1213;
/// The account has reached its hourly limit, or its limit of connections.
pub const ER_USER_LIMIT_REACHED: u16 = 1226;
/// No prepared statement has this id.
pub const ER_UNKNOWN_STMT_HANDLER: u16 = 1243;
/// The client does not support the account's authentication plugin.
pub const ER_NOT_SUPPORTED_AUTH_MODE: u16 = 1251;
/// An option forbids the statement: `--super-read-only`, or an unrelated one.
pub const ER_OPTION_PREVENTS_STATEMENT: u16 = 1290;
/// KILL has interrupted the statement.
pub const ER_QUERY_INTERRUPTED: u16 = 1317;
/// COM_STMT_FETCH for a statement without an open cursor.
pub const ER_STMT_HAS_NO_OPEN_CURSOR: u16 = 1421;
/// The limit of prepared statements is reached.
pub const ER_MAX_PREPARED_STMT_COUNT_REACHED: u16 = 1461;
/// Transaction characteristics cannot be set while a transaction is open.
pub const ER_CANT_CHANGE_TX_CHARACTERISTICS: u16 = 1568;
/// The prepared statement is outdated and must be prepared again.
pub const ER_NEED_REPREPARE: u16 = 1615;
/// A write in a READ ONLY transaction.
pub const ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION: u16 = 1792;
/// A packet is malformed.
pub const ER_MALFORMED_PACKET: u16 = 1835;
/// The server is read-only.
pub const ER_READ_ONLY_MODE: u16 = 1836;
/// A client-side error: no connection to the server could be opened.
pub const CR_CONN_HOST_ERROR: u16 = 2003;
/// The statement exceeded its time limit.
pub const ER_QUERY_TIMEOUT: u16 = 3024;
/// The server is in offline mode and admits only administrators.
pub const ER_SERVER_OFFLINE_MODE: u16 = 3032;
/// The account is locked.
pub const ER_ACCOUNT_HAS_BEEN_LOCKED: u16 = 3118;
/// Connections without TLS are not allowed.
pub const ER_SECURE_TRANSPORT_REQUIRED: u16 = 3159;
/// The role is not granted to the account.
pub const ER_ROLE_NOT_GRANTED: u16 = 3530;
/// The client asks for a compression algorithm that it may not use.
pub const ER_WRONG_COMPRESSION_ALGORITHM_CLIENT: u16 = 3922;
/// The client asks for a compression level that does not exist.
pub const ER_WRONG_COMPRESSION_LEVEL_CLIENT: u16 = 3923;
/// Local files of the client may not be read.
pub const ER_CLIENT_LOCAL_FILES_DISABLED: u16 = 3948;
/// The client was idle for too long; the connection ends after this error.
pub const ER_CLIENT_INTERACTION_TIMEOUT: u16 = 4031;
