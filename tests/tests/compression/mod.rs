//! Responses are compressed for those who ask for it, and nobody else can tell.

mod clients;
mod kept;
mod rules;
mod streams;

use std::path::Path;

use weir_tests::dialogue::{After, Authority, Backend, PATIENCE, Setup, Weir, curl, pattern, run_tool, tool};

/// A listener for each kind of connection that compresses all it may, over one backend.
const CONFIG: &str = r#"
[listener.web]
bind = "@web"
http = ["h1", "h2"]
pool = "app"
compress = true

[[listener.web.route]]
path = "/as-it-is/*"
pool = "app"
compress = false

[[listener.web.route]]
path = "/gzip-only/*"
pool = "app"
compress = { codings = "gzip", types = ["image/svg+xml", "text/event-stream"], min = "10B" }

[listener.secure]
bind = "@secure"
http = ["h1", "h2", "h3"]
pool = "app"
compress = true
tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }

[pool.app]
backends = ["@app"]
health = { check = "off", passive = "off" }
"#;

const CODINGS: [&str; 3] = ["zstd", "br", "gzip"];

fn start(backend: &Backend) -> (Authority, Weir) {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    (authority, weir)
}

/// A page that shrinks a lot, of about `length` bytes.
fn page(length: usize) -> String {
    let mut page = String::with_capacity(length + 100);
    let mut number = 7_u64;
    while page.len() < length {
        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        page.push_str(&format!(
            "<li class=\"item\"><a href=\"/item/{}\">item {}</a></li>\n",
            number >> 44,
            number >> 52
        ));
    }
    page
}

/// A text in which everything short has been there before and nothing long has: gzip looks for long.
fn letters(length: usize) -> Vec<u8> {
    pattern(5, length).iter().map(|byte| b"abcdefgh"[usize::from(byte & 7)]).collect()
}

/// `/page/N` a page of N bytes with an entity tag, `/letters/N` a text that is slow to compress, `/noise/N` N
/// bytes that do not shrink, `/chunked/N` a page without a length; other paths are answered with what
/// `x-answer` asks for: fields separated by `|`.
fn site() -> Backend {
    Backend::serving(|request, wire| {
        let count = |prefix: &str| {
            request.target.rsplit_once(prefix).and_then(|(_, count)| count.parse::<usize>().ok())
        };
        let fields =
            [("content-type", "text/html; charset=utf-8"), ("etag", "\"v1\""), ("accept-ranges", "bytes")];
        if request.fields.all("if-none-match").iter().any(|tags| tags.contains("\"v1\"")) {
            wire.sends("HTTP/1.1 304 Not Modified\r\netag: \"v1\"\r\n\r\n");
        } else if let Some(count) = count("/page/") {
            let body = page(count);
            match request.method.as_str() {
                "HEAD" => wire.sends(head(&fields, body.len())),
                _ => wire.answers(200, &fields, body),
            }
        } else if let Some(count) = count("/letters/") {
            wire.answers(200, &fields, letters(count));
        } else if let Some(count) = count("/noise/") {
            wire.answers(200, &fields, pattern(3, count));
        } else if let Some(count) = count("/chunked/") {
            let body = page(count);
            let mut text = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ntransfer-encoding: chunked\r\ntrailer: x-end\r\n\r\n".to_owned();
            for piece in body.as_bytes().chunks(9_999) {
                text += &format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece));
            }
            wire.sends(text + "0\r\nx-end: reached\r\n\r\n");
        } else {
            let asked = request.fields.one("x-answer").unwrap_or_default().to_owned();
            let fields: Vec<(&str, &str)> =
                asked.split('|').filter_map(|field| field.split_once('=')).collect();
            let status = fields
                .iter()
                .find(|(name, _)| *name == "status")
                .map_or(200, |(_, status)| status.parse().unwrap_or(200));
            let fields: Vec<_> = fields.into_iter().filter(|(name, _)| *name != "status").collect();
            wire.answers(status, &fields, page(4000));
        }
        After::Keep
    })
}

fn head(fields: &[(&str, &str)], length: usize) -> String {
    let mut text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n");
    for (name, value) in fields {
        text += &format!("{name}: {value}\r\n");
    }
    text + "\r\n"
}

/// Decodes with the programs of the system, which share no code with Weir.
fn decoded(dir: &Path, coding: &str, bytes: &[u8]) -> Vec<u8> {
    let (program, ending) = match coding {
        "gzip" => ("gzip", "gz"),
        "zstd" => ("zstd", "zst"),
        other => panic!("{other} is decoded by curl only"),
    };
    let file = dir.join(format!("encoded.{ending}"));
    let plain = dir.join("encoded");
    std::fs::write(&file, bytes).expect("write");
    let path = file.display().to_string();
    run_tool(&tool(program, program), &["-d", "-f", &path], b"", PATIENCE).succeeded();
    std::fs::read(plain).expect("decoded")
}
