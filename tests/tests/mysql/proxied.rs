//! Servers that serve nobody who does not say who is behind a connection (`send_proxy`).

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use weir_tests::dialogue::{Setup, free_address, listen_at, until};
use weir_tests::mysql::{Asked, Client, Login, Mysqld, query};

use super::leftovers::ONE_CONNECTION;

/// Stands before a server that can't read PROXY headers: takes them off, and ends a connection without one.
struct Gate {
    address: SocketAddr,
    /// The first line of each connection, in order.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Gate {
    fn before(server: SocketAddr) -> Gate {
        let address = free_address();
        let listener = listen_at(address);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let gate = Gate { address, heard: heard.clone() };
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let heard = heard.clone();
                thread::spawn(move || pass(client, server, &heard));
            }
        });
        gate
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().expect("no thread has panicked").clone()
    }
}

fn pass(mut client: TcpStream, server: SocketAddr, heard: &Mutex<Vec<String>>) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(1, client.try_clone()?);
    let mut first = Vec::new();
    // A client of MySQL waits to be greeted: one that says nothing first would wait for ever.
    client.set_read_timeout(Some(std::time::Duration::from_millis(500)))?;
    let _ = reader.read_until(b'\n', &mut first);
    let first = String::from_utf8_lossy(&first).trim_end().to_owned();
    let is_header = first.starts_with("PROXY ");
    heard.lock().expect("no thread has panicked").push(first);
    if !is_header {
        return client.shutdown(Shutdown::Both);
    }
    client.set_read_timeout(None)?;
    let mut to_server = TcpStream::connect(server)?;
    let mut from_server = to_server.try_clone()?;
    thread::spawn(move || {
        let _ = io::copy(&mut from_server, &mut client);
        let _ = client.shutdown(Shutdown::Both);
    });
    let _ = io::copy(&mut reader, &mut to_server);
    to_server.flush()?;
    to_server.shutdown(Shutdown::Both)
}

#[test]
fn a_kill_and_the_end_of_what_is_abandoned_reach_a_server_that_wants_proxy_headers() {
    let server = Mysqld::start("proxied", "");
    let gate = Gate::before(server.address);
    // Beyond `max_connections` and within it.
    for most in ["max_connections = 1", "max_connections = 9"] {
        let config = ONE_CONNECTION
            .replace("max_connections = 1", most)
            .replace("[pool.one.mysql]", "send_proxy = \"v1\"\nkeep_alive = { max = 0 }\n[pool.one.mysql]")
            // Nobody is behind a probe, and it says so.
            .replace("[pool.one.mysql]", "health = { check = \"off\" }\n[pool.one.mysql]");
        let weir = Setup::of(&config).with("server", gate.address).start();
        let log_in = || Client::log_in(weir.address("db"), &Login::of("app", "shop")).expect("let in");
        let (mut killer, mut sleeper) = (log_in(), log_in());
        let sleeps = || {
            let sql = "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT SLEEP%'";
            server.root().does(sql).value()
        };
        sleeper.sends(&query("SELECT SLEEP(600)")).expect("sent");
        until("it sleeps", || (sleeps() == "1").then_some(()));
        killer.does(&format!("KILL QUERY {}", sleeper.connection_id));
        assert_eq!(sleeper.receives(Asked::Results).expect("an answer").value(), "1", "it was woken");
        sleeper.does("BEGIN");
        sleeper.sends(&query("SELECT SLEEP(600)")).expect("sent");
        until("it sleeps again", || (sleeps() == "1").then_some(()));
        drop(sleeper);
        until("its statement to end", || (sleeps() == "0").then_some(()));
    }
    // Logins, statements, KILL and what is abandoned: all have said who is behind them.
    for line in gate.heard() {
        assert!(line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "), "{line:?}");
    }
}
