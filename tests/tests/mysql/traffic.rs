//! Many sessions over few connections, slow clients, files, and reloads under way.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use mysql::prelude::Queryable as _;
use mysql::{Conn, OptsBuilder};
use weir_tests::dialogue::{Sets, Setup, Weir, until};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, LOCAL_FILES, Login, Pair, pair, query};

use super::{before, client};

/// Two connections to the primary in all, and none to the replica.
const TWO: &str = r#"
[listener.db]
protocol = "mysql"
bind = "@db"
access = "read-write"
pool = "two"
[pool.two]
backends = [{ address = "@primary", max_connections = 2 }]
queue = { max = 1, timeout = "60s" }
health = "off"
[pool.two.mysql]
topology = "static"
"#;

fn two(pair: &Pair) -> Weir {
    Setup::of(TWO).with("primary", pair.primary.address).start()
}

/// Connections of `app` that the primary has.
fn connections(pair: &Pair) -> usize {
    let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'";
    pair.primary.root().does(sql).value().parse().expect("a number")
}

#[test]
fn sessions_share_as_many_connections_as_a_server_may_have_and_wait_for_one() {
    let pair = Pair::start("few");
    let weir = two(&pair);
    let mut all: Vec<Client> = (0..12).map(|_| client(&weir, "db")).collect();
    for (number, client) in all.iter_mut().enumerate() {
        assert_eq!(client.does(&format!("SELECT {number}")).value(), number.to_string());
    }
    assert!(connections(&pair) <= 2);
    for client in &mut all[..2] {
        client.does("BEGIN");
        client.does("SELECT 1");
    }
    all[2].sends(&query("SELECT 'waited'")).expect("sent");
    until("it waits", || (weir.metric("weir_queue_depth", &[("pool", "two")]) == 1.0).then_some(()));
    let refused = all[3].asks("SELECT 1").error().expect("no room is left to wait in");
    assert_eq!(refused.0, 1040, "{refused:?}");
    all[1].does("COMMIT");
    assert_eq!(all[2].receives(Asked::Results).expect("an answer").value(), "waited");
    assert_eq!(all[3].does("SELECT 'goes on'").value(), "goes on");
    all[0].does("COMMIT");
    // One of its own, which it keeps, in the place of an idle one.
    all[4].does("SELECT CONNECTION_ID()");
    for client in &mut all {
        client.does("SELECT 1");
    }
    assert!(connections(&pair) <= 2);
}

#[test]
fn a_client_that_does_not_read_its_answer_holds_up_nobody_and_takes_no_memory() {
    let pair = pair();
    let weir = before(&pair);
    let mut slow = client(&weir, "auto");
    let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 64) \
                SELECT REPEAT('x', 1048576) FROM n";
    let begun = weir.usage().resident_bytes;
    slow.sends(&query(rows)).expect("sent");
    let mut others: Vec<Client> = (0..8).map(|_| client(&weir, "auto")).collect();
    for round in 0..50 {
        for other in &mut others {
            assert_eq!(other.does(&format!("SELECT {round}")).value(), round.to_string());
        }
    }
    let held = weir.usage().resident_bytes;
    assert!(held < begun + (24 << 20), "{begun} bytes before, {held} with an answer that nobody takes");
    let answer = slow.receives(Asked::Results).expect("the answer");
    assert_eq!(answer.rows().len(), 64);
    assert_eq!(slow.does("SELECT 'on'").value(), "on");
}

/// A client that may send files.
fn with_files(weir: &Weir) -> Client {
    let mut login = Login::of("app", "shop");
    login.capabilities |= LOCAL_FILES;
    Client::log_in(weir.address("auto"), &login).expect("app is let in")
}

#[test]
fn a_file_of_the_client_is_loaded_and_read_where_it_belongs() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = with_files(&weir);
    client.does("CREATE TABLE loaded (id INT PRIMARY KEY, t TEXT)");
    let lines =
        |from: u32| (from..from + 20_000).map(|id| format!("{id}\t{:0>40}\n", id)).collect::<String>();
    for round in 0..3 {
        client.file = lines(round * 20_000).into_bytes();
        client.does("LOAD DATA LOCAL INFILE 'x' INTO TABLE loaded");
        let all = (round + 1) * 20_000;
        // A replica that is too slow to catch up leaves the read to the primary.
        until("the replica to be asked", || {
            let counted = client.does("SELECT COUNT(*), @@port FROM loaded").rows().remove(0);
            assert_eq!(counted[0], all.to_string(), "its own writes");
            (counted[1] == pair.replica.address.port().to_string()).then_some(())
        });
    }
    client.does("DROP TABLE loaded");
}

#[test]
fn a_file_that_weir_cannot_tell_is_asked_for_is_declined_and_the_server_stays() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = with_files(&weir);
    client.does("CREATE TABLE unasked (id INT PRIMARY KEY)");
    for _ in 0..20 {
        // No server of these days reads the comment, and Weir cannot read what is in it.
        client.file = b"1\n".to_vec();
        let answer = client.asks("LOAD DATA /*!990000 $$ */ LOCAL INFILE 'x' INTO TABLE unasked");
        assert_eq!(answer.error().map(|(code, _)| code), Some(3948), "{answer}");
        let several = client.asks("SELECT 1; LOAD DATA /*!990000 $$ */ LOCAL INFILE 'x' INTO TABLE unasked");
        assert_eq!(several.value(), "1");
        assert_eq!(several.error().map(|(code, _)| code), Some(3948), "{several}");
    }
    assert_eq!(client.does("SELECT COUNT(*) FROM unasked").value(), "0");
    let failures = weir.metric("weir_backend_failures_total", &[("pool", "pair")]);
    assert_eq!(failures, 0.0, "{}", weir.story());
    client.does("DROP TABLE unasked");
}

