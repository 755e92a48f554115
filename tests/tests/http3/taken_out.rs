//! Reloads after which connections of HTTP/3 have no place any more.

use weir_tests::dialogue::PATIENCE;

use super::{CONFIG, Client, authority, run, site, start};

/// Waits for Weir to end the connection in order.
async fn ends(client: &Client) {
    let closed = tokio::time::timeout(PATIENCE, client.connection.closed()).await.expect("it goes on");
    let quinn::ConnectionError::ApplicationClosed(closed) = closed else { panic!("{closed}") };
    assert_eq!(closed.error_code.into_inner(), 0x100, "H3_NO_ERROR");
}

/// See `tls::kept` for the other versions.
#[test]
fn d6_a_client_without_a_certificate_is_let_go_once_one_is_required_and_not_for_a_new_certificate() {
    let (authority, backend) = (authority().signs("next", &["shop.example"]), site());
    let mut weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        assert_eq!(client.asks(b"").await.0, 200);
        weir.reloads(&CONFIG.replace("@dir/shop.", "@dir/next."));
        assert_eq!(client.asks(b"").await.0, 200);
        let required = ", client_ca = \"@dir/ca.pem\", client_auth = \"required\" }\n[pool.app]";
        weir.reloads(&CONFIG.replace(" }\n[pool.app]", required));
        ends(&client).await;
        let strange = Client::try_connect_as(&authority, weir.address("web"), Default::default()).await;
        if let Ok(strange) = strange {
            // In TLS 1.3 the client is done before the server has looked at its certificate.
            let closed = strange.connection.closed().await;
            assert!(matches!(closed, quinn::ConnectionError::ConnectionClosed(_)), "{closed}");
        }
    });
}
