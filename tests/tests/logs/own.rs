//! Lines and fields that the config writes itself.

use std::time::Duration;

use serde_json::Value;
use weir_tests::dialogue::{After, Authority, Backend, EVERY_VERSION, NO_HEALTH, ONE_POOL, Setup};
use weir_tests::versions::{Client, Front, run};

use super::{NASTY, lines, send_nasty};

/// Answers with fields that a log may ask for.
fn telling() -> Backend {
    Backend::serving(|request, wire| {
        let age = if request.target.starts_with("/kept") { "max-age=60" } else { "no-store" };
        wire.answers(
            200,
            &[("x-app", "shop/7"), ("x-node", "a"), ("x-node", "b"), ("cache-control", age)],
            "ok",
        );
        After::Keep
    })
}

const FIELDS: &str = r#"
    [log]
    access = "@dir/access.log"
    fields = { tenant = "$header.x-tenant", sid = "$cookie.sid", id = "$query.id", normal = "$path", app = "$response_header.x-app", nodes = "$response_header.x-node", port = "$listener_port", by = "$scheme://$host", none = "$header.x-none" }
"#;

#[test]
fn fields_name_what_client_and_backend_said_in_every_version_of_http() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let backend = telling();
    let weir = authority
        .setup(&format!("{FIELDS}{EVERY_VERSION}{NO_HEALTH}"))
        .with("app", backend.address())
        .start();
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            let name = if front.is_tls() { "secure" } else { "plain" };
            let client = Client::connect(front, &authority, weir.address(name), "shop.example");
            let mut client = client.await.expect("a connection");
            let tenant = format!("{front:?}");
            let fields = [("x-tenant", &*tenant), ("cookie", "a=1; sid=42")];
            let answer = client.ask("GET", "/x/../by?id=7%20", &fields, Vec::new()).await.expect("an answer");
            assert_eq!(answer.status.as_u16(), 200, "{front:?}");
        }
    });
    let lines = weir.lines_of("access.log", Front::ALL.len());
    for front in Front::ALL {
        let tenant = format!("{front:?}");
        let parsed = lines.iter().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let line = parsed.into_iter().find(|line| line["tenant"] == *tenant);
        let line = line.unwrap_or_else(|| panic!("nothing of {tenant}: {lines:#?}"));
        let (listener, scheme) = if front.is_tls() { ("secure", "https") } else { ("plain", "http") };
        for (field, expected) in [
            ("sid", "42"),
            ("id", "7%20"),
            ("normal", "/by"),
            ("app", "shop/7"),
            ("nodes", "a, b"),
            ("by", &format!("{scheme}://shop.example")),
            ("port", &weir.address(listener).port().to_string()),
            ("path", "/x/../by?id=7%20"),
        ] {
            assert_eq!(line[field], *expected, "{field}: {line}");
        }
        assert!(line.get("none").is_none() && line["status"] == 200, "{line}");
    }
}

#[test]
fn what_memory_answers_is_told_with_the_fields_that_were_kept() {
    let backend = telling();
    let config = r#"
        [log]
        access = "@dir/access.log"
        line = "$cache $status $response_header.x-app $response_header.x-node $header.x-tenant"
        [listener.web]
        bind = "@web"
        pool = "app"
        [[listener.web.route]]
        path = "/kept*"
        pool = "app"
        cache = {}
        [[listener.web.route]]
        path = "/said"
        respond = { status = 404, body = "no" }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#;
    let weir = Setup::of(config).with("app", backend.address()).start();
    // One connection has one worker, whose lines arrive in order.
    let mut client = weir.client("web");
    for (path, status) in [("/kept", 200), ("/kept", 200), ("/said", 404), ("/other", 200)] {
        client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-tenant: t 1\r\n\r\n"));
        client.receives_status(status);
    }
    assert_eq!(
        weir.lines_of("access.log", 4),
        [
            "miss 200 shop/7 a,\\x20b t\\x201",
            "hit 200 shop/7 a,\\x20b t\\x201",
            "- 404 - - t\\x201",
            "- 200 shop/7 a,\\x20b t\\x201"
        ]
    );
}

#[test]
fn no_client_moves_a_value_into_another_column_or_field() {
    let backend = telling();
    let line = r#"line = '$status "$method $target" [$header.user-agent] "$header.referer"|$header.user-agent|$end'"#;
    let config = format!("[log]\naccess = '@dir/access.log'\n{line}\n{ONE_POOL}health = \"off\"");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let sent = send_nasty(&weir);
    let written = lines(&weir);
    assert_eq!(written.len(), sent, "{written:#?}");
    for line in &written {
        assert_eq!(line.matches('"').count(), 4, "{line}");
        assert_eq!(line.matches('|').count(), 2, "{line}");
        assert_eq!(line.matches(']').count(), 1, "{line}");
        let status = line.split(' ').next().and_then(|status| status.parse::<u16>().ok());
        assert!(status.is_some_and(|status| (200..600).contains(&status)), "{line}");
        assert!(line.is_ascii(), "{line}");
    }
    let config = format!("{FIELDS}{ONE_POOL}health = \"off\"").replace("x-tenant", "user-agent");
    let weir = Setup::of(&config).with("app", backend.address()).start();
    let sent = send_nasty(&weir);
    let written = lines(&weir);
    assert_eq!((written.len(), sent), (sent, NASTY.len() + 1), "{written:#?}");
    for line in &written {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|problem| panic!("{problem}: {line}"));
        assert!(value.is_object() && value.get("forged").is_none(), "{line}");
    }
}
