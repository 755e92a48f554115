//! What a server's error is about: what Weir does about it depends on that.

use weir_mysql::error_number::{
    ER_ACCESS_DENIED_ERROR, ER_ACCOUNT_HAS_BEEN_LOCKED, ER_BAD_DB_ERROR, ER_CON_COUNT_ERROR,
    ER_DBACCESS_DENIED_ERROR, ER_HOST_IS_BLOCKED, ER_HOST_NOT_PRIVILEGED, ER_OPTION_PREVENTS_STATEMENT,
    ER_READ_ONLY_MODE, ER_ROLE_NOT_GRANTED, ER_SERVER_OFFLINE_MODE, ER_SERVER_SHUTDOWN,
    ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED,
};

use super::attach::ServerError;

impl ServerError {
    /// Whether it is about the server, and not about the account: it is full, blocks Weir's address, goes
    /// away, is offline, or the account has all that it may have there.
    pub fn is_about_server(&self) -> bool {
        matches!(
            self.code,
            ER_CON_COUNT_ERROR
                | ER_SERVER_SHUTDOWN
                | ER_HOST_IS_BLOCKED
                | ER_HOST_NOT_PRIVILEGED
                | ER_TOO_MANY_USER_CONNECTIONS
                | ER_USER_LIMIT_REACHED
                | ER_SERVER_OFFLINE_MODE
        )
    }

    /// Whether a secondary may say so because it has not heard yet of an account or a schema that the primary
    /// has made or changed: no right to the schema, a wrong password, no such schema, a locked account, a role
    /// that the account has not.
    pub fn may_be_behind(&self) -> bool {
        matches!(
            self.code,
            ER_DBACCESS_DENIED_ERROR
                | ER_ACCESS_DENIED_ERROR
                | ER_BAD_DB_ERROR
                | ER_ACCOUNT_HAS_BEEN_LOCKED
                | ER_ROLE_NOT_GRANTED
        )
    }

    /// Whether it is about the default schema: no right to it, or no such.
    pub fn lacks_schema(&self) -> bool {
        matches!(self.code, ER_DBACCESS_DENIED_ERROR | ER_BAD_DB_ERROR)
    }

    /// Whether it says that the server takes no writes, having done nothing. The number of 1290 is that of
    /// other options too, and of no error of a transaction that was under way: 3100 and 3101 may come behind
    /// the moment at which other members have the transaction.
    pub fn is_read_only(&self) -> bool {
        match self.code {
            ER_READ_ONLY_MODE => true,
            ER_OPTION_PREVENTS_STATEMENT => self.says(b"read-only"),
            _ => false,
        }
    }

    /// Whether these ASCII characters are in its text, which is in the character set that the session's results
    /// have: UTF-16 has zeros between them.
    pub fn says(&self, words: &[u8]) -> bool {
        let message: Vec<u8> = self.message.iter().copied().filter(|byte| *byte != 0).collect();
        message.windows(words.len()).any(|text| text == words)
    }
}

#[cfg(test)]
mod tests {
    use weir_mysql::outcome::GENERAL_STATE;

    use super::*;

    #[test]
    fn only_a_refusal_that_says_read_only_is_one() {
        let says = |code, message: &str| ServerError::new(code, GENERAL_STATE, message).is_read_only();
        assert!(says(1836, "Running in read-only mode"));
        assert!(says(
            1290,
            "The MySQL server is running with the --super-read-only option so it cannot execute"
        ));
        assert!(says(1290, "\0-\0r\0e\0a\0d\0-\0o\0n\0l\0y"), "in UTF-16");
        assert!(!says(1290, "The MySQL server is running with the --secure-file-priv option so it cannot"));
        assert!(!says(3100, "Error on observer while running replication hook 'before_commit'. read-only"));
        assert!(!says(3101, "Plugin instructed the server to rollback the current transaction. read-only"));
    }
}
