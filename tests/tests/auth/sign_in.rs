//! Browsers that are led to where people log in.

use super::*;

const SIGN_IN: &str = "/oauth2/sign_in?rd=$scheme://$host$path$query";

/// A site before a service that says 401, as oauth2-proxy does at `/oauth2/auth`.
fn site(sign_in: &str) -> Site {
    let service = Backend::serving(|request, wire| {
        let status =
            request.fields.one("authorization").and_then(|status| status.parse().ok()).unwrap_or(401);
        wire.answers(status, &[("set-cookie", "begun=1"), ("x-why", "unknown")], "who are you?");
        After::Keep
    });
    Site::of(
        &CONFIG.replacen("timeout = \"20s\"", &format!("timeout = \"20s\"\nsign_in = \"{sign_in}\""), 1),
        service,
    )
}

const PAGE: &str = "accept: text/html,application/xhtml+xml;q=0.9,*/*;q=0.8";

#[test]
fn a_browser_is_led_to_the_login_and_back_to_all_of_what_it_asked_for() {
    let site = site(SIGN_IN);
    let answer = asked(&site.weir, "GET /a%2Fb?c=1&d=%26#x", &[PAGE]);
    assert_eq!(answer.status, 400, "a fragment is never sent");
    let answer = asked(&site.weir, "GET /a%2Fb?c=1&d=%26&rd=//evil.example", &[PAGE]);
    assert_eq!((answer.status, answer.text().as_str()), (302, ""));
    let back = "http://shop.example/a%252Fb%3Fc%3D1%26d%3D%2526%26rd%3D//evil.example";
    assert_eq!(answer.fields.all("location"), [format!("/oauth2/sign_in?rd={back}")]);
    assert_eq!(answer.fields.all("set-cookie"), ["begun=1"]);
    assert_eq!((answer.fields.one("x-why"), answer.fields.one("cache-control")), (None, Some("no-store")));
    let curl = by_curl(&site.weir, &["--http2-prior-knowledge", "--head", "--header", PAGE], "/");
    assert!(
        curl.starts_with("HTTP/2 302") && curl.contains("location: /oauth2/sign_in?rd=http://"),
        "{curl}"
    );
    assert_eq!((site.results("denied"), site.app.served()), (2.0, 0));
    let url = format!("http://{}/", site.weir.address("web"));
    let explained = site.weir.command(&["explain", "http", "GET", &url]).stdout;
    assert!(explained.contains(&format!("are led to {SIGN_IN}")), "{explained}");
}

#[test]
fn scripts_forms_and_who_may_not_get_the_services_own_answer() {
    let site = site(SIGN_IN);
    for (line, fields) in [
        ("GET /", vec![]),
        ("GET /", vec!["accept: */*"]),
        ("GET /", vec!["accept: application/json, text/plain"]),
        ("POST /", vec![PAGE]),
        ("GET /", vec![PAGE, "authorization: 403"]),
    ] {
        let answer = asked(&site.weir, line, &fields);
        let expected = if fields.len() == 2 { 403 } else { 401 };
        assert_eq!((answer.status, answer.text().as_str()), (expected, "who are you?"), "{line} {fields:?}");
        assert_eq!(answer.fields.one("x-why"), Some("unknown"));
    }
}

#[test]
fn a_path_that_names_another_site_leads_nowhere_else() {
    let site = site("$path");
    let answer = asked(&site.weir, "GET //evil.example/x", &[PAGE]);
    assert_eq!((answer.status, answer.fields.one("location")), (302, Some("/evil.example/x")));
}
