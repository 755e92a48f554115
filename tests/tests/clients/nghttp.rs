//! nghttp.

use weir_tests::dialogue::{PATIENCE, run_tool, tool};

use super::secure;

fn nghttp(site: &secure::Site, arguments: &[&str], paths: &[&str]) -> String {
    let address = site.address();
    // It has no way to be told where a name is, but takes a host field of the user's.
    let urls = paths.iter().map(|path| format!("https://localhost:{}{path}", address.port()));
    let all: Vec<String> = ["--timeout=20".to_owned()]
        .into_iter()
        .chain(arguments.iter().map(|argument| (*argument).to_owned()))
        .chain(urls)
        .collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    run_tool(&tool("nghttp", "nghttp2-client"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}

#[test]
fn nghttp_gets_several_answers_sends_bodies_and_asks_to_continue() {
    for behind in secure::BEHIND {
        let site = secure::Site::start(behind);
        let upload = site.weir.dir().join("upload");
        std::fs::write(&upload, "u".repeat(3 << 20)).expect("write");
        let data = format!("--data={}", upload.display());
        let got = nghttp(&site, &[], &["/hello", "/bytes/70000", "/hello?again"]);
        assert_eq!(got.matches("hello").count(), 2, "{behind:?}");
        assert_eq!(nghttp(&site, &[], &["/unknown"]), "one two three", "{behind:?}");
        let sent = nghttp(&site, &[&data], &["/digest"]);
        assert!(sent.starts_with(&format!("{} ", 3 << 20)), "{behind:?}: {sent}");
        let continued = nghttp(&site, &[&data, "--expect-continue"], &["/digest"]);
        assert_eq!(continued, sent, "{behind:?}");
        site.spoke("HTTP/2.0");
    }
}
