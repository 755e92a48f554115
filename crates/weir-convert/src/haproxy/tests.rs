//! What whole files are converted to. Each result is checked as `weir check` does.

mod leads;
mod pages;
mod peers;
mod robust;
mod verdicts;

use super::convert;
use crate::{Converted, Directive, DirectiveVerdict, NoFiles};

/// The file that seed 002 printed, and what else people have in theirs.
const FILES: [&str; 4] = [
    include_str!("tests/seed.cfg"),
    include_str!("tests/rules.cfg"),
    include_str!("tests/full.cfg"),
    include_str!("tests/many.cfg"),
];

/// Converts a text, which must be possible.
fn converted(text: &str) -> Converted {
    convert(text, &NoFiles).unwrap_or_else(|problem| panic!("{problem}\n{text}"))
}

/// The converted file, which `weir check` takes.
fn checked(text: &str) -> String {
    let converted = converted(text);
    let file = converted.to_toml("haproxy.cfg");
    if let Err(report) = weir_config::check_text("weir.toml", &file) {
        panic!("{report}\n{file}");
    }
    converted.body
}

/// What became of a line.
fn verdict(text: &str, line: usize) -> (DirectiveVerdict, String) {
    let all = converted(text).directives;
    let of: Vec<&Directive> = all.iter().filter(|directive| directive.line == line).collect();
    let [one] = of.as_slice() else { panic!("{of:?} of line {line}") };
    (one.verdict, one.note.clone())
}

#[test]
fn every_line_gets_one_verdict() {
    for text in FILES {
        let lines: Vec<usize> = converted(text).directives.iter().map(|directive| directive.line).collect();
        for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
            let expected = usize::from(!line.is_empty() && !line.starts_with('#'));
            assert_eq!(lines.iter().filter(|of| **of == number).count(), expected, "line {number}: {line}");
        }
    }
}

#[test]
fn what_comes_out_is_taken_by_weir_check() {
    for text in FILES {
        checked(text);
    }
}

#[test]
fn the_file_of_the_seed_lacks_nothing() {
    let converted = converted(FILES[0]);
    assert_eq!(converted.count(DirectiveVerdict::Unsupported), 0, "{}", converted.to_toml("haproxy.cfg"));
    assert!(converted.body.contains("[admin]\nbind = \"127.0.0.1:9321\"\n"), "{}", converted.body);
}

#[test]
fn a_frontend_with_and_without_tls_is_two_listeners() {
    let body = checked(
        "defaults\n mode http\nfrontend web\n bind :80\n bind :443 ssl crt /etc/site.pem alpn h2,http/1.1\n \
         http-request redirect scheme https code 301 unless { ssl_fc }\n \
         http-request set-header X-Forwarded-Proto https if { ssl_fc }\n default_backend app\n\
         backend app\n server a 10.0.0.1:80\n",
    );
    let (plain, secure) = body.split_once("[listener.web-tls]").expect("two listeners");
    assert!(plain.contains("redirect = { to = \"https://$host$path$query\", status = 301 }"), "{body}");
    assert!(!plain.contains("x-forwarded-proto") && !secure.contains("redirect ="), "{body}");
    assert!(secure.contains("set_request_header = { x-forwarded-proto = \"https\" }"), "{body}");
    assert!(secure.contains("http = [\"h1\", \"h2\"]"), "{body}");
}

#[test]
fn a_change_under_a_condition_divides_what_is_behind_it() {
    let body = checked(
        "defaults\n mode http\nfrontend web\n bind :80\n http-request set-header X-Api 1 if { path_beg /api/ }\n \
         use_backend two if { hdr(host),host_only,lower two.example }\n default_backend one\n\
         backend one\n server a 10.0.0.1:80\nbackend two\n server b 10.0.0.2:80\n",
    );
    let routes: Vec<&str> = body.split("[[listener.web.route]]\n").skip(1).collect();
    assert_eq!(
        routes[..2],
        [
            "path = \"/api/*\"\nhost = \"two.example\"\npool = \"two\"\nset_request_header = { x-api = \"1\" }\n\n",
            "path = \"/api/*\"\npool = \"one\"\nset_request_header = { x-api = \"1\" }\n\n",
        ],
        "{body}"
    );
    assert!(routes[2].starts_with("host = \"two.example\"\npool = \"two\"\n\n"), "{body}");
    assert!(body.contains("pool = \"one\"\n"), "{body}");
}

