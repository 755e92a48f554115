//! Clients that compress, behind Weir, which speaks without to its servers.

use std::io::Write as _;
use std::net::SocketAddr;

use mysql::prelude::Queryable as _;
use mysql::{Compression, Conn, LocalInfileHandler, OptsBuilder};
use weir_tests::dialogue::{Setup, Weir};
use weir_tests::mysql::{COMPRESS, Client, DEPRECATE_EOF, Login, Pair, error_of, pair};

use super::said_by;

/// Bytes on the wire are counted by a listener before the one that is meant.
const BEFORE: &str = r#"
[listener.auto]
protocol = "mysql"
bind = "@auto"
access = "auto"
pool = "pair"
[listener.relay]
protocol = "mysql"
bind = "@relay"
pool = "relay"
[listener.zstd]
protocol = "mysql"
bind = "@zstd"
compression = ["zstd"]
pool = "pair"
[listener.wire]
protocol = "tcp"
bind = "@wire"
pool = "auto"
[pool.auto]
backends = ["@auto"]
[pool.pair]
backends = ["@primary", "@replica"]
[pool.pair.mysql]
topology = "static"
[pool.relay]
backends = ["@primary"]
[pool.relay.mysql]
topology = "static"
passwords = "relay"
"#;

fn before(pair: &Pair) -> Weir {
    Setup::of(BEFORE).with("primary", pair.primary.address).with("replica", pair.replica.address).start()
}

/// What `mysql` prints of statements: all of it, and whether it ended well.
fn mysql(weir: &Weir, listener: &str, options: &[&str], sql: &str) -> (String, bool) {
    let own = ["--local-infile=1", "--max-allowed-packet=64M", "--ssl-mode=DISABLED"];
    said_by("mysql", weir.address(listener), &[&own, options].concat(), sql)
}

/// Bytes from clients and to them.
fn wire_bytes(weir: &Weir) -> [f64; 2] {
    let bytes =
        |direction| weir.metric("weir_bytes_total", &[("listener", "wire"), ("direction", direction)]);
    [bytes("received"), bytes("sent")]
}

