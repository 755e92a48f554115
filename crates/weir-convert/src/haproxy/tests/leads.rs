//! Rules that lead by more than a name: values of the request, cookies that do not count, monitors, and what
//! servers say.

use super::{DirectiveVerdict, checked, converted, verdict};

/// A frontend with these lines, the first of which is line 5, and three backends.
fn with(lines: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend web\n bind :80\n {lines}\n default_backend one\n\
         backend one\n server a 10.0.0.1:80\nbackend app_two\n server a 10.0.0.2:80\n\
         backend app_three\n http-request deny if {{ path /t/no }}\n server a 10.0.0.3:80\n"
    )
}

fn routes(body: &str) -> Vec<&str> {
    let listeners = body.split("\n[pool.").next().unwrap_or_default();
    listeners.split("[[listener.web.route]]\n").skip(1).map(str::trim_end).collect()
}

#[test]
fn each_backend_that_a_value_may_name_has_a_route_and_all_else_goes_to_the_default() {
    let text = with("use_backend app_%[req.cook(tenant)] if { path_beg /t }\n use_backend app_two");
    assert_eq!(verdict(&text, 5).0, DirectiveVerdict::Exact);
    let body = checked(&text);
    assert_eq!(
        routes(&body),
        [
            "path = \"/t*\"\ncookie = { tenant = \"two\" }\npool = \"app_two\"",
            "path = \"/t/no\"\ncookie = { tenant = \"three\" }\nrespond = { status = 403 }",
            "path = \"/t*\"\ncookie = { tenant = \"three\" }\npool = \"app_three\"",
            "path = \"/t*\"\npool = \"one\"",
        ],
        "{body}"
    );
}

#[test]
fn a_name_that_no_backend_has_is_the_default_and_one_that_nobody_can_ask_is_told() {
    let (none, note) = verdict(&with("use_backend b_%[req.hdr(x)]"), 5);
    assert!(none == DirectiveVerdict::Exact && note.contains("no backend has such a name"), "{note}");
    let other = format!(
        "{}backend app_tcp\n mode tcp\n server a 10.0.0.9:9\n",
        with("use_backend app_%[req.cook(x)]")
    );
    let (of_tcp, note) = verdict(&other, 5);
    assert!(
        of_tcp == DirectiveVerdict::Approximate && note.contains("`app_tcp` is of another mode"),
        "{note}"
    );
    for name in ["app_%[rand(2)]", "%[req.hdr(x)]_%[path]", "app_%[url_param(a),base64]"] {
        let (lost, note) = verdict(&with(&format!("use_backend {name}")), 5);
        assert!(lost == DirectiveVerdict::Unsupported, "{name}: {note}");
        checked(&with(&format!("use_backend {name}")));
    }
}

#[test]
fn server_names_choose_backends_of_tcp_and_of_http_with_tls() {
    let tcp = "defaults\n mode tcp\nfrontend tls\n bind :443\n tcp-request inspect-delay 5s\n \
               use_backend to_%[req.ssl_sni,lower]\n default_backend rest\nbackend to_a.example\n server a 10.0.0.1:443\n\
               backend rest\n server a 10.0.0.2:443\n";
    assert_eq!(verdict(tcp, 6).0, DirectiveVerdict::Exact);
    assert!(checked(tcp).contains("sni = \"a.example\"\npool = \"to_a.example\""), "{}", checked(tcp));
    let http = "defaults\n mode http\nfrontend web\n bind :443 ssl crt /etc/site.pem\n \
                use_backend %[ssl_fc_sni]\n default_backend rest\nbackend a.example\n server a 10.0.0.1:80\n\
                backend rest\n server a 10.0.0.2:80\n";
    let body = checked(http);
    assert!(body.contains("map = { names_exact_1 = \"a.example\" }\npool = \"a.example\""), "{body}");
    assert_eq!(converted(http).files[0].text, "a.example a.example\nrest rest\n");
}

#[test]
fn a_map_names_pools_by_itself_unless_a_backend_has_rules_of_its_own() {
    let text = with("use_backend %[path,map(/etc/by.map)]");
    let body = checked(&text);
    assert!(!body.contains("pool_map"), "{body}");
    assert_eq!(
        routes(&body),
        [
            "map = { by = \"one\" }\npool = \"one\"",
            "map = { by = \"app_two\" }\npool = \"app_two\"",
            "path = \"/t/no\"\nmap = { by = \"app_three\" }\nrespond = { status = 403 }",
            "map = { by = \"app_three\" }\npool = \"app_three\"",
        ],
        "{body}"
    );
    let plain = text.replace(" http-request deny if { path /t/no }\n", "");
    let pools = "pool_map = { map = \"by\", pools = [\"app_three\", \"app_two\", \"one\"] }";
    assert!(checked(&plain).contains(pools), "{}", checked(&plain));
    let (lacking, note) = verdict(&with("use_backend %[req.cook(c),map(/etc/by.map,one)]"), 5);
    assert!(lacking == DirectiveVerdict::Approximate && note.contains("nothing to be looked up"), "{note}");
}

