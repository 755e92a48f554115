//! MariaDB's clients before Weir, and its servers behind it.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder};
use weir_tests::dialogue::{Setup, free_address, until_within};
use weir_tests::mysql::{pair, words_of};

use super::{before, said_by};

/// A server of MariaDB's. Killed, and its directory removed, when dropped.
struct MariaDb {
    address: SocketAddr,
    dir: PathBuf,
    child: Child,
}

impl MariaDb {
    /// Starts one with the account `app` and the schema `shop`, and waits until it serves.
    fn start() -> MariaDb {
        let words = words_of("mariadbd");
        let dir = std::env::temp_dir().join(format!("weir-mariadb-{}.d", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("a directory");
        let at = |name: &str| dir.join(name).display().to_string();
        let made = Command::new("mariadb-install-db")
            .args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .args([format!("--datadir={}", at("data"))])
            .output()
            .expect("mariadb-install-db comes with mariadbd");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        // A statement on each line.
        let accounts = "CREATE USER app@'%';\nGRANT ALL ON *.* TO app@'%';\nCREATE DATABASE shop;\n";
        fs::write(dir.join("init.sql"), accounts).expect("a file");
        let address = free_address();
        let child = Command::new(&words[0])
            .args(&words[1..])
            .args(["--no-defaults", "--skip-name-resolve", "--innodb-buffer-pool-size=16M"])
            .args([format!("--datadir={}", at("data")), format!("--socket={}", at("socket"))])
            .args([format!("--pid-file={}", at("pid")), format!("--log-error={}", at("error.log"))])
            .args([format!("--init-file={}", at("init.sql"))])
            .args([format!("--bind-address={}", address.ip()), format!("--port={}", address.port())])
            .args((rustix::process::geteuid().is_root()).then_some("--user=root"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("mariadbd starts");
        let server = MariaDb { address, dir, child };
        until_within(Duration::from_secs(60), "mariadbd serves", || connect(server.address).ok());
        server
    }
}

impl Drop for MariaDb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn connect(address: SocketAddr) -> mysql::Result<Conn> {
    let options = OptsBuilder::new()
        .ip_or_hostname(Some(address.ip().to_string()))
        .tcp_port(address.port())
        .user(Some("app"))
        .db_name(Some("shop"))
        .prefer_socket(false);
    Conn::new(options)
}

const BEFORE_MARIADB: &str = r#"
[listener.relay]
protocol = "mysql"
bind = "@relay"
pool = "relay"
[listener.learn]
protocol = "mysql"
bind = "@learn"
access = "auto"
pool = "learn"
[pool.relay]
backends = ["@server"]
[pool.relay.mysql]
topology = "static"
passwords = "relay"
[pool.learn]
backends = ["@server"]
[pool.learn.mysql]
topology = "static"
"#;

#[test]
fn servers_of_mariadbs_are_served_by_relay_and_refused_in_words_otherwise() {
    let server = MariaDb::start();
    let weir = Setup::of(BEFORE_MARIADB).with("server", server.address).start();
    let mut client = connect(weir.address("relay")).expect("app is let in");
    let version: Option<String> = client.query_first("SELECT VERSION()").expect("an answer");
    assert!(version.is_some_and(|version| version.contains("MariaDB")));
    // What is a session's own stays with it: nobody else has its connection.
    client.query_drop("CREATE TEMPORARY TABLE own (n INT)").expect("made");
    client.exec_drop("INSERT INTO own VALUES (?), (?)", (1, 2)).expect("inserted");
    client.query_drop("SET @a = 7").expect("set");
    let sum: Option<(u32, u32)> = client.query_first("SELECT SUM(n), MAX(@a) FROM own").expect("an answer");
    assert_eq!(sum, Some((3, 7)));
    for options in [&[][..], &["--compress"]] {
        let sql = "SELECT REPEAT('a', 1000000); SHOW STATUS LIKE 'Compression';";
        let (said, good) = said_by("mariadb", weir.address("relay"), options, sql);
        let is_compressed = said.ends_with("Compression\tON\n");
        assert!(good && said.len() > 1_000_000 && is_compressed != options.is_empty(), "{options:?}");
    }
    // At first Weir does not know whose server it is, and then it does.
    for _ in 0..2 {
        let refused = connect(weir.address("learn")).map(|_| ()).expect_err("nobody is let in");
        let said = refused.to_string();
        assert!(said.contains("1105") && said.contains("MariaDB") && said.contains("relay"), "{said}");
        let labels = [("pool", "learn"), ("backend", &*server.address.to_string())];
        weir.reaches("weir_backend_up", &labels, 1.0);
    }
}

#[test]
fn a_client_of_mariadbs_is_served_as_any_other() {
    let pair = pair();
    let weir = before(&pair);
    let [primary, replica] = [&pair.primary, &pair.replica].map(|server| server.address.port().to_string());
    let sql = "SELECT @@port; BEGIN; SELECT @@port; COMMIT; SET @a = 7; SELECT @a; SELECT REPEAT('a', 2000);";
    for options in [&[][..], &["--compress"]] {
        let (said, good) = said_by("mariadb", weir.address("auto"), options, sql);
        let expected = format!("{replica}\n{primary}\n7\n{}\n", "a".repeat(2000));
        assert!(good && said == expected, "{options:?}: {said}");
    }
}
