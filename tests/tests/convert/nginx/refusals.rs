//! Whom nginx refuses: `valid_referers`, and conditions that routes can't ask.

use super::{Both, telling};

#[test]
fn referers_are_taken_and_refused_as_by_nginx() {
    let app = telling("app");
    let http = r#"
server {
    listen @web;
    server_name a.example www.a.example;
    location /all/ {
        valid_referers none blocked server_names *.b.example c.example/in ~\.search\.;
        if ($invalid_referer) { return 403; }
        proxy_pass http://@app;
    }
    location /known/ {
        valid_referers .d.example e.*;
        if ($invalid_referer) { return 403; }
        proxy_pass http://@app;
    }
    location /some/ {
        valid_referers none a.example;
        if ($invalid_referer = 1) { return 403; }
        proxy_pass http://@app;
    }
}
"#;
    let both = Both::of(http, &[("app", &app)]);
    both.says(&["exact", "valid_referers"]);
    let hosts = [
        "a.example",
        "www.a.example",
        "x.a.example",
        "b.example",
        "x.b.example",
        "X.y.B.example:81",
        "c.example",
        "d.example",
        "x.d.example",
        "xd.example",
        "e.com",
        "e.co.uk",
        "e",
        "www.search.example",
    ];
    for place in ["all", "known", "some"] {
        let mut referers =
            vec![String::new(), "referer: \r\n".to_owned(), "referer: a.example/x/y/z\r\n".to_owned()];
        for host in hosts {
            for (scheme, path) in [("http", ""), ("https", "/"), ("HTTP", "/in"), ("ftp", "/in/x")] {
                referers.push(format!("referer: {scheme}://{host}{path}\r\n"));
            }
        }
        for referer in referers {
            both.agree(&format!("GET /{place}/x HTTP/1.1\r\nhost: a.example\r\n{referer}\r\n"), &[]);
        }
    }
}

#[test]
fn whom_nginx_refuses_the_converted_file_lets_in_neither() {
    let app = telling("app");
    let http = r#"
map $http_x_a $mixed { default $http_x_b; "1" yes; }
server {
    listen @web;
    server_name a.example;
    location /whole/ { if ($args ~* "evil") { return 403; } proxy_pass http://@app; }
    location /set/ { set $bad 0; if ($http_x_a) { set $bad 1; } if ($bad = 1) { return 401; } proxy_pass http://@app; }
    location /map/ { if ($mixed = yes) { return 403; } proxy_pass http://@app; }
    location /agent/ { if ($http_user_agent ~* "(?=x)x") { return 403; } proxy_pass http://@app; }
    location /open/ { proxy_pass http://@app; }
}
"#;
    let both = Both::of(http, &[("app", &app)]);
    for path in ["/whole/?a=1", "/whole/?a=evil", "/set/", "/map/", "/agent/", "/open/"] {
        for fields in ["", "x-a: 1\r\n", "x-a: 0\r\nx-b: yes\r\n", "user-agent: x\r\n"] {
            let request = format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n{fields}\r\n");
            let [nginx, weir] = both.ask(&request);
            assert!(nginx.status < 400 || weir.status >= 400, "{request}\n{}", both.said);
        }
    }
    both.get("a.example", "/open/x").answers(200, "app GET /open/x");
    both.says(&["unsupported", "if", "CLOSED"]);
}
