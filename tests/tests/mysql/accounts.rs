//! Accounts that are changed on a server while Weir knows them.

use std::sync::Arc;

use mysql::{Conn, OptsBuilder};
use rustls::ClientConfig;
use weir_tests::dialogue::{Authority, Setup, Weir};
use weir_tests::mysql::{BEFORE_PAIR, Client, Login, LoginFailed, Mysqld, Pair, pair, trusting};

use super::failover::OwnFile;

/// Listeners that split, without TLS on either side and with it on both; both let servers confirm on the
/// replica.
const LEARN: &str = r#"
[listener.clear]
protocol = "mysql"
bind = "@clear"
access = "auto"
pool = "clear"
[listener.secret]
protocol = "mysql"
bind = "@secret"
access = "auto"
pool = "secret"
[listener.secret.tls]
mode = "required"
certificates = [{ cert = "@dir/db.pem", key = "@dir/db.key" }]
[pool.clear]
backends = ["@primary", "@replica"]
[pool.clear.mysql]
topology = "static"
passwords = "learn"
[pool.secret]
backends = ["@primary", "@replica"]
tls = { verify = false }
[pool.secret.mysql]
topology = "static"
passwords = "learn"
"#;

/// `ER_ACCESS_DENIED_ERROR`.
const DENIED: u16 = 1045;
/// `ER_MUST_CHANGE_PASSWORD_LOGIN`.
const EXPIRED: u16 = 1862;
/// `ER_MUST_CHANGE_PASSWORD`.
const MUST_CHANGE: u16 = 1820;
/// `ER_USER_LIMIT_REACHED`.
const USED_UP: u16 = 1226;
/// `ER_ACCOUNT_HAS_BEEN_LOCKED`.
const LOCKED: u16 = 3118;

/// Clients of Weir, who know its certificate.
struct Scene {
    pair: Arc<Pair>,
    weir: Weir,
    trust: Arc<ClientConfig>,
}

impl Scene {
    fn start(config: &str, passwords: &OwnFile) -> Scene {
        let pair = pair();
        let authority = Authority::new().signs("db", &["localhost"]);
        let trust = trusting(authority.path("ca.pem").as_ref());
        let setup = authority.setup(config).with("passwords", passwords.0.display());
        let weir = setup.with("primary", pair.primary.address).with("replica", pair.replica.address).start();
        Scene { pair, weir, trust }
    }

    /// Ends this Weir and starts another, which knows nobody.
    fn begins_anew(self) -> Scene {
        let pair = self.pair.clone();
        drop(self);
        let scene = Scene::start(LEARN, &OwnFile::of("no-passwords", ""));
        assert!(Arc::ptr_eq(&pair, &scene.pair));
        scene
    }

    /// Has root run a statement; both servers have it then.
    fn root(&self, sql: &str) {
        self.pair.primary.root().does(sql);
        self.pair.replica.has_all_of(&self.pair.primary);
    }

    /// Has the servers forget what they know of passwords from earlier logins.
    fn servers_forget(&self) {
        for server in [&self.pair.primary, &self.pair.replica] {
            server.root().does("FLUSH LOCAL PRIVILEGES");
        }
    }

    /// Logs in and asks something: the number of the error, if there is one.
    fn logs_in(&self, listener: &str, user: &str, password: &str) -> Result<(), u16> {
        match listener {
            "secret" => self.logs_in_by_tls(user, password),
            // A client that fetches the key, as it must without TLS.
            _ => self.logs_in_by_key(user, password),
        }
    }

    fn logs_in_by_tls(&self, user: &str, password: &str) -> Result<(), u16> {
        let login = Login { password, tls: Some(self.trust.clone()), ..Login::of(user, "") };
        match Client::log_in(self.weir.address("secret"), &login) {
            Ok(mut client) => {
                assert_eq!(client.does("SELECT 1").value(), "1");
                client.quits();
                Ok(())
            }
            Err(LoginFailed::Refused(code, _)) => Err(code),
            Err(failed) => panic!("{failed:?}\n{}", self.weir.story()),
        }
    }

