//! Prepared statements that are prepared again elsewhere, and those that cannot be.

use weir_tests::dialogue::{Setup, Weir, until, until_within};
use weir_tests::mysql::{Answer, Asked, Client, Login, Mysqld, Value, execution, pair};

use super::leftovers::ONE_CONNECTION;
use super::{before, client};

/// The answer of an execution without values.
fn executes(client: &mut Client, statement: u32) -> Answer {
    client.sends(&execution(statement, false, &[], true)).expect("sent");
    client.receives(Asked::Results).expect("an answer")
}

/// Whether a row of the binary protocol has this text in it.
fn says(answer: &Answer, text: &str) -> bool {
    let has = |packet: &[u8]| packet.windows(text.len()).any(|part| part == text.as_bytes());
    // The row stands before the end.
    answer.packets.iter().rev().nth(1).is_some_and(|(_, packet)| has(packet))
}

#[test]
fn preparing_again_elsewhere_ends_no_transaction() {
    let pair = pair();
    let weir = before(&pair);
    client(&weir, "auto").does("CREATE TABLE counted (id INT PRIMARY KEY)");
    pair.replica.has_all_of(&pair.primary);
    let sql = "SELECT CONCAT('has ', COUNT(*)) FROM counted";
    // Prepared at the replica, and executed at the primary in a transaction.
    let mut first = client(&weir, "auto");
    let statement = first.prepares(sql);
    first.does("SET autocommit = 0");
    first.does("INSERT INTO counted VALUES (1)");
    assert!(says(&executes(&mut first, statement), "has 1"));
    first.does("ROLLBACK");
    assert_eq!(first.does(sql).value(), "has 0");
    first.quits();
    // The other way round: prepared with autocommit off, and executed behind BEGIN.
    let mut second = client(&weir, "auto");
    second.does("SET autocommit = 0");
    let statement = second.prepares(sql);
    second.does("COMMIT");
    second.does("SET autocommit = 1");
    for _ in 0..2 {
        second.does("BEGIN");
        second.does("INSERT INTO counted VALUES (2)");
        assert!(says(&executes(&mut second, statement), "has 1"));
        second.does("ROLLBACK");
    }
    assert_eq!(second.does(sql).value(), "has 0");
    second.does("DROP TABLE counted");
}

#[test]
fn no_change_of_schema_keeps_a_session_at_a_replica() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    for sql in ["CREATE TABLE left_for (id INT)", "CREATE DATABASE aside", "CREATE TABLE aside.t (id INT)"] {
        client.does(sql);
    }
    pair.replica.has_all_of(&pair.primary);
    let statement = client.prepares("SELECT CONCAT('has ', COUNT(*)) FROM left_for");
    client.does("USE aside");
    // Its server goes to the statement's schema and back, and tells so.
    assert!(says(&executes(&mut client, statement), "has 0"));
    client.does("INSERT INTO t VALUES (1)");
    // So does one that goes to a schema behind a statement that has failed there.
    assert!(client.asks("SELECT * FROM gone_from_here").error().is_some());
    client.sends(b"\x02shop").expect("sent");
    client.receives(Asked::One).expect("an answer");
    client.does("INSERT INTO left_for VALUES (1)");
    client.does("DROP TABLE aside.t");
}

