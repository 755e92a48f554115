//! Keys for signed tokens that are fetched from a provider.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::http2::{self, Http2, Outcome};
use weir_tests::dialogue::{
    Authority, Program, ScriptedBackend, Signal, Wire, free_address, until, weir_binary,
};

use super::super::clients::node;
use super::*;

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[listener.web.auth.jwt]
keys = "@keys"
audience = "shop"
claims = { x-user = "sub" }
early_refresh = "1s"
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
"#;

fn with(keys: &str) -> String {
    CONFIG.replace("[pool.app]", &format!("{keys}\n[pool.app]"))
}

/// A key of that name as a provider publishes it, and tokens by it: a good one, and one that is over.
const KEY: &str = r#"
import c from "node:crypto";
const b64 = x => Buffer.from(JSON.stringify(x)).toString("base64url");
const kid = process.argv[1];
const pair = c.generateKeyPairSync("ed25519");
const now = Math.floor(Date.now() / 1000);
const token = (claims, head) => {
  const text = b64({ alg: "EdDSA", kid, ...head }) + "." + b64({ sub: "ann", aud: "shop", exp: now + 600, ...claims });
  return text + "." + c.sign(null, Buffer.from(text), pair.privateKey).toString("base64url");
};
console.log(JSON.stringify({ ...pair.publicKey.export({ format: "jwk" }), kid }));
console.log(token({}, {}));
console.log(token({ exp: now - 600 }, {}));
"#;

struct Key {
    jwk: String,
    good: String,
    over: String,
}

impl Key {
    fn made(kid: &str) -> Key {
        let said = node(KEY, &[kid]);
        let mut lines = said.lines().map(str::to_owned);
        let mut next = || lines.next().expect("a line");
        Key { jwk: next(), good: next(), over: next() }
    }