#[test]
fn a_frontend_of_tcp_speaks_http_where_all_that_a_value_names_does() {
    let body = checked(
        "defaults\n timeout client 5s\nfrontend web\n bind :80\n use_backend app_%[req.cook(x)]\n default_backend one\n\
         backend one\n mode http\n server a 10.0.0.1:80\nbackend app_a\n mode http\n server a 10.0.0.2:80\n",
    );
    assert!(body.contains("cookie = { x = \"a\" }\npool = \"app_a\""), "{body}");
}

#[test]
fn a_monitor_fails_under_conditions_and_while_no_server_is_up() {
    let text = "defaults\n mode http\nfrontend web\n bind :80\n monitor-uri /up\n \
                monitor fail if { nbsrv(app) lt 1 } || { req.hdr(x) 1 }\n monitor fail if { src 192.0.2.0/24 }\n \
                monitor fail if { fe_conn gt 9 }\n default_backend app\n\
                backend app\n option httpchk GET /healthz\n server a 10.0.0.1:80 check\n";
    let body = checked(text);
    assert_eq!(
        routes(&body)[..4],
        [
            "path = \"/up\"\nclient_ip = \"192.0.2.0/24\"\nrespond = { status = 503 }",
            "path = \"/up\"\nheader = { x = \"~(?:^|,)[ \\\\t]*1[ \\\\t]*(?:,|$)\" }\nrespond = { status = 503 }",
            "path = \"/up\"\npool = \"app\"\nrewrite = { path = \"/healthz\" }",
            "path = \"/up\"\nrespond = { status = 200, body = \"<html><body><h1>200 OK</h1>\\nService ready.\\n</body></html>\\n\", content_type = \"text/html\" }",
        ],
        "{body}"
    );
    let (of_servers, note) = verdict(text, 6);
    assert!(of_servers == DirectiveVerdict::Approximate && note.contains("as probes do"), "{note}");
    assert_eq!(verdict(text, 7).0, DirectiveVerdict::Exact);
    let (lost, note) = verdict(text, 8);
    assert!(lost == DirectiveVerdict::Unsupported && note.contains("`monitor-uri` answers 200"), "{note}");
    let without = text.replace(" option httpchk GET /healthz\n", "");
    let (lost, note) = verdict(&without, 6);
    assert!(lost == DirectiveVerdict::Unsupported && note.contains("`monitor-uri` answers 200"), "{note}");
    checked(&without);
    let (alone, note) = verdict(&text.replace(" monitor-uri /up\n", ""), 5);
    assert!(alone == DirectiveVerdict::Exact && note.contains("no effect"), "{note}");
}

/// A backend with these lines, the first of which is line 7.
fn behind(lines: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend web\n bind :80\n default_backend app\nbackend app\n {lines}\n \
         server a 10.0.0.1:80 cookie a check\n server b 10.0.0.2:80 cookie b check\n"
    )
}

#[test]
fn requests_that_ignore_their_cookie_go_to_a_pool_without_one() {
    let text = behind("ignore-persist if { path_beg /static }\n cookie SRV insert indirect");
    let (of_static, note) = verdict(&text, 7);
    assert!(of_static == DirectiveVerdict::Approximate && note.contains("`[pool.app-any]`"), "{note}");
    assert!(note.contains("backends see the cookie"), "{note}");
    let body = checked(&text);
    assert_eq!(routes(&body), ["path = \"/static*\"\npool = \"app-any\""], "{body}");
    let any = body.split("[pool.app-any]\n").nth(1).expect("a pool");
    assert!(any.contains("10.0.0.2:80") && !any.contains("sticky"), "{body}");
    assert_eq!(body.matches("sticky = ").count(), 1, "{body}");
    let (without, note) = verdict(&behind("ignore-persist if { path_beg /static }"), 7);
    assert!(without == DirectiveVerdict::Exact && note.contains("no effect"), "{note}");
}

#[test]
fn servers_that_are_down_get_no_request_whatever_a_cookie_says_which_is_told() {
    for (lines, expected, told) in [
        ("option persist\n cookie SRV insert", DirectiveVerdict::Unsupported, "answers 503"),
        ("option persist\n cookie SRV insert\n option redispatch", DirectiveVerdict::Approximate, "at once"),
        ("option persist", DirectiveVerdict::Exact, "no effect"),
        ("no option persist\n cookie SRV insert", DirectiveVerdict::Exact, "off"),
        ("force-persist if { src 10.0.0.0/8 }\n cookie SRV insert", DirectiveVerdict::Unsupported, "is down"),
        ("force-persist if { src 10.0.0.0/8 }", DirectiveVerdict::Exact, "no effect"),
    ] {
        let (found, note) = verdict(&behind(lines), 7);
        assert!(found == expected && note.contains(told), "{lines}: {found:?} {note}");
        checked(&behind(lines));
    }
}

