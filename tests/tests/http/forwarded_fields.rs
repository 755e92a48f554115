//! What Weir changes in the fields of a message, and what a client cannot make it change (threats A23 and
//! A24).

use weir_tests::dialogue::{Backend, Fields, NO_PROBES, Setup, Weir, one_pool};

use super::{PLAIN, plain};

/// Sends a GET with these fields and gives the fields the backend saw.
fn seen_by_backend(weir: &Weir, backend: &Backend, fields: &str) -> Fields {
    let mut client = weir.client("web");
    client.sends(format!("GET / HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n"));
    client.receives_status(200);
    backend.requests().pop().expect("a request").fields
}

#[test]
fn hop_by_hop_fields_end_here() {
    // RFC 9110 §7.6.1
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let fields = seen_by_backend(
        &weir,
        &backend,
        "connection: keep-alive, x-listed\r\nx-listed: 1\r\nkeep-alive: timeout=5\r\nproxy-connection: keep-alive\r\n\
         te: trailers, deflate\r\nproxy-authorization: Basic eA==\r\nx-kept: 2\r\n",
    );
    for name in ["x-listed", "keep-alive", "proxy-connection"] {
        assert!(fields.all(name).is_empty(), "{name} was forwarded: {fields:?}");
    }
    assert!(!fields.lists("connection", "x-listed"), "{fields:?}");
    assert!(!fields.lists("te", "deflate"), "{fields:?}");
    assert_eq!(fields.one("x-kept"), Some("2"));
}

#[test]
fn connection_cannot_remove_framing_host_credentials_or_weirs_own_fields() {
    // A23
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "POST / HTTP/1.1\r\nhost: shop.example\r\nauthorization: Basic eA==\r\ncookie: a=b\r\ncontent-length: 5\r\n\
         connection: host, content-length, authorization, cookie, x-forwarded-for, x-forwarded-proto, x-forwarded-host, \
         forwarded, via, x-request-id\r\n\r\nhello",
    );
    let response = client.receives_response();
    if response.status == 400 {
        assert!(backend.requests().is_empty());
        return;
    }
    assert_eq!(response.status, 200);
    let request = backend.requests().remove(0);
    for name in [
        "host",
        "authorization",
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "via",
        "x-request-id",
    ] {
        assert_eq!(request.fields.all(name).len(), 1, "{name}: {:?}", request.fields);
    }
    assert_eq!((request.fields.one("host"), &request.body[..]), (Some("shop.example"), &b"hello"[..]));
}

#[test]
fn connection_options_that_are_no_tokens_or_too_many_are_refused() {
    use super::refusal::{case, never_forwarded};
    let many = (0..200).map(|n| format!("x{n}")).collect::<Vec<_>>().join(", ");
    never_forwarded(&[
        case("no token", "GET / HTTP/1.1\r\nhost: a\r\nconnection: x y\r\n\r\n"),
        case("a quoted option", "GET / HTTP/1.1\r\nhost: a\r\nconnection: \"close\"\r\n\r\n"),
        case("200 options", format!("GET / HTTP/1.1\r\nhost: a\r\nconnection: {many}\r\n\r\n")),
    ]);
}

