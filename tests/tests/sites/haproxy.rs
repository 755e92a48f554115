//! The page "A site, from HAProxy": what its haproxy.cfg has a real HAProxy do, its weir.toml has Weir do.
//! Both stand before the same servers (gunicorn, nginx beside it for the checks, Redis), go by the same name
//! server and maps, and log to the same rsyslogd.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use weir_tests::dialogue::{
    Gunicorn, NameServer, Program, Response, Setup, Weir, Wire, free_address, tool, until,
};

use super::{block, replaced};

const PAGE: &str = include_str!("../../../docs/guide/site-from-haproxy.md");

/// Tells which server of the site it is, and what it was told. Caches may keep what is under `/kept`.
const APPLICATION: &str = r#"
import json
def application(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    fields = {k[5:].lower().replace("_", "-"): v for k, v in environ.items() if k.startswith("HTTP_")}
    told = {"server": environ["SERVER_NAME"].split(".")[-1], "method": environ["REQUEST_METHOD"]}
    told.update({"path": environ["RAW_URI"], "body": body.decode(), "fields": fields})
    kept = [("Cache-Control", "public, max-age=60")] if environ["PATH_INFO"] == "/kept" else []
    start_response("200 OK", [("Content-Type", "application/json")] + kept)
    return [json.dumps(told).encode()]
"#;

/// The last numbers of the servers' addresses: three of the app, the last of which no record names at first,
/// and the canary.
const SERVERS: [u8; 4] = [1, 2, 3, 9];
const CANARY: &str = "9";

/// What Weir tells servers unasked; HAProxy has an option for some of it, and passes on what clients send.
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

/// Everything behind the balancers, and beside them.
struct Behind {
    names: NameServer,
    redis: Vec<(SocketAddr, Option<Program>)>,
    syslog: SocketAddr,
    work: u16,
    health: u16,
    _nginx: Program,
    _rsyslog: Program,
    /// The last, since its folder, which goes with it, is everybody's.
    app: Gunicorn,
}

impl Behind {
    fn start(places: &str) -> Behind {
        let (work, health) = (free_address().port(), free_address().port());
        let app =
            Gunicorn::start_at(APPLICATION, &SERVERS.map(|last| SocketAddr::from(([127, 0, 2, last], work))));
        for (name, text) in
            [("places.map", places), ("moved.map", "/old /new\n"), ("tiers.map", "shop.test gold\n")]
        {
            fs::write(app.dir().join(name), text).expect("written");
        }
        let names = NameServer::start();
        for last in [1, 2, 3] {
            names.says(&format!("s{last}.weir.test"), &[&format!("1 A 127.0.2.{last}")]);
        }
        let (primary, first) = redis(None);
        let (copy, second) = redis(Some(primary));
        let redis = vec![(primary, Some(first)), (copy, Some(second))];
        let syslog = free_address();
        let (nginx, rsyslog) = (nginx(&app, health), rsyslog(&app, syslog));
        let behind = Behind { names, redis, syslog, work, health, _nginx: nginx, _rsyslog: rsyslog, app };
        SERVERS.iter().for_each(|last| behind.is_well(*last, true));
        behind.has_servers(&[1, 2]);
        behind
    }

    /// Whether a server says that it is well, which nginx does by the presence of a file.
    fn is_well(&self, server: u8, well: bool) {
        let file = self.app.dir().join(format!("well-{server}"));
        if well { fs::write(file, "") } else { fs::remove_file(file) }.expect("done");
    }

    /// Has the name of the app stand for these.
    fn has_servers(&self, lasts: &[u8]) {
        let records: Vec<String> =
            lasts.iter().map(|last| format!("1 SRV 0 10 {} s{last}.weir.test.", self.work)).collect();
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        self.names.says("_http._tcp.app.weir.test", &records);
    }

    /// Where things are, in both files.
    fn places(&self) -> [(&'static str, String); 6] {
        [
            ("127.0.0.1:514", self.syslog.to_string()),
            ("app.internal", "app.weir.test".to_owned()),
            ("10.0.0.9:8080", format!("127.0.2.9:{}", self.work)),
            ("8081", self.health.to_string()),
            ("10.0.0.21:6379", self.redis[0].0.to_string()),
            ("10.0.0.22:6379", self.redis[1].0.to_string()),
        ]
    }
}

fn redis(of: Option<SocketAddr>) -> (SocketAddr, Program) {
    let address = free_address();
    let mut command = Command::new(tool("redis-server", "redis-server"));
    command.args(["--port", &address.port().to_string(), "--bind", &address.ip().to_string()]);
    command.args(["--save", "", "--appendonly", "no", "--dir", "/tmp"]);
    if let Some(primary) = of {
        command.args(["--replicaof", &primary.ip().to_string(), &primary.port().to_string()]);
    }
    (address, Program::start(&mut command, address))
}

/// What the servers' checks ask, at a port beside their work.
fn nginx(app: &Gunicorn, health: u16) -> Program {
    let dir = app.dir().display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("{of}_temp_path {dir}/{of};\n"))
        .concat();
    let server = |last: u8| {
        format!(
            "server {{ listen 127.0.2.{last}:{health}; location = /healthz {{ try_files /well-{last} =503; }} }}\n"
        )
    };
    let config = format!(
        "user root;\ndaemon off;\nworker_processes 1;\npid {dir}/nginx.pid;\nerror_log stderr;\nevents {{}}\nhttp {{\n{temporary}access_log off;\nroot {dir};\n{}}}\n",
        SERVERS.map(server).concat()
    );
    let file = app.dir().join("nginx.conf");
    fs::write(&file, config).expect("written");
    Program::start(
        Command::new(tool("nginx", "nginx")).arg("-c").arg(file),
        SocketAddr::from(([127, 0, 2, SERVERS[0]], health)),
    )
}

fn rsyslog(app: &Gunicorn, udp: SocketAddr) -> Program {
    let (port, dir) = (udp.port(), app.dir().display());
    let config = format!(
        r#"
        global(workDirectory="{dir}" maxMessageSize="64k")
        module(load="imudp") input(type="imudp" address="127.0.0.1" port="{port}")
        module(load="imuxsock" SysSock.Use="off") input(type="imuxsock" Socket="{dir}/log")
        template(name="seen" type="string" string="%syslogfacility-text%.%syslogseverity-text%|%app-name%|%msg%\n")
        *.* action(type="omfile" file="{dir}/seen" template="seen")
        "#
    );
    let file = app.dir().join("rsyslog.conf");
    fs::write(&file, config).expect("written");
    let mut command = Command::new(tool("rsyslogd", "rsyslog"));
    let socket = app.dir().join("log");
    Program::start_until(command.args(["-n", "-iNONE", "-f"]).arg(file), || socket.exists())
}

/// One of the two, as a client sees it.
#[derive(Clone, Copy)]
struct Balancer {
    name: &'static str,
    web: SocketAddr,
    redis: SocketAddr,
}

impl Balancer {
    fn sends(&self, request: impl AsRef<[u8]>) -> Response {
        let mut client = Wire::connect(self.web);
        client.sends(&request);
        let method = String::from_utf8_lossy(request.as_ref());
        client.receives_response_to(method.split(' ').next().unwrap_or_default())
    }

    fn asks(&self, path: &str, fields: &str) -> Response {
        self.sends(format!("GET {path} HTTP/1.1\r\n{fields}connection: close\r\n\r\n"))
    }

    /// What the server that answers was told.
    fn told(&self, path: &str, fields: &str) -> Value {
        told(&self.asks(path, fields))
    }

    /// Which server answers.
    fn served(&self, fields: &str) -> String {
        server(&self.asks("/", fields))
    }

    /// Which servers answer clients that come without a cookie, but for the canary, which by chance may not.
    fn who(&self) -> Vec<String> {
        let answers = (0..60).map(|_| self.asks("/", "host: a.test\r\n"));
        let mut who: Vec<String> = answers
            .map(|answer| if answer.status == 200 { server(&answer) } else { answer.status.to_string() })
            .collect();
        who.retain(|server| server != CANARY);
        who.sort();
        who.dedup();
        who
    }

    fn comes_to(&self, expected: &[&str]) {
        until(&format!("{} to have {expected:?} answer", self.name), || {
            (self.who() == expected).then_some(())
        });
    }

    /// What the Redis behind the one address says, if one is there.
    fn redis_says(&self, command: &str) -> String {
        let mut wire = Wire::connect(self.redis);
        let _ = wire.tries_to_send(format!("{command}\r\nQUIT\r\n"));
        let mut text = Vec::new();
        let _ = std::io::Read::read_to_end(&mut wire.socket(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

fn told(answer: &Response) -> Value {
    serde_json::from_slice(&answer.body).unwrap_or_else(|problem| panic!("{problem}: {answer:?}"))
}

fn server(answer: &Response) -> String {
    told(answer)["server"].as_str().expect("a server").to_owned()
}

/// What an answer tells of the balancer that it came by: its status, where it leads, and what the server was
/// told, without what is known to differ. Which server it was is a matter of turns, but where a cookie says
/// it.
fn seen(request: &str, answer: &Response) -> Value {
    let mut seen = serde_json::json!({ "status": answer.status, "location": answer.fields.one("location") });
    if answer.fields.one("content-type") == Some("application/json") && !answer.body.is_empty() {
        let mut told = told(answer);
        let fields = told["fields"].as_object_mut().expect("fields");
        TOLD_UNASKED.iter().for_each(|name| drop(fields.remove(*name)));
        if !request.contains("new=1") {
            told["server"] = Value::Null;
        }
        seen["told"] = told;
    }
    seen
}

pub(crate) struct Site {
    weir: Weir,
    by_weir: Balancer,
    by_haproxy: Balancer,
    _haproxy: Program,
    behind: Behind,
}

impl Site {
    fn start() -> Site {
        let site = Site::with_places("192.0.2.0/24 blocked\n127.0.0.0/8 here\n");
        site.both().iter().for_each(|balancer| balancer.comes_to(&["1", "2"]));
        site
    }

    fn with_places(places: &str) -> Site {
        Site::of(places, None)
    }

    /// One where Weir has what `convert` makes of HAProxy's file.
    pub(crate) fn converted(convert: &dyn Fn(&str) -> String) -> Site {
        let site = Site::of("192.0.2.0/24 blocked\n127.0.0.0/8 here\n", Some(convert));
        site.both().iter().for_each(|balancer| balancer.comes_to(&["1", "2"]));
        site
    }

    fn of(places: &str, convert: Option<&dyn Fn(&str) -> String>) -> Site {
        let behind = Behind::start(places);
        let dir = format!("{}/", behind.app.dir().display());
        let of_haproxy = |web: SocketAddr, redis: SocketAddr| {
            let mut pairs = behind.places().to_vec();
            pairs.push(("10.0.0.53:53", behind.names.address().to_string()));
            pairs.push(("bind :80\n", format!("bind {web}\n")));
            pairs.push(("127.0.0.1:6379", redis.to_string()));
            pairs.push(("/etc/haproxy/", dir.clone()));
            replaced(block(PAGE, "haproxy"), &pairs) + "\n"
        };
        let (web, redis) = (free_address(), free_address());
        let config = match convert {
            Some(convert) => convert(&of_haproxy(web, redis)),
            None => {
                let mut pairs = behind.places().to_vec();
                pairs.push(("10.0.0.53", behind.names.address().to_string()));
                pairs.push(("0.0.0.0:80", web.to_string()));
                pairs.push(("127.0.0.1:6379", redis.to_string()));
                pairs.push(("/etc/weir/", dir.clone()));
                replaced(block(PAGE, "toml"), &pairs)
            }
        };
        let weir = Setup::of(&config).start();
        let by_weir = Balancer { name: "Weir", web, redis };

        let by_haproxy = Balancer { name: "HAProxy", web: free_address(), redis: free_address() };
        let file = behind.app.dir().join("haproxy.cfg");
        fs::write(&file, of_haproxy(by_haproxy.web, by_haproxy.redis)).expect("written");
        let mut command = Command::new(tool("haproxy", "haproxy"));
        command.arg("-db").arg("-f").arg(file).stdin(Stdio::null());
        let haproxy = Program::start(&mut command, by_haproxy.web);
        Site { weir, by_weir, by_haproxy, _haproxy: haproxy, behind }
    }

    /// Sends both the same requests, and compares what comes of them.
    pub(crate) fn answers_alike(&self) {
        for request in [
            "GET / HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "GET /a/b;c?d=e%20f&g HTTP/1.1\r\nhost: Shop.Test:80\r\naccept: text/*\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: other.test\r\nx-tier: gold\r\nX-TIER: silver\r\n\r\n",
            "HEAD / HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "POST /a HTTP/1.1\r\nhost: shop.test\r\ncontent-length: 5\r\n\r\nhello",
            "DELETE /a HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "OPTIONS /a HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            // What has moved, and what only looks like it.
            "GET /old HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "GET /old?a=b HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "HEAD /old HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "POST /old HTTP/1.1\r\nhost: shop.test\r\ncontent-length: 0\r\n\r\n",
            "GET /old HTTP/1.1\r\nhost: shop.test\r\ncookie: new=1\r\n\r\n",
            "GET /old/ HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "GET /OLD HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "GET //old HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            "GET /older HTTP/1.1\r\nhost: shop.test\r\n\r\n",
            // Who wants what is new.
            "GET / HTTP/1.1\r\nhost: shop.test\r\ncookie: new=1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: shop.test\r\ncookie: a=b; new=1; c=d\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: shop.test\r\ncookie: new=2; new=1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: shop.test\r\ncookie: new=2\r\ncookie: new=1\r\n\r\n",
        ] {
            let [there, here] = self.both().map(|balancer| seen(request, &balancer.sends(request)));
            assert_eq!(there, here, "by HAProxy, and by Weir\n{request}");
        }
    }

    fn both(&self) -> [Balancer; 2] {
        [self.by_haproxy, self.by_weir]
    }
}

fn cookie_of(answer: &Response) -> String {
    let set = answer.fields.one("set-cookie").expect("a cookie");
    assert!(set.starts_with("SERVERID=") && set.contains("HttpOnly"), "{set}");
    set.split(';').next().unwrap_or_default().to_owned()
}

/// The first answer of the app itself, and not of its canary.
fn of_app(balancer: Balancer, path: &str, fields: &str) -> Response {
    until("the app to answer", || {
        let answer = balancer.asks(path, fields);
        (server(&answer) != CANARY).then_some(answer)
    })
}

#[test]
fn both_answer_alike() {
    let site = Site::start();
    site.answers_alike();
    let answer = site.by_weir.asks("/old", "host: a.test\r\n");
    assert_eq!((answer.status, answer.fields.one("location")), (301, Some("/new")));
    for (host, tier) in [("Shop.Test:80", "gold"), ("other.test", "free")] {
        let told = site.by_weir.told("/", &format!("host: {host}\r\n"));
        assert_eq!(told["fields"]["x-tier"], tier, "{told}");
    }
    for near in ["new=2", "news=1", "new=11", "New=1"] {
        for balancer in site.both() {
            let fields = format!("host: a.test\r\ncookie: {near}\r\n");
            until(&format!("{} to leave {near} to the app", balancer.name), || {
                (balancer.served(&fields) != CANARY).then_some(())
            });
        }
    }
}

#[test]
fn where_they_differ_is_what_the_page_says() {
    let site = Site::start();
    let [there, here] = site.both();
    // Paths in their normal form, hosts with a dot behind.
    for path in ["/%6fld", "/x/../old"] {
        assert_eq!(there.told(path, "host: a.test\r\n")["path"], path);
        let answer = here.asks(path, "host: a.test\r\n");
        assert_eq!((answer.status, answer.fields.one("location")), (301, Some("/new")), "{path}");
    }
    assert_eq!(here.told("/x/../%61?%61", "host: a.test\r\n")["path"], "/a?%61");
    let tier = |balancer: Balancer| balancer.told("/", "host: shop.test.\r\n")["fields"]["x-tier"].clone();
    assert_eq!((tier(there), tier(here)), ("free".into(), "gold".into()));
    // What is refused before any server hears of it.
    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: \r\n\r\n", 400),
        ("TRACE / HTTP/1.1\r\nhost: a.test\r\n\r\n", 405),
    ] {
        let statuses = (there.sends(request).status, here.sends(request).status);
        assert_eq!(statuses, (200, status), "{request}");
    }
    // What caches are told of an answer with the cookie that says nothing of caches itself.
    let told_caches = |balancer: Balancer| of_app(balancer, "/", "host: a.test\r\n").fields;
    assert_eq!(told_caches(there).one("cache-control"), None);
    assert_eq!(told_caches(here).one("cache-control"), Some("private"));
    let same_site = |balancer: Balancer| {
        let fields = of_app(balancer, "/kept", "host: a.test\r\n").fields;
        fields.one("set-cookie").map(|set| set.contains("SameSite=Lax"))
    };
    assert_eq!((same_site(there), same_site(here)), (Some(false), Some(true)));
    // What clients claim, and what servers are told unasked.
    let fields = "host: a.test\r\nx-forwarded-for: 192.0.2.1\r\n";
    let told = there.told("/", fields)["fields"].clone();
    let unasked: Vec<&&str> = TOLD_UNASKED.iter().filter(|name| !told[**name].is_null()).collect();
    assert_eq!((unasked, &told["x-forwarded-for"]), (vec![&"x-forwarded-for"], &"192.0.2.1".into()));
    let told = here.told("/", fields)["fields"].clone();
    assert!(TOLD_UNASKED.iter().all(|name| told[*name].is_string()), "{told}");
    assert_eq!(told["x-forwarded-for"], "127.0.0.1");
}

#[test]
fn a_blocked_network_gets_403_and_a_changed_map_is_in_force_by_itself() {
    let site = Site::with_places("127.0.0.0/8 blocked\n");
    for balancer in site.both() {
        assert_eq!(balancer.asks("/old", "host: a.test\r\n").status, 403, "{}", balancer.name);
    }
    fs::write(site.behind.app.dir().join("places.map"), "192.0.2.0/24 blocked\n").expect("written");
    site.by_weir.comes_to(&["1", "2"]);
    assert_eq!(site.by_haproxy.asks("/", "host: a.test\r\n").status, 403, "it is not told");
    let url = format!("http://{}/", site.by_weir.web);
    let explained = site.weir.command(&["explain", "http", "--from", "192.0.2.7", "GET", &url]);
    assert!(explained.succeeded().contains("respond 403"), "{explained:?}");
}

#[test]
fn a_cookie_keeps_a_client_on_its_server_and_the_canary_has_a_share() {
    let site = Site::start();
    for balancer in site.both() {
        let name = balancer.name;
        let new = (0..300).filter(|_| balancer.served("host: a.test\r\n") == CANARY).count();
        // Five standard deviations of so many draws.
        assert!((4..=56).contains(&new), "{new} of 300 by {name}");
        let first = of_app(balancer, "/", "host: a.test\r\ncookie: SERVERID=forged\r\n");
        let (own, cookie) = (server(&first), cookie_of(&first));
        let fields = format!("host: a.test\r\ncookie: a=b; {cookie}; c=d\r\n");
        for _ in 0..40 {
            let answer = balancer.asks("/", &fields);
            let server = server(&answer);
            assert!(server == CANARY || server == own, "{server} and not {own} by {name}");
            assert_eq!(answer.fields.one("set-cookie"), None, "it has one by {name}");
        }
        let told = told(&of_app(balancer, "/", &fields))["fields"]["cookie"].clone();
        assert_eq!(told, "a=b; c=d", "{name} keeps its cookie from the servers");
        // What caches are told of an answer with the cookie, and of one without.
        let kept = of_app(balancer, "/kept", "host: a.test\r\n").fields;
        assert_eq!(kept.all("cache-control"), ["public, max-age=60", "private"], "{name}");
        let kept = of_app(balancer, "/kept", &fields).fields;
        assert_eq!(kept.all("cache-control"), ["public, max-age=60"], "{name}");
        // Its server is gone: another one, and the cookie of that.
        let last: u8 = own.parse().expect("a number");
        site.behind.is_well(last, false);
        balancer.comes_to(&[if last == 1 { "2" } else { "1" }]);
        let again = of_app(balancer, "/", &fields);
        assert!(server(&again) != own && cookie_of(&again) != cookie, "{again:?} by {name}");
        site.behind.is_well(last, true);
        site.both().iter().for_each(|balancer| balancer.comes_to(&["1", "2"]));
    }
}

#[test]
fn servers_come_with_records_and_go_with_their_checks_on_another_port() {
    let site = Site::start();
    let both_come_to =
        |expected: &[&str]| site.both().iter().for_each(|balancer| balancer.comes_to(expected));
    site.behind.is_well(1, false);
    both_come_to(&["2"]);
    site.behind.has_servers(&[1, 2, 3]);
    both_come_to(&["2", "3"]);
    site.behind.is_well(1, true);
    both_come_to(&["1", "2", "3"]);
    site.behind.has_servers(&[1, 3]);
    both_come_to(&["1", "3"]);
    // The canary's share goes to the others while it is down, and by HAProxy to nobody.
    site.behind.is_well(9, false);
    for balancer in site.both() {
        until("the canary to be out", || {
            let answer = balancer.asks("/", "host: a.test\r\ncookie: new=1\r\n");
            (answer.status == 503).then_some(())
        });
    }
    let lost = |balancer: Balancer| {
        (0..300).filter(|_| balancer.asks("/", "host: a.test\r\n").status == 503).count()
    };
    assert_eq!(lost(site.by_weir), 0);
    assert!(lost(site.by_haproxy) > 0);
}

#[test]
fn clients_of_redis_speak_with_the_primary_whichever_it_is() {
    let mut site = Site::start();
    let copy = site.behind.redis[1].0;
    // HAProxy takes turns, so that a copy which is not out is among a few; Weir says how it sees them.
    until("Weir to have the copy out", || {
        let pool = site.weir.admin().reads("/v1/pools/redis").json();
        (pool["backends"][1]["health"] == "down" && pool["backends"][0]["health"] == "up").then_some(())
    });
    for balancer in site.both() {
        let name = balancer.name;
        until(&format!("{name} to have the copy out"), || {
            (0..4).all(|_| balancer.redis_says("INFO replication").contains("role:master")).then_some(())
        });
        assert!(balancer.redis_says(&format!("SET {name} hello")).starts_with("+OK"));
        until("the copy to have it", || {
            let mut wire = Wire::connect(copy);
            wire.sends(format!("GET {name}\r\nQUIT\r\n"));
            String::from_utf8_lossy(&wire.receives_to_the_end()).contains("hello").then_some(())
        });
    }
    // The primary dies, and somebody promotes the copy.
    drop(site.behind.redis[0].1.take());
    let mut wire = Wire::connect(copy);
    wire.sends("REPLICAOF NO ONE\r\nQUIT\r\n");
    assert!(wire.receives_to_the_end().starts_with(b"+OK"));
    for balancer in site.both() {
        until(&format!("{} to serve by the new primary", balancer.name), || {
            (0..4).all(|_| balancer.redis_says("GET Weir").contains("hello")).then_some(())
        });
    }
}

#[test]
fn rsyslogd_gets_a_line_for_each_request() {
    let site = Site::start();
    let seen = site.behind.app.dir().join("seen");
    let paths: Vec<String> = (0..20).map(|number| format!("/line-{number}?a=b")).collect();
    for balancer in site.both() {
        paths.iter().for_each(|path| drop(balancer.asks(path, "host: a.test\r\n")));
    }
    for (app, quoted) in [("haproxy", "\"GET /line-"), ("weir", "/line-")] {
        let lines = until(&format!("20 lines of {app}"), || {
            let text = fs::read_to_string(&seen).unwrap_or_default();
            let of_app =
                |line: &&str| line.starts_with(&format!("local0.info|{app}|")) && line.contains(quoted);
            let lines: Vec<String> = text.lines().filter(of_app).map(str::to_owned).collect();
            (lines.len() >= 20).then_some(lines)
        });
        assert_eq!(lines.len(), 20, "{lines:?}");
        for line in lines.iter().filter(|_| app == "weir") {
            let message = line.splitn(3, '|').nth(2).unwrap_or_default().trim_start();
            let told: Value = serde_json::from_str(message).unwrap_or_else(|it| panic!("{it}: {line}"));
            assert!(told["status"] == 200 && told["listener"] == "web" && told["end"].is_string(), "{line}");
        }
    }
}
