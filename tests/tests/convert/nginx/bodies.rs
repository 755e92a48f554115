//! Limits, bodies, tries, WebSocket, the cache and compression.

use std::time::{Duration, Instant};

use super::{Both, telling};
use weir_tests::dialogue::{After, Backend, Wire, free_address};

#[test]
fn bodies_are_as_long_as_each_location_lets_them_be() {
    let app = telling("app");
    let config = "
server {
    listen @web;
    client_max_body_size 1k;
    location / { proxy_pass http://@app; }
    location /large/ { client_max_body_size 1m; proxy_pass http://@app; }
    location /any/ { client_max_body_size 0; proxy_pass http://@app; }
}";
    let both = Both::of(config, &[("app", &app)]);
    for (path, size) in [("/", 1024), ("/", 1025), ("/large/", 1025), ("/any/", 2 << 20)] {
        let body = "x".repeat(size);
        let head = format!("POST {path} HTTP/1.1\r\nhost: a.example\r\ncontent-length: {size}\r\n\r\n{body}");
        let told: Vec<(u16, String, usize)> = both
            .ask(&head)
            .into_iter()
            .map(|seen| (seen.status, seen.asked(), seen.response.text().matches('x').count().min(size)))
            .collect();
        assert_eq!((told[0].0, &told[0].1), (told[1].0, &told[1].1), "{path} {size}");
    }
}

#[test]
fn a_backend_that_is_gone_is_passed_over_as_by_nginx() {
    // Nobody listens there.
    let gone = free_address();
    let app = telling("app");
    let config = format!(
        "upstream app {{ server {gone} max_fails=1; server @app; }}\n\
         server {{ listen @web; location / {{ proxy_pass http://app; }} }}",
    );
    let both = Both::of(&config, &[("app", &app)]);
    for number in 0..6 {
        both.get("a.example", &format!("/{number}")).answers(200, &format!("app GET /{number}"));
    }
}

#[test]
fn what_a_limit_refuses_is_refused_with_the_same_status() {
    let app = telling("app");
    let config = "
limit_req_zone $binary_remote_addr zone=slow:1m rate=1r/m;
server {
    listen @web;
    location / { limit_req zone=slow burst=2 nodelay; limit_req_status 429; proxy_pass http://@app; }
    location /default/ { limit_req zone=slow burst=2 nodelay; proxy_pass http://@app; }
}";
    let both = Both::of(config, &[("app", &app)]);
    for _ in 0..3 {
        both.get("a.example", "/x").answers(200, "app GET /x");
    }
    for _ in 0..3 {
        both.get("a.example", "/x").answers(429, "");
    }
    both.says(&["approximate", "limit_req:", "each route counts for itself"]);
}

#[test]
fn a_web_socket_passes_by_both() {
    let live = Backend::serving(|request, wire| {
        if !request.fields.lists("upgrade", "websocket") {
            wire.answers(400, &[], "no upgrade");
            return After::Keep;
        }
        wire.sends(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\nHello",
        );
        After::Close
    });
    let config = "
map $http_upgrade $connection_upgrade { default upgrade; '' close; }
server {
    listen @web;
    location / {
        proxy_pass http://@live;
        proxy_http_version 1.1;
        proxy_set_header Upgrade $http_upgrade;
        proxy_set_header Connection $connection_upgrade;
    }
}";
    let both = Both::of(config, &[("live", &live)]);
    for at in [both.nginx_at, both.weir_at] {
        let mut client = Wire::connect(at);
        client
            .sends("GET / HTTP/1.1\r\nhost: a.example\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n");
        let head = client.receives_until("Hello");
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    }
    both.says(&["exact", "proxy_set_header", "WebSocket"]);
}

#[test]
fn what_nginx_keeps_is_kept() {
    let app = Backend::serving(|request, wire| {
        let private = request.target.starts_with("/private");
        let fields: &[(&str, &str)] = if private { &[("cache-control", "private")] } else { &[] };
        wire.answers(if request.target.starts_with("/missing") { 404 } else { 200 }, fields, "content");
        After::Keep
    });
    let config = "
proxy_cache_path @dircache keys_zone=z:1m;
server {
    listen @web;
    proxy_cache z;
    proxy_cache_valid 200 1h;
    location / { proxy_pass http://@app; }
    location /missing { proxy_cache_valid 404 1h; proxy_pass http://@app; }
    location /not { proxy_cache off; proxy_pass http://@app; }
}";
    let both = Both::of(config, &[("app", &app)]);
    for (path, asked) in [("/a", 1), ("/a?x=1", 1), ("/private", 2), ("/missing", 1), ("/not", 2)] {
        for at in [both.nginx_at, both.weir_at] {
            let before = app.served();
            for _ in 0..2 {
                let mut client = Wire::connect(at);
                client.sends(format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
                assert_eq!(client.receives_response().text(), "content", "{path}");
            }
            let by = if at == both.nginx_at { "nginx" } else { "Weir" };
            assert_eq!(app.served() - before, asked, "{path} by {by}");
        }
    }
}

#[test]
fn what_nginx_compresses_is_compressed() {
    let app = Backend::serving(|request, wire| {
        let kind = if request.target.ends_with(".png") { "image/png" } else { "application/json" };
        wire.answers(
            200,
            &[("content-type", kind)],
            "0123456789".repeat(if request.target.starts_with("/s") { 2 } else { 100 }),
        );
        After::Keep
    });
    let config = "
server {
    listen @web;
    gzip on; gzip_types application/json; gzip_min_length 100; gzip_proxied any; gzip_vary on;
    location / { proxy_pass http://@app; }
    location /off { gzip off; proxy_pass http://@app; }
}";
    let both = Both::of(config, &[("app", &app)]);
    for path in ["/a", "/a.png", "/short", "/off"] {
        for accept in ["gzip", "identity"] {
            let head = format!("GET {path} HTTP/1.1\r\nhost: a.example\r\naccept-encoding: {accept}\r\n\r\n");
            let [nginx, weir] =
                both.ask(&head).map(|seen| seen.response.fields.one("content-encoding").map(str::to_owned));
            assert_eq!(nginx, weir, "{path} {accept}");
        }
    }
}

#[test]
fn errors_have_the_pages_of_files() {
    let app = Backend::serving(|request, wire| {
        wire.answers(if request.target.starts_with("/broken") { 500 } else { 404 }, &[], "by the app");
        After::Keep
    });
    let config = "
server {
    listen @web;
    error_page 404 /missing.html;
    error_page 500 502 503 504 /50x.html;
    location = /50x.html { internal; root @dirpages; }
    location = /missing.html { internal; root @dirpages; }
    location / { proxy_intercept_errors on; proxy_pass http://@app; }
    location /own/ { proxy_pass http://@app; }
    location /dead/ { proxy_pass http://@dead; }
}";
    let config = config.replace("@dead", &free_address().to_string());
    let files = [("pages/50x.html", "<p>Sorry.</p>\n"), ("pages/missing.html", "<p>Nothing here.</p>\n")];
    let both = Both::with_files(&config, &[("app", &app)], &files);
    for path in ["/broken", "/x", "/own/x", "/dead/x"] {
        let [nginx, weir] = both.ask(&format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        assert_eq!((nginx.status, nginx.response.text()), (weir.status, weir.response.text()), "{path}");
    }
    let [nginx, weir] = both.ask("GET /50x.html HTTP/1.1\r\nhost: a.example\r\n\r\n");
    assert_eq!((nginx.status, weir.status), (404, 404));
}

#[test]
fn a_response_is_as_slow_as_nginx_makes_it() {
    const BYTES: usize = 256 << 10;
    let app = Backend::serving(|_, wire| {
        wire.answers(200, &[], "x".repeat(BYTES));
        After::Keep
    });
    let both = Both::of(
        "server {
            listen @web;
            location / { proxy_pass http://@app; limit_rate 512k; limit_rate_after 64k; }
            location /free/ { proxy_pass http://@app; limit_rate 0; }
        }",
        &[("app", &app)],
    );
    for at in [both.nginx_at, both.weir_at] {
        let began = Instant::now();
        let mut wire = Wire::connect(at);
        wire.sends("GET / HTTP/1.1\r\nhost: a.example\r\n\r\n");
        assert_eq!(wire.receives_status(200).body.len(), BYTES);
        // 192 KiB at 512 KiB/s, of which some pass at once.
        assert!(began.elapsed() >= Duration::from_millis(200), "{at}: {:?}", began.elapsed());
        wire.sends("GET /free/ HTTP/1.1\r\nhost: a.example\r\n\r\n");
        assert_eq!(wire.receives_status(200).body.len(), BYTES);
    }
    assert!(!both.said.lines().any(|line| line.starts_with("unsupported")), "{}", both.said);
}
