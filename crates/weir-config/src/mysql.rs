//! MySQL: the settings of a listener that speaks it, and `[pool.NAME.mysql]`: how servers and their roles are
//! found, and how clients log in.

use std::path::PathBuf;
use std::time::Duration;

use crate::fields::{Fields, KeyValue, Value};
use crate::keys::{
    DAY, Each, HOUR, KIB, Limit, MIB, Shape, count, duration, flag, list, list_or, millis, seconds, size,
    text, word,
};
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, quote};
use crate::setting::{Part as _, table, words};
use crate::tls::TlsMode;
use crate::units::{Refused, refuse};
use crate::uses::Uses;
use crate::values::address::{FILE, PEM_FILE};

table! {
    /// What is said of a listener that speaks MySQL.
    #[derive(Eq)]
    pub struct ListenerMysql {
        /// Which servers of the pool its statements go to.
        access: MysqlAccess = word(MysqlAccess::WORDS, "read-write").mysql().also(&["access_mode", "routing_strategy", "role"]);
        /// Most sessions of one account at once, by its name; a login beyond gets error 1203. Where Weir does
        /// not see who logs in (`mode = "passthrough"`) nobody is counted.
        max_connections_per_account: Option<u32> =
            count(Limit::optional(1, 10_000_000, "0 would lock every account out"))
                .default("no limit of its own")
                .mysql()
                .also(&["max_user_connections"]);
        /// Version that clients are greeted with.
        server_version: Option<String> =
            text(&SERVER_VERSION)
                .default("that of the pool's servers; `\"8.4.0\"` before one of them was seen")
                .mysql()
                .also(&["mysql_server_version", "version"]);
        /// Compression that clients may ask for; without `"uncompressed"` those that ask for none are
        /// refused. Servers are spoken to without, but where a login is relayed.
        compression: Vec<MysqlCompression> =
            list_or(Each::Word(MysqlCompression::WORDS), &["zlib", "zstd", "uncompressed"])
                .mysql()
                .also(&["protocol_compression_algorithms", "compression_algorithms"]);
    }
}

words! {
    /// How what a client and Weir say to each other is compressed.
    pub enum MysqlCompression {
        Zlib = "zlib": "zlib, at level 6; where a client wants both, this one, as on a server",
        Zstd = "zstd": "Zstandard, at the level that the client asks for, 9 at most",
        Uncompressed = "uncompressed": "not at all",
    }
}

words! {
    /// Which servers of a pool are used.
    pub enum MysqlAccess {
        Auto = "auto": "each statement where it belongs: reads to secondaries, the rest to the primary",
        ReadWrite = "read-write": "the primary",
        ReadOnly = "read-only": "secondaries; what they are is said by `reads` of the pool",
    }
}

