//! Signed tokens.

use weir_tests::dialogue::Setup;

use super::super::clients::node;
use super::*;

const JWT: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[listener.web.auth.jwt]
keys = "@dir/jwks.json"
issuer = "https://login.example"
audience = ["shop", "other"]
leeway = "5s"
claims = { x-user = "sub", x-roles = "realm.roles" }
[[listener.web.route]]
path = "/cookie/*"
pool = "app"
auth = { jwt = { keys = "@dir/jwks.json", audience = "shop", cookie = "token" } }
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
"#;

/// Makes keys of each kind and tokens by them, and others as attackers do: lines of a name and a token,
/// behind the set of public keys.
const TOKENS: &str = r#"
import c from "node:crypto";
const b64 = x => Buffer.from(typeof x === "string" ? x : JSON.stringify(x)).toString("base64url");
const rsa = c.generateKeyPairSync("rsa", { modulusLength: 2048 });
const p256 = c.generateKeyPairSync("ec", { namedCurve: "P-256" });
const p384 = c.generateKeyPairSync("ec", { namedCurve: "P-384" });
const ed = c.generateKeyPairSync("ed25519");
const stranger = c.generateKeyPairSync("rsa", { modulusLength: 2048 });
const others = { wraps: { key_ops: ["wrapKey"] }, listed: { use: ["sig"] }, both: { use: "sig", key_ops: ["sign"] } };
for (const kid in others) others[kid] = [c.generateKeyPairSync("ed25519"), { kid, ...others[kid] }];
const jwk = (pair, more) => ({ ...pair.publicKey.export({ format: "jwk" }), ...more });
console.log(JSON.stringify({ keys: [
  jwk(rsa, { kid: "rsa", use: "sig" }), jwk(p256, { kid: "p256", alg: "ES256" }),
  jwk(p384, { kid: "p384", key_ops: ["verify"] }), jwk(ed, {}),
  ...Object.values(others).map(([pair, more]) => jwk(pair, more)) ] }));
const pss = { padding: c.constants.RSA_PKCS1_PSS_PADDING, saltLength: c.constants.RSA_PSS_SALTLEN_DIGEST };
const ways = {
  RS256: [rsa, "sha256", {}], RS384: [rsa, "sha384", {}], RS512: [rsa, "sha512", {}],
  PS256: [rsa, "sha256", pss], PS384: [rsa, "sha384", pss], PS512: [rsa, "sha512", pss],
  ES256: [p256, "sha256", { dsaEncoding: "ieee-p1363" }], ES384: [p384, "sha384", { dsaEncoding: "ieee-p1363" }],
  EdDSA: [ed, null, {}],
};
const kids = { R: "rsa", P: "rsa", ES256: "p256", ES384: "p384" };
const now = Math.floor(Date.now() / 1000);
const good = { sub: "ann", iss: "https://login.example", aud: "shop", exp: now + 600, nbf: now - 1, realm: { roles: ["a", "b"] } };
const signed = (head, claims, [pair, hash, options]) => {
  const text = b64(head) + "." + b64(claims);
  return text + "." + c.sign(hash, Buffer.from(text), { key: pair.privateKey, ...options }).toString("base64url");
};
const token = (alg, claims, head = {}) =>
  signed({ alg, kid: kids[alg] ?? kids[alg[0]], ...head }, claims, ways[alg]);
