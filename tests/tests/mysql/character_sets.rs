//! Character sets: names that are not ASCII, and what Weir asks itself while a session has whatever sets.

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::mysql::{Asked, Client, Login, Mysqld, Pair, error_of};

use super::leftovers::ONE_CONNECTION;
use super::{before, client};

/// A client's character set, the number of a collation of its, a schema's name, and its bytes there. In some
/// of them the last byte of a name is a backslash.
const NAMES: [(&str, u8, &str, &[u8]); 7] = [
    ("latin1", 8, "sch\u{f6}n", b"sch\xf6n"),
    ("cp1251", 51, "\u{43c}\u{438}\u{440}", b"\xec\xe8\xf0"),
    ("sjis", 13, "\u{8868}", b"\x95\x5c"),
    ("cp932", 95, "\u{30bd}", b"\x83\x5c"),
    ("gbk", 28, "\u{8aa0}", b"\xd5\x5c"),
    ("big5", 1, "\u{529f}", b"\xa5\x5c"),
    ("utf8mb4", 255, "dr\u{fc}ben", b"dr\xc3\xbcben"),
];

/// Ways into a schema.
const WAYS: [&str; 4] = ["USE", "COM_INIT_DB", "COM_CHANGE_USER", "login"];

/// Makes a schema with a table, and another that its name is in UTF-8 taken for latin1.
fn makes_schemas(root: &mut Client, name: &str) {
    let misread: String = name.bytes().map(char::from).collect();
    // What servers call latin1 is another set there.
    let is_latin = !name.bytes().any(|byte| (0x80..0xa0).contains(&byte));
    for schema in [name, &misread].into_iter().take(1 + usize::from(is_latin)) {
        root.does(&format!("CREATE DATABASE `{schema}`"));
        root.does(&format!("CREATE TABLE `{schema}`.t (n INT)"));
    }
}

fn goes_into(weir: &Weir, way: &str, (set, collation, _, bytes): (&str, u8, &str, &[u8])) -> Client {
    if way == "login" {
        let login = Login { national: Some((collation, bytes)), ..Login::of("app", "") };
        return Client::log_in(weir.address("db"), &login).expect("app is let in");
    }
    let mut client = Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in");
    if way == "COM_CHANGE_USER" {
        let collation = [collation, 0];
        let change = [&b"\x11app\0\0"[..], bytes, b"\0", &collation, b"caching_sha2_password\0"].concat();
        client.sends(&change).expect("sent");
        client.receives_packet().expect("a proof is asked for");
        client.sends_bytes(b"\0\0\0\x02").expect("sent");
        let (_, answer) = client.receives_packet().expect("an answer");
        assert_eq!(answer[0], 0, "{:?}", error_of(&answer));
        return client;
    }
    client.does(&format!("SET NAMES {set}"));
    let command = if way == "USE" { [b"\x03USE `", bytes, b"`"].concat() } else { [b"\x02", bytes].concat() };
    client.sends(&command).expect("sent");
    let answer = client.receives(Asked::One).expect("an answer");
    assert!(answer.is_ok(), "{answer}");
    client
}

#[test]
fn a_schema_of_whatever_name_is_the_sessions_on_connections_that_others_had_and_on_new_ones() {
    let server = Mysqld::start("national", "");
    let mut root = server.root();
    NAMES.iter().for_each(|(.., name, _)| makes_schemas(&mut root, name));
    let config = ONE_CONNECTION.replace(", max_connections = 1", "");
    for way in WAYS {
        let weir = Setup::of(&config).with("server", server.address).start();
        for national in NAMES {
            let (set, _, name, _) = national;
            let what = format!("{way} in {set}");
            let mut own = goes_into(&weir, way, national);
            // Others have its connection, in another schema and set, and then keep it: it needs a new one.
            let mut others: Vec<Client> = ["latin1", "utf8mb4", "cp1251"]
                .map(|set| {
                    let mut other =
                        Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
                    other.does(&format!("SET NAMES {set}"));
                    other
                })
                .into();
            for n in 0..3 {
                for other in &mut others {
                    assert_eq!(other.does("SELECT DATABASE()").value(), "shop", "{what}");
                    own.does(&format!("INSERT INTO t VALUES ({n})"));
                }
            }
            others.iter_mut().for_each(|other| drop(other.does("BEGIN")));
            own.does("INSERT INTO t VALUES (9)");
            let asked =
                own.does("SELECT HEX(CONVERT(DATABASE() USING utf8mb4)), @@character_set_client").rows();
            let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
            assert_eq!(asked, [[hex, (*set).to_owned()]], "{what}");
            let rows = root.does(&format!("SELECT COUNT(*), SUM(n = 9) FROM `{name}`.t")).rows();
            assert_eq!(rows, [["10", "1"]], "{what}");
            root.does(&format!("DELETE FROM `{name}`.t"));
        }
    }
}

