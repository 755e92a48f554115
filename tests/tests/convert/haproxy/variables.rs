//! What rules set and use later: variables, captures, the client's address, sizes.

use super::Pair;

#[test]
fn variables_and_captures_have_the_values_of_their_requests() {
    let text = "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                frontend web\n bind 127.0.0.1:18000\n capture request header X-Cap len 20\n\
                http-request capture req.hdr(X-Own) len 20\n\
                http-request set-var(txn.path) path\n http-request set-var(txn.a) req.hdr(x-a)\n\
                http-request set-header X-B %[var(txn.a)]\n\
                http-request deny if { var(txn.path) -m end .php } !{ capture.req.hdr(1) -m found }\n\
                http-after-response set-header X-Shop %[var(txn.a)]\n http-after-response set-header X-After %[capture.req.hdr(0)]\n\
                use_backend two if { var(txn.path) -m beg /two }\n default_backend one\n\
                backend one\n server a 10.0.0.1:80\nbackend two\n server b 10.0.0.2:80\n";
    let pair = Pair::start(text, 2, &[]);
    let mut requests = Vec::new();
    for path in ["/", "/two/x", "/x.php", "/two.php"] {
        for fields in ["host: a|x-a: some|x-cap: seen", "host: a|x-a: 1|x-cap: x|x-own: 2"] {
            requests.push((format!("GET {path}"), fields));
        }
    }
    let requests: Vec<(&str, &str)> =
        requests.iter().map(|(line, fields)| (line.as_str(), *fields)).collect();
    pair.all_alike(&requests);
}

#[test]
fn the_client_is_who_a_trusted_peer_says() {
    let text = "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                frontend web\n bind 127.0.0.1:18000\n acl near src 127.0.0.0/8 10.9.0.0/16\n\
                http-request set-src hdr(x-client) if near\n\
                http-request deny if { src 10.0.0.0/8 }\n http-request set-header X-Seen %[src]\n default_backend one\n\
                backend one\n server a 10.0.0.1:80\n";
    let pair = Pair::start(text, 1, &[]);
    for client in ["10.1.2.3", "192.0.2.1", "2001:db8::1"] {
        pair.all_alike(&[("GET /x", &format!("host: a|x-client: {client}"))]);
    }
}

#[test]
fn bodies_are_refused_by_their_size() {
    let text = "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                frontend web\n bind 127.0.0.1:18000\n\
                http-request deny deny_status 413 if { path_beg /small } { req.hdr_val(content-length) gt 10 }\n\
                http-request deny deny_status 413 if METH_GET HTTP_CONTENT\n default_backend one\n\
                backend one\n server a 10.0.0.1:80\n";
    let pair = Pair::start(text, 1, &[]);
    for (method, path) in [("POST", "/small/x"), ("POST", "/x"), ("GET", "/x"), ("GET", "/small")] {
        for body in ["", "1234567890", "12345678901"] {
            let length = body.len();
            pair.alike(&format!(
                "{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
            ));
        }
    }
}

#[test]
fn a_frontend_of_tcp_speaks_http_where_its_backends_do() {
    let text = "defaults\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                frontend web\n bind 127.0.0.1:18000\n default_backend one\n\
                backend one\n mode http\n http-request set-header X-Own 1\n server a 10.0.0.1:80\n";
    let pair = Pair::start(text, 1, &[]);
    pair.all_alike(&[("GET /x", "host: a"), ("POST /y", "host: b|x-c: d")]);
}
