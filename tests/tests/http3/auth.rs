//! Who may ask, in HTTP/3.

use super::*;

#[test]
fn a_service_is_asked_about_requests_in_http_3_and_bodies_wait_for_it() {
    let authority = authority();
    let app = Backend::serving(|request, wire| {
        let said = format!("{:?} {}", request.fields.all("remote-user"), request.body.len());
        wire.answers(200, &[], &said);
        After::Keep
    });
    let service = Backend::serving(|request, wire| {
        match request.fields.all("cookie").contains(&"id=good") {
            true => wire.answers(200, &[("remote-user", "ann")], ""),
            false => wire.answers(403, &[("x-why", "unknown")], "not you"),
        }
        After::Keep
    });
    let auth = "[listener.web.auth.forward]\npool = \"auth\"\ncopy_to_backend = \"remote-user\"\n[pool.auth]\nbackends = [\"@auth\"]\nhealth = \"off\"\n";
    let config = CONFIG.replace("[pool.app]", &format!("{auth}[pool.app]"));
    let setup = authority.setup(&config).with("app", app.address()).with("auth", service.address());
    let weir = setup.start();
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        let body = pattern(5, 1 << 20);
        for (cookie, expected) in [
            ("id=good", (200, "[\"ann\"] 1048576")),
            ("id=bad", (403, "not you")),
            ("id=good", (200, "[\"ann\"] 1048576")),
        ] {
            let request = http::Request::builder().method("POST").uri("https://shop.example/a/../b?c");
            let request = request.header("cookie", cookie).header("remote-user", "root").body(()).unwrap();
            let (mut sending, mut receiving) = client.requests.send_request(request).await.unwrap().split();
            let content = Bytes::from(body.clone());
            let mut trailers = http::HeaderMap::new();
            for (name, value) in [("remote-user", "root"), ("x-checksum", "1")] {
                trailers.insert(name, value.parse().unwrap());
            }
            // Whoever is refused may be told so before all was sent.
            let sent = tokio::spawn(async move {
                sending.send_data(content).await.is_ok() && sending.send_trailers(trailers).await.is_ok()
            });
            let answer = receiving.recv_response().await.unwrap();
            let mut got = Vec::new();
            while let Some(mut data) = receiving.recv_data().await.unwrap() {
                got.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            let got = String::from_utf8(got).unwrap();
            assert_eq!((answer.status().as_u16(), got.as_str()), expected);
            assert_eq!(answer.headers().contains_key("x-why"), expected.0 == 403);
            drop(sent.await);
        }
    });
    let question = &service.requests()[0];
    let of = |name| question.fields.one(name).unwrap_or("none");
    assert_eq!((of("x-forwarded-method"), of("x-forwarded-uri")), ("POST", "/b?c"));
    assert_eq!((of("x-forwarded-host"), of("x-forwarded-proto")), ("shop.example", "https"));
    assert_eq!(app.served(), 2);
    for request in app.requests() {
        let trailers = &request.trailers;
        assert_eq!((trailers.one("remote-user"), trailers.one("x-checksum")), (None, Some("1")));
    }
}
