//! Servers, listeners and Weir itself go, while clients of MySQL hold something there.

use weir_tests::dialogue::{Setup, Signal, Weir, until};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, Pair, error_of, pair, query};

use super::client;

/// Error that a client gets whose server goes.
const SHUTDOWN: u16 = 1053;
/// Error of a write where nobody takes any.
const READ_ONLY: u16 = 1836;

/// Weir before a pair: what can't leave has `drain`, and writes wait for a primary for `park`.
fn config(drain: &str, park: &str) -> String {
    format!("[runtime]\nworkers = 1\ndrain = \"{drain}\"\n{BEFORE_PAIR}park = \"{park}\"\n")
}

fn before(pair: &Pair, config: &str) -> Weir {
    let setup = Setup::of(config).with("primary", pair.primary.address);
    setup.with("replica", pair.replica.address).start()
}

/// The port of the server that answers.
fn port(client: &mut Client) -> u16 {
    client.does("SELECT @@port").value().parse().expect("a number")
}

/// The number of the error that a client gets who asks nothing; behind it the connection must end.
fn is_told(client: &mut Client) -> u16 {
    let (sequence, payload) = client.receives_packet().expect("an error before the end");
    let (code, _) = error_of(&payload).expect("an error");
    assert_eq!(sequence, 0, "it answers no command");
    assert!(client.receives_packet().is_err(), "the connection ends");
    code
}

/// Sends what has no answer for long, and waits until it runs there.
fn runs(client: &mut Client, sql: &str, pair: &Pair) {
    client.sends(&query(sql)).expect("sent");
    until("it runs", || (count_of(pair, sql) == 1).then_some(()));
}

/// Sends a statement that has no answer before [`Held::ends`].
fn runs_held(client: &mut Client, table: &str, pair: &Pair) -> Held {
    let mut root = pair.primary.root();
    root.does(&format!("CREATE TABLE shop.{table} (a INT)"));
    root.does(&format!("LOCK TABLES shop.{table} WRITE"));
    runs(client, &format!("SELECT COUNT(*) FROM shop.{table}"), pair);
    Held(root)
}

/// Who holds the table that a statement waits for.
struct Held(Client);

impl Held {
    /// Lets the statement end.
    fn ends(mut self) {
        self.0.does("UNLOCK TABLES");
    }
}

/// How often a statement runs on the primary.
fn count_of(pair: &Pair, sql: &str) -> usize {
    let running = pair.primary.root().does("SELECT info FROM performance_schema.processlist").rows();
    running.iter().filter(|row| row[0] == sql).count()
}

/// Whether `weir drain --wait` returns at once.
fn is_free(weir: &Weir, backend: &str) -> bool {
    weir.command(&["drain", "pair", backend, "--wait", "--timeout", "10ms"]).code == 0
}

#[test]
fn a_transaction_on_a_drained_server_ends_there_and_the_session_goes_on_elsewhere_in_its_state() {
    let pair = pair();
    let weir = before(&pair, &config("60s", "1s"));
    let (primary, replica) = (pair.primary.address.port(), pair.replica.address.port());
    let backend = pair.replica.address.to_string();
    let (mut busy, mut idle) = (client(&weir, "auto"), client(&weir, "auto"));
    for client in [&mut busy, &mut idle] {
        client.does("SET time_zone = '+05:00'");
        assert_eq!(port(client), replica);
    }
    busy.does("START TRANSACTION READ ONLY");
    assert_eq!(port(&mut busy), replica);
    weir.command(&["drain", "pair", &backend]).succeeded();
    let asks = "SELECT @@port, @@time_zone";
    assert_eq!(idle.does(asks).rows(), [[primary.to_string(), "+05:00".to_owned()]]);
    assert_eq!(busy.does(asks).rows(), [[replica.to_string(), "+05:00".to_owned()]]);
    assert!(!is_free(&weir, &backend), "a transaction is open there");
    busy.does("COMMIT");
    assert_eq!(busy.does(asks).rows(), [[primary.to_string(), "+05:00".to_owned()]]);
    weir.command(&["drain", "pair", &backend, "--wait"]).succeeded();
    until("idle connections to it are closed", || {
        (weir.metric("weir_backend_connections", &[("backend", &backend)]) == 0.0).then_some(())
    });
    weir.command(&["enable", "pair", &backend, "--wait"]).succeeded();
    assert_eq!(busy.does(asks).rows(), [[replica.to_string(), "+05:00".to_owned()]]);
}

