//! What is counted by route.

use weir_tests::dialogue::{Backend, Setup, Weir};

fn config(more: &str) -> String {
    format!(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        {more}
        [[listener.web.route]]
        name = "api"
        path = "/api/*"
        pool = "app"
        [[listener.web.route]]
        path = "/gone"
        respond = {{ status = 410 }}
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#
    )
}

fn ask(weir: &Weir, path: &str, status: u16) {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
    client.receives_status(status);
}

#[test]
fn requests_and_their_time_are_counted_by_route_where_it_is_asked_for_and_over_reloads() {
    let backend = Backend::saying("ok");
    let mut weir = Setup::of(&config("route_metrics = true")).with("app", backend.address()).start();
    for (path, status) in [("/api/1", 200), ("/api/2", 200), ("/gone", 410), ("/elsewhere", 200)] {
        ask(&weir, path, status);
    }
    let count = |weir: &Weir, route: &str, code: &str, least: f64| {
        weir.reaches(
            "weir_route_requests_total",
            &[("listener", "web"), ("route", route), ("code", code)],
            least,
        );
        weir.metric("weir_route_requests_total", &[("listener", "web"), ("route", route)])
    };
    assert_eq!(count(&weir, "api", "2xx", 2.0), 2.0);
    assert_eq!(count(&weir, "web/1", "4xx", 1.0), 1.0);
    assert_eq!(count(&weir, "(default)", "2xx", 1.0), 1.0);
    let timed = weir.metric("weir_route_request_duration_seconds_count", &[("route", "api")]);
    assert_eq!(timed, 2.0);
    weir.reloads(&config("route_metrics = true\nmax_connections = 9"));
    ask(&weir, "/api/3", 200);
    assert_eq!(count(&weir, "api", "2xx", 3.0), 3.0);
    weir.reloads(&config(""));
    ask(&weir, "/api/4", 200);
    assert!(!weir.admin().reads("/metrics").response.text().contains("weir_route_requests_total{"));
}
