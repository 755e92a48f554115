//! What is set, added and taken out, by whom, and in which order.

use weir_tests::dialogue::{After, Backend};

use super::{ask, asked, before, talkative};

#[test]
fn what_is_set_takes_the_place_of_all_of_that_name_and_what_is_added_stands_beside() {
    let backend = talkative();
    let rules = r#"
        pool = "app"
        set_request_header = { x-set = "ours" }
        add_request_header = { x-added = "ours" }
        set_response_header = { x-set = "ours" }
        add_response_header = { set-cookie = "c=3" }
        "#;
    let weir = before(&backend, rules, "");
    let head = "GET / HTTP/1.1\r\nhost: a\r\nX-Set: theirs\r\nx-set: again\r\nx_set: twin\r\nx-added: theirs\r\n\r\n";
    let fields = asked(&weir, &backend, head);
    assert_eq!(fields.all("x-set"), ["ours"]);
    assert!(fields.all("x_set").is_empty(), "a backend may read it as x-set: {fields:?}");
    assert_eq!(fields.all("x-added"), ["theirs", "ours"]);
    let response = ask(&weir, head);
    assert_eq!(response.fields.all("x-set"), ["ours"]);
    assert_eq!(response.fields.all("set-cookie"), ["a=1", "b=2", "c=3"]);
}

#[test]
fn what_is_taken_out_reaches_neither_side() {
    let backend = talkative();
    let rules = r#"
        pool = "app"
        remove_request_header = ["x-debug", "user-agent"]
        remove_response_header = ["server", "x-powered-by"]
        "#;
    let weir = before(&backend, rules, "");
    let head =
        "GET / HTTP/1.1\r\nhost: a\r\nX-Debug: 1\r\nx_debug: 2\r\nUser-Agent: b\r\nx-debugger: 3\r\n\r\n";
    let fields = asked(&weir, &backend, head);
    for name in ["x-debug", "x_debug", "user-agent"] {
        assert!(fields.all(name).is_empty(), "{name}: {fields:?}");
    }
    assert_eq!(fields.one("x-debugger"), Some("3"));
    let response = ask(&weir, head);
    for name in ["server", "x-powered-by"] {
        assert!(response.fields.all(name).is_empty(), "{name}: {:?}", response.fields);
    }
    assert_eq!(response.fields.one("x-set"), Some("theirs"));
}

#[test]
fn what_a_route_says_comes_behind_what_its_pool_says_and_that_behind_its_listener() {
    let backend = talkative();
    let rules = r#"
        pool = "app"
        set_response_header = { x-by = "listener", x-listener = "1" }
        [[listener.web.route]]
        path = "/route"
        pool = "app"
        set_response_header = { x-by = "route" }
        remove_response_header = ["x-listener"]
        add_response_header = { x-route = "1" }
        [[listener.web.route]]
        path = "/plain"
        pool = "app"
        "#;
    let of_pool = r#"set_response_header = { x-by = "pool" }"#;
    let weir = before(&backend, rules, of_pool);
    let by = |path: &str| {
        let fields = ask(&weir, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).fields;
        let one = |name: &str| fields.all(name).join("|");
        [one("x-by"), one("x-listener"), one("x-route")]
    };
    assert_eq!(by("/route"), ["route", "", "1"]);
    assert_eq!(by("/plain"), ["pool", "1", ""]);
    assert_eq!(by("/elsewhere"), ["pool", "1", ""], "no route took it");
}

#[test]
fn every_variable_of_a_plain_request_is_filled_in() {
    let backend = Backend::saying("ok");
    let rules = r#"
        pool = "app"
        [listener.web.set_request_header]
        x-client = "$client_ip"
        x-port = "$client_port"
        x-url = "$scheme://$host:$listener_port$path$query"
        x-method = "$method"
        x-id = "id=$request_id"
        x-tenant = "$header.X-Tenant/$cookie.session/$query.page"
        x-price = "US$$5"
        "#;
    let weir = before(&backend, rules, "");
    let mut client = weir.client("web");
    client.sends(
        "GET /a/../b%41?page=2&x HTTP/1.1\r\nhost: Shop.example:8080\r\nx-tenant: t1\r\nx-tenant: t2\r\n\
         cookie: a=b; session=s1\r\n\r\n",
    );
    client.receives_status(200);
    let fields = backend.requests().pop().expect("a request").fields;
    assert_eq!(fields.all("x-client"), ["127.0.0.1"]);
    assert_eq!(fields.one("x-port"), Some(client.local().port().to_string().as_str()));
    let url = format!("http://Shop.example:{}/bA?page=2&x", weir.address("web").port());
    assert_eq!(fields.one("x-url"), Some(url.as_str()));
    assert_eq!(fields.one("x-method"), Some("GET"));
    let id = fields.one("x-request-id").expect("an id");
    assert_eq!(fields.one("x-id"), Some(format!("id={id}").as_str()));
    assert_eq!(fields.one("x-tenant"), Some("t1, t2/s1/2"));
    assert_eq!(fields.one("x-price"), Some("US$5"));
}

