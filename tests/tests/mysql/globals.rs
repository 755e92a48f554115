//! What servers give new sessions (`SET GLOBAL`, `init_connect`) while connections of another day are shared.

use weir_tests::dialogue::{Setup, Weir};
use weir_tests::mysql::{Client, Login, Mysqld, Pair};

use super::{before, client};

/// Values that decide what statements mean, and what becomes of them.
const ASKED: &str = "SELECT @@time_zone, @@transaction_isolation, @@transaction_read_only, @@group_concat_max_len, \
     @@foreign_key_checks, @@max_execution_time";
/// Runs at the primary.
const AT_PRIMARY: &str = "/* weir: primary */ ";

/// What a session is told of its values at either server.
fn values(client: &mut Client) -> [Vec<String>; 2] {
    [ASKED.to_owned(), format!("{AT_PRIMARY}{ASKED}")].map(|sql| client.does(&sql).rows().remove(0))
}

fn sets_globals(pair: &Pair, sql: &str) {
    for server in [&pair.primary, &pair.replica] {
        server.root().does(sql);
    }
}

#[test]
fn a_session_keeps_what_it_began_with_and_new_ones_begin_with_what_is_set_now() {
    let pair = Pair::start("globals");
    let weir = before(&pair);
    let log_in = || client(&weir, "auto");
    let mut old: Vec<Client> = (0..3).map(|_| log_in()).collect();
    let at_first: Vec<_> = old.iter_mut().map(values).collect();
    assert!(at_first.iter().flatten().all(|values| *values == at_first[0][0]), "{at_first:?}");
    sets_globals(
        &pair,
        "SET GLOBAL time_zone = '+07:00', GLOBAL transaction_isolation = 'READ-COMMITTED', \
         GLOBAL transaction_read_only = ON, GLOBAL group_concat_max_len = 50, GLOBAL foreign_key_checks = OFF, \
         GLOBAL max_execution_time = 9000",
    );
    let new_values = ["+07:00", "READ-COMMITTED", "1", "50", "0", "9000"].map(str::to_owned);
    for _ in 0..4 {
        let mut new = log_in();
        assert!(values(&mut new).iter().all(|values| *values == new_values));
        let refused = new.asks("CREATE TABLE shop.window (n INT)").error().map(|(code, _)| code);
        assert_eq!(refused, Some(1792), "it is read-only by default");
        for session in &mut old {
            assert_eq!(&values(session), &at_first[0]);
        }
    }
    sets_globals(
        &pair,
        "SET GLOBAL time_zone = DEFAULT, GLOBAL transaction_isolation = DEFAULT, \
         GLOBAL transaction_read_only = OFF, GLOBAL group_concat_max_len = DEFAULT, GLOBAL foreign_key_checks = ON, \
         GLOBAL max_execution_time = 0",
    );
    old[0].does("CREATE TABLE shop.window (n INT)");
    for n in 0..12 {
        let mut new = log_in();
        assert_eq!(&values(&mut new), &at_first[0]);
        new.does(&format!("INSERT INTO shop.window VALUES ({n})"));
    }
}

/// A server runs it at a new connection alone: not when the user of one changes, nor at a reset.
#[test]
fn each_login_gets_what_servers_run_for_new_sessions() {
    let server = Mysqld::start("initconnect", "");
    server.root().does(
        "SET GLOBAL init_connect = 'SET time_zone = \"+02:00\", sql_mode = \"PIPES_AS_CONCAT\", @began = 1'",
    );
    let config = "[listener.db]\nprotocol = \"mysql\"\nbind = \"@db\"\npool = \"one\"\n[runtime]\nworkers = 1\n\
         [pool.one]\nbackends = [\"@server\"]\n[pool.one.mysql]\ntopology = \"static\"\n";
    let weir: Weir = Setup::of(config).with("server", server.address).start();
    let asked = "SELECT @@time_zone, 'a' || 'b', @began";
    for _ in 0..4 {
        let mut client =
            Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in");
        assert_eq!(client.does(asked).rows(), [["+02:00", "ab", "1"]]);
        // Something that no tracker tells of, for which the connection is reset.
        client.does("SET @mine = 1");
        assert_eq!(client.does(asked).rows(), [["+02:00", "ab", "1"]]);
        client.quits();
    }
    // What only a new connection gets, no tracker tells of. A session that was reset has lost it, others not.
    server.root().does("SET GLOBAL init_connect = 'SET max_join_size = 12345'");
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in");
    let (mut reset, mut other) = (log_in(), log_in());
    for _ in 0..4 {
        assert_eq!(other.does("SELECT @@max_join_size").value(), "12345");
        reset.resets();
        reset.does("SELECT 1");
    }
    server.root().does("SET GLOBAL init_connect = ''");
    let mut last = Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("app is let in");
    assert_eq!(last.does("SELECT @@time_zone").rows(), [["SYSTEM"]]);
}

#[test]
fn a_write_in_a_transaction_that_takes_none_is_refused_as_such_at_a_replica() {
    let pair = weir_tests::mysql::pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    client.does("START TRANSACTION READ ONLY");
    client.does("SELECT 1");
    let refused = client.asks("INSERT INTO shop.t VALUES (1)").error().map(|(code, _)| code);
    assert_eq!(refused, Some(1792));
    client.does("COMMIT");
}

/// Connection pools ask before they hand out a connection, and close those that answer as a replica.
#[test]
fn whether_a_server_takes_writes_is_asked_of_the_primary() {
    let pair = weir_tests::mysql::pair();
    let weir = before(&pair);
    let mut client = client(&weir, "auto");
    for asks in
        ["SELECT @@read_only", "SELECT @@GLOBAL.super_read_only", "SELECT @@innodb_read_only + @@read_only"]
    {
        assert_eq!(client.does(asks).value(), "0", "{asks}");
    }
    for asks in ["SHOW GLOBAL VARIABLES LIKE 'read_only'", "SHOW VARIABLES LIKE 'super\\_read\\_only'"] {
        assert_eq!(client.does(asks).rows()[0][1], "OFF", "{asks}");
    }
    let mut reads = super::client(&weir, "reads");
    assert_eq!(reads.does("SELECT @@super_read_only").value(), "1", "there it is asked of the replica");
}