#[test]
fn a_client_that_compresses_is_answered_as_one_that_does_not_and_less_goes_over_the_wire() {
    let pair = pair();
    let weir = before(&pair);
    let file = std::env::temp_dir().join(format!("weir-load-{}.txt", std::process::id()));
    let lines: String =
        (0..20_000).map(|n| format!("{n}\trow {} of a file that is sent\n", n * 7919)).collect();
    std::fs::write(&file, &lines).expect("a file");
    // A packet of more than 16 MiB each way, and a file of many packets behind another result. The table is
    // temporary, so that the replica, which others use, has nothing to do.
    let sql = format!(
        "CREATE TEMPORARY TABLE packed (n INT, text VARCHAR(100));
         SELECT 'first'; LOAD DATA LOCAL INFILE '{}' INTO TABLE packed; SHOW WARNINGS;
         SELECT COUNT(*), SUM(n), SUM(CRC32(text)) FROM packed; SELECT * FROM packed ORDER BY n;
         SELECT LENGTH('{}'), REPEAT('0123456789', 1800000); SELECT 'last';",
        file.display(),
        "abcdefg ".repeat((17 << 20) / 8),
    );
    let (expected, good) = mysql(&weir, "wire", &[], &sql);
    assert!(good && expected.ends_with("last\n"), "{}", &expected[expected.len().saturating_sub(500)..]);
    let plain = wire_bytes(&weir);
    let mut last = plain;
    for algorithm in ["zlib", "zstd", "zlib,zstd"] {
        let option = format!("--compression-algorithms={algorithm}");
        let (said, good) = mysql(&weir, "wire", &[&option], &sql);
        assert!(good && said == expected, "{algorithm}: {}", &said[said.len().saturating_sub(500)..]);
        let now = wire_bytes(&weir);
        for (direction, whole) in plain.iter().enumerate() {
            let bytes = now[direction] - last[direction];
            assert!(bytes > 1000.0 && bytes < whole / 5.0, "{algorithm}: {bytes} of {whole}, {direction}");
        }
        last = now;
    }
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn compression_stays_over_a_change_of_user_and_a_reset() {
    let pair = pair();
    let weir = before(&pair);
    for algorithm in ["zlib", "zstd"] {
        let option = format!("--compression-algorithms={algorithm}");
        let sql =
            "SELECT REPEAT('a', 100);\nresetconnection\nSELECT REPEAT('b', 100);\n\\r shop\nSELECT 'c';";
        let (said, good) = mysql(&weir, "auto", &[&option, "--commands"], sql);
        let last = [said.contains(&"a".repeat(100)), said.contains(&"b".repeat(100)), said.contains("\nc\n")];
        assert!(good && last == [true; 3], "{algorithm}: {said}");
    }
    // COM_CHANGE_USER, which `mysql` has no word for.
    let mut client = packed_client(&weir);
    let mut change = b"\x11app\0\0shop\0\xff\0caching_sha2_password\0".to_vec();
    let length = change.len() as u8;
    change.splice(0..0, [length, 0, 0, 0]);
    sends(&mut client, 0, &change, 0);
    let asked = receives(&mut client);
    assert_eq!((asked[3], asked[4]), (1, 0xfe), "Weir asks for a proof: {asked:?}");
    sends(&mut client, 2, b"\0\0\0\x02", 0);
    let answer = receives(&mut client);
    assert_eq!((answer[3], answer[4]), (3, 0), "{answer:?}");
    sends(&mut client, 0, b"\x01\0\0\0\x0e", 0);
    assert_eq!(receives(&mut client)[3..5], [1, 0]);
}

#[test]
fn who_relays_a_login_leaves_compression_to_the_server() {
    let pair = pair();
    let weir = before(&pair);
    let sql = "SHOW SESSION STATUS LIKE 'Compression_algorithm'; SELECT REPEAT('a', 5000000);";
    for algorithm in ["zlib", "zstd"] {
        let option = format!("--compression-algorithms={algorithm}");
        let (said, good) = mysql(&weir, "relay", &[&option], sql);
        let begins = said.starts_with(&format!("Compression_algorithm\t{algorithm}\n"));
        assert!(good && begins && said.len() > 5_000_000, "{algorithm}: {}", &said[..said.len().min(300)]);
    }
}

#[test]
fn a_listener_lets_in_who_compresses_as_it_says() {
    let pair = pair();
    let weir = before(&pair);
    let (said, good) = mysql(&weir, "zstd", &["--compression-algorithms=zlib,zstd"], "SELECT 'let in';");
    assert!(good && said.contains("let in"), "{said}");
    let (said, good) = mysql(&weir, "zstd", &[], "SELECT 1;");
    assert!(!good && said.contains("3922"), "{said}");
}

/// A client that has agreed on zlib, and is left to speak for itself.
fn packed_client(weir: &Weir) -> Client {
    packed_client_of(weir.address("auto"))
}

fn packed_client_of(address: SocketAddr) -> Client {
    let login = Login { capabilities: COMPRESS | DEPRECATE_EOF, ..Login::of("app", "shop") };
    Client::log_in(address, &login).expect("app is let in")
}

fn sends(client: &mut Client, sequence: u8, payload: &[u8], content_bytes: u32) {
    let mut packet = (payload.len() as u32).to_le_bytes().to_vec();
    packet[3] = sequence;
    packet.extend(&content_bytes.to_le_bytes()[..3]);
    packet.extend(payload);
    client.sends_bytes(&packet).expect("sent");
}

/// The payload of a compressed packet that is sent as it is.
fn receives(client: &mut Client) -> Vec<u8> {
    let mut head = [0; 7];
    client.receives_bytes(&mut head).expect("an answer");
    assert_eq!(head[4..], [0; 3], "it is short");
    let mut payload = vec![0; usize::from(head[0]) | usize::from(head[1]) << 8];
    client.receives_bytes(&mut payload).expect("its payload");
    payload
}

#[test]
fn several_results_are_the_same_compressed_packets_as_from_the_server_itself() {
    let pair = pair();
    let weir = before(&pair);
    let texts = ["SELECT 1; SELECT 2; DO 1; SELECT 3", "SELECT 1; SELECT 2; DO 1; SELECT no"];
    for sql in texts {
        let [direct, through] = [pair.primary.address, weir.address("auto")].map(|address| {
            let mut client = packed_client_of(address);
            let mut command = vec![sql.len() as u8 + 1, 0, 0, 0, 3];
            command.extend(sql.as_bytes());
            sends(&mut client, 0, &command, 0);
            [(); 4].map(|()| receives(&mut client))
        });
        assert_eq!(through, direct, "{sql}");
        assert_eq!(direct.map(|payload| payload[3]), [1, 2, 3, 4], "{sql}");
    }
}

/// `mysql_common`, which this client speaks by, holds ids within against those of compressed packets.
#[test]
fn a_client_that_looks_at_both_ids_takes_several_results_long_ones_errors_and_files() {
    let pair = pair();
    let weir = before(&pair);
    let address = weir.address("auto");
    let options = OptsBuilder::new()
        .ip_or_hostname(Some(address.ip().to_string()))
        .tcp_port(address.port())
        .user(Some("app"))
        .db_name(Some("shop"))
        .prefer_socket(false)
        .compress(Some(Compression::default()))
        .local_infile_handler(Some(LocalInfileHandler::new(|_, file| file.write_all(b"1\n2\n3\n"))));
    let mut client = Conn::new(options).expect("app is let in");
    // Rows of each result, up to an error.
    let mut rows_of = |sql: &str| {
        let mut results = client.query_iter(sql).expect("an answer");
        let mut counts = Vec::new();
        while let Some(result) = results.iter() {
            let rows: Vec<_> = result.collect();
            let error = rows.iter().any(Result::is_err);
            counts.push((rows.len() - usize::from(error), error));
        }
        counts
    };
    let long = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 999) \
                SELECT i, REPEAT('abc', 100) FROM n";
    let row = "SELECT REPEAT('0123456789', 30000)";
    let wrong = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900) \
                 SELECT IF(i < 900, i, (SELECT 1 UNION SELECT 2)) FROM n";
    for _ in 0..3 {
        assert_eq!(rows_of("SELECT 1; SELECT 2; DO 1; SELECT 3").len(), 4);
        assert_eq!(rows_of(&format!("{long}; SELECT 2; {long}; {row}; SELECT 5; {row}")), {
            [(999, false), (1, false), (999, false), (1, false), (1, false), (1, false)]
        });
        assert_eq!(rows_of(&format!("SELECT 1; {wrong}; SELECT 3")), [(1, false), (899, true)]);
        let slow = "SELECT 1; SELECT SLEEP(0.05); SELECT 3; SELECT SLEEP(0.05); SELECT 5";
        assert_eq!(rows_of(slow), [(1, false); 5], "each comes by itself");
        let load = "CREATE TEMPORARY TABLE loaded (n INT); SELECT 2; LOAD DATA LOCAL INFILE 'f' INTO TABLE loaded; \
                    SELECT n FROM loaded; DROP TEMPORARY TABLE loaded; SELECT 6";
        assert_eq!(rows_of(load), [(0, false), (1, false), (0, false), (3, false), (0, false), (1, false)]);
    }
}