#[test]
fn a_value_that_comes_out_empty_leaves_the_field_out_and_nobody_elses_in() {
    let backend = Backend::saying("ok");
    let rules = r#"
        pool = "app"
        set_request_header = { x-user = "$cookie.user", x-empty = "" }
        "#;
    let weir = before(&backend, rules, "");
    let fields = asked(&weir, &backend, "GET / HTTP/1.1\r\nhost: a\r\nx-user: forged\r\n\r\n");
    assert!(fields.all("x-user").is_empty(), "{fields:?}");
    assert_eq!(fields.all("x-empty"), [""], "a constant stays what it is");
    let fields =
        asked(&weir, &backend, "GET / HTTP/1.1\r\nhost: a\r\nx-user: forged\r\ncookie: user=u\r\n\r\n");
    assert_eq!(fields.all("x-user"), ["u"]);
}

#[test]
fn a_response_can_say_what_its_request_was_though_that_has_long_been_sent_on() {
    let backend = talkative();
    let rules = r#"
        pool = "app"
        set_response_header = { x-asked = "$method $host$path", x-mine = "$header.x-mine" }
        "#;
    let weir = before(&backend, rules, "");
    let mut client = weir.client("web");
    // The second is in the same buffer behind the first, whose bytes are gone when its answer comes.
    client.sends(
        "POST /one HTTP/1.1\r\nhost: first\r\nx-mine: 1\r\ncontent-length: 5\r\n\r\nhello\
         GET /two HTTP/1.1\r\nhost: second\r\n\r\n",
    );
    let first = client.receives_status(200);
    assert_eq!(
        (first.fields.one("x-asked"), first.fields.one("x-mine")),
        (Some("POST first/one"), Some("1"))
    );
    let second = client.receives_status(200);
    assert_eq!((second.fields.one("x-asked"), second.fields.one("x-mine")), (Some("GET second/two"), None));
}

#[test]
fn rules_change_with_a_reload_also_for_connections_that_are_open() {
    let backend = talkative();
    let config = |rule: &str| {
        format!(
            r#"
            [listener.web]
            bind = "@web"
            pool = "app"
            {rule}
            [pool.app]
            backends = ["@app"]
            health = "off"
            "#
        )
    };
    let setup = weir_tests::dialogue::Setup::of(&config("")).with("app", backend.address());
    let mut weir = setup.start();
    let mut client = weir.client("web");
    let mut served = || {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        client.receives_status(200).fields.all("server").join("|")
    };
    assert_eq!(served(), "inner/1.0");
    weir.reloads(&config(r#"set_response_header = { server = "$host" }"#));
    assert_eq!(served(), "a");
    weir.reloads(&config(r#"remove_response_header = ["server"]"#));
    assert_eq!(served(), "");
    weir.reloads(&config(""));
    assert_eq!(served(), "inner/1.0");
}

#[test]
fn the_cookie_of_stickiness_stays_where_backends_set_none_any_more() {
    let backend = talkative();
    let rules = "pool = \"app\"\nremove_response_header = [\"set-cookie\"]";
    let weir = before(&backend, rules, "sticky = { cookie = \"weir\" }");
    let response = ask(&weir, "GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let cookies = response.fields.all("set-cookie");
    assert!(cookies.len() == 1 && cookies[0].starts_with("weir="), "{cookies:?}");
}

#[test]
fn what_is_taken_out_of_responses_is_no_trailer_of_theirs_either() {
    let backend = Backend::serving(|_, wire| {
        wire.sends(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nx-internal: head\r\n\r\n\
             2\r\nok\r\n0\r\nx-internal: trailer\r\nx-other: 1\r\n\r\n",
        );
        After::Keep
    });
    let weir = before(&backend, "pool = \"app\"\nremove_response_header = [\"x-internal\"]", "");
    let response = ask(&weir, "GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te\r\n\r\n");
    assert!(response.fields.all("x-internal").is_empty(), "{:?}", response.fields);
    assert!(response.trailers.all("x-internal").is_empty(), "{:?}", response.trailers);
    assert_eq!((response.text().as_str(), response.trailers.one("x-other")), ("ok", Some("1")));
}

/// They were what a backend had said of itself: neither the trailers of what is fetched for memory went by
/// the rules, nor what comes before an answer.
#[test]
fn what_is_taken_out_of_responses_is_in_nothing_that_comes_before_or_behind_them() {
    let backend = Backend::serving(|_, wire| {
        wire.sends(
            "HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\nx-internal: hints\r\nserver: inner\r\n\r\n\
             HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\nx-internal: head\r\ntransfer-encoding: chunked\r\n\r\n\
             2\r\nok\r\n0\r\nx-internal: trailer\r\nx-other: 1\r\n\r\n",
        );
        After::Keep
    });
    for more in ["", "cache = { }"] {
        let rules = format!(
            "[[listener.web.route]]\npath = \"/*\"\npool = \"app\"\n\
             remove_response_header = [\"x-internal\", \"server\"]\n{more}"
        );
        let weir = before(&backend, &rules, "");
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te, close\r\n\r\n");
        let received = String::from_utf8(client.receives_to_the_end()).expect("text");
        assert!(received.contains("103 ") && received.contains("link: </a.css>"), "{more}: {received}");
        assert!(received.contains("x-other: 1"), "{more}: {received}");
        assert!(!received.contains("x-internal") && !received.contains("server:"), "{more}: {received}");
    }
}
