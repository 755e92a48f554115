//! What is fetched for all is asked for by nothing that one client chose (threat E1).

use weir_tests::dialogue::{Setup, Weir};

use super::talkative;

const CONFIG: &str = r#"
[listener.web]
bind = "@web"
set_response_header = { x-for = "$header.x-me", x-asked = "$host" }
[[listener.web.route]]
pool = "app"
set_request_header = { x-site = "$scheme://$host$path$query", x-lang = "$header.accept-language" }
cache = { ttl = "60s", key_headers = ["accept-language"], set_cookie = "strip" }
[pool.app]
backends = ["@app"]
backend_host = "$host.internal"
health = { check = "off", passive = "off" }
"#;

fn get(weir: &Weir, host: &str, lines: &str) -> [String; 3] {
    let mut client = weir.client("web");
    client.sends(format!("GET /a%41?x HTTP/1.1\r\nhost: {host}\r\n{lines}\r\n"));
    let fields = client.receives_status(200).fields;
    ["x-for", "x-asked", "cache-status"].map(|name| fields.all(name).join("|"))
}

#[test]
fn e1_another_spelling_of_the_key_chooses_no_value_for_all() {
    let backend = talkative();
    let weir = Setup::of(CONFIG).with("app", backend.address()).start();
    let first = get(&weir, "SHOP.Example", "x-me: one\r\naccept-language: de\r\n");
    assert!(first[2].contains("fwd=uri-miss"), "{first:?}");
    let fields = backend.requests().pop().expect("a request").fields;
    assert_eq!(fields.all("x-site"), ["http://shop.example/aA?x"]);
    assert_eq!(fields.all("host"), ["shop.example.internal"]);
    assert_eq!(fields.all("x-lang"), ["de"]);
    // What is said to a client is of its own request, also from memory.
    let second = get(&weir, "shop.example", "x-me: two\r\naccept-language: de\r\n");
    assert_eq!(second[..2], ["two", "shop.example"]);
    assert!(second[2].contains("hit"), "{second:?}");
    assert_eq!(backend.served(), 1);
    get(&weir, "shop.example", "accept-language: en\r\n");
    assert_eq!(backend.served(), 2, "another value of what the key names is another answer");
}
