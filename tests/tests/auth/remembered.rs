//! A service's word that stands for some time without another question (threat J9).

use super::*;

/// The site, whose service is asked by its own cookie only and whose word is remembered for an hour.
fn remembering(more: &str) -> Site {
    let keys =
        format!("timeout = \"20s\"\ncookies = [\"id\", \"session_*\"]\nremember = {{ ttl = \"1h\"{more} }}");
    // Without cookies of its own, which are each answer's own.
    let service = Backend::serving(|request, wire| {
        let cookies = request.fields.all("cookie").join("; ");
        match cookies.split("; ").find_map(|cookie| cookie.strip_prefix("id=")) {
            Some("sets") => wire.answers(200, &[("remote-user", "max"), ("set-cookie", "seen=1")], ""),
            Some("bad") | None => wire.answers(401, &[], "who are you?"),
            Some(name) => wire.answers(200, &[("remote-user", name)], ""),
        }
        After::Keep
    });
    Site::of(&CONFIG.replacen("timeout = \"20s\"", &keys, 1), service)
}

/// Whom the backend was told of for these lines, or the status of a refusal; and how often the service was
/// asked for it.
fn told(site: &Site, line: &str, fields: &[&str]) -> (Result<String, u16>, usize) {
    let before = site.auth.served();
    site.app.forgets();
    let status = asked(&site.weir, line, fields).status;
    let request = site.app.requests().pop();
    let user = request.map(|request| request.fields.all("remote-user").join("|"));
    (user.ok_or(status), site.auth.served() - before)
}

fn user(name: &str) -> Result<String, u16> {
    Ok(name.to_owned())
}

#[test]
fn what_lets_pass_is_remembered_for_the_very_same_question() {
    let mut site = remembering("");
    let ann = ["cookie: id=ann", "x-request-id: one"];
    assert_eq!(told(&site, "GET /a?b", &ann), (user("ann"), 1));
    let again = ["cookie: theme=dark; id=ann", "x-request-id: two", "remote-user: root", "x-other: 1"];
    assert_eq!(told(&site, "GET /a?b", &again), (user("ann"), 0));
    let url = format!("http://{}/a?b", site.weir.address("web"));
    let explained = site.weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(
        explained.contains("what lets pass is remembered for 3600s, by what the service is told and host"),
        "{explained}"
    );
    assert_eq!((site.results("passed"), site.results("remembered")), (1.0, 1.0));
    let log = site.weir.lines_of("access.log", 2).concat();
    assert_eq!(log.matches("\"user\":\"ann\"").count(), 2, "{log}");
    let config = std::fs::read_to_string(site.weir.config_path()).unwrap();
    site.weir.reloads(&config.replace("\"20s\"", "\"21s\""));
    assert_eq!(told(&site, "GET /a?b", &ann), (user("ann"), 1), "a reload that changes something forgets");
}

#[test]
fn j9_another_question_is_asked_and_so_is_one_that_was_refused() {
    let site = remembering("");
    let ann = "cookie: id=ann";
    assert_eq!(told(&site, "GET /a?b", &[ann]), (user("ann"), 1));
    for (line, fields) in [
        ("GET /a?c", vec![ann]),
        ("GET /a", vec![ann]),
        ("GET /a?", vec![ann]),
        ("GET /A?b", vec![ann]),
        ("POST /a?b", vec![ann]),
        ("GET /a?b", vec![ann, "authorization: Bearer x"]),
        ("GET /a?b", vec![ann, "cookie: session_1=x"]),
        ("GET /a?b", vec!["cookie: id=ann; id=bob"]),
        ("GET /a?b", vec![ann, "cookie: id=bob"]),
        ("GET /a?b", vec![ann, "accept: text/html"]),
    ] {
        assert_eq!(told(&site, line, &fields), (user("ann"), 1), "{line} {fields:?}");
        assert_eq!(told(&site, line, &fields), (user("ann"), 0), "{line} {fields:?}");
    }
    for fields in [vec!["cookie: id=bad"], vec![], vec!["cookie: xid=ann"], vec!["cookie: Id=ann"]] {
        assert_eq!(told(&site, "GET /a?b", &fields), (Err(401), 1), "{fields:?}");
        assert_eq!(told(&site, "GET /a?b", &fields), (Err(401), 1), "{fields:?}");
    }
    assert_eq!(told(&site, "GET /a?b", &["cookie: id=bob"]), (user("bob"), 1));
    assert_eq!(told(&site, "GET /a?b", &[ann]), (user("ann"), 0));
    let other_host = |target: &str| {
        let before = site.auth.served();
        let mut client = site.weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: other.example\r\n{ann}\r\n\r\n"));
        client.receives_status(200);
        site.auth.served() - before
    };
    assert_eq!((other_host("/a?b"), other_host("/a?b")), (1, 0));
    // Its cookie is for one answer.
    for _ in 0..2 {
        assert_eq!(told(&site, "GET /a?b", &["cookie: id=sets"]), (user("max"), 1));
    }
    // A route with a service of its own has a memory of its own.
    assert_eq!(told(&site, "GET /kept/x", &[ann]).1, 1);
    assert_eq!(told(&site, "GET /kept/x", &[ann]).1, 1);
}

#[test]
fn an_answer_is_for_what_the_operator_says_and_always_for_its_credentials() {
    let site = remembering(", by = \"host\"");
    let ann = "cookie: id=ann";
    assert_eq!(told(&site, "GET /a", &[ann]), (user("ann"), 1));
    for line in ["GET /b?c", "DELETE /a"] {
        assert_eq!(told(&site, line, &[ann]), (user("ann"), 0), "{line}");
    }
    assert_eq!(told(&site, "GET /a", &["cookie: id=bob"]), (user("bob"), 1));
    assert_eq!(told(&site, "GET /a", &[ann, "authorization: Basic x"]), (user("ann"), 1));
    assert_eq!(told(&site, "GET /a", &["cookie: id=bad"]), (Err(401), 1));
}

#[test]
fn a_service_is_told_of_the_cookies_that_are_named_and_of_no_others() {
    let site = remembering("");
    let cookies = ["cookie: theme=dark; id=ann; session=0; session_1=x", "cookie: other=1", "cookie: id=bob"];
    assert_eq!(told(&site, "GET /", &cookies), (user("ann"), 1));
    assert_eq!(site.question().fields.all("cookie"), ["id=ann; session_1=x", "id=bob"]);
    assert_eq!(site.request().fields.all("cookie").join("; ").matches("theme=dark").count(), 1);
}

#[test]
fn what_has_no_room_is_asked_about_again_and_counted() {
    let site = remembering(", entries = 16");
    for number in 0..40 {
        assert_eq!(told(&site, &format!("GET /{number}"), &["cookie: id=ann"]), (user("ann"), 1));
    }
    let forgotten = site.weir.metric("weir_auth_forgotten_total", &[("listener", "web")]);
    assert!((24.0..40.0).contains(&forgotten), "{forgotten}");
}
