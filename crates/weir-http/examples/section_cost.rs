//! Prints what reading one request and writing one response of HTTP/3 cost, in nanoseconds: the median of
//! many short rounds, so that a busy machine shows less.
//!
//! `cargo run --release -p weir-http --example section_cost`, or under callgrind with the name of one case
//! and a count: the difference of two counts is what the case takes.
#![expect(clippy::disallowed_methods, reason = "a measurement needs a clock and its arguments")]

use std::hint::black_box;
use std::time::Instant;

use weir_http::h3::{self, Connection, RequestStream, SectionWriter, StreamEvent, qpack::Decoder};
use weir_http::hpack::FieldBlocks;
use weir_http::{Limits, RequestBuilder, RequestHead, Version};

const ROUNDS: usize = 201;
const PER_ROUND: u32 = 2000;

type Pairs = &'static [(&'static str, &'static str)];

/// The request of h2load.
const H2LOAD: Pairs = &[
    (":path", "/hello"),
    (":scheme", "https"),
    (":authority", "127.0.0.1:8443"),
    (":method", "GET"),
    ("user-agent", "h2load nghttp2/1.66.0"),
];

const CHROMIUM: Pairs = &[
    (":method", "GET"),
    (":authority", "shop.example"),
    (":scheme", "https"),
    (":path", "/shop/articles/index.html?category=shoes&page=3&sort=price"),
    ("sec-ch-ua", "\"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\", \"Google Chrome\";v=\"140\""),
    ("sec-ch-ua-mobile", "?0"),
    ("sec-ch-ua-platform", "\"Linux\""),
    ("upgrade-insecure-requests", "1"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
    ),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-user", "?1"),
    ("sec-fetch-dest", "document"),
    ("referer", "https://shop.example/shop/articles/?category=shoes&page=2"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.9,de;q=0.8"),
    ("cookie", "session=0123456789abcdef0123456789abcdef"),
    ("cookie", "basket=4711; seen=1"),
    ("priority", "u=0, i"),
];

const RESPONSE: Pairs = &[
    ("server", "nginx/1.30.6"),
    ("date", "Sat, 21 Nov 2026 20:00:00 GMT"),
    ("content-type", "text/plain"),
    ("content-length", "13"),
    ("last-modified", "Fri, 20 Nov 2026 10:00:00 GMT"),
    ("etag", "\"673dbe10-d\""),
    ("accept-ranges", "bytes"),
];

/// One case: a name, and what to do once.
struct Case {
    name: &'static str,
    /// Bytes on the wire.
    bytes: usize,
    once: Box<dyn FnMut()>,
}

fn main() {
    let mut cases = vec![
        decode("decode-h2load", section(H2LOAD)),
        decode_with_table("decode-h2load-table"),
        decode("decode-chromium", section(CHROMIUM)),
        request("request-h2load", frame(H2LOAD)),
        request("request-chromium", frame(CHROMIUM)),
        field_block(
            "http2-block-h2load",
            &[0x82, 0x86, 0xc0, 0xbf, 0xbe, 0x04, 0x85, 0x62, 0x72, 0xd1, 0x41, 0xff],
        ),
        field_block("http2-block-chromium", &chromium_block()),
        response("response-nginx", RESPONSE),
        response("response-short", &[("content-type", "text/plain"), ("content-length", "13")]),
    ];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [name, count] = arguments.as_slice() {
        let count: usize = count.parse().expect("a count");
        let case = cases.iter_mut().find(|case| case.name == name).expect("a case");
        (0..count).for_each(|_| (case.once)());
        return;
    }
    println!("{:<22} {:>6} {:>10}", "case", "bytes", "ns");
    for case in &mut cases {
        println!("{:<22} {:>6} {:>10.1}", case.name, case.bytes, median(&mut case.once));
    }
}

fn frame(fields: Pairs) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = SectionWriter::new(&mut out);
    for (name, value) in fields {
        writer.field(name.as_bytes(), value.as_bytes());
    }
    writer.finish();
    out
}

fn section(fields: Pairs) -> Vec<u8> {
    frame(fields).split_off(3)
}

