//! Probes over TLS, and sessions that are resumed, with `openssl s_server` as the backend.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};

use weir_tests::dialogue::{Weir, free_address, tool, until};

use super::Authority;

/// `openssl s_server`, which answers each request with what it knows of its connection. Ended when dropped.
struct Server {
    address: SocketAddr,
    process: Child,
}

impl Server {
    fn start(authority: &Authority) -> Server {
        let address = free_address();
        let process = Command::new(tool("openssl", "openssl"))
            .args(["s_server", "-quiet", "-www", "-accept", &address.to_string()])
            .args(["-cert", &authority.path("own.pem"), "-key", &authority.path("own.key")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start");
        until("the server to listen", || TcpStream::connect(address).ok());
        Server { address, process }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@app"]
tls = { TLS }
keep_alive = { max = 0 }
[pool.app.health]
HEALTH
"#;

const FAST: &str = "interval = \"100ms\"\nfast_interval = \"50ms\"\ntimeout = \"100ms\"\nrise = 1\nfall = 1\npassive = \"off\"\nlast_resort = \"off\"";

fn running(authority: &Authority, server: SocketAddr, tls: &str, health: &str) -> Weir {
    authority.setup(&CONFIG.replace("TLS", tls).replace("HEALTH", health)).with("app", server).start()
}

/// State of the backend and why.
fn state(weir: &Weir) -> (String, String) {
    let status = weir.admin().reads("/v1/status").json();
    let backend = &status["pools"][0]["backends"][0];
    let text = |name: &str| backend[name].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

const GOOD: &str = r#"ca = "@dir/ca.pem", server_name = "app.internal""#;

#[test]
fn a_probe_makes_the_handshake_and_asks_inside_it() {
    let authority = Authority::new().signs("own", &["app.internal"]);
    let server = Server::start(&authority);
    for check in ["http", "tcp"] {
        let weir = running(
            &authority,
            server.address,
            GOOD,
            &format!(
                "check = \"{check}\"\n{}",
                FAST.replace("100ms\"\nrise", "2s\"\nrise")
                    .replace("interval = \"100ms\"", "interval = \"2s\"")
            ),
        );
        weir.reaches("weir_probes_total", &[("result", "good")], 2.0);
        assert_eq!(
            (state(&weir).0.as_str(), weir.metric("weir_probes_total", &[("result", "bad")])),
            ("ready", 0.0),
            "{check}"
        );
    }
}

#[test]
fn a_backend_that_cannot_prove_its_name_is_down_and_says_why() {
    let authority = Authority::new().signs("own", &["app.internal"]);
    let server = Server::start(&authority);
    for (tls, reason) in [
        (r#"ca = "@dir/ca.pem", server_name = "other.internal""#, "another name"),
        (r#"server_name = "app.internal""#, "an authority that is not in `ca`"),
    ] {
        for check in ["http", "tcp"] {
            let weir = running(&authority, server.address, tls, &format!("check = \"{check}\"\n{FAST}"));
            until(&format!("{check} to find: {reason}"), || {
                let (state, said) = state(&weir);
                (state == "down" && said.contains("no TLS: ") && said.contains(reason)).then_some(())
            });
        }
    }
}

#[test]
fn a_certificate_that_is_its_own_authority_is_told_how_to_be_made() {
    let authority = Authority::new();
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=own -keyout own.key -out own.pem";
    authority.openssl(&format!("{words} -addext subjectAltName=DNS:app.internal"));
    let own = r#"ca = "@dir/own.pem", server_name = "app.internal""#;
    let server = Server::start(&authority);
    let weir = running(&authority, server.address, own, &format!("check = \"tcp\"\n{FAST}"));
    let said = "its certificate is that of an authority (CA:TRUE), which cannot stand for a server";
    until("the reason", || state(&weir).1.contains(said).then_some(()));
    drop((weir, server));
    authority.openssl(&format!(
        "{words} -addext subjectAltName=DNS:app.internal -addext basicConstraints=critical,CA:FALSE"
    ));
    let server = Server::start(&authority);
    let weir = running(&authority, server.address, own, &format!("check = \"tcp\"\n{FAST}"));
    weir.reaches("weir_probes_total", &[("result", "good")], 1.0);
}

#[test]
fn a_backend_without_tls_or_gone_is_down() {
    let authority = Authority::new().signs("own", &["app.internal"]);
    let plain = super::mirror();
    let weir = running(&authority, plain.address(), GOOD, &format!("check = \"tcp\"\n{FAST}"));
    until("the plain one to be down", || (state(&weir).0 == "down").then_some(()));
    let server = Server::start(&authority);
    let weir = running(
        &authority,
        server.address,
        GOOD,
        &format!(
            "check = \"http\"\n{}",
            FAST.replace("100ms\"\nrise", "2s\"\nrise").replace("interval = \"100ms\"", "interval = \"2s\"")
        ),
    );
    weir.reaches("weir_probes_total", &[("result", "good")], 1.0);
    drop(server);
    until("the one that is gone to be down", || (state(&weir).0 == "down").then_some(()));
}

/// The server says of each connection whether it was a new session.
#[test]
fn sessions_with_another_s_server_are_resumed() {
    let authority = Authority::new().signs("own", &["app.internal"]);
    let server = Server::start(&authority);
    let weir = running(&authority, server.address, GOOD, "check = \"off\"");
    let asked = || {
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        client.receives_response().text()
    };
    let first = asked();
    assert!(first.contains("New, TLSv1.3"), "{first}");
    let later: Vec<bool> = (0..4).map(|_| asked().contains("Reused, TLSv1.3")).collect();
    assert!(later.iter().filter(|reused| **reused).count() >= 3, "{later:?}");
}