#[test]
fn rules_of_a_backend_hold_for_all_that_leads_to_it() {
    let body = checked(
        "defaults\n mode http\nfrontend web\n bind :80\n use_backend app if { path_beg /app }\n default_backend app\n\
         backend app\n http-request deny if { path_end .php }\n http-request set-header X-App 1\n server a 10.0.0.1:80\n",
    );
    let routes: Vec<&str> = body.split("[[listener.web.route]]\n").skip(1).collect();
    assert!(
        routes[0].starts_with("path = \"/app*\"\nany = [{ path = \"*.php\" }]\nrespond = { status = 403 }"),
        "{body}"
    );
    assert!(routes[1].starts_with("path = \"/app*\"\npool = \"app\""), "{body}");
    assert!(routes[2].starts_with("path = \"*.php\"\nrespond = { status = 403 }"), "{body}");
    assert!(body.contains("[pool.app]\nbackends = [\"10.0.0.1:80\"]\n"), "{body}");
    assert_eq!(body.matches("set_request_header = { x-app = \"1\" }").count(), 1, "{body}");
}

#[test]
fn a_rule_that_can_not_be_asked_is_left_out_and_one_that_refuses_refuses_more() {
    for (rule, told, route) in [
        ("http-request deny if { req.body -m sub x }", "CLOSED", "respond = { status = 403 }"),
        (
            "http-request deny deny_status 404 if { path_beg /a } { lua.x }",
            "CLOSED",
            "path = \"/a*\"\nrespond = { status = 404 }",
        ),
        (
            "http-request deny unless { path_beg /a } || { lua.x }",
            "CLOSED",
            "not = { path = \"/a*\" }\nrespond",
        ),
        (
            "http-request auth if { path_beg /a } { req.body -m sub x }",
            "CLOSED",
            "path = \"/a*\"\nrespond = { status = 401 }",
        ),
        ("http-request deny if { sc0_gpc0_rate gt 10 } { lua.x }", "NO LIMIT", ""),
        ("use_backend app if { srv_is_up(app/a) }", "go on to the next rules", ""),
    ] {
        let text = format!(
            "defaults\n mode http\nfrontend web\n bind :80\n {rule}\n default_backend app\nbackend app\n server a 10.0.0.1:80\n"
        );
        let (verdict, note) = verdict(&text, 5);
        assert_eq!(verdict, DirectiveVerdict::Unsupported, "{rule}: {note}");
        assert!(note.contains(told), "{rule}: {note}");
        let body = checked(&text);
        match route {
            "" => assert!(!body.contains("[[listener"), "{rule}\n{body}"),
            route => assert!(body.contains(&format!("[[listener.web.route]]\n{route}")), "{rule}\n{body}"),
        }
    }
}

#[test]
fn server_names_of_tls_are_asked_by_a_map_that_is_written() {
    let text = "defaults\n mode http\nfrontend web\n bind :80\n bind :443 ssl crt /etc/site.pem alpn h2,http/1.1\n \
                use_backend two if { ssl_fc_sni -i two.example TWO.example }\n default_backend one\n\
                backend one\n server a 10.0.0.1:80\nbackend two\n server b 10.0.0.2:80\n";
    let body = checked(text);
    let (plain, secure) = body.split_once("[listener.web-tls]").expect("two listeners");
    assert!(!plain.contains("[[listener"), "{body}");
    assert!(secure.contains("map = { names_exact_1 = \"yes\" }\npool = \"two\"\n"), "{body}");
    assert_eq!(converted(text).files[0].text, "two.example yes\n");
}

#[test]
fn a_server_that_is_left_out_decides_nothing_for_the_others() {
    let text = "defaults\n mode http\nfrontend web\n bind :80\n bind :81\n default_backend app\nbackend app\n balance first\n \
                server a 10.0.0.1\n server b 10.0.0.2:80 ssl verify none\nbackend gone\n balance first\n server c 10.0.0.1\n";
    let body = checked(text);
    assert!(body.contains("backends = [\"10.0.0.2:80\"]\nbalance = \"first\"\n"), "{body}");
    assert_eq!(verdict(text, 9).0, DirectiveVerdict::Unsupported);
    assert_eq!(verdict(text, 12).1, "no effect: no server of this proxy is converted");
}

