//! The host that a backend is asked by, and what it is told of the client.

use weir_tests::dialogue::Backend;

use super::{ask, asked, before};

#[test]
fn a_backend_is_asked_by_the_host_of_its_pool_or_route_and_told_the_clients() {
    let backend = Backend::saying("ok");
    let rules = r#"
        pool = "app"
        [[listener.web.route]]
        path = "/tenant"
        pool = "app"
        backend_host = "$header.x-tenant.internal:81"
        "#;
    let weir = before(&backend, rules, r#"backend_host = "app.internal""#);
    for target in ["/", "http://shop.example/"] {
        let fields = asked(&weir, &backend, &format!("GET {target} HTTP/1.1\r\nHost: shop.example\r\n\r\n"));
        assert_eq!(fields.all("host"), ["app.internal"]);
        assert_eq!(fields.all("x-forwarded-host"), ["shop.example"]);
        assert!(fields.one("forwarded").is_some_and(|it| it.contains("host=\"shop.example\"")), "{fields:?}");
    }
    let head = "GET /tenant HTTP/1.1\r\nhost: shop.example\r\nx-tenant: t-1\r\n\r\n";
    assert_eq!(asked(&weir, &backend, head).all("host"), ["t-1.internal:81"]);
}

#[test]
fn a_host_that_is_none_is_refused_and_no_other_backend_is_reached_by_it() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, "pool = \"app\"", r#"backend_host = "$header.x-tenant""#);
    for line in ["", "x-tenant: a b\r\n", "x-tenant: a, b\r\n", "x-tenant: a/../b\r\n", "x-tenant: u@b\r\n"] {
        let response = ask(&weir, &format!("GET / HTTP/1.1\r\nhost: internal-admin\r\n{line}\r\n"));
        assert_eq!(response.status, 400, "{line:?}");
    }
    assert!(backend.requests().is_empty());
    let head = "GET / HTTP/1.1\r\nhost: internal-admin\r\nx-tenant: good\r\n\r\n";
    assert_eq!(asked(&weir, &backend, head).all("host"), ["good"]);
}

#[test]
fn the_clients_address_and_port_are_made_by_weir_and_forged_ones_are_overwritten() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, "pool = \"app\"", "");
    let head = "GET / HTTP/1.1\r\nhost: a\r\nx-real-ip: 1.2.3.4\r\nX-Real-IP: 5.6.7.8\r\nx-forwarded-port: 1\r\n\r\n";
    let fields = asked(&weir, &backend, head);
    assert_eq!(fields.all("x-real-ip"), ["127.0.0.1"]);
    assert_eq!(fields.all("x-forwarded-port"), [weir.address("web").port().to_string()]);
}

#[test]
fn behind_a_trusted_proxy_the_address_is_whom_it_names_and_not_what_it_passed_on() {
    let backend = Backend::saying("ok");
    let weir = before(&backend, "pool = \"app\"\ntrusted_proxies = [\"127.0.0.0/8\"]", "");
    let head = "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 198.51.100.7\r\nx-real-ip: 1.2.3.4\r\nx-forwarded-port: 443\r\n\r\n";
    let fields = asked(&weir, &backend, head);
    assert_eq!(fields.all("x-real-ip"), ["198.51.100.7"]);
    assert_eq!(fields.all("x-forwarded-port"), ["443"]);
    let fields = asked(&weir, &backend, "GET / HTTP/1.1\r\nhost: a\r\nx-real-ip: 1.2.3.4\r\n\r\n");
    assert_eq!(fields.all("x-real-ip"), ["127.0.0.1"]);
    assert_eq!(fields.all("x-forwarded-port"), [weir.address("web").port().to_string()]);
}

#[test]
fn via_and_forwarded_are_left_out_where_that_is_said() {
    let backend = Backend::serving(|_, wire| {
        wire.answers(200, &[("via", "1.1 inner")], "ok");
        weir_tests::dialogue::After::Keep
    });
    let rules = r#"
        pool = "app"
        via = false
        forwarded = false
        [[listener.web.route]]
        path = "/open"
        pool = "app"
        via = true
        "#;
    let weir = before(&backend, rules, "");
    let head = "GET / HTTP/1.1\r\nhost: a\r\nvia: 1.1 outer\r\nforwarded: for=1.2.3.4\r\n\r\n";
    let fields = asked(&weir, &backend, head);
    assert_eq!(fields.all("via"), ["1.1 outer"]);
    assert!(fields.all("forwarded").is_empty(), "a forged one must not pass either: {fields:?}");
    assert_eq!(fields.all("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(ask(&weir, head).fields.all("via"), ["1.1 inner"]);
    let open = ask(&weir, "GET /open HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(open.fields.all("via").join(", "), "1.1 inner, 1.1 weir");
    assert!(backend.requests().pop().expect("a request").fields.all("forwarded").is_empty());
}
