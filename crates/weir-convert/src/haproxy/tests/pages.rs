//! Error pages, and what rules that refuse say.

use super::{DirectiveVerdict, NoFiles, checked, verdict};
use crate::{SourceFiles, haproxy::convert};

/// A frontend with these lines, the first of which is line 5.
fn with(lines: &str) -> String {
    format!(
        "defaults\n mode http\nfrontend web\n bind :80\n {lines}\n default_backend app\nbackend app\n server a 10.0.0.1:80\n"
    )
}

#[test]
fn an_http_error_is_a_page_and_what_rules_with_its_status_say() {
    let text = with(
        "http-error status 403 content-type text/plain string \"no entry\"\n http-request deny if { path /x }\n \
         http-request return status 403 if { path /y }",
    );
    assert_eq!(verdict(&text, 5).0, DirectiveVerdict::Exact);
    let body = checked(&text);
    let page =
        "[[listener.web.error_page]]\nstatus = 403\nbody = \"no entry\"\ncontent_type = \"text/plain\"\n";
    assert!(body.contains(page), "{body}");
    let refused =
        "path = \"/x\"\nrespond = { status = 403, body = \"no entry\", content_type = \"text/plain\" }";
    assert!(body.contains(refused), "{body}");
    assert!(body.contains("path = \"/y\"\nrespond = { status = 403 }"), "{body}");
}

#[test]
fn what_a_page_can_not_say_is_told() {
    for (line, expected, told) in [
        ("http-error status 410", DirectiveVerdict::Exact, "`error_page`"),
        (
            "http-error status 503 content-type text/plain string x hdr X-A 1",
            DirectiveVerdict::Approximate,
            "no fields of its own",
        ),
        ("http-error status 503 default-errorfiles", DirectiveVerdict::Approximate, "HAProxy's own page"),
        (
            "http-error status 503 content-type text/plain lf-string \"gone %[path]\"",
            DirectiveVerdict::Unsupported,
            "without variables",
        ),
        ("http-error status 503 content-type text/plain lf-string \"100%%\"", DirectiveVerdict::Exact, ""),
        (
            "http-error status 200 content-type text/plain string ok",
            DirectiveVerdict::Unsupported,
            "400 to 599",
        ),
        (
            "http-error status 503 content-type text/plain file /x",
            DirectiveVerdict::Unsupported,
            "Weir's own line of text",
        ),
        ("http-error status 503 errorfiles own", DirectiveVerdict::Approximate, "HAProxy's own page"),
    ] {
        let text = with(line);
        let (found, note) = verdict(&text, 5);
        assert!(found == expected && note.contains(told), "{line}: {found:?} {note}");
        checked(&text);
    }
}

/// Files that are there.
struct PageFolder;

impl SourceFiles for PageFolder {
    fn matching(&self, pattern: &str) -> Vec<String> {
        NoFiles.matching(pattern)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        match path {
            "/errors/429.txt" => Ok("too many".to_owned()),
            "/errors/503.http" => {
                Ok("HTTP/1.0 503 Gone\r\nContent-Type: text/html\r\n\r\n<p>Sorry</p>".to_owned())
            }
            "/errors/long.http" => Ok(format!("HTTP/1.0 500 No\r\n\r\n{}", "long ".repeat(9000))),
            _ => Err("it is not there".to_owned()),
        }
    }

    fn folder(&self) -> &str {
        "/etc/haproxy"
    }
}

#[test]
fn pages_of_files_and_of_sections_are_those_of_backends_too() {
    let text = "http-errors own\n errorfile 503 /errors/503.http\ndefaults\n mode http\nfrontend web\n bind :80\n \
                http-error status 429 content-type text/plain file /errors/429.txt\n errorfile 500 /errors/long.http\n \
                http-request tarpit if { path /t }\n default_backend app\n\
                backend app\n errorfiles own\n http-request deny deny_status 503 if { path /x }\n server a 10.0.0.1:80\n";
    let converted = convert(text, &PageFolder).expect("converted");
    let file = converted.to_toml("haproxy.cfg");
    assert!(weir_config::check_text("weir.toml", &file).is_ok(), "{file}");
    let body = &converted.body;
    assert!(
        body.contains("status = 429\nfile = \"/etc/weir/429.txt\"\ncontent_type = \"text/plain\""),
        "{body}"
    );
    let paths: Vec<&str> = converted.files.iter().map(|file| file.path.as_str()).collect();
    assert_eq!(paths, ["/etc/weir/long.html", "/etc/weir/429.txt", "/etc/weir/503.html"]);
    let one = "file = \"/etc/weir/503.html\", content_type = \"text/html\"";
    let page = format!("error_page = [{{ status = 503, {one} }}, {{ status = 502, {one} }}]");
    assert!(body.contains(&page), "{body}");
    let refused =
        "path = \"/x\"\nrespond = { status = 503, body = \"<p>Sorry</p>\", content_type = \"text/html\" }";
    assert!(body.contains(refused), "{body}");
    assert!(body.contains("path = \"/t\"\nrespond = { status = 500 }"), "{body}");
    let long = converted.directives.iter().find(|directive| directive.line == 8).expect("a verdict");
    assert!(long.note.contains("too long"), "{long}");
}
