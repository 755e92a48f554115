//! Values of fields that become others, and attributes of cookies that backends set.

use std::time::Duration;

use weir_tests::dialogue::{After, Authority, Backend, PATIENCE, free_address, run_tool, tool};
use weir_tests::versions::{Behind, Client, Front, VersionedBackend, run};

use super::{ask, asked, before};

/// A backend that believes to be reached by its own name.
fn redirecting() -> Backend {
    Backend::serving(|request, wire| {
        let target = request.target.clone();
        let path = request.fields.one("x-path").or(target.strip_prefix("/go")).unwrap_or("/").to_owned();
        let location = format!("http://app.internal:8080{path}");
        let fields = [
            ("location", location.as_str()),
            ("refresh", "5; url=http://app.internal:8080/later"),
            ("set-cookie", "sid=1; Domain=app.internal; Path=/two/; SameSite=None"),
            ("Set-Cookie", "theme=dark; path=/two/x; HttpOnly"),
            ("cache-control", "public, max-age=60, stale-while-revalidate=5"),
        ];
        wire.answers(if target.starts_with("/go") { 302 } else { 200 }, &fields, "ok");
        After::Keep
    })
}

const RULES: &str = r#"
    pool = "app"
    replace_response_header = [
        { name = "location", match = "http://app.internal:8080/*", to = "$scheme://$host/" },
        { name = "refresh", match = '~^(\d+; *url=)http://app\.internal:8080/(.*)$', to = "$1/$2" },
        { name = "cache-control", match = "~^max-age=.*", to = "max-age=5", each_value = true },
    ]
    response_cookie = [
        { name = "sid", domain = { match = "App.Internal", to = "$host" }, path = { match = "/two/*", to = "/" }, secure = true, http_only = true, same_site = "strict" },
        { path = { match = "*", to = "" }, http_only = false },
    ]
    "#;

#[test]
fn an_address_of_the_backend_becomes_that_of_the_site_and_its_cookies_fit() {
    let backend = redirecting();
    let weir = before(&backend, RULES, "");
    let fields = ask(&weir, "GET /go/a?b=c HTTP/1.1\r\nhost: shop.example\r\n\r\n").fields;
    assert_eq!(fields.all("location"), ["http://shop.example/a?b=c"]);
    assert_eq!(fields.all("refresh"), ["5; url=/later"]);
    assert_eq!(fields.all("cache-control"), ["public, max-age=5, stale-while-revalidate=5"]);
    assert_eq!(
        fields.all("set-cookie"),
        ["sid=1; Domain=shop.example; Path=/; SameSite=Strict; Secure; HttpOnly", "theme=dark"]
    );
}

#[test]
fn the_rules_of_listener_pool_and_route_apply_one_after_the_other() {
    let of_listener = r#"
        replace_response_header = [
            { name = "location", match = "http://app.internal:8080/*", to = "http://1/" },
            { name = "location", match = "*", to = "never" },
        ]
        response_cookie = { secure = true }
        pool = "app"
        [[listener.web.route]]
        path = "/go/*"
        pool = "app"
        replace_response_header = { name = "location", match = "~^http://2/(.*)", to = "http://3/$1$path" }
        response_cookie = { name = "theme", secure = false, same_site = "lax" }
        "#;
    let of_pool =
        r#"replace_response_header = { name = "location", match = "http://1/*", to = "http://2/" }"#;
    let backend = redirecting();
    let weir = before(&backend, of_listener, of_pool);
    let fields = ask(&weir, "GET /go/a HTTP/1.1\r\nhost: a\r\n\r\n").fields;
    assert_eq!(fields.all("location"), ["http://3/a/go/a"]);
    let cookies = fields.all("set-cookie");
    assert!(
        cookies[0].ends_with("; Secure") && cookies[1].ends_with("; HttpOnly; SameSite=Lax"),
        "{cookies:?}"
    );
    let fields = ask(&weir, "GET /x HTTP/1.1\r\nhost: a\r\n\r\n").fields;
    assert_eq!(fields.all("location"), ["http://2/"]);
}

