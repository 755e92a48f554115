//! Other people's programs as clients.

mod chromium;
mod curl;
mod go;
mod grpc;
mod httpx;
mod languages;
mod load_generators;
mod nghttp;
mod secure;
mod websocket_over_http2;

pub use languages::node;

use weir_tests::dialogue::{After, Backend, pattern};

/// A small site: `/bytes/N` gives N pattern bytes and honours `Range`, `/echo` gives the request's body,
/// `/gzip` says that it is encoded, anything else says hello.
pub fn site() -> Backend {
    Backend::serving(|request, wire| {
        if let Some(count) = request.target.strip_prefix("/bytes/") {
            let all = pattern(1, count.parse().unwrap_or(0));
            let range = request.fields.one("range").and_then(|range| {
                let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
                Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()?))
            });
            match range {
                Some((first, last)) => {
                    let field = format!("bytes {first}-{last}/{}", all.len());
                    wire.answers(206, &[("content-range", &field)], &all[first..=last]);
                }
                None => wire.answers(200, &[("accept-ranges", "bytes")], &all),
            }
        } else if request.target == "/echo" {
            wire.answers(200, &[], &request.body);
        } else if request.target == "/chunked" {
            wire.sends(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello \r\n5\r\nworld\r\n0\r\n\r\n",
            );
        } else {
            wire.answers(200, &[("content-type", "text/plain")], "hello");
        }
        After::Keep
    })
}
