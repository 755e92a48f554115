//! Prints what parsing and forwarding one message costs, in nanoseconds: the median of many short rounds, so
//! that a busy machine shows less.
//!
//! `cargo run --release -p weir-http --example parse_cost`
#![expect(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use weir_http::{
    BodyReader, ClientIdentity, Limits, Method, RequestBuilder, RequestContext, RequestHead, ResponseContext,
    ResponseHead, Scheme, Version, parse_request, parse_response, request_fields, write_request,
    write_response,
};

const ROUNDS: usize = 201;
const PER_ROUND: u32 = 2000;

fn main() {
    let wrk = b"GET /hello HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n".to_vec();
    let browser = browser_request();
    let nginx = b"HTTP/1.1 200 OK\r\nServer: nginx/1.30.6\r\nDate: Sat, 21 Nov 2026 20:00:00 GMT\r\n\
        Content-Type: text/plain\r\nContent-Length: 13\r\nConnection: keep-alive\r\n\
        Last-Modified: Fri, 20 Nov 2026 10:00:00 GMT\r\nETag: \"673dbe10-d\"\r\nAccept-Ranges: bytes\r\n\r\n"
        .to_vec();
    println!("{:<32} {:>6} {:>10} {:>10} {:>12}", "message", "bytes", "parse ns", "write ns", "together ns");
    request_cost("request from wrk", &wrk);
    request_cost("request from a browser", &browser);
    response_cost("response from nginx", &nginx);
    println!(
        "{:<32} {:>6} {:>10} {:>10} {:>12}",
        "message in fields", "bytes", "build ns", "write ns", "visit ns"
    );
    section_cost("request from curl in HTTP/2", &wrk);
    section_cost("request from a browser in HTTP/2", &browser);
    let mut body = BodyReader::new(weir_http::BodyLength::Length(u64::MAX >> 1), &Limits::default());
    let nanoseconds = median(|| {
        black_box(body.advance(black_box(b"hello, world\n")).ok());
    });
    println!("{:<32} {:>6} {nanoseconds:>10.1}", "body of declared length", 13);
}

fn browser_request() -> Vec<u8> {
    let mut text = String::from(
        "GET /shop/articles/index.html?category=shoes&page=3&sort=price HTTP/1.1\r\nHost: shop.example\r\n\
         Connection: keep-alive\r\nCache-Control: max-age=0\r\n\
         sec-ch-ua: \"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\", \"Google Chrome\";v=\"140\"\r\n\
         sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: \"Linux\"\r\nUpgrade-Insecure-Requests: 1\r\n\
         User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36\r\n\
         Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n\
         Sec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\nSec-Fetch-Dest: document\r\n\
         Referer: https://shop.example/shop/articles/?category=shoes&page=2\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n\
         Accept-Language: en-GB,en;q=0.9,de;q=0.8\r\nCookie: session=0123456789abcdef0123456789abcdef; ",
    );
    while text.len() < 1020 {
        text.push('c');
    }
    text.push_str("\r\n\r\n");
    text.into_bytes()
}

fn request_cost(name: &str, bytes: &[u8]) {
    let limits = Limits::default();
    let identity = ClientIdentity::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), Scheme::Http, false);
    let context = RequestContext::new(&identity, b"0190f5a1c3d27b3e8a4455667788");
    let mut head = RequestHead::new();
    let mut out = Vec::with_capacity(4096);
    let parse = median(|| {
        head.clear();
        black_box(parse_request(black_box(bytes), &limits, &mut head).ok());
    });
    assert!(head.is_complete(), "the sample request must parse");
    let write = median(|| {
        out.clear();
        write_request(black_box(&head), black_box(bytes), &context, &mut out);
        black_box(&out);
    });
    let together = median(|| {
        head.clear();
        black_box(parse_request(black_box(bytes), &limits, &mut head).ok());
        out.clear();
        write_request(black_box(&head), black_box(bytes), &context, &mut out);
        black_box(&out);
    });
    println!("{name:<32} {:>6} {parse:>10.1} {write:>10.1} {together:>12.1}", bytes.len());
}

/// The cost of the same request when it comes in HTTP/2, and goes to a backend of HTTP/1.1 or HTTP/2.
fn section_cost(name: &str, bytes: &[u8]) {
    let limits = Limits::default();
    let identity = ClientIdentity::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 7)), Scheme::Https, false)
        .of_version(Version::Http2);
    let context = RequestContext::new(&identity, b"0190f5a1c3d27b3e8a4455667788");
    let mut head = RequestHead::new();
    assert!(parse_request(bytes, &limits, &mut head).is_ok(), "the sample request must parse");
    let mut fields = Vec::new();
    request_fields(&head, bytes, &context, &mut |name, value| {
        if !name.starts_with(b"via") && !name.starts_with(b"x-") && name != b"forwarded" {
            fields.push((name.to_vec(), value.to_vec()));
        }
    });
    let (mut text, mut out) = (Vec::with_capacity(4096), Vec::with_capacity(4096));
    let build = median(|| {
        text.clear();
        let mut builder = RequestBuilder::new(Version::Http2, &limits, &mut head, &mut text);
        let taken =
            fields.iter().try_for_each(|(name, value)| builder.field(black_box(name), black_box(value)));
        black_box(taken.and_then(|()| builder.finish(true)).ok());
    });
    assert!(head.is_complete(), "the sample fields must be good");
    let write = median(|| {
        out.clear();
        write_request(black_box(&head), black_box(&text), &context, &mut out);
        black_box(&out);
    });
    let visit = median(|| {
        request_fields(black_box(&head), black_box(&text), &context, &mut |name, value| {
            black_box((name, value));
        });
    });
    println!("{name:<32} {:>6} {build:>10.1} {write:>10.1} {visit:>12.1}", text.len());
}

fn response_cost(name: &str, bytes: &[u8]) {
    let limits = Limits::default();
    let context = ResponseContext::new(Version::Http11, Method::Get, true);
    let mut head = ResponseHead::new();
    let mut out = Vec::with_capacity(4096);
    let parse = median(|| {
        head.clear();
        black_box(parse_response(black_box(bytes), &limits, Method::Get, &mut head).ok());
    });
    assert!(head.is_complete(), "the sample response must parse");
    let write = median(|| {
        out.clear();
        black_box(write_response(black_box(&head), black_box(bytes), &context, &mut out));
        black_box(&out);
    });
    let together = median(|| {
        head.clear();
        black_box(parse_response(black_box(bytes), &limits, Method::Get, &mut head).ok());
        out.clear();
        black_box(write_response(black_box(&head), black_box(bytes), &context, &mut out));
        black_box(&out);
    });
    println!("{name:<32} {:>6} {parse:>10.1} {write:>10.1} {together:>12.1}", bytes.len());
}

fn median(mut work: impl FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..PER_ROUND {
                work();
            }
            start.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