#[test]
fn what_servers_say_is_held_back_where_routes_can_ask_and_passes_where_haproxy_lets_it() {
    for (lines, expected, told, written) in [
        ("tcp-response content reject if { status 200 }", DirectiveVerdict::Exact, "never holds", false),
        (
            "tcp-response content reject if { res.payload(0,4) -m str HTTP }",
            DirectiveVerdict::Exact,
            "never",
            false,
        ),
        ("tcp-response content reject if { path_beg /x }", DirectiveVerdict::Exact, "never holds", false),
        (
            "tcp-response content reject unless { status 404 }",
            DirectiveVerdict::Approximate,
            "answer 502",
            true,
        ),
        (
            "tcp-response content close if { src 10.0.0.0/8 }",
            DirectiveVerdict::Approximate,
            "as HAProxy",
            true,
        ),
        ("tcp-response content reject", DirectiveVerdict::Approximate, "closed connection", true),
        (
            "tcp-response content reject if { status 200 }\n tcp-response inspect-delay 1s",
            DirectiveVerdict::Unsupported,
            "PASSES",
            false,
        ),
        (
            "tcp-response content set-log-level silent if { res.payload(0,5) -m str close }",
            DirectiveVerdict::Unsupported,
            "it has no effect",
            false,
        ),
    ] {
        let text = behind(lines);
        let (found, note) = verdict(&text, 7);
        assert!(found == expected && note.contains(told), "{lines}: {found:?} {note}");
        let body = checked(&text);
        assert_eq!(body.contains("respond = { status = 502 }"), written, "{lines}: {body}");
    }
    let first = behind("tcp-response content accept if { src 10.0.0.0/8 }\n tcp-response content reject");
    assert!(checked(&first).contains("not = { client_ip = \"10.0.0.0/8\" }\nrespond = { status = 502 }"));
    let over = behind("tcp-response content accept\n tcp-response content reject");
    assert!(verdict(&over, 8).1.contains("never reached"), "{:?}", verdict(&over, 8));
    let kept =
        behind("http-request set-var(txn.p) path\n tcp-response content reject if { var(txn.p) -m beg /x }");
    assert!(checked(&kept).contains("path = \"/x*\"\nrespond = { status = 502 }"), "{}", checked(&kept));
}

#[test]
fn connections_whose_answers_are_held_back_are_closed() {
    let tcp = |line: &str| {
        format!(
            "defaults\n mode tcp\nlisten a\n bind :80\n {line}\n server a 10.0.0.1:80\nlisten b\n bind :81\n server a 10.0.0.1:81\n"
        )
    };
    let (whole, note) = verdict(&tcp("tcp-response content reject"), 5);
    assert!(whole == DirectiveVerdict::Approximate && note.contains("takes nobody"), "{note}");
    assert!(checked(&tcp("tcp-response content reject")).contains("pool = \"nobody\""));
    let (some, note) = verdict(&tcp("tcp-response content reject if { src 10.0.0.0/8 }"), 5);
    assert!(some == DirectiveVerdict::Unsupported && note.contains("PASSES"), "{note}");
}

#[test]
fn limits_of_one_table_at_several_listeners_say_that_they_count_apart() {
    let front = |name: &str, port: u16, more: &str| {
        format!(
            "frontend {name}\n bind :{port}{more}\n http-request track-sc0 src table seen\n \
             http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 9 }}\n default_backend app\n"
        )
    };
    let text = |fronts: &str| {
        format!(
            "defaults\n mode http\n{fronts}backend seen\n stick-table type ip size 1m store http_req_rate(10s)\n\
             backend app\n server a 10.0.0.1:80\n"
        )
    };
    let two = text(&format!("{}{}", front("web", 80, ""), front("api", 81, "")));
    checked(&two);
    for (line, named) in [(6, "`api`"), (11, "`web`"), (14, "`api`, `web` share")] {
        let (found, note) = verdict(&two, line);
        assert!(found == DirectiveVerdict::Approximate && note.contains("COUNTED APART"), "{line}: {note}");
        assert!(note.contains(named), "{line}: {note}");
    }
    let one = text(&front("web", 80, ""));
    assert!(!verdict(&one, 6).1.contains("APART"), "{}", verdict(&one, 6).1);
    let of_tls = text(&front("web", 80, "\n bind :443 ssl crt /etc/site.pem"));
    assert!(verdict(&of_tls, 7).1.contains("each of its listeners counts for itself"));
}