#[test]
fn a_statement_that_cannot_be_prepared_again_leaves_the_session_in_its_schema() {
    let server = Mysqld::start("again", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let mut root = server.root();
    root.does("CREATE DATABASE other");
    for schema in ["shop", "other"] {
        root.does(&format!("CREATE TABLE {schema}.t (id INT)"));
    }
    root.does("CREATE TABLE shop.gone (id INT)");
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let (mut own, mut another) = (log_in(), log_in());
    let statement = own.prepares("SELECT * FROM gone");
    // The connection is another's, and has no statements behind that.
    another.does("SET @pinned = 1");
    another.quits();
    own.does("USE other");
    root.does("DROP TABLE shop.gone");
    for _ in 0..2 {
        assert_eq!(executes(&mut own, statement).error().map(|(code, _)| code), Some(1146));
        own.does("INSERT INTO t VALUES (1)");
        assert_eq!(own.does("SELECT DATABASE()").value(), "other");
    }
    let counts = root.does("SELECT (SELECT COUNT(*) FROM shop.t), (SELECT COUNT(*) FROM other.t)").rows();
    assert_eq!(counts, [["0", "2"]]);
}

#[test]
fn texts_longer_than_what_is_kept_are_told_apart_and_stay_with_their_connection() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    let padding = "a".repeat(1_200_000);
    let long: Vec<u32> = ["one", "two"]
        .iter()
        .map(|word| client.prepares(&format!("SELECT /* {padding} */ 'number {word}'")))
        .collect();
    // More than a server's connection keeps of those that can be prepared again.
    for number in 0..70 {
        let other = client.prepares(&format!("SELECT 'other {number}'"));
        assert!(says(&executes(&mut client, other), &format!("other {number}")));
    }
    for (statement, word) in long.iter().zip(["one", "two"]) {
        assert!(says(&executes(&mut client, *statement), &format!("number {word}")));
    }
    client.sends(&[b"\x19", &long[0].to_le_bytes()[..]].concat()).expect("closed");
    assert_eq!(executes(&mut client, long[0]).error().map(|(code, _)| code), Some(1243));
    assert!(says(&executes(&mut client, long[1]), "number two"));
    client.resets();
    assert_eq!(executes(&mut client, long[1]).error().map(|(code, _)| code), Some(1243));
}

/// Clients leave types out from the second execution on, and a server that did not see them must be told:
/// with them all of a long execution moves. Where that would make it one packet more it is refused, and what
/// stands behind is no command.
#[test]
fn an_execution_of_several_packets_gets_its_types_and_none_of_it_is_taken_for_a_command() {
    const MOST: usize = 0xff_ffff;
    // One of its own: a replica that others use would fall behind by what is written here.
    let server = Mysqld::start("long", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let mut first = client(&weir, "db");
    first.does("CREATE TABLE long_values (v LONGBLOB)");
    // A header that has lost its upper bits leaves all this to be read as packets: empty ones, whatever the
    // statement's number is, and then the command.
    let command = b"\x03INSERT INTO long_values VALUES ('taken for a command')";
    let packet = [&(command.len() as u32).to_le_bytes()[..], command].concat();
    // What the answer to an execution with a value of `bytes` is, its types being those of the one before.
    let executes_long = |payload_bytes: usize| {
        let mut client = client(&weir, "db");
        let statement = client.prepares("INSERT INTO long_values VALUES (?)");
        client.sends(&execution(statement, false, &[Value::Text("short".to_owned())], true)).expect("sent");
        assert!(client.receives(Asked::Results).expect("an answer").is_ok());
        let mut payload = execution(statement, false, &[Value::Null], false);
        // The value is none that is NULL.
        payload[10] = 0;
        let value_bytes = payload_bytes - payload.len() - 9;
        payload.push(0xfe);
        payload.extend_from_slice(&(value_bytes as u64).to_le_bytes());
        let value = [&[0; 2057], &packet[..]].concat();
        payload.extend(&value);
        payload.resize(payload_bytes, 0);
        client.sends(&payload).ok();
        let code = client.receives(Asked::Results).map(|it| it.error().map_or(0, |(code, _)| code)).ok();
        (code, value_bytes)
    };
    for payload_bytes in [MOST - 3, MOST, MOST + 7, 2 * MOST - 3, 2 * MOST] {
        let (code, value_bytes) = executes_long(payload_bytes);
        assert_eq!(code, Some(0), "{payload_bytes}");
        let hex: String = packet.iter().map(|byte| format!("{byte:02x}")).collect();
        let rest = value_bytes - 2057 - packet.len();
        let same = format!(
            "SELECT COUNT(*) FROM long_values WHERE v = CONCAT(REPEAT('\\0', 2057), X'{hex}', REPEAT('\\0', {rest}))"
        );
        assert_eq!(first.does(&same).value(), "1", "{payload_bytes}");
        first.does("DELETE FROM long_values WHERE v <> 'short'");
    }
    for payload_bytes in [MOST - 2, MOST - 1, 2 * MOST - 2] {
        let (code, _) = executes_long(payload_bytes);
        // The error is behind what was sent last, and may be lost with the connection.
        assert!(matches!(code, Some(1153) | None), "{payload_bytes}: {code:?}");
    }
    let counted = "SELECT COUNT(*), SUM(v = 'short'), SUM(v = 'taken for a command') FROM long_values";
    assert_eq!(first.does(counted).rows(), [["8", "8", "0"]]);
}

#[test]
fn a_statement_with_rows_or_pieces_left_is_not_closed_to_make_room() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    let rows = client.prepares("SELECT 'first row' UNION ALL SELECT 'other row'");
    client.sends(&execution(rows, true, &[], true)).expect("sent");
    assert!(client.receives(Asked::Results).expect("an answer").error().is_none());
    let pieces = client.prepares("SELECT CONCAT('of ', ?)");
    client.sends(&execution(pieces, false, &[Value::Text("x".to_owned())], true)).expect("sent");
    client.receives(Asked::Results).expect("an answer");
    client.sends(&[b"\x18", &pieces.to_le_bytes()[..], b"\0\0pieces"].concat()).expect("sent");
    for number in 0..70 {
        client.prepares(&format!("SELECT 'of others {number}'"));
    }
    let fetch = [b"\x1c", &rows.to_le_bytes()[..], &2_u32.to_le_bytes()].concat();
    client.sends(&fetch).expect("sent");
    let fetched = client.receives(Asked::Rows).expect("an answer");
    assert!(fetched.error().is_none(), "{fetched}");
    client.sends(&execution(pieces, false, &[Value::Long], true)).expect("sent");
    assert!(says(&client.receives(Asked::Results).expect("an answer"), "of pieces"));
}

