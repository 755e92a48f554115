//! Allow and deny lists of addresses, of connections.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};

use socket2::{Domain, Socket, Type};
use weir_tests::dialogue::{NO_PROBES, PATIENCE, ScriptedBackend, Setup, Weir, Wire};

use super::front;

const LISTS: &str = "allow_address = [\"127.0.0.0/24\", \"198.51.100.7\"]\ndeny_address = [\"127.0.0.2\"]";

fn relay(more: &str, backend: SocketAddr) -> Weir {
    Setup::of(&front(&format!("{LISTS}\n{more}"), NO_PROBES)).with("app", backend).start()
}

fn connects_from(weir: &Weir, address: &str) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&format!("{address}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.connect_timeout(&weir.address("front").into(), PATIENCE)?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

#[test]
fn a_connection_from_an_address_that_is_denied_or_not_allowed_ends_before_its_backend_hears_of_it() {
    let backend = ScriptedBackend::start();
    let weir = relay("", backend.address());
    for address in ["127.0.0.2", "127.0.1.1"] {
        // The reset may arrive as soon as the connection exists.
        let ended = connects_from(&weir, address).and_then(|mut stream| stream.read(&mut [0; 16]));
        assert!(
            matches!(&ended, Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset),
            "{ended:?}"
        );
    }
    weir.reaches("weir_rejected_total", &[("listener", "front"), ("reason", "denied_address")], 2.0);
    let mut client = Wire::over(connects_from(&weir, "127.0.0.1").expect("it is let in"), "client");
    client.sends("hello");
    // The first connection that the backend sees.
    backend.accepts().receives_exactly("hello");
    let explained = weir.command(&["explain", "tcp", "127.0.0.2:4000", &weir.address("front").to_string()]);
    assert!(explained.stdout.contains("`127.0.0.2/32` of `deny_address` holds 127.0.0.2"), "{explained:?}");
    assert!(explained.stdout.contains("refuse, denied_address"), "{explained:?}");
}

#[test]
fn lists_hold_for_whom_a_proxy_header_names() {
    let backend = ScriptedBackend::start();
    let weir = relay("accept_proxy = [\"127.0.0.0/8\"]", backend.address());
    let through = |client: &str| {
        let mut wire = Wire::connect(weir.address("front"));
        wire.sends(format!("PROXY TCP4 {client} 203.0.113.9 4711 443\r\nhello"));
        wire
    };
    through("198.51.100.8").receives_close();
    let _allowed = through("198.51.100.7");
    backend.accepts().receives_exactly("hello");
    weir.reaches("weir_rejected_total", &[("listener", "front"), ("reason", "denied_address")], 1.0);
}
