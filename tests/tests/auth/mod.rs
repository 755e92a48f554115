//! Who may ask: what Weir lets pass, and what backends and clients are told then.

mod bypass;
mod closed;
mod fetched;
mod passwords;
mod remembered;
mod service;
mod sign_in;
mod tokens;

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};
use weir_tests::dialogue::{After, Backend, PATIENCE, Request, Response, Setup, Weir, Wire, run_tool, tool};

/// A site behind a service that knows one cookie.
const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[listener.web.auth.forward]
pool = "auth"
path = "/verify?a=1"
copy_to_backend = ["remote-user", "remote-groups"]
user = "remote-user"
timeout = "20s"
[[listener.web.route]]
path = "/public/*"
pool = "app"
auth = false
[[listener.web.route]]
path = "/said"
respond = { status = 200, body = "said" }
[[listener.web.route]]
path = "/moved"
redirect = { to = "/elsewhere" }
[[listener.web.route]]
path = "/kept/*"
pool = "app"
cache = { ttl = "60s" }
[listener.web.route.auth.forward]
pool = "auth"
path = "/verify"
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
[pool.auth]
backends = ["@auth"]
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
"#;

/// Says 200 to who has the cookie `id=good`, and to others who they may become.
fn verifier() -> Backend {
    Backend::serving(|request, wire| {
        let cookies = request.fields.all("cookie").join("; ");
        if cookies.contains("id=good") {
            let told = [
                ("remote-user", "ann"),
                ("remote-groups", "a, b"),
                ("x-secret", "of the service"),
                ("set-cookie", "seen=1"),
                ("set-cookie", "again=2"),
            ];
            wire.answers(200, &told, "you may");
        } else if request.fields.one("accept").is_some_and(|accept| accept.contains("html")) {
            let told = [("location", "https://login.example/?rd=x"), ("set-cookie", "begun=1")];
            wire.answers(302, &told, "<a>login</a>");
        } else {
            let told = [("www-authenticate", "Bearer"), ("connection", "x-hop"), ("x-hop", "1")];
            wire.answers(401, &told, "who are you?");
        }
        After::Keep
    })
}

/// Says what it was told, and sets a cookie of its own.
fn app() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[("set-cookie", "app=1")], format!("app {}", request.body.len()));
        After::Keep
    })
}

struct Site {
    weir: Weir,
    app: Backend,
    auth: Backend,
}

impl Site {
    fn start() -> Site {
        Site::of(CONFIG, verifier())
    }

    fn of(config: &str, auth: Backend) -> Site {
        let app = app();
        let setup = Setup::of(config).with("app", app.address()).with("auth", auth.address());
        Site { weir: setup.start(), app, auth }
    }

    /// What the service was asked last.
    fn question(&self) -> Request {
        self.auth.requests().pop().expect("a question")
    }

    /// What the backend was asked last.
    fn request(&self) -> Request {
        self.app.requests().pop().expect("a request")
    }

    fn results(&self, result: &str) -> f64 {
        self.weir.metric("weir_auth_requests_total", &[("listener", "web"), ("result", result)])
    }
}

const GOOD: &str = "cookie: id=good";

/// What a client of HTTP/1.1 gets for these lines of a head, on a connection of its own.
fn asked(weir: &Weir, line: &str, fields: &[&str]) -> Response {
    let method = line.split(' ').next().unwrap_or_default();
    let mut client = weir.client("web");
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    client.sends(format!("{line} HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n"));
    client.receives_response_to(method)
}

/// A client whose address ends so.
fn client_from(weir: &Weir, last: u8) -> Wire {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, last], 0)).into()).expect("an address of this machine");
    socket.connect(&weir.address("web").into()).expect("connect");
    Wire::over(socket.into(), "client")
}

/// What curl prints of an answer: the head, and the content.
fn by_curl(weir: &Weir, arguments: &[&str], path: &str) -> String {
    let url = format!("http://{}{path}", weir.address("web"));
    let mut all = vec!["--silent", "--show-error", "--include", "--path-as-is", "--max-time", "20"];
    all.extend(["--noproxy", "*"]);
    all.extend(arguments);
    all.push(&url);
    run_tool(&tool("curl", "curl"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}
