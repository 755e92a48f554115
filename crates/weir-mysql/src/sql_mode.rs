//! The parts of `sql_mode` that change how a text is read.

/// The SQL modes that affect how a text is read. The default is a server's own default: none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SqlMode {
    bits: u8,
}

const ANSI_QUOTES: u8 = 1;
const NO_BACKSLASH_ESCAPES: u8 = 2;
const IGNORE_SPACE: u8 = 4;
/// Grammars of MariaDB other than MySQL's (`ORACLE`, `MSSQL`).
const FOREIGN: u8 = 8;

impl SqlMode {
    /// Parses the variable's value: names separated by commas, in any case. Unknown names, and those without
    /// effect here, are ignored.
    ///
    /// Source: MySQL 9.x reference manual, "Server SQL Modes"; MariaDB, "SQL_MODE".
    pub fn read(value: &str) -> SqlMode {
        let bit = |name: &str| match name.trim().to_ascii_uppercase().as_str() {
            "ANSI_QUOTES" => ANSI_QUOTES,
            "NO_BACKSLASH_ESCAPES" => NO_BACKSLASH_ESCAPES,
            "IGNORE_SPACE" => IGNORE_SPACE,
            "ANSI" | "DB2" | "MAXDB" | "POSTGRESQL" => ANSI_QUOTES | IGNORE_SPACE,
            "ORACLE" | "MSSQL" => ANSI_QUOTES | IGNORE_SPACE | FOREIGN,
            _ => 0,
        };
        SqlMode { bits: value.split(',').map(bit).fold(0, |bits, bit| bits | bit) }
    }

    /// This mode, with or without `ANSI_QUOTES`: `"` quotes names instead of strings.
    pub fn with_ansi_quotes(self, on: bool) -> SqlMode {
        self.with(ANSI_QUOTES, on)
    }

    /// This mode, with or without `NO_BACKSLASH_ESCAPES`: a backslash in a string is an ordinary character. A
    /// server reports this state after each statement (`SERVER_STATUS_NO_BACKSLASH_ESCAPES`).
    pub fn with_no_backslash_escapes(self, on: bool) -> SqlMode {
        self.with(NO_BACKSLASH_ESCAPES, on)
    }

    /// This mode, with or without `IGNORE_SPACE`: white space is allowed between a function name and its
    /// parenthesis. `CLIENT_IGNORE_SPACE` sets it at login.
    pub fn with_ignore_space(self, on: bool) -> SqlMode {
        self.with(IGNORE_SPACE, on)
    }

    fn with(self, bit: u8, on: bool) -> SqlMode {
        SqlMode { bits: if on { self.bits | bit } else { self.bits & !bit } }
    }

    /// Whether `"` quotes names.
    pub fn ansi_quotes(self) -> bool {
        self.bits & ANSI_QUOTES != 0
    }

    /// Whether a backslash in a string is an ordinary character.
    pub fn no_backslash_escapes(self) -> bool {
        self.bits & NO_BACKSLASH_ESCAPES != 0
    }

    /// Whether white space is allowed between a function name and its parenthesis.
    pub fn ignore_space(self) -> bool {
        self.bits & IGNORE_SPACE != 0
    }

    /// Whether the server uses another grammar than MySQL's.
    pub fn is_foreign(self) -> bool {
        self.bits & FOREIGN != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_found_among_others_and_in_combinations() {
        let usual = SqlMode::read("ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE");
        assert_eq!(usual, SqlMode::default());
        let mode = SqlMode::read("STRICT_TRANS_TABLES, ansi_quotes,NO_BACKSLASH_ESCAPES");
        assert!(mode.ansi_quotes() && mode.no_backslash_escapes() && !mode.ignore_space());
        assert!(SqlMode::read("ANSI").ansi_quotes() && SqlMode::read("ANSI").ignore_space());
        assert!(SqlMode::read("ORACLE").is_foreign() && !SqlMode::read("ANSI").is_foreign());
        assert!(!mode.with_ansi_quotes(false).ansi_quotes());
    }
}
