//! What an account may have, how many may wait, and what clients are told of the server.

use std::process::Command;

use weir_tests::dialogue::{Setup, Weir, free_address, until};
use weir_tests::mysql::{
    Asked, BEFORE_PAIR, Client, Login, LoginFailed, Mysqld, Pair, pair, query, words_of,
};

use super::leftovers::ONE_CONNECTION;
use super::{client, said_by};

/// Weir before a pair, with this config.
fn with(pair: &Pair, config: &str) -> Weir {
    let setup = Setup::of(config).with("primary", pair.primary.address);
    setup.with("replica", pair.replica.address).start()
}

#[test]
fn an_account_gets_error_1203_beyond_its_sessions_and_others_are_let_in() {
    let pair = pair();
    let config = BEFORE_PAIR.replace("bind = \"@auto\"", "bind = \"@auto\"\nmax_connections_per_account = 2");
    let weir = with(&pair, &config);
    let log_in = |user: &str| Client::log_in(weir.address("auto"), &Login::of(user, "shop"));
    let (first, mut second) = (log_in("app").expect("let in"), log_in("app").expect("let in"));
    let refused = log_in("app");
    assert!(matches!(refused, Err(LoginFailed::Refused(1203, _))), "{refused:?}");
    weir.reaches("weir_rejected_total", &[("reason", "account_connections")], 1.0);
    log_in("root").expect("another account");
    first.quits();
    let mut third = until("its place is free", || log_in("app").ok());
    for client in [&mut second, &mut third] {
        client.does("SELECT 1");
    }
}

#[test]
fn beyond_park_max_nobody_waits_for_a_primary() {
    let pair = pair();
    let weir = with(&pair, &format!("{BEFORE_PAIR}park = \"60s\"\npark_max = 1\n"));
    let (mut first, mut second) = (client(&weir, "writes"), client(&weir, "writes"));
    for client in [&mut first, &mut second] {
        client.does("SELECT 1");
    }
    let primary = pair.primary.address.to_string();
    weir.command(&["drain", "pair", &primary]).succeeded();
    first.sends(&query("DO 1")).expect("sent");
    until("it waits", || (weir.metric("weir_mysql_parked_total", &[]) == 1.0).then_some(()));
    let refused = second.asks("DO 1");
    assert_eq!(refused.error().map(|(code, _)| code), Some(1836));
    assert_eq!(weir.metric("weir_mysql_park_refusals_total", &[("reason", "full")]), 1.0);
    weir.command(&["enable", "pair", &primary]).succeeded();
    assert!(first.receives(Asked::Results).expect("an answer").is_ok());
    assert!(second.asks("DO 1").is_ok());
}

#[test]
fn clients_are_greeted_with_the_version_that_the_listener_says() {
    let pair = pair();
    let listener = "bind = \"@auto\"\nserver_version = \"8.0.36\"";
    let weir = with(&pair, &BEFORE_PAIR.replace("bind = \"@auto\"", listener));
    let (said, is_well) = said_by("mysql", weir.address("auto"), &["--commands"], "status;");
    let line = said.lines().find(|line| line.starts_with("Server version:"));
    assert!(is_well && line.is_some_and(|line| line.contains("8.0.36")), "{said}");
    // Of the others the servers' own.
    let version = pair.primary.root().does("SELECT @@version").value();
    let (said, _) = said_by("mysql", weir.address("writes"), &["--commands"], "status;");
    assert!(said.contains(&version) && !said.contains("8.0.36"), "{said}");
}

#[test]
fn logins_in_full_wait_beyond_their_number_a_second() {
    let pair = pair();
    for limit in ["full_logins", "full_logins_per_client", "full_logins_per_account"] {
        let weir = with(&pair, &format!("{BEFORE_PAIR}{limit} = 1\n"));
        // An account without a password shows an empty one.
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|_| scope.spawn(|| client(&weir, "auto"))).collect();
            clients.into_iter().for_each(|client| drop(client.join().expect("let in")));
        });
        assert!(weir.metric("weir_mysql_logins_waited_total", &[]) >= 1.0, "{limit}: nobody waited");
    }
}

