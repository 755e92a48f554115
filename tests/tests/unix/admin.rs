//! The admin API at a Unix socket, and over TLS.

use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

use weir_tests::dialogue::{
    Authority, Door, Finished, PATIENCE, Setup, Signal, Weir, free_address, run_tool, tool, until,
    until_within, weir_binary,
};

use super::fresh;

const WEB: &str =
    "[listener.web]\nbind = \"@web\"\n[[listener.web.route]]\nrespond = { status = 200, body = \"here\" }\n";

/// Waits until the command line finds it.
fn started(setup: Setup) -> Weir {
    let weir = setup.launch();
    until("the command line to be answered", || (weir.command(&["status"]).code == 0).then_some(()));
    weir
}

fn curl(arguments: &[&str]) -> Finished {
    let all = [&["--silent", "--show-error", "--max-time", "20", "--noproxy", "*"], arguments].concat();
    run_tool(&tool("curl", "curl"), &all, b"", PATIENCE * 3)
}

#[test]
fn the_command_line_and_curl_are_served_at_a_unix_socket() {
    let path = fresh("/");
    let mut weir = started(Setup::of(&format!(
        "[admin]\nbind = \"unix:{path}\"\nunix_socket = {{ mode = \"0600\" }}\n{WEB}"
    )));
    let found = std::fs::symlink_metadata(&path).expect("a socket");
    assert!(found.file_type().is_socket() && found.permissions().mode() & 0o777 == 0o600, "{found:?}");
    assert!(weir.command(&["status"]).stdout.contains("web"));
    // Whatever the host says: no browser gets here.
    let answer = curl(&["--unix-socket", &path, "http://whatever.example/v1/status"]);
    assert!(answer.code == 0 && answer.stdout.contains("\"pid\""), "{answer:?}");
    // Without a config, by its name alone.
    let place = format!("unix:{path}");
    let asked = run_tool(&weir_binary(), &["status", "--admin", &place], b"", PATIENCE);
    assert!(asked.code == 0 && asked.stdout.contains("web"), "{asked:?}");
    weir.reloads(&format!("[admin]\nbind = \"unix:{path}\"\n{WEB}"));

    // An upgrade keeps it; the last process removes it.
    let door = Door::to_unix(&path);
    weir.knows("admin", door.address());
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(Duration::from_secs(20), "the old process to end", || (!weir.is_running(old)).then_some(()));
    let new = weir.admin().reads("/v1/status").json()["pid"].as_u64();
    assert_eq!(new, Some(u64::from(weir.pid())));
    assert_eq!(weir.command(&["status"]).code, 0);
    // To a place elsewhere: nobody needs the file any more.
    weir.rewrites(&format!("[admin]\nbind = \"unix:{path}.new\"\n{WEB}"));
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until_within(Duration::from_secs(20), "the old process to end", || (!weir.is_running(old)).then_some(()));
    assert_eq!(weir.command(&["status"]).code, 0);
    assert!(!Path::new(&path).exists() && Path::new(&format!("{path}.new")).exists());
    weir.signals_pid(weir.pid(), Signal::TERM);
    until_within(Duration::from_secs(20), "the process to end", || weir.pids().is_empty().then_some(()));
    assert!(!Path::new(&format!("{path}.new")).exists());
    assert_eq!(weir.command(&["status"]).code, 3);
}

#[test]
fn a_token_is_needed_for_changes_at_a_unix_socket_where_one_is_set() {
    let path = fresh("/");
    let weir = started(
        Setup::of(&format!("[admin]\nbind = \"unix:{path}\"\ntoken_file = \"@dir/token\"\n{WEB}"))
            .with_file("token", "0123456789abcdef0123\n"),
    );
    let call = |words: &[&str]| {
        let url = "http://localhost/v1/reload";
        let all =
            [&["--unix-socket", &path, "-o", "/dev/null", "-w", "%{http_code}"], words, &[url]].concat();
        curl(&all).stdout
    };
    assert_eq!(call(&["-X", "POST"]), "401");
    assert_eq!(call(&["-X", "POST", "-H", "authorization: Bearer 0123456789abcdef0123"]), "200");
    assert_eq!(curl(&["--fail", "--unix-socket", &path, "http://localhost/v1/status"]).code, 0);
    assert_eq!(weir.command(&["reload"]).code, 0, "the command line knows the file");
}

