//! A case for each verdict, and for what must be told.

use super::{DirectiveVerdict, checked, converted, verdict};
use crate::{NoFiles, SourceFiles, haproxy::convert};

/// A frontend with one line more, which is line 5.
fn with(line: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend web\n bind :80\n {line}\n default_backend app\nbackend app\n server a 10.0.0.1:80\n"
    )
}

#[test]
fn the_same_is_exact_what_differs_is_approximate_and_what_is_missing_is_unsupported() {
    for (line, expected, told) in [
        ("http-request deny if { path_beg /x }", DirectiveVerdict::Exact, "answers 403"),
        ("http-request deny if { hdr(host) -i a.b }", DirectiveVerdict::Approximate, "without their port"),
        ("http-request lua.go", DirectiveVerdict::Unsupported, "no Lua"),
        ("http-request deny if { path_beg /a?b }", DirectiveVerdict::Exact, "answers 403"),
        ("maxconn 10", DirectiveVerdict::Approximate, "`max_connections`"),
        ("option abortonclose", DirectiveVerdict::Exact, "`abort_on_close`"),
        ("never-heard-of x", DirectiveVerdict::Unsupported, "not known here"),
        ("filter spoe engine x", DirectiveVerdict::Unsupported, "no SPOE"),
        ("acl a path_reg (?=x)", DirectiveVerdict::Exact, "used by no rule"),
        ("http-request set-header X-A %[rand(5)]", DirectiveVerdict::Unsupported, "no variable for `rand`"),
        ("http-request set-header X-Forwarded-For %[src]", DirectiveVerdict::Approximate, "every request"),
        ("timeout client x", DirectiveVerdict::Unsupported, "is no time"),
        ("use_backend gone if { path / }", DirectiveVerdict::Unsupported, "there is no backend `gone`"),
        ("log 127.0.0.1 local0 notice", DirectiveVerdict::Approximate, "no access log"),
        ("balance roundrobin", DirectiveVerdict::Exact, "no servers"),
    ] {
        let text = with(line);
        let (verdict, note) = verdict(&text, 5);
        assert_eq!(verdict, expected, "{line}: {note}");
        assert!(note.contains(told), "{line}: {note}");
        checked(&text);
    }
}

/// A backend with one line more, which is line 7.
fn behind(line: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend web\n bind :80\n default_backend app\nbackend app\n {line}\n \
         server a 10.0.0.1:80 cookie a\n server b 10.0.0.2:80 cookie b weight 0\n server c 10.0.0.3:80 disabled\n"
    )
}

#[test]
fn what_a_backend_says_of_its_servers_and_responses_is_in_the_routes_that_lead_there() {
    for (line, expected, told, written) in [
        (
            "use-server b if { path_beg /b }",
            DirectiveVerdict::Approximate,
            "`[pool.app-b]`",
            "pool = \"app-b\"",
        ),
        ("use-server c if { path_beg /b }", DirectiveVerdict::Exact, "is disabled", "pool = \"app\""),
        ("use-server d if { path_beg /b }", DirectiveVerdict::Unsupported, "no server `d`", "pool = \"app\""),
        (
            "use-server b if { req.hdr(x),base64 -m str a }",
            DirectiveVerdict::Unsupported,
            "these requests go where the balance says",
            "pool = \"app\"",
        ),
        ("compression algo gzip", DirectiveVerdict::Exact, "`compress.codings`", "compress = { codings"),
        (
            "stick store-response res.cook(JSESSIONID)",
            DirectiveVerdict::Approximate,
            "beside `JSESSIONID`",
            "sticky = { cookie = \"JSESSIONID_server\" }",
        ),
        ("appsession SID len 8", DirectiveVerdict::Approximate, "beside `SID`", "cookie = \"SID_server\""),
        (
            "http-response deny if { capture.req.uri -m end .bak }",
            DirectiveVerdict::Approximate,
            "no backend is asked where it holds",
            "path = \"*.bak\"\nrespond = { status = 502 }",
        ),
        ("source 10.0.0.9", DirectiveVerdict::Exact, "`source` of pools", "source = \"10.0.0.9\""),
        (
            "http-response deny if { status 500:599 404 }",
            DirectiveVerdict::Approximate,
            "the status stays",
            "error_page = [{ status = [\"5xx\", 404], intercept = true }]",
        ),
        (
            "http-response deny if { capture.req.uri -m beg /x } { res.hdr(x-a) -m found }",
            DirectiveVerdict::Unsupported,
            "CLOSED: Weir answers ALL requests itself whose response",
            "path = \"/x*\"\nrespond = { status = 502 }",
        ),
        (
            "http-response return status 404 string gone if { status 403 }",
            DirectiveVerdict::Approximate,
            "the status stays",
            "error_page = [{ status = 403, body = \"gone\", intercept = true }]",
        ),
    ] {
        let text = behind(line);
        let (verdict, note) = verdict(&text, 7);
        assert!(verdict == expected && note.contains(told), "{line}: {verdict:?} {note}");
        let body = checked(&text);
        assert!(body.contains(written), "{line}: {body}");
    }
    let body = checked(&behind("use-server b if { path_beg /b }"));
    let alone = body.split("[pool.app-b]\n").nth(1).expect("a pool");
    assert!(alone.starts_with("backends = [\"10.0.0.2:80\"]\n"), "{body}");
    assert!(alone.contains("fallback_pool = \"app\"") && !alone.contains("weight"), "{body}");
}