#[test]
fn commands_longer_than_any_of_their_kind_end_their_session_alone() {
    let pair = pair();
    let weir = with(&pair, BEFORE_PAIR);
    let mut stays = client(&weir, "auto");
    let long = vec![0; 1_500_000];
    // PING, RESET_CONNECTION, STMT_CLOSE, STMT_RESET, STMT_FETCH, STATISTICS, PROCESS_KILL, CHANGE_USER,
    // INIT_DB, and one that there is not.
    for command in [0x0e, 0x1f, 0x19, 0x1a, 0x1c, 0x09, 0x0c, 0x11, 0x02, 0x7f] {
        let mut client = client(&weir, "auto");
        client.sends(&[&[command], &long[..]].concat()).ok();
        while let Ok((_, answer)) = client.receives_packet() {
            assert_eq!(answer.first(), Some(&0xff), "{command:#x} is refused");
        }
        assert_eq!(stays.does("SELECT 'on'").value(), "on");
    }
    assert_eq!(weir.metric("weir_panics_total", &[]), 0.0);
}

#[test]
fn at_max_connections_a_kill_and_a_client_that_leaves_still_end_what_runs() {
    let server = Mysqld::start("full", "");
    let weir = Setup::of(ONE_CONNECTION).with("server", server.address).start();
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let (mut killer, mut sleeper) = (log_in(), log_in());
    let sleeps = |server: &Mysqld| {
        let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
        server.root().does(sql).value()
    };
    sleeper.sends(&query("SELECT SLEEP(600)")).expect("sent");
    until("it sleeps", || (sleeps(&server) == "1").then_some(()));
    killer.does(&format!("KILL QUERY {}", sleeper.connection_id));
    assert_eq!(sleeper.receives(Asked::Results).expect("an answer").value(), "1", "it was woken");
    sleeper.does("BEGIN");
    sleeper.sends(&query("SELECT SLEEP(600)")).expect("sent");
    until("it sleeps again", || (sleeps(&server) == "1").then_some(()));
    drop(sleeper);
    until("its statement to end", || (sleeps(&server) == "0").then_some(()));
    // What was opened for it is closed.
    killer.does("DO 1");
    let of_app = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'app'";
    until("one connection to be left", || (server.root().does(of_app).value() == "1").then_some(()));
}

#[test]
fn a_client_that_leaves_in_line_for_its_login_gives_its_place_up() {
    let server = Mysqld::start("gone-in-line", "");
    let config = ONE_CONNECTION
        .replace("[pool.one.mysql]", "queue = { max = 1, timeout = \"60s\" }\n[pool.one.mysql]");
    let weir = Setup::of(&config).with("server", server.address).start();
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop"));
    let mut holder = log_in().expect("let in");
    holder.does("BEGIN");
    let depth = || weir.metric("weir_queue_depth", &[]);
    let words = words_of("mysql");
    let (host, port) = (weir.address("db").ip(), weir.address("db").port());
    let mut program = Command::new(&words[0]);
    let program = program.args(&words[1..]).args(["--no-defaults", "--user=app", "--execute=SELECT 1"]);
    let mut gone =
        program.arg(format!("--host={host}")).arg(format!("--port={port}")).spawn().expect("it starts");
    until("it to stand in line", || (depth() == 1.0).then_some(()));
    gone.kill().and_then(|()| gone.wait()).expect("killed");
    until("its place to be given up", || (depth() == 0.0).then_some(()));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| log_in().map(|mut client| client.does("SELECT 'in'").value()));
        until("the next to stand in line", || (depth() == 1.0).then_some(()));
        holder.does("COMMIT");
        assert_eq!(waiting.join().expect("no panic").expect("let in"), "in");
    });
}

/// What a server says of itself is no word on the account.
#[test]
fn logins_and_reads_go_on_where_one_server_is_full() {
    let pair = Pair::start("one-full");
    let weir = with(&pair, BEFORE_PAIR);
    let mut stays = client(&weir, "auto");
    let mut root = pair.replica.root();
    root.does("SET GLOBAL max_connections = 1");
    for _ in 0..5 {
        let mut next = client(&weir, "auto");
        assert_eq!(next.does("SELECT 'read'").value(), "read");
        next.does("BEGIN");
        stays.does("DO 1");
    }
    root.does("SET GLOBAL max_connections = 100");
}

/// Nobody knows whether a write is ended before it is done.
#[test]
fn a_write_that_takes_too_long_is_not_said_to_be_ended() {
    let pair = pair();
    let config =
        BEFORE_PAIR.replace("bind = \"@writes\"", "bind = \"@writes\"\ntimeout = { statement = \"1s\" }");
    let weir = with(&pair, &config);
    let mut holder = client(&weir, "auto");
    holder.does("CREATE TABLE held (id INT PRIMARY KEY, n INT)");
    holder.does("INSERT INTO held VALUES (1, 0)");
    holder.does("BEGIN");
    holder.does("UPDATE held SET n = 1");
    let mut late = client(&weir, "writes");
    late.sends(&query("UPDATE held SET n = 2")).expect("sent");
    assert!(late.receives(Asked::Results).is_err(), "its session ends without a word");
    let mut reads = client(&weir, "writes");
    let answer = reads.asks("SELECT SLEEP(30) FROM DUAL WHERE 1");
    assert_eq!(answer.error().map(|(code, _)| code), Some(3024), "{answer}");
    holder.does("COMMIT");
    holder.does("DROP TABLE held");
}

