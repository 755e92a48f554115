//! Fields that wait for insertions into a table (RFC 9204 §2.1.2) which will never come, for the stream or
//! the connection is over.

use weir_tests::dialogue::http3::{Http3, code, frame, headers, kind, request};
use weir_tests::dialogue::quic::{self, frame as quic_frame};
use weir_tests::dialogue::{Authority, ScriptedBackend, Setup, until};

use super::origin::{After, Origin};
use super::{CONFIG, authority};

/// Fields of which four entries that nobody has inserted are part: required insert count 5, base 5.
const WAITING: &[u8] = b"\x06\x00\x80\x81\x82\x83";
/// The same as `HEADERS`.
const WAITING_HEADERS: &[u8] = b"\x01\x06\x06\x00\x80\x81\x82\x83";

/// It held the backend's place until `timeout.client_body`.
#[test]
fn a_client_that_leaves_while_its_trailers_wait_for_insertions_gives_its_place_back() {
    // `CONNECTION_CLOSE` with H3_NO_ERROR; or the stream alone, whose end may have been said, or not.
    let closes = b"\x1d\x41\x00\x00".to_vec();
    for (is_whole, leaves) in
        [(true, Some(closes.clone())), (false, Some(closes)), (true, None), (false, None)]
    {
        let authority = authority();
        let backend = ScriptedBackend::start();
        let config = CONFIG.replace("[pool.app]", "timeout = { client_body = \"1h\" }\n[pool.app]");
        let weir = authority.setup(&config).with("app", backend.address()).start();
        let trust = quic::trusting(authority.path("ca.pem").as_ref());
        let mut client = Http3::connect(weir.address("web"), "shop.example", &trust);
        let content = frame(kind::DATA, b"hello");
        let sent = [headers(&request("POST", "/")), content, frame(kind::HEADERS, WAITING)].concat();
        client.begins(0, 0, &sent, is_whole);
        let mut wire = backend.accepts();
        wire.receives_until("hello");
        let in_flight = || weir.metric("weir_backend_in_flight", &[("pool", "app")]);
        assert_eq!(in_flight(), 1.0);
        let leaves = leaves.unwrap_or_else(|| match is_whole {
            // All that is left to say.
            true => quic_frame::stop_sending(0, code::REQUEST_CANCELLED),
            false => quic_frame::reset_stream(0, code::REQUEST_CANCELLED, sent.len() as u64),
        });
        client.quic.sends(leaves);
        until("the place to be given back", || (in_flight() == 0.0).then_some(()));
    }
}

/// Its head waited until `timeout.backend`, and the client got 504.
#[test]
fn a_backend_that_leaves_while_its_head_waits_for_insertions_has_failed_at_once() {
    for after in [After::Closes, After::Resets] {
        let authority = Authority::new().signs("inner", &["app.internal"]);
        let origin = Origin::raw_and_then(&authority, WAITING_HEADERS, after);
        let config = r#"
            [listener.web]
            bind = "@web"
            pool = "origin"
            timeout = { backend = "15s" }
            [pool.origin]
            backends = ["@origin"]
            protocol = "h3"
            fall_back_after = "off"
            tls = { ca = "@ca", server_name = "app.internal" }
            health = { check = "off", passive = "off" }
        "#;
        let setup = Setup::of(config).with("ca", authority.path("ca.pem"));
        let weir = setup.with("origin", origin.address).start();
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        assert_eq!(client.receives_response().status, 502, "{after:?}");
    }
}
