//! Errors that a text raises itself, and packets that a server reads otherwise than they look: what they say
//! is not taken on trust.

use weir_tests::dialogue::{Setup, until};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, Login, Mysqld, execution, watched_pair};

use super::leftovers::ONE_CONNECTION;

const SYNTAX: u16 = 1064;
const READ_ONLY: u16 = 1836;
/// `CLIENT_QUERY_ATTRIBUTES` and `CLIENT_DEPRECATE_EOF`.
const ATTRIBUTES: u32 = 1 << 27 | 1 << 24;

fn code_of(client: &mut Client, sql: &str) -> Option<u16> {
    client.asks(sql).error().map(|(code, _)| code)
}

#[test]
fn a_syntax_error_in_a_procedure_leaves_no_lock_and_no_transaction_to_others() {
    let server = Mysqld::start("raised-syntax", "");
    let mut root = server.root();
    root.does("USE shop");
    root.does("CREATE TABLE raised (id INT PRIMARY KEY)");
    root.does(
        "CREATE PROCEDURE raises() BEGIN DO GET_LOCK('raised', 0); START TRANSACTION; \
         INSERT INTO raised VALUES (1); SET @s = 'SELEC 1'; PREPARE x FROM @s; END",
    );
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in");
    for prepared in [false, true] {
        let (mut first, mut next) = (log_in(), log_in());
        if prepared {
            let statement = first.prepares("CALL raises()");
            first.sends(&execution(statement, false, &[], true)).expect("sent");
            let answer = first.receives(Asked::Results).expect("an answer");
            assert_eq!(answer.error().map(|(code, _)| code), Some(SYNTAX));
        } else {
            assert_eq!(code_of(&mut first, "CALL raises()"), Some(SYNTAX));
        }
        // It waits for the only connection, which would be free after a while if nothing were left on it.
        let waits = std::thread::spawn(move || {
            (
                next.does("SELECT @s IS NULL, COUNT(*) FROM raised").rows(),
                next.does("DO RELEASE_LOCK('raised')"),
            )
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        first.quits();
        assert_eq!(waits.join().expect("an answer").0, [["1", "0"]], "prepared: {prepared}");
        until("the lock is free", || {
            (root.does("SELECT IS_FREE_LOCK('raised')").value() == "1").then_some(())
        });
    }
    // A text with a mistake in it leaves nothing, and nothing keeps its session on a connection.
    let (mut first, mut next) = (log_in(), log_in());
    for sql in ["SELEC 1", "SELECT id FORM raised WHERE", "INSERT INTO raised (id VALUES (1)", "CAL raises()"]
    {
        assert_eq!(code_of(&mut first, sql), Some(SYNTAX), "{sql}");
        next.does("SELECT 1");
    }
}

#[test]
fn an_error_that_a_text_raises_takes_the_role_from_no_primary() {
    let pair = watched_pair("raised-role");
    let mut root = pair.primary.root();
    root.does("USE shop");
    root.does("CREATE TABLE raised (id INT)");
    root.does(
        "CREATE TRIGGER raises BEFORE INSERT ON raised FOR EACH ROW \
         SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1836, MESSAGE_TEXT = 'Running in read-only mode'",
    );
    pair.replica.has_all_of(&pair.primary);
    let config = BEFORE_PAIR
        .replace("topology = \"static\"", "topology = \"replication\"\nuser = \"app\"\npark = \"0s\"");
    let weir = Setup::of(&config).with("primary", pair.primary.address);
    let weir = weir.with("replica", pair.replica.address).start();
    let log_in = || Client::log_in(weir.address("writes"), &Login::of("app", "shop"));
    let mut writer = until("there is a primary", || log_in().ok());
    writer.does("CREATE TABLE kept_on (id INT)");
    let mut raises = log_in().expect("app is let in");
    let signal = "SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1836, MESSAGE_TEXT = 'Running in read-only mode'";
    for sql in [signal, "INSERT INTO raised VALUES (1)"] {
        for _ in 0..100 {
            assert_eq!(code_of(&mut raises, sql), Some(READ_ONLY), "{sql}");
            // Without a primary it would be refused at once.
            writer.does("INSERT INTO kept_on VALUES (1)");
        }
    }
    // A transaction goes on, as it does at the server.
    raises.does("BEGIN");
    raises.does("INSERT INTO kept_on VALUES (2)");
    assert_eq!(code_of(&mut raises, signal), Some(READ_ONLY));
    raises.does("COMMIT");
    assert_eq!(writer.does("SELECT COUNT(*) FROM kept_on WHERE id = 2").value(), "1");
    let status = weir.admin().reads("/v1/status").json();
    assert_eq!(status["pools"][0]["failovers"].as_array().map_or(0, Vec::len), 0, "{status}");
    // One that takes no writes any more is believed.
    root.does("SET GLOBAL super_read_only = ON");
    assert_eq!(code_of(&mut writer, "INSERT INTO kept_on VALUES (3)"), Some(READ_ONLY));
}

#[test]
fn what_follows_an_attribute_is_the_text_that_the_server_reads() {
    let server = Mysqld::start("raised-types", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let login = Login { capabilities: ATTRIBUTES, ..Login::of("app", "shop") };
    for kind in [0x06_u8, 0x09, 0x0D] {
        // A server takes the first byte behind the name for the length of a text.
        for hidden in ["xxxSELECT GET_LOCK('typed', 0) -- ", "\x0fxxxSELECT 1 -- SELECT GET_LOCK('typed', 0)"]
        {
            let mut client = Client::log_in(weir.address("db"), &login).expect("app is let in");
            let packet = [&[0x03, 1, 1, 0, 1, kind, 0, 1, b'a'][..], hidden.as_bytes()].concat();
            client.sends(&packet).expect("sent");
            // Refused, by an error or by the end of the connection; what it took, it has until then.
            let _ = client.receives(Asked::Results);
            client.quits();
            let mut root = server.root();
            until("the lock is free", || {
                (root.does("SELECT IS_FREE_LOCK('typed')").value() == "1").then_some(())
            });
        }
    }
}
