//! Capability flags of clients and servers, and the status flags of answers.
//!
//! Source: MySQL manual, "Capabilities Flags" (`mysql_com.h`); MariaDB's documentation, "Connecting", for the
//! flags that only MariaDB has.

use std::ops::{BitAnd, BitOr, Not};

/// A set of capability flags: MySQL's in the lower 32 bits, MariaDB's extended ones above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Capabilities(pub u64);

macro_rules! flags {
    ($type:ident: $($(#[$doc:meta])* $name:ident = $bit:expr;)*) => {
        impl $type {
            $($(#[$doc])* pub const $name: $type = $type(1 << $bit);)*
        }
    };
}

flags! { Capabilities:
    /// `CLIENT_LONG_PASSWORD`, in MariaDB `CLIENT_MYSQL`: without it, a MariaDB server has extended flags.
    LONG_PASSWORD = 0;
    /// `CLIENT_FOUND_ROWS`: affected rows counts the rows found rather than changed.
    FOUND_ROWS = 1;
    /// `CLIENT_LONG_FLAG`: column definitions have two bytes of flags.
    LONG_FLAG = 2;
    /// `CLIENT_CONNECT_WITH_DB`: a login may name a schema.
    CONNECT_WITH_DB = 3;
    /// `CLIENT_NO_SCHEMA`: `schema.table.column` is refused.
    NO_SCHEMA = 4;
    /// `CLIENT_COMPRESS`: zlib.
    COMPRESS = 5;
    /// `CLIENT_ODBC`: no effect.
    ODBC = 6;
    /// `CLIENT_LOCAL_FILES`: LOAD DATA LOCAL INFILE.
    LOCAL_FILES = 7;
    /// `CLIENT_IGNORE_SPACE`: spaces are allowed before `(`, as with the SQL mode IGNORE_SPACE.
    IGNORE_SPACE = 8;
    /// `CLIENT_PROTOCOL_41`: the protocol that this crate speaks.
    PROTOCOL_41 = 9;
    /// `CLIENT_INTERACTIVE`: `interactive_timeout` applies instead of `wait_timeout`.
    INTERACTIVE = 10;
    /// `CLIENT_SSL`: TLS after the greeting.
    SSL = 11;
    /// `CLIENT_IGNORE_SIGPIPE`: no effect on a server.
    IGNORE_SIGPIPE = 12;
    /// `CLIENT_TRANSACTIONS`: answers have status flags.
    TRANSACTIONS = 13;
    /// `CLIENT_RESERVED`: no effect.
    RESERVED = 14;
    /// `CLIENT_RESERVED2`, formerly `CLIENT_SECURE_CONNECTION`: passwords are proved with a nonce.
    SECURE_CONNECTION = 15;
    /// `CLIENT_MULTI_STATEMENTS`: several statements in one COM_QUERY.
    MULTI_STATEMENTS = 16;
    /// `CLIENT_MULTI_RESULTS`: a statement may have several results.
    MULTI_RESULTS = 17;
    /// `CLIENT_PS_MULTI_RESULTS`: the same for prepared statements.
    PS_MULTI_RESULTS = 18;
    /// `CLIENT_PLUGIN_AUTH`: logins name their authentication plugin.
    PLUGIN_AUTH = 19;
    /// `CLIENT_CONNECT_ATTRS`: logins have attributes.
    CONNECT_ATTRS = 20;
    /// `CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA`: the auth response may be longer than 255 bytes.
    PLUGIN_AUTH_LENENC_CLIENT_DATA = 21;
    /// `CLIENT_CAN_HANDLE_EXPIRED_PASSWORDS`: an account with an expired password may log in to change it.
    CAN_HANDLE_EXPIRED_PASSWORDS = 22;
    /// `CLIENT_SESSION_TRACK`: OK packets report session state changes.
    SESSION_TRACK = 23;
    /// `CLIENT_DEPRECATE_EOF`: rows end with an OK packet, and no packet separates columns from rows.
    DEPRECATE_EOF = 24;
    /// `CLIENT_OPTIONAL_RESULTSET_METADATA`: results may omit column definitions. Weir never uses it.
    OPTIONAL_RESULTSET_METADATA = 25;
    /// `CLIENT_ZSTD_COMPRESSION_ALGORITHM`: zstd, at a level given in the login.
    ZSTD_COMPRESSION_ALGORITHM = 26;
    /// `CLIENT_QUERY_ATTRIBUTES`: statements have attributes.
    QUERY_ATTRIBUTES = 27;
    /// `MULTI_FACTOR_AUTHENTICATION`: a login may need further factors.
    MULTI_FACTOR_AUTHENTICATION = 28;
    /// `CLIENT_CAPABILITY_EXTENSION`, in older MariaDB `CLIENT_PROGRESS`. Weir never uses it.
    CAPABILITY_EXTENSION = 29;
    /// `CLIENT_SSL_VERIFY_SERVER_CERT`: internal to clients, without meaning on the wire.
    SSL_VERIFY_SERVER_CERT = 30;
    /// `CLIENT_REMEMBER_OPTIONS`: internal to clients, without meaning on the wire.
    REMEMBER_OPTIONS = 31;
    /// `MARIADB_CLIENT_PROGRESS`: progress reports as ERR packets of code 0xFFFF. Weir never uses it.
    MARIADB_PROGRESS = 32;
    /// `MARIADB_CLIENT_COM_MULTI`. Weir never uses it.
    MARIADB_COM_MULTI = 33;
    /// `MARIADB_CLIENT_STMT_BULK_OPERATIONS`: COM_STMT_BULK_EXECUTE. Weir never uses it.
    MARIADB_STMT_BULK_OPERATIONS = 34;
    /// `MARIADB_CLIENT_EXTENDED_METADATA`: column definitions have further fields. Weir never uses it.
    MARIADB_EXTENDED_METADATA = 35;
    /// `MARIADB_CLIENT_CACHE_METADATA`: results may omit column definitions. Weir never uses it.
    MARIADB_CACHE_METADATA = 36;
    /// `MARIADB_CLIENT_BULK_UNIT_RESULTS`. Weir never uses it.
    MARIADB_BULK_UNIT_RESULTS = 37;
}

impl Capabilities {
    /// No capability.
    pub const NONE: Capabilities = Capabilities(0);

    /// The flags that Weir can offer to clients and ask of servers with any configuration. The code that
    /// handles them adds [`Self::SSL`], [`Self::COMPRESS`], [`Self::ZSTD_COMPRESSION_ALGORITHM`] and, for
    /// relayed logins, [`Self::MULTI_FACTOR_AUTHENTICATION`]. All other flags that change the framing of
    /// answers are left out: Weir never offers them, so neither side uses them.
    pub const SPOKEN: Capabilities = Capabilities(
        Self::LONG_PASSWORD.0
            | Self::FOUND_ROWS.0
            | Self::LONG_FLAG.0
            | Self::CONNECT_WITH_DB.0
            | Self::NO_SCHEMA.0
            | Self::ODBC.0
            | Self::LOCAL_FILES.0
            | Self::IGNORE_SPACE.0
            | Self::PROTOCOL_41.0
            | Self::INTERACTIVE.0
            | Self::IGNORE_SIGPIPE.0
            | Self::TRANSACTIONS.0
            | Self::RESERVED.0
            | Self::SECURE_CONNECTION.0
            | Self::MULTI_STATEMENTS.0
            | Self::MULTI_RESULTS.0
            | Self::PS_MULTI_RESULTS.0
            | Self::PLUGIN_AUTH.0
            | Self::CONNECT_ATTRS.0
            | Self::PLUGIN_AUTH_LENENC_CLIENT_DATA.0
            | Self::CAN_HANDLE_EXPIRED_PASSWORDS.0
            | Self::SESSION_TRACK.0
            | Self::DEPRECATE_EOF.0
            | Self::QUERY_ATTRIBUTES.0,
    );

    /// The flags that every server must have: without them Weir cannot log in.
    pub const REQUIRED: Capabilities =
        Capabilities(Self::PROTOCOL_41.0 | Self::SECURE_CONNECTION.0 | Self::PLUGIN_AUTH.0);

    /// Whether all flags of `others` are set.
    pub fn has(self, others: Capabilities) -> bool {
        self.0 & others.0 == others.0
    }

    /// The flags without those of `others`.
    pub fn without(self, others: Capabilities) -> Capabilities {
        Capabilities(self.0 & !others.0)
    }

    /// MySQL's 32 flags.
    pub fn lower(self) -> u32 {
        self.0 as u32
    }

    /// MariaDB's extended flags.
    pub fn extended(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The flags of both halves.
    pub fn of(lower: u32, extended: u32) -> Capabilities {
        Capabilities(u64::from(lower) | u64::from(extended) << 32)
    }
}

impl BitOr for Capabilities {
    type Output = Capabilities;

    fn bitor(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 | other.0)
    }
}

impl BitAnd for Capabilities {
    type Output = Capabilities;

    fn bitand(self, other: Capabilities) -> Capabilities {
        Capabilities(self.0 & other.0)
    }
}

impl Not for Capabilities {
    type Output = Capabilities;

    fn not(self) -> Capabilities {
        Capabilities(!self.0)
    }
}

/// The session's status flags in OK and EOF packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusFlags(pub u16);

flags! { StatusFlags:
    /// A transaction is open.
    IN_TRANS = 0;
    /// `autocommit` is on.
    AUTOCOMMIT = 1;
    /// Another result of the same command follows.
    MORE_RESULTS_EXISTS = 3;
    /// The statement found no good index.
    NO_GOOD_INDEX_USED = 4;
    /// The statement used no index.
    NO_INDEX_USED = 5;
    /// A cursor was opened: rows are sent when they are fetched.
    CURSOR_EXISTS = 6;
    /// The cursor has no further row.
    LAST_ROW_SENT = 7;
    /// A schema was dropped.
    DB_DROPPED = 8;
    /// The SQL mode `NO_BACKSLASH_ESCAPES` is on.
    NO_BACKSLASH_ESCAPES = 9;
    /// A prepared statement was re-prepared and its columns changed.
    METADATA_CHANGED = 10;
    /// The statement was slow (`SERVER_QUERY_WAS_SLOW`).
    QUERY_WAS_SLOW = 11;
    /// The result holds the OUT parameters of a procedure.
    PS_OUT_PARAMS = 12;
    /// The open transaction is read-only.
    IN_TRANS_READONLY = 13;
    /// The OK packet has session state information.
    SESSION_STATE_CHANGED = 14;
}

impl StatusFlags {
    /// The flags that carry over from one statement to the next.
    pub const LASTING: StatusFlags = StatusFlags(
        Self::IN_TRANS.0 | Self::AUTOCOMMIT.0 | Self::NO_BACKSLASH_ESCAPES.0 | Self::IN_TRANS_READONLY.0,
    );

    /// Whether all flags of `others` are set.
    pub fn has(self, others: StatusFlags) -> bool {
        self.0 & others.0 == others.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_offered_that_changes_how_answers_are_framed_unknown_to_the_reader() {
        for flag in [
            Capabilities::OPTIONAL_RESULTSET_METADATA,
            Capabilities::CAPABILITY_EXTENSION,
            Capabilities::MARIADB_PROGRESS,
            Capabilities::MARIADB_STMT_BULK_OPERATIONS,
            Capabilities::MARIADB_EXTENDED_METADATA,
            Capabilities::MARIADB_CACHE_METADATA,
        ] {
            assert_eq!(Capabilities::SPOKEN & flag, Capabilities::NONE, "{flag:?}");
        }
        assert_eq!(Capabilities::SPOKEN.extended(), 0);
        assert!(Capabilities::SPOKEN.has(Capabilities::REQUIRED));
    }

    #[test]
    fn the_flags_have_the_manuals_bits() {
        assert_eq!(Capabilities::SSL.0, 0x800);
        assert_eq!(Capabilities::PLUGIN_AUTH.0, 0x8_0000);
        assert_eq!(Capabilities::DEPRECATE_EOF.0, 0x100_0000);
        assert_eq!(Capabilities::QUERY_ATTRIBUTES.0, 0x800_0000);
        assert_eq!(StatusFlags::MORE_RESULTS_EXISTS.0, 8);
        assert_eq!(StatusFlags::CURSOR_EXISTS.0, 64);
        assert_eq!(StatusFlags::SESSION_STATE_CHANGED.0, 0x4000);
    }
}
