//! A pool that serves when no backend of another can.

use weir_tests::dialogue::{After, Backend, Setup, Weir, free_address, until};

use super::{asked, in_http2};

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
[[listener.web.route]]
path = "/shop/*"
pool = "app"
fallback_pool = "shop_sorry"
[[listener.web.route]]
path = "/kept/*"
pool = "app"
cache = { ttl = "1s", stale_if_error = "60s" }
[pool.app]
backends = ["@app"]
fallback_pool = "sorry"
retry = { attempts = 1, on = ["connect", "empty", "503"] }
health = { check = "off", passive = "off" }
[pool.sorry]
backends = ["@sorry"]
fallback_pool = "last"
sticky = { cookie = "sorry" }
health = { check = "off", passive = "off" }
[pool.shop_sorry]
backends = ["@shop"]
fallback_pool = "last"
health = { check = "off", passive = "off" }
[pool.last]
backends = ["@last"]
health = { check = "off", passive = "off" }
[log]
access = "@dir/access.log"
"#;

struct Site {
    weir: Weir,
    app: Backend,
    _others: [Backend; 3],
}

impl Site {
    fn start() -> Site {
        let app = Backend::serving(|request, wire| {
            if request.target.ends_with("/503") {
                wire.answers(503, &[], "failed");
            } else {
                wire.answers(200, &[], "app");
            }
            After::Keep
        });
        let others = ["sorry", "shop", "last"].map(|name| {
            let name = name.to_owned();
            Backend::serving(move |_, wire| {
                wire.answers(200, &[("cache-control", "max-age=60")], &name);
                After::Keep
            })
        });
        let mut setup = Setup::of(CONFIG).with("app", app.address());
        for (name, backend) in ["sorry", "shop", "last"].into_iter().zip(&others) {
            setup = setup.with(name, backend.address());
        }
        Site { weir: setup.start(), app, _others: others }
    }

    fn switches(&self, verb: &str, pool: &str, name: &str) {
        let address = match name {
            "app" => self.app.address(),
            name => self.weir.address(name),
        };
        let finished = self.weir.command(&[verb, pool, &address.to_string()]);
        assert_eq!(finished.code, 0, "{finished:?}");
    }

    fn fallbacks(&self, pool: &str) -> f64 {
        self.weir.metric("weir_fallbacks_total", &[("pool", pool)])
    }
}

#[test]
fn a_pool_of_which_none_can_serve_gives_its_requests_to_its_fallback_and_takes_them_back() {
    let site = Site::start();
    let weir = &site.weir;
    assert_eq!(asked(weir, "GET /", &[]).text(), "app");
    assert_eq!(asked(weir, "GET /503", &[]).text(), "failed", "a failure is no reason");
    assert_eq!(site.fallbacks("app"), 0.0);
    site.switches("drain", "app", "app");
    let answer = asked(weir, "GET /", &[]);
    assert_eq!(answer.text(), "sorry");
    let cookie = answer.fields.one("set-cookie").unwrap_or_default();
    assert!(cookie.starts_with("sorry="), "the serving pool's own settings hold: {answer:?}");
    assert_eq!(asked(weir, "GET /shop/x", &[]).text(), "shop", "the route says another");
    assert!(in_http2(weir, &[], "/").ends_with("sorry"));
    assert_eq!(site.fallbacks("app"), 3.0);
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    let said = "forward to pool sorry, the fallback: none of app can serve";
    assert!(explained.stdout.contains(said), "{explained:?}");
    // All five: workers write their lines in any order.
    let lines = weir.lines_of("access.log", 5);
    assert!(lines.iter().any(|line| line.contains("\"pool\":\"sorry\"")), "{lines:?}");

    site.switches("drain", "sorry", "sorry");
    assert_eq!(asked(weir, "GET /", &[]).text(), "last", "from one to the next");
    site.switches("drain", "last", "last");
    assert_eq!(asked(weir, "GET /", &[]).status, 503, "nobody can");
    assert_eq!(asked(weir, "GET /shop/x", &[]).text(), "shop");
    site.switches("enable", "app", "app");
    assert_eq!(asked(weir, "GET /", &[]).text(), "app");
}