table! {
    /// What is known of a pool of MySQL servers, and how clients log in to them. Needed where a mysql
    /// listener uses the pool.
    #[derive(Eq)]
    pub struct PoolMysql at "[pool.NAME.mysql]" {
        /// Whence it is known which server is the primary.
        topology: MysqlTopology = word(MysqlTopology::WORDS, "group-replication").also(&["cluster_type", "type"]);
        /// Account that asks the servers for their roles, and probes them. Needed unless `topology` is
        /// `"static"`.
        user: Option<String> = text(&USER).default("none").also(&["username", "monitor_user"]);
        /// File with its password, whose line end does not count; nobody else may read it.
        password_file: Option<PathBuf> = text(&FILE).default("none: an empty password").also(&["password", "pass"]);
        /// Between two looks at who is the primary.
        interval: Duration =
            duration(Limit::new(millis(100), millis(10), HOUR, "each look costs every server about 40 us"))
                .also(&["ttl", "monitor_interval", "refresh_interval"]);
        /// The same while there is no primary.
        fast_interval: Duration =
            duration(Limit::new(millis(20), millis(1), HOUR, "never above `interval`"));
        /// Which servers get reads.
        reads: Reads = word(Reads::WORDS, "secondaries").also(&["role", "routing"]);
        /// Whether a client reads what it has written: a read waits on its server for the client's last
        /// write.
        read_your_writes: bool = flag(true).also(&["wait_for_my_writes", "causal_reads"]);
        /// How far a secondary may be behind the primary; one that is farther gets no reads until it has
        /// caught up. Needs GTIDs, and means nothing where `topology` is `"static"`.
        max_lag: Option<Duration> =
            duration(Limit::optional(seconds(1), DAY, "servers are asked once a second"))
                .default("off: any distance")
                .also(&["max_replication_lag", "max_slave_replication_lag"]);
        /// Names, without their schema, of tables and views with stored code (triggers, functions) that takes
        /// user locks, or sets user variables otherwise than by SET: statements that name one go to the
        /// primary, and their session keeps its connection. Where servers are asked who is the primary, those
        /// that `user` may see are found without being named here.
        hidden_code: Vec<String> = list(Each::Text(&TABLE_NAME)).default("none");
        /// Longest time for which a statement that needs the primary waits while there is none; `"0s"`
        /// answers at once.
        park: Duration = duration(Limit::new(seconds(10), Duration::ZERO, HOUR, "clients give up too"));
        /// Most that wait so at once, over all workers.
        park_max: u32 =
            count(Limit::new(10_000, 0, 1_000_000, "each is a client that waits, and all come at once in the end"));
        /// Statements that are prepared on Weir's connections to one server at most, over all workers; beyond
        /// it those longest without use are closed, but for such as have rows or pieces left.
        prepared_statements: u32 =
            count(Limit::new(8_000, 1, 4_000_000, "a server has 16382 for all its clients unless it is told otherwise"))
                .also(&["max_prepared_stmt_count"]);
        /// Texts of the statements that one session has prepared, with the types of their parameters: so much
        /// at most. Beyond it a statement is refused with error 1461, until others are closed. They are
        /// part of `runtime.memory`.
        prepared_text: u64 =
            size(Limit::new(32 * MIB, 64 * KIB, 4096 * MIB, "it is memory, which any client can take that has logged in"));
        /// How it is known who a client is.
        passwords: Passwords = word(Passwords::WORDS, "learn").also(&["auth", "authentication"]);
        /// File of accounts and passwords, `user:password` on a line; nobody else may read it. Means
        /// something where `passwords` is `"file"`.
        passwords_file: Option<PathBuf> = text(&FILE).default("none").also(&["users", "auth_file", "userlist"]);
        /// Accounts whose passwords are kept in memory at most; those longest without use go first.
        accounts: u32 = count(Limit::new(1_000, 1, 1_000_000, "each is an account and its password in memory"));
        /// Logins a second at most for which a password is asked for in full, or that show an empty one, over
        /// all clients; what is beyond waits. Each may cost a decryption of about a millisecond.
        full_logins: u32 = count(Limit::new(500, 1, 100_000, "bounds what strangers can make Weir calculate"));
        /// The same from one client: an IPv4 address, or an IPv6 /64.
        full_logins_per_client: u32 =
            count(Limit::new(50, 1, 100_000, "bounds what one stranger can take of `full_logins`"));
        /// The same to one account, whoever asks: bounds how fast a password can be guessed from many
        /// addresses.
        full_logins_per_account: Option<u32> =
            count(Limit::optional(1, 100_000, "a restart has every session of the account log in so"))
                .default("no limit of its own");
        /// PEM file of the RSA key that passwords are encrypted with for clients without TLS. The same on all
        /// machines that clients may be sent to.
        key_file: Option<PathBuf> =
            text(&PEM_FILE)
                .default("a key that is made at start")
                .also(&["private_key", "caching_sha2_password_private_key_path"]);
        /// PEM file of the servers' public RSA key, to which passwords are sent without TLS.
        server_public_key: Option<PathBuf> =
            text(&PEM_FILE)
                .default("the server is asked for it, and whoever is in the way may answer")
                .also(&["public_key", "server_public_key_path"]);
    }
}

impl PoolMysql {
    /// Whether the servers are monitored, so that roles can change while Weir runs.
    pub fn is_watched(&self) -> bool {
        self.topology != MysqlTopology::Static
    }
}

words! {
    /// Whence it is known which server is the primary.
    pub enum MysqlTopology {
        GroupReplication = "group-replication": "the group says it (InnoDB Cluster)",
        Replication = "replication": "the one that is not `read_only`",
        Static = "static": "the first in the list",
    }
}

