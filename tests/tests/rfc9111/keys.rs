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

/// What the origin was asked for, in the words of the request that it got.
fn reflecting(rules: &str) -> Site {
    site(rules, |request, _| {
        let told: Vec<String> =
            request.fields.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        ok("cache-control: max-age=60", format!("{}\n{}", request.target, told.join("\n")))
    })
}

/// Threat E1: what is not keyed reaches no origin that could answer by it.
#[test]
fn of_a_query_only_what_is_keyed_reaches_the_origin() {
    for (rules, odd, plain, asked) in [
        ("query_only = [\"id\"]", "/p?id=1&%69d=evil", "/p?id=1", "/p?id=1"),
        ("query_only = [\"id\"]", "/p?x=evil&id=1&id[]=evil&&", "/p?id=1", "/p?id=1"),
        ("query_only = [\"id\"]", "/p?x=evil", "/p", "/p"),
        ("query_only = [\"a+b\"]", "/p?a+b=1&a%20b=evil", "/p?a+b=1", "/p?a+b=1"),
        ("query_without = [\"utm_*\"]", "/p?id=1&%75tm_x=evil", "/p?id=1", "/p?id=1"),
        ("query_without = [\"utm_*\"]", "/p?utm_a=evil;id=2&id=1", "/p?id=1", "/p?id=1"),
        ("ignore_query = true", "/p?evil", "/p", "/p"),
        ("query_sort = true", "/p?b=evil&a=1", "/p?a=1", "/p?a=1"),
    ] {
        let site = reflecting(rules);
        site.get(odd, &[]);
        let text = site.get(plain, &[]).text();
        assert_eq!(text.lines().next(), Some(asked), "{rules} {odd}");
        assert!(!text.contains("evil"), "{rules} {odd}: {text}");
    }
    let sent = |rules: &str, target: &str| {
        let site = reflecting(rules);
        site.get(target, &[]);
        site.asked()[0].target.clone()
    };
    assert_eq!(
        sent("query_only = [\"id\", \"page*\"]", "/p?page=2&x=1&%69d=3&pages=4"),
        "/p?page=2&%69d=3&pages=4"
    );
    assert_eq!(
        sent("query_without = [\"x\"]\nquery_sort = true", "/p?b=1&%61=2&x=3&a=4"),
        "/p?%61=2&a=4&b=1"
    );
    assert_eq!(sent("ignore_query = true", "/p?a=1"), "/p");
    assert_eq!(sent("", "/p?a=1&&b"), "/p?a=1&&b");
}

/// Values of one name mean something by their order, however the name is spelt.
#[test]
fn sorting_a_query_leaves_the_order_of_what_has_one_name() {
    let site = reflecting("query_sort = true");
    let asked = |target| site.get(target, &[]).text().lines().next().map(str::to_owned).expect("a line");
    assert_eq!(asked("/p?a=1&%61=2"), "/p?a=1&%61=2");
    assert_eq!(asked("/p?%61=2&a=1"), "/p?%61=2&a=1");
}

/// The same request is asked for in the same words, whether its answer is kept, waited for or passed on.
#[test]
fn what_is_not_kept_is_asked_for_in_the_same_words() {
    let site = site("query_only = [\"id\"]", |request, _| ok("cache-control: private", &*request.target));
    for _ in 0..3 {
        assert_eq!(site.get("/p?id=1&x=2", &[]).text(), "/p?id=1");
    }
    // What is no question for the cache is passed on as it came.
    site.curl("/p?id=1&x=2", &[], &["--request", "POST"]);
    assert_eq!(site.asked()[3].target, "/p?id=1&x=2");
}

/// Threat E1: backends read cookies in more ways than one.
#[test]
fn a_keyed_cookie_is_found_however_it_is_spelt() {
    let site = reflecting("key_cookies = [\"lang\"]");
    for (number, line) in [
        "lang =evil",
        "lang\t= evil",
        "a=1;  lang=evil",
        "a=1, lang=evil",
        "a=1,lang=evil",
        "a=1 lang=evil",
        "Lang=evil",
        "l%61ng=evil",
        "a=\"1; lang=evil\"",
        "lang=evil",
    ]
    .into_iter()
    .enumerate()
    {
        let target = format!("/{number}");
        site.get(&target, &[&format!("cookie: {line}")]);
        let text = site.get(&target, &[]).text();
        assert!(!text.contains("evil"), "{line}: {text}");
    }
    // What only looks like it tells nobody apart.
    site.get("/alike", &["cookie: xlang=1; langs=2; note=my lang; json={\"lang\":\"de\"}"]);
    assert!(is_hit(&site.get("/alike", &["cookie: a=b"])));
}

/// Threat E1: spellings of a host are one host, and the origin sees one of them.
#[test]
fn the_spelling_of_a_host_that_is_not_keyed_reaches_no_origin() {
    let site = reflecting("");
    for (number, spelling) in
        ["A.Example", "a.example:80", "a.example:", "A.EXAMPLE:80"].into_iter().enumerate()
    {
        let target = format!("/{number}");
        site.get(&target, &[&format!("host: {spelling}")]);
        let kept = site.get(&target, &["host: a.example"]);
        assert!(is_hit(&kept), "{spelling}");
        let text = kept.text();
        assert!(text.lines().any(|line| line == "host=a.example"), "{spelling}: {text}");
        assert!(!text.contains(spelling), "{spelling}: {text}");
    }
    // In the target, too.
    let mut client = site.weir.client("web");
    client.sends("GET http://A.Example:80/absolute HTTP/1.1\r\nhost: a.example\r\n\r\n");
    assert!(!client.receives_response().text().contains("A.Example"));
}

/// RFC 9111 §4.4 names the URI, and not one of the responses that are kept of it.
#[test]
fn a_successful_unsafe_method_drops_all_that_is_kept_of_its_uri() {
    let rules = "key_cookies = [\"lang\"]\nkey_headers = [\"x-tenant\"]";
    let site = site(rules, |request, before| match request.method.as_str() {
        "GET" => ok("cache-control: max-age=60\nvary: accept", before.to_string()),
        _ => reply(204, "content-location: /other?a=1", ""),
    });
    let clients: [&[&str]; 4] =
        [&[], &["cookie: lang=de"], &["x-tenant: 1"], &["x-tenant: 1", "cookie: lang=de", "accept: a"]];
    let targets = ["/page", "/page?a=1", "/other?a=1"];
    for client in clients {
        for target in targets {
            assert!(site.is_kept(target, client), "{target} {client:?}");
        }
    }
    site.curl("/page", &["cookie: lang=fr"], &["--request", "POST"]);
    for client in clients {
        let hits = targets.map(|target| {
            is_hit(&site.get(target, &[client, &["cache-control: only-if-cached"][..]].concat()))
        });
        // What has another query is another URI.
        assert_eq!(hits, [false, true, false], "{client:?}");
    }
}
