//! Limits that count answers, over HTTP/3 and the others together.

use super::*;

#[test]
fn who_fails_too_often_over_http_3_is_kept_out_of_all_versions() {
    let authority = authority();
    let backend = Backend::serving(|request, wire| {
        let status = if request.fields.all("x-password").contains(&"right") { 200 } else { 401 };
        wire.answers(status, &[], "said");
        After::Keep
    });
    let limited = "pool = \"app\"\nrate_limit = { rate = \"2/1h\", statuses = [401] }\ntls";
    let config = CONFIG.replace("pool = \"app\"\ntls", limited);
    let weir = authority.setup(&config).with("app", backend.address()).start();
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        let right: &[_] = &[("x-password", "right")];
        for (fields, status) in [(right, 200), (&[], 401), (right, 200), (&[], 401), (right, 429), (&[], 429)]
        {
            let (answer, _) = client.gets("GET", "/login", fields).await;
            assert_eq!(answer.status(), status);
            assert_eq!(answer.headers().contains_key("retry-after"), status == 429);
        }
    });
    assert_eq!(weir.metric("weir_rejected_total", &[("listener", "web"), ("reason", "rate_limited")]), 2.0);
    for version in ["--http1.1", "--http2"] {
        let said = curl(&authority, &weir, &[version, "-H", "x-password: right"], "/");
        assert!(said.contains("rate_limited"), "{version}");
    }
}
