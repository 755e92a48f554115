//! What becomes of prepared statements when their server goes, and of reads when a replica is late. Rows F7
//! and F10 of the threat model.

use std::time::Duration;

use weir_tests::dialogue::{Setup, until_within};
use weir_tests::mysql::{Asked, BEFORE_PAIR, Client, Login, Mysqld, Pair, Value, execution};

/// The text that the answer's only row has, in the binary protocol.
fn execute(client: &mut Client, statement: u32, value: &str) -> Result<String, Option<u16>> {
    let values = [Value::Text(value.to_owned())];
    client.sends(&execution(statement, false, &values, true)).map_err(|_| None)?;
    let answer = client.receives(Asked::Results).map_err(|_| None)?;
    if let Some((code, _)) = answer.error() {
        return Err(Some(code));
    }
    // Header, a bitmap of NULLs, and the text behind its length.
    let row = answer.packets.iter().find(|(_, payload)| payload.first() == Some(&0)).expect("a row");
    Ok(String::from_utf8_lossy(&row.1[3..]).into_owned())
}

#[test]
fn a_prepared_statement_outlives_its_server_and_is_never_taken_for_another() {
    let server = Mysqld::start("prepared", "");
    let config = r#"
[listener.db]
protocol = "mysql"
bind = "@db"
pool = "one"
[pool.one]
backends = ["@server"]
[pool.one.mysql]
topology = "static"
"#;
    let weir = Setup::of(config).with("server", server.address).start();
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in");
    let mut clients: Vec<(Client, u32, String)> = (0..6)
        .map(|n| {
            let mut client = log_in();
            let statement = client.prepares(&format!("SELECT CONCAT('{n}:', ?)"));
            (client, statement, n.to_string())
        })
        .collect();
    for (client, statement, name) in &mut clients {
        assert_eq!(execute(client, *statement, "a"), Ok(format!("{name}:a")));
    }
    let mut in_transaction = log_in();
    let within = in_transaction.prepares("SELECT CONCAT('within:', ?)");
    in_transaction.does("BEGIN");
    assert_eq!(execute(&mut in_transaction, within, "a"), Ok("within:a".to_owned()));
    server.dies();
    server.starts_again();
    // In another order, so that the server's numbers are others than before.
    for (client, statement, name) in clients.iter_mut().rev() {
        let answer =
            until_within(Duration::from_secs(30), "the server is up again for Weir", || {
                match execute(client, *statement, "b") {
                    Err(Some(1105)) => None,
                    answer => Some(answer),
                }
            });
        assert_eq!(answer, Ok(format!("{name}:b")));
    }
    // A transaction was lost with its server: it is told, and never begun anew in secret.
    let told = execute(&mut in_transaction, within, "b");
    assert!(matches!(told, Err(None | Some(1213))), "{told:?}");
    // Numbers are a session's own, and gone when they are closed.
    let (client, statement, _) = &mut clients[0];
    client.sends(&[b"\x19", &statement.to_le_bytes()[..]].concat()).expect("sent");
    assert_eq!(execute(client, *statement, "c"), Err(Some(1243)));
    let (client, ..) = &mut clients[1];
    assert_eq!(execute(client, 4242, "c"), Err(Some(1243)));
}

#[test]
fn who_has_written_reads_at_the_primary_while_the_replica_is_late_and_others_do_not() {
    let pair = Pair::start("late");
    let weir = Setup::of(BEFORE_PAIR)
        .with("primary", pair.primary.address)
        .with("replica", pair.replica.address)
        .start();
    let log_in = || Client::log_in(weir.address("auto"), &Login::of("app", "shop")).expect("app is let in");
    let ports = [pair.primary.address.port().to_string(), pair.replica.address.port().to_string()];
    let (mut writes, mut reads) = (log_in(), log_in());
    writes.does("CREATE TABLE late (n INT PRIMARY KEY)");
    pair.replica.has_all_of(&pair.primary);
    let mut replica = pair.replica.root();
    replica.does("STOP REPLICA SQL_THREAD");
    let count = "SELECT COUNT(*), @@port FROM late";
    for n in 1..=3 {
        writes.does(&format!("INSERT INTO late VALUES ({n})"));
        assert_eq!(writes.does(count).rows()[0], [n.to_string(), ports[0].clone()]);
        assert_eq!(reads.does(count).rows()[0], ["0".to_owned(), ports[1].clone()], "it has written nothing");
    }
    weir.reaches("weir_mysql_catch_ups_total", &[("listener", "auto"), ("result", "behind")], 3.0);
    replica.does("START REPLICA SQL_THREAD");
    pair.replica.has_all_of(&pair.primary);
    assert_eq!(writes.does(count).rows()[0], ["3".to_owned(), ports[1].clone()]);
}
