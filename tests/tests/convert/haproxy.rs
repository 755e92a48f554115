//! `weir convert haproxy.cfg`, beside the real HAProxy: both have the same servers behind them and get the
//! same requests. What clients and servers see of the two is the same, but for what is known to differ.

mod leads;
mod pages;
mod peers;
mod refusals;
mod replaced;
mod servers;
mod variables;

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_tests::dialogue::{
    Authority, Backend, Gunicorn, PATIENCE, Program, Response, Setup, Weir, Wire, free_address, run_tool,
    tool,
};

use super::converts;
use crate::sites::haproxy::Site;

const RULES: &str = include_str!("../../../crates/weir-convert/src/haproxy/tests/rules.cfg");
const SEED: &str = include_str!("../../../crates/weir-convert/src/haproxy/tests/seed.cfg");

/// Tells which server it is, and what it was told.
const APPLICATION: &str = r#"
import json
def application(environ, start_response):
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    fields = {k[5:].lower().replace("_", "-"): v for k, v in environ.items() if k.startswith("HTTP_")}
    told = {"server": environ["SERVER_NAME"].split(".")[-1], "method": environ["REQUEST_METHOD"]}
    told.update({"path": environ["RAW_URI"], "fields": fields})
    start_response("200 OK", [("Content-Type", "application/json"), ("X-Made-By", "gunicorn")])
    return [json.dumps(told).encode()]
"#;

/// What Weir tells servers unasked, which a line of every conversion says.
const TOLD_UNASKED: [&str; 8] = [
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];

/// Servers at 127.0.4.1 and on, as the files say 10.0.0.1 and on.
fn servers(count: u8) -> (Gunicorn, u16) {
    let port = free_address().port();
    let places: Vec<SocketAddr> =
        (1..=count).map(|last| SocketAddr::from(([127, 0, 4, last], port))).collect();
    (Gunicorn::start_at(APPLICATION, &places), port)
}

/// HAProxy with a file.
fn haproxy(config: &str, address: SocketAddr) -> (Program, std::path::PathBuf) {
    let dir = std::env::temp_dir().join(format!("weir-haproxy-{}-{}", std::process::id(), address.port()));
    fs::create_dir_all(&dir).expect("a folder");
    let file = dir.join("haproxy.cfg");
    fs::write(&file, config).expect("written");
    let mut command = Command::new(tool("haproxy", "haproxy"));
    command.arg("-db").arg("-f").arg(&file).stdin(Stdio::null());
    (Program::start(&mut command, address), dir)
}

/// The converted file, of which nothing may be unsupported that is not among these lines.
fn converted(source: &str, unsupported: &[&str]) -> String {
    let (code, config, said) = converts(source, &[]);
    assert_eq!(code, 0, "{said}");
    for line in said.lines().filter(|line| line.starts_with("unsupported")) {
        assert!(unsupported.iter().any(|known| line.contains(known)), "{line}\n{config}");
    }
    config
}

/// Writes the files that stand in the comments of a converted file.
fn writes_made_files(told: &str, folder: &Path) {
    for made in told.split("\n# The file /etc/weir/").skip(1) {
        let (name, lines) = made.split_once(":\n").expect("a name");
        let lines: Vec<&str> = lines.lines().map_while(|line| line.strip_prefix("#   ")).collect();
        fs::write(folder.join(name), lines.join("\n")).expect("written");
    }
}

/// One file before the same servers twice.
struct Pair {
    weir: Weir,
    addresses: [SocketAddr; 2],
    _haproxy: Program,
    _app: Gunicorn,
    dir: std::path::PathBuf,
}

impl Pair {
    /// `text` has the servers 10.0.0.1:80 and on, and accepts at 127.0.0.1:18000.
    fn start(text: &str, count: u8, unsupported: &[&str]) -> Pair {
        Pair::with(text, count, unsupported, &[])
    }

    /// The same with `replaced` in the converted file, such as the place of a file that an operator writes.
    fn with(text: &str, count: u8, unsupported: &[&str], replaced: &[(&str, &str)]) -> Pair {
        let (app, port) = servers(count);
        let addresses = [free_address(), free_address()];
        let [of_haproxy, of_weir] = addresses.map(|address| {
            let mut text = text.replace("127.0.0.1:18000", &address.to_string());
            for last in 1..=count {
                text = text.replace(&format!("10.0.0.{last}:80"), &format!("127.0.4.{last}:{port}"));
            }
            text
        });
        let config = replaced
            .iter()
            .fold(converted(&of_weir, unsupported), |config, (from, to)| config.replace(from, to));
        let weir = Setup::of(&config).start();
        let (program, dir) = haproxy(&of_haproxy, addresses[0]);
        Pair { weir, addresses, _haproxy: program, _app: app, dir }
    }

