//! What Weir answers by itself.

use super::*;

#[test]
fn a_page_problem_details_and_the_status_of_a_call_come_in_http_3() {
    let (authority, backend) = (authority(), site());
    let page = "[[listener.web.error_page]]\nstatus = 404\nbody = \"lost\"\n[[listener.web.route]]\npath = \"/app\"\npool = \"app\"\n";
    let config =
        CONFIG.replace("pool = \"app\"\ntls", "tls").replace("[pool.app]", &format!("{page}[pool.app]"));
    let weir = authority.setup(&config).with("app", backend.address()).start();
    run(async {
        let mut client = Client::connect(&authority, weir.address("web")).await;
        for (field, value, status, grpc, content) in [
            ("accept", "*/*", 404, None, "lost"),
            ("accept", "application/json", 404, None, "\"reason\":\"no_route\""),
            ("content-type", "application/grpc", 200, Some("12"), ""),
        ] {
            let request = http::Request::builder().method("GET").uri("https://shop.example/nowhere");
            let request = request.header(field, value).body(()).unwrap();
            let mut stream = client.requests.send_request(request).await.unwrap();
            stream.finish().await.unwrap();
            let answer = stream.recv_response().await.unwrap();
            let mut got = Vec::new();
            while let Some(mut data) = stream.recv_data().await.unwrap() {
                got.extend_from_slice(&data.copy_to_bytes(data.remaining()));
            }
            assert_eq!(answer.status().as_u16(), status, "{value}");
            assert_eq!(
                answer.headers().get("grpc-status").map(|value| value.to_str().unwrap()),
                grpc,
                "{value}"
            );
            let got = String::from_utf8(got).unwrap();
            assert!(got.contains(content) && got.is_empty() == content.is_empty(), "{value}: {got}");
        }
    });
}