/// Names without a schema are of the schema that a text was prepared in.
#[test]
fn what_was_prepared_among_a_servers_own_tables_runs_at_the_primary_wherever_the_session_is() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = Client::log_in(weir.address("auto"), &Login::of("root", "sys")).expect("let in");
    let statement = client.prepares("SELECT CONCAT('port ', @@port) FROM version");
    client.does("USE shop");
    let primary = pair.primary.address.port();
    let answer = executes(&mut client, statement);
    assert!(says(&answer, &format!("port {primary}")), "{answer}");
}

#[test]
fn what_was_prepared_in_a_schema_that_is_gone_leaves_no_connection_in_it_for_others() {
    let server = Mysqld::start("left-schema", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let log_in =
        |schema: &str| Client::log_in(weir.address("db"), &Login::of("app", schema)).expect("let in");
    let (mut own, mut another, mut without) = (log_in(""), log_in(""), log_in(""));
    own.does("CREATE DATABASE passing");
    own.does("USE passing");
    let statement = own.prepares("SELECT 'prepared'");
    own.does("DROP DATABASE passing");
    server.root().does("CREATE DATABASE passing");
    // The connection has no statements behind another's.
    another.does("SET @pinned = 1");
    another.quits();
    let answer = executes(&mut own, statement);
    assert!(says(&answer, "prepared") || answer.error().is_some_and(|(code, _)| code == 1615), "{answer}");
    own.does("DO 1");
    assert_eq!(without.does("SELECT IFNULL(DATABASE(), 'none')").value(), "none");
}

#[test]
fn an_execution_with_tens_of_thousands_of_values_over_a_mebibyte_is_passed_on() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "writes");
    client.does("CREATE TABLE many_values (v VARCHAR(60))");
    let count = 40_000;
    let statement =
        client.prepares(&format!("INSERT INTO many_values VALUES (?){}", ",(?)".repeat(count - 1)));
    let values: Vec<Value> = (0..count).map(|number| Value::Text(format!("{number:0>40}"))).collect();
    let sent = || weir.metric("weir_backend_bytes_total", &[("pool", "pair"), ("direction", "sent")]);
    let before = sent();
    let payload = execution(statement, false, &values, true);
    for with_types in [true, false] {
        client.sends(&execution(statement, false, &values, with_types)).expect("sent");
        let answer = client.receives(Asked::Results).expect("an answer");
        assert!(answer.is_ok(), "{answer}");
    }
    assert_eq!(
        client.does("SELECT COUNT(*), COUNT(DISTINCT v) FROM many_values").rows(),
        [["80000", "40000"]]
    );
    // Each byte is counted once.
    let counted = sent() - before;
    assert!(counted < 2.5 * payload.len() as f64, "{counted} of twice {}", payload.len());
    client.does("DROP TABLE many_values");
}

