//! What a sticky cookie gives away, and who can read it.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_tests::dialogue::{
    After, Authority, Backend, EVERY_VERSION, NO_HEALTH, Setup, Signal, Weir, one_pool, until,
};
use weir_tests::versions::{Client, Front, run};

fn backends() -> [Backend; 3] {
    ["a", "b", "c"].map(|name| {
        Backend::serving(move |_, wire| {
            wire.answers(200, &[], name);
            After::Keep
        })
    })
}

/// A node in front of these backends; `sticky` says, after the name, how its cookies are sealed.
fn node(backends: &[Backend; 3], sticky: &str, secret: &str) -> Setup {
    let config = format!(
        r#"
        [runtime]
        workers = 2
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@a", "@b", "@c"]
        sticky = {{ cookie = "weir"{sticky} }}
        health = "off"
        "#
    );
    let setup = Setup::of(&config).with_file("sticky.secret", secret);
    ["a", "b", "c"]
        .iter()
        .zip(backends)
        .fold(setup, |setup, (name, backend)| setup.with(name, backend.address()))
}

const FILE: &str = ", secret_file = \"@dir/sticky.secret\"";

/// The backend that answers a client with these fields, and the cookie that it is given.
fn ask(weir: &Weir, fields: &str) -> (String, Option<String>) {
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"));
    let response = client.receives_status(200);
    (response.text(), response.fields.one("set-cookie").map(str::to_owned))
}

/// The cookie of each backend, by its text.
fn cookies(weir: &Weir) -> BTreeMap<String, String> {
    let mut cookies = BTreeMap::new();
    for _ in 0..60 {
        let (backend, cookie) = ask(weir, "");
        let cookie = cookie.expect("a cookie");
        let pair = cookie.split(';').next().unwrap_or_default().to_owned();
        assert_eq!(cookies.entry(backend).or_insert(pair.clone()), &pair, "one backend has one cookie");
    }
    assert_eq!(cookies.len(), 3);
    cookies
}

/// How many of these cookies lead to their backend without a new one.
fn honoured(weir: &Weir, cookies: &BTreeMap<String, String>) -> usize {
    let is_honoured = |(backend, cookie): &(&String, &String)| {
        let answers: Vec<_> = (0..10).map(|_| ask(weir, &format!("cookie: {cookie}\r\n"))).collect();
        answers.iter().all(|(got, set)| got == *backend && set.is_none())
    };
    cookies.iter().filter(is_honoured).count()
}

#[test]
fn cookies_are_read_by_nodes_with_the_same_secret_and_by_no_others() {
    let backends = backends();
    let first = node(&backends, FILE, "one secret for both nodes\n").start();
    let cookies = cookies(&first);
    assert_eq!(honoured(&first, &cookies), 3);
    let second = node(&backends, FILE, "one secret for both nodes").start();
    assert_eq!(honoured(&second, &cookies), 3, "space around a secret is not part of it");
    for other in [node(&backends, FILE, "another secret altogether"), node(&backends, "", "")] {
        assert_eq!(honoured(&other.start(), &cookies), 0, "without the secret a cookie reveals nothing");
    }
}

/// The cookie held a hash of the backend's address that everybody can compute, so that guesses could be
/// tested.
#[test]
fn a_cookie_outlives_reloads_upgrades_and_restarts_and_says_nothing_of_the_address() {
    let backends = backends();
    let mut weir = node(&backends, "", "").start();
    let before = cookies(&weir);
    for cookie in before.values() {
        let value = cookie.strip_prefix("weir=").expect("the name");
        assert!(value.len() == 32 && value.bytes().all(|digit| digit.is_ascii_hexdigit()), "{cookie}");
    }
    assert_eq!(weir.command(&["reload"]).code, 0);
    assert_eq!(honoured(&weir, &before), 3);
    for signal in [Signal::USR2, Signal::TERM] {
        let old = weir.pid();
        weir.signals_pid(old, signal);
        until("the old process to end", || (!weir.is_running(old)).then_some(()));
        if signal == Signal::USR2 {
            assert_eq!(honoured(&weir, &before), 3, "after an upgrade");
        }
    }
    weir.starts_again();
    assert_eq!(honoured(&weir, &before), 3, "after a restart");
}

#[test]
fn a_reload_takes_another_secret_though_the_config_is_the_same() {
    let backends = backends();
    let weir = node(&backends, FILE, "one secret for both nodes").start();
    let before = cookies(&weir);
    std::fs::write(weir.dir().join("sticky.secret"), "another secret altogether").expect("a file");
    assert_eq!(weir.command(&["reload"]).code, 0);
    assert_eq!(honoured(&weir, &before), 0);
    std::fs::write(weir.dir().join("sticky.secret"), "one secret for both nodes").expect("a file");
    assert_eq!(weir.command(&["reload"]).code, 0);
    assert_eq!(honoured(&weir, &before), 3);
}

#[test]
fn a_secret_that_is_missing_or_short_is_refused_at_the_start() {
    let backends = backends();
    for (setup, said) in [
        (node(&backends, FILE, "too short"), "holds a secret of 9 bytes; expected at least 16"),
        (node(&backends, ", secret_file = \"@dir/nowhere\"", ""), "nowhere` can't be used"),
    ] {
        let mut weir = setup.launch();
        assert_eq!(weir.exits().code(), Some(2));
        assert!(weir.stderr().contains(said), "{}", weir.stderr());
    }
}

