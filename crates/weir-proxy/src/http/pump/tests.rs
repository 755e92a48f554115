//! Tests of what is received, and what is sent of it.

use weir_http::{BodyLength, Limits};

use super::*;
use crate::http::claim::HeldClaim;

fn pump(length: BodyLength, framing: Framing, received: &[u8]) -> Pump {
    let mut buffer = Buffers::new(1 << 20).borrow(LARGE).unwrap();
    buffer.append(received);
    Pump::new(BodyReader::new(length, &Limits::default()), framing, Some(buffer), None)
}

#[test]
fn a_body_is_held_up_to_a_bound_and_what_was_taken_of_a_chunk_is_its_beginning() {
    let mut body = pump(BodyLength::Chunked, Framing::Chunked, b"8\r\nabcdefgh\r\n0\r\n\r\n");
    body.keep_copy();
    let mut out = b"head:".to_vec();
    let (buffers, mut charge) = (Buffers::new(1 << 20), None);
    body.take_some(&mut out, &mut HeldClaim::new(&buffers, &mut charge, 3, 1)).unwrap();
    assert_eq!(out, b"head:8\r\nabc");
    assert!(!body.is_received());
    body.take_some(&mut out, &mut HeldClaim::new(&buffers, &mut charge, 100, 1)).unwrap();
    assert_eq!(out, b"head:8\r\nabcdefgh\r\n0\r\n\r\n");
    assert_eq!(body.take_copy(), b"abcdefgh");
    assert!(body.is_received() && body.is_done());
}

#[test]
fn a_body_that_came_with_its_head_leaves_with_its_head() {
    let mut body = pump(BodyLength::Length(5), Framing::Plain, b"helloGET / ");
    let mut out = b"head:".to_vec();
    body.take_received(&mut out, 4096).unwrap();
    assert_eq!(out, b"head:hello");
    assert!(body.is_done());
    let (rest, drained) = body.into_rest();
    assert_eq!(rest.unwrap().filled(), b"GET / ");
    assert!(drained.is_some());
}

#[test]
fn chunks_are_framed_anew_and_extensions_dropped() {
    let mut body = pump(BodyLength::Chunked, Framing::Chunked, b"3;x=y\r\nabc\r\n002\r\nde\r\n0\r\n\r\n");
    let mut out = Vec::new();
    body.take_received(&mut out, 4096).unwrap();
    assert_eq!(out, b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert!(body.is_done());
    assert_eq!(body.received, 5);
}

#[test]
fn a_chunked_body_that_is_not_whole_stays_open() {
    let mut body = pump(BodyLength::Chunked, Framing::Chunked, b"5\r\nabc");
    let mut out = Vec::new();
    body.take_received(&mut out, 4096).unwrap();
    assert_eq!(out, b"3\r\nabc\r\n", "a reader that waits for whole chunks has one");
    assert!(!body.is_done());
    assert!(body.into_rest().1.is_none());
}

#[test]
fn content_over_the_limit_is_an_error_even_when_chunked() {
    let mut buffer = Buffers::new(1 << 20).borrow(LARGE).unwrap();
    buffer.append(b"5\r\nabcde\r\n");
    let reader = BodyReader::new(BodyLength::Chunked, &Limits::default());
    let mut body = Pump::new(reader, Framing::Chunked, Some(buffer), Some(4));
    assert!(matches!(body.take_received(&mut Vec::new(), 4096), Err(PumpError::TooLarge)));
}

fn encoded(length: BodyLength, framing: Framing, received: &[u8]) -> Pump {
    let buffers = Buffers::new(16 << 20);
    let encoding = Encoding::begin(weir_config::Coding::Gzip, 5, None, &buffers);
    let mut pump = pump(length, framing, received);
    pump.set_encoding(encoding);
    pump
}

#[test]
fn a_small_encoded_body_leaves_with_its_head_in_one_chunk() {
    let mut body = encoded(BodyLength::Length(9), Framing::Chunked, b"aaaaaaaaaGET / ");
    let mut out = b"head:".to_vec();
    body.take_received(&mut out, 4096).unwrap();
    assert!(out.starts_with(b"head:"), "{out:?}");
    assert!(out.ends_with(b"\r\n0\r\n\r\n"), "{out:?}");
    assert_eq!(out.windows(2).filter(|pair| pair == b"\x1f\x8b").count(), 1, "one gzip header");
    assert!(body.is_done());
    let (rest, drained) = body.into_rest();
    assert_eq!(rest.unwrap().filled(), b"GET / ");
    assert!(drained.is_some());
}

#[test]
fn an_encoded_body_that_is_not_whole_waits_for_its_source() {
    let mut body = encoded(BodyLength::Chunked, Framing::Chunked, b"5\r\nabcde\r\n");
    let mut out = Vec::new();
    body.take_received(&mut out, 4096).unwrap();
    assert_eq!(out, b"", "the encoder holds it");
    assert!(body.waits_for_source() && !body.is_done());
    assert!(body.flush().unwrap(), "until there is a reason to give it out");
    assert!(!body.waits_for_source());
    assert!(body.into_rest().1.is_none());
}