#[test]
fn preparing_what_cannot_be_prepared_begins_no_transaction() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    client.does("SET autocommit = 0");
    client.sends(b"\x16START TRANSACTION READ ONLY").expect("sent");
    let answer = client.receives(Asked::Statement).expect("an answer");
    assert_eq!(answer.error().map(|(code, _)| code), Some(1295), "{answer}");
    // At the primary, which alone knows what becomes of it.
    assert_eq!(client.asks("XA ROLLBACK 'nobody'").error().map(|(code, _)| code), Some(1397));
}

#[test]
fn an_execution_whose_types_were_never_said_is_told_so_also_where_its_statement_can_not_be_prepared_again() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    client.does("CREATE TABLE untyped (id INT PRIMARY KEY)");
    let statement = client.prepares("INSERT INTO untyped VALUES (?)");
    client.does("SET SESSION TRANSACTION READ ONLY");
    let mut executes = |value, with_types| {
        client.sends(&execution(statement, false, &[value], with_types)).expect("sent");
        client.receives(Asked::Results).expect("an answer").error().map(|(code, _)| code)
    };
    assert_eq!(executes(Value::Long, false), Some(1835));
    assert_eq!(executes(Value::Null, false), Some(1792));
    let codes = [false, true, false].map(|with_types| executes(Value::Number(1), with_types));
    assert_eq!(codes, [Some(1210), Some(1792), Some(1792)]);
    client.does("SET SESSION TRANSACTION READ WRITE");
    client.does("DROP TABLE untyped");
}

/// A server that has room for a hundred prepared statements, and a Weir before it with this in its pool.
fn with_little_room(name: &str, more: &str) -> (Mysqld, Weir) {
    let server = Mysqld::start(name, "max_prepared_stmt_count = 100");
    let config = ONE_CONNECTION.replace(", max_connections = 1", "");
    let weir = Setup::of(&format!("{config}{more}\n")).with("server", server.address).start();
    (server, weir)
}

/// Prepares and closes sixty statements of its own within a transaction.
fn prepares_sixty(client: &mut Client, from: u32) {
    client.does("BEGIN");
    for number in from..from + 60 {
        let statement = client.prepares(&format!("SELECT {number}, ?"));
        client.sends(&[b"\x19", &statement.to_le_bytes()[..]].concat()).expect("closed");
    }
}

/// What is prepared at a server, by its own count.
fn prepared_at(server: &Mysqld) -> u32 {
    let rows = server.root().does("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").rows();
    rows[0][1].parse().expect("a number")
}

