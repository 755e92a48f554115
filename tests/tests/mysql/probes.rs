//! Probes of servers that want TLS, or whose pool does.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc;

use weir_tests::dialogue::{Authority, Setup, Weir, free_address, listen_at, until};
use weir_tests::mysql::{Client, Login, Mysqld};

use super::failover::OwnFile;

/// Flag of a client, and of a server, that speaks TLS.
const SSL: u32 = 1 << 11;

/// A pool of one server whose roles nobody watches, so that probes are all that is asked of it.
const ONE: &str = r#"
[listener.NAME]
protocol = "mysql"
bind = "@NAME"
pool = "NAME"
[pool.NAME]
backends = ["@server"]
TLS
[pool.NAME.health]
interval = "2s"
fast_interval = "50ms"
timeout = "2s"
rise = 1
fall = 1
[pool.NAME.mysql]
topology = "static"
user = "app"
password_file = "@password"
"#;

fn of_pool(name: &str, tls: &str) -> String {
    ONE.replace("NAME", name).replace("TLS", tls)
}

/// Waits until the pool's server is down, and gives why.
fn goes_down(weir: &Weir, pool: &str) -> String {
    until(&format!("the server to be down\n{}", weir.story()), || {
        let status = weir.admin().reads(&format!("/v1/pools/{pool}")).json();
        let backend = &status["backends"][0];
        (backend["health"] == "down").then(|| backend["reason"].as_str().unwrap_or_default().to_owned())
    })
}

/// A greeting of protocol version 10 by a server that can TLS, for `caching_sha2_password`.
fn greeting() -> Vec<u8> {
    let capabilities: u32 = 0x1 | 0x200 | SSL | 0x8000 | 0x8_0000;
    let [one, two, three, four] = capabilities.to_le_bytes();
    let payload = [
        &b"\x0a8.4.0\0\x07\0\0\0abcdefgh\0"[..],
        &[one, two, 45, 2, 0, three, four, 21],
        &[0; 10],
        b"ijklmnopqrst\0caching_sha2_password\0",
    ]
    .concat();
    [&[payload.len() as u8, 0, 0, 0], &payload[..]].concat()
}

#[test]
fn who_comes_before_a_server_was_heard_of_is_greeted_as_that_server_does() {
    let address = free_address();
    let listener = listen_at(address);
    let (go, gone) = mpsc::channel::<()>();
    let (old, new) = (&b"8.4.0\0"[..], &b"8.0.22\0"[..]);
    std::thread::spawn(move || {
        let mut greeting = greeting();
        greeting.splice(5..5 + old.len(), new.iter().copied());
        greeting[0] += 1;
        // The kernel takes Weir's probe, and nobody says a word to it until the client has come.
        let _ = gone.recv();
        let mut held = Vec::new();
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&greeting);
            // Whoever logs in is let in.
            let is_said = stream.read(&mut [0; 1024]).is_ok_and(|count| count > 0);
            let _ = is_said.then(|| stream.write_all(b"\x07\0\0\x02\0\0\0\x02\0\0\0"));
            held.push(stream);
        }
    });
    let password = OwnFile::of("unheard", "sesame");
    let setup = Setup::of(&of_pool("one", ""));
    let weir = setup.with("password", password.0.display()).with("server", address).start();
    let mut client = TcpStream::connect(weir.address("one")).expect("a connection");
    go.send(()).expect("a server");
    let mut greeted = [0; 12];
    client.read_exact(&mut greeted).expect("a greeting");
    assert_eq!(greeted[5..], *new, "{}", greeted[5..].escape_ascii());
}

#[test]
fn a_probe_says_no_more_than_that_it_wants_tls_before_it_has_that() {
    let address = free_address();
    let listener = listen_at(address);
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            let _ = stream.write_all(&greeting());
            let mut said = [0; 36];
            let whole = stream.read_exact(&mut said).is_ok();
            if tell.send((whole, said.to_vec())).is_err() {
                return;
            }
        }
    });
    let password = OwnFile::of("probed", "sesame");
    let setup = Setup::of(&of_pool("one", "tls = { verify = false }"));
    let weir = setup.with("password", password.0.display()).with("server", address).start();
    let (whole, said) = told.recv().expect("a probe");
    // SSLRequest: 32 bytes, its flags first, and no name in it.
    assert!(whole, "{said:?}");
    assert_eq!(said[..4], [32, 0, 0, 1], "{said:?}");
    let flags = u32::from_le_bytes(said[4..8].try_into().expect("four bytes"));
    assert_ne!(flags & SSL, 0, "{said:?}");
    assert!(said[13..].iter().all(|byte| *byte == 0), "{said:?}");
    assert!(goes_down(&weir, "one").starts_with("no TLS: "));
}

#[test]
fn a_server_that_lets_nobody_in_without_tls_is_up_where_its_pool_has_tls() {
    let server = Mysqld::start("secure", "");
    let mut root = server.root();
    root.does("CREATE USER secure@'%' IDENTIFIED BY 'sesame'");
    root.does("SET GLOBAL require_secure_transport = ON");
    let password = OwnFile::of("secured", "sesame");
    let other = Authority::new();
    let ca = |path: &str| format!("tls = {{ verify = \"ca\", ca = \"{path}\" }}");
    let config = [
        of_pool("right", &ca(&server.path("ca.pem"))),
        of_pool("wrong", &ca("@dir/ca.pem")),
        of_pool("none", ""),
    ];
    let config = config.concat().replace("\"app\"", "\"secure\"");
    let weir =
        other.setup(&config).with("password", password.0.display()).with("server", server.address).start();
    let good = [("pool", "right"), ("backend", &*server.address.to_string()), ("result", "good")];
    weir.reaches("weir_probes_total", &good, 1.0);
    let mut client = Client::log_in(weir.address("right"), &Login::of("app", "shop")).expect("let in");
    assert_eq!(client.does("SELECT 1").value(), "1");
    let why = goes_down(&weir, "wrong");
    assert!(why.starts_with("no TLS: ") && why.contains("certificate"), "{why}");
    let why = goes_down(&weir, "none");
    assert!(why.starts_with("refused the login: 3159 "), "{why}");
}

#[test]
fn a_server_without_tls_is_down_where_its_pool_must_have_it_and_up_where_it_would_rather() {
    let server = Mysqld::start("bare", "tls_version =");
    let password = OwnFile::of("bare", "");
    let preferred = "tls = { verify = false, mode = \"preferred\" }";
    let config = of_pool("must", "tls = { verify = false }") + &of_pool("may", preferred);
    let weir =
        Setup::of(&config).with("password", password.0.display()).with("server", server.address).start();
    let good = [("pool", "may"), ("backend", &*server.address.to_string()), ("result", "good")];
    weir.reaches("weir_probes_total", &good, 1.0);
    let why = goes_down(&weir, "must");
    assert!(why.contains("the server offers no TLS"), "{why}");
}