#[test]
fn explain_tells_of_the_fields_and_the_host_of_the_pool_that_serves() {
    let pool = |name: &str, more: &str| {
        format!(
            "[pool.{name}]\nbackends = [\"@{name}\"]\nhealth = {{ check = \"off\" }}\n{more}\n\
             set_request_header = {{ x-{name} = \"1\" }}\nbackend_host = \"{name}.internal\"\n"
        )
    };
    let listener = "[listener.web]\nbind = \"@web\"\npool = \"app\"\n";
    let config = listener.to_owned() + &pool("app", "fallback_pool = \"sorry\"") + &pool("sorry", "");
    let (app, sorry) = (Backend::saying("app"), Backend::saying("sorry"));
    let weir = Setup::of(&config).with("app", app.address()).with("sorry", sorry.address()).start();
    weir.command(&["drain", "app", &app.address().to_string()]).succeeded();
    assert_eq!(asked(&weir, "GET /", &[]).text(), "sorry");
    let request = &sorry.requests()[0];
    assert_eq!((request.fields.one("x-sorry"), request.fields.one("x-app")), (Some("1"), None));
    assert_eq!(request.fields.one("host"), Some("sorry.internal"));
    let url = format!("http://{}/", weir.address("web"));
    let told = weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(told.contains("sorry.internal") && !told.contains("app.internal"), "{told}");
    assert!(told.contains("x-sorry") && !told.contains("x-app"), "{told}");
}

#[test]
fn what_a_fallback_says_is_kept_for_nobody_and_what_is_kept_stands_before_it() {
    let site = Site::start();
    let weir = &site.weir;
    assert_eq!(asked(weir, "GET /kept/a", &[]).text(), "app");
    site.switches("drain", "app", "app");
    // Kept, and later out of date: what is kept of the pool itself is better than what another says.
    until("what is kept to be given because of the failure", || {
        let answer = asked(weir, "GET /kept/a", &[]);
        assert_eq!(answer.text(), "app");
        weir.metric("weir_cache_requests_total", &[("result", "error_stale")]).gt(&0.0).then_some(())
    });
    for _ in 0..2 {
        let answer = asked(weir, "GET /kept/b", &[]);
        assert_eq!(answer.text(), "sorry");
        let status = answer.fields.one("cache-status").unwrap_or_default();
        assert!(status.contains("detail=fallback"), "{answer:?}");
    }
    site.switches("enable", "app", "app");
    assert_eq!(asked(weir, "GET /kept/b", &[]).text(), "app");
}

#[test]
fn probes_that_find_all_down_have_the_fallback_serve_before_the_last_resort() {
    let sorry = Backend::saying("sorry");
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@app"]
        fallback_pool = "sorry"
        health = { check = "tcp", interval = "50ms", fast_interval = "10ms", last_resort = "all" }
        [pool.sorry]
        backends = ["@sorry"]
        health = "off"
        "#;
    let app = Backend::saying("app");
    let weir = Setup::of(config).with("app", app.address()).with("sorry", sorry.address()).start();
    assert_eq!(asked(&weir, "GET /", &[]).text(), "app");
    let address = app.dies();
    until("the probes to find it down", || (asked(&weir, "GET /", &[]).text() == "sorry").then_some(()));
    // Who was on its way before may have asked for another of the pool, and got the last resort.
    let last_resort = || weir.metric("weir_last_resort_total", &[("pool", "app")]);
    let before = last_resort();
    for _ in 0..10 {
        assert_eq!(asked(&weir, "GET /", &[]).text(), "sorry");
    }
    assert_eq!(last_resort(), before);
    let _app = Backend::serving_at(address, |_, wire| {
        wire.answers(200, &[], "back");
        After::Keep
    });
    until("it to serve again", || (asked(&weir, "GET /", &[]).text() == "back").then_some(()));
}

/// It went to the fallback, though most of its requests would have been served.
#[test]
fn a_pool_that_uses_all_its_backends_because_too_few_are_healthy_still_serves() {
    let (app, sorry) = (Backend::saying("app"), Backend::saying("sorry"));
    let config = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@app", "@one", "@other"]
        fallback_pool = "sorry"
        health = { check = "tcp", interval = "50ms", fast_interval = "10ms", panic_below = 0.5 }
        [pool.sorry]
        backends = ["@sorry"]
        health = "off"
        "#;
    let setup = Setup::of(config).with("app", app.address()).with("sorry", sorry.address());
    let weir = setup.with("one", free_address()).with("other", free_address()).start();
    until("panic", || weir.command(&["status"]).stdout.contains("panic").then_some(()));
    for _ in 0..6 {
        assert_eq!(asked(&weir, "GET /", &[]).text(), "app");
    }
    assert_eq!(weir.metric("weir_fallbacks_total", &[("pool", "app")]), 0.0);
}