#[test]
fn commands_behind_each_other_are_answered_in_order_each_under_its_own_numbers() {
    let pair = pair();
    let weir = before(&pair);
    let mut client = packed_client(&weir);
    for _ in 0..3 {
        sends(&mut client, 0, b"\x01\0\0\0\x0e", 0);
    }
    for _ in 0..3 {
        let mut head = [0; 7];
        client.receives_bytes(&mut head).expect("an answer");
        assert_eq!(head[3], 1, "{head:?}");
        let mut payload = vec![0; usize::from(head[0])];
        client.receives_bytes(&mut payload).expect("its payload");
        assert_eq!(payload[3..5], [1, 0], "{payload:?}");
    }
}

/// Row F6.
#[test]
fn what_does_not_inflate_to_what_it_says_or_comes_out_of_order_ends_with_an_error_and_is_counted() {
    let pair = pair();
    let weir = before(&pair);
    let bomb = [0x78, 0x9c, 0xed, 0xc1, 0x01, 0x01, 0, 0, 0, 0x80, 0x90, 0xfe, 0xaf, 0xee];
    let cases: [(u8, &[u8], u32, u16); 4] = [
        (0, &bomb, 0xff_ffff, 1157),
        (0, b"no zlib at all", 100, 1157),
        (0, &bomb, 60, 1157),
        (1, b"\x01\0\0\0\x0e", 0, 1156),
    ];
    for (refused, (sequence, payload, content_bytes, code)) in cases.into_iter().enumerate() {
        let mut client = packed_client(&weir);
        sends(&mut client, sequence, payload, content_bytes);
        let before = weir.usage().resident_bytes;
        let answer = receives(&mut client);
        assert_eq!(error_of(&answer[4..]).map(|(code, _)| code), Some(code), "{answer:?}");
        assert!(client.receives_bytes(&mut [0]).is_err(), "it ends");
        assert!(weir.usage().resident_bytes < before + (8 << 20));
        let labels = [("listener", "auto"), ("reason", "bad_request")];
        weir.reaches("weir_rejected_total", &labels, (refused + 1) as f64);
    }
}
