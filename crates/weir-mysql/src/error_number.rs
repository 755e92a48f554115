//! Numbers of errors, by MySQL's names for them: those that Weir says itself, and those by which it knows
//! what a server's error is about.
//!
//! Source: MySQL's "Error Message Reference", server and client errors.

/// There is no memory left.
pub const ER_OUTOFMEMORY: u16 = 1037;
/// There is no room for another connection.
pub const ER_CON_COUNT_ERROR: u16 = 1040;
/// A server has no memory left for a connection.
pub const ER_OUT_OF_RESOURCES: u16 = 1041;
/// A login can not be read.
pub const ER_HANDSHAKE_ERROR: u16 = 1043;
/// The account has no right to the schema.
pub const ER_DBACCESS_DENIED_ERROR: u16 = 1044;
/// There is no such account, or its password is another.
pub const ER_ACCESS_DENIED_ERROR: u16 = 1045;
/// No server serves the command.
pub const ER_UNKNOWN_COM_ERROR: u16 = 1047;
/// There is no such schema.
pub const ER_BAD_DB_ERROR: u16 = 1049;
/// The server goes away; the connection ends behind it.
pub const ER_SERVER_SHUTDOWN: u16 = 1053;
/// The text can not be read, and nothing of it was done.
pub const ER_PARSE_ERROR: u16 = 1064;
/// No connection has the number that KILL names.
pub const ER_NO_SUCH_THREAD: u16 = 1094;
/// The connection that KILL names is another account's.
pub const ER_KILL_DENIED_ERROR: u16 = 1095;
/// What has no number of its own; the text says what is meant.
pub const ER_UNKNOWN_ERROR: u16 = 1105;
/// The server blocks the client's address, for too many connections from there have failed.
pub const ER_HOST_IS_BLOCKED: u16 = 1129;
/// No account may come from the client's address.
pub const ER_HOST_NOT_PRIVILEGED: u16 = 1130;
/// The server can start no thread for a connection.
pub const ER_CANT_CREATE_THREAD: u16 = 1135;
/// A packet is longer than it may be; the connection ends behind it.
pub const ER_NET_PACKET_TOO_LARGE: u16 = 1153;
/// A packet is not the one after its predecessor.
pub const ER_NET_PACKETS_OUT_OF_ORDER: u16 = 1156;
/// A packet can not be inflated.
pub const ER_NET_UNCOMPRESS_ERROR: u16 = 1157;
/// The account has as many connections as it may.
pub const ER_TOO_MANY_USER_CONNECTIONS: u16 = 1203;
/// A function, or an execution, has arguments that it can not have.
pub const ER_WRONG_ARGUMENTS: u16 = 1210;
/// The transaction was rolled back, and is to be begun anew.
pub const ER_LOCK_DEADLOCK: u16 = 1213;
/// The account has done as much as it may within the hour, or has as many connections as it may.
pub const ER_USER_LIMIT_REACHED: u16 = 1226;
/// No prepared statement has the number.
pub const ER_UNKNOWN_STMT_HANDLER: u16 = 1243;
/// The client does not know the account's plugin.
pub const ER_NOT_SUPPORTED_AUTH_MODE: u16 = 1251;
/// An option forbids the statement: `--super-read-only`, and others that have nothing to do with it.
pub const ER_OPTION_PREVENTS_STATEMENT: u16 = 1290;
/// The statement was ended by KILL.
pub const ER_QUERY_INTERRUPTED: u16 = 1317;
/// Rows are asked for where no cursor is open.
pub const ER_STMT_HAS_NO_OPEN_CURSOR: u16 = 1421;
/// There are as many prepared statements as there may be.
pub const ER_MAX_PREPARED_STMT_COUNT_REACHED: u16 = 1461;
/// The next transaction's characteristics can not be said within one.
pub const ER_CANT_CHANGE_TX_CHARACTERISTICS: u16 = 1568;
/// What a prepared statement was prepared for has changed.
pub const ER_NEED_REPREPARE: u16 = 1615;
/// A write in a READ ONLY transaction.
pub const ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION: u16 = 1792;
/// A packet can not be read.
pub const ER_MALFORMED_PACKET: u16 = 1835;
/// The server takes no writes.
pub const ER_READ_ONLY_MODE: u16 = 1836;
/// A client's own number: no server could be connected to.
pub const CR_CONN_HOST_ERROR: u16 = 2003;
/// The statement took longer than it may.
pub const ER_QUERY_TIMEOUT: u16 = 3024;
/// The server lets in nobody but who administers it.
pub const ER_SERVER_OFFLINE_MODE: u16 = 3032;
/// The account is locked.
pub const ER_ACCOUNT_HAS_BEEN_LOCKED: u16 = 3118;
/// Nobody is let in without TLS.
pub const ER_SECURE_TRANSPORT_REQUIRED: u16 = 3159;
/// A role that the account has not.
pub const ER_ROLE_NOT_GRANTED: u16 = 3530;
/// The client asks for a way to compress that it may not use.
pub const ER_WRONG_COMPRESSION_ALGORITHM_CLIENT: u16 = 3922;
/// The client asks for a level of compression that there is not.
pub const ER_WRONG_COMPRESSION_LEVEL_CLIENT: u16 = 3923;
/// A client's files may not be read.
pub const ER_CLIENT_LOCAL_FILES_DISABLED: u16 = 3948;
/// The client was idle for too long; the connection ends behind it.
pub const ER_CLIENT_INTERACTION_TIMEOUT: u16 = 4031;
