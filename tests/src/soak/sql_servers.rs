//! The MySQL servers behind the soak's Weir: a primary, and a copy of it that takes its place now and then.

use std::net::SocketAddr;

use crate::mysql::Mysqld;

/// A server that is killed has all that it has acknowledged; one that comes back copies again at once. One
/// that is to become read-only waits for a statement that waits for a row of a transaction that waits for the
/// server: that wait is short.
const DURABLE: &str = "innodb_flush_log_at_trx_commit = 2
innodb_lock_wait_timeout = 3
relay_log_recovery = ON
replica_net_timeout = 10";

/// The account that logs in over TLS, and its password.
pub(super) const WITH_PASSWORD: (&str, &str) = ("soak", "soak-secret");
/// Accounts that money is moved between, and what they have in all.
pub(super) const ACCOUNTS: (u64, u64) = (20, 20_000);
/// Rows of the big result, and the bytes in each.
pub(super) const ROWS: (u64, usize) = (1200, 2000);

/// Both servers.
pub(super) struct SqlServers {
    servers: [Mysqld; 2],
    /// The place of the primary among them.
    primary: usize,
}

impl SqlServers {
    /// Starts them, with the tables that clients use.
    pub(super) fn start() -> SqlServers {
        let servers = ["one", "two"].map(|name| Mysqld::start(&format!("soak-{name}"), DURABLE));
        let mut root = servers[0].root();
        let (user, password) = WITH_PASSWORD;
        let ((accounts, money), (rows, bytes)) = (ACCOUNTS, ROWS);
        let each = money / accounts;
        for sql in [
            "CREATE DATABASE soak".to_owned(),
            format!("CREATE USER {user}@'%' IDENTIFIED BY '{password}'"),
            format!("GRANT ALL ON soak.* TO {user}@'%'"),
            // Weir's own, so that what clients have left on a server is told from it.
            "CREATE USER weir@'%' IDENTIFIED BY ''".to_owned(),
            // No key forbids the same twice: that is to be seen.
            "CREATE TABLE soak.written (id BIGINT AUTO_INCREMENT PRIMARY KEY, client BIGINT NOT NULL, \
             step INT NOT NULL, KEY (client, step))"
                .to_owned(),
            "CREATE TABLE soak.accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL)".to_owned(),
            "CREATE TABLE soak.numbers (n INT PRIMARY KEY, text VARCHAR(3000) NOT NULL)".to_owned(),
            "SET SESSION cte_max_recursion_depth = 10000".to_owned(),
            format!(
                "INSERT INTO soak.accounts WITH RECURSIVE some (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM some \
                 WHERE n + 1 < {accounts}) SELECT n, {each} FROM some"
            ),
            format!(
                "INSERT INTO soak.numbers WITH RECURSIVE some (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM some \
                 WHERE n + 1 < {rows}) SELECT n, REPEAT(CHAR(97 + n % 26), {bytes}) FROM some"
            ),
        ] {
            root.does(&sql);
        }
        servers[1].follows(&servers[0]);
        let both = SqlServers { servers, primary: 0 };
        both.copies(1);
        both
    }

    /// Where they are.
    pub(super) fn addresses(&self) -> [SocketAddr; 2] {
        [self.servers[0].address, self.servers[1].address]
    }

    /// Their processes.
    pub(super) fn pids(&self) -> [u32; 2] {
        [self.servers[0].pid(), self.servers[1].pid()]
    }

    pub(super) fn server(&self, place: usize) -> &Mysqld {
        &self.servers[place]
    }

    pub(super) fn primary(&self) -> &Mysqld {
        &self.servers[self.primary]
    }

    pub(super) fn copy(&self) -> &Mysqld {
        &self.servers[1 - self.primary]
    }

    /// Whether the server in this place is the primary.
    pub(super) fn is_primary(&self, place: usize) -> bool {
        self.primary == place
    }

    /// Has the server in this place follow the other one, also after it was killed.
    fn copies(&self, place: usize) {
        let mut root = self.servers[place].root();
        let port = self.servers[1 - place].address.port();
        for sql in [
            "SET PERSIST super_read_only = ON".to_owned(),
            "STOP REPLICA".to_owned(),
            format!(
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, \
                 SOURCE_USER = 'root', SOURCE_PASSWORD = '', SOURCE_AUTO_POSITION = 1, SOURCE_SSL = 1, \
                 SOURCE_CONNECT_RETRY = 1, SOURCE_RETRY_COUNT = 100000"
            ),
            "START REPLICA".to_owned(),
        ] {
            root.does(&sql);
        }
    }

    /// The primary hands over: it takes no writes any more, and the other does once it has all of them.
    pub(super) fn hands_over(&mut self) {
        let (old, new) = (self.primary, 1 - self.primary);
        self.servers[old].root().does("SET PERSIST super_read_only = ON");
        self.servers[new].has_all_of(&self.servers[old]);
        let mut root = self.servers[new].root();
        for sql in ["STOP REPLICA", "SET PERSIST super_read_only = OFF", "SET PERSIST read_only = OFF"] {
            root.does(sql);
        }
        self.primary = new;
        self.copies(old);
    }
}
