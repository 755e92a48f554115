//! Limits of rate that forget what somebody owes, because an operator says so.

use serde_json::{Value, json};
use weir_tests::dialogue::{After, Backend, Setup, Weir};

use super::ask;

const CONFIG: &str = r#"
    [listener.web]
    bind = "@web"
    rate_limit = { rate = "4/1h", burst = 4, key = "listener" }
    [[listener.web.route]]
    name = "login"
    path = "/login"
    pool = "app"
    rate_limit = [
      { rate = "1/1h", statuses = [401], key = "header:x-user" },
      { rate = "1/1h", statuses = [401], key = "$client_ip $header.x-device" },
    ]
    [[listener.web.route]]
    path = "/*"
    pool = "app"
    rate_limit = { rate = "1/1h", burst = 1 }
    [listener.other]
    bind = "@other"
    [[listener.other.route]]
    path = "/*"
    pool = "app"
    rate_limit = { rate = "1/1h", burst = 1 }
    [pool.app]
    backends = ["@app"]
    health = "off"
"#;

fn start() -> (Backend, Weir) {
    let backend = Backend::serving(|request, wire| {
        wire.answers(if request.target == "/login" { 401 } else { 200 }, &[], "");
        After::Keep
    });
    let weir = Setup::of(CONFIG).with("app", backend.address()).start();
    (backend, weir)
}

fn clears(weir: &Weir, order: &Value) -> (u16, Value) {
    let answer = weir.admin().calls("POST", "/v1/limits/clear", &[], &order.to_string());
    (answer.status(), answer.json())
}

fn login(weir: &Weir, fields: &str) -> u16 {
    ask(weir, "GET", "/login", fields).status
}

#[test]
fn a_client_that_is_let_in_again_has_a_whole_bucket_and_nobody_else_has() {
    let (_backend, weir) = start();
    let page = || ask(&weir, "GET", "/page", "").status;
    assert_eq!((page(), page()), (200, 429));
    let clear = |arguments: &[&str]| {
        let all = [&["limits", "clear"][..], arguments].concat();
        weir.command(&all).succeeded().trim().to_owned()
    };
    // Nothing of another client's, of another listener's, or of what a header says.
    assert_eq!(clear(&["--client", "127.0.0.2"]), "nothing was owed to any of 5 limits");
    assert_eq!(clear(&["--client", "127.0.0.1", "--listener", "other"]), "nothing was owed to the one limit");
    assert_eq!(clear(&["--client", "127.0.0.1", "--route", "login"]), "nothing was owed to any of 2 limits");
    assert_eq!(page(), 429);
    assert_eq!(clear(&["--client", "::ffff:127.0.0.1"]), "cleared in 1 of 5 limits");
    assert_eq!((page(), page()), (200, 429), "and no more than a whole bucket");
    // The count of all together is nobody's: two pages have come of it, and two were refused by the route.
    assert_eq!(login(&weir, "x-user: ann\r\n"), 401);
    assert_eq!(login(&weir, "x-user: bob\r\nx-device: b\r\n"), 401);
    assert_eq!(login(&weir, "x-user: eve\r\nx-device: e\r\n"), 429);
    // The page, and what is said of who names no device.
    assert_eq!(clear(&["--client", "127.0.0.1", "--listener", "web"]), "cleared in 2 of 4 limits");
    assert_eq!(login(&weir, "x-user: eve\r\nx-device: e\r\n"), 429, "by the listener");
    assert_eq!(clear(&["--all"]), "cleared in 3 of 5 limits");
    assert_eq!((page(), page(), login(&weir, "x-user: ann\r\n")), (200, 429, 401));
}

#[test]
fn a_key_is_that_value_of_a_header_or_of_a_text_as_explain_shows_it() {
    let (_backend, weir) = start();
    let ann = "x-user: ann\r\nx-device: a\r\n";
    assert_eq!((login(&weir, ann), login(&weir, ann)), (401, 429));
    let clear = |key: &str| {
        let order = json!({ "key": key, "route": "login" });
        let (status, body) = clears(&weir, &order);
        assert_eq!((status, &body["limits"]), (200, &json!(2)), "{body}");
        body["cleared"].as_u64().unwrap()
    };
    assert_eq!((clear("bob"), clear("ann"), clear("ann")), (0, 1, 0));
    assert_eq!(login(&weir, ann), 429, "its device still owes");
    let url = format!("http://{}/login", weir.address("web"));
    let asked = ["explain", "http", "GET", &url, "--header", "x-user:ann", "--header", "x-device:a"];
    let said = weir.command(&asked).succeeded().to_owned();
    let shown = said.split("$header.x-device `").nth(1).and_then(|rest| rest.split('`').next()).unwrap();
    assert_eq!((shown, clear(shown)), ("127.0.0.1 a", 1));
    assert_eq!((login(&weir, ann), login(&weir, ann)), (401, 429));
}

#[test]
fn whom_it_is_about_has_to_be_said_once_and_where_has_to_be_a_limit() {
    let (_backend, weir) = start();
    let ask = |order: Value| clears(&weir, &order);
    for order in [json!({}), json!({ "all": true, "key": "a" }), json!({ "client": "no address" })] {
        let (status, body) = ask(order.clone());
        assert_eq!((status, &body["error"]["code"]), (400, &json!("bad_request")), "{order}");
    }
    for order in [json!({ "all": true, "listener": "no" }), json!({ "all": true, "route": "no" })] {
        let (status, body) = ask(order.clone());
        assert_eq!((status, &body["error"]["code"]), (404, &json!("not_found")), "{order}");
    }
}
