//! Fuzzes PROXY protocol headers: no panic, prefixes of a good header are partial, lengths stay in bounds,
//! and what was read is written and read back.
//!
//! `cargo run --release -p weir-http --example fuzz_proxy_header -- --seconds 60`; `WEIR_SEED` repeats a run.

mod fuzzing;

use std::process::ExitCode;

use weir_http::proxy_protocol::{
    ProxyProgress, ProxyVersion, V1_LONGEST_BYTES, V2_DEFAULT_LIMIT_BYTES, parse, write_v1, write_v2,
};

const SEEDS: &[&[u8]] = &[
    b"PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\nGET / HTTP/1.1\r\n",
    b"PROXY TCP6 2001:db8::1 ::ffff:192.0.2.1 1 65535\r\n",
    b"PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x20\x00\0\0",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x12\xc0\0\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb\x04\0\x03abc",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\0\x50\0\x51",
];

const PIECES: &[&[u8]] = &[
    b"PROXY ",
    b"TCP4 ",
    b"TCP6 ",
    b"UNKNOWN",
    b"\r\n",
    b"01",
    b"0x7f",
    b"255.255.255.255",
    b"::",
    b"\x21\x31\0\xd8",
    b"\x03\0\x04\0\0\0\0",
    b"\xff\xff",
    b"65536",
];

fn main() -> ExitCode {
    fuzzing::run("proxy headers", SEEDS, PIECES, |bytes, draws| {
        let limit = if draws.below(4) == 0 { 40 } else { V2_DEFAULT_LIMIT_BYTES };
        let whole = parse(bytes, limit);
        let prefix = parse(&bytes[..draws.below(bytes.len() + 1)], limit);
        let (header, header_bytes) = match whole {
            Ok(ProxyProgress::Complete { header, header_bytes }) => (header, header_bytes),
            Ok(ProxyProgress::Partial) if prefix != Ok(ProxyProgress::Partial) => {
                return Err(format!("partial, but a prefix of it gives {prefix:?}"));
            }
            Ok(ProxyProgress::Partial) => return Ok(0),
            Err(violation) if prefix != Ok(ProxyProgress::Partial) && prefix != Err(violation) => {
                return Err(format!("refused as {violation:?}, but a prefix of it gives {prefix:?}"));
            }
            Err(violation) => return Ok(10 + violation as u64),
        };
        let longest = if header.version == ProxyVersion::V1 { V1_LONGEST_BYTES } else { limit };
        if header_bytes > longest.min(bytes.len()) {
            return Err(format!("{header_bytes} bytes taken of {}, {longest} allowed", bytes.len()));
        }
        if parse(&bytes[..header_bytes], limit) != whole {
            return Err("the header alone reads otherwise than with bytes behind it".to_owned());
        }
        for write in [write_v1, write_v2] {
            let mut out = Vec::new();
            write(header.addresses, &mut out);
            let back = parse(&out, V2_DEFAULT_LIMIT_BYTES);
            let Ok(ProxyProgress::Complete { header: back, header_bytes }) = back else {
                return Err(format!("written again it reads as {back:?}: \"{}\"", out.escape_ascii()));
            };
            let plain = |addresses: weir_http::proxy_protocol::ProxyAddresses| {
                [addresses.source, addresses.destination].map(|end| (end.ip().to_canonical(), end.port()))
            };
            if header_bytes != out.len() || back.addresses.map(plain) != header.addresses.map(plain) {
                return Err(format!("written again it means {back:?}"));
            }
        }
        Ok(1 + u64::from(header.addresses.is_some()) + 2 * u64::from(header.version == ProxyVersion::V2))
    })
}
