//! Classifies a server's errors, as far as Weir reacts to them differently.

use weir_mysql::error_number::{
    ER_ACCESS_DENIED_ERROR, ER_ACCOUNT_HAS_BEEN_LOCKED, ER_BAD_DB_ERROR, ER_CANT_CREATE_THREAD,
    ER_CLIENT_INTERACTION_TIMEOUT, ER_CON_COUNT_ERROR, ER_DBACCESS_DENIED_ERROR, ER_HOST_IS_BLOCKED,
    ER_HOST_NOT_PRIVILEGED, ER_MAX_PREPARED_STMT_COUNT_REACHED, ER_NET_PACKET_TOO_LARGE,
    ER_NET_PACKETS_OUT_OF_ORDER, ER_NET_UNCOMPRESS_ERROR, ER_OPTION_PREVENTS_STATEMENT, ER_OUT_OF_RESOURCES,
    ER_OUTOFMEMORY, ER_READ_ONLY_MODE, ER_ROLE_NOT_GRANTED, ER_SECURE_TRANSPORT_REQUIRED,
    ER_SERVER_OFFLINE_MODE, ER_SERVER_SHUTDOWN, ER_TOO_MANY_USER_CONNECTIONS, ER_USER_LIMIT_REACHED,
};

use super::attach::ServerError;

impl ServerError {
    /// Whether the error is about the server rather than the account: it is full, lacks memory, blocks Weir's
    /// address, is shutting down or offline, or the account has reached a limit there.
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

    /// Whether the error invalidates what is known about the account: its password was changed or has
    /// expired, or it is locked or gone. An error about the schema, or about missing TLS, says nothing about
    /// the password. Any other error counts as a refusal of the account.
    pub fn refuses_account(&self) -> bool {
        !self.is_about_server() && !self.lacks_schema() && self.code != ER_SECURE_TRANSPORT_REQUIRED
    }

    /// Whether the server's limit of prepared statements is reached (`max_prepared_stmt_count`).
    pub fn is_for_want_of_room(&self) -> bool {
        self.code == ER_MAX_PREPARED_STMT_COUNT_REACHED
    }

    /// Whether a server closes the connection behind the error, because it could not read a command.
    pub fn ends_connection(&self) -> bool {
        matches!(
            self.code,
            ER_NET_PACKET_TOO_LARGE
                | ER_NET_PACKETS_OUT_OF_ORDER
                | ER_NET_UNCOMPRESS_ERROR
                | ER_CLIENT_INTERACTION_TIMEOUT
        )
    }

    /// Whether a secondary may report this because it has not replicated a new or changed account or schema
    /// yet: no access to the schema, a wrong password, no such schema, a locked account, a role that is not
    /// granted.
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

    /// Whether the error is about the default schema: no access to it, or it does not exist.
    pub fn lacks_schema(&self) -> bool {
        matches!(self.code, ER_DBACCESS_DENIED_ERROR | ER_BAD_DB_ERROR)
    }

    /// Whether the error says that the server is read-only, and has executed nothing. Error 1290 is also used
    /// for other options, so its text decides. Errors 3100 and 3101 do not count: they may come after other
    /// members have already received the transaction.
    pub fn is_read_only(&self) -> bool {
        match self.code {
            ER_READ_ONLY_MODE => true,
            ER_OPTION_PREVENTS_STATEMENT => self.says(b"read-only"),
            _ => false,
        }
    }

    /// Whether the error's text contains these ASCII characters. The text is in the character set of the
    /// session's results; in UTF-16 there are zero bytes between the characters.
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
