//! Shares of a route's requests that go to other pools.

use weir_tests::dialogue::{Backend, Setup, Weir};

fn start(stable: &Backend, canary: &Backend, split: &str) -> Weir {
    let config = format!(
        r#"
        [listener.web]
        bind = "@web"
        [[listener.web.route]]
        header = {{ x-canary = "yes" }}
        pool = "canary"
        [[listener.web.route]]
        path = "/*"
        pool = "stable"
        split = {split}
        [pool.stable]
        backends = ["@stable"]
        health = {{ check = "off" }}
        [pool.canary]
        backends = ["@canary"]
        health = {{ check = "off" }}
        "#
    );
    Setup::of(&config).with("stable", stable.address()).with("canary", canary.address()).start()
}

fn asks(weir: &Weir, fields: &str) -> String {
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n"));
    client.receives_status(200).text()
}

#[test]
fn a_share_of_the_requests_goes_to_the_other_pool_and_a_header_may_ask_for_it() {
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let weir = start(&stable, &canary, r#"{ to = [{ pool = "canary", share = 0.3 }] }"#);
    let new = (0..300).filter(|_| asks(&weir, "") == "canary").count();
    // Five standard deviations of so many draws.
    assert!((50..130).contains(&new), "{new} of 300");
    assert_eq!(asks(&weir, "x-canary: yes\r\n"), "canary");
    assert!(weir.metric("weir_backend_requests_total", &[("pool", "canary")]) >= new as f64);
}

#[test]
fn who_has_a_session_keeps_to_one_pool_over_workers_reloads_and_upgrades_of_the_share() {
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let split = |share: f64| {
        format!(r#"{{ by = "$cookie.session", to = [{{ pool = "canary", share = {share} }}] }}"#)
    };
    let mut weir = start(&stable, &canary, &split(0.5));
    let of = |weir: &Weir, user: usize| asks(weir, &format!("cookie: session=user-{user}\r\n"));
    let first: Vec<String> = (0..40).map(|user| of(&weir, user)).collect();
    assert!(first.iter().any(|pool| pool == "stable") && first.iter().any(|pool| pool == "canary"));
    for (user, pool) in first.iter().enumerate() {
        assert_eq!(of(&weir, user), *pool);
        assert_eq!(of(&weir, user), *pool);
    }
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "--header", "cookie: session=user-7", "GET", &url]);
    let explained = explained.succeeded();
    assert!(explained.contains(&format!("forward to pool {}", first[7])), "{explained}");
    assert!(explained.contains("by $cookie.session: 50.0 % canary"), "{explained}");
    // Nobody who has the new version is taken back when more get it.
    let config = std::fs::read_to_string(weir.config_path()).expect("the config");
    weir.reloads(&config.replace("share = 0.5", "share = 0.8"));
    for (user, pool) in first.iter().enumerate().filter(|(_, pool)| *pool == "canary") {
        assert_eq!(of(&weir, user), *pool);
    }
    // Who has no session goes where most are.
    assert!((0..20).all(|_| asks(&weir, "") == "stable"));
}

#[test]
fn when_the_other_pool_can_not_serve_the_routes_own_does() {
    let (stable, canary) = (Backend::saying("stable"), Backend::saying("canary"));
    let weir = start(&stable, &canary, r#"{ to = [{ pool = "canary", share = 1.0 }] }"#);
    assert_eq!(asks(&weir, ""), "canary");
    assert_eq!(weir.command(&["drain", "canary", &canary.address().to_string()]).code, 0);
    assert_eq!(asks(&weir, ""), "stable");
    assert_eq!(weir.metric("weir_fallbacks_total", &[("pool", "canary")]), 1.0);
}
