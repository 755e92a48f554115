//! Tunnels on streams of HTTP/3 (RFC 9220).

use weir_tests::dialogue::http3::{Http3, Outcome, headers, request};

use super::*;

/// As `http2::tunnels::a_route_that_answers_itself_opens_no_tunnel` has it for HTTP/2.
#[test]
fn a_route_that_answers_itself_opens_no_tunnel_in_http_3() {
    let (authority, backend) = (authority(), site());
    let route =
        "[[listener.web.route]]\npath = \"/own\"\nrespond = { status = 200, body = \"own\" }\n[pool.app]";
    let config = CONFIG.replace("[pool.app]", route);
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let mut client = Http3::connect(weir.address("web"), "shop.example", &tls(&authority));
    let mut fields = request("CONNECT", "/own").to_vec();
    fields.push((":protocol", "websocket"));
    client.begins(0, 0, &headers(&fields), false);
    let told = b"501 Not Implemented no_tunnel\n".to_vec();
    assert_eq!(client.outcome_of(0), Outcome::Answered(501, told));
    assert_eq!(client.asks(4, "/own"), Outcome::Answered(200, b"own".to_vec()));
}
