//! What a client and a server may say to each other: capability flags, and the status flags of answers.
//!
//! Source: MySQL manual, "Capabilities Flags" (`mysql_com.h`); MariaDB's documentation, "Connecting", for
//! what only its servers know.

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
    /// `CLIENT_LONG_PASSWORD`, in MariaDB `CLIENT_MYSQL`: a MariaDB server without it has extended flags.
    LONG_PASSWORD = 0;
    /// `CLIENT_FOUND_ROWS`: rows found are told as rows affected.
    FOUND_ROWS = 1;
    /// `CLIENT_LONG_FLAG`: columns have flags of two bytes.
    LONG_FLAG = 2;
    /// `CLIENT_CONNECT_WITH_DB`: a login may name a schema.
    CONNECT_WITH_DB = 3;
    /// `CLIENT_NO_SCHEMA`: `schema.table.column` is refused.
    NO_SCHEMA = 4;
    /// `CLIENT_COMPRESS`: zlib.
    COMPRESS = 5;
    /// `CLIENT_ODBC`: of no effect.
    ODBC = 6;
    /// `CLIENT_LOCAL_FILES`: LOAD DATA LOCAL INFILE.
    LOCAL_FILES = 7;
    /// `CLIENT_IGNORE_SPACE`: blanks may stand before `(`, as with the SQL mode of that name.
    IGNORE_SPACE = 8;
    /// `CLIENT_PROTOCOL_41`: the protocol that this crate speaks.
    PROTOCOL_41 = 9;
    /// `CLIENT_INTERACTIVE`: `interactive_timeout` instead of `wait_timeout`.
    INTERACTIVE = 10;
    /// `CLIENT_SSL`: TLS after the greeting.
    SSL = 11;
    /// `CLIENT_IGNORE_SIGPIPE`: of no effect for a server.
    IGNORE_SIGPIPE = 12;
    /// `CLIENT_TRANSACTIONS`: answers have status flags.
    TRANSACTIONS = 13;
    /// `CLIENT_RESERVED`: of no effect.
    RESERVED = 14;
    /// `CLIENT_RESERVED2`, once `CLIENT_SECURE_CONNECTION`: passwords are proved by a nonce.
    SECURE_CONNECTION = 15;
    /// `CLIENT_MULTI_STATEMENTS`: several statements in one COM_QUERY.
    MULTI_STATEMENTS = 16;
    /// `CLIENT_MULTI_RESULTS`: several results to one statement.
    MULTI_RESULTS = 17;
    /// `CLIENT_PS_MULTI_RESULTS`: the same for prepared statements.
    PS_MULTI_RESULTS = 18;
    /// `CLIENT_PLUGIN_AUTH`: logins name the plugin they are made for.
    PLUGIN_AUTH = 19;
    /// `CLIENT_CONNECT_ATTRS`: logins have attributes.
    CONNECT_ATTRS = 20;
    /// `CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA`: a login's proof may be longer than 255 bytes.
    PLUGIN_AUTH_LENENC_CLIENT_DATA = 21;
    /// `CLIENT_CAN_HANDLE_EXPIRED_PASSWORDS`: an expired password lets in, to be changed.
    CAN_HANDLE_EXPIRED_PASSWORDS = 22;
    /// `CLIENT_SESSION_TRACK`: OK packets say what changed in the session.
    SESSION_TRACK = 23;
    /// `CLIENT_DEPRECATE_EOF`: an OK packet ends rows, and nothing stands between columns and rows.
    DEPRECATE_EOF = 24;
    /// `CLIENT_OPTIONAL_RESULTSET_METADATA`: results may come without columns. Not spoken here.
    OPTIONAL_RESULTSET_METADATA = 25;
    /// `CLIENT_ZSTD_COMPRESSION_ALGORITHM`: zstd, at a level that the login names.
    ZSTD_COMPRESSION_ALGORITHM = 26;
    /// `CLIENT_QUERY_ATTRIBUTES`: statements have attributes.
    QUERY_ATTRIBUTES = 27;
    /// `MULTI_FACTOR_AUTHENTICATION`: a login may have further factors.
    MULTI_FACTOR_AUTHENTICATION = 28;
    /// `CLIENT_CAPABILITY_EXTENSION`, in older MariaDB `CLIENT_PROGRESS`. Not spoken here.
    CAPABILITY_EXTENSION = 29;
    /// `CLIENT_SSL_VERIFY_SERVER_CERT`: a client's own note, of no meaning on the wire.
    SSL_VERIFY_SERVER_CERT = 30;
    /// `CLIENT_REMEMBER_OPTIONS`: a client's own note, of no meaning on the wire.
    REMEMBER_OPTIONS = 31;
    /// `MARIADB_CLIENT_PROGRESS`: reports of progress as ERR packets of code 0xFFFF. Not spoken here.
    MARIADB_PROGRESS = 32;
    /// `MARIADB_CLIENT_COM_MULTI`. Not spoken here.
    MARIADB_COM_MULTI = 33;
    /// `MARIADB_CLIENT_STMT_BULK_OPERATIONS`: COM_STMT_BULK_EXECUTE. Not spoken here.
    MARIADB_STMT_BULK_OPERATIONS = 34;
    /// `MARIADB_CLIENT_EXTENDED_METADATA`: columns have further fields. Not spoken here.
    MARIADB_EXTENDED_METADATA = 35;
    /// `MARIADB_CLIENT_CACHE_METADATA`: results may come without columns. Not spoken here.
    MARIADB_CACHE_METADATA = 36;
    /// `MARIADB_CLIENT_BULK_UNIT_RESULTS`. Not spoken here.
    MARIADB_BULK_UNIT_RESULTS = 37;
}

impl Capabilities {
    /// No capability.
    pub const NONE: Capabilities = Capabilities(0);

    /// What Weir can offer to clients, and may ask of servers, whatever is configured. [`Self::SSL`],
    /// [`Self::COMPRESS`], [`Self::ZSTD_COMPRESSION_ALGORITHM`] and, where logins are relayed,
    /// [`Self::MULTI_FACTOR_AUTHENTICATION`] are added by who decides about them. All else that changes how
    /// answers are framed is left out: nobody is told of it, so nobody does it.
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

    /// What every server that Weir speaks to must have: without them a login can not be made.
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

/// The status of a session, as OK and EOF packets say it.
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
    /// A cursor was opened: rows come when they are fetched.
    CURSOR_EXISTS = 6;
    /// The cursor has no further row.
    LAST_ROW_SENT = 7;
    /// A schema was dropped.
    DB_DROPPED = 8;
    /// The SQL mode `NO_BACKSLASH_ESCAPES` is on.
    NO_BACKSLASH_ESCAPES = 9;
    /// A prepared statement was prepared anew and has other columns.
    METADATA_CHANGED = 10;
    /// The statement was slow.
    QUERY_WAS_SLOW = 11;
    /// The result holds the OUT parameters of a procedure.
    PS_OUT_PARAMS = 12;
    /// The open transaction is read-only.
    IN_TRANS_READONLY = 13;
    /// The OK packet says what changed in the session.
    SESSION_STATE_CHANGED = 14;
}

impl StatusFlags {
    /// Those that last from one statement to the next.
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
