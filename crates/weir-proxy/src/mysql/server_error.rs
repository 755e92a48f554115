//! What a server's error is about: what Weir does about it depends on that.

use weir_mysql::error_number::{
    ER_ACCESS_DENIED_ERROR, ER_ACCOUNT_HAS_BEEN_LOCKED, ER_BAD_DB_ERROR, ER_CANT_CREATE_THREAD,
    ER_CON_COUNT_ERROR, ER_DBACCESS_DENIED_ERROR, ER_HOST_IS_BLOCKED, ER_HOST_NOT_PRIVILEGED,
    ER_MAX_PREPARED_STMT_COUNT_REACHED, ER_OPTION_PREVENTS_STATEMENT, ER_OUT_OF_RESOURCES, ER_OUTOFMEMORY,
    ER_READ_ONLY_MODE, ER_ROLE_NOT_GRANTED, ER_SECURE_TRANSPORT_REQUIRED, ER_SERVER_OFFLINE_MODE,
    ER_SERVER_SHUTDOWN, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED,
};

use super::attach::ServerError;

impl ServerError {
    /// Whether it is about the server, and not about the account: it is full, lacks memory, blocks Weir's
    /// address, goes away, is offline, or the account has all that it may have there.
    pub fn is_about_server(&self) -> bool {
        matches!(
            self.code,
            ER_CON_COUNT_ERROR
                | ER_OUTOFMEMORY
                | ER_OUT_OF_RESOURCES
                | ER_CANT_CREATE_THREAD
                | ER_SERVER_SHUTDOWN
                | ER_HOST_IS_BLOCKED
                | ER_HOST_NOT_PRIVILEGED
                | ER_TOO_MANY_USER_CONNECTIONS
                | ER_USER_LIMIT_REACHED
                | ER_SERVER_OFFLINE_MODE
        )
    }

    /// Whether it takes back what was known of the account: its password is another, or has expired, or it
    /// is locked or gone. A server asks for the schema, and for TLS, without a word on the password; of what
    /// else it may say nobody knows, and then the account counts as refused.
    pub fn refuses_account(&self) -> bool {
        !self.is_about_server() && !self.lacks_schema() && self.code != ER_SECURE_TRANSPORT_REQUIRED
    }

    /// Whether the server has as many prepared statements as it may (`max_prepared_stmt_count`).
    pub fn is_for_want_of_room(&self) -> bool {
        self.code == ER_MAX_PREPARED_STMT_COUNT_REACHED
    }

    /// Whether a secondary may say so because it has not heard yet of an account or a schema that the primary
    /// has made or changed: no right to the schema, a wrong password, no such schema, a locked account, a
    /// role that the account has not.
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

    /// Whether these ASCII characters are in its text, which is in the character set that the session's
    /// results have: UTF-16 has zeros between them.
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
    fn what_is_not_about_the_account_takes_nothing_back_that_is_known_of_it() {
        let refuses = |code| ServerError::new(code, GENERAL_STATE, "").refuses_account();
        for code in [1045, 1251, 1698, 1820, 1862, 3118, 3955] {
            assert!(refuses(code), "{code}");
        }
        for code in [1037, 1040, 1041, 1044, 1049, 1053, 1129, 1130, 1135, 1203, 1226, 3032, 3159] {
            assert!(!refuses(code), "{code}");
        }
    }

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