    /// A token with that name of a key, which nobody has signed.
    fn made_up(kid: &str) -> String {
        // {"aud":"shop","exp":9999999999}
        let payload = "eyJhdWQiOiJzaG9wIiwiZXhwIjo5OTk5OTk5OTk5fQ";
        format!("{}.{payload}.AAAA", base64_url(&format!(r#"{{"alg":"EdDSA","kid":"{kid}"}}"#)))
    }
}

/// Of a text whose length can be divided by three once spaces are behind it.
fn base64_url(json: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let padded = format!("{json}{}", " ".repeat((3 - json.len() % 3) % 3));
    let triples = padded
        .as_bytes()
        .chunks(3)
        .map(|three| three.iter().fold(0u32, |all, byte| all << 8 | u32::from(*byte)));
    let digits =
        triples.flat_map(|triple| [18, 12, 6, 0].map(|shift| DIGITS[(triple >> shift & 63) as usize]));
    digits.map(char::from).collect()
}

fn set_of(keys: &[&Key]) -> String {
    let keys: Vec<&str> = keys.iter().map(|key| key.jwk.as_str()).collect();
    format!(r#"{{"keys": [{}]}}"#, keys.join(", "))
}

/// What a provider answers with now: a status, fields and a body.
type Said = Arc<Mutex<(u16, Vec<(&'static str, String)>, String)>>;

struct Provider {
    backend: Backend,
    said: Said,
}

impl Provider {
    fn saying(set: String) -> Provider {
        Provider::at(free_address(), set)
    }

    fn at(address: SocketAddr, set: String) -> Provider {
        let said: Said = Arc::new(Mutex::new((200, Vec::new(), set)));
        let told = said.clone();
        let backend = Backend::serving_at(address, move |_, wire| {
            let (status, fields, body) = told.lock().unwrap().clone();
            let fields: Vec<(&str, &str)> =
                fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
            wire.answers(status, &fields, body);
            After::Close
        });
        Provider { backend, said }
    }

    fn says(&self, status: u16, fields: &[(&'static str, &str)], body: &str) {
        let fields = fields.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        *self.said.lock().unwrap() = (status, fields, body.to_owned());
    }

    fn url(&self) -> String {
        format!("http://{}/jwks.json?token=hush", self.backend.address())
    }
}

fn setup(config: &str, app: &Backend, keys: &str) -> Setup {
    Setup::of(config).with("app", app.address()).with("keys", keys)
}

fn bearer(weir: &Weir, token: &str) -> Response {
    asked(weir, "GET /", &[&format!("authorization: Bearer {token}")])
}

fn status_of(weir: &Weir, token: &str) -> u16 {
    bearer(weir, token).status
}

/// Waits until the token is answered so.
fn becomes(weir: &Weir, token: &str, status: u16) {
    let mut last = 0;
    until(&format!("status {status}\n{}", weir.story()), || {
        last = status_of(weir, token);
        (last == status).then_some(())
    });
}

fn fetches(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_jwt_key_fetches_total", &[("result", result)])
}

fn waits(weir: &Weir, result: &str) -> f64 {
    weir.metric("weir_jwt_key_waits_total", &[("result", result)])
}

fn explained(weir: &Weir) -> String {
    let url = format!("http://{}/", weir.address("web"));
    weir.command(&["explain", "http", "GET", &url]).stdout
}

/// Serves the files of a folder over TLS.
const PYTHON: &str = r#"
import http.server, ssl, sys
folder, port = sys.argv[1], int(sys.argv[2])
class Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *all): super().__init__(*all, directory=folder)
    def log_message(self, *all): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder + "/localhost.pem", folder + "/localhost.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"#;

#[test]
fn keys_come_over_tls_from_who_proves_to_be_the_provider_and_a_new_one_lets_its_first_token_pass() {
    let (first, second, app) = (Key::made("first"), Key::made("second"), app());
    let authority = Authority::new().signs("localhost", &["localhost"]);
    let file = authority.path("jwks.json");
    let publishes = |keys: &[&Key]| {
        let next = authority.path("next");
        std::fs::write(&next, set_of(keys)).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    publishes(&[&first]);
    let at = free_address();
    let folder = authority.path("");
    let mut python = Command::new(tool("python3", "python3"));
    let _python = Program::start(python.args(["-c", PYTHON, &folder, &at.port().to_string()]), at);
    let url = format!("https://localhost:{}/jwks.json", at.port());
    let mut weir = setup(CONFIG, &app, &url).with_file("ca.pem", &authority.text("ca.pem")).start();

    let answer = bearer(&weir, &first.good);
    assert_eq!(answer.status, 503, "{answer:?}");
    weir.reaches("weir_jwt_key_fetches_total", &[("result", "failed")], 1.0);
    let status = weir.command(&["status"]).stdout;
    assert!(status.contains("none yet, no token passes: no TLS") && status.contains("authority"), "{status}");
    assert!(explained(&weir).contains("none were fetched yet: 503"), "{}", explained(&weir));
    let lines = weir.lines_of("access.log", 1).concat();
    assert!(lines.contains("auth_unavailable"), "{lines}");

    weir.rewrites(&with("ca = \"@dir/nothing.pem\""));
    let said = weir.command(&["reload"]);
    assert!(said.code != 0 && said.stderr.contains("nothing.pem"), "{said:?}");
    weir.reloads(&with("ca = \"@dir/ca.pem\""));
    // It waits for the fetch that the new config begins with.
    assert_eq!(
        (status_of(&weir, &first.good), status_of(&weir, &second.good)),
        (200, 401),
        "{}",
        weir.story()
    );
    assert!(
        explained(&weir).contains(&format!("one of 1 keys from {url} (fetched ")),
        "{}",
        explained(&weir)
    );
    assert_eq!(weir.metric("weir_jwt_keys", &[("source", &url)]), 1.0);

    publishes(&[&second, &first]);
    becomes(&weir, &second.good, 200);
    assert_eq!(status_of(&weir, &first.good), 200);
    publishes(&[&second]);
    assert_eq!(weir.command(&["reload"]).code, 0);
    becomes(&weir, &first.good, 401);
    assert_eq!((status_of(&weir, &second.good), weir.metric("weir_jwt_keys", &[])), (200, 1.0));
    let page = weir.admin().reads("/").response.text();
    let told = |what: &str| page.contains(&format!("keys of {url} {what}"));
    assert!(told("none: no TLS") && told("fetched: 2 keys"), "{page}");
    let checked = weir.command(&["status"]).stdout;
    assert!(!checked.contains("keys of"), "{checked}");
}

#[test]
fn a_key_that_its_provider_has_changed_under_its_name_lets_its_first_token_pass() {
    let (before, after, app) = (Key::made("fix"), Key::made("fix"), app());
    let provider = Provider::saying(set_of(&[&before]));
    let weir = setup(CONFIG, &app, &provider.url()).start();
    becomes(&weir, &before.good, 200);
    provider.says(200, &[], &set_of(&[&after]));
    becomes(&weir, &after.good, 200);
    assert_eq!(status_of(&weir, &before.good), 401);
}

#[test]
fn a_provider_that_is_away_keeps_nobody_in_before_the_first_keys_and_nobody_out_until_they_are_stale() {
    let (key, app, address) = (Key::made("a"), app(), free_address());
    let url = format!("http://{address}/jwks.json?token=hush");
    let mut weir = setup(&with("refresh = \"1s\""), &app, &url).start();
    weir.reaches("weir_jwt_key_fetches_total", &[("result", "failed")], 1.0);
    for (token, status) in [(&*key.good, 503), (&*key.over, 401), ("none", 401), (&*Key::made_up("x"), 503)] {
        assert_eq!(status_of(&weir, token), status, "{token}\n{}", weir.story());
    }
    let closed = bearer(&weir, &key.good);
    assert!(closed.fields.one("www-authenticate").is_none(), "it is no fault of the token's: {closed:?}");
    let provider = Provider::at(address, set_of(&[&key]));
    becomes(&weir, &key.good, 200);

    // Refused connections: the keys hold, and the operator is told.
    provider.backend.dies();
    let failed = fetches(&weir, "failed");
    weir.reaches("weir_jwt_key_fetches_total", &[("result", "failed")], failed + 1.0);
    assert_eq!(status_of(&weir, &key.good), 200);
    let status = weir.command(&["status"]).stdout;
    assert!(status.contains("1 of before hold: no connection"), "{status}");
    assert!(explained(&weir).contains("the last fetch failed: no connection"), "{}", explained(&weir));

    // Neither a reload with other rules nor an upgrade loses them.
    weir.reloads(&with("refresh = \"2s\""));
    assert_eq!(status_of(&weir, &key.good), 200, "{}", weir.story());
    let old = weir.pid();
    weir.signals(Signal::USR2);
    until("the old process ends", || (!weir.is_running(old)).then_some(()));
    weir.reaches("weir_jwt_key_fetches_total", &[("result", "failed")], 1.0);
    assert_eq!((status_of(&weir, &key.good), fetches(&weir, "fetched")), (200, 0.0), "{}", weir.story());

    weir.reloads(&with("stale = \"1s\""));
    becomes(&weir, &key.good, 503);
    assert_eq!(weir.metric("weir_jwt_keys", &[]), 0.0);
    until("told that they are stale", || weir.stderr().contains("no token passes").then_some(()));
    let provider = Provider::at(address, set_of(&[&key]));
    becomes(&weir, &key.good, 200);
    assert!(provider.backend.requests()[0].target.ends_with("/jwks.json?token=hush"));
    let all =
        weir.stderr() + &weir.stdout() + &weir.admin().reads("/metrics").response.text() + &explained(&weir);
    assert!(!all.contains("hush"), "{all}");
}

#[test]
fn j40_made_up_names_of_keys_neither_have_a_provider_asked_without_end_nor_keep_clients_waiting() {
    let (key, app) = (Key::made("a"), app());
    let provider = Provider::saying(set_of(&[&key]));
    let weir = setup(&CONFIG.replace("\"1s\"", "\"1h\""), &app, &provider.url()).start();
    // A request that comes while the keys do may find them only as it begins to wait, which counts.
    weir.reaches("weir_jwt_key_fetches_total", &[("result", "fetched")], 1.0);
    assert_eq!(status_of(&weir, &key.good), 200);
    for number in 0..200 {
        let answer = bearer(&weir, &Key::made_up(&format!("k{number}")));
        let challenge = answer.fields.one("www-authenticate").unwrap_or_default();
        assert!(answer.status == 401 && challenge.contains("a key that is not known"), "{answer:?}");
    }
    assert_eq!((provider.backend.served(), fetches(&weir, "fetched")), (1, 1.0));
    assert_eq!(waits(&weir, "too_soon"), 200.0);
    // A name that is known does not help: its key may be another by now.
    assert_eq!(status_of(&weir, &Key::made_up("a")), 401);
    assert_eq!((provider.backend.served(), waits(&weir, "too_soon")), (1, 201.0));
    // A token that would not be good by any key asks for nothing.
    for token in [Key::made_up("a").replace("eyJhdWQi", "eyJhdWQj"), key.over] {
        assert_eq!(status_of(&weir, &token), 401);
    }
    assert_eq!(waits(&weir, "too_soon"), 201.0);
}

/// A provider that accepts and says nothing until it is told to.
struct Hanging {
    provider: ScriptedBackend,
    key: Key,
    weir: Weir,
    _app: Backend,
}

impl Hanging {
    fn start(more: &str) -> (Hanging, Wire) {
        let (key, app, provider) = (Key::made("a"), app(), ScriptedBackend::start());
        let url = format!("http://{}/jwks.json", provider.address());
        let weir = setup(&with(&format!("fetch_timeout = \"60s\"\n{more}")), &app, &url).start();
        let house = Hanging { provider, key, weir, _app: app };
        let fetch = house.asked();
        (house, fetch)
    }

    /// The next fetch.
    fn asked(&self) -> Wire {
        let mut fetch = self.provider.accepts();
        fetch.receives_until("\r\n\r\n");
        fetch
    }

    fn answers(&self, fetch: &mut Wire) {
        let body = set_of(&[&self.key]);
        fetch.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.key.good)
    }

    /// A client that has asked.
    fn client(&self) -> Wire {
        let mut client = self.weir.client("web");
        client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nauthorization: {}\r\n\r\n", self.bearer()));
        client
    }

    /// A client that waits, once a place is free.
    fn waiting_client(&self) -> Wire {
        until("a place", || {
            let before = self.counted();
            let client = self.client();
            self.is_waiting(before).then_some(client)
        })
    }

    /// Requests by what became of their wish to wait: those that wait first.
    fn counted(&self) -> [f64; 4] {
        ["waited", "no_place", "client_full", "too_soon"].map(|result| waits(&self.weir, result))
    }

    /// Whether the one that came after `before` waits.
    fn is_waiting(&self, before: [f64; 4]) -> bool {
        until("counted", || (self.counted() != before).then_some(()));
        self.counted()[0] > before[0]
    }

    /// A client of an address that ends so, that waits with that token; `None` where it does not.
    fn waiting_with(&self, last: u8, token: &str) -> Option<Wire> {
        let before = self.counted();
        let mut client = client_from(&self.weir, last);
        client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\n\r\n"));
        self.is_waiting(before).then_some(client)
    }

    /// The same request over HTTP/2.
    fn asks(&self, client: &mut Http2, stream: u32) {
        let bearer = self.bearer();
        let fields = [&http2::request("GET", "/")[..], &[("authorization", &*bearer)]].concat();
        client.sends(http2::headers(stream, &fields, true));
    }
}

#[test]
fn while_a_fetch_hangs_few_wait_and_those_who_leave_give_their_places_back() {
    // A quarter of them may be of one client.
    let (house, mut fetch) = Hanging::start("waiting = 12");
    let gone = house.client();
    let mut streams = Http2::client(house.weir.client("web"), b"");
    house.asks(&mut streams, 1);
    let mut stays = house.client();
    house.weir.reaches("weir_jwt_key_waits_total", &[("result", "waited")], 3.0);
    assert_eq!(status_of(&house.weir, &house.key.good), 503, "there is no place");
    assert_eq!(waits(&house.weir, "client_full"), 1.0);
    gone.resets();
    streams.sends(http2::reset(1, 8));
    let mut others = [house.waiting_client(), house.waiting_client()];
    assert_eq!(status_of(&house.weir, &house.key.good), 503, "there is no place again");
    house.answers(&mut fetch);
    assert_eq!(stays.receives_response_to("GET").status, 200);
    for other in &mut others {
        assert_eq!(other.receives_response_to("GET").status, 200);
    }
    house.asks(&mut streams, 3);
    assert_eq!(streams.outcome_of(3), Outcome::Answered(200, b"app 0".to_vec()));
    assert_eq!(house.provider.accepts_if_any().map(|wire| wire.peer()), None, "one fetch was enough");
}

/// Made-up tokens took all places, and the first good ones by a new key were refused as bad.
#[test]
fn j40_one_client_leaves_places_for_others_and_who_has_none_is_not_told_that_its_token_is_bad() {
    let (house, mut fetch) = Hanging::start("waiting = 8");
    house.answers(&mut fetch);
    becomes(&house.weir, &house.key.good, 200);
    let (new, made_up) = (Key::made("b"), Key::made_up("x"));
    let first = until("a fetch that it waits for", || house.waiting_with(1, &made_up));
    let mut fetch = house.asked();
    let second = house.waiting_with(1, &made_up).expect("a quarter of the places are two");
    let refused = bearer(&house.weir, &made_up);
    assert_eq!((refused.status, refused.fields.one("retry-after")), (503, Some("1")), "{refused:?}");
    assert_eq!(waits(&house.weir, "client_full"), 1.0);
    let crowded = [("listener", "web"), ("result", "crowded")];
    assert_eq!(house.weir.metric("weir_auth_requests_total", &crowded), 1.0);
    let mut good = house.waiting_with(2, &new.good).expect("another client has places of its own");
    // All of them are taken: whether a key is new is not known before the fetch has ended.
    let others = [2, 3, 3, 4, 4].map(|last| house.waiting_with(last, &made_up).expect("a place"));
    let mut late = client_from(&house.weir, 5);
    late.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {}\r\n\r\n", new.good));
    let told = late.receives_response_to("GET");
    assert_eq!((told.status, told.fields.one("retry-after")), (503, Some("1")), "{told:?}");
    assert_eq!((waits(&house.weir, "no_place"), status_of(&house.weir, &house.key.good)), (1.0, 200));
    let body = set_of(&[&house.key, &new]);
    fetch.sends(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    assert_eq!(good.receives_response_to("GET").status, 200);
    for mut other in [first, second].into_iter().chain(others) {
        assert_eq!(other.receives_response_to("GET").status, 401);
    }
    assert_eq!(status_of(&house.weir, &new.good), 200);
}

#[test]
fn a_reload_that_fetches_by_other_rules_lets_those_go_who_wait_for_the_fetch_before() {
    let (mut house, mut before) = Hanging::start("");
    let mut client = house.client();
    house.weir.reaches("weir_jwt_key_waits_total", &[("result", "waited")], 1.0);
    house.weir.reloads(&with("fetch_timeout = \"50s\""));
    assert_eq!(client.receives_response_to("GET").status, 503);
    before.receives_close();
    let mut fetch = house.asked();
    let mut client = house.client();
    house.weir.reaches("weir_jwt_key_waits_total", &[("result", "waited")], 2.0);
    house.answers(&mut fetch);
    assert_eq!(client.receives_response_to("GET").status, 200);
}

#[test]
fn answers_that_are_no_keys_are_none_and_what_serves_others_is_skipped() {
    let (key, app) = (Key::made("a"), app());
    let provider = Provider::saying("{}".to_owned());
    let mut weir = setup(&with("fetch_timeout = \"2s\""), &app, &provider.url()).start();
    let set = set_of(&[&key]);
    let secret = r#"{"keys": [{"kty": "oct", "k": "c2VjcmV0"}]}"#;
    let long = format!("{set}{}", " ".repeat(1 << 20));
    for (status, fields, body, why) in [
        (200, vec![], "{}", "it has no list `keys`"),
        (200, vec![], "<html>login</html>", "it is no JSON"),
        (200, vec![], r#"{"keys": []}"#, "none of its 0 keys can be used"),
        (200, vec![], secret, "none of its 1 keys can be used"),
        (200, vec![], &long, "longer than 1048576 bytes"),
        (
            302,
            vec![("location", "/elsewhere")],
            &set,
            "it answered 302 Found to \"/elsewhere\", which is not followed",
        ),
        (404, vec![], &set, "it answered 404"),
        (503, vec![("retry-after", "1")], &set, "it answered 503"),
        (201, vec![], &set, "it answered 201"),
    ] {
        provider.says(status, &fields, body);
        assert_eq!(weir.command(&["reload"]).code, 0);
        let mut last = String::new();
        until(&format!("{why} in the status, which has {last}"), || {
            last = weir.command(&["status"]).stdout;
            last.contains(why).then_some(())
        });
        assert_eq!(status_of(&weir, &key.good), 503, "{why}");
    }
    let others = format!(r#"{{"keys": [{{"kty": "EC", "crv": "secp256k1"}}, 7, {}]}}"#, key.jwk);
    provider.says(200, &[], &others);
    assert_eq!(weir.command(&["reload"]).code, 0);
    becomes(&weir, &key.good, 200);
    assert_eq!((weir.metric("weir_jwt_keys", &[]), weir.metric("weir_jwt_keys_skipped", &[])), (1.0, 2.0));

    // Endless ones, and one that drips: the keys of before stay.
    let endless = |feed: fn(&mut Wire) -> bool| {
        Backend::serving(move |_, wire| {
            wire.sends("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
            while feed(wire) {}
            After::Close
        })
    };
    let flood = endless(|wire| wire.tries_to_send(format!("10000\r\n{}\r\n", " ".repeat(0x10000))).is_ok());
    let drip = endless(|wire| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        wire.tries_to_send("1\r\n \r\n").is_ok()
    });
    for (provider, why) in [(flood, "longer than 1048576 bytes"), (drip, "no whole answer within 2s")] {
        weir.knows("keys", format!("http://{}/jwks.json", provider.address()));
        weir.reloads(&with("fetch_timeout = \"2s\""));
        until(why, || weir.command(&["status"]).stdout.contains(why).then_some(()));
        assert_eq!(status_of(&weir, &key.good), 503, "{why}");
    }
}

/// The `h2` crate ends a connection on which many small frames lie about.
#[test]
fn who_waits_for_keys_may_send_a_body_in_tiny_frames() {
    const SMALL: &[u8] = b"ten bytes.";
    let provider = ScriptedBackend::start();
    let (app, url) = (app(), format!("http://{}/jwks.json", provider.address()));
    let weir = setup(&with("fetch_timeout = \"60s\""), &app, &url).start();
    let mut fetch = provider.accepts();
    let mut client = Http2::client(weir.client("web"), b"");
    let token = format!("Bearer {}", Key::made_up("a"));
    let fields = [&http2::request("POST", "/")[..], &[("authorization", token.as_str())]].concat();
    client.sends(http2::headers(1, &fields, false));
    weir.reaches("weir_jwt_key_waits_total", &[("result", "waited")], 1.0);
    client.sends(http2::frame(http2::kind::DATA, 0, 1, SMALL).repeat(6_000));
    client.sends(http2::frame(http2::kind::PING, 0, 0, b"are read"));
    client.receives(http2::kind::PING, 0);
    fetch.receives_until("\r\n\r\n");
    fetch.sends("HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n");
    client.sends(http2::frame(http2::kind::DATA, http2::END_STREAM, 1, b""));
    assert!(matches!(client.outcome_of(1), Outcome::Answered(503, _)));
}

#[test]
fn a_check_asks_nobody_and_says_what_is_wrong_with_where_keys_come_from() {
    let provider = ScriptedBackend::start();
    let (app, url) = (app(), format!("http://{}/jwks.json", provider.address()));
    let mut weir = setup(&with("waiting = 0"), &app, &url).start();
    let mut fetch = provider.accepts();
    fetch.receives_until("\r\n\r\n");
    let checks = |weir: &Weir| {
        let words = ["check", &weir.config_path()];
        run_tool(&weir_binary(), &words, b"", PATIENCE)
    };
    assert_eq!(checks(&weir).code, 0);
    provider.has_nobody_waiting();
    weir.knows("keys", "http://login.example/jwks.json");
    weir.rewrites(CONFIG);
    let said = checks(&weir);
    let text = said.stdout + &said.stderr;
    assert!(said.code != 0 && text.contains("whoever is in the way could sign tokens"), "{text}");
}