/// Only QPACK: the visitor looks at nothing but lengths.
fn decode(name: &'static str, section: Vec<u8>) -> Case {
    decode_by(name, Decoder::new(4096, 16), section)
}

fn decode_by(name: &'static str, mut decoder: Decoder, section: Vec<u8>) -> Case {
    let limits = h3::Config::new(&Limits::default()).head;
    let bytes = section.len();
    let once = move || {
        let mut total = 0;
        let read = decoder.read_section(0, black_box(&section), limits, |name, value| {
            total += name.len() + value.len();
            Ok::<(), ()>(())
        });
        assert!(read.is_ok());
        black_box(total);
        let said = decoder.output().len();
        decoder.sent(said);
    };
    Case { name, bytes, once: Box::new(once) }
}

/// As h2load's requests are from the second one on when there is a table: authority and user agent are in it.
fn decode_with_table(name: &'static str) -> Case {
    let mut decoder = Decoder::new(4096, 16);
    let mut instructions = vec![0x3f, 0xe1, 0x1f, 0xc0, 14];
    instructions.extend_from_slice(b"127.0.0.1:8443");
    instructions.extend_from_slice(&[0xff, 95 - 63, 21]);
    instructions.extend_from_slice(b"h2load nghttp2/1.66.0");
    decoder.receive_instructions(&instructions).expect("good instructions");
    let mut section = vec![0x03, 0x00];
    section.extend_from_slice(&frame(&[(":path", "/hello")])[5..]);
    section.extend_from_slice(&[0xd7, 0x81, 0xd1, 0x80]);
    decode_by(name, decoder, section)
}

/// The frame of a request to a head that can be routed: everything that a request passes in this crate.
fn request(name: &'static str, frame: Vec<u8>) -> Case {
    let limits = Limits::default();
    let mut connection = Connection::new(&h3::Config::new(&limits), 1);
    let (mut head, mut text) = (RequestHead::new(), Vec::new());
    let bytes = frame.len();
    let once = move || {
        let mut stream: RequestStream = connection.admit(0).expect("nothing is refused");
        text.clear();
        let step = stream.advance(black_box(&frame)).expect("a good frame");
        let StreamEvent::Section(section) = step.event else { panic!("a section is expected") };
        let mut builder = RequestBuilder::new(Version::Http3, &limits, &mut head, &mut text);
        let read =
            connection.read_section(&mut stream, &frame, section, |name, value| builder.field(name, value));
        assert!(read.is_ok());
        builder.finish(true).expect("a good request");
        stream.finish().expect("a whole request");
        black_box(&text);
    };
    Case { name, bytes, once: Box::new(once) }
}

/// What a field block of HTTP/2 is looked at for beside the `h2` crate.
fn field_block(name: &'static str, block: &[u8]) -> Case {
    let (block, mut reader) = (block.to_vec(), FieldBlocks::default());
    let bytes = block.len();
    let once = move || {
        reader.read(black_box(&block));
        black_box(reader.end());
    };
    Case { name, bytes, once: Box::new(once) }
}

/// A first request: nothing is in a table, all texts are literals that go there, the path among them.
fn chromium_block() -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in CHROMIUM {
        block.push(0x40);
        for text in [name, value] {
            if text.len() < 127 {
                block.push(text.len() as u8);
            } else {
                block.extend([127, (text.len() - 127) as u8]);
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

fn response(name: &'static str, fields: Pairs) -> Case {
    let mut out = Vec::new();
    let write = move |out: &mut Vec<u8>| {
        let mut writer = SectionWriter::new(&mut *out);
        writer.status(200);
        for (name, value) in black_box(fields) {
            writer.field(name.as_bytes(), value.as_bytes());
        }
        writer.finish();
        h3::write_data_header(out, 13);
    };
    write(&mut out);
    let bytes = out.len();
    let once = move || {
        out.clear();
        write(&mut out);
        black_box(&out);
    };
    Case { name, bytes, once: Box::new(once) }
}

fn median(once: &mut dyn FnMut()) -> f64 {
    let mut rounds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            (0..PER_ROUND).for_each(|_| once());
            start.elapsed().as_secs_f64() * 1e9 / f64::from(PER_ROUND)
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    rounds[ROUNDS / 2]
}