/// Values of a session's that decide how text is read and told, as bytes.
const SETS: &str = "SELECT CAST(@@character_set_client AS BINARY), CAST(@@collation_connection AS BINARY), \
     CAST(@@character_set_results AS BINARY), CAST(@@sql_mode AS BINARY), LAST_INSERT_ID()";
/// Sets of which a character has at least two bytes, so that ASCII is not ASCII there.
const WIDE: [&str; 4] = ["utf16", "utf16le", "ucs2", "utf32"];

#[test]
fn what_weir_asks_and_sets_is_right_whatever_sets_a_session_has() {
    let server = Mysqld::start("wide", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    server.root().does("CREATE TABLE shop.ids (id INT AUTO_INCREMENT PRIMARY KEY)");
    let log_in = |address| Client::log_in(address, &Login::of("app", "shop")).expect("app is let in");
    for set in WIDE {
        let does = |client: &mut Client, other: &mut dyn FnMut()| {
            let mut told = Vec::new();
            for sql in [
                format!("SET character_set_results = {set}"),
                "SET character_set_connection = latin1".to_owned(),
                format!("SET collation_connection = {set}_bin, sql_mode = 'ANSI_QUOTES'"),
                "INSERT INTO ids VALUES (NULL)".to_owned(),
            ] {
                client.does(&sql);
                other();
                told.push(client.does(SETS).rows());
                other();
            }
            server.root().does("TRUNCATE shop.ids");
            told
        };
        let alone = does(&mut log_in(server.address), &mut || ());
        let mut other = log_in(weir.address("db"));
        let mut asks = || {
            let asked =
                other.does("SELECT @@autocommit, @@character_set_results, @@sql_mode = @@GLOBAL.sql_mode");
            assert_eq!(asked.rows(), [["1", "utf8mb4", "1"]], "{set}");
        };
        assert_eq!(does(&mut log_in(weir.address("db")), &mut asks), alone, "{set}");
    }
}

#[test]
fn a_session_whose_text_is_utf16_reads_what_it_has_written() {
    let pair = Pair::start("utf16");
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    client.does("CREATE TABLE shop.wide (n INT)");
    client.does("SELECT COUNT(*) FROM shop.wide");
    client.does("SET character_set_connection = utf16");
    pair.replica.root().does("STOP REPLICA SQL_THREAD");
    for n in 0..3 {
        client.does("INSERT INTO shop.wide VALUES (1)");
        assert_eq!(client.does("SELECT COUNT(*) + 0 FROM shop.wide").value(), (n + 1).to_string());
    }
    pair.replica.root().does("START REPLICA SQL_THREAD");
}

/// In these sets every character has more than one byte. Servers cut their own errors at the first zero byte
/// there (9.7.4).
#[test]
fn an_error_of_weirs_own_is_in_the_character_set_of_the_results() {
    let pair = weir_tests::mysql::pair();
    let weir = before(&pair);
    let mut session = client(&weir, "auto");
    for (set, width, first) in [("utf16", 2, 1), ("utf16le", 2, 0), ("ucs2", 2, 1), ("utf32", 4, 3)] {
        session.does(&format!("SET character_set_results = {set}"));
        session.does("DO 1");
        let answer = session.asks("SELECT FOUND_ROWS()");
        let packet = &answer.packets.last().expect("an error").1;
        assert_eq!(u16::from_le_bytes([packet[1], packet[2]]), 1105, "{set}: {answer}");
        let letters = packet[9..].iter().skip(first).step_by(width);
        let text: String = letters.map(|byte| char::from(*byte)).collect();
        assert!(text.starts_with("FOUND_ROWS() is not known any more"), "{set}: {answer}");
        assert_eq!(packet[9..].len(), text.len() * width, "{set}");
    }
}