#[test]
fn a_session_that_can_not_leave_a_drained_server_is_told_when_its_time_is_over() {
    let pair = pair();
    // Long enough for a busy machine to ask within it.
    let weir = before(&pair, &config("5s", "0s"));
    let backend = pair.primary.address.to_string();
    let mut pinned = client(&weir, "writes");
    pinned.does("SET @a = 1");
    let mut in_transaction = client(&weir, "writes");
    in_transaction.does("BEGIN");
    in_transaction.does("SELECT GET_LOCK('drained', 0)");
    let mut talks = client(&weir, "writes");
    talks.does("SET @a = 2");
    let mut long = client(&weir, "writes");
    let held = runs_held(&mut long, "held_in_drain", &pair);
    weir.command(&["drain", "pair", &backend]).succeeded();
    assert!(!is_free(&weir, &backend));
    assert_eq!(pinned.does("SELECT @a").value(), "1", "it has its time");
    // Also one that has a next statement each time.
    while talks.tries("SELECT @a").is_ok_and(|answer| answer.error().is_none()) {}
    assert_eq!((is_told(&mut pinned), is_told(&mut in_transaction)), (SHUTDOWN, SHUTDOWN));
    held.ends();
    assert_eq!(long.receives(Asked::Results).expect("what runs may end").value(), "0");
    weir.command(&["drain", "pair", &backend, "--wait"]).succeeded();
    until("its lock is free", || {
        (pair.primary.root().does("SELECT IS_FREE_LOCK('drained')").value() == "1").then_some(())
    });
}

#[test]
fn a_session_that_is_held_for_a_question_leaves_a_drained_server_with_its_next_statement() {
    let pair = pair();
    let weir = before(&pair, &config("60s", "0s"));
    let mut client = client(&weir, "writes");
    client.does("CREATE TABLE drained (id INT AUTO_INCREMENT PRIMARY KEY)");
    client.does("INSERT INTO drained VALUES ()");
    weir.command(&["drain", "pair", &pair.primary.address.to_string()]).succeeded();
    // Each would hold the connection for the next.
    let answer = client.asks("INSERT INTO drained VALUES ()");
    assert_eq!(answer.error().map(|(code, _)| code), Some(READ_ONLY));
}

#[test]
fn a_session_on_a_server_that_is_removed_is_told_when_its_time_is_over() {
    let pair = pair();
    let weir = before(&pair, &config("300ms", "0s"));
    let mut pinned = client(&weir, "reads");
    pinned.does("SET @a = 1");
    let path = format!("/v1/pools/pair/backends/{}", pair.replica.address);
    assert_eq!(weir.admin().calls("DELETE", &path, &[], "").status(), 200);
    assert_eq!(is_told(&mut pinned), SHUTDOWN);
}

#[test]
fn a_statement_whose_client_leaves_is_ended_on_a_server_that_is_out() {
    let pair = pair();
    let weir = before(&pair, &config("60s", "0s"));
    let mut leaves = client(&weir, "writes");
    // Unlike SLEEP() it does not look whether its client is still there.
    let long = "SELECT BENCHMARK(1000000000000, SHA2('a', 256))";
    runs(&mut leaves, long, &pair);
    let path = format!("/v1/pools/pair/backends/{}", pair.primary.address);
    let json = [("content-type", "application/json")];
    let out = weir.admin().calls("PATCH", &path, &json, r#"{"state": "maintenance"}"#);
    assert_eq!(out.status(), 200);
    drop(leaves);
    until("it is ended", || (count_of(&pair, long) == 0).then_some(()));
}

#[test]
fn clients_are_told_before_a_weir_that_ends_closes_them() {
    let pair = pair();
    let mut weir = before(&pair, &config("1s", "60s"));
    let (mut idle, mut pinned) = (client(&weir, "auto"), client(&weir, "auto"));
    idle.does("SELECT 1");
    pinned.does("SET @a = 1");
    let mut under_way = client(&weir, "writes");
    runs(&mut under_way, "SELECT SLEEP(600)", &pair);
    let mut parked = client(&weir, "writes");
    parked.does("SELECT 1");
    weir.command(&["drain", "pair", &pair.primary.address.to_string()]).succeeded();
    parked.sends(&query("DO 1")).expect("sent");
    until("it waits", || (weir.metric("weir_mysql_parked_total", &[]) == 1.0).then_some(()));
    weir.signals(Signal::TERM);
    assert_eq!(is_told(&mut idle), SHUTDOWN);
    assert_eq!(is_told(&mut pinned), SHUTDOWN);
    for client in [&mut under_way, &mut parked] {
        let answer = client.receives(Asked::Results).expect("an answer");
        assert_eq!(answer.error().map(|(code, _)| code), Some(SHUTDOWN));
        assert!(client.receives_packet().is_err());
    }
    weir.exits();
    until("what ran there is ended", || (count_of(&pair, "SELECT SLEEP(600)") == 0).then_some(()));
}

#[test]
fn clients_of_a_listener_that_a_reload_takes_away_are_told() {
    let pair = pair();
    let whole = config("300ms", "0s");
    let mut weir = before(&pair, &whole);
    let (mut idle, mut pinned) = (client(&weir, "reads"), client(&weir, "reads"));
    idle.does("SELECT 1");
    pinned.does("SET @a = 1");
    let gone = whole.replace("[listener.reads]", "[listener.others]").replace("@reads", "@others");
    weir.reloads(&gone);
    assert_eq!((is_told(&mut idle), is_told(&mut pinned)), (SHUTDOWN, SHUTDOWN));
}

#[test]
fn a_session_that_was_idle_for_too_long_is_told() {
    let pair = pair();
    let weir = before(
        &pair,
        &config("60s", "0s").replace(
            "[listener.reads]",
            "[listener.reads.timeout]\nclient_idle = \"300ms\"\n[listener.reads]",
        ),
    );
    let mut idle = client(&weir, "reads");
    assert_eq!(is_told(&mut idle), 4031);
}

/// The config of [`config`], with logins that servers settle themselves.
fn relayed(drain: &str) -> String {
    config(drain, "0s") + "passwords = \"relay\"\n"
}

/// Rows of more than what is moved without being looked at.
const BULK: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 32) \
                    SELECT REPEAT('x', 262144) FROM n";

