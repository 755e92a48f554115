//! What clients are told when Weir answers by itself, and in whose place.

mod fallback;
mod forms;
mod intercepted;
mod maintenance;
mod pages;

use weir_tests::dialogue::{PATIENCE, Response, Weir, run_tool, tool};

/// What a client of HTTP/1.1 gets for these lines of a head, on a connection of its own.
fn asked(weir: &Weir, line: &str, fields: &[&str]) -> Response {
    let method = line.split(' ').next().unwrap_or_default();
    let mut client = weir.client("web");
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    client.sends(format!("{line} HTTP/1.1\r\nhost: shop.example\r\n{fields}\r\n"));
    client.receives_response_to(method)
}

/// What curl prints of an answer in HTTP/2: the head, and the content.
fn in_http2(weir: &Weir, arguments: &[&str], path: &str) -> String {
    let url = format!("http://{}{path}", weir.address("web"));
    let mut all =
        vec!["--http2-prior-knowledge", "--silent", "--show-error", "--include", "--max-time", "20"];
    all.extend(["--noproxy", "*"]);
    all.extend(arguments);
    all.push(&url);
    run_tool(&tool("curl", "curl"), &all, b"", PATIENCE * 3).succeeded().to_owned()
}
