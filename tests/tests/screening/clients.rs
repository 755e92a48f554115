//! The same for HTTP/1.1, HTTP/2 and HTTP/3, each with and without a body.

use std::time::Duration;

use bytes::Bytes;
use weir_tests::dialogue::{Authority, Backend};
use weir_tests::versions::{Client, Front, Part, run};

const CONFIG: &str = r#"
    [listener.plain]
    bind = "@plain"
    http = ["h1", "h2"]
    pool = "app"
    deny_path = ["/no*"]
    rate_limit = { rate = "1/h", burst = 2, key = "header:x-user" }
    [listener.secure]
    bind = "@secure"
    http = ["h1", "h2", "h3"]
    pool = "app"
    deny_path = ["/no*"]
    rate_limit = { rate = "1/h", burst = 2, key = "header:x-user" }
    tls = { certificates = [{ cert = "@dir/shop.pem", key = "@dir/shop.key" }] }
    [pool.app]
    backends = ["@app"]
    health = "off"
"#;

#[test]
fn every_version_is_screened_alike() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let backend = Backend::saying("hello");
    let weir = authority.setup(CONFIG).with("app", backend.address()).start();
    run(Duration::from_secs(30), async {
        for front in Front::ALL {
            let name = if front.is_tls() { "secure" } else { "plain" };
            let user = format!("{front:?}");
            let mut expected =
                vec![("/no", false, 403), ("/a", false, 200), ("/no/b", true, 403), ("/c", true, 200)];
            expected.extend([("/d", false, 429), ("/e", true, 429)]);
            for (path, has_body, status) in expected {
                // A refused body ends a connection of HTTP/1.1.
                let mut client = Client::connect(front, &authority, weir.address(name), "shop.example")
                    .await
                    .expect("a connection");
                let parts =
                    if has_body { vec![Part::Content(Bytes::from_static(b"some content"))] } else { vec![] };
                let method = if has_body { "POST" } else { "GET" };
                let answer = client.ask(method, path, &[("x-user", &user)], parts).await.expect("an answer");
                assert_eq!(answer.status.as_u16(), status, "{front:?} {method} {path}");
                assert_eq!(answer.fields.contains_key("retry-after"), status == 429);
            }
        }
    });
    assert_eq!(backend.requests().len(), 2 * Front::ALL.len());
}
