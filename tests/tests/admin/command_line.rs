//! `weir` verbs against a running Weir, and their exit codes.

use weir_tests::dialogue::{
    After, Backend, PATIENCE, ScriptedBackend, Setup, Signal, run_tool, until, weir_binary,
};

use super::{TWO, two};

fn named(name: &'static str) -> Backend {
    Backend::serving(move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

#[test]
fn status_prints_a_table_and_with_json_the_api_s_own_value() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let text = weir.command(&["status"]);
    for word in ["web", "app", &a.address().to_string()] {
        assert!(text.succeeded().contains(word), "no word of {word}: {text:?}");
    }
    let json = weir.command(&["status", "--json"]);
    let value: serde_json::Value = serde_json::from_str(json.succeeded()).expect("JSON");
    assert_eq!(value["pid"], weir.pid());
    assert_eq!(value["pools"][0]["backends"][1]["address"], b.address().to_string());
}

#[test]
fn verbs_that_need_a_running_weir_exit_with_3_when_there_is_none() {
    let (a, b) = (named("a"), named("b"));
    let mut weir = two(&a, &b);
    weir.signals(Signal::KILL);
    weir.exits();
    let address = a.address().to_string();
    for verb in [&["status"][..], &["reload"], &["drain", "app", &address], &["enable", "app", &address]] {
        let finished = weir.command(verb);
        assert_eq!(finished.code, 3, "{verb:?}: {finished:?}");
        assert!(!finished.stderr.is_empty(), "{verb:?} says nothing");
    }
}

#[test]
fn drain_and_enable_take_a_backend_out_and_back() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let address = a.address().to_string();
    weir.command(&["drain", "app", &address]).succeeded();
    let mut client = weir.client("web");
    for _ in 0..20 {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        assert_eq!(client.receives_status(200).text(), "b");
    }
    weir.command(&["enable", "app", &address]).succeeded();
    until("the backend to be used again", || {
        client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
        (client.receives_status(200).text() == "a").then_some(())
    });
    assert_ne!(weir.command(&["drain", "app", "127.0.0.1:1"]).code, 0);
    assert_ne!(weir.command(&["drain", "none", &address]).code, 0);
}

#[test]
fn drain_with_wait_returns_after_the_last_request() {
    let slow = ScriptedBackend::start();
    let config = TWO.replace("\"@a\", \"@b\"", "\"@a\"").replace("check = \"tcp\"", "check = \"off\"");
    let weir = Setup::of(&config).with("a", slow.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    let mut wire = slow.accepts();
    wire.receives_request();
    std::thread::scope(|scope| {
        let address = slow.address().to_string();
        let weir = &weir;
        let waiting = scope.spawn(move || weir.command(&["drain", "app", &address, "--wait"]));
        until("the drain to be in force", || {
            (weir.metric("weir_backend_up", &[("backend", &slow.address().to_string())]) == 0.0).then_some(())
        });
        assert!(!waiting.is_finished(), "returned while a request was under way");
        wire.answers(200, &[], "ok");
        client.receives_status(200);
        let finished = waiting.join().expect("the command");
        assert_eq!(finished.code, 0, "{finished:?}");
    });
}

#[test]
fn check_says_good_or_lists_every_mistake() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let path = weir.config_path();
    run_tool(&weir_binary(), &["check", &path], b"", PATIENCE).succeeded();
    let bad = weir.dir().join("bad.toml");
    std::fs::write(&bad, "[listener.web]\nbind = \"127.0.0.1:1\"\npool = \"ap\"\n\n[pool.app]\nbackends = [\"x:1\"]\nbalanse = \"first\"\n").expect("write");
    let finished = run_tool(&weir_binary(), &["check", &bad.display().to_string()], b"", PATIENCE);
    assert_eq!(finished.code, 2, "{finished:?}");
    let all = format!("{}{}", finished.stdout, finished.stderr);
    for text in ["bad.toml:3:", "bad.toml:7:", "did you mean", "balance"] {
        assert!(all.contains(text), "no word of {text:?}: {all}");
    }
    assert_eq!(run_tool(&weir_binary(), &["check", "/nonexistent/weir.toml"], b"", PATIENCE).code, 2);
}

#[test]
fn explain_prints_the_decisions() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let url = format!("http://{}/x", weir.address("web"));
    let finished = weir.command(&["explain", "http", "GET", &url]);
    for word in ["web", "app"] {
        assert!(finished.succeeded().contains(word), "no word of {word}: {finished:?}");
    }
}

#[test]
fn version_help_completions_and_man_page_are_printed() {
    let run = |arguments: &[&str]| run_tool(&weir_binary(), arguments, b"", PATIENCE);
    assert!(run(&["--version"]).succeeded().starts_with("weir "));
    for verb in ["run", "check", "reload", "status", "drain", "enable", "explain", "demo", "proxy"] {
        assert!(run(&["--help"]).succeeded().contains(verb), "--help does not name {verb}");
    }
    for shell in ["bash", "zsh", "fish"] {
        assert!(run(&["completions", shell]).succeeded().contains("weir"), "{shell}");
    }
    assert!(run(&["man"]).succeeded().contains(".TH"));
    assert_ne!(run(&["no-such-verb"]).code, 0);
}

#[test]
fn the_one_liner_proxies_and_prints_the_config_it_stands_for() {
    let backend = named("one-liner");
    let front = weir_tests::dialogue::free_address();
    let mut child = std::process::Command::new(weir_binary())
        .args(["proxy", &front.to_string(), "->", &backend.address().to_string()])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("start");
    let outcome = std::panic::catch_unwind(|| {
        until("the proxy to answer", || {
            let mut client = weir_tests::dialogue::Wire::try_connect(front).ok()?;
            client.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
            client.tries_to_receive_response("GET").ok().filter(|response| response.text() == "one-liner")
        });
    });
    let _ = child.kill();
    let output = child.wait_with_output().expect("its output");
    let all =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(outcome.is_ok(), "{all}");
    assert!(all.contains("[listener.") && all.contains("[pool."), "no TOML: {all}");
}