#[test]
fn statements_that_clients_have_closed_make_room_at_a_server_that_has_none() {
    let (server, weir) = with_little_room("room", "");
    let mut clients: Vec<Client> = (0..3).map(|_| client(&weir, "db")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        prepares_sixty(client, 1000 * number as u32);
    }
    let address = server.address.to_string();
    let metric = |name: &str| weir.metric(name, &[("backend", &address)]);
    assert!(metric("weir_mysql_statements_closed_total") > 0.0);
    // To close one has no answer.
    until("both count the same", || {
        (metric("weir_mysql_prepared_statements") == f64::from(prepared_at(&server))).then_some(())
    });
    clients.iter_mut().for_each(|client| drop(client.does("COMMIT")));
    // What a session has is there for it, though others have closed it meanwhile.
    let mut kept = client(&weir, "db");
    let statements: Vec<u32> =
        (0..5).map(|number| kept.prepares(&format!("SELECT 'kept {number}'"))).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        prepares_sixty(client, 10_000 + 1000 * number as u32);
    }
    clients.iter_mut().for_each(|client| drop(client.does("COMMIT")));
    for (number, statement) in statements.iter().enumerate() {
        assert!(says(&executes(&mut kept, *statement), &format!("kept {number}")));
    }
    // A connection with nothing of its own to close gets room from those that are idle.
    let mut direct = server.root();
    for number in 0.. {
        direct.sends(format!("\x16SELECT 'direct {number}'").as_bytes()).expect("sent");
        let refused = direct.receives(Asked::Statement).expect("an answer").error();
        if refused.is_some_and(|(code, _)| code == 1461) {
            break;
        }
    }
    let mut fresh = Client::log_in(weir.address("db"), &Login::of("root", "")).expect("root is let in");
    let statement = fresh.prepares("SELECT 'fresh'");
    assert!(says(&executes(&mut fresh, statement), "fresh"));
}

#[test]
fn statements_that_other_workers_hold_idle_make_room() {
    let server = Mysqld::start("room-of-all", "max_prepared_stmt_count = 20");
    let config = ONE_CONNECTION.replace(", max_connections = 1", "").replace("workers = 1", "workers = 4");
    let weir = Setup::of(&config).with("server", server.address).start();
    let mut clients: Vec<Client> = (0..16).map(|_| client(&weir, "db")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let mut last = 0;
        for statement in 0..20 {
            last = client.prepares(&format!("SELECT 'of {number}', {statement}"));
        }
        assert!(says(&executes(client, last), &format!("of {number}")));
    }
}

#[test]
fn no_more_statements_are_prepared_at_a_server_than_the_pool_says() {
    let (server, weir) = with_little_room("beyond", "prepared_statements = 70");
    let mut clients: Vec<Client> = (0..3).map(|_| client(&weir, "db")).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        prepares_sixty(client, 1000 * number as u32);
        // A connection has at least the one that it runs.
        until("no more are prepared", || (prepared_at(&server) <= 71).then_some(()));
    }
    clients.iter_mut().for_each(|client| drop(client.does("COMMIT")));
    let rows = |client: &mut Client, sql: &str| {
        let statement = client.prepares(sql);
        (0..2).all(|_| says(&executes(client, statement), "here"))
    };
    assert!(clients.iter_mut().all(|client| rows(client, "SELECT 'here'")));
    let address = server.address.to_string();
    assert!(weir.metric("weir_mysql_statements_closed_total", &[("backend", &address)]) > 0.0);
}

#[test]
fn statements_on_a_connection_that_is_idle_for_long_are_closed() {
    let (server, weir) = with_little_room("idle", "[pool.one.keep_alive]\nidle = \"1h\"");
    let mut client = client(&weir, "db");
    let statement = client.prepares("SELECT 'again'");
    assert_eq!(prepared_at(&server), 1);
    until_within(std::time::Duration::from_secs(60), "it is closed", || {
        (prepared_at(&server) == 0).then_some(())
    });
    assert!(says(&executes(&mut client, statement), "again"));
}

/// Ends the connections on which statements of `app` are prepared, and begins a transaction on a new one.
fn is_on_another_connection(root: &mut Client, client: &mut Client) {
    let connections = root.does("SELECT id FROM information_schema.processlist WHERE user = 'app'").rows();
    for connection in connections {
        root.does(&format!("KILL {}", connection[0]));
    }
    until("they have ended", || {
        let left = root.does("SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'");
        (left.value() == "0").then_some(())
    });
    client.does("BEGIN");
    client.does("SELECT 1");
}

/// A change of a table that waits for a transaction, so that everybody else waits for it.
struct WaitingChange {
    reader: Client,
    change: std::thread::JoinHandle<()>,
}