words! {
    /// Which servers get reads.
    pub enum Reads {
        Secondaries = "secondaries": "secondaries, and the primary where none is up",
        All = "all": "secondaries and the primary alike",
    }
}

words! {
    /// How it is known who a client is.
    pub enum Passwords {
        Learn = "learn": "the password is learned from the first login, and each login is confirmed by a server",
        File = "file": "passwords stand in `passwords_file`, and each login is confirmed by a server",
        Relay = "relay": "a server and the client settle it, and the client stays with that server",
    }
}

/// An account's name (at most 32 characters, MySQL 8.4 Reference Manual section 8.2.3).
static USER: Shape = Shape::new("a user name", "weir", user);

/// A table's name has at most 64 characters (MySQL 8.4 Reference Manual section 11.2.1).
static TABLE_NAME: Shape = Shape::new("a table's name", "jobs", table_name);

static SERVER_VERSION: Shape = Shape::new("a version", "8.4.0", server_version);

fn user(text: &str) -> Result<String, Refused> {
    if text.is_empty() || text.chars().count() > 32 || text.chars().any(char::is_control) {
        return refuse(
            format!("{} is not a user name", quote(text)),
            "expected 1 to 32 characters, such as \"weir\"",
        );
    }
    Ok(text.to_owned())
}

fn table_name(text: &str) -> Result<String, Refused> {
    if text.is_empty() || text.chars().count() > 64 || text.chars().any(char::is_control) {
        return refuse(
            format!("{} is not a table's name", quote(text)),
            "expected 1 to 64 characters, such as \"jobs\"",
        );
    }
    Ok(text.to_owned())
}

fn server_version(text: &str) -> Result<String, Refused> {
    let is_shown = text.len() <= 60 && text.bytes().all(|byte| byte.is_ascii_graphic());
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.split('.');
    let begins = [parts.next(), parts.next()].into_iter().flatten().filter(|part| is_number(part)).count();
    if !is_shown || begins < 2 || parts.next().is_none() {
        return refuse(
            format!("{} is not a version", quote(text)),
            "expected one as servers say it, such as \"8.4.0\" or \"8.0.36-log\"",
        );
    }
    Ok(text.to_owned())
}

/// Makes sure that checks without a primary are at least as frequent as those with one.
pub(crate) fn assume_pool(pool: &mut Fields) {
    for mysql in pool.below_mut("mysql") {
        let Some(Value::Duration(interval)) = mysql.holds("interval").map(|value| value.into_owned()) else {
            continue;
        };
        if let Some(Value::Duration(default)) = mysql.unsaid("fast_interval") {
            mysql.assume("fast_interval", Value::Duration(default.min(interval)));
        }
    }
}

/// Checks a listener that speaks MySQL: what its pool must have, and what its TLS needs.
pub(crate) fn check_listener(root: &Fields, listener: &Fields, findings: &mut Findings<'_>) {
    if spoken(listener) != Some(Protocol::Mysql) {
        return;
    }
    let pool = listener.text("pool").and_then(|name| root.named("pool").find(|pool| pool.name == name));
    let Some(pool) = pool else { return };
    if pool.lacks("mysql") {
        let name = &pool.name;
        let hint = format!(
            "expected `[pool.{name}.mysql]` with `user` and `password_file`, or with `topology = \"static\"`"
        );
        findings.error(listener.at("pool"), format!("pool `{name}` does not say who the primary is"), hint);
    }
    let is_auto =
        |entry: &&KeyValue| matches!(entry.value, Value::Word(word) if word == MysqlAccess::Auto.word());
    if let Some(entry) = listener.get("max_connections_per_account").filter(|_| passes_through(listener)) {
        let hint = "who logs in is not seen behind `mode = \"passthrough\"`";
        findings.warning(entry.key, "`max_connections_per_account` has no effect", hint);
    }
    if let Some(entry) = listener.get("compression").filter(|_| passes_through(listener)) {
        let hint = "behind `mode = \"passthrough\"` the client and a server settle it between them";
        findings.warning(entry.key, "`compression` has no effect", hint);
    }
    let Some(entry) = listener.get("access").filter(is_auto) else { return };
    if passes_through(listener) {
        let hint = format!(
            "statements are not seen behind `mode = \"passthrough\"` ({}); expected \"read-write\" or \"read-only\"",
            findings.place(listener.table("tls").map_or(listener.at, |tls| tls.at("mode")))
        );
        findings.error(entry.at, "`access` cannot be \"auto\" here", hint);
    } else if let Some(mysql) =
        pool.table("mysql").filter(|mysql| mysql.word("passwords") == Passwords::Relay.word())
    {
        let hint = format!(
            "a client stays with the server it has logged in to ({}), which is the primary",
            findings.place(mysql.at("passwords"))
        );
        findings.warning(entry.at, "no statement is sent to a secondary", hint);
    }
}