const say = (name, token) => console.log(name + " " + token);
for (const alg of Object.keys(ways)) say("good-" + alg, token(alg, good));
say("good-without-kid", token("RS256", good, { kid: undefined }));
say("good-audiences", token("ES256", { ...good, aud: ["x", "other"] }));
say("good-leeway", token("ES256", { ...good, exp: now + 60, nbf: now + 4 }));
say("good-injecting", token("ES256", { ...good, sub: "ann\r\nx-roles: root", realm: { roles: "" } }));
const bad = (name, change, alg = "ES256", head = {}) => say("bad-" + name, token(alg, { ...good, ...change }, head));
bad("over", { exp: now - 60 });
bad("endless", { exp: undefined });
bad("exp-text", { exp: String(now + 600) });
bad("exp-null", { exp: null });
bad("early", { nbf: now + 600 });
bad("nbf-text", { nbf: "0" });
bad("issuer", { iss: "https://evil.example" });
bad("no-issuer", { iss: undefined });
bad("issuer-list", { iss: ["https://login.example"] });
bad("audience", { aud: "elsewhere" });
bad("no-audience", { aud: undefined });
bad("audience-part", { aud: "shop2" });
bad("crit", {}, "ES256", { crit: ["b64"], b64: false });
bad("kid", {}, "ES256", { kid: "p384" });
bad("kid-unknown", {}, "ES256", { kid: "../../jwks.json" });
bad("kid-number", {}, "ES256", { kid: 1 });
for (const kid in others) say("bad-purpose-" + kid, signed({ alg: "EdDSA", kid }, good, [others[kid][0], null, {}]));
// Numbers beyond 64 bits, of which JSON.stringify would make others.
const numbered = text => JSON.stringify(good).replace('"ann"', text);
say("number-whole", signed({ alg: "ES256", kid: "p256" }, numbered("18446744073709551615"), ways.ES256));
say("number-large", signed({ alg: "ES256", kid: "p256" }, numbered("20000000000000000000001"), ways.ES256));
say("number-next", signed({ alg: "ES256", kid: "p256" }, numbered("20000000000000000000002"), ways.ES256));
const none = head => b64(head) + "." + b64(good) + ".";
say("bad-none", none({ alg: "none" }));
say("bad-None", none({ alg: "None", kid: "rsa" }));
say("bad-no-alg", none({}));
say("bad-stripped", token("RS256", good).replace(/[^.]*$/, ""));
const hmac = (key, alg = "HS256") => {
  const text = b64({ alg, kid: "rsa" }) + "." + b64(good);
  return text + "." + c.createHmac("sha256", key).update(text).digest("base64url");
};
say("bad-confused-pem", hmac(rsa.publicKey.export({ format: "pem", type: "spki" })));
say("bad-confused-der", hmac(rsa.publicKey.export({ format: "der", type: "spki" })));
say("bad-confused-n", hmac(Buffer.from(jwk(rsa).n, "base64url")));
say("bad-confused-rs", hmac(rsa.publicKey.export({ format: "pem", type: "spki" }), "RS256"));
say("bad-stranger", signed({ alg: "RS256", kid: "rsa" }, good, [stranger, "sha256", {}]));
say("bad-own-key", signed({ alg: "RS256", jwk: jwk(stranger) }, good, [stranger, "sha256", {}]));
say("bad-curve", signed({ alg: "ES256", kid: "p384" }, good, ways.ES384));
say("bad-pinned", signed({ alg: "ES384", kid: "p256" }, good, ways.ES256));
say("bad-der", signed({ alg: "ES256", kid: "p256" }, good, [p256, "sha256", {}]));
const whole = token("ES256", good);
const [h, p, s] = whole.split(".");
say("bad-claims", [h, b64({ ...good, sub: "root" }), s].join("."));
say("bad-parts", whole + ".x");
say("bad-zero", [h, p, Buffer.alloc(64).toString("base64url")].join("."));
say("bad-list", [h, b64("[]"), s].join("."));
say("bad-base64", "+" + whole);
say("bad-dots", "..");
"#;

struct Tokens {
    keys: String,
    all: Vec<(String, String)>,
}

impl Tokens {
    fn made() -> Tokens {
        let output = node(TOKENS, &[]);
        let (keys, lines) = output.split_once('\n').expect("keys");
        let all = lines.lines().filter_map(|line| line.split_once(' '));
        let all: Vec<_> = all.map(|(name, token)| (name.to_owned(), token.to_owned())).collect();
        assert!(all.len() > 40, "{output}");
        Tokens { keys: keys.to_owned(), all }
    }

    fn of(&self, name: &str) -> &str {
        &self.all.iter().find(|(other, _)| other == name).expect("a token").1
    }
}

fn bearer(weir: &Weir, token: &str, more: &[&str]) -> Response {
    let line = format!("authorization: Bearer {token}");
    asked(weir, "GET /", &[&[line.as_str()][..], more].concat())
}

#[test]
fn j8_tokens_that_are_good_pass_and_no_others() {
    let tokens = Tokens::made();
    let app = app();
    let weir = Setup::of(JWT).with("app", app.address()).with_file("jwks.json", &tokens.keys).start();
    for (name, token) in tokens.all.iter().filter(|(name, _)| !name.starts_with("number")) {
        app.forgets();
        let answer = bearer(&weir, token, &["x-user: root", "X_Roles: root"]);
        let request = app.requests().pop();
        if name.starts_with("good") {
            assert_eq!(answer.status, 200, "{name}: {answer:?}");
            let request = request.expect(name);
            let injecting = name == "good-injecting";
            let told = if injecting { "ann  x-roles: root" } else { "ann" };
            assert_eq!(request.fields.all("x-user"), [told], "{name}");
            let roles = if injecting { vec![] } else { vec!["a,b"] };
            assert_eq!(request.fields.all("x-roles"), roles, "{name}");
            assert!(!request.head.to_lowercase().contains("x_roles"), "{}", request.head);
            assert!(request.fields.one("authorization").is_some(), "backends may read it as well");
        } else {
            assert!(answer.status == 401 && request.is_none(), "{name}: {answer:?}");
            let challenge = answer.fields.one("www-authenticate").unwrap_or_default();
            assert!(challenge.starts_with("Bearer error=\"invalid_token\""), "{name}: {challenge}");
        }
    }
    let why = |name: &str| {
        let answer = bearer(&weir, tokens.of(name), &[]);
        answer.fields.one("www-authenticate").unwrap_or_default().to_owned()
    };
    assert!(why("bad-over").ends_with("error_description=\"is over\""));
    assert!(why("bad-none").ends_with("error_description=\"signed in a way that is not taken\""));
    assert!(why("bad-confused-pem").ends_with("error_description=\"signed in a way that is not taken\""));
    assert!(why("bad-stranger").ends_with("error_description=\"its signature is not good\""));
    assert!(why("bad-exp-text").ends_with("error_description=\"has a time that is none\""));
    let lines = weir.lines_of("access.log", 10).concat();
    assert!(lines.contains("\"user\":\"ann\"") && !lines.contains("eyJ"), "no token stands in the log");
}