    /// Sends both a request, and compares what comes of it.
    fn alike(&self, request: &str) {
        let [there, here] = self.addresses.map(|address| seen(&sends(address, request)));
        assert_eq!(there, here, "by HAProxy, and by Weir\n{request}\n{}", self.weir.story());
    }

    fn all_alike(&self, requests: &[(&str, &str)]) {
        for (line, fields) in requests {
            let mut request = format!("{line} HTTP/1.1\r\n");
            for field in fields.split('|').filter(|field| !field.is_empty()) {
                // Writing to a String cannot fail.
                let _ = write!(request, "{field}\r\n");
            }
            if line.starts_with("POST") || line.starts_with("PUT") {
                request.push_str("content-length: 0\r\n");
            }
            self.alike(&format!("{request}\r\n"));
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn sends(address: SocketAddr, request: &str) -> Response {
    let mut client = Wire::connect(address);
    client.sends(request);
    client.receives_response_to(request.split(' ').next().unwrap_or_default())
}

/// What an answer tells: its status, where it leads, fields that rules set, and what the server was told.
fn seen(answer: &Response) -> Value {
    let fields = ["location", "www-authenticate", "x-shop", "x-after", "x-made-by", "set-cookie"];
    // Of a challenge, scheme and realm: Weir says the character set of passwords, too.
    let first = |value: &str| value.split(", charset").next().unwrap_or_default().to_owned();
    let of_answer: Vec<(&str, Vec<String>)> =
        fields.iter().map(|name| (*name, answer.fields.all(name).into_iter().map(first).collect())).collect();
    let mut seen = serde_json::json!({ "status": answer.status, "fields": of_answer });
    if answer.fields.one("content-type") == Some("application/json") && !answer.body.is_empty() {
        let mut told: Value = serde_json::from_slice(&answer.body).expect("what the server says");
        let fields = told["fields"].as_object_mut().expect("fields");
        TOLD_UNASKED.iter().for_each(|name| drop(fields.remove(*name)));
        seen["told"] = told;
    } else if answer.status == 200 {
        seen["body"] = answer.text().into();
    }
    seen
}

#[test]
fn the_site_of_the_guide_answers_as_haproxy_does() {
    let site = Site::converted(&|source| converted(source, &[]));
    site.answers_alike();
}

#[test]
fn twenty_rules_choose_the_same_answers_and_servers() {
    let pair = Pair::start(RULES, 6, &[]);
    let mut requests: Vec<(String, &str)> = Vec::new();
    let methods = ["GET", "POST", "DELETE", "HEAD"];
    let paths = [
        "/",
        "/api/x",
        "/api/a.png",
        "/api",
        "/v1/items/7",
        "/v1/x",
        "/a.png",
        "/a.css?x=1",
        "/admin/x",
        "/x/admin",
        "/administrator",
        "/.git",
        "/ping",
        "/ping?x",
        "/pingx",
        "/old",
        "/private/a",
        "/two/x",
        "/big",
        "/BIGGER",
        "/us/a",
        "/v2/items/12",
        "/v2/items/x",
    ];
    let fields = [
        "host: a.test",
        "host: shop.example",
        "host: WWW.Shop.Example",
        "host: x.example.org",
        "host: example.org|x-flag: ",
        "host: example.org|x-flag: 1",
        "host: eu.test",
        "host: a.test|cookie: beta=1",
        "host: a.test|cookie: a=b; beta=1",
        "host: a.test|cookie: beta=2",
        "host: a.test|x-canary: yes",
        "host: a.test|x-canary: no, always",
        "host: a.test|x-canary: yesno",
        "host: a.test|x-two: 2",
        "host: a.test|user-agent: curl-bad/1",
        "host: a.test|user-agent: my wget",
        "host: shop.example|user-agent: Some Android",
        "host: a.test|x-secret: 1|x-hop: 0|x-api: forged",
    ];
    for path in paths {
        for method in methods {
            requests.push((format!("{method} {path}"), fields[0]));
        }
        requests.extend(fields.iter().map(|fields| (format!("GET {path}"), *fields)));
    }
    for path in ["/api/x?v=2", "/api/x?v=22", "/x?v=2", "/a.png?v=2"] {
        requests.extend(methods.map(|method| (format!("{method} {path}"), fields[0])));
    }
    let requests: Vec<(&str, &str)> =
        requests.iter().map(|(line, fields)| (line.as_str(), *fields)).collect();
    pair.all_alike(&requests);
}

#[test]
fn passwords_are_asked_for_by_both_of_the_same_requests() {
    let text = "userlist staff\n group admins users ann\n user ann insecure-password secret\n user bob insecure-password hers\n\
                defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                frontend web\n bind 127.0.0.1:18000\n acl authed http_auth(staff)\n\
                http-request return status 200 content-type text/plain string pong if { path /ping }\n\
                http-request auth realm Staff if { path_beg /staff /both } !authed\n\
                use_backend two if { path_beg /both }\n default_backend one\n\
                backend one\n server a 10.0.0.1:80\nbackend two\n\
                http-request auth realm Staff unless { http_auth_group(staff) admins }\n server b 10.0.0.2:80\n";
    let arguments = |user: &str, password: &str| {
        let arguments = ["-nbBC", "4", user, password];
        run_tool(&tool("htpasswd", "apache2-utils"), &arguments, b"", PATIENCE).succeeded().to_owned()
    };
    let dir =
        std::env::temp_dir().join(format!("weir-users-{}-{}", std::process::id(), free_address().port()));
    fs::create_dir_all(&dir).expect("a folder");
    let (ann, bob) = (arguments("ann", "secret"), arguments("bob", "hers"));
    fs::write(dir.join("staff.users"), format!("{ann}{bob}")).expect("written");
    fs::write(dir.join("staff.admins.users"), ann).expect("written");
    let place = dir.display().to_string();
    let pair = Pair::with(text, 2, &[], &[("/etc/weir", &place)]);
    for path in ["/", "/ping", "/staff", "/staff/x", "/both", "/both/x"] {
        // ann:secret, bob:hers, ann:wrong, and nobody's.
        for of in ["", "YW5uOnNlY3JldA==", "Ym9iOmhlcnM=", "YW5uOndyb25n", "eDp5", "???"] {
            let field = if of.is_empty() { String::new() } else { format!("|authorization: Basic {of}") };
            pair.all_alike(&[(&format!("GET {path}"), &format!("host: a{field}"))]);
        }
    }
    fs::remove_dir_all(dir).expect("removed");
}

#[test]
fn refusals_hold_for_the_same_requests() {
    let text = "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n timeout tarpit 10ms\n\
                frontend web\n bind 127.0.0.1:18000\n\
                http-request allow if { path_beg /open }\n\
                http-request deny if { path_beg /a /b } !{ method GET HEAD } or { hdr(x-bad) -m found }\n\
                http-request deny deny_status 404 unless { path_beg /open /a /b /c } || { hdr_end(x-pass) ok }\n\
                http-request tarpit deny_status 429 if { hdr_cnt(x-slow) gt 0 }\n\
                http-request set-header X-Seen %[method] if { path_beg /c }\n\
                http-request replace-path ^/c/(.*) /d/\\1\n\
                http-after-response set-header X-After all\n\
                use_backend two if { hdr(x-to) -m reg ^(two|zwei)$ }\n default_backend one\n\
                backend one\n http-response set-header X-Shop yes\n http-response del-header X-Made-By\n\
                server a 10.0.0.1:80\nbackend two\n\
                http-request return status 200 content-type text/plain string \"from here\" if { method PUT }\n\
                http-request del-header X-To\n server b 10.0.0.2:80\n";
    let pair = Pair::start(text, 2, &[]);
    let mut requests = Vec::new();
    for path in ["/open/x", "/a", "/b/x.txt", "/c/d", "/c/", "/e", "/open.txt"] {
        for method in ["GET", "PUT"] {
            for fields in [
                "host: a",
                "host: a|x-bad: 1",
                "host: a|x-pass: not, ok",
                "host: a|x-pass: ok, not",
                "host: a|x-slow: 1",
                "host: a|x-to: two",
                "host: a|x-to: a, zwei",
                "host: a|x-to: twos",
            ] {
                requests.push((format!("{method} {path}"), fields));
            }
        }
    }
    let requests: Vec<(&str, &str)> =
        requests.iter().map(|(line, fields)| (line.as_str(), *fields)).collect();
    pair.all_alike(&requests);
}

#[test]
fn server_names_of_tls_lead_to_the_same_servers() {
    let authority = Authority::new().signs("any", &["one.test", "two.test", "a.two.test", "three.test"]);
    let dir = authority.path("");
    let [one, two, rest] = [(); 3].map(|()| free_address());
    let nginx: String = [(one, "one"), (two, "two"), (rest, "rest")]
        .iter()
        .map(|(address, name)| {
            format!("server {{ listen {address} ssl; location / {{ return 200 \"{name} $ssl_server_name\"; }} }}\n")
        })
        .collect();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("{of}_temp_path {dir}{of};\n"))
        .concat();
    let config = format!(
        "user root;\ndaemon off;\nworker_processes 1;\npid {dir}nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{temporary}access_log off;\n\
         ssl_certificate {dir}any.pem;\nssl_certificate_key {dir}any.key;\n{nginx}}}\n"
    );
    fs::write(authority.path("nginx.conf"), config).expect("written");
    let _nginx =
        Program::start(Command::new(tool("nginx", "nginx")).arg("-c").arg(authority.path("nginx.conf")), one);
    let text = |address: SocketAddr| {
        format!(
            "defaults\n mode tcp\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
             frontend tls\n bind {address}\n tcp-request inspect-delay 5s\n\
             tcp-request content accept if {{ req_ssl_hello_type 1 }}\n\
             use_backend one if {{ req.ssl_sni -i one.test }}\n use_backend two if {{ req_ssl_sni -i two.test }} or {{ req.ssl_sni -m end .two.test }}\n\
             use_backend %[req.ssl_sni,lower]\n use_backend one\n\
             default_backend rest\nbackend one\n server a {one}\nbackend two\n server a {two}\nbackend rest\n server a {rest}\n\
             backend named.test\n server a {two}\n"
        )
    };
    let addresses = [free_address(), free_address()];
    let weir = Setup::of(&converted(&text(addresses[1]), &[])).start();
    let (_haproxy, folder) = haproxy(&text(addresses[0]), addresses[0]);
    for (name, server) in [
        ("one.test", "one"),
        ("ONE.test", "one"),
        ("two.test", "two"),
        ("a.two.test", "two"),
        ("three.test", "rest"),
        ("xtwo.test", "rest"),
        ("named.test", "two"),
        ("a.named.test", "rest"),
    ] {
        let said = addresses.map(|address| {
            let resolve = format!("{name}:{}:{}", address.port(), address.ip());
            let url = format!("https://{name}:{}/", address.port());
            weir_tests::dialogue::curl(&["--insecure", "--resolve", &resolve, &url])
        });
        assert_eq!(said[0], said[1], "by HAProxy, and by Weir\n{}", weir.story());
        assert!(said[1].starts_with(server), "{name}: {}", said[1]);
    }
    fs::remove_dir_all(folder).expect("removed");
}

#[test]
fn the_file_of_the_seed_relays_as_haproxy_does() {
    let backends = [(); 3].map(|()| Backend::saying("a server"));
    let addresses = [free_address(), free_address()];
    let [of_haproxy, of_weir] = addresses.map(|address| {
        let mut text = SEED.replace("127.0.0.1:3307", &address.to_string());
        for (at, backend) in backends.iter().enumerate() {
            text = text.replace(&format!("192.168.231.20{}:3306", at + 1), &backend.address().to_string());
        }
        text.replace("127.0.0.1:9321", &free_address().to_string())
    });
    let of_haproxy: String = of_haproxy
        .lines()
        .filter(|line| {
            !["pidfile", "user haproxy", "group haproxy", "daemon", "log"]
                .iter()
                .any(|word| line.trim_start().starts_with(word))
        })
        .fold(String::new(), |text, line| text + line + "\n");
    let config = converted(&of_weir, &[]);
    let (before, admin) = config.split_once("[admin]\nbind = \"").expect("an admin API");
    let (_, behind) = admin.split_once('"').expect("its address");
    let weir = Setup::of(&format!("{before}[admin]\nbind = \"@admin\"{behind}")).start();
    let (_haproxy, folder) = haproxy(&of_haproxy, addresses[0]);
    for address in addresses {
        let served = || backends.iter().map(Backend::served).collect::<Vec<_>>();
        let before = served();
        for _ in 0..9 {
            let answer = sends(address, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            assert_eq!(answer.status, 200, "{}", weir.story());
        }
        let each: Vec<usize> = served().iter().zip(before).map(|(now, before)| now - before).collect();
        assert!(each.iter().all(|count| *count > 0), "each of {each:?} answers, by {address}");
    }
    fs::remove_dir_all(folder).expect("removed");
}
