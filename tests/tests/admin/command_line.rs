//! `weir` verbs against a running Weir, and their exit codes.

use std::io::{BufRead as _, BufReader, Read};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

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
fn reload_with_another_file_than_the_running_one_s_is_refused_and_does_nothing() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let other = weir.dir().join("other.toml");
    std::fs::copy(weir.config_path(), &other).expect("copy");
    let other = other.display().to_string();
    let run = |arguments: &[&str]| run_tool(&weir_binary(), arguments, b"", PATIENCE);
    let finished = run(&["reload", "--config", &other]);
    assert_eq!(finished.code, 1, "{finished:?}");
    assert!(finished.stderr.contains(&weir.config_path()), "does not name the file in use: {finished:?}");
    assert!(weir.admin().reads("/v1/status").json()["last_reload"].is_null(), "reloaded all the same");
    // The same file by another way is the same file.
    std::os::unix::fs::symlink(weir.config_path(), weir.dir().join("link.toml")).expect("a link");
    let link = weir.dir().join("link.toml").display().to_string();
    run(&["reload", "--config", &link]).succeeded();
    // Named by its address, it may be any Weir.
    let admin = weir.admin().address().to_string();
    let finished = run(&["reload", "--config", &other, "--admin", &admin]);
    assert!(finished.code == 0 && finished.stderr.contains("note"), "{finished:?}");
}

#[test]
fn reload_after_a_change_of_the_admin_address_says_how_to_reach_it_still() {
    let (a, b) = (named("a"), named("b"));
    let mut weir = two(&a, &b);
    let before = weir.admin().address().to_string();
    weir.rewrites(&format!("{TWO}\n[admin]\nbind = \"@elsewhere\"\n"));
    let finished = weir.command(&["reload"]);
    assert_eq!(finished.code, 3, "{finished:?}");
    for word in ["admin.bind", "--admin", "HUP"] {
        assert!(finished.stderr.contains(word), "no word of {word}: {finished:?}");
    }
    let finished = weir.command(&["reload", "--admin", &before]);
    assert!(finished.succeeded().contains("admin.bind needs a restart"), "{finished:?}");
}

#[test]
fn workers_on_the_command_line_are_no_difference_to_the_file_at_a_reload() {
    let config = weir_tests::dialogue::free_address();
    let text = format!(
        "[admin]\nbind = \"{config}\"\n[listener.web]\nbind = \"{}\"\n[[listener.web.route]]\nrespond = {{ status = 200 }}\n",
        weir_tests::dialogue::free_address()
    );
    let path = std::env::temp_dir().join(format!("weir-e2e-workers-{}.toml", std::process::id()));
    std::fs::write(&path, text).expect("write");
    let path = path.display().to_string();
    let mut child = std::process::Command::new(weir_binary())
        .args(["run", "--workers", "2", "--config", &path])
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("start");
    let admin = weir_tests::dialogue::Admin::at(config);
    until("it to serve", || admin.tries_to_read("/readyz").filter(|answer| answer.status() == 200));
    let finished = run_tool(&weir_binary(), &["reload", "--config", &path], b"", PATIENCE);
    let status = admin.reads("/v1/status").json();
    child.kill().expect("kill");
    child.wait().expect("wait");
    std::fs::remove_file(&path).expect("remove");
    assert_eq!(status["workers"], 2);
    assert!(
        finished.succeeded().starts_with("unchanged") && !finished.stdout.contains("restart"),
        "{finished:?}"
    );
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
fn check_names_each_file_that_a_start_would_fail_for_and_makes_none() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let bad = weir.dir().join("files.toml");
    std::fs::write(weir.dir().join("short"), "short").expect("write");
    let config = r#"[listener.db]
protocol = "mysql"
bind = "127.0.0.1:1"
pool = "p"
[pool.p]
backends = ["127.0.0.1:2"]
[pool.p.mysql]
topology = "static"
user = "weir"
password_file = "@dir/missing"
passwords = "file"
passwords_file = "@dir/missing"
key_file = "@dir/made.pem"
server_public_key = "@dir/short"
[admin]
token_file = "@dir/short"
[admin.tls]
cert = "@dir/missing"
key = "@dir/missing"
[log]
access = "@dir/missing/access.log"
[access_log.other]
target = "@dir"
"#;
    let dir = weir.dir().display().to_string();
    std::fs::write(&bad, config.replace("@dir", &dir)).expect("write");
    for verb in ["check", "run"] {
        let finished = run_tool(&weir_binary(), &[verb, &bad.display().to_string()], b"", PATIENCE);
        assert_eq!(finished.code, 2, "{finished:?}");
        for line in [10, 12, 14, 16, 18, 19, 23] {
            assert!(finished.stderr.contains(&format!("files.toml:{line}:")), "line {line}: {finished:?}");
        }
        assert!(finished.stderr.contains("the config has 7 mistakes"), "{finished:?}");
        assert!(!weir.dir().join("made.pem").exists());
    }
    // Who only asks a running Weir need not be able to read what it reads.
    let asked = run_tool(&weir_binary(), &["status", "--config", &bad.display().to_string()], b"", PATIENCE);
    assert!(!asked.stderr.contains("files.toml:10:"), "{asked:?}");
}