#[test]
fn clients_whose_login_is_relayed_are_told_before_a_weir_that_ends_closes_them() {
    let pair = pair();
    let mut weir = before(&pair, &relayed("1s"));
    let (mut idle, mut bulk, mut closed) =
        (client(&weir, "writes"), client(&weir, "writes"), client(&weir, "writes"));
    idle.does("SET @a = 1");
    // What went by unseen is over with the commands behind it.
    bulk.does(BULK);
    bulk.does("SELECT 1");
    bulk.does("SELECT 1");
    closed.sends(b"\x16SELECT 1").expect("sent");
    let statement = closed.receives(Asked::Statement).expect("an answer").statement().expect("prepared");
    closed.sends(&[&[0x19], &statement.to_le_bytes()[..]].concat()).expect("sent");
    let mut under_way = client(&weir, "writes");
    runs(&mut under_way, "SELECT SLEEP(601)", &pair);
    weir.signals(Signal::TERM);
    assert_eq!([&mut idle, &mut bulk, &mut closed].map(is_told), [SHUTDOWN; 3]);
    let answer = under_way.receives(Asked::Results).expect("an answer");
    assert_eq!(answer.error().map(|(code, _)| code), Some(SHUTDOWN));
    assert!(under_way.receives_packet().is_err());
    weir.exits();
    until("what ran there is ended", || (count_of(&pair, "SELECT SLEEP(601)") == 0).then_some(()));
}

#[test]
fn a_client_whose_login_was_relayed_leaves_a_drained_server_between_two_commands() {
    let pair = pair();
    let weir = before(&pair, &relayed("500ms"));
    let backend = pair.primary.address.to_string();
    let (mut idle, mut busy) = (client(&weir, "writes"), client(&weir, "writes"));
    idle.does("SELECT 1");
    let held = runs_held(&mut busy, "held_in_relay", &pair);
    weir.command(&["drain", "pair", &backend]).succeeded();
    assert!(!is_free(&weir, &backend));
    assert_eq!(is_told(&mut idle), SHUTDOWN);
    held.ends();
    assert_eq!(busy.receives(Asked::Results).expect("what runs may end").value(), "0");
    assert_eq!(is_told(&mut busy), SHUTDOWN);
    weir.command(&["drain", "pair", &backend, "--wait"]).succeeded();
    weir.command(&["enable", "pair", &backend, "--wait"]).succeeded();
}

#[test]
fn a_client_whose_login_was_relayed_is_told_that_it_was_idle_for_too_long() {
    let pair = pair();
    let short = "[listener.writes.timeout]\nclient_idle = \"300ms\"\n[listener.writes]";
    let weir = before(&pair, &relayed("60s").replace("[listener.writes]", short));
    let mut idle = client(&weir, "writes");
    idle.does("SELECT 1");
    assert_eq!(is_told(&mut idle), 4031);
    // Silence within an answer is none of an idle client, and no answer is made up.
    let mut waits = client(&weir, "writes");
    assert!(waits.tries("SELECT SLEEP(5)").is_err());
}

/// Who goes on slowly is not waited for beyond the time that all have.
#[test]
fn clients_that_take_and_send_slowly_are_cut_off_with_a_listener_that_goes() {
    let pair = pair();
    let config = config("2s", "10s");
    let mut weir = before(&pair, &config);
    let mut taker = client(&weir, "writes");
    taker
        .sends(&query("SELECT REPEAT('x', 1000000) FROM information_schema.columns LIMIT 100"))
        .expect("sent");
    let mut sender = client(&weir, "writes");
    let (length, piece) = (5_000_000_u32, [b'x'; 1000]);
    sender.sends_bytes(&[&length.to_le_bytes()[..3], b"\0\x03SELECT '"].concat()).expect("sent");
    sender.sends_bytes(&[b'x'; 1_200_000]).expect("sent");
    let writes = BEFORE_PAIR.split("[listener.writes]").nth(1).expect("a listener");
    let writes = format!("[listener.writes]{}", writes.split("[listener.reads]").next().expect("its keys"));
    weir.reloads(&config.replace(&writes, ""));
    let mut byte = [0; 1000];
    until("the slow sender to be cut off", || {
        // Each piece renews its time.
        std::thread::sleep(std::time::Duration::from_millis(20));
        let _ = taker.receives_bytes(&mut byte);
        sender.sends_bytes(&piece).is_err().then_some(())
    });
    until("the slow taker to be cut off", || {
        std::thread::sleep(std::time::Duration::from_millis(1));
        taker.receives_bytes(&mut byte).is_err().then_some(())
    });
}
