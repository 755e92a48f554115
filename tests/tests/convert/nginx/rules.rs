//! What is done to a request: `proxy_pass` with a URI, `rewrite`, `return`, `if`, maps, fields, access.

use super::{Both, telling};

const PASSES: &str = r#"
upstream app { server @app; }
map $http_x_pool $chosen { default app; other other; }
upstream other { server @other; }
map $uri $moved { /old-one /new-one; ~^/old/(?<rest>.*)$ /new/$rest; }
map $http_user_agent $is_bot { default 0; ~*crawler 1; "Exact Bot" 1; }
geo $here { default far; 127.0.0.0/8 near; }
split_clients $remote_addr $side { 0.01% other; * app; }
server {
    listen @web;
    server_name a.example;
    set $fixed app;
    if ($is_bot) { return 403; }
    if ($moved) { return 301 $moved; }
    if ($request_method = PATCH) { return 405; }
    rewrite ^/gone/(.*)$ /there/$1 permanent;
    rewrite ^/away$ https://other.example/x redirect;
    rewrite ^/inside/(.*)$ /kept/$1 last;
    location / { proxy_pass http://app; }
    location /kept/ { proxy_pass http://app; }
    location /uri/ { proxy_pass http://app/; }
    location /longer/ { proxy_pass http://app/v2/; }
    location /noslash { proxy_pass http://app/other; }
    location = /one { proxy_pass http://app/two; }
    location /constant/ { proxy_pass http://$fixed; }
    location ~ ^/expr/(.*)$ { proxy_pass http://app/re/$1?by=expr; }
    location /args/ { proxy_pass http://app/with$is_args$args; }
    location /request/ { proxy_pass http://app$request_uri; }
    location /break/ { rewrite ^/break/([0-9]+)/(.*)$ /numbered/$2?n=$1 break; proxy_pass http://app; }
    location /strip/ { rewrite ^/strip/(.*)$ /$1 break; proxy_pass http://app; }
    location /drop/ { rewrite ^/drop/(.*)$ /dropped/$1? break; proxy_pass http://app; }
    location /map/ { proxy_pass http://$chosen; }
    location /split/ { proxy_pass http://$side; }
    location /near/ { proxy_pass http://app; proxy_set_header X-Where $here; }
    location /text { default_type text/html; return 200 "<p>ok</p>\n"; }
    location /empty { return 204; }
    location /teapot { return 418; }
    location /found { return http://elsewhere.example/; }
    location ~ ^/item/([0-9]+)$ { return 301 /products/$1; }
    location /scheme { return 301 https://$host$request_uri; }
    location /if {
        if ($http_x_test ~ ^a) { return 402; }
        if ($arg_debug) { proxy_pass http://other; }
        if ($cookie_beta = "1") { return 302 /beta; }
        if ($request_method !~ ^(GET|HEAD)$) { return 405; }
        if ($host != a.example) { return 421; }
        proxy_pass http://app;
    }
    location /methods/ { limit_except GET { deny all; } proxy_pass http://app; }
}
"#;

#[test]
fn backends_are_asked_for_the_same_paths_and_clients_told_the_same() {
    let (app, other) = (telling("app"), telling("other"));
    let both = Both::of(PASSES, &[("app", &app), ("other", &other)]);
    for path in [
        "/",
        "/x?y=1",
        "/uri/",
        "/uri/a/b?x=1",
        "/uri/a%20b",
        "/uri",
        "/longer/x",
        "/longer/?q",
        "/noslash",
        "/noslash/x",
        "/noslashed",
        "/one",
        "/one?x=1",
        "/constant/x?y",
        "/expr/a/b",
        "/expr/?x=1",
        "/args/x?y=1&z",
        "/args/x",
        "/request/a?b=c",
        "/break/7/x",
        "/break/x/y?z=1",
        "/strip/a/b?c=d",
        "/strip/",
        "/drop/x?y=1",
        "/map/x",
        "/split/x",
        "/near/x",
        "/text",
        "/empty",
        "/teapot",
        "/found",
        "/item/7",
        "/item/x",
        "/scheme?x=1",
        "/if",
        "/if?debug=1",
        "/if?debug=0",
        "/if?debug=",
        "/methods/x",
        "/old-one",
        "/old/a/b",
        "/older",
        "/gone/a",
        "/gone/a?x=1",
        "/away",
        "/inside/x",
        "/inside/x?y=1",
    ] {
        both.agree(&format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"), &["host", "x-where"]);
    }
    for head in [
        "GET /map/x HTTP/1.1\r\nhost: a.example\r\nx-pool: other\r\n\r\n",
        "GET /map/x HTTP/1.1\r\nhost: a.example\r\nx-pool: OTHER\r\n\r\n",
        "GET /if HTTP/1.1\r\nhost: a.example\r\nx-test: abc\r\n\r\n",
        "GET /if HTTP/1.1\r\nhost: a.example\r\nx-test: cab\r\n\r\n",
        "GET /if HTTP/1.1\r\nhost: a.example\r\ncookie: beta=1\r\n\r\n",
        "GET /if HTTP/1.1\r\nhost: a.example\r\ncookie: beta=12\r\n\r\n",
        "PATCH / HTTP/1.1\r\nhost: a.example\r\ncontent-length: 0\r\n\r\n",
        "HEAD /if HTTP/1.1\r\nhost: a.example\r\n\r\n",
        "DELETE /if HTTP/1.1\r\nhost: a.example\r\n\r\n",
        "GET /if HTTP/1.1\r\nhost: b.example\r\n\r\n",
        "GET /methods/x HTTP/1.1\r\nhost: a.example\r\n\r\n",
        "HEAD /methods/x HTTP/1.1\r\nhost: a.example\r\n\r\n",
        "DELETE /methods/x HTTP/1.1\r\nhost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a.example\r\nuser-agent: a Crawler/1\r\n\r\n",
        "GET /if HTTP/1.1\r\nhost: a.example\r\nuser-agent: exact bot\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a.example\r\nuser-agent: curl\r\n\r\n",
    ] {
        both.agree(head, &["host"]);
    }
    let text = both.get("a.example", "/text");
    assert_eq!(text.response.fields.one("content-type"), Some("text/html"));
}

const FIELDS: &str = r#"
upstream app { server @app; }
server {
    listen @web;
    server_name a.example;
    proxy_set_header Host $host;
    proxy_set_header X-Outer outer;
    proxy_set_header X-Real-IP $remote_addr;
    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
    proxy_set_header X-Gone "";
    add_header X-Added outer always;
    add_header Strict-Transport-Security "max-age=1" always;
    proxy_hide_header X-Powered-By;
    location / { proxy_pass http://app; }
    location /own/ { proxy_pass http://app; proxy_set_header X-Own "$request_method $http_x_client $arg_q $cookie_c"; }
    location /own-answer/ { proxy_pass http://app; add_header X-Own yes always; }
    location /name/ { proxy_pass http://app; proxy_set_header Host backend.example; }
    location /client/ { proxy_pass http://app; proxy_set_header Host $http_host; }
    location /direct/ { proxy_pass http://@app; proxy_set_header X-Only this; }
    location /shown/ { proxy_pass http://app; proxy_hide_header X-None; }
    location /answer { return 200 "ok"; }
}
"#;

#[test]
fn inner_fields_take_the_place_of_all_outer_ones() {
    let app = telling("app");
    let both = Both::of(FIELDS, &[("app", &app)]);
    let fields = ["host", "x-outer", "x-own", "x-only", "x-gone", "x-real-ip", "x-forwarded-for"];
    for path in ["/", "/name/x", "/client/x", "/own-answer/x", "/shown/x"] {
        let head =
            format!("GET {path} HTTP/1.1\r\nhost: A.example:8080\r\nx-gone: here\r\nx-outer: forged\r\n\r\n");
        let mut of = fields.to_vec();
        if !matches!(path, "/" | "/own-answer/x" | "/shown/x") {
            of.retain(|field| !field.starts_with("x-real") && !field.starts_with("x-forwarded"));
        }
        both.agree(&head, &of);
    }
    // Weir tells backends who asks, whatever a location says.
    let own = ["host", "x-outer", "x-own", "x-only", "x-gone"];
    for path in ["/own/x?q=1", "/direct/x"] {
        let head = format!(
            "GET {path} HTTP/1.1\r\nhost: a.example\r\nx-client: c\r\ncookie: c=2\r\nx-gone: here\r\n\r\n"
        );
        both.agree(&head, &own);
    }
    for path in ["/", "/own/x", "/own-answer/x", "/answer", "/shown/x"] {
        let [nginx, weir] = both.ask(&format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n\r\n"));
        for field in ["x-added", "x-own", "strict-transport-security", "x-powered-by"] {
            assert_eq!(nginx.response.fields.all(field), weir.response.fields.all(field), "{path}: {field}");
        }
        assert_ne!(weir.response.fields.one("server"), Some("snake"), "{path}");
    }
}

const ACCESS: &str = r#"
server {
    listen @web;
    location / { proxy_pass http://@app; }
    location /nobody/ { deny all; proxy_pass http://@app; }
    location /others/ { allow 10.0.0.0/8; deny all; proxy_pass http://@app; }
    location /me/ { allow 127.0.0.1; deny all; proxy_pass http://@app; }
    location /not-me/ { deny 127.0.0.0/8; proxy_pass http://@app; }
    location /order/ { allow 127.0.0.1; deny 127.0.0.0/8; proxy_pass http://@app; }
    location /staff/ {
        auth_basic "Staff"; auth_basic_user_file @dirusers;
        proxy_set_header X-User $remote_user;
        proxy_pass http://@app;
        location /staff/open/ { auth_basic off; proxy_pass http://@app; }
    }
    location /either/ {
        satisfy any; allow 10.0.0.0/8; deny all;
        auth_basic "Staff"; auth_basic_user_file @dirusers;
        proxy_pass http://@app;
    }
    location /here/ {
        satisfy any; allow 127.0.0.0/8; deny all;
        auth_basic "Staff"; auth_basic_user_file @dirusers;
        proxy_pass http://@app;
    }
    location /asked/ {
        auth_request /ask;
        auth_request_set $who $upstream_http_x_who;
        proxy_set_header X-Who $who;
        proxy_pass http://@app;
    }
    location = /ask { internal; proxy_pass http://@service/may; proxy_pass_request_body off; proxy_set_header Content-Length ""; }
    location = /answered { auth_basic "Staff"; auth_basic_user_file @dirusers; return 200 "for all"; }
    location /old/ { auth_basic "Old"; auth_basic_user_file @dirold; proxy_pass http://@app; }
}
"#;

#[test]
fn who_is_refused_by_nginx_is_refused_here() {
    use weir_tests::dialogue::{After, Backend, PATIENCE, run_tool, tool};
    let app = telling("app");
    let service = Backend::serving(|request, wire| {
        let knows = request.fields.one("authorization") == Some("Bearer good");
        match knows {
            true => wire.answers(204, &[("x-who", "ann")], ""),
            false => wire.answers(401, &[], "no"),
        }
        After::Keep
    });
    let users = run_tool(&tool("htpasswd", "apache2-utils"), &["-nbBC", "4", "ann", "secret"], b"", PATIENCE);
    let old = run_tool(&tool("htpasswd", "apache2-utils"), &["-nbm", "ann", "secret"], b"", PATIENCE);
    let files = [("users", users.succeeded()), ("old", old.succeeded())];
    let both = Both::with_files(ACCESS, &[("app", &app), ("service", &service)], &files);
    // ann:secret, ann:wrong
    let (right, wrong) =
        ("authorization: Basic YW5uOnNlY3JldA==\r\n", "authorization: Basic YW5uOndyb25n\r\n");
    for path in [
        "/",
        "/nobody/x",
        "/others/x",
        "/me/x",
        "/not-me/x",
        "/order/x",
        "/staff/x",
        "/staff/open/x",
        "/either/x",
        "/here/x",
        "/asked/x",
        "/answered",
        "/ask",
    ] {
        for more in ["", right, wrong, "authorization: Bearer good\r\nx-who: root\r\n", "x-user: root\r\n"] {
            let head = format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n{more}\r\n");
            let mut fields = if path.starts_with("/asked") { vec!["x-who"] } else { Vec::new() };
            if path.starts_with("/staff/x") {
                fields.push("x-user");
            }
            if more == right || more.is_empty() {
                fields.push("authorization");
            }
            both.agree(&head, &fields);
        }
    }
    // Hashes of another kind: nobody gets in, and it is said.
    for more in ["", right] {
        let [_, weir] = both.ask(&format!("GET /old/x HTTP/1.1\r\nhost: a.example\r\n{more}\r\n"));
        assert_eq!(weir.status, 403);
    }
    both.says(&["unsupported", "auth_basic_user_file", "htpasswd -B"]);
    both.says(&["unsupported", "auth_basic:", "ANSWERED WITH 403"]);
}
