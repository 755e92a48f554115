//! What attackers try on caches (threats E1, E2, E6; the others stand with what they are about).

use super::{is_hit, ok, reply, site, site_sending};
use weir_tests::dialogue::{After, Backend, Setup};

/// Threat E1.
#[test]
fn what_is_not_in_the_key_poisons_nothing() {
    // The origin reflects whatever it is told.
    let site = site("", |request, _| {
        let told: Vec<String> =
            request.fields.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        ok(
            "cache-control: max-age=60",
            format!("{} {} {}", request.method, told.join(";"), request.body.len()),
        )
    });
    for (target, fields) in [
        ("/a", &["x-forwarded-host: evil"][..]),
        ("/b", &["x-forwarded-for: evil"]),
        ("/c", &["forwarded: host=evil"]),
        ("/d", &["x-http-method-override: evil"]),
        ("/e", &["x-original-url: /evil"]),
        ("/f", &["X_Rewrite_Url: /evil"]),
        ("/g", &["x-host: evil"]),
        ("/h", &["range: bytes=0-evil"]),
        ("/i", &["x-forwarded-proto: evil", "x-forwarded-port: evil"]),
    ] {
        site.get(target, fields);
        let text = site.get(target, &[]).text();
        assert!(!text.contains("evil"), "{fields:?}: {text}");
    }
    // A GET with a body.
    site.curl("/fat", &[], &["--request", "GET", "--data", "evil"]);
    assert!(site.get("/fat", &[]).text().ends_with(" 0"));
}

/// Threat E1: where two listeners share answers, the one that is asked first chooses nothing for the other.
#[test]
fn the_port_of_a_listener_poisons_nothing() {
    let origin = Backend::serving(|request, wire| {
        let port = request.fields.all("x-forwarded-port").join(",");
        wire.answers(200, &[("cache-control", "max-age=60")], port);
        After::Keep
    });
    let listener = |name: &str| {
        format!(
            "[listener.{name}]\nbind = \"@{name}\"\npool = \"app\"\n[[listener.{name}.route]]\n\
             path = \"/past\"\npool = \"app\"\n[[listener.{name}.route]]\npath = \"/*\"\npool = \"app\"\ncache = {{}}\n"
        )
    };
    let config = listener("one") + &listener("two") + "[pool.app]\nbackends = [\"@app\"]\nhealth = \"off\"\n";
    let weir = Setup::of(&config).with("app", origin.address()).start();
    let port_by = |listener: &str, target: &str, host: &str| {
        let mut client = weir.client(listener);
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n"));
        client.receives_status(200).text()
    };
    for (host, port) in [
        ("shop.test", "80"),
        ("shop.test:80", "80"),
        ("shop.test:8443", "8443"),
        ("[::1]:81", "81"),
        ("[::1]", "80"),
    ] {
        let target = format!("/{}", host.len());
        assert_eq!([port_by("two", &target, host), port_by("one", &target, host)], [port, port], "{host}");
    }
    // Where nothing is kept it is the one that the client has connected to.
    assert_eq!(port_by("two", "/past", "shop.test"), weir.address("two").port().to_string());
}

/// Threat E1: what the key is made of and the origin never sees.
#[test]
fn fields_that_a_connection_option_takes_away_poison_nothing() {
    let site = site("key_headers = [\"x-tenant\"]", |request, _| {
        let told = ["x-tenant", "accept-language"]
            .map(|name| request.fields.one(name).unwrap_or("nobody").to_owned());
        ok("cache-control: max-age=60\nvary: accept-language", told.join(" "))
    });
    let fields = ["x-tenant: one", "accept-language: de"];
    for named in ["x-tenant", "accept-language", "x-tenant, close, accept-language"] {
        site.get("/", &[fields[0], fields[1], &format!("connection: {named}")]);
        assert_eq!(site.get("/", &fields).text(), "one de", "connection: {named}");
    }
    // And what some origins read as the same field.
    site.get("/twin", &["x_tenant: evil"]);
    assert_eq!(site.get("/twin", &[]).text(), "nobody nobody");
}

