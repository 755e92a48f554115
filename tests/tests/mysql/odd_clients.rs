//! Clients that do what hardly any client does, on connections to servers that others share with them.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use weir_tests::dialogue::{Setup, Weir, until};
use weir_tests::mysql::{Asked, Client, Login, Mysqld, pair, query};

use super::leftovers::ONE_CONNECTION;
use super::{before, client};

/// A network before a server, in which the end of a connection arrives late: with the first bytes for the
/// server after a test has waited for the end.
struct LateEnds {
    address: SocketAddr,
    ends: Arc<Ends>,
}

#[derive(Default)]
struct Ends {
    /// Whether the server has ended a connection.
    is_one: AtomicBool,
    /// Whether a test has waited for that.
    may_arrive: AtomicBool,
}

impl LateEnds {
    fn before(server: SocketAddr) -> LateEnds {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let ends = Arc::new(Ends::default());
        let all = ends.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(server) else { continue };
                relay(near, far, &all);
            }
        });
        LateEnds { address, ends }
    }

    fn waits_for_an_end(&self) {
        until("the server ends a connection", || self.ends.is_one.load(Ordering::SeqCst).then_some(()));
        self.ends.may_arrive.store(true, Ordering::SeqCst);
    }
}

fn relay(near: TcpStream, far: TcpStream, ends: &Arc<Ends>) {
    let is_ended = Arc::new(AtomicBool::new(false));
    let (mut to_near, mut from_far) = (near.try_clone().expect("a copy"), far.try_clone().expect("a copy"));
    let (all, own) = (ends.clone(), is_ended.clone());
    thread::spawn(move || {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from_far.read(&mut bytes) {
            if to_near.write_all(&bytes[..count]).is_err() {
                return;
            }
        }
        own.store(true, Ordering::SeqCst);
        all.is_one.store(true, Ordering::SeqCst);
    });
    let all = ends.clone();
    thread::spawn(move || {
        let (mut from_near, mut to_far) = (near, far);
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from_near.read(&mut bytes) {
            if is_ended.load(Ordering::SeqCst) && all.may_arrive.load(Ordering::SeqCst) {
                break;
            }
            // The server may have ended it meanwhile, of which nobody hears yet.
            let _ = to_far.write_all(&bytes[..count]);
        }
        for stream in [from_near, to_far] {
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
}

#[test]
fn a_connection_that_its_server_ends_behind_an_error_is_given_to_nobody_else() {
    let server = Mysqld::start("ends-behind-errors", "max_allowed_packet = 64K");
    server.root().does("CREATE TABLE shop.kept (id INT PRIMARY KEY)");
    let late = LateEnds::before(server.address);
    let weir = Setup::of(ONE_CONNECTION).with("server", late.address).start();
    let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
    let (mut odd, mut other) = (log_in(), log_in());
    // `ER_NET_PACKET_TOO_LARGE`, behind which a server closes.
    odd.sends(format!("\x16SELECT LENGTH('{}')", "x".repeat(200_000)).as_bytes()).expect("sent");
    let refused = odd.receives(Asked::Statement).expect("an answer");
    assert_eq!(refused.error().map(|(code, _)| code), Some(1153), "{refused}");
    late.waits_for_an_end();
    let kept = other.tries("INSERT INTO kept VALUES (1)");
    assert!(kept.as_ref().is_ok_and(|answer| answer.is_ok()), "{kept:?}\n{}", weir.story());
    assert_eq!(odd.does("SELECT COUNT(*) FROM kept").value(), "1", "its own session goes on");
}

#[test]
fn a_command_out_of_order_ends_its_session_as_on_a_server() {
    let pair = pair();
    let weir = before(&pair);
    let mut stays = client(&weir, "auto");
    stays.does("SELECT 1");
    for place in [pair.primary.address, weir.address("auto"), weir.address("writes")] {
        let mut odd = Client::log_in(place, &Login::of("app", "shop")).expect("let in");
        let packets = |sequence: u8, payload: &[u8]| {
            [&[payload.len() as u8, 0, 0, sequence], payload, &[9, 0, 0, 0], &query("SELECT 2")].concat()
        };
        // `SELECT 1` and a ping; both answered with `ER_NET_PACKETS_OUT_OF_ORDER`, and then nothing.
        for payload in [query("SELECT 1"), vec![0x0e]] {
            if odd.sends_bytes(&packets(3, &payload)).is_err() {
                continue;
            }
            let (sequence, answer) = odd.receives_packet().expect("an error");
            assert_eq!((sequence, &answer[..3]), (0, &[0xff, 0x84, 0x04][..]), "{place}: {answer:?}");
            assert!(odd.receives_packet().is_err(), "{place}: the session has ended");
            odd = Client::log_in(place, &Login::of("app", "shop")).expect("let in");
        }
    }
    assert_eq!(stays.does("SELECT 'on'").value(), "on");
    assert_eq!(weir.metric("weir_mysql_lost_total", &[]), 0.0, "no server was asked");
}

/// Weir's count of memory in use, once it is this.
fn until_in_use(weir: &Weir, is: impl Fn(f64) -> bool) {
    until("the memory in use", || is(weir.metric("weir_memory_in_use_bytes", &[])).then_some(()));
}

#[test]
fn what_one_session_has_prepared_is_bounded_and_counted() {
    const TEXT_BYTES: usize = 1_000_000;
    let pair = pair();
    let weir = before(&pair);
    let mut odd = client(&weir, "writes");
    let prepare = |odd: &mut Client, n: usize| {
        let text = format!("SELECT {n} /*{}*/", "x".repeat(TEXT_BYTES));
        odd.sends(&[b"\x16", text.as_bytes()].concat()).expect("sent");
        odd.receives(Asked::Statement).expect("an answer")
    };
    let mut prepared = Vec::new();
    let refused = loop {
        let answer = prepare(&mut odd, prepared.len());
        match answer.error() {
            Some((code, _)) => break code,
            None => prepared.push(answer.statement().expect("prepared")),
        }
        assert!(prepared.len() <= 40, "more than 40 MB of texts are held for one session");
    };
    // `ER_MAX_PREPARED_STMT_COUNT_REACHED`.
    assert_eq!(refused, 1461);
    let held = (prepared.len() * TEXT_BYTES) as f64;
    until_in_use(&weir, |bytes| bytes >= held);
    assert_eq!(weir.metric("weir_mysql_prepared_refusals_total", &[]), 1.0);
    assert!(client(&weir, "writes").does("SELECT 1").value() == "1", "others go on");
    // What is closed makes room.
    odd.sends(&[b"\x19", &prepared[0].to_le_bytes()[..]].concat()).expect("sent");
    let again = prepare(&mut odd, 99);
    assert!(again.error().is_none(), "{again}");
    drop(odd);
    until_in_use(&weir, |bytes| bytes < held);
}

#[test]
fn a_command_that_a_client_only_announces_takes_no_room() {
    const ANNOUNCED_BYTES: usize = 1_000_000;
    let pair = pair();
    let weir = before(&pair);
    let mut odd: Vec<Client> = (0..20).map(|_| client(&weir, "writes")).collect();
    let text = format!("SELECT 'whole' /*{}*/", "x".repeat(ANNOUNCED_BYTES));
    let (begun, rest) = text.as_bytes().split_at(100);
    let mut head = ((text.len() + 1) as u32).to_le_bytes().to_vec();
    head.push(3);
    for client in &mut odd {
        client.sends_bytes(&[&head, begun].concat()).expect("sent");
    }
    until_in_use(&weir, |bytes| bytes >= ((20 * 16) << 10) as f64);
    let in_use = weir.metric("weir_memory_in_use_bytes", &[]);
    assert!(in_use < (20 * ANNOUNCED_BYTES / 10) as f64, "{in_use} bytes");
    for client in &mut odd {
        client.sends_bytes(rest).expect("sent");
        assert_eq!(client.receives(Asked::Results).expect("an answer").value(), "whole");
    }
}

#[test]
fn an_insert_id_that_a_view_has_set_is_no_other_sessions() {
    let pair = pair();
    let mut root = pair.primary.root();
    root.does("USE shop");
    root.does("CREATE VIEW sets_insert_id AS SELECT LAST_INSERT_ID(501) AS id");
    pair.replica.has_all_of(&pair.primary);
    let weir = before(&pair);
    for listener in ["writes", "auto"] {
        let (mut odd, mut others) = (client(&weir, listener), Vec::new());
        others.resize_with(4, || client(&weir, listener));
        assert_eq!(odd.does("SELECT id FROM sets_insert_id").value(), "501");
        for other in &mut others {
            assert_eq!(other.does("SELECT LAST_INSERT_ID()").value(), "0", "{listener}");
        }
    }
}

#[test]
fn what_each_server_counts_of_its_tables_is_told_by_the_primary() {
    let pair = pair();
    let mut root = pair.primary.root();
    root.does("USE shop");
    root.does("CREATE TABLE burnt (id INT AUTO_INCREMENT PRIMARY KEY, n INT)");
    for sql in ["BEGIN", "INSERT INTO burnt (n) VALUES (1), (2), (3), (4)", "ROLLBACK"] {
        root.does(sql);
    }
    pair.replica.has_all_of(&pair.primary);
    let weir = before(&pair);
    let mut asks = client(&weir, "auto");
    let status = asks.does("SHOW TABLE STATUS LIKE 'burnt'").rows();
    assert_eq!(status[0][10], "5", "the next number, of which the replica knows nothing: {status:?}");
    let next = "SELECT AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_NAME = 'burnt'";
    assert_eq!(asks.does(next).value(), "5");
}