fn passes_through(listener: &Fields) -> bool {
    listener.table("tls").is_some_and(|tls| tls.word("mode") == TlsMode::Passthrough.word())
}

/// Checks a pool's `mysql`: accounts and files that belong together, and other users of the pool.
pub(crate) fn check_pool(pool: &Fields, uses: &Uses, findings: &mut Findings<'_>) {
    if let Some(mysql) = uses.first(&pool.name, |protocol| protocol == Protocol::Mysql)
        && let Some(other) =
            uses.first(&pool.name, |protocol| matches!(protocol, Protocol::Http | Protocol::Udp))
    {
        let hint = format!("{}, and {}", mysql.speaks(findings), other.speaks(findings));
        findings.error(pool.at, format!("pool `{}` cannot have servers of both kinds", pool.name), hint);
    }
    let Some(fields) = pool.table("mysql") else { return };
    let mysql = PoolMysql::of(fields);
    if mysql.is_watched() && fields.lacks("user") && !fields.is_bad("topology") {
        let hint = format!(
            "servers say only to accounts who the primary is: expected `user` and `password_file`, or `topology = \"{}\"`",
            MysqlTopology::Static.word()
        );
        findings.error(fields.at, format!("`[pool.{}.mysql]` has no `user`", pool.name), hint);
    }
    if let Some(entry) = fields.get("password_file").filter(|_| fields.lacks("user")) {
        findings.error(entry.key, "`password_file` needs a `user`", "expected `user = \"weir\"` beside it");
    }
    if !fields.is_bad("interval")
        && let Some(entry) = fields.get("fast_interval").filter(|_| mysql.fast_interval > mysql.interval)
    {
        findings.error(entry.at, "`fast_interval` is above `interval`", "fast is at most that");
    }
    if fields.is_bad("passwords") {
        return;
    }
    if mysql.passwords == Passwords::File && fields.lacks("passwords_file") {
        let hint = "expected `passwords_file = \"/etc/weir/mysql.passwords\"` beside it";
        findings.error(fields.at("passwords"), "`passwords = \"file\"` needs a `passwords_file`", hint);
    }
    let asked_for_nothing = format!("`passwords` is \"{}\"", mysql.passwords.word());
    let in_vain: &[&str] = match mysql.passwords {
        Passwords::Learn => &["passwords_file"],
        Passwords::File => &["accounts"],
        // Its keys are needed if one side speaks TLS and the other does not.
        Passwords::Relay => &[
            "passwords_file",
            "prepared_statements",
            "prepared_text",
            "accounts",
            "full_logins",
            "full_logins_per_client",
            "full_logins_per_account",
        ],
    };
    for entry in in_vain.iter().filter_map(|name| fields.get(name)) {
        findings.warning(entry.key, format!("`{}` has no effect", entry.name), asked_for_nothing.clone());
    }
    if mysql.topology == MysqlTopology::Static {
        for entry in ["interval", "fast_interval", "max_lag"].iter().filter_map(|name| fields.get(name)) {
            let hint = "servers are not asked: `topology` is \"static\"";
            findings.warning(entry.key, format!("`{}` has no effect", entry.name), hint);
        }
    }
    if let (true, Some(entry)) = (mysql.park.is_zero(), fields.get("park_max")) {
        findings.warning(entry.key, "`park_max` has no effect", "nobody waits: `park` is \"0s\"");
    }
}