#[test]
fn rules_about_servers_that_are_down_and_limits_of_all_connections_are_keys() {
    let body = checked(&with("http-request return status 503 string sorry if { nbsrv(app) eq 0 }"));
    assert!(body.contains("error_page = [{ status = 503, body = \"sorry\" }]"), "{body}");
    let (of_other, note) = verdict(&with("http-request deny if { nbsrv(other) eq 0 }"), 5);
    assert!(of_other == DirectiveVerdict::Unsupported && note.contains("NO LIMIT"), "{note}");
    let tcp = with("rate-limit sessions 50").replace("mode http", "mode tcp");
    assert!(checked(&tcp).contains("rate_limit = { rate = \"50/s\", key = \"listener\" }"));
    let (http, _) = verdict(&with("rate-limit sessions 50"), 5);
    assert_eq!(http, DirectiveVerdict::Unsupported);
}

#[test]
fn texts_that_are_made_upper_or_lower_case_are_never_of_the_other() {
    for (condition, written) in [
        ("req.fhdr(x),upper -m str ABC", Some("header = { x = \"~(?i)^ABC$\" }")),
        ("req.fhdr(x),upper -m str abc", None),
        ("req.fhdr(x),lower -m str ABC", None),
        ("req.fhdr(x),lower -m str -i ABC", Some("header = { x = \"~(?i)^ABC$\" }")),
        ("req.hdr(host),upper -m str A.TEST", Some("host = \"a.test\"")),
        ("req.hdr(host),upper -m str a.test", None),
    ] {
        let body = checked(&with(&format!("http-request deny if {{ {condition} }}")));
        match written {
            Some(written) => assert!(body.contains(written), "{condition}: {body}"),
            None => assert!(!body.contains("respond"), "{condition}: {body}"),
        }
    }
}

#[test]
fn where_a_client_meant_to_go_decides_only_for_servers_without_an_address() {
    let text = with("http-request set-dst hdr_ip(x-to)");
    let (of_none, note) = verdict(&text, 5);
    assert!(of_none == DirectiveVerdict::Approximate && note.contains("nothing goes elsewhere"), "{note}");
    let (open, note) = verdict(&text.replace("10.0.0.1:80", "0.0.0.0:80"), 5);
    assert!(open == DirectiveVerdict::Unsupported && note.contains("addresses of their own"), "{note}");
}

#[test]
fn a_certificate_is_asked_for_by_its_subject() {
    for (condition, written) in [
        ("{ ssl_c_s_dn(cn) -m str ann.example }", Some("(?:^|[^\\\\],)CN=ann\\.example(?:,|$) yes\n")),
        ("{ ssl_c_used }", Some(". yes\n")),
        ("{ ssl_fc_protocol TLSv1.2 }", Some("^TLSv1\\.2$ yes\n")),
        ("{ ssl_c_verify 0 }", None),
    ] {
        let text = with(&format!("http-request deny unless {condition}"));
        checked(&text);
        let made = converted(&text).files.into_iter().next().map(|file| file.text);
        assert_eq!(made.as_deref(), written, "{condition}");
    }
    let (_, note) = verdict(&with("http-request deny if { ssl_c_s_dn(cn) -m sub a }"), 5);
    assert!(note.contains("compared whole") && note.contains("CLOSED"), "{note}");
}