#[test]
fn a_cookie_that_came_over_tls_is_not_to_be_sent_in_the_clear() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let backend = Backend::saying("ok");
    let config = format!("{EVERY_VERSION}{NO_HEALTH}\nsticky = {{ cookie = \"weir\" }}");
    let weir = authority.setup(&config).with("app", backend.address()).start();
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            let name = if front.is_tls() { "secure" } else { "plain" };
            let client = Client::connect(front, &authority, weir.address(name), "shop.example");
            let answer = client.await.expect("a connection").ask("GET", "/", &[], Vec::new()).await;
            let answer = answer.expect("an answer");
            let cookie = answer.fields["set-cookie"].to_str().expect("text");
            assert_eq!(
                cookie.split("; ").any(|word| word == "Secure"),
                front.is_tls(),
                "{front:?}: {cookie}"
            );
        }
    });
}

/// curl keeps cookies as browsers do: it sends back what the attributes allow, and nothing else.
#[test]
fn the_cookie_has_the_attributes_that_are_said_and_curl_keeps_to_them() {
    let backend = Backend::serving(|request, wire| {
        let cookie = request.fields.one("cookie").unwrap_or("none").to_owned();
        wire.answers(200, &[], &cookie);
        After::Keep
    });
    let said = [
        ("web", "", "Path=/; HttpOnly; SameSite=Lax"),
        (
            "shop",
            ", domain = \".Shop.example\", path = \"/cart\", max_age = \"90m\", same_site = \"strict\", http_only = false",
            "Path=/cart; Domain=shop.example; Max-Age=5400; SameSite=Strict",
        ),
        ("framed", ", same_site = \"none\", secure = true", "Path=/; HttpOnly; SameSite=None; Secure"),
    ];
    let mut config = String::new();
    for (name, sticky, _) in said {
        config += &format!(
            r#"
            [listener.{name}]
            bind = "@{name}"
            pool = "{name}"
            [pool.{name}]
            backends = ["@app"]
            sticky = {{ cookie = "weir"{sticky} }}
            health = "off"
            "#
        );
    }
    let weir = Setup::of(&config).with("app", backend.address()).start();
    for (name, _, attributes) in said {
        let mut client = weir.client(name);
        client.sends("GET / HTTP/1.1\r\nhost: shop.example\r\n\r\n");
        let response = client.receives_status(200);
        let cookie = response.fields.one("set-cookie").expect("a cookie").to_owned();
        assert_eq!(cookie.split_once("; ").map(|(_, rest)| rest), Some(attributes), "{name}");
        let url = format!("http://{}/", weir.address(name));
        let explained = weir.command(&["explain", "http", "GET", &url]);
        let line = format!("sticky   cookie weir; {attributes}\n");
        assert!(explained.stdout.contains(&line), "{name}: {}", explained.stdout);
    }
    let jar = weir.dir().join("jar").display().to_string();
    let port = weir.address("shop").port();
    let curl = |url: &str| {
        let to = format!("::127.0.0.1:{port}");
        let asked = ["-s", "-b", &jar, "-c", &jar, "--connect-to", &to, url];
        let output = std::process::Command::new("curl").args(asked).output().expect("curl");
        assert!(output.status.success(), "{url}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(curl("http://www.shop.example/cart"), "none", "the first has no cookie");
    for (url, has_it) in [
        ("http://www.shop.example/cart/1", true),
        ("http://shop.example/cart", true),
        ("http://shop.example/other", false),
        ("http://else.example/cart", false),
    ] {
        // Backends receive the cookie, as before.
        assert_eq!(curl(url).starts_with("weir="), has_it, "{url}");
    }
}

/// `indirect` and `nocache` of HAProxy.
#[test]
fn a_hidden_cookie_reaches_no_backend_and_a_private_one_no_shared_cache() {
    let backend = Backend::serving(|request, wire| {
        let cookies = request.fields.all("cookie").join(" | ");
        wire.answers(200, &[("cache-control", "public, max-age=60")], &cookies);
        After::Keep
    });
    let weir = Setup::of(&one_pool(
        "",
        r#"
        sticky = { cookie = "weir", hidden = true, private = true }
        health = "off"
        "#,
    ))
    .with("app", backend.address())
    .start();
    let ask = |cookies: &str| {
        let mut client = weir.client("web");
        client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\n{cookies}\r\n"));
        let response = client.receives_status(200);
        let set = response.fields.one("set-cookie").map(str::to_owned);
        (response.text(), set, response.fields.all("cache-control").join(" | "))
    };
    let (text, set, cached) = ask("cookie: a=1; weir=forged; b=2\r\n");
    assert_eq!((text.as_str(), cached.as_str()), ("a=1; b=2", "public, max-age=60 | private"));
    let set = set.expect("a cookie");
    let own = set.split(';').next().expect("a pair");
    let kept = ("a=1; b=2".to_owned(), None, "public, max-age=60".to_owned());
    assert_eq!(ask(&format!("cookie: a=1; {own}; b=2\r\n")), kept, "it is known all the same");
    assert_eq!(ask(&format!("cookie: {own}\r\n")).0, "");
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    let line = "SameSite=Lax; hidden from backends; private to each client\n";
    assert!(explained.stdout.contains(line), "{}", explained.stdout);
}
