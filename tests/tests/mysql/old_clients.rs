//! Clients that wait for EOF packets (without `CLIENT_DEPRECATE_EOF`), before servers that Weir asks for
//! none. An answer is compared with a server's own, sequence ids too.

use weir_tests::dialogue::Setup;
use weir_tests::mysql::{
    Answer, Asked, Client, DEPRECATE_EOF, LOCAL_FILES, Login, Mysqld, SESSION_TRACK, Value, execution, query,
};

use super::leftovers::ONE_CONNECTION;

/// What a client of either kind asks, and what it is answered with.
enum Ask {
    Text(&'static str),
    Bytes(&'static [u8], Asked),
    Prepare(&'static str),
    /// Of the statement that was prepared last; whether with a cursor.
    Execute(bool, &'static [Value]),
    Fetch(u32),
}

const CODE: [&str; 6] = [
    "USE shop",
    "CREATE TABLE numbers (id INT PRIMARY KEY, t VARCHAR(20))",
    "INSERT INTO numbers VALUES (1, 'one'), (2, 'two'), (3, NULL), (4, ''), (5, 'five'), (6, '6'), (7, '7')",
    "CREATE TABLE loaded (id INT)",
    "CREATE PROCEDURE several() BEGIN SELECT 1; SELECT id, t FROM numbers ORDER BY id; SELECT 2; END",
    "CREATE PROCEDURE fails() BEGIN SELECT 1; SELECT * FROM numbers WHERE id = (SELECT id FROM numbers); END",
];

const ASKS: [Ask; 44] = [
    Ask::Text("SELECT 1"),
    Ask::Text("SELECT id, t FROM numbers ORDER BY id"),
    Ask::Text("SELECT id, t FROM numbers WHERE id < 0"),
    Ask::Text("DO 1"),
    Ask::Text("SELECT 1; SELECT 2, 3; DO 1; SELECT id FROM numbers; SELECT 5"),
    Ask::Text("SELECT 1; SELEC 2"),
    Ask::Text("SELECT 1; SELECT nothing FROM numbers; SELECT 2"),
    // The second row is an error.
    Ask::Text("SELECT id, (SELECT u.id FROM numbers u WHERE u.id <= n.id) FROM numbers n ORDER BY id"),
    Ask::Text(
        "SELECT 1; SELECT id, (SELECT u.id FROM numbers u WHERE u.id <= n.id) FROM numbers n ORDER BY id",
    ),
    Ask::Text("CALL several()"),
    Ask::Text("CALL fails()"),
    Ask::Text("SHOW TABLES"),
    Ask::Text("BEGIN; SELECT 1; COMMIT; SELECT 2"),
    Ask::Text("SET autocommit = 0; SELECT id FROM numbers; SET autocommit = 1"),
    Ask::Text("SET NAMES latin1; SELECT 1; SET NAMES utf8mb4"),
    Ask::Text("SELECT 1; LOAD DATA LOCAL INFILE 'x' INTO TABLE loaded; SELECT COUNT(*) FROM loaded"),
    Ask::Text("SELECT LENGTH(REPEAT('x', 17000000))"),
    Ask::Text("SELECT REPEAT('x', 17000000)"),
    Ask::Text("SELECT 1; SELECT REPEAT('x', 17000000), 2; SELECT 3"),
    Ask::Text("SELECT 1; SELECT REPEAT('x', 16777211); SELECT 3"),
    Ask::Bytes(b"\x04numbers\0", Asked::Rows),
    Ask::Bytes(b"\x04nowhere\0", Asked::Rows),
    Ask::Bytes(b"\x1b\x01\0", Asked::One),
    Ask::Bytes(b"\x1b\0\0", Asked::One),
    Ask::Bytes(b"\x0e", Asked::One),
    Ask::Prepare("SELEC ?"),
    Ask::Prepare("DO 1"),
    Ask::Execute(false, &[]),
    Ask::Prepare("DO ?"),
    Ask::Execute(false, &[Value::Number(1)]),
    Ask::Prepare("CALL several()"),
    Ask::Execute(false, &[]),
    Ask::Prepare("SELECT id, t FROM numbers WHERE id > ? AND id < ? ORDER BY id"),
    Ask::Execute(false, &[Value::Number(1), Value::Number(4)]),
    Ask::Execute(false, &[Value::Number(9), Value::Number(4)]),
    Ask::Prepare("SELECT id, t, ? FROM numbers ORDER BY id"),
    Ask::Execute(true, &[Value::Number(1)]),
    Ask::Fetch(3),
    Ask::Fetch(3),
    Ask::Fetch(3),
    Ask::Prepare("SELECT 1 FROM numbers WHERE id = (SELECT id FROM numbers)"),
    Ask::Execute(false, &[]),
    Ask::Prepare("SELECT REPEAT('x', 17000000)"),
    Ask::Execute(false, &[]),
];

fn answers(client: &mut Client) -> Vec<Answer> {
    let mut statement = 0xffff;
    let mut answered = Vec::new();
    for ask in &ASKS {
        client.file = b"1\n2\n3\n".to_vec();
        let (payload, asked) = match ask {
            Ask::Text(sql) => (query(sql), Asked::Results),
            Ask::Bytes(bytes, asked) => (bytes.to_vec(), *asked),
            Ask::Prepare(sql) => ([b"\x16", sql.as_bytes()].concat(), Asked::Statement),
            Ask::Execute(cursor, values) => (execution(statement, *cursor, values, true), Asked::Results),
            Ask::Fetch(rows) => {
                ([&b"\x1c"[..], &u32::to_le_bytes(statement), &rows.to_le_bytes()].concat(), Asked::Rows)
            }
        };
        client.sends(&payload).expect("sent");
        let mut answer = client.receives(asked).expect("an answer");
        if asked == Asked::Statement && answer.is_ok() {
            statement = answer.statement().expect("a number");
            // A server gives numbers of its own.
            answer.packets[0].1[1..5].fill(0);
        }
        answer.forget_what_columns_foretell();
        if matches!(ask, Ask::Bytes([0x1b | 0x0e, ..], _)) {
            // Of the statement before, which Weir has answered for elsewhere.
            let is_eof = answer.packets[0].1.len() == 5;
            answer.packets[0].1[if is_eof { 1..3 } else { 5..7 }].fill(0);
        }
        answered.push(answer);
    }
    answered
}

#[test]
fn a_client_with_eof_packets_or_without_them_hears_what_a_server_says_to_the_last_byte() {
    let server = Mysqld::start("old-clients", "");
    let mut root = server.root();
    CODE.iter().for_each(|sql| drop(root.does(sql)));
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    // Also one behind the other over the same connection, which both kinds share.
    for capabilities in [0, DEPRECATE_EOF, 0] {
        let mut log_in = |address| {
            root.does("TRUNCATE shop.loaded");
            let login = Login { capabilities: capabilities | LOCAL_FILES, ..Login::of("app", "shop") };
            Client::log_in(address, &login).expect("app is let in")
        };
        let expected = answers(&mut log_in(server.address));
        let heard = answers(&mut log_in(weir.address("db")));
        for (at, (expected, heard)) in expected.into_iter().zip(heard).enumerate() {
            if expected != heard {
                panic!("{capabilities:#x}, {at}: expected {expected}\n    heard {heard}");
            }
        }
    }
}

#[test]
fn a_result_of_many_buffers_has_its_eof_packets_and_sequence_ids() {
    let server = Mysqld::start("old-many", "");
    let mut root = server.root();
    CODE.iter().for_each(|sql| drop(root.does(sql)));
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let columns: Vec<String> =
        (0..900).map(|number| format!("{number} AS a_column_with_a_long_name_{number}")).collect();
    for sql in [
        "SELECT a.id, REPEAT('y', 50), b.t FROM numbers a, numbers b, numbers c, numbers d, numbers e \
         ORDER BY a.id, b.id"
            .to_owned(),
        // Columns alone fill several buffers.
        format!("SELECT {}", columns.join(", ")),
    ] {
        for capabilities in [0, DEPRECATE_EOF] {
            let login = Login { capabilities, ..Login::of("app", "shop") };
            let [mut expected, mut heard] = [server.address, weir.address("db")]
                .map(|address| Client::log_in(address, &login).expect("app is let in").does(&sql));
            [&mut expected, &mut heard].into_iter().for_each(Answer::forget_what_columns_foretell);
            assert!(expected == heard, "{} packets, {} heard", expected.packets.len(), heard.packets.len());
        }
    }
}

#[test]
fn clients_with_eof_packets_and_without_share_connections() {
    let server = Mysqld::start("old-shared", "");
    let two = ONE_CONNECTION.replace("max_connections = 1", "max_connections = 2");
    let weir = Setup::of(&two).with("server", server.address).start();
    let mut all: Vec<Client> = [0, DEPRECATE_EOF, SESSION_TRACK, DEPRECATE_EOF | SESSION_TRACK]
        .map(|capabilities| {
            let login = Login { capabilities, ..Login::of("app", "shop") };
            Client::log_in(weir.address("db"), &login).expect("app is let in")
        })
        .into();
    for client in &mut all {
        assert_eq!(client.does("SELECT 'here'").value(), "here");
    }
    let of_app = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'";
    assert_eq!(server.root().does(of_app).value(), "1");
}

/// A replica in Python names itself, and then asks where the binary log ends.
#[test]
fn a_client_that_has_named_itself_a_replica_is_answered_as_before() {
    let server = Mysqld::start("old-replica", "log_bin = binlog");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let login = Login { capabilities: 0, ..Login::of("app", "shop") };
    let mut replica = Client::log_in(weir.address("db"), &login).expect("app is let in");
    replica.sends(b"\x15\x07\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0").expect("COM_REGISTER_SLAVE");
    assert!(replica.receives(Asked::One).expect("an answer").is_ok());
    assert_eq!(replica.does("SELECT 1; SELECT 2").packets.len(), 10);
    replica.quits();
    let mut next = Client::log_in(weir.address("db"), &login).expect("app is let in");
    assert_eq!(next.does("SHOW REPLICAS").rows().len(), 0, "it is none any more");
}