#[test]
fn over_tls_only_who_proves_to_hold_a_certificate_is_let_in() {
    let authority = Authority::new().signs("admin", &["admin.example"]).signs("operator", &["operator"]);
    let stranger = Authority::new().signs("operator", &["operator"]);
    let address = free_address();
    let port = address.port();
    // At an address that is not loopback: the certificate stands for the token.
    let config = format!(
        "[admin]\nbind = \"0.0.0.0:{port}\"\ntls = {{ cert = \"@dir/admin.pem\", key = \"@dir/admin.key\", client_ca = \"@dir/ca.pem\" }}\n{WEB}"
    );
    let weir = authority.setup(&config).launch();
    let dir = weir.dir().display().to_string();
    let operator = |dir: &str| {
        [
            "--admin-name",
            "admin.example",
            "--admin-ca",
            &format!("{dir}/ca.pem"),
            "--admin-cert",
            &format!("{dir}/operator.pem"),
            "--admin-key",
            &format!("{dir}/operator.key"),
        ]
        .map(str::to_owned)
    };
    let status = |words: &[String]| {
        let words: Vec<&str> = ["status"].into_iter().chain(words.iter().map(String::as_str)).collect();
        weir.command(&words)
    };
    until("the command line to be answered", || (status(&operator(&dir)).code == 0).then_some(()));
    // The config names the certificate that is shown, which is believed for itself where it can be.
    assert_ne!(status(&[]).code, 0, "without a client certificate");
    let url = format!("https://admin.example:{port}/v1/status");
    let resolve = format!("admin.example:{port}:127.0.0.1");
    let ca = format!("{dir}/ca.pem");
    let base = ["--resolve", &resolve, "--cacert", &ca];
    let shown = |dir: &str| [format!("{dir}/operator.pem"), format!("{dir}/operator.key")];
    let [cert, key] = shown(&dir);
    let good = curl(&[&base[..], &["--cert", &cert, "--key", &key, &url]].concat());
    assert!(good.code == 0 && good.stdout.contains("\"pid\""), "{good:?}");
    let [cert, key] = [stranger.path("operator.pem"), stranger.path("operator.key")];
    for words in [&[][..], &["--cert", &cert, "--key", &key]] {
        let refused = curl(&[&base[..], words, &[&url]].concat());
        assert!(refused.code != 0 && refused.stdout.is_empty(), "{words:?}: {refused:?}");
    }
    let plain = curl(&[&format!("http://127.0.0.1:{port}/v1/status")]);
    assert!(plain.code != 0 && plain.stdout.is_empty(), "{plain:?}");
    // Another authority's word is not believed by the command line.
    let mut words = operator(&dir);
    words[3] = stranger.path("ca.pem");
    assert_ne!(status(&words).code, 0);
}

#[test]
fn an_open_admin_api_is_refused() {
    for (bind, why) in [
        ("0.0.0.0:9", "would be open to everyone who can reach it"),
        ("unix:@weir-open", "every process of the network namespace"),
    ] {
        let mut weir = Setup::of(&format!("[admin]\nbind = \"{bind}\"\n{WEB}")).launch();
        assert_eq!(weir.exits().code(), Some(2));
        assert!(weir.stderr().contains(why), "{}", weir.stderr());
    }
}

/// Writes the files of one authority's server certificate into the folder of a Weir that runs.
fn serves_certificate_of(weir: &Weir, authority: &Authority) {
    for name in ["admin.pem", "admin.key"] {
        std::fs::copy(authority.path(name), weir.dir().join(name)).expect("copy a file of the test");
    }
}

