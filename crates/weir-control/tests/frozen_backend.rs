//! A backend that is a process of its own and gets SIGSTOP: the kernel goes on accepting for it, and nothing
//! ever answers.
//!
//! Has a main function of its own, because the backend is this same program started again.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use weir_balance::Health;
use weir_control::events::Bus;
use weir_control::health::Board;
use weir_control::publish::InForce;
use weir_state::Snapshot;

const ROLE: &str = "WEIR_TEST_BACKEND";
/// What is promised for `interval = "100ms"`.
const PROMISED: Duration = Duration::from_millis(250);
/// Rounds; the median counts, since the machine may be busy with something else in any one of them.
const ROUNDS: usize = 7;

fn main() {
    if std::env::var_os(ROLE).is_some() {
        return serve();
    }
    println!("\nrunning 1 test");
    let took = a_frozen_backend_is_out_within_the_promised_time();
    println!("test a_frozen_backend_is_out_within_the_promised_time ... ok ({took:?})");
    println!("\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n");
}

/// The backend: says its port, then answers everything with 200.
fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("{}", listener.local_addr().unwrap());
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut asked = [0; 1024];
        let _ = stream.read(&mut asked);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    }
}

/// Killed when the test ends, however it ends.
struct Backend(Child);

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Backend {
    fn start() -> (Backend, String) {
        let program = std::env::current_exe().unwrap();
        let child = Command::new(program).env(ROLE, "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut backend = Backend(child);
        let mut address = String::new();
        BufReader::new(backend.0.stdout.take().unwrap()).read_line(&mut address).unwrap();
        (backend, address.trim().to_owned())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

fn a_frozen_backend_is_out_within_the_promised_time() -> Vec<Duration> {
    let (backend, address) = Backend::start();
    let text = format!(
        "[listener.web]\nbind = '127.0.0.1:8080'\npool = 'app'\n[pool.app]\nbackends = ['{address}']\n\
         [pool.app.health]\ninterval = '100ms'\n"
    );
    let config = weir_config::parse("test.toml", &text).unwrap_or_else(|report| panic!("{report}"));
    let snapshot = Snapshot::compile(Arc::new(config), &Default::default(), None, 1);
    let cell = snapshot.pools[0].backends[0].balance.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut took = runtime.block_on(async {
        let board = Board::new(
            Arc::new(Bus::default()),
            InForce::default(),
            tokio::sync::mpsc::unbounded_channel().0,
        )
        .0;
        board.adopt(&snapshot);
        let becomes = async |health| {
            let begun = Instant::now();
            while cell.health() != health {
                assert!(begun.elapsed() < Duration::from_secs(30), "the backend never became {health:?}");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            begun.elapsed()
        };
        let mut took = Vec::new();
        for round in 0..ROUNDS {
            becomes(Health::Up).await;
            // Rounds begin at different moments between two probes.
            tokio::time::sleep(Duration::from_millis(300 + 17 * round as u64)).await;
            backend.signal(Signal::STOP);
            took.push(becomes(Health::Down).await);
            backend.signal(Signal::CONT);
        }
        took
    });
    took.sort();
    assert!(took[ROUNDS / 2] <= PROMISED, "frozen backends went down after {took:?}, promised {PROMISED:?}");
    took
}
