//! Error pages: what clients get where HAProxy answers itself.

use std::fs;

use weir_tests::dialogue::until;

use super::{Pair, converted, sends, writes_made_files};

#[test]
fn pages_are_what_clients_get_of_errors_and_of_rules_that_refuse() {
    let folder = std::env::temp_dir().join(format!("weir-pages-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let own = folder.join("404.http");
    fs::write(&own, "HTTP/1.0 404 Nope\r\nContent-Type: text/html\r\n\r\n<p>not here</p>").expect("written");
    let many = folder.join("429.txt");
    fs::write(&many, "too many").expect("written");
    let text = format!(
        "http-errors own\n errorfile 404 {}\ndefaults\n mode http\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n \
         http-error status 403 content-type text/plain string \"of defaults\"\n http-error status 410\n\
         frontend web\n bind 127.0.0.1:18000\n http-error status 403 content-type text/plain string \"no entry\"\n \
         http-error status 404 errorfiles own\n http-error status 429 content-type text/plain file {}\n \
         http-error status 503 content-type text/plain lf-string \"100%% gone\"\n \
         http-request deny if {{ path /deny }}\n http-request deny deny_status 404 if {{ path /not }}\n \
         http-request deny deny_status 410 if {{ path /gone }}\n http-request deny deny_status 429 if {{ path /many }}\n \
         http-request deny deny_status 404 content-type text/plain string own if {{ path /own }}\n \
         http-request return status 404 default-errorfiles if {{ path /default }}\n \
         use_backend none if {{ path /none }}\n use_backend two if {{ path_beg /two }}\n \
         use_backend three if {{ path /three }}\n default_backend one\n\
         backend none\nbackend one\n server a 10.0.0.1:80\n\
         backend two\n http-error status 403 content-type text/html string \"<p>two</p>\"\n \
         http-request deny if {{ path /two/x }}\n http-request deny deny_status 404 if {{ path /two/not }}\n \
         server b 127.0.4.9:9 check inter 100ms fall 1\n http-error status 503 content-type text/plain string \"two is gone\"\n\
         backend three\n retries 0\n server c 127.0.4.9:9\n",
        own.display(),
        many.display()
    );
    let made = folder.join("made");
    fs::create_dir_all(&made).expect("a folder");
    writes_made_files(&converted(&text, &[]), &made);
    let pair = Pair::with(&text, 1, &[], &[("/etc/weir/", &format!("{}/", made.display()))]);
    for address in pair.addresses {
        until(&format!("the server behind {address} to be down"), || {
            (sends(address, "GET /two HTTP/1.1\r\nhost: a\r\n\r\n").status == 503).then_some(())
        });
    }
    for path in
        ["/", "/deny", "/not", "/gone", "/many", "/own", "/default", "/none", "/two", "/two/x", "/two/not"]
    {
        let [there, here] = pair.addresses.map(|address| {
            let answer = sends(address, &format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n"));
            let text = if answer.status == 200 { String::new() } else { answer.text() };
            let kind = answer.fields.one("content-type").filter(|_| !text.is_empty()).map(str::to_owned);
            (answer.status, text, kind)
        });
        assert_eq!(there, here, "by HAProxy, and by Weir, of {path}\n{}", pair.weir.story());
    }
    // HAProxy answers 503 where no connection comes about, and Weir 502 with the same page.
    let refused = pair.addresses.map(|address| {
        let answer = sends(address, "GET /three HTTP/1.1\r\nhost: a\r\n\r\n");
        (answer.status, answer.text())
    });
    assert_eq!(refused, [503, 502].map(|status| (status, "100% gone".to_owned())));
    drop(pair);
    let _ = fs::remove_dir_all(&folder);
}
