//! Prints what judging values for SQL injection costs: megabytes a second of one core, and nanoseconds for
//! one request's head; the median of many short rounds.
//!
//! `cargo run --release -p weir-screen --example sqli_cost`
#![expect(clippy::disallowed_methods, reason = "a measurement needs a clock")]

use std::hint::black_box;
use std::time::Instant;

use weir_screen::sqli::{BodyKind, Screen};

const ROUNDS: usize = 51;
const BYTES: usize = 256 << 10;

const PROSE: &str = "It's a long established fact that a reader's attention is drawn to 2 or 3 words; \"the rest\" (as they say) is -- mostly -- ignored. ";
const FORM: &str = "name=O%27Reilly&comment=I+can%27t+get+this+to+work%2C+it%27s+slow%3B+any+ideas%3F&page=2&sort=price&id=4711&";
const JSON: &str = "{\"id\": 4711, \"name\": \"O'Reilly\", \"text\": \"It\\u0027s 1 or 2 items, \\\"new\\\"\", \"tags\": [\"a\", \"b\"]},";
const WORST: &str = "'or(1)and(select'";

fn main() {
    let mut screen = Screen::default();
    bytes("prose, one value", &PROSE.repeat(BYTES / PROSE.len()), &mut |text| screen.value(text).is_some());
    bytes("form", &FORM.repeat(BYTES / FORM.len()), &mut |text| {
        screen.body(&BodyKind::Form, text).is_ok_and(|found| found.is_some())
    });
    bytes("JSON", &JSON.repeat(BYTES / JSON.len()), &mut |text| {
        screen.body(&BodyKind::Json, text).is_ok_and(|found| found.is_some())
    });
    bytes("quotes and parentheses", &WORST.repeat(BYTES / WORST.len()), &mut |text| {
        screen.value(text).is_some()
    });
    let parens = "(".repeat(BYTES);
    bytes("parentheses alone", &parens, &mut |text| screen.value(text).is_some());
    head(&mut screen);
}

fn bytes(name: &str, text: &str, judge: &mut dyn FnMut(&[u8]) -> bool) {
    let mut seconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            black_box(judge(black_box(text.as_bytes())));
            began.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    println!("{name}: {:.0} MB/s", text.len() as f64 / seconds[ROUNDS / 2] / 1e6);
}

/// A browser's request.
fn head(screen: &mut Screen) {
    const AGENT: &[u8] = b"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";
    const PER_ROUND: u32 = 2000;
    let mut nanoseconds: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            for _ in 0..PER_ROUND {
                let found = screen
                    .path(black_box(b"/shop/articles/index.html"))
                    .or_else(|| screen.query(b"category=shoes&page=3&sort=price"))
                    .or_else(|| screen.header(b"user-agent", AGENT))
                    .or_else(|| screen.header(b"accept-language", b"en-GB,en;q=0.9,de;q=0.8"))
                    .or_else(|| {
                        screen
                            .header(b"referer", b"https://shop.example/shop/articles/?category=shoes&page=2")
                    })
                    .or_else(|| {
                        screen.header(
                            b"cookie",
                            b"session=0123456789abcdef0123456789abcdef; basket=4711; seen=1",
                        )
                    });
                black_box(found);
            }
            began.elapsed().as_nanos() as f64 / f64::from(PER_ROUND)
        })
        .collect();
    nanoseconds.sort_by(f64::total_cmp);
    println!("head of a browser's request: {:.0} ns", nanoseconds[ROUNDS / 2]);
}
