//! Lines of sessions that came to nothing.

use serde_json::Value;
use weir_tests::dialogue::{Authority, Weir, free_address};
use weir_tests::mysql::{Client, Login, LoginFailed, pair, trusting};

/// One listener with TLS before a server that refuses and one that is not there.
const CONFIG: &str = r#"
[log]
access = "@dir/access.log"
[listener.db]
protocol = "mysql"
bind = "@db"
pool = "one"
[listener.db.tls]
mode = "preferred"
certificates = [{ cert = "@dir/db.pem", key = "@dir/db.key" }]
[listener.nowhere]
protocol = "mysql"
bind = "@nowhere"
pool = "dead"
[listener.relay]
protocol = "mysql"
bind = "@relay"
pool = "relayed"
[pool.one]
backends = ["@server"]
[pool.one.mysql]
topology = "static"
[pool.dead]
backends = ["@dead"]
retry = { attempts = 2 }
health = { check = "off", passive = "off" }
[pool.dead.mysql]
topology = "static"
[pool.relayed]
backends = ["@dead"]
retry = { attempts = 2 }
health = { check = "off", passive = "off" }
[pool.relayed.mysql]
topology = "static"
passwords = "relay"
"#;

fn line(weir: &Weir, number: usize) -> Value {
    let line = weir.lines_of("access.log", number + 1).remove(number);
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn a_login_that_comes_to_nothing_has_its_pool_tls_bytes_and_retries_in_the_access_log() {
    let (pair, authority) = (pair(), Authority::new().signs("db", &["localhost"]));
    let trust = trusting(authority.path("ca.pem").as_ref());
    let setup = authority.setup(CONFIG).with("server", pair.primary.address);
    let weir = setup.with("dead", free_address()).start();
    let login = Login { password: "wrong", tls: Some(trust), ..Login::of("app", "shop") };
    let refused = Client::log_in(weir.address("db"), &login);
    assert!(matches!(refused, Err(LoginFailed::Refused(1045, _))), "{refused:?}");
    let told = line(&weir, 0);
    assert_eq!((&told["end"], &told["pool"]), (&"login_refused".into(), &"one".into()), "{told}");
    assert!(told["tls_version"].is_string(), "{told}");
    for bytes in ["bytes_received", "bytes_sent"] {
        assert!(told[bytes].as_u64().is_some_and(|bytes| bytes > 50), "{told}");
    }
    for (number, (listener, pool)) in [("nowhere", "dead"), ("relay", "relayed")].into_iter().enumerate() {
        let refused = Client::log_in(weir.address(listener), &Login::of("app", "shop"));
        assert!(matches!(refused, Err(LoginFailed::Refused(..))), "{refused:?}");
        let told = line(&weir, number + 1);
        assert_eq!((&told["pool"], &told["retries"]), (&pool.into(), &2.into()), "{told}");
        assert_ne!(told["bytes_received"], 0, "{told}");
    }
}