/// As they were told, two users were one.
#[test]
fn a_number_that_would_be_rounded_names_nobody() {
    let tokens = Tokens::made();
    let app = app();
    let weir = Setup::of(JWT).with("app", app.address()).with_file("jwks.json", &tokens.keys).start();
    for (name, told) in
        [("number-whole", &["18446744073709551615"][..]), ("number-large", &[]), ("number-next", &[])]
    {
        assert_eq!(bearer(&weir, tokens.of(name), &["x-user: root"]).status, 200, "{name}");
        assert_eq!(app.requests().pop().expect(name).fields.all("x-user"), told, "{name}");
    }
    let lines = weir.lines_of("access.log", 3);
    // Of two workers, whose lines come in any order.
    let with_user: Vec<&String> = lines.iter().filter(|line| line.contains("\"user\"")).collect();
    assert_eq!(with_user.len(), 1, "{lines:?}");
    assert!(with_user[0].contains("\"user\":\"18446744073709551615\""), "{lines:?}");
}

#[test]
fn a_token_comes_in_one_place_and_is_asked_for_without() {
    let tokens = Tokens::made();
    let app = app();
    let weir = Setup::of(JWT).with("app", app.address()).with_file("jwks.json", &tokens.keys).start();
    let good = tokens.of("good-RS256");
    let none = asked(&weir, "GET /", &[]);
    assert_eq!((none.status, none.fields.one("www-authenticate")), (401, Some("Bearer")));
    let twice = format!("authorization: Bearer {good}\r\nauthorization: Bearer {good}");
    let cookie = format!("cookie: a=1; token={good}");
    // A backend may read the other one, wherever it stands.
    let two_cookies = format!("cookie: token={good}; a=1; token=other");
    let two_lines = format!("cookie: token={good}\r\ncookie: token=other");
    for (line, field, expected) in [
        ("GET /", format!("authorization: bEARER   {good}"), 200),
        ("GET /", format!("authorization: Basic {good}"), 401),
        ("GET /", format!("authorization: {good}"), 401),
        ("GET /", twice, 401),
        ("GET /", cookie.clone(), 401),
        ("GET /cookie/x", cookie.clone(), 200),
        ("GET /cookie/x", format!("authorization: Bearer {good}"), 401),
        ("DELETE /cookie/x", cookie, 200),
        ("GET /cookie/x", two_cookies, 401),
        ("GET /cookie/x", two_lines, 401),
    ] {
        assert_eq!(asked(&weir, line, &[&field]).status, expected, "{line} {field}");
    }
    let over_h2 = ["--http2-prior-knowledge", "--header", &format!("authorization: Bearer {good}")];
    assert!(by_curl(&weir, &over_h2, "/").starts_with("HTTP/2 200"));
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("auth     a token that one of 4 keys has signed is asked for"), "{explained}");
}