#[test]
fn numbers_of_connections_begin_somewhere_else_in_each_process() {
    let pair = pair();
    let ids = [0, 1].map(|_| client(&with(&pair, BEFORE_PAIR), "auto").connection_id);
    assert!(ids[0].abs_diff(ids[1]) > 100, "{ids:?}");
}

/// Of clients that log in to a server, too.
#[test]
fn relayed_logins_go_to_another_server_where_one_is_gone() {
    let pair = Pair::start("relay-gone");
    let config = format!("{BEFORE_PAIR}passwords = \"relay\"\n");
    let weir = with(&pair, &config);
    let reads = || Client::log_in(weir.address("reads"), &Login::of("app", "shop")).expect("let in");
    assert_eq!(reads().does("SELECT 1").value(), "1");
    pair.replica.dies();
    for _ in 0..6 {
        assert_eq!(reads().does("SELECT 1").value(), "1");
    }
}

/// Each try was the first of a new call, and the retries of the whole pool went into one login.
#[test]
fn a_login_that_no_server_takes_is_tried_as_often_as_the_pool_says() {
    for access in ["read-write", "auto"] {
        let config = format!(
            r#"
            [listener.db]
            protocol = "mysql"
            bind = "@db"
            access = "{access}"
            pool = "dead"
            [pool.dead]
            backends = ["@dead"]
            health = {{ check = "off", passive = "off" }}
            retry = {{ attempts = 2 }}
            [pool.dead.mysql]
            topology = "static"
            "#
        );
        let weir = Setup::of(&config).with("dead", free_address()).start();
        let refused = Client::log_in(weir.address("db"), &Login::of("app", "shop"));
        assert!(matches!(refused, Err(LoginFailed::Refused(1105, _))), "{refused:?}");
        assert_eq!(weir.metric("weir_retries_total", &[("pool", "dead")]), 2.0, "{access}");
    }
}

/// Nobody knows whether a write was carried out whose answer there is no buffer for.
#[test]
fn without_memory_for_its_answer_a_read_is_told_so_and_a_write_is_not_said_to_have_failed() {
    let server = Mysqld::start("no-memory", "");
    let config = format!(
        "{}[listener.web]\nbind = \"@web\"\ntimeout = {{ header = \"10m\" }}\n",
        ONE_CONNECTION
            .replace("workers = 1", "workers = 1\nmemory = \"16MiB\"\nmemory_share_per_client = 1.0")
            .replace("max_connections = 1", "max_connections = 4")
    );
    let weir = Setup::of(&config).with("server", server.address).start();
    let mut root = server.root();
    root.does("CREATE TABLE shop.awaited (id INT)");
    // Each half of a head has a buffer.
    let half = format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}", "y".repeat(12_000));
    let refused = |weir: &Weir| weir.metric("weir_rejected_total", &[("reason", "memory")]);
    let mut halves = Vec::new();
    let mut answer_without_memory = |sql: &str| {
        let mut client = Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
        root.does("LOCK TABLES shop.awaited WRITE");
        client.sends(&query(sql)).expect("sent");
        until("it waits at the server", || {
            let waiting = "SELECT COUNT(*) FROM information_schema.processlist \
                           WHERE user = 'app' AND state LIKE 'Waiting for table%'";
            (root.does(waiting).value() == "1").then_some(())
        });
        let before = refused(&weir);
        while refused(&weir) == before {
            assert!(halves.len() < 2000, "{} halves wait, and nobody is refused", halves.len());
            let mut half_asked = weir.client("web");
            let _ = half_asked.tries_to_send(&half);
            halves.push(half_asked);
        }
        root.does("UNLOCK TABLES");
        let answer = client.receives(Asked::Results);
        halves.clear();
        until("there is memory again", || {
            Client::log_in(weir.address("db"), &Login::of("app", "shop")).is_ok().then_some(())
        });
        answer
    };
    let read = answer_without_memory("SELECT COUNT(*) FROM awaited").expect("an answer");
    assert_eq!(read.error().map(|(code, _)| code), Some(1037), "{read}");
    let written = answer_without_memory("INSERT INTO awaited VALUES (1)");
    assert!(written.is_err(), "{written:?}");
    assert_eq!(root.does("SELECT COUNT(*) FROM shop.awaited").value(), "1");
}
