//! What clients of every kind make of it.

use super::*;

use std::time::Duration;

use weir_tests::versions::{Client, Front, run};

#[test]
fn curl_reads_every_coding_in_http_1_1_and_http_2() {
    let backend = site();
    let (_, weir) = start(&backend);
    let address = weir.address("web");
    let output = weir.dir().join("page").display().to_string();
    let heads = weir.dir().join("heads").display().to_string();
    for version in ["--http1.1", "--http2-prior-knowledge"] {
        for coding in CODINGS {
            // A byte, what fits one buffer, what fills several, and megabytes; with a length and without.
            for path in [
                "/page/1100",
                "/page/20000",
                "/page/300000",
                "/page/5000000",
                "/chunked/70000",
                "/noise/400000",
            ] {
                let accept = format!("accept-encoding: {coding}");
                let url = format!("http://{address}{path}");
                let size = curl(&[
                    version,
                    "--compressed",
                    "--header",
                    &accept,
                    "--dump-header",
                    &heads,
                    "--output",
                    &output,
                    "--write-out",
                    "%{size_download}",
                    &url,
                ]);
                let cell = format!("{version} {coding} {path}");
                let count: usize = path.rsplit_once('/').unwrap().1.parse().unwrap();
                let expected = match path.starts_with("/noise") {
                    true => pattern(3, count),
                    false => page(count).into_bytes(),
                };
                assert!(std::fs::read(&output).unwrap() == expected, "{cell}");
                let heads = std::fs::read_to_string(&heads).unwrap().to_lowercase();
                assert!(heads.contains(&format!("content-encoding: {coding}\r\n")), "{cell}: {heads}");
                assert!(
                    heads.contains("vary: accept-encoding\r\n") && !heads.contains("content-length"),
                    "{cell}: {heads}"
                );
                let sent: usize = size.parse().unwrap();
                match path.starts_with("/noise") {
                    true => assert!(sent < count + count / 50, "{cell}: {sent} bytes"),
                    false => assert!(sent < expected.len() / 3, "{cell}: {sent} bytes"),
                }
            }
        }
    }
    let zstd = weir.metric("weir_compressed_responses_total", &[("listener", "web"), ("coding", "zstd")]);
    assert_eq!(zstd, 12.0);
    let plain = weir.metric("weir_compression_bytes_total", &[("listener", "web"), ("content", "plain")]);
    let encoded = weir.metric("weir_compression_bytes_total", &[("listener", "web"), ("content", "encoded")]);
    assert!(encoded > 0.0 && encoded < plain / 2.0, "{encoded} of {plain}");
}

#[test]
fn every_version_gets_the_same_content() {
    let backend = site();
    let (authority, weir) = start(&backend);
    run(Duration::from_secs(60), async {
        for front in Front::ALL {
            let address = weir.address(if front.is_tls() { "secure" } else { "web" });
            let mut client =
                Client::connect(front, &authority, address, "shop.example").await.expect("a connection");
            for coding in ["gzip", "zstd"] {
                for count in [2_000, 40_000, 1_000_000] {
                    let path = format!("/page/{count}");
                    let answer = client.ask("GET", &path, &[("accept-encoding", coding)], vec![]).await;
                    let answer = answer.unwrap_or_else(|failed| panic!("{front:?} {path}: {failed:?}"));
                    assert_eq!(answer.fields["content-encoding"], coding, "{front:?}");
                    assert_eq!(answer.fields["etag"], "W/\"v1\"");
                    assert!(!answer.is_cut && !answer.fields.contains_key("content-length"), "{front:?}");
                    assert!(
                        decoded(weir.dir(), coding, &answer.content) == page(count).into_bytes(),
                        "{front:?} {coding} {count}"
                    );
                }
            }
            let plain = client.ask("GET", "/page/2000", &[], vec![]).await.expect("an answer");
            assert!(
                plain.content == page(2000).into_bytes() && !plain.fields.contains_key("content-encoding")
            );
            assert_eq!(plain.fields["vary"], "accept-encoding");
            let head = client
                .ask("HEAD", "/page/2000", &[("accept-encoding", "gzip")], vec![])
                .await
                .expect("an answer");
            assert_eq!(head.fields["content-encoding"], "gzip");
            assert!(head.content.is_empty() && !head.fields.contains_key("content-length"), "{front:?}");
            let trailed = client
                .ask("GET", "/chunked/50000", &[("accept-encoding", "gzip"), ("te", "trailers")], vec![])
                .await
                .expect("an answer");
            assert!(decoded(weir.dir(), "gzip", &trailed.content) == page(50_000).into_bytes());
            assert_eq!(
                trailed.trailers.get("x-end").map(|value| value.as_bytes()),
                Some(&b"reached"[..]),
                "{front:?}"
            );
        }
    });
}