#[test]
fn each_draw_is_made_of_what_those_before_have_left() {
    let body = checked(
        "defaults\n mode http\nfrontend web\n bind :80\n use_backend two if { rand(100) lt 50 }\n \
         use_backend three if { rand(10) lt 5 }\n default_backend one\nbackend one\n server a 10.0.0.1:80\n\
         backend two\n server b 10.0.0.2:80\nbackend three\n server c 10.0.0.3:80\n",
    );
    assert!(
        body.contains(
            "split = { to = [{ pool = \"two\", share = 0.5 }, { pool = \"three\", share = 0.25 }] }"
        ),
        "{body}"
    );
}

#[test]
fn a_password_that_is_asked_for_holds_for_what_is_behind_the_rule() {
    let body = checked(
        "userlist staff\n user bob insecure-password secret\ndefaults\n mode http\nfrontend web\n bind :80\n \
         acl authed http_auth(staff)\n http-request return status 200 if { path /ping }\n \
         http-request auth realm Staff if { path_beg /admin } !authed\n default_backend app\n\
         backend app\n server a 10.0.0.1:80\n",
    );
    let routes: Vec<&str> = body.split("[[listener.web.route]]\n").skip(1).collect();
    assert!(routes[0].starts_with("path = \"/ping\"\nrespond = { status = 200 }\n\n"), "{body}");
    assert!(
        routes[1].starts_with(
            "path = \"/admin*\"\npool = \"app\"\nauth = { basic = { users = \"/etc/weir/staff.users\", realm = \"Staff\", pass_authorization = true } }\n"
        ),
        "{body}"
    );
    assert!(!body.contains("secret"), "{body}");
}

#[test]
fn a_frontend_of_tcp_with_backends_of_http_alone_speaks_http() {
    let body = checked(
        "defaults\n timeout client 5s\nfrontend web\n bind :80\n acl is_static path_beg /static\n \
         use_backend store if is_static\n default_backend app\nbackend app\n mode http\n server a 10.0.0.1:80\n\
         backend store\n mode http\n server b 10.0.0.2:80\n",
    );
    assert!(!body.contains("protocol = \"tcp\""), "{body}");
    assert!(body.contains("path = \"/static*\"\npool = \"store\"\n"), "{body}");
}

#[test]
fn variables_in_addresses_need_no_quotes() {
    let text = "defaults\n mode http\nfrontend web\n bind *:$PORT\n default_backend app\nbackend app\n server a ${HOST}:80\n";
    let body = converted(text).body;
    assert!(body.contains("bind = \"0.0.0.0:${env:PORT}\""), "{body}");
    assert!(body.contains("backends = [\"${env:HOST}:80\"]"), "{body}");
}

#[test]
fn what_weir_check_once_refused_is_taken() {
    for lines in [
        "server a /run/a.sock ssl verify none",
        "server a /run/a.sock ssl ca-file /ca.pem verify required",
        "server a 10.0.0.1:+1000",
        "server a [::1]:80\n server b [0::1]:80",
        "log loghost:514 local0\n log logs local0\n log 10.0.0.9:+5 local0",
        "compression algo gzip\n compression type text/ application/javascript",
    ] {
        let text = format!("defaults\n mode http\nlisten web\n bind :80\n {lines}\n server z 10.0.0.2:80\n");
        checked(&text);
    }
}

#[test]
fn a_limit_holds_for_those_alone_that_are_counted() {
    let body = checked(
        "defaults\n mode http\nbackend logins\n stick-table type ip size 1m expire 10m store http_req_rate(10m)\n\
         frontend web\n bind :80\n http-request track-sc1 src table logins if { path_beg /login }\n \
         http-request deny deny_status 429 if { sc_http_req_rate(1) gt 10 }\n default_backend app\n\
         backend app\n server a 10.0.0.1:80\n",
    );
    assert!(
        body.contains("path = \"/login*\"\npool = \"app\"\nrate_limit = { rate = \"10/10m\", burst = 10 }"),
        "{body}"
    );
    assert_eq!(body.matches("rate_limit").count(), 1, "{body}");
}
