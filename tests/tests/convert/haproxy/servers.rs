//! Rules that choose a server, hold responses back, or ask for what only a map can say.

use std::fs;

use weir_tests::dialogue::until;

use super::{Pair, converted, sends, writes_made_files};

const FRAME: &str = "defaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n\
                     frontend web\n bind 127.0.0.1:18000\n";

#[test]
fn a_rule_leads_to_the_server_that_it_names_and_to_others_while_that_is_down() {
    let text = format!(
        "{FRAME} default_backend one\nbackend one\n http-request set-header X-All 1\n\
         use-server two if {{ path_beg /two }}\n use-server three unless {{ hdr(x-rest) -m found }}\n\
         use-server gone if {{ path_beg /gone }}\n\
         server a 10.0.0.1:80\n server two 10.0.0.2:80 weight 0\n server three 10.0.0.3:80 weight 0\n\
         server gone 127.0.4.9:9 check inter 1s fall 1 weight 0\n"
    );
    let pair = Pair::start(&text, 3, &[]);
    let gone = "GET /gone HTTP/1.1\r\nhost: a\r\nx-rest: 1\r\n\r\n";
    for address in pair.addresses {
        until("the server that is not there to be down", || {
            (sends(address, gone).status == 200).then_some(())
        });
    }
    pair.all_alike(&[
        ("GET /two/x", "host: a"),
        ("GET /two/x", "host: a|x-rest: 1"),
        ("GET /", "host: a"),
        ("GET /", "host: a|x-rest: 1"),
        ("POST /x", "host: a|x-rest: 1"),
        ("GET /gone", "host: a|x-rest: 1"),
    ]);
}

#[test]
fn responses_that_are_held_back_reach_nobody() {
    let text = format!(
        "{FRAME} http-request set-var(txn.path) path\n http-request set-var(txn.held) req.hdr(x-held)\n\
         http-response deny if {{ var(txn.path) -m beg /held }}\n\
         http-response deny deny_status 404 if {{ var(txn.held) -m str 1 }}\n\
         http-response deny if {{ path_beg /never }}\n\
         http-request redirect location /held/x if {{ path /to }}\n http-request deny if {{ path /held/not }}\n\
         use_backend two if {{ path_beg /two }}\n default_backend one\n\
         backend one\n server a 10.0.0.1:80\n\
         backend two\n http-response deny if {{ var(txn.path) -m end .bak }}\n server b 10.0.0.2:80\n"
    );
    let pair = Pair::start(&text, 2, &[]);
    let mut requests = Vec::new();
    for path in ["/", "/held", "/held/x", "/held/not", "/never", "/to", "/two", "/two/x.bak", "/x.bak"] {
        for fields in ["host: a", "host: a|x-held: 1"] {
            requests.push((format!("GET {path}"), fields));
        }
    }
    let requests: Vec<(&str, &str)> =
        requests.iter().map(|(line, fields)| (line.as_str(), *fields)).collect();
    pair.all_alike(&requests);
}

#[test]
fn what_only_a_map_can_say_is_asked_of_one() {
    let text = format!(
        "{FRAME} http-request deny deny_status 401 if {{ query -m sub evil }}\n http-request deny deny_status 404 if {{ query -m beg -i q= }}\n\
         http-request deny deny_status 410 if {{ base -m beg -i a.example/base }}\n\
         http-request deny deny_status 400 if {{ req.fhdr(x-long) -m len gt 8 }}\n\
         http-request deny deny_status 403 if {{ path_len gt 20 }}\n\
         http-request deny deny_status 405 if {{ req.fhdr(x-other),length ge 3 }}\n\
         http-request deny if {{ nbsrv(one) eq 0 }}\n\
         http-request set-query %[query]&more=1 if {{ path_beg /more }}\n\
         default_backend one\n\
         backend one\n http-request set-timeout server 8s if {{ path_beg /slow }}\n server a 10.0.0.1:80\n"
    );
    let folder = std::env::temp_dir().join(format!("weir-made-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let told = converted(&text, &[]);
    assert!(told.contains("timeout = { backend = \"8s\", stream = \"8s\" }"), "{told}");
    writes_made_files(&told, &folder);
    let pair = Pair::with(&text, 1, &[], &[("/etc/weir/", &format!("{}/", folder.display()))]);
    let mut requests = Vec::new();
    for path in [
        "/",
        "/x?a=evil&b",
        "/x?Evil",
        "/x?Q=1",
        "/x?aq=1",
        "/base/x",
        "/no/base",
        "/12345678901234567890",
        "/1234567890123456789",
        "/more?x=1",
        "/slow/x",
    ] {
        for fields in [
            "host: a.example",
            "host: b.example|x-long: 123456789",
            "host: b.example|x-long: 12345678",
            "host: a|x-other: abc",
        ] {
            requests.push((format!("GET {path}"), fields));
        }
    }
    let requests: Vec<(&str, &str)> =
        requests.iter().map(|(line, fields)| (line.as_str(), *fields)).collect();
    pair.all_alike(&requests);
    drop(pair);
    let _ = fs::remove_dir_all(&folder);
}