impl WaitingChange {
    fn begin(server: &Mysqld, column: &'static str) -> WaitingChange {
        let (mut reader, mut changes) = (server.root(), server.root());
        reader.does("BEGIN");
        reader.does("SELECT * FROM shop.locked");
        let change = std::thread::spawn(move || {
            changes.does(&format!("ALTER TABLE shop.locked ADD {column} INT"));
        });
        until("it waits", || (waiting(&mut reader, "root") == "1").then_some(()));
        WaitingChange { reader, change }
    }

    fn goes_on(mut self) -> std::thread::JoinHandle<()> {
        self.reader.does("COMMIT");
        self.change
    }
}

fn waiting(asks: &mut Client, user: &str) -> String {
    asks.does(&format!(
        "SELECT COUNT(*) FROM information_schema.processlist \
         WHERE user = '{user}' AND state LIKE 'Waiting for table%'"
    ))
    .value()
}

#[test]
fn an_execution_waits_for_a_lock_on_its_table_as_long_as_it_does_at_the_server() {
    let server = Mysqld::start("locked-table", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let mut root = server.root();
    root.does("CREATE TABLE shop.locked (id INT)");
    let mut client = Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let statement = client.prepares("SELECT CONCAT('rows ', COUNT(*)) FROM locked");
    is_on_another_connection(&mut root, &mut client);
    let change = WaitingChange::begin(&server, "first");
    client.sends(&execution(statement, false, &[], true)).expect("sent");
    until("it waits for the lock", || (waiting(&mut root, "app") == "1").then_some(()));
    // Longer than Weir waits for what only it needs to know.
    std::thread::sleep(std::time::Duration::from_secs(11));
    let change = change.goes_on();
    let answer = client.receives(Asked::Results).expect("an answer");
    assert!(says(&answer, "rows 0"), "{answer}");
    // Nobody waits for a client that has left.
    client.does("COMMIT");
    change.join().expect("changed");
    let statement = client.prepares("SELECT CONCAT('again ', COUNT(*)) FROM locked");
    is_on_another_connection(&mut root, &mut client);
    let change = WaitingChange::begin(&server, "second");
    client.sends(&execution(statement, false, &[], true)).expect("sent");
    until("it waits for the lock", || (waiting(&mut root, "app") == "1").then_some(()));
    drop(client);
    until("it waits no more", || (waiting(&mut root, "app") == "0").then_some(()));
    change.goes_on().join().expect("changed");
}

#[test]
fn resetting_a_statement_leaves_another_of_its_text_as_it_is() {
    let server = Mysqld::start("reset-twin", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    for through in [server.address, weir.address("db")] {
        let mut client = Client::log_in(through, &Login::of("app", "shop")).expect("let in");
        let twins = |client: &mut Client, sql: &str| [client.prepares(sql), client.prepares(sql)];
        let reset = |client: &mut Client, id: u32| {
            client.sends(&[b"\x1a", &id.to_le_bytes()[..]].concat()).expect("sent");
            let answer = client.receives(Asked::One).expect("an answer");
            assert!(answer.is_ok(), "{answer}");
        };
        let [rows, other] = twins(&mut client, "SELECT 'first row' UNION ALL SELECT 'other row'");
        client.sends(&execution(rows, true, &[], true)).expect("sent");
        assert!(client.receives(Asked::Results).expect("an answer").error().is_none());
        reset(&mut client, other);
        client.sends(&[b"\x1c", &rows.to_le_bytes()[..], &2_u32.to_le_bytes()].concat()).expect("sent");
        let fetched = client.receives(Asked::Rows).expect("an answer");
        assert!(fetched.error().is_none(), "{fetched}");
        let [pieces, other] = twins(&mut client, "SELECT CONCAT('of ', ?)");
        client.sends(&[b"\x18", &pieces.to_le_bytes()[..], b"\0\0pieces"].concat()).expect("sent");
        reset(&mut client, other);
        client.sends(&execution(pieces, false, &[Value::Long], true)).expect("sent");
        let answer = client.receives(Asked::Results).expect("an answer");
        assert!(says(&answer, "of pieces"), "{answer}");
    }
}
