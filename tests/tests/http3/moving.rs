//! Clients that move to another address while bodies are under way, in both directions.

use weir_tests::dialogue::fingerprint;

use super::*;

#[test]
fn bodies_pass_whole_while_their_client_moves() {
    const MOVES: usize = 8;
    let (authority, backend) = (authority(), site());
    let weir = start(&authority, &backend);
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        let content = pattern(5, 16 << 20);
        let request = http::Request::post("https://shop.example/").body(()).unwrap();
        let mut stream = client.requests.send_request(request).await.unwrap();
        let mut moves = 0;
        let mut moving = |client: &Client| {
            moves += 1;
            client.endpoint.rebind(std::net::UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        };
        for piece in content.chunks(content.len() / MOVES) {
            stream.send_data(Bytes::copy_from_slice(piece)).await.unwrap();
            moving(&client);
        }
        stream.finish().await.unwrap();
        assert_eq!(stream.recv_response().await.unwrap().status(), 200);
        let mut received = Vec::new();
        while let Some(mut data) = stream.recv_data().await.unwrap() {
            let before = received.len() * MOVES / content.len();
            received.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            if received.len() * MOVES / content.len() > before {
                moving(&client);
            }
        }
        assert_eq!((received.len(), fingerprint(&received)), (content.len(), fingerprint(&content)));
        assert!(client.connection.close_reason().is_none());
        assert!(moves > MOVES);
    });
}