#[test]
fn a_reload_takes_up_another_certificate_and_token_or_is_refused_and_keeps_both() {
    let first = Authority::new().signs("admin", &["admin.example"]);
    let second = Authority::new().signs("admin", &["admin.example"]);
    let address = free_address();
    let config = format!(
        "[admin]\nbind = \"{address}\"\ntoken_file = \"@dir/token\"\ntls = {{ cert = \"@dir/admin.pem\", key = \"@dir/admin.key\" }}\n{WEB}"
    );
    const TOKENS: [&str; 2] = ["first-of-two-tokens", "second-of-two-tokens"];
    let weir = first.setup(&config).with_file("token", TOKENS[0]).launch();
    let (resolve, url) = (
        format!("admin.example:{}:127.0.0.1", address.port()),
        format!("https://admin.example:{}", address.port()),
    );
    // The status of a reload that is asked for, or nothing where the certificate is not believed.
    let reload = |authority: &Authority, token: &str| {
        let (ca, field) = (authority.path("ca.pem"), format!("authorization: Bearer {token}"));
        let answer = curl(&[
            "--resolve",
            &resolve,
            "--cacert",
            &ca,
            "-X",
            "POST",
            "-H",
            &field,
            "-w",
            "\n%{http_code}",
            &format!("{url}/v1/reload"),
        ]);
        let (body, status) = answer.stdout.rsplit_once('\n').unwrap_or_default();
        (status.to_owned(), body.to_owned())
    };
    until("the admin API to be served", || (reload(&first, TOKENS[0]).0 == "200").then_some(()));
    assert_eq!(reload(&second, TOKENS[0]).0, "000", "that certificate is not there yet");

    // A key that is not the certificate's, and a token that can be guessed.
    std::fs::copy(second.path("admin.pem"), weir.dir().join("admin.pem")).unwrap();
    std::fs::write(weir.dir().join("token"), TOKENS[1]).unwrap();
    let (status, said) = reload(&first, TOKENS[0]);
    assert!(status == "422" && said.contains("is not the key of"), "{status} {said}");
    serves_certificate_of(&weir, &second);
    std::fs::write(weir.dir().join("token"), "short").unwrap();
    let (status, said) = reload(&first, TOKENS[0]);
    assert!(status == "422" && said.contains("expected at least 16"), "{status} {said}");
    assert_eq!(reload(&first, TOKENS[1]).0, "401", "nothing has changed");

    std::fs::write(weir.dir().join("token"), TOKENS[1]).unwrap();
    let (status, said) = reload(&first, TOKENS[0]);
    assert!(status == "200" && said.contains("tokens have changed"), "{status} {said}");
    assert_eq!(reload(&first, TOKENS[1]).0, "000", "the certificate before is served no more");
    assert_eq!(reload(&second, TOKENS[0]).0, "401", "nor does the token before open");
    let (status, said) = reload(&second, TOKENS[1]);
    assert!(status == "200" && said.contains("unchanged"), "{status} {said}");
}

#[test]
fn of_two_that_start_at_once_over_a_socket_of_a_dead_process_one_serves_there() {
    for _ in 0..4 {
        let path = fresh("/");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket that nobody will listen at"));
        let config = "[listener.web]\nbind = \"unix:@path\"\n[[listener.web.route]]\nrespond = { status = 200, body = \"here\" }\n";
        let begin = || Setup::of(&config.replace("@path", &path)).launch();
        let mut both = [begin(), begin()];
        let door = Door::to_unix(&path);
        let served = until("the socket to be served", || {
            let answer = curl(&["--unix-socket", &path, "http://a/"]);
            (answer.code == 0).then_some(answer.stdout)
        });
        assert_eq!(served, "here");
        // One has given up, and it has not taken the place of the other with it.
        let other = until("one of them to end", || (0..2).find(|number| both[*number].pids().is_empty()));
        assert_eq!(both[other].exits().code(), Some(1), "{}", both[other].story());
        assert!(both[other].stderr().contains("another program listens there"), "{}", both[other].stderr());
        assert_eq!(curl(&["--unix-socket", &path, "http://a/"]).stdout, "here");
        drop(door);
    }
}
