//! `kill -9` of Weir itself (threat H1).

use weir_tests::dialogue::{EVERY_PROTOCOL, NO_PROBES, Setup, Signal, Wire, free_address};

use super::{ask, named};

#[test]
fn after_kill_9_it_starts_again_at_once_on_the_same_addresses() {
    let backend = named("a");
    let mut weir = Setup::of(&format!("{EVERY_PROTOCOL}{NO_PROBES}"))
        .with("app", backend.address())
        .with("names", free_address())
        .start();
    for round in 0..5 {
        // Connections in every state are what makes an address busy: idle, in half a request, just answered
        // and closed.
        let mut open: Vec<Wire> = (0..10).map(|_| weir.client("web")).collect();
        for client in &mut open[..5] {
            client.sends("GET / HTTP/1.1\r\nhost: a\r\n");
        }
        for _ in 0..10 {
            ask(&weir, "web");
        }
        weir.signals(Signal::KILL);
        let begun = std::time::Instant::now();
        weir.starts_again();
        println!("round {round}: serving {:?} after kill -9", begun.elapsed());
        assert_eq!(ask(&weir, "web").text(), "a");
        assert_eq!(ask(&weir, "relay").text(), "a");
    }
}
