//! The page "A site, from nginx": what its nginx.conf has a real nginx do, its weir.toml has Weir do.

use std::net::SocketAddr;
use std::process::{Child, Stdio};

use super::*;
use weir_tests::dialogue::{After, Backend, Weir, until, weir_binary};

const PAGE: &str = include_str!("../../../docs/guide/site-from-nginx.md");

/// Tells what it was told. Answers under `/slow` and `/reports/slow` take four seconds.
const APPLICATION: &str = r#"
import json, time
def application(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    path = environ["PATH_INFO"]
    if path.endswith("/slow"): time.sleep(4)
    told = {"path": path, "query": environ["QUERY_STRING"], "length": len(body)}
    for name in ["host", "x-forwarded-for", "x-forwarded-proto", "x-auth-request-user", "authorization"]:
        told[name] = environ.get("HTTP_" + name.upper().replace("-", "_"), "")
    status = {"/broken": "500 Internal Server Error", "/missing": "404 Not Found"}.get(path, "200 OK")
    start_response(status, [("Content-Type", "application/json"), ("X-Powered-By", "snakes")])
    return [json.dumps(told).encode()]
"#;

/// People sign in by a form, with a password of the file; a real site names its provider here.
const OAUTH2_PROXY: &str = r#"
reverse_proxy = true
trusted_proxy_ips = ["127.0.0.1"]
upstreams = ["static://202"]
set_xauthrequest = true
provider = "github"
client_id = "shop"
client_secret = "none"
cookie_secret = "0123456789abcdef0123456789abcdef"
email_domains = ["*"]
"#;

/// A text frame of a WebSocket, "Hello" (RFC 6455 section 5.7).
const HELLO: &[u8] = b"\x81\x05Hello";

/// Everything behind the balancer.
struct Behind {
    authority: Authority,
    app: Gunicorn,
    live: Backend,
    oauth2: SocketAddr,
    _oauth2: Program,
}

impl Behind {
    fn start() -> Behind {
        let authority = Authority::new().signs("shop", &["shop.example.com", "www.shop.example.com"]);
        let users =
            run_tool(&tool("htpasswd", "apache2-utils"), &["-nbBC", "4", "ann", "secret"], b"", PATIENCE);
        let users_file = authority.path("users");
        std::fs::write(&users_file, users.succeeded()).expect("written");
        std::fs::create_dir(authority.path("pages")).expect("made");
        std::fs::write(authority.path("pages/sorry.html"), "<p>Sorry.</p>\n").expect("written");
        let config = authority.path("oauth2.cfg");
        let oauth2 = free_address();
        let own = format!("http_address = \"{oauth2}\"\nhtpasswd_file = \"{users_file}\"\n");
        std::fs::write(&config, own + OAUTH2_PROXY).expect("written");
        let program = client_program("bin/oauth2-proxy");
        let program = Program::start(Command::new(program).args(["--config", &config]), oauth2);
        Behind { authority, app: Gunicorn::start(APPLICATION), live: live(), oauth2, _oauth2: program }
    }

    /// Where things are, in both files.
    fn places(&self) -> [(&'static str, String); 3] {
        [
            ("unix:/run/shop/app.sock", format!("unix:{}", self.app.socket().display())),
            ("127.0.0.1:9000", self.live.address().to_string()),
            ("127.0.0.1:4180", self.oauth2.to_string()),
        ]
    }
}

/// Greets who opens a WebSocket, and leaves.
fn live() -> Backend {
    Backend::serving(|request, wire| {
        if !request.fields.lists("upgrade", "websocket") {
            wire.answers(200, &[], "a probe");
            return After::Keep;
        }
        wire.sends("HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n");
        wire.sends("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n");
        wire.sends(HELLO);
        After::Close
    })
}

/// Where things are, in the file for nginx.
fn nginx_pairs(behind: &Behind, plain: SocketAddr, secure: SocketAddr) -> Vec<(&'static str, String)> {
    let mut pairs = behind.places().to_vec();
    pairs.push(("listen 80;", format!("listen {plain};")));
    pairs.push(("listen 443 ", format!("listen {secure} ")));
    pairs.push(("/var/log/nginx/shop.log", behind.authority.path("shop.log")));
    pairs.push(("/etc/nginx/", behind.authority.path("")));
    pairs
}

/// A balancer with the site.
struct Site {
    plain: SocketAddr,
    secure: SocketAddr,
    log: String,
    behind: Behind,
    nginx: Option<Program>,
    weir: Option<Weir>,
}

impl Site {
    fn by_nginx() -> Site {
        let behind = Behind::start();
        let (plain, secure) = (free_address(), free_address());
        let log = behind.authority.path("shop.log");
        let page = replaced(block(PAGE, "nginx"), &nginx_pairs(&behind, plain, secure));
        let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|of| format!("{of}_temp_path {};\n", behind.authority.path(of)))
            .concat();
        let config = format!(
            "user root;\ndaemon off;\nworker_processes 1;\npid {};\nerror_log stderr;\nevents {{}}\nhttp {{\n{temporary}access_log off;\n{page}\n}}\n",
            behind.authority.path("nginx.pid")
        );
        let file = behind.authority.path("nginx.conf");
        std::fs::write(&file, config).expect("written");
        let nginx = Program::start(Command::new(tool("nginx", "nginx")).args(["-c", &file]), secure);
        Site { plain, secure, log, behind, nginx: Some(nginx), weir: None }
    }

    fn by_weir() -> Site {
        Site::by_weir_but(&[])
    }

    fn by_weir_but(changes: &[(&str, &str)]) -> Site {
        let behind = Behind::start();
        let mut pairs = behind.places().to_vec();
        pairs.push(("0.0.0.0:80", "@plain".to_owned()));
        pairs.push(("0.0.0.0:443", "@secure".to_owned()));
        pairs.push(("/var/log/weir/shop.log", behind.authority.path("shop.log")));
        pairs.push(("/etc/weir/", behind.authority.path("")));
        pairs.extend(changes.iter().map(|(from, to)| (*from, (*to).to_owned())));
        let weir = behind.authority.setup(&replaced(block(PAGE, "toml"), &pairs)).start();
        let (plain, secure) = (weir.address("plain"), weir.address("secure"));
        let log = behind.authority.path("shop.log");
        Site { plain, secure, log, behind, nginx: None, weir: Some(weir) }
    }

    /// Weir with what `weir convert` makes of the file for nginx.
    fn by_converted() -> Site {
        let behind = Behind::start();
        let (plain, secure) = (free_address(), free_address());
        let log = behind.authority.path("shop.log");
        let page = replaced(block(PAGE, "nginx"), &nginx_pairs(&behind, plain, secure));
        let file = behind.authority.path("nginx.conf");
        std::fs::write(&file, format!("http {{\n{page}\n}}\n")).expect("written");
        let finished = run_tool(&weir_binary(), &["convert", &file], b"", PATIENCE);
        let converted = finished.succeeded();
        let unsupported = finished.stderr.lines().find(|line| line.starts_with("unsupported"));
        assert_eq!(unsupported, None, "{}", finished.stderr);
        let weir = behind.authority.setup(converted).start();
        Site { plain, secure, log, behind, nginx: None, weir: Some(weir) }
    }

    /// curl with these arguments, as it stands before the site under its name.
    fn words(&self, arguments: &[&str], url: &str) -> Vec<String> {
        let to =
            |port: u16, at: SocketAddr| format!("::{port}:{}:{}", at.ip(), at.port()).replacen("::", ":", 1);
        let mut words: Vec<String> =
            ["--silent", "--show-error", "--include", "--path-as-is", "--noproxy", "*"]
                .iter()
                .chain(["--max-time", "60", "--connect-to"].iter())
                .map(|word| (*word).to_owned())
                .collect();
        words.push(to(80, self.plain));
        words.push("--connect-to".to_owned());
        words.push(to(443, self.secure));
        words.extend(["--cacert".to_owned(), self.behind.authority.path("ca.pem")]);
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        words.push(url.to_owned());
        words
    }

    fn curl(&self, arguments: &[&str], url: &str) -> Answer {
        let words = self.words(arguments, url);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let finished = run_tool(&tool("curl", "curl"), &words, b"", PATIENCE * 3);
        Answer(finished.succeeded().to_owned())
    }

    /// The answer for a path of the shop.
    fn asks(&self, arguments: &[&str], path: &str) -> Answer {
        self.curl(arguments, &format!("https://shop.example.com{path}"))
    }

    /// A curl that goes on by itself.
    fn begins(&self, arguments: &[&str], path: &str) -> Child {
        let words = self.words(arguments, &format!("https://shop.example.com{path}"));
        let mut curl = Command::new(tool("curl", "curl"));
        curl.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        curl.spawn().expect("started")
    }

    fn leads_everybody_to_its_name_over_tls(&self) {
        for url in [
            "http://shop.example.com/a?b=c",
            "http://www.shop.example.com/a?b=c",
            "https://www.shop.example.com/a?b=c",
        ] {
            let answer = self.curl(&[], url);
            assert_eq!(
                (answer.status(), answer.one("location")),
                ("301", "https://shop.example.com/a?b=c"),
                "{url}"
            );
        }
        let answer = self.asks(&[], "/item/7");
        assert_eq!(answer.status(), "301");
        assert!(answer.one("location").ends_with("/products/7"), "{}", answer.0);
    }

    fn tells_the_app_who_asks(&self) {
        let answer = self.asks(&["--header", "x-auth-request-user: root"], "/products/7?x=1");
        assert!(answer.0.starts_with("HTTP/2 200"), "{}", answer.0);
        assert_eq!(answer.one("strict-transport-security"), "max-age=31536000");
        assert_eq!(answer.one("x-powered-by"), "");
        for said in [
            r#""path": "/products/7", "query": "x=1""#,
            r#""host": "shop.example.com", "x-forwarded-for": "127.0.0.1", "x-forwarded-proto": "https""#,
            r#""x-auth-request-user": """#,
        ] {
            answer.says(said);
        }
        let answer = self.asks(&[], "/api/v2/things?x=1");
        answer.says(r#""path": "/api/things""#);
        assert!(answer.0.contains("version=2&x=1") || answer.0.contains("x=1&version=2"), "{}", answer.0);
        self.asks(&[], "/healthz").says("ok\n");
    }

    fn shows_its_page_for_errors_of_the_app_but_not_for_what_it_misses(&self) {
        let broken = self.asks(&[], "/broken");
        assert_eq!(broken.status(), "500");
        broken.says("<p>Sorry.</p>");
        assert_eq!(broken.one("strict-transport-security"), "max-age=31536000");
        let missing = self.asks(&[], "/missing");
        assert_eq!(missing.status(), "404");
        missing.says(r#""path": "/missing""#);
    }

    fn takes_large_bodies_only_where_they_belong(&self) {
        let file = self.behind.authority.path("large");
        std::fs::write(&file, vec![b'x'; 2 << 20]).expect("written");
        let data = format!("@{file}");
        // curl 7.88 waits forever for an answer of HTTP/2 that ends before its upload.
        let arguments = ["--http1.1", "--data-binary", &data];
        assert_eq!(self.asks(&arguments, "/comments").status(), "413");
        self.asks(&arguments, "/upload/x").says(r#""length": 2097152"#);
    }

    fn serves_others_while_one_uploads_slowly(&self) {
        let file = self.behind.authority.path("slow");
        std::fs::write(&file, vec![b'x'; 400 << 10]).expect("written");
        let data = format!("@{file}");
        let mut upload =
            self.begins(&["--http1.1", "--limit-rate", "10k", "--data-binary", &data], "/upload/slowly");
        for _ in 0..3 {
            self.asks(&[], "/products/8").says(r#""path": "/products/8""#);
        }
        let meanwhile = upload.try_wait().expect("asked").is_none();
        let _ = upload.kill();
        let _ = upload.wait();
        assert!(meanwhile, "the upload was still under way");
    }

    fn opens_web_sockets(&self) {
        let fields = ["connection: Upgrade", "upgrade: websocket", "sec-websocket-version: 13"];
        let mut arguments = vec!["--http1.1", "--header", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="];
        arguments.extend(fields.iter().flat_map(|field| ["--header", *field]));
        let answer = self.asks(&arguments, "/live/prices");
        assert_eq!(answer.status(), "101");
        answer.says("Hello");
    }

    fn keeps_staging_behind_a_password(&self) {
        let answer = self.asks(&["--user", "ann:wrong"], "/staging/x");
        assert_eq!(answer.status(), "401");
        assert!(answer.one("www-authenticate").starts_with("Basic realm=\"Staging\""), "{}", answer.0);
        let answer = self.asks(&["--user", "ann:secret"], "/staging/x");
        answer.says(r#""x-auth-request-user": "ann", "authorization": """#);
    }

    fn has_people_sign_in_before_the_admin_pages(&self) {
        for path in ["/admin/x?y=1", "/%61dmin/x", "/x/../admin/x", "/staging/../admin/x"] {
            let answer = self.asks(&["--user", "ann:secret", "--header", "x-auth-request-user: root"], path);
            assert!(
                answer.status() == "403" || answer.0.contains(r#""x-auth-request-user": "ann""#),
                "{}",
                answer.0
            );
        }
        let answer = self.asks(&[], "/admin/x?y=1");
        assert_eq!(answer.status(), "403");
        answer.says(r#"<input type="hidden" name="rd" value="/admin/x?y=1">"#);
        let jar = self.behind.authority.path("jar");
        let form = "username=ann&password=secret&rd=/admin/x?y=1";
        let answer = self.asks(&["--data", form, "--cookie-jar", &jar], "/oauth2/sign_in");
        assert_eq!((answer.status(), answer.one("location")), ("302", "/admin/x?y=1"));
        let answer = self.asks(&["--cookie", &jar, "--header", "x-auth-request-user: root"], "/admin/x?y=1");
        answer.says(r#""path": "/admin/x", "query": "y=1""#);
        answer.says(r#""x-auth-request-user": "ann""#);
        let answer = self.asks(&["--cookie", "_oauth2_proxy=forged"], "/admin/x");
        assert_eq!(answer.status(), "403");
    }

    fn slows_down_who_tries_passwords(&self) {
        let mut arguments = vec!["--data", "user=ann&password=guess"];
        let more: Vec<String> = (0..29).map(|_| "https://shop.example.com/login".to_owned()).collect();
        arguments.extend(more.iter().map(String::as_str));
        let all = self.asks(&arguments, "/login");
        let count = |status: &str| all.0.matches(&format!("HTTP/2 {status}")).count();
        assert!(count("200") >= 5 && count("429") >= 1, "{}", all.0);
        assert_eq!(count("200") + count("429"), 30, "{}", all.0);
    }

    fn logs_in_the_format(&self) {
        let log = until("the log to have it", || {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            log.contains("/staging/x").then_some(log)
        });
        let line = log.lines().find(|line| line.contains("/products/7")).expect("a line");
        let begins = r#"127.0.0.1 "GET /products/7?x=1 HTTP/2.0" 200 "curl/"#;
        assert!(line.starts_with(begins), "{line}");
        let seconds = line.rsplit(' ').next().and_then(|last| last.parse::<f64>().ok());
        assert!(seconds.is_some(), "{line}");
        assert!(!log.contains("healthz"), "{log}");
    }

    fn does_what_the_page_says(&self) {
        self.does_most_of_what_the_page_says();
        self.has_people_sign_in_before_the_admin_pages();
    }

    /// All but how people are led to sign in.
    fn does_most_of_what_the_page_says(&self) {
        self.leads_everybody_to_its_name_over_tls();
        self.tells_the_app_who_asks();
        self.shows_its_page_for_errors_of_the_app_but_not_for_what_it_misses();
        self.takes_large_bodies_only_where_they_belong();
        self.serves_others_while_one_uploads_slowly();
        self.opens_web_sockets();
        self.keeps_staging_behind_a_password();
        self.slows_down_who_tries_passwords();
        self.logs_in_the_format();
    }
}

#[test]
fn nginx_does_what_the_page_says() {
    let mut site = Site::by_nginx();
    site.does_what_the_page_says();
    assert!(site.nginx.as_mut().is_some_and(Program::is_running));
}

#[test]
fn weir_does_the_same() {
    let site = Site::by_weir();
    site.does_what_the_page_says();
    let weir = site.weir.as_ref().expect("it is by Weir");
    let explained = |path: &str| {
        let url = format!("https://shop.example.com{path}");
        weir.command(&["explain", "http", "--listener", "web", "GET", &url]).stdout
    };
    for (path, said) in [
        ("/reports/x", "10m"),
        ("/admin/x", "pool oauth2 is asked"),
        ("/api/v2/things", "/api/things?version=2"),
        ("/item/7", "/products/7"),
    ] {
        let text = explained(path);
        assert!(text.contains(said), "{said}\n{text}");
    }
}

#[test]
fn weir_does_the_same_with_the_converted_file() {
    let site = Site::by_converted();
    site.does_most_of_what_the_page_says();
    for path in ["/admin/x?y=1", "/%61dmin/x", "/x/../admin/x", "/staging/../admin/x"] {
        let answer = site.asks(&["--user", "ann:wrong", "--header", "x-auth-request-user: root"], path);
        assert_eq!(answer.status(), "401", "{path}: {}", answer.0);
        let answer = site.asks(&["--header", "accept: text/html"], path);
        assert_eq!((answer.status(), answer.one("location")), ("302", "/oauth2/sign_in"), "{path}");
    }
    let jar = site.behind.authority.path("jar");
    let form = "username=ann&password=secret&rd=/admin/x?y=1";
    let answer = site.asks(&["--data", form, "--cookie-jar", &jar], "/oauth2/sign_in");
    assert_eq!((answer.status(), answer.one("location")), ("302", "/admin/x?y=1"));
    let answer = site.asks(&["--cookie", &jar, "--header", "x-auth-request-user: root"], "/admin/x?y=1");
    answer.says(r#""path": "/admin/x", "query": "y=1""#);
    answer.says(r#""x-auth-request-user": "ann""#);
    let answer = site.asks(&["--cookie", "_oauth2_proxy=forged"], "/admin/x");
    assert_eq!(answer.status(), "401");
}

#[test]
fn a_slow_report_is_waited_for_and_a_slow_page_is_not() {
    let site = Site::by_weir_but(&[("[pool.app]\n", "[pool.app]\ntimeout = { backend = \"3s\" }\n")]);
    assert_eq!(site.asks(&[], "/reports/slow").status(), "200");
    let answer = site.asks(&[], "/slow");
    assert_eq!(answer.status(), "504");
    answer.says("<p>Sorry.</p>");
}
