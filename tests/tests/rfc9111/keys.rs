//! Which requests get the same answer, and what makes one doubtful (RFC 9111 §2, §4.1, §4.4).

use super::{Site, is_hit, ok, reply, site, site_sending};

/// A site whose responses vary by these fields.
fn varying(vary: &str) -> Site {
    let line = format!("cache-control: max-age=60\nvary: {vary}");
    site("", move |request, _| {
        let text = ["accept-encoding", "accept-language", "x-a"]
            .map(|name| request.fields.one(name).unwrap_or("-").to_owned());
        ok(&line, text.join("|"))
    })
}

/// Threat E4.
#[test]
fn requests_that_vary_get_what_they_select() {
    let site = varying("accept-language, x-a");
    for (fields, body) in [
        (&["accept-language: de"][..], "-|de|-"),
        (&["accept-language: en"], "-|en|-"),
        (&["accept-language: de", "x-a: 1"], "-|de|1"),
        (&["x-a: 1"], "-|-|1"),
        (&[], "-|-|-"),
    ] {
        assert!(site.is_kept("/", fields), "{fields:?}");
        assert_eq!(site.get("/", fields).text(), body);
    }
    assert_eq!(site.served(), 5);
    assert!(super::status_of(&site.get("/", &["x-a: 2"])).contains("fwd=vary-miss"));
}

#[test]
fn requests_that_take_the_same_codings_get_the_same_answer() {
    let site = varying("Accept-Encoding");
    site.get("/", &["accept-encoding: gzip, br"]);
    for same in ["br,gzip", "GZIP;q=1.0, br", "gzip, br, identity;q=0.5, zstd;q=0"] {
        assert!(is_hit(&site.get("/", &[&format!("accept-encoding: {same}")])), "{same}");
    }
    for other in ["gzip", "br", "gzip, br, zstd", "gzip, br, identity;q=0", "*"] {
        assert!(!is_hit(&site.get("/", &[&format!("accept-encoding: {other}")])), "{other}");
    }
}

/// Threat E4.
#[test]
fn what_varies_by_anything_is_fetched_each_time() {
    for vary in ["*", "accept, *", "\"x\""] {
        assert!(!varying(vary).is_kept("/", &[]), "{vary}");
    }
}

/// Threat E4: what Weir itself writes of each client is not in the key.
#[test]
fn what_varies_by_who_asks_is_fetched_for_each() {
    let site = site("", |request, _| {
        let line = format!("cache-control: max-age=60\nvary: {}", &request.target[1..]);
        ok(&line, request.fields.one("x-forwarded-for").unwrap_or_default())
    });
    for target in ["/x-forwarded-for", "/accept,Forwarded"] {
        assert_eq!(site.get(target, &[]).text(), "127.0.0.1");
        assert_eq!(site.curl(target, &[], &["--interface", "127.0.0.2"]).text(), "127.0.0.2", "{target}");
    }
}

#[test]
fn queries_tell_responses_apart_as_the_operator_says() {
    let kept = |rules: &str, first: &str, second: &str| {
        let site = site_sending(rules, "cache-control: max-age=60");
        site.get(first, &[]);
        is_hit(&site.get(second, &[]))
    };
    assert!(!kept("", "/?a=1&b=2", "/?b=2&a=1"));
    assert!(!kept("", "/", "/?"));
    assert!(kept("query_sort = true", "/?a=1&b=2", "/?b=2&a=1"));
    assert!(kept("ignore_query = true", "/?a=1", "/?b=2"));
    assert!(kept("query_only = [\"id\"]", "/?id=1&x=2", "/?x=3&id=1"));
    assert!(!kept("query_only = [\"id\"]", "/?id=1", "/?id=2"));
    assert!(kept("query_without = [\"utm_*\"]", "/?id=1&utm_source=a", "/?utm_medium=b&id=1"));
}

#[test]
fn declared_fields_and_cookies_tell_responses_apart() {
    let site =
        site_sending("key_headers = [\"x-tenant\"]\nkey_cookies = [\"lang\"]", "cache-control: max-age=60");
    assert!(site.is_kept("/", &["x-tenant: 1"]));
    assert!(site.is_kept("/", &["x-tenant: 2"]));
    assert!(site.is_kept("/", &["cookie: lang=de; session=1"]));
    assert!(is_hit(&site.get("/", &["cookie: session=2; lang=de"])));
    assert!(site.is_kept("/", &["cookie: lang=en"]));
    assert_eq!(site.served(), 4);
}

#[test]
fn hosts_do_not_share_answers_and_spellings_of_one_host_do() {
    let site = site("", |request, _| {
        ok("cache-control: max-age=60", request.fields.one("host").unwrap_or_default())
    });
    assert_eq!(site.get("/", &["host: a.example"]).text(), "a.example");
    assert_eq!(site.get("/", &["host: b.example"]).text(), "b.example");
    let same = site.get("/", &["host: A.Example:80"]);
    assert!(is_hit(&same));
    assert_eq!(same.text(), "a.example");
    assert_eq!(site.served(), 2);
}

#[test]
fn a_successful_unsafe_method_drops_what_is_kept_of_its_target() {
    let site = site("", |request, before| match (request.method.as_str(), request.target.as_str()) {
        ("GET", _) => ok("cache-control: max-age=60", before.to_string()),
        (_, "/refused") => reply(403, "", ""),
        (_, "/broken") => reply(500, "", ""),
        (_, "/cart") => reply(303, "location: /named\ncontent-location: http://HOST/other", ""),
        _ => reply(204, "", ""),
    });
    for method in ["POST", "PUT", "DELETE", "PATCH", "PURIFY"] {
        site.get("/page", &[]);
        assert!(is_hit(&site.get("/page", &[])));
        site.curl("/page", &[], &["--request", method]);
        assert!(!is_hit(&site.get("/page", &[])), "{method}");
    }
    for target in ["/refused", "/broken"] {
        site.get(target, &[]);
        site.curl(target, &[], &["--request", "POST"]);
        assert!(is_hit(&site.get(target, &[])), "{target}");
    }
    // Safe methods leave it.
    site.curl("/page", &[], &["--request", "OPTIONS"]);
    assert!(is_hit(&site.get("/page", &[])));
    // What the response names of the same host goes too, and of other hosts stays.
    site.get("/named", &[]);
    site.get("/other", &[]);
    site.curl("/cart", &[], &["--request", "POST"]);
    assert!(!is_hit(&site.get("/named", &[])));
    assert!(is_hit(&site.get("/other", &[])));
}