#[test]
fn run_and_check_take_the_file_with_the_option_and_without() {
    let (a, b) = (named("a"), named("b"));
    let weir = two(&a, &b);
    let bad = weir.dir().join("bad.toml");
    std::fs::write(&bad, "[listener.web]\nbalanse = \"first\"\n").expect("write");
    let bad = bad.display().to_string();
    let run = |arguments: &[&str]| run_tool(&weir_binary(), arguments, b"", PATIENCE);
    for verb in ["run", "check"] {
        for named in [&[verb, &bad][..], &[verb, "--config", &bad], &[verb, "-c", &bad]] {
            let finished = run(named);
            assert_eq!(finished.code, 2, "{named:?}: {finished:?}");
            assert!(finished.stderr.contains("bad.toml:2:"), "{named:?}: {finished:?}");
        }
        // Which of both is meant is not guessed.
        let both = run(&[verb, &bad, "--config", &bad]);
        assert!(both.code == 2 && both.stderr.contains("cannot be used with"), "{both:?}");
    }
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
fn explain_sql_prints_where_a_statement_goes_why_and_what_it_leaves_behind() {
    let (a, b) = (named("a"), named("b"));
    let config = r#"
        [listener.db]
        protocol = "mysql"
        bind = "@db"
        pool = "cluster"
        [listener.reads]
        protocol = "mysql"
        bind = "@reads"
        access = "read-only"
        pool = "cluster"
        [pool.cluster]
        backends = ["@a", "@b"]
        health = "off"
        [pool.cluster.mysql]
        topology = "static"
    "#;
    let weir = Setup::of(config).with("a", a.address()).with("b", b.address()).start();
    let explain = |words: &[&str]| {
        let finished = weir.command(&[&["explain", "sql"], words].concat());
        finished.succeeded().to_owned()
    };
    let written = explain(&["--listener", "db", "SET @id = LAST_INSERT_ID()"]);
    for line in [
        "listener db: named in the question".to_owned(),
        "kind     set".to_owned(),
        "wants    primary, read_write_listener: The listener has `access = \"read-write\"`.".to_owned(),
        "by text  primary, setting: It changes the session.".to_owned(),
        "leaves   user_variable: A user variable.".to_owned(),
        "asks for last_insert_id: LAST_INSERT_ID(), @@last_insert_id.".to_owned(),
        "pins     the session keeps its connection until a reset".to_owned(),
        "again    if_refused: Only where the server refused it as read-only: 1836, or 1290 that says so."
            .to_owned(),
        format!(" * {} ready primary, 0 in flight, weight 1", a.address()),
        format!("   {} ready secondary, 0 in flight, weight 1: not chosen, not the primary", b.address()),
    ] {
        assert!(written.lines().any(|it| it == line), "no line {line:?}: {written}");
    }
    let read = explain(&["--listener", "reads", "SELECT", "1"]);
    for line in [
        "wants    any, read_only_listener: The listener has `access = \"read-only\"`.".to_owned(),
        "by text  any, plain_read: It reads, and calls only functions that change nothing.".to_owned(),
        format!(" * {} ready secondary, 0 in flight, weight 1", b.address()),
    ] {
        assert!(read.lines().any(|it| it == line), "no line {line:?}: {read}");
    }
    let in_one = explain(&["--listener", "db", "--in-transaction=read-only", "--json", "COMMIT"]);
    let in_one: serde_json::Value = serde_json::from_str(&in_one).expect("JSON");
    assert_eq!(in_one["statement"]["transaction"], "commits");
    let unnamed = weir.command(&["explain", "sql", "SELECT 1"]);
    assert!(unnamed.stderr.contains("expected `listener` to name one of db, reads"), "{unnamed:?}");
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

/// A running `weir proxy`, and what it has said on both of its outputs.
struct OneLiner {
    child: std::process::Child,
    front: std::net::SocketAddr,
    said: Arc<Mutex<String>>,
}

impl OneLiner {
    fn start(backend: &Backend) -> OneLiner {
        let front = weir_tests::dialogue::free_address();
        let mut child = std::process::Command::new(weir_binary())
            .args(["proxy", &front.to_string(), "->", &backend.address().to_string()])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("start");
        let said = Arc::new(Mutex::new(String::new()));
        let outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("its standard output")),
            Box::new(child.stderr.take().expect("its standard error")),
        ];
        for output in outputs {
            let said = said.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let mut said = said.lock().expect("no reader panics");
                    said.push_str(&line);
                    said.push('\n');
                }
            });
        }
        OneLiner { child, front, said }
    }

    fn said(&self) -> String {
        self.said.lock().expect("no reader panics").clone()
    }

    fn answers(&self, text: &str) -> Option<()> {
        let mut client = weir_tests::dialogue::Wire::try_connect(self.front).ok()?;
        client.tries_to_send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").ok()?;
        client.tries_to_receive_response("GET").ok().filter(|response| response.text() == text).map(drop)
    }
}