#[test]
fn defaults_that_differ_are_told_where_the_file_says_nothing() {
    let told = converted(&with("maxconn 10")).to_toml("haproxy.cfg");
    for name in ["option forwardfor", "retries", "timeout client", "timeout server", "timeout http-request"] {
        assert!(told.contains(&format!("#   approximate  default  {name}: ")), "{name}\n{told}");
    }
}

#[test]
fn a_file_without_a_proxy_is_nothing_to_convert() {
    for text in ["global\n daemon\n", "defaults\n mode http\n"] {
        let problem = convert(text, &NoFiles).expect_err(text);
        assert!(problem.message.contains("no `frontend`"), "{problem}");
    }
    for (text, told) in [
        ("backend a\n server a 10.0.0.1:80\n", "convert it with the file that has it"),
        ("frontend a\n bind fd@4\n", "line 1, frontend a: no listener"),
    ] {
        let problem = convert(text, &NoFiles).expect_err(text);
        assert!(problem.to_string().contains(told), "{problem}");
    }
}

/// Files that are there.
struct Folder;

impl SourceFiles for Folder {
    fn matching(&self, pattern: &str) -> Vec<String> {
        let inside = ["/certs/a.pem", "/certs/b.pem", "/certs/b.pem.key"];
        match pattern {
            "/certs/*" => inside.iter().map(|path| (*path).to_owned()).collect(),
            _ => Vec::new(),
        }
    }

    fn read(&self, path: &str) -> Result<String, String> {
        match path {
            "/certs/a.pem" => Ok("CERTIFICATE and PRIVATE KEY".to_owned()),
            "/certs/b.pem" => Ok("CERTIFICATE".to_owned()),
            "/errors/503.http" => {
                Ok("HTTP/1.0 503 Gone\r\nContent-Type: text/html\r\n\r\n<p>Sorry</p>\n".to_owned())
            }
            "/errors/other/503.http" => Ok("HTTP/1.0 503 Gone\r\n\r\nother\n".to_owned()),
            "/lists/bad" => Ok("# bad ones\n/a\n/b\n".to_owned()),
            _ => Err("it is not there".to_owned()),
        }
    }

    fn folder(&self) -> &str {
        "/etc/haproxy"
    }
}

#[test]
fn files_that_can_be_read_are_taken_over() {
    let text = "defaults\n mode http\n errorfile 503 /errors/503.http\n errorfile 500 /errors/500.http\nfrontend web\n \
                bind :443 ssl crt /certs\n http-request deny if { path -f /lists/bad }\n default_backend app\n\
                backend app\n server a 10.0.0.1:80\n";
    let converted = convert(text, &Folder).expect("converted");
    let body = &converted.body;
    assert!(body.contains("certificates = [{ cert = \"/certs/a.pem\", key = \"/certs/a.pem\" }, { cert = \"/certs/b.pem\", key = \"/certs/b.pem.key\" }]"), "{body}");
    assert!(body.contains("path = [\"/a\", \"/b\"]"), "{body}");
    assert!(body.contains("file = \"/etc/weir/503.html\"\ncontent_type = \"text/html\""), "{body}");
    assert_eq!(converted.files[0].text, "<p>Sorry</p>\n");
    let named = "http-errors own\n errorfile 503 /errors/other/503.http\n errorfile 500 /errors/500.http\ndefaults\n mode http\n\
                 errorfile 503 /errors/503.http\nfrontend a\n bind :80\n errorfiles own 503\nfrontend b\n bind :81\n";
    let of_section = convert(named, &Folder).expect("converted");
    let paths: Vec<&str> = of_section.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/etc/weir/503.html", "/etc/weir/503-2.html"]);
    assert_eq!(of_section.count(DirectiveVerdict::Unsupported), 0, "{}", of_section.to_toml("haproxy.cfg"));
    let lost = converted.directives.iter().find(|directive| directive.line == 4).expect("a verdict");
    assert!(lost.verdict == DirectiveVerdict::Unsupported && lost.note.contains("not there"), "{lost}");
}
