//! Many requests on one connection: kept alive, pipelined, in order (threat A19).

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup};

use super::{PLAIN, plain};

fn echoing_target() -> Backend {
    Backend::serving(|request, wire| {
        wire.answers(200, &[], &request.target);
        After::Keep
    })
}

#[test]
fn a_thousand_pipelined_requests_are_answered_in_order() {
    let backend = echoing_target();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    let mut all = String::new();
    for number in 0..1000 {
        all += &format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    client.sends(&all);
    for number in 0..1000 {
        assert_eq!(client.receives_status(200).text(), format!("/{number}"));
    }
    assert_eq!(backend.served(), 1000);
}

#[test]
fn pipelined_requests_with_bodies_keep_their_own_bodies() {
    let backend = Backend::serving(|request, wire| {
        wire.answers(200, &[], [request.target.as_bytes(), b" ", &request.body].concat());
        After::Keep
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    let mut all = String::new();
    for number in 0..100 {
        let body = "b".repeat(number);
        all += &match number % 3 {
            0 => format!("POST /{number} HTTP/1.1\r\nhost: a\r\ncontent-length: {number}\r\n\r\n{body}"),
            1 => format!(
                "POST /{number} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{number:x}\r\n{body}\r\n0\r\n\r\n"
            ),
            _ => format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n"),
        };
    }
    client.sends(&all);
    for number in 0..100 {
        let body = if number % 3 == 2 { String::new() } else { "b".repeat(number) };
        assert_eq!(client.receives_status(200).text(), format!("/{number} {body}"));
    }
}

#[test]
fn behind_a_request_that_breaks_the_rules_nothing_is_served() {
    let backend = echoing_target();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "GET /good HTTP/1.1\r\nhost: a\r\n\r\n\
         GET /bad HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n\
         GET /behind HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    assert_eq!(client.receives_status(200).text(), "/good");
    client.receives_status(400);
    client.receives_close();
    let mut fence = weir.client("web");
    fence.sends("GET /fence HTTP/1.1\r\nhost: a\r\n\r\n");
    fence.receives_status(200);
    let targets: Vec<String> = backend.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(targets, ["/good", "/fence"]);
}

#[test]
fn behind_connection_close_nothing_is_served() {
    let backend = echoing_target();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends(
        "GET /last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\nGET /behind HTTP/1.1\r\nhost: a\r\n\r\n",
    );
    let response = client.receives_status(200);
    assert!(response.closes());
    client.receives_close();
    assert_eq!(backend.served(), 1);
}

#[test]
fn client_and_backend_connections_are_kept_for_further_requests() {
    let backend = echoing_target();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for number in 0..50 {
        client.sends(format!("GET /{number} HTTP/1.1\r\nhost: a\r\n\r\n"));
        assert_eq!(client.receives_status(200).text(), format!("/{number}"));
    }
    assert_eq!(backend.connections(), 1);
    assert_eq!(weir.metric("weir_connections_total", &[("listener", "web")]), 1.0);
}

#[test]
fn a_client_of_http_1_0_is_kept_only_when_it_asks() {
    let backend = echoing_target();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("GET /a HTTP/1.0\r\nhost: a\r\n\r\n");
    client.receives_status(200);
    client.receives_end();
    let mut client = weir.client("web");
    client.sends("GET /b HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n");
    let response = client.receives_status(200);
    if response.fields.lists("connection", "keep-alive") {
        client.sends("GET /c HTTP/1.0\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), "/c");
    }
    client.receives_end();
}

#[test]
fn an_empty_line_before_a_request_is_ignored() {
    // RFC 9112 §2.2
    let backend = echoing_target();
    let weir = plain(&backend);
    let mut client = weir.client("web");
    client.sends("\r\nGET /a HTTP/1.1\r\nhost: a\r\n\r\n\r\nGET /b HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "/a");
    assert_eq!(client.receives_status(200).text(), "/b");
}

#[test]
fn a_kept_backend_connection_that_was_closed_in_between_costs_no_request() {
    // The backend's idle timeout races with our next request; a GET is simply sent again.
    let backend = ScriptedBackend::start();
    let weir = Setup::of(PLAIN).with("app", backend.address()).start();
    let mut client = weir.client("web");
    for round in 0..20 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        let mut wire = backend.accepts();
        wire.receives_request();
        wire.answers(200, &[], format!("{round}"));
        // Half of the time closed before the client has its answer, so that FIN and the next request cross.
        if round % 2 == 0 {
            drop(wire);
            assert_eq!(client.receives_status(200).text(), format!("{round}"));
        } else {
            assert_eq!(client.receives_status(200).text(), format!("{round}"));
            wire.resets();
        }
    }
}

#[test]
fn a_backend_that_announces_close_is_not_used_again() {
    let backend = Backend::serving(|request, wire| {
        wire.answers(200, &[("connection", "close")], &request.target);
        After::Close
    });
    let weir = plain(&backend);
    let mut client = weir.client("web");
    for number in 0..10 {
        client.sends(format!("POST /{number} HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab"));
        let response = client.receives_status(200);
        assert_eq!(response.text(), format!("/{number}"));
        assert!(!response.closes(), "the backend's close is not the client's");
    }
    assert_eq!((backend.connections(), backend.served()), (10, 10));
}