#[test]
fn a_backend_is_told_other_values_and_a_field_without_one_is_left_out() {
    let backend = Backend::saying("ok");
    let rules = r#"
        pool = "app"
        replace_request_header = [
            { name = "referer", match = "https://shop.example/*", to = "http://app.internal/" },
            { name = "cookie", match = "~^(.*; )?token=[^;]*(.*)$", to = "$1token=gone$2" },
            { name = "x-tags", match = "~^secret", to = "", each_value = true },
        ]
        "#;
    let weir = before(&backend, rules, r#"sticky = { cookie = "weir", hidden = true }"#);
    let head = "GET / HTTP/1.1\r\nhost: a\r\nReferer: https://shop.example/x\r\nCookie: a=1; weir=zz; token=t; b=2\r\n\
        X-Tags: a, secret-b,c\r\nx-tags: secret\r\nX_Tags: secret, d\r\n\r\n";
    let fields = asked(&weir, &backend, head);
    assert_eq!(fields.all("referer"), ["http://app.internal/x"]);
    assert_eq!(fields.all("cookie"), ["a=1; token=gone; b=2"]);
    assert_eq!(fields.all("x-tags"), ["a, c"], "the second line has nothing left");
    assert_eq!(fields.all("x_tags"), ["d"], "backends may take it for the same field");
    let untouched = asked(&weir, &backend, "GET / HTTP/1.1\r\nhost: a\r\nReferer: http://other/\r\n\r\n");
    assert_eq!(untouched.all("referer"), ["http://other/"]);
}

#[test]
fn what_rules_set_and_what_weir_answers_itself_stays() {
    let rules = r#"
        pool = "app"
        replace_response_header = { name = "location", match = "*", to = "never" }
        [[listener.web.route]]
        path = "/own"
        redirect = { to = "https://$host/" }
        [[listener.web.route]]
        path = "/set"
        pool = "app"
        set_response_header = { location = "/set" }
        "#;
    let backend = redirecting();
    let weir = before(&backend, rules, "");
    let location = |path: &str| {
        let fields = ask(&weir, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).fields;
        fields.all("location").join("|")
    };
    assert_eq!(location("/own"), "https://a/");
    assert_eq!(location("/set"), "/set");
    assert_eq!(location("/go/x"), "never");
}

#[test]
fn a29_an_address_with_two_slashes_leads_to_no_other_site() {
    let rules = r#"
        pool = "app"
        replace_response_header = { name = "location", match = "http://app.internal:8080/*", to = "/" }
        "#;
    let backend = redirecting();
    let weir = before(&backend, rules, "");
    for path in ["//evil.example/", "/\\evil.example/", "///evil.example/"] {
        let head = format!("GET /go HTTP/1.1\r\nhost: a\r\nx-path: {path}\r\n\r\n");
        assert_eq!(ask(&weir, &head).fields.all("location"), ["/evil.example/"], "{path}");
    }
}

#[test]
fn a29_an_address_of_which_only_two_backslashes_are_left_leads_to_no_other_site() {
    let rules = r#"
        pool = "app"
        replace_response_header = { name = "location", match = "http://app.internal:8080/*", to = "" }
        "#;
    let backend = redirecting();
    let weir = before(&backend, rules, "");
    for (path, expected) in [("/\\\\evil.example/", "/evil.example/"), ("/a/b", "a/b")] {
        let head = format!("GET /go HTTP/1.1\r\nhost: a\r\nx-path: {path}\r\n\r\n");
        assert_eq!(ask(&weir, &head).fields.all("location"), [expected], "{path}");
    }
}

#[test]
fn a29_what_a_client_writes_at_the_beginning_of_an_address_leads_to_no_other_site() {
    let rules = r#"
        pool = "app"
        replace_response_header = { name = "location", match = "*", to = "$path?there" }
        "#;
    let backend = redirecting();
    let weir = before(&backend, rules, "");
    for path in ["//evil.example/go", "///evil.example/go"] {
        let fields = ask(&weir, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).fields;
        assert_eq!(fields.all("location"), ["/evil.example/go?there"], "{path}");
    }
}

#[test]
fn a_cookie_keeps_what_its_name_promises_to_browsers() {
    let backend = Backend::serving(|_, wire| {
        let cookies = ["__Host-a=1; Path=/; Secure", "__Secure-b=1; Path=/; Secure", "c=1; Path=/; Secure"];
        wire.answers(200, &cookies.map(|cookie| ("set-cookie", cookie)), "ok");
        After::Keep
    });
    let rules =
        "pool = \"app\"\nresponse_cookie = { path = { match = \"/*\", to = \"/shop/\" }, secure = false }";
    let weir = before(&backend, rules, "");
    let fields = ask(&weir, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").fields;
    let expected = ["__Host-a=1; Path=/; Secure", "__Secure-b=1; Path=/shop/; Secure", "c=1; Path=/shop/"];
    assert_eq!(fields.all("set-cookie"), expected);
}

#[test]
fn what_a_cache_has_kept_is_told_each_client_in_its_own_words() {
    let backend = Backend::serving(|_, wire| {
        let fields = [("content-location", "http://app.internal:8080/page"), ("cache-control", "max-age=60")];
        wire.answers(200, &fields, "ok");
        After::Keep
    });
    let rules = r#"
        replace_response_header = { name = "content-location", match = "http://app.internal:8080/*", to = "https://$header.x-me.example/" }
        [[listener.web.route]]
        pool = "app"
        cache = { ttl = "60s" }
        "#;
    let weir = before(&backend, rules, "");
    for me in ["one", "two"] {
        let fields = ask(&weir, &format!("GET / HTTP/1.1\r\nhost: a\r\nx-me: {me}\r\n\r\n")).fields;
        assert_eq!(fields.all("content-location"), [format!("https://{me}.example/page")]);
    }
    assert_eq!(backend.served(), 1);
}

#[test]
fn values_are_replaced_in_every_version_in_front_with_every_version_behind() {
    let authority = Authority::new().signs("shop", &["shop.example"]).signs("app", &["app.internal"]);
    let backends =
        Behind::ALL.map(|behind| VersionedBackend::start(free_address(), behind, &authority, "app"));
    let config: String = Behind::ALL.into_iter().map(config).collect();
    let setup = authority.setup(&config);
    let known = Behind::ALL.iter().zip(&backends);
    let weir = known.fold(setup, |setup, (behind, it)| setup.with(behind.word(), it.address())).start();
    run(Duration::from_secs(100), async {
        for front in Front::ALL {
            for behind in Behind::ALL {
                let cell = format!("{front:?} before {behind:?}");
                let kind = if front.is_tls() { "secure" } else { "plain" };
                let address = weir.address(&format!("{kind}_{}", behind.word()));
                let mut client =
                    Client::connect(front, &authority, address, "shop.example").await.expect("a connection");
                let sent = [("x-me", "me"), ("x-long", "shop-a, shop-b")];
                let answer = client.ask("GET", "/fields", &sent, vec![]).await.expect("an answer");
                let asked = String::from_utf8(answer.content).expect("text");
                for expected in ["x-me: you of shop.example", "x-long: app-a, app-b"] {
                    assert_eq!(asked.lines().filter(|line| *line == expected).count(), 1, "{cell}: {asked}");
                }
                assert_eq!(answer.fields["x-scheme"], "by shop.example", "{cell}: {:?}", answer.fields);
            }
        }
    });
}

fn config(behind: Behind) -> String {
    let (word, protocol) = (behind.word(), behind.protocol());
    let tls =
        if behind.is_tls() { r#"tls = { ca = "@dir/ca.pem", server_name = "app.internal" }"# } else { "" };
    let rules = r#"replace_response_header = { name = "x-scheme", match = "*", to = "by $host" }"#;
    format!(
        r#"
        [listener.plain_{word}]
        bind = "@plain_{word}"
        http = ["h1", "h2"]
        pool = "{word}"
        {rules}
        [listener.secure_{word}]
        bind = "@secure_{word}"
        http = ["h1", "h2", "h3"]
        pool = "{word}"
        tls = {{ certificates = [{{ cert = "@dir/shop.pem", key = "@dir/shop.key" }}] }}
        {rules}
        [pool.{word}]
        backends = ["@{word}"]
        protocol = "{protocol}"
        health = "off"
        replace_request_header = [
            {{ name = "x-me", match = "me", to = "you of $host" }},
            {{ name = "x-long", match = "shop-*", to = "app-", each_value = true }},
        ]
        {tls}
        "#
    )
}

#[test]
fn curl_follows_a_redirect_of_a_backend_that_knows_only_its_own_address() {
    let rules = r#"
        pool = "app"
        replace_response_header = { name = "location", match = "http://app.internal:8080/*", to = "/" }
        response_cookie = { domain = { match = "*", to = "" }, path = { match = "*", to = "/" }, same_site = "absent" }
        "#;
    let backend = redirecting();
    let weir = before(&backend, rules, "");
    let url = format!("http://{}/go/there", weir.address("web"));
    let jar = weir.dir().join("jar");
    let jar = jar.display().to_string();
    let arguments =
        ["-sSfL", "--max-time", "20", "--noproxy", "*", "-c", &jar, "-w", " at %{url_effective}", &url];
    let told = run_tool(&tool("curl", "curl"), &arguments, b"", PATIENCE);
    assert_eq!(told.succeeded(), format!("ok at http://{}/there", weir.address("web")));
    let kept = std::fs::read_to_string(&jar).expect("a jar");
    assert!(kept.contains("sid\t1") && kept.contains("theme\tdark"), "{kept}");
}

#[test]
fn explain_tells_each_rule_and_hides_what_backends_are_told() {
    let rules = format!(
        "replace_request_header = {{ name = \"x-key\", match = \"old-key\", to = \"new-key\" }}\n{RULES}"
    );
    let backend = redirecting();
    let weir = before(&backend, &rules, "");
    let text = weir.command(&["explain", "http", "GET", &format!("http://{}/go", weir.address("web"))]);
    let text = text.succeeded();
    for expected in [
        "header   to the client, of the listener: replace location: `http://app.internal:8080/*` by `$scheme://$host/`\n",
        "header   to the client, of the listener: replace set-cookie: of cookies `sid`: Domain `App.Internal` by `$host`, \
         Path `/two/*` by `/`, Secure, HttpOnly, SameSite strict\n",
        "header   to the backend, of the listener: replace x-key: (secret) by (secret)\n",
    ] {
        assert!(text.contains(expected), "{expected}\n{text}");
    }
    let shown = weir.admin().reads("/v1/config").json().to_string();
    assert!(
        shown.contains("app.internal:8080") && !shown.contains("-key\\\"") && !shown.contains("old-key"),
        "{shown}"
    );
}
