//! Sessions that are resumed, by whichever worker or process the client comes to.

use weir_tests::dialogue::{Signal, Weir, until};

use super::{Authority, LAST, mirror, s_client, shop};

fn begins(weir: &Weir, session: &str, version: &str) {
    let words = format!("-servername shop.example {version} -sess_out {session}");
    assert!(s_client(weir.address("web"), &words, LAST).stdout.contains("New, TLSv1"));
}

fn is_resumed(weir: &Weir, session: &str, version: &str) {
    // Twelve connections come to every one of three workers, but for one run in a hundred.
    for _ in 0..12 {
        let shown = s_client(
            weir.address("web"),
            &format!("-servername shop.example {version} -sess_in {session}"),
            LAST,
        );
        assert!(shown.stdout.contains("Reused, TLSv1") && shown.stdout.contains("HTTP/1.1 200"), "{shown:?}");
    }
}

#[test]
fn every_worker_takes_the_tickets_of_the_others_and_so_does_who_comes_after_a_reload_or_an_upgrade() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), mirror());
    let mut weir = authority.setup(&shop(3)).with("app", backend.address()).start();
    for version in ["-tls1_3", "-tls1_2"] {
        let session = weir.dir().join(format!("session{version}")).display().to_string();
        begins(&weir, &session, version);
        is_resumed(&weir, &session, version);
        weir.reloads(&shop(3).replace("http = [\"h1\"]", "http = [\"h1\"]\nmax_connections = 5000"));
        is_resumed(&weir, &session, version);
        weir.reloads(&shop(3));
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until("the new process", || {
            let answer = weir.admin().tries_to_read("/v1/status")?;
            (answer.json()["pid"].as_u64()? != u64::from(old)).then_some(())
        });
        until("the old process to end", || (!weir.is_running(old)).then_some(()));
        is_resumed(&weir, &session, version);
    }
}

#[test]
fn without_tickets_no_session_is_resumed() {
    let (authority, backend) = (Authority::new().signs("shop", &["shop.example"]), mirror());
    let config = shop(3).replace("shop.key\" }]", "shop.key\" }], tickets = false");
    let weir = authority.setup(&config).with("app", backend.address()).start();
    let words =
        format!("-servername shop.example -tls1_2 -reconnect -sess_out {}", weir.dir().join("s").display());
    assert!(!s_client(weir.address("web"), &words, LAST).stdout.contains("Reused, TLSv1"));
}
