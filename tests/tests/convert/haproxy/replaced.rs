//! `replace-header` and `replace-value`, of requests and responses.

use weir_tests::dialogue::{After, Backend, Setup, Wire, free_address};

use super::{converted, haproxy};

/// A backend that repeats in its answer the fields of a request that begin with `x-say-`, and tells what it
/// was told in `x-tell-…`.
fn repeating() -> Backend {
    Backend::serving(|request, wire| {
        let fields = request.fields.0.iter().filter_map(|(name, value)| {
            let name = name.to_ascii_lowercase();
            match name.strip_prefix("x-say-") {
                Some(said) => Some((said.to_owned(), value.clone())),
                None if name.starts_with("x-tell") || name == "cookie" => {
                    Some((format!("told-{name}"), value.clone()))
                }
                None => None,
            }
        });
        let fields: Vec<(String, String)> = fields.collect();
        let fields: Vec<(&str, &str)> =
            fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        wire.answers(200, &fields, "ok");
        After::Keep
    })
}

const RULES: &str = r"
defaults
    mode http
    timeout connect 5s
    timeout client 5s
    timeout server 5s
frontend web
    bind 127.0.0.1:18000
    http-request replace-header X-Tell ^(.*)@in\.example$ \1@%[req.hdr(host)]
    http-request replace-value X-Tell-List ^secret.* gone
    http-request replace-header Cookie ^(.*;\ )?token=[^;]*(.*)$ \1token=gone\2
    http-response replace-header Location ^http://app\.in(?::8080)?/(.*) https://out.example/\1
    http-response replace-header Set-Cookie ^(.*)$ \1;\ Secure
    http-response replace-header Set-Cookie ^(s.*)$ \1;\ HttpOnly
    http-response replace-value X-Policy no-(.*) \0+\1
    default_backend app
backend app
    http-response replace-header X-Chain a b
    http-response replace-header X-Chain b c
    server s1 @app
";

#[test]
fn values_are_replaced_as_by_haproxy() {
    let backend = repeating();
    let addresses = [free_address(), free_address()];
    let [of_haproxy, of_weir] = addresses.map(|address| {
        RULES.replace("127.0.0.1:18000", &address.to_string()).replace("@app", &backend.address().to_string())
    });
    let config = converted(&of_weir, &[]);
    let weir = Setup::of(&config).start();
    let (_program, dir) = haproxy(&of_haproxy, addresses[0]);
    for (path, name, value, expected) in [
        ("/", "x-tell", "me@in.example", "me@a.example"),
        ("/", "x-tell", "me@out.example", "me@out.example"),
        ("/", "x-tell-list", "a, secret-1,b", "a, gone, b"),
        ("/", "cookie", "a=1; token=x; b=2", "a=1; token=gone; b=2"),
        ("/loc/a", "location", "http://app.in:8080/x?y", "https://out.example/x?y"),
        ("/loc/a", "location", "http://app.in/x?y", "https://out.example/x?y"),
        ("/other", "location", "http://appxin/x?y", "http://appxin/x?y"),
        ("/", "set-cookie", "sid=1", "sid=1; Secure; HttpOnly"),
        ("/", "set-cookie", "a=1; Path=/", "a=1; Path=/; Secure"),
        ("/", "x-policy", "no-store, max-age=1, no-cache", "no-store+store, max-age=1, no-cache+cache"),
        ("/", "x-policy", "\"a, no-store\", b", "no-store\"+store\", b"),
        ("/", "x-chain", "xax", "c"),
        ("/", "x-chain", "other", "other"),
    ] {
        let told = addresses.map(|address| {
            let mut client = Wire::connect(address);
            let (said, asked) = match name {
                "x-tell" | "x-tell-list" | "cookie" => (name.to_owned(), format!("told-{name}")),
                _ => (format!("x-say-{name}"), name.to_owned()),
            };
            client.sends(format!("GET {path} HTTP/1.1\r\nhost: a.example\r\n{said}: {value}\r\n\r\n"));
            let told = client.receives_response().fields.all(&asked).join(" | ");
            // How many spaces stand behind a comma means nothing (RFC 9110 section 5.6.1).
            if name == "x-policy" || name == "x-tell-list" { told.replace(", ", ",") } else { told }
        });
        let expected = if name == "x-policy" || name == "x-tell-list" {
            expected.replace(", ", ",")
        } else {
            expected.to_owned()
        };
        assert_eq!(
            told,
            [expected.clone(), expected],
            "by HAProxy, and by Weir, of {name}: {value}\n{config}"
        );
    }
    drop(weir);
    let _ = std::fs::remove_dir_all(dir);
}