#[test]
fn a_reload_takes_new_keys_and_a_secret_among_them_refuses_it() {
    let (tokens, others) = (Tokens::made(), Tokens::made());
    let app = app();
    let mut weir = Setup::of(JWT).with("app", app.address()).with_file("jwks.json", &tokens.keys).start();
    let statuses =
        |weir: &Weir| [&tokens, &others].map(|tokens| bearer(weir, tokens.of("good-ES256"), &[]).status);
    assert_eq!(statuses(&weir), [200, 401]);
    let file = weir.dir().join("jwks.json");
    std::fs::write(&file, &others.keys).unwrap();
    weir.reloads(JWT);
    assert_eq!(statuses(&weir), [401, 200]);
    std::fs::write(&file, r#"{"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}]}"#).unwrap();
    let refused = weir.command(&["reload"]);
    let said = refused.stdout + &refused.stderr;
    assert!(refused.code != 0 && said.contains("key 1 of"), "{said}");
    assert!(said.contains("it has a secret") && !said.contains("c2VjcmV0"), "{said}");
    assert_eq!(statuses(&weir), [401, 200]);
}

const VALUES: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
set_request_header = { x-who = "$user", x-all = "$claim.realm.roles/$claim.nothing/$claim.realm" }
set_response_header = { x-you = "$user" }
[listener.web.auth.jwt]
keys = "@dir/jwks.json"
audience = ["shop", "other"]
[[listener.web.route]]
path = "/open/*"
pool = "app"
auth = false
[[listener.web.route]]
path = "/me"
redirect = { to = "/users/$user?roles=$claim.realm.roles" }
[[listener.web.route]]
path = "/hashed/*"
pool = "hashed"
[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
[pool.hashed]
backends = ["@app", "@second", "@third", "@fourth"]
balance = "hash"
hash = { key = "$claim.sub" }
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
fields = { issuer = "$claim.iss", who = "$user" }
"#;

#[test]
fn what_is_known_of_the_user_is_a_value_once_it_is_known_and_ends_no_field() {
    let tokens = Tokens::made();
    let all = [app(), app(), app(), app()];
    let app = &all[0];
    let weir = Setup::of(VALUES)
        .with("app", app.address())
        .with("second", all[1].address())
        .with("third", all[2].address())
        .with("fourth", all[3].address())
        .with_file("jwks.json", &tokens.keys)
        .start();
    let own = ["x-who: root", "X_All: root"];
    for (name, user, roles) in
        [("good-ES256", "ann", "a,b//"), ("good-injecting", "ann  x-roles: root", "//")]
    {
        let answer = bearer(&weir, tokens.of(name), &own);
        assert_eq!((answer.status, answer.fields.all("x-you")), (200, vec![user]), "{name}: {answer:?}");
        let request = app.requests().pop().expect("a request");
        assert_eq!(request.fields.all("x-who"), [user], "{name}");
        assert_eq!(request.fields.all("x-all"), [roles], "{name}");
        assert!(!request.head.to_lowercase().contains("x_all"), "{}", request.head);
        let authorization = format!("authorization: Bearer {}", tokens.of(name));
        let moved = asked(&weir, "GET /me", &[&authorization]);
        let to =
            if user == "ann" { "/users/ann?roles=a,b" } else { "/users/ann%0D%0Ax-roles:%20root?roles=" };
        assert_eq!((moved.status, moved.fields.one("location")), (308, Some(to)), "{name}");
    }
    // Nobody is asked, or nobody passes: nothing is known, and a client's own word is no one's.
    let open = asked(&weir, "GET /open/x", &own);
    let request = app.requests().pop().expect("a request");
    assert_eq!((open.status, open.fields.one("x-you")), (200, None));
    assert_eq!((request.fields.one("x-who"), request.fields.all("x-all")), (None, vec!["//"]));
    let refused = bearer(&weir, tokens.of("bad-over"), &own);
    assert_eq!((refused.status, refused.fields.one("x-you")), (401, None));
    // One connection after the other, and one for two users.
    let mut client = weir.client("web");
    for (authorization, you) in [
        (format!("authorization: Bearer {}\r\n", tokens.of("good-RS256")), Some("ann")),
        (String::new(), None),
    ] {
        client.sends(format!("GET /open/x HTTP/1.1\r\nhost: a\r\n{authorization}\r\n"));
        assert_eq!(client.receives_response_to("GET").fields.one("x-you"), None);
        client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{authorization}\r\n"));
        assert_eq!(client.receives_response_to("GET").fields.one("x-you"), you);
    }
    let before: Vec<usize> = all.iter().map(Backend::served).collect();
    let authorization = format!("authorization: Bearer {}", tokens.of("good-ES256"));
    for _ in 0..12 {
        assert_eq!(asked(&weir, "GET /hashed/x", &[&authorization]).status, 200);
    }
    let more = all.iter().zip(before).filter(|(backend, before)| backend.served() > *before).count();
    assert_eq!(more, 1, "one user goes to one backend");
    let lines = weir.lines_of("access.log", 22);
    let open = lines.iter().filter(|line| line.contains("/open/x"));
    let (open, others): (Vec<_>, Vec<_>) =
        (open.collect(), lines.iter().filter(|line| line.contains("/me")).collect());
    assert!(open.len() == 3 && open.iter().all(|line| !line.contains("issuer")), "{open:?}");
    let said = r#""issuer":"https://login.example","who":"ann"#;
    assert!(others.len() == 2 && others.iter().all(|line| line.contains(said)), "{others:?}");
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains("($user)") && explained.contains("($claim.realm.roles)"), "{explained}");
}