    fn logs_in_by_key(&self, user: &str, password: &str) -> Result<(), u16> {
        let to = self.weir.address("clear");
        let options = OptsBuilder::new()
            .ip_or_hostname(Some(to.ip().to_string()))
            .tcp_port(to.port())
            .user(Some(user))
            .pass(Some(password))
            .prefer_socket(false);
        match Conn::new(options) {
            Ok(mut client) => {
                assert!(client.ping().is_ok());
                Ok(())
            }
            Err(mysql::Error::MySqlError(error)) => Err(error.code),
            Err(error) => panic!("{error}\n{}", self.weir.story()),
        }
    }
}

#[test]
fn what_is_changed_of_an_account_holds_at_its_next_login() {
    let scene = Scene::start(LEARN, &OwnFile::of("none", ""));
    for listener in ["clear", "secret"] {
        for caches in ["warm", "cold"] {
            let what = format!("{listener}, {caches}");
            let user = &*format!("{listener}_{caches}");
            let logs_in = |password| {
                if caches == "cold" {
                    scene.servers_forget();
                }
                scene.logs_in(listener, user, password)
            };
            scene.root(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'one'"));
            assert_eq!(logs_in("two"), Err(DENIED), "{what}: a wrong password of one that nobody knows");
            for _ in 0..3 {
                assert_eq!(logs_in("one"), Ok(()), "{what}");
            }
            assert_eq!(logs_in("two"), Err(DENIED), "{what}: a wrong password of one that is known");
            assert_eq!(logs_in("one"), Ok(()), "{what}: others' mistakes take nothing away");

            scene.root(&format!("ALTER USER {user}@'%' IDENTIFIED BY 'two'"));
            assert_eq!(logs_in("one"), Err(DENIED), "{what}: the password before");
            assert_eq!(logs_in("two"), Ok(()), "{what}: the new one");
            assert_eq!(logs_in("one"), Err(DENIED), "{what}: the password before, once more");

            scene.root(&format!("ALTER USER {user}@'%' ACCOUNT LOCK"));
            assert_eq!(logs_in("two"), Err(LOCKED), "{what}");
            scene.root(&format!("ALTER USER {user}@'%' ACCOUNT UNLOCK"));
            assert_eq!(logs_in("two"), Ok(()), "{what}");

            scene.root(&format!("DROP USER {user}@'%'"));
            assert_eq!(logs_in("two"), Err(DENIED), "{what}: dropped");
        }
    }
}

#[test]
fn an_account_changed_while_a_weir_did_not_run_is_what_the_servers_say() {
    let scene = Scene::start(LEARN, &OwnFile::of("nobody", ""));
    scene.root("CREATE USER away@'%' IDENTIFIED BY 'one'");
    for listener in ["clear", "secret"] {
        assert_eq!(scene.logs_in(listener, "away", "one"), Ok(()));
    }
    scene.root("ALTER USER away@'%' IDENTIFIED BY 'two'");
    let scene = scene.begins_anew();
    for listener in ["clear", "secret"] {
        assert_eq!(scene.logs_in(listener, "away", "one"), Err(DENIED), "{listener}");
        assert_eq!(scene.logs_in(listener, "away", "two"), Ok(()), "{listener}");
    }
    scene.root("DROP USER away@'%'");
}

#[test]
fn what_a_secondary_has_not_heard_of_yet_the_primary_knows() {
    let pair = Pair::start("late");
    let weir = super::before(&pair);
    let late = Login { schema: "late", ..Login::of("app", "") };
    let of_late = Login { user: "late", ..late.clone() };
    let mut early = super::client(&weir, "auto");
    pair.replica.root().does("STOP REPLICA SQL_THREAD");
    early.does("CREATE DATABASE late");
    early.does("USE late");
    early.does("CREATE TABLE late (id INT)");
    assert_eq!(early.does("SELECT COUNT(*), @@port FROM late").rows()[0][0], "0");
    let mut client = Client::log_in(weir.address("auto"), &late).expect("a schema that was just made");
    assert_eq!(client.does("SELECT COUNT(*) FROM late.late").value(), "0");
    pair.primary.root().does("CREATE USER late@'%'");
    pair.primary.root().does("GRANT ALL ON late.* TO late@'%'");
    let mut client = Client::log_in(weir.address("auto"), &of_late).expect("an account that was just made");
    assert_eq!(client.does("SELECT COUNT(*) FROM late").value(), "0");
    let nobody = Client::log_in(weir.address("auto"), &Login::of("nobody", ""));
    assert!(matches!(nobody, Err(LoginFailed::Refused(DENIED, _))), "{nobody:?}");
    pair.replica.root().does("START REPLICA SQL_THREAD");
    pair.replica.has_all_of(&pair.primary);
    let port = pair.replica.address.port().to_string();
    assert_eq!(client.does("SELECT @@port").value(), port);
}

#[test]
fn a_relayed_client_that_quits_sees_an_end_and_no_reset() {
    let scene = Scene::start(&LEARN.replace("\"learn\"", "\"relay\""), &OwnFile::of("nobody's", ""));
    for _ in 0..10 {
        let login = Login { tls: Some(scene.trust.clone()), ..Login::of("app", "shop") };
        let mut client = Client::log_in(scene.weir.address("secret"), &login).expect("app is let in");
        client.does("SELECT 1");
        // COM_QUIT: the server closes its TLS without a word.
        client.sends(&[1]).expect("sent");
        let end = client.receives_packet().expect_err("nothing more is said");
        assert_eq!(end.kind(), std::io::ErrorKind::UnexpectedEof, "{end}");
    }
}

#[test]
fn an_account_of_the_file_is_let_in_by_the_servers_alone() {
    let config =
        LEARN.replace("passwords = \"learn\"", "passwords = \"file\"\npasswords_file = \"@passwords\"");
    let both = "filed_clear:one\nfiled_secret:one\n";
    let file = OwnFile::of("passwords", both);
    let mut scene = Scene::start(&config, &file);
    for listener in ["clear", "secret"] {
        for caches in ["warm", "cold"] {
            let user = &*format!("filed_{listener}");
            let forget = |scene: &Scene| {
                if caches == "cold" {
                    scene.servers_forget();
                }
            };
            scene.root(&format!("CREATE USER {user}@'%' IDENTIFIED BY 'one'"));
            let what = format!("{listener}, {caches}");
            for _ in 0..2 {
                forget(&scene);
                assert_eq!(scene.logs_in(listener, user, "one"), Ok(()), "{what}");
            }
            assert_eq!(scene.logs_in(listener, user, "two"), Err(DENIED), "{what}: not what the file says");

            scene.root(&format!("ALTER USER {user}@'%' ACCOUNT LOCK"));
            forget(&scene);
            assert_eq!(scene.logs_in(listener, user, "one"), Err(LOCKED), "{what}");
            scene.root(&format!("ALTER USER {user}@'%' ACCOUNT UNLOCK"));
            assert_eq!(scene.logs_in(listener, user, "one"), Ok(()), "{what}");

            scene.root(&format!("ALTER USER {user}@'%' IDENTIFIED BY 'two'"));
            forget(&scene);
            assert_eq!(scene.logs_in(listener, user, "one"), Err(DENIED), "{what}: the servers' is another");
            assert_eq!(scene.logs_in(listener, user, "two"), Err(DENIED), "{what}: the file's is another");
            let changed = both.replace(&format!("{user}:one"), &format!("{user}:two"));
            std::fs::write(&file.0, changed).expect("written");
            scene.weir.reloads(&config);
            assert_eq!(scene.logs_in(listener, user, "two"), Ok(()), "{what}: both agree");

            scene.root(&format!("DROP USER {user}@'%'"));
            forget(&scene);
            assert_eq!(scene.logs_in(listener, user, "two"), Err(DENIED), "{what}: dropped");
            std::fs::write(&file.0, both).expect("written");
            scene.weir.reloads(&config);
        }
    }
}

/// Flag of a client that changes an expired password itself (`CLIENT_CAN_HANDLE_EXPIRED_PASSWORDS`).
const CHANGES_EXPIRED: u32 = 1 << 22;

/// The error that a login ends with; `None` where it is let in.
fn refused(weir: &Weir, login: &Login<'_>) -> Option<u16> {
    match Client::log_in(weir.address("auto"), login) {
        Ok(_) => None,
        Err(LoginFailed::Refused(code, _)) => Some(code),
        Err(failed) => panic!("{failed:?}\n{}", weir.story()),
    }
}

#[test]
fn a_client_that_can_change_an_expired_password_is_told_that_it_is() {
    let pair = pair();
    pair.primary.root().does("CREATE USER expired@'%' PASSWORD EXPIRE");
    pair.replica.has_all_of(&pair.primary);
    let weir = super::before(&pair);
    let login = Login::of("expired", "");
    let able = Login { capabilities: login.capabilities | CHANGES_EXPIRED, ..login.clone() };
    for login in [login, able] {
        assert_eq!(refused(&weir, &login), Some(EXPIRED));
    }
    weir.reaches("weir_mysql_logins_total", &[("listener", "auto"), ("result", "refused")], 2.0);
    pair.primary.root().does("DROP USER expired@'%'");
}

#[test]
fn what_a_server_says_right_behind_a_login_is_what_the_client_is_told() {
    let server = Mysqld::start("behind-login", "disconnect_on_expired_password = OFF");
    let mut root = server.root();
    root.does("CREATE USER expired@'%' PASSWORD EXPIRE");
    root.does("CREATE USER counted@'%' WITH MAX_QUERIES_PER_HOUR 6");
    let config = BEFORE_PAIR.replace("\"@primary\", \"@replica\"", "\"@primary\"");
    let weir = Setup::of(&config).with("primary", server.address).start();
    assert_eq!(refused(&weir, &Login::of("expired", "")), Some(MUST_CHANGE));
    // Connections are shared as long as there are any, so each of these has a session.
    let mut sessions = Vec::new();
    let code = loop {
        match Client::log_in(weir.address("auto"), &Login::of("counted", "")) {
            Ok(mut client) => {
                client.does("BEGIN");
                sessions.push(client);
            }
            Err(LoginFailed::Refused(code, _)) => break code,
            Err(failed) => panic!("{failed:?}\n{}", weir.story()),
        }
    };
    assert_eq!(code, USED_UP, "{} sessions", sessions.len());
}

/// A login with such a schema ends in an error, and takes nothing from others of the account.
#[test]
fn a_login_with_a_wrong_schema_takes_nothing_back_that_is_known_of_its_account() {
    let server = Mysqld::start("schemas", "");
    let authority = Authority::new().signs("db", &["localhost"]);
    let trust = trusting(authority.path("ca.pem").as_ref());
    let weir = authority.setup(&format!("[runtime]\nworkers = 1\n{}", LEARN.replace(", \"@replica\"", "")));
    let weir = weir.with("primary", server.address).start();
    let mut root = server.root();
    root.does("CREATE USER known@'%' IDENTIFIED BY 'one'");
    root.does("GRANT ALL ON shop.* TO known@'%'");
    root.does("GRANT ALL ON nowhere.* TO known@'%'");
    root.does("CREATE DATABASE foreign_schema");
    let logs_in = |schema| {
        let login = Login { password: "one", tls: Some(trust.clone()), ..Login::of("known", schema) };
        Client::log_in(weir.address("secret"), &login)
    };
    let mut sessions: Vec<Client> = (0..3).map(|_| logs_in("shop").expect("let in")).collect();
    sessions.iter_mut().for_each(|session| drop(session.does("BEGIN")));
    sessions.iter_mut().for_each(|session| drop(session.does("COMMIT")));
    let connections =
        "SELECT GROUP_CONCAT(id ORDER BY id) FROM information_schema.processlist WHERE user = 'known'";
    let before = root.does(connections).value();
    assert_eq!(before.split(',').count(), 3, "{before}");
    let logins =
        |result| weir.metric("weir_mysql_logins_total", &[("listener", "secret"), ("result", result)]);
    let (fast, full) = (logins("fast"), logins("full_tls"));
    for _ in 0..4 {
        for (schema, expected) in [("nowhere", 1049), ("foreign_schema", 1044)] {
            match logs_in(schema) {
                Err(LoginFailed::Refused(code, text)) => assert_eq!(code, expected, "{text}"),
                other => panic!("{schema}: {:?}", other.err()),
            }
        }
        let mut client = logs_in("shop").expect("let in");
        assert_eq!(client.does("SELECT DATABASE()").value(), "shop");
    }
    assert_eq!(root.does(connections).value(), before, "they are the same connections");
    assert_eq!(logins("full_tls"), full, "nobody is asked for the password");
    assert!(logins("fast") > fast);
    // A wrong password still does.
    let login = Login { password: "two", tls: Some(trust.clone()), ..Login::of("known", "shop") };
    assert!(matches!(Client::log_in(weir.address("secret"), &login), Err(LoginFailed::Refused(DENIED, _))));
}