#[test]
fn what_an_untrusted_client_says_of_its_origin_is_overwritten() {
    // A24
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let fields = seen_by_backend(
        &weir,
        &backend,
        "x-forwarded-for: 1.2.3.4\r\nX-Forwarded-For: 5.6.7.8\r\nx-forwarded-proto: https\r\nx-forwarded-host: evil.example\r\n\
         x-forwarded-port: 443\r\nforwarded: for=1.2.3.4;proto=https;host=evil.example\r\nx-real-ip: 1.2.3.4\r\n",
    );
    assert_eq!(fields.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(fields.all("x-forwarded-proto"), ["http"]);
    assert_eq!(fields.all("x-forwarded-host"), ["shop.example"]);
    let forwarded = fields.all("forwarded").join(",");
    assert!(!forwarded.contains("1.2.3.4") && !forwarded.contains("evil"), "{fields:?}");
}

#[test]
fn what_a_trusted_proxy_says_of_the_client_is_extended() {
    // A24
    let backend = Backend::saying("ok");
    let weir = Setup::of(&one_pool(r#"trusted_proxies = ["127.0.0.0/8"]"#, NO_PROBES))
        .with("app", backend.address())
        .start();
    let fields = seen_by_backend(
        &weir,
        &backend,
        "x-forwarded-for: 198.51.100.7\r\nx-forwarded-proto: https\r\nx-forwarded-host: outer.example\r\nx-request-id: from-outside-1\r\n",
    );
    let chain: Vec<String> =
        fields.all("x-forwarded-for").join(",").split(',').map(|hop| hop.trim().to_owned()).collect();
    assert_eq!(chain, ["198.51.100.7", "127.0.0.1"]);
    assert_eq!(fields.all("x-forwarded-proto"), ["https"]);
    assert_eq!(fields.all("x-forwarded-host"), ["outer.example"]);
    assert_eq!(fields.all("x-request-id"), ["from-outside-1"]);
}

#[test]
fn a_name_with_underscores_is_not_mistaken_for_weirs_own_field() {
    // A24: many frameworks read `x_forwarded_for` as `x-forwarded-for`.
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nx_forwarded_for: 1.2.3.4\r\ncontent_length: 5\r\ntransfer_encoding: chunked\r\n\r\n");
    let response = client.receives_response();
    if response.status == 200 {
        let fields = backend.requests().remove(0).fields;
        assert_eq!(fields.all("x-forwarded-for"), ["127.0.0.1"]);
        assert!(
            fields.all("transfer-encoding").is_empty() && fields.all("content-length").is_empty(),
            "{fields:?}"
        );
        for name in ["x_forwarded_for", "content_length", "transfer_encoding"] {
            assert!(fields.all(name).is_empty(), "{name} was forwarded to be misread: {fields:?}");
        }
    } else {
        assert_eq!(response.status, 400);
    }
}

#[test]
fn via_names_weir_in_both_directions() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[("via", "1.1 inner")], "ok");
        weir_tests::dialogue::After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\nvia: 1.0 outer\r\n\r\n");
    let response = client.receives_status(200);
    assert_eq!(response.fields.all("via").join(", "), "1.1 inner, 1.1 weir");
    assert_eq!(backend.requests()[0].fields.all("via").join(", "), "1.0 outer, 1.1 weir");
}

#[test]
fn every_request_has_an_id_that_the_client_learns_too() {
    let backend = Backend::saying("ok");
    let weir = plain(&backend);
    let mut client = weir.client("web");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..50 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let response = client.receives_status(200);
        let at_backend = backend.requests().pop().expect("a request").fields;
        let id = at_backend.one("x-request-id").expect("an id").to_owned();
        assert_eq!(response.fields.one("x-request-id"), Some(id.as_str()));
        assert!(id.len() >= 16 && id.is_ascii(), "{id:?}");
        assert!(seen.insert(id), "an id came twice");
    }
}

#[test]
fn order_and_repetition_of_other_fields_are_kept() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(
            200,
            &[("set-cookie", "a=1"), ("x-one", "1"), ("set-cookie", "b=2"), ("x-two", "")],
            "ok",
        );
        weir_tests::dialogue::After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\naccept: b\r\nx-z: 1\r\nx-a: 2\r\naccept: c\r\nx-empty:\r\nX-Latin: caf\u{e9}\r\n\r\n");
    let response = client.receives_status(200);
    assert_eq!(response.fields.all("set-cookie"), ["a=1", "b=2"]);
    assert_eq!(response.fields.one("x-two"), Some(""));
    let fields = backend.requests().remove(0).fields;
    assert_eq!(fields.all("accept"), ["b", "c"]);
    assert_eq!(fields.one("x-empty"), Some(""));
    assert_eq!(fields.one("x-latin"), Some("caf\u{e9}"));
    let order: Vec<&str> = fields
        .0
        .iter()
        .map(|(name, _)| name.as_str())
        .filter(|name| matches!(*name, "x-z" | "x-a"))
        .collect();
    assert_eq!(order, ["x-z", "x-a"]);
}

#[test]
fn hop_by_hop_fields_of_a_response_end_here_too() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(
            200,
            &[
                ("connection", "x-inner, keep-alive"),
                ("x-inner", "secret"),
                ("keep-alive", "timeout=5"),
                ("proxy-connection", "x"),
                ("x-kept", "1"),
            ],
            "ok",
        );
        weir_tests::dialogue::After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let fields = client.receives_status(200).fields;
    for name in ["x-inner", "keep-alive", "proxy-connection"] {
        assert!(fields.all(name).is_empty(), "{fields:?}");
    }
    assert_eq!(fields.one("x-kept"), Some("1"));
}

#[test]
fn a_backend_learns_that_its_connection_is_not_kept() {
    // RFC 9112 §9.3: or it would keep the connection open for a request that never comes.
    let backend = Backend::saying("ok");
    let seen = |keep_alive: &str| {
        let config = format!("{PLAIN}keep_alive = {{ {keep_alive} }}\n");
        let weir = Setup::of(&config).with("app", backend.address()).start();
        seen_by_backend(&weir, &backend, "")
    };
    assert!(seen("max = 0").lists("connection", "close"));
    assert!(seen("max = 1").all("connection").is_empty());
}