#[test]
fn a_client_that_asks_for_its_attributes_is_told_what_it_has_said() {
    let pair = pair();
    let weir = before(&pair);
    let to = weir.address("auto");
    let says = |who: &str| {
        let options = OptsBuilder::new()
            .ip_or_hostname(Some(to.ip().to_string()))
            .tcp_port(to.port())
            .user(Some("app"))
            .prefer_socket(false)
            .connect_attrs(Some(HashMap::from([("who".to_owned(), who.to_owned())])));
        Conn::new(options).expect("app is let in")
    };
    let mut clients: Vec<(String, Conn)> =
        (0..6).map(|number| format!("client {number}")).map(|who| (who.clone(), says(&who))).collect();
    let asks = "SELECT attr_value FROM performance_schema.session_account_connect_attrs \
                WHERE processlist_id = CONNECTION_ID() AND attr_name = 'who'";
    for (_, client) in &mut clients {
        client.query_drop("DO 1").expect("done, on a connection that the first have opened");
    }
    for (who, client) in clients.iter_mut().rev() {
        let told: Option<String> = client.query_first(asks).expect("an answer");
        assert_eq!(told.as_ref(), Some(&*who));
        let told: Option<String> = client.query_first(asks).expect("an answer");
        assert_eq!(told.as_ref(), Some(&*who), "once more");
    }
}

#[test]
fn statements_and_transactions_under_way_outlast_a_reload() {
    let pair = pair();
    let mut weir = before(&pair);
    let mut first = client(&weir, "auto");
    first.does("CREATE TABLE reloaded (id INT PRIMARY KEY, n INT)");
    first.does("INSERT INTO reloaded VALUES (1, 0)");
    first.does("BEGIN");
    first.does("UPDATE reloaded SET n = n + 1 WHERE id = 1");
    let mut second = client(&weir, "auto");
    second.sends(&query("UPDATE reloaded SET n = n + 10 WHERE id = 1")).expect("sent");
    let waits = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE reloaded%'";
    until("it waits for the row", || (pair.primary.root().does(waits).value() != "0").then_some(()));

    let over = AtomicBool::new(false);
    let address = weir.address("auto");
    let changed = BEFORE_PAIR.replace("topology = \"static\"", "topology = \"static\"\npark = \"9s\"");
    let written = std::thread::scope(|scope| {
        let over = &over;
        let writers: Vec<_> = (1..5)
            .map(|writer| {
                scope.spawn(move || {
                    let mut client = Client::log_in(address, &Login::of("app", "shop")).expect("let in");
                    let mut written = 0;
                    while !over.load(Ordering::Relaxed) {
                        written += 1;
                        client.does(&format!(
                            "INSERT INTO reloaded VALUES ({}, 0)",
                            writer * 1_000_000 + written
                        ));
                        assert_eq!(client.does(&format!("SELECT {written}")).value(), written.to_string());
                    }
                    written
                })
            })
            .collect();
        let end = Sets(over);
        for round in 0..10 {
            weir.reloads(if round % 2 == 0 { &changed } else { BEFORE_PAIR });
        }
        drop(end);
        writers.into_iter().map(|writer| writer.join().expect("no error")).sum::<u32>()
    });

    first.does("COMMIT");
    let answer = second.receives(Asked::Results).expect("an answer");
    assert_eq!(answer.ok().map(|(rows, ..)| rows), Some(1), "{answer}");
    let rows = first.does("/* weir: primary */ SELECT COUNT(*), MAX(n) FROM reloaded").rows().remove(0);
    assert_eq!(rows, [(written + 1).to_string(), "11".to_owned()]);
    first.does("DROP TABLE reloaded");
}

#[test]
fn a_session_that_says_how_long_it_may_be_idle_is_told_when_it_was() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    client.does("SET wait_timeout = 1");
    let (_, payload) = client.receives_packet().expect("a word");
    assert_eq!(weir_tests::mysql::error_of(&payload).map(|(code, _)| code), Some(4031));
    assert!(client.receives_packet().is_err(), "and its connection ends");
}

#[test]
fn what_fails_behind_others_of_its_text_leaves_no_transaction_to_whoever_comes_next() {
    let pair = pair();
    let weir = before(&pair);
    let mut root = pair.primary.root();
    root.does("CREATE TABLE shop.fails (id INT PRIMARY KEY)");
    root.does("INSERT INTO shop.fails VALUES (1)");
    let mut client = client(&weir, "auto");
    let answer = client.asks("SET autocommit = 0; INSERT INTO shop.fails VALUES (2), (1)");
    assert_eq!(answer.error().map(|(code, _)| code), Some(1062), "{answer}");
    drop(client);
    let open = "SELECT COUNT(*) FROM information_schema.innodb_trx JOIN performance_schema.threads \
                ON PROCESSLIST_ID = trx_mysql_thread_id WHERE PROCESSLIST_USER = 'app'";
    until("nothing is open any more", || {
        // InnoDB shows what it has shown before to whoever asks again within a tenth of a second.
        std::thread::sleep(std::time::Duration::from_millis(150));
        (root.does(open).value() == "0").then_some(())
    });
    root.does("DROP TABLE shop.fails");
}