impl Drop for OneLiner {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("weir proxy said:\n{}", self.said());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_one_liner_proxies_and_prints_the_config_it_stands_for() {
    let backend = named("one-liner");
    let proxy = OneLiner::start(&backend);
    until("the proxy to answer", || proxy.answers("one-liner"));
    let is_toml = |said: &str| said.contains("[listener.") && said.contains("[pool.");
    until("the TOML", || is_toml(&proxy.said()).then_some(()));
}

/// Sees to it that the usual admin port is taken. `None` when somebody has it who keeps it, which is as good;
/// other tests give it back soon.
fn take_usual_port() -> Option<std::net::TcpListener> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE / 6 {
        if let Ok(holder) = std::net::TcpListener::bind("127.0.0.1:9900") {
            return Some(holder);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

#[test]
fn the_one_liner_serves_beside_another_weir_and_says_where_its_admin_api_is() {
    let _holder = take_usual_port();
    let backend = named("second");
    let proxy = OneLiner::start(&backend);
    until("the proxy to answer", || proxy.answers("second"));
    let admin = until("the way to its admin API", || {
        let said = proxy.said();
        let (_, rest) = said.split_once("127.0.0.1:9900 is taken")?.1.split_once("weir status --admin ")?;
        rest.split('`').next().map(str::to_owned)
    });
    let status = run_tool(&weir_binary(), &["status", "--admin", &admin], b"", PATIENCE);
    assert!(status.succeeded().contains(&backend.address().to_string()), "{status:?}");
}

#[test]
fn the_demo_names_every_taken_port_and_the_option_that_chooses_another() {
    let holders = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let [http, tcp] =
        holders.each_ref().map(|holder| holder.local_addr().expect("its port").port().to_string());
    let arguments = ["demo", "--http-port", &http, "--tcp-port", &tcp];
    let finished = run_tool(&weir_binary(), &arguments, b"", PATIENCE);
    assert_eq!(finished.code, 1, "{finished:?}");
    for (option, port) in [("--http-port", &http), ("--tcp-port", &tcp)] {
        let expected =
            format!("port {port} is taken by another program; choose another port with `{option}`");
        assert!(finished.stderr.contains(&expected), "{finished:?}");
    }
}
