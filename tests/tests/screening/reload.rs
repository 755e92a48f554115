//! Limits over reloads, and what `weir explain` says of them.

use weir_tests::dialogue::{Backend, Setup};

use super::ask;

fn config(first: &str, rate: &str) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        concurrency_limit = {{ max = 100, key = "listener" }}
        {first}
        [[listener.web.route]]
        path = "/api/*"
        pool = "app"
        rate_limit = [{{ rate = "{rate}" }}, {{ rate = "1000/s", key = "route", dry_run = true }}]
        deny_user_agent = ["curl/*", "~bot"]
        allow_address = ["127.0.0.0/8"]
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#
    )
}

const OTHER: &str = "[[listener.web.route]]\npath = \"/other\"\nrespond = { status = 200 }\nrate_limit = { rate = \"1/h\" }\n";

#[test]
fn an_unchanged_limit_goes_on_over_a_reload_and_a_changed_one_begins_anew() {
    let backend = Backend::saying("hello");
    let mut weir = Setup::of(&config("", "1/h")).with("app", backend.address()).start();
    let status = |weir: &weir_tests::dialogue::Weir| ask(weir, "GET", "/api/x", "").status;
    assert_eq!((status(&weir), status(&weir)), (200, 429));
    // The route has another position now, and with it another name.
    weir.reloads(&config(OTHER, "1/h"));
    assert_eq!(status(&weir), 429);
    assert_eq!((ask(&weir, "GET", "/other", "").status, ask(&weir, "GET", "/other", "").status), (200, 429));
    weir.reloads(&config(OTHER, "2/h"));
    assert_eq!((status(&weir), status(&weir)), (200, 429));
    assert_eq!(ask(&weir, "GET", "/other", "").status, 429);
}

#[test]
fn explain_says_what_each_screen_answers_and_counts_nothing() {
    let backend = Backend::saying("hello");
    let weir = Setup::of(&config("", "2/h")).with("app", backend.address()).start();
    let url = format!("http://{}/api/x", weir.address("web"));
    let explain = |extra: &[&str]| {
        let mut words = vec!["explain", "http", "GET", &url];
        words.extend(extra);
        weir.command(&words).succeeded().to_owned()
    };
    for _ in 0..5 {
        let said = explain(&["--header", "user-agent: Mozilla/5.0"]);
        for line in [
            "   concurrency_limit of the listener: 0 of 100 under way for the listener; at edge",
            "   allow_address of the route: `127.0.0.0/8` of `allow_address` holds 127.0.0.1",
            "   deny_user_agent of the route: no entry matches `Mozilla/5.0`",
            "   rate_limit of the route: 1 of 1 tokens left for client 127.0.0.1; 2/h at edge",
            "   rate_limit of the route: 1000 of 1000 tokens left for the route; 1000/s at edge, dry run",
            "action   forward to pool app",
        ] {
            assert!(said.lines().any(|said| said == line), "{line}\nis not in\n{said}");
        }
    }
    let said = explain(&["--header", "user-agent: a bot", "--from", "2001:db8::1"]);
    assert!(
        said.contains(" ! allow_address of the route: no entry of 1 in `allow_address` holds 2001:db8::1"),
        "{said}"
    );
    assert!(said.contains(" ! deny_user_agent of the route: `~bot` matches `a bot`"), "{said}");
    assert!(said.contains("tokens left for client 2001:db8::/64"), "{said}");
    assert!(said.contains("action   refuse 403, allow_address of the route"), "{said}");
    assert_eq!(ask(&weir, "GET", "/api/x", "").status, 200);
    let said = explain(&[]);
    assert!(said.contains(" ! rate_limit of the route: 0 of 1 tokens left for client 127.0.0.1"), "{said}");
    assert!(said.contains("action   refuse 429, rate_limit of the route"), "{said}");
    assert_eq!(ask(&weir, "GET", "/api/x", "").status, 429);
}
