//! What is kept answers every version of HTTP alike.

use weir_tests::dialogue::Response;

use super::{Site, age_of, is_hit, ok, site};

/// What curl gets over HTTP/2.
fn over_http2(site: &Site, target: &str, fields: &[&str], options: &[&str]) -> Response {
    let mut all = vec!["--http2-prior-knowledge"];
    all.extend(options);
    let answer = site.curl(target, fields, &all);
    assert_eq!(answer.version, "HTTP/2");
    answer
}

#[test]
fn what_was_fetched_over_one_version_answers_the_other() {
    let body = "0123456789".repeat(30_000);
    let content = body.clone();
    let site = site("", move |_, _| ok("cache-control: max-age=60\netag: \"a\"", content.clone()));
    let first = over_http2(&site, "/two", &[], &[]);
    assert!(!is_hit(&first));
    assert!(first.text() == body);
    let second = site.get("/two", &[]);
    assert!(is_hit(&second) && second.text() == body);
    assert!(!is_hit(&site.get("/one", &[])));
    for _ in 0..2 {
        let answer = over_http2(&site, "/one", &[], &[]);
        assert!(is_hit(&answer) && answer.text() == body);
        assert!(age_of(&answer) < 20);
        assert_eq!(answer.fields.one("content-length"), Some("300000"));
    }
    let part = over_http2(&site, "/one", &["range: bytes=99995-200004"], &[]);
    assert!(is_hit(&part) && part.status == 206 && part.text() == body[99_995..200_005]);
    let beyond = over_http2(&site, "/one", &["range: bytes=300000-"], &[]);
    assert_eq!((beyond.status, beyond.fields.one("content-range")), (416, Some("bytes */300000")));
    let good = over_http2(&site, "/one", &["if-none-match: \"a\""], &[]);
    assert!(is_hit(&good) && good.status == 304 && good.body.is_empty());
    let head = over_http2(&site, "/one", &[], &["--head"]);
    assert!(is_hit(&head) && head.status == 200 && head.body.is_empty());
    assert_eq!(head.fields.one("content-length"), Some("300000"));
    assert_eq!(site.served(), 2);
}