/// Threat E1: an error that one client provokes is not given to others.
#[test]
fn an_error_that_an_odd_request_provokes_is_not_kept() {
    let site = site("ttl = \"60s\"\nnegative_ttl = \"60s\"", |request, _| {
        let status: u16 =
            request.fields.one("x-provoke").and_then(|status| status.parse().ok()).unwrap_or(200);
        reply(status, "cache-control: public, max-age=60", "")
    });
    for status in [400, 406, 408, 413, 415, 416, 417, 421, 428, 429, 431, 505] {
        let target = format!("/{status}");
        assert_eq!(site.get(&target, &[&format!("x-provoke: {status}")]).status, status);
        assert_eq!(site.get(&target, &[]).status, 200, "{status}");
    }
    // What Weir refuses itself never reaches the origin, and leaves nothing either.
    let large = format!("x-large: {}", "x".repeat(70_000));
    assert_eq!(site.get("/large", &[&large]).status, 431);
    let next = site.get("/large", &[]);
    assert!(next.status == 200 && !is_hit(&next));
}

/// Threat E2: what a path looks like says nothing of what it is.
#[test]
fn a_private_page_is_not_kept_for_looking_like_a_style_sheet() {
    let site = site("ttl = \"60s\"", |request, before| {
        let line = if request.target.starts_with("/account") { "cache-control: private" } else { "" };
        ok(line, before.to_string())
    });
    for target in [
        "/account/x.css",
        "/account;x.css",
        "/account%2Fx.css",
        "/account/%2e/x.css",
        "/account?x.css",
        "/account%3Bx.css",
    ] {
        assert!(!site.is_kept(target, &[]), "{target}");
    }
    // And a public one is kept under its own name, delimiters and all.
    site.get("/page", &[]);
    for other in ["/page;x.css", "/page%2Fx.css", "/page/x.css", "/page%3Fx.css", "/page%00x"] {
        assert!(!is_hit(&site.get(other, &[])), "{other}");
    }
    assert!(is_hit(&site.get("/x/../page", &[])));
}

/// Threat E6.
#[test]
fn a_flood_of_what_is_asked_for_once_leaves_what_is_asked_for_often() {
    let site = site("", |_, _| ok("cache-control: max-age=600", "x".repeat(50_000)));
    for _ in 0..4 {
        for number in 0..20 {
            site.get(&format!("/hot/{number}"), &[]);
        }
    }
    assert_eq!(site.served(), 20);
    // More than twice what 64 MiB hold, on one connection.
    let mut client = site.weir.client("web");
    for number in 0..3000 {
        client.sends(format!("GET /flood/{number} HTTP/1.1\r\nhost: {}\r\n\r\n", site.weir.address("web")));
        client.receives_status(200);
    }
    let before = site.served();
    for number in 0..20 {
        assert!(is_hit(&site.get(&format!("/hot/{number}"), &[])), "{number}");
    }
    assert_eq!(site.served(), before);
    assert!(site.weir.metric("weir_cache_bytes", &[]) <= f64::from(64 << 20));
}

/// Threat E4: keys whose parts would meet if they stood side by side.
#[test]
fn requests_whose_parts_run_together_alike_are_told_apart() {
    let site = site_sending("key_headers = [\"x-a\", \"x-b\"]", "cache-control: max-age=60");
    for (target, fields) in [
        ("/ab", &["x-a: c"][..]),
        ("/a", &["x-a: bc"]),
        ("/a", &["x-b: bc"]),
        ("/a", &["x-a: b", "x-b: c"]),
        ("/a?b", &["x-a: c"]),
        ("/a?bc", &[]),
        ("/abc", &[]),
    ] {
        assert!(!is_hit(&site.get(target, fields)), "{target} {fields:?}");
    }
}
