//! Whom PROXY headers name, whatever a client speaks and whatever is asked in its name (threats D8 and J1).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};

use super::*;
use crate::tls::curl;
use weir_tests::dialogue::{ScriptedBackend, Wire, until};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2", "h3"]
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
[[listener.web.route]]
path = "/direct"
pool = "app"
[[listener.web.route]]
path = "/kept/*"
pool = "app"
cache = { ttl = "60s" }
[[listener.web.route]]
path = "/guarded"
pool = "app"
auth = { forward = { pool = "auth", path = "/verify" } }
[[listener.web.route]]
path = "/copied"
pool = "app"
mirror = { pool = "shadow" }
[[listener.web.route]]
path = "/hedged"
pool = "pair"
[pool.app]
backends = ["@app"]
health = "off"
send_proxy = "v1"
[pool.auth]
backends = ["@auth"]
health = "off"
send_proxy = "v1"
[pool.shadow]
backends = ["@shadow"]
health = "off"
send_proxy = "v1"
[pool.pair]
backends = ["@silent", "@app"]
balance = "first"
retry = { hedge = { after = "50ms" } }
health = "off"
send_proxy = "v1"
"#;

/// A backend whose connections each begin with a PROXY header; it remembers those.
struct Told {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    headers: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl Told {
    fn start(version: &'static str, answers: bool) -> Told {
        let (backend, shared) = (ScriptedBackend::start(), Arc::new(Shared::default()));
        let (address, of_thread) = (backend.address(), shared.clone());
        let serve = move || {
            let mut held = Vec::new();
            while !of_thread.is_over.load(Ordering::SeqCst) {
                let Some(mut wire) = backend.accepts_if_any() else {
                    sleep(Duration::from_millis(1));
                    continue;
                };
                let header = read_header(version, &mut wire);
                of_thread.headers.lock().unwrap_or_else(PoisonError::into_inner).push(header);
                if wire.tries_to_receive_request().is_ok() && answers {
                    wire.answers(200, &[("connection", "close")], "hello");
                }
                held.push(wire);
            }
        };
        Told { address, shared, thread: Some(std::thread::spawn(serve)) }
    }

    /// Forgets the header that it was told last, and gives it.
    fn header(&self) -> String {
        let next = || self.shared.headers.lock().unwrap_or_else(PoisonError::into_inner).pop();
        until("a connection with a PROXY header", next)
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a header of either version says, as version 1 has it.
fn read_header(version: &str, wire: &mut Wire) -> String {
    if version == "v1" {
        return String::from_utf8_lossy(&wire.receives_until("\r\n")).trim_end().to_owned();
    }
    let head = wire.receives(16);
    let rest = wire.receives(usize::from(u16::from_be_bytes([head[14], head[15]])));
    let (command, family) = (head[12], head[13]);
    match (command, family, &rest[..]) {
        (0x21, 0x11, &[a, b, c, d, e, f, g, h, s, t, u, v, ..]) => {
            let port = |high, low| u16::from_be_bytes([high, low]);
            format!("PROXY TCP4 {a}.{b}.{c}.{d} {e}.{f}.{g}.{h} {} {}", port(s, t), port(u, v))
        }
        _ => format!("version 2, command {command:#x}, family {family:#x}, {rest:?}"),
    }
}

/// A site all of whose backends are told who the client is.
struct Site {
    authority: Authority,
    weir: Weir,
    app: Told,
    auth: Told,
    shadow: Told,
    silent: Told,
}

impl Site {
    fn start(config: &str, version: &'static str) -> Site {
        let config = config.replace("send_proxy = \"v1\"", &format!("send_proxy = \"{version}\""));
        let [app, auth, shadow, silent] =
            [true, true, true, false].map(|answers| Told::start(version, answers));
        let authority = authority();
        let setup = authority.setup(&config).with("app", app.address).with("auth", auth.address);
        let weir = setup.with("shadow", shadow.address).with("silent", silent.address).start();
        Site { authority, weir, app, auth, shadow, silent }
    }

    /// Asks for `path` in this version of HTTP; gives the port that the client had.
    fn asks(&self, version: &str, path: &str, forwarded_for: &str) -> u16 {
        if version != "--http3" {
            let (ca, field) = (self.authority.path("ca.pem"), format!("x-forwarded-for: {forwarded_for}"));
            let asked = [version, "--cacert", &ca, "--header", &field, "--request-target", path];
            let told = ["--output", "/dev/null", "--write-out", "%{http_code} %{local_port}"];
            let said = curl(&self.weir, "web", "shop.example", &[&asked[..], &told].concat());
            let port = said.succeeded().strip_prefix("200 ").unwrap_or_else(|| panic!("{path}: {said:?}"));
            return port.trim().parse().expect("a port");
        }
        let mut port = 0;
        run(async {
            let mut client = Client::connect(&self.authority, self.weir.address("web")).await;
            let (answer, _) = client.gets("GET", path, &[("x-forwarded-for", forwarded_for)]).await;
            assert_eq!(answer.status(), 200, "{path}");
            port = client.endpoint.local_addr().unwrap().port();
        });
        port
    }
}

const VERSIONS: [&str; 3] = ["--http1.1", "--http2", "--http3"];

fn everybody_is_told(proxy_version: &'static str) {
    let site = Site::start(CONFIG, proxy_version);
    let Site { app, auth, shadow, silent, .. } = &site;
    for version in VERSIONS {
        let kept = format!("/kept/{version}");
        for (path, asked) in [
            ("/direct", &[app][..]),
            (&kept, &[app]),
            ("/guarded", &[auth, app]),
            ("/copied", &[app, shadow]),
            ("/hedged", &[silent, app]),
        ] {
            let (from, to) = (site.asks(version, path, "203.0.113.7"), site.weir.address("web").port());
            for (place, told) in asked.iter().enumerate() {
                let expected = format!("PROXY TCP4 127.0.0.1 127.0.0.1 {from} {to}");
                assert_eq!(told.header(), expected, "{version} {path}, asked as number {place}");
            }
        }
    }
}

#[test]
fn whoever_is_asked_in_a_clients_name_is_told_in_version_1_who_it_is() {
    everybody_is_told("v1");
}

#[test]
fn whoever_is_asked_in_a_clients_name_is_told_in_version_2_who_it_is() {
    everybody_is_told("v2");
}

#[test]
fn a_service_that_decides_by_address_is_asked_about_the_client_that_a_trusted_proxy_names() {
    let config = CONFIG.replace("bind = \"@web\"", "bind = \"@web\"\ntrusted_proxies = [\"127.0.0.0/8\"]");
    let site = Site::start(&config, "v1");
    for version in VERSIONS {
        site.asks(version, "/guarded", "203.0.113.7");
        let to = site.weir.address("web").port();
        for told in [&site.auth, &site.app] {
            assert_eq!(told.header(), format!("PROXY TCP4 203.0.113.7 127.0.0.1 0 {to}"), "{version}");
        }
    }
}
