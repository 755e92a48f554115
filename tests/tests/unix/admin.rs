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
