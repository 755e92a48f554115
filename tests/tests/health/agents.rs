//! Agents: a program beside a backend says in one line how much load it wants.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use weir_tests::dialogue::{After, Backend, Setup, Weir, Wire, free_address, listen_at, until};

use super::{named, two_backends};

/// Answers each connection with its line, after it has received the line that it expects, if any.
struct Agent {
    address: SocketAddr,
    line: Arc<Mutex<&'static str>>,
}

impl Agent {
    fn start(expects: Option<&'static str>) -> Agent {
        let address = free_address();
        let (listener, line): (TcpListener, _) = (listen_at(address), Arc::new(Mutex::new("up\n")));
        let said = line.clone();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                if let Some(expects) = expects {
                    let mut told = String::new();
                    let _ = BufReader::new(&stream).read_line(&mut told);
                    if told != expects {
                        continue;
                    }
                }
                let line = *said.lock().unwrap();
                let _ = stream.write_all(line.as_bytes());
            }
        });
        Agent { address, line }
    }

    fn says(&self, line: &'static str) {
        *self.line.lock().unwrap() = line;
    }
}

fn config(agent: &str) -> String {
    two_backends(&format!("[pool.app.health]\ncheck = \"off\"\npassive = \"off\"\n{agent}"))
}

/// A backend at a different address than the agent, so that its own answers can't be mistaken for the
/// agent's.
fn elsewhere(name: &'static str) -> Backend {
    let mut address = free_address();
    address.set_ip([127, 0, 0, 2].into());
    Backend::serving_at(address, move |_, wire| {
        wire.answers(200, &[], name);
        After::Keep
    })
}

/// State of the first backend, and why.
fn state(weir: &Weir) -> (String, String) {
    let status = weir.admin().reads("/v1/pools/app").json();
    let text = |name: &str| status["backends"][0][name].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

fn becomes(weir: &Weir, expected: &str, why: &str) {
    until(&format!("{expected} because of {why:?}: {:?}\n{}", state(weir), weir.story()), || {
        let (state, reason) = state(weir);
        (state == expected && reason.contains(why)).then_some(())
    });
}

/// How many of `count` requests each of the two backends answers.
fn shares(weir: &Weir, count: usize) -> (usize, usize) {
    let mut client = weir.client("web");
    let answers: Vec<String> = (0..count)
        .map(|_| {
            client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
            client.receives_status(200).text()
        })
        .collect();
    let of = |name: &str| answers.iter().filter(|answer| *answer == name).count();
    (of("a"), of("b"))
}

#[test]
fn an_agent_says_whether_and_how_much_work_its_backend_takes() {
    let agent = Agent::start(Some("app of weir\n"));
    let (a, b) = (named("a"), elsewhere("b"));
    let port = agent.address.port();
    let table = format!(r#"agent = {{ port = {port}, interval = "100ms", send = "app of weir\n" }}"#);
    let mut weir = Setup::of(&config(&table)).with("a", a.address()).with("b", b.address()).start();
    let labels = [("backend", a.address().to_string()), ("result", "good".to_owned())];
    let labels: Vec<(&str, &str)> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
    weir.reaches("weir_agent_checks_total", &labels, 1.0);
    assert_eq!(shares(&weir, 20), (10, 10));
    agent.says("down#the disk is full\n");
    becomes(&weir, "down", "its agent: down, it says \"down#the disk is full\"");
    assert_eq!(shares(&weir, 20), (0, 20));
    let url = format!("http://{}/", weir.address("web"));
    let explained = weir.command(&["explain", "http", "GET", &url]);
    assert!(explained.succeeded().contains("down#the disk is full"), "{explained:?}");
    let mut events = Wire::connect(weir.admin().address());
    events.sends("GET /v1/events HTTP/1.1\r\nhost: localhost\r\nlast-event-id: 0\r\n\r\n");
    events.receives_until("its agent says");
    // What an agent says about one backend has no effect on the other.
    agent.says("up\tdrain\r\n");
    becomes(&weir, "draining", "its agent: drain");
    assert_eq!(shares(&weir, 20), (0, 20));
    agent.says("ready, 50% maxconn:7");
    becomes(&weir, "ready", "");
    assert_eq!(shares(&weir, 30), (10, 20));
    let backend = |weir: &Weir| weir.admin().reads("/v1/pools/app").json()["backends"][0].clone();
    assert_eq!(backend(&weir)["max_connections"], 7);
    assert_eq!(backend(&weir)["agent"]["says"], "up, ready, 50 % of its weight, at most 7 connections");
    agent.says("maint\n");
    becomes(&weir, "maintenance", "its agent: maintenance");
    // The operator's state does not overrule the agent's, nor the other way round.
    weir.command(&["enable", "app", &a.address().to_string()]).succeeded();
    assert_eq!(state(&weir).0, "maintenance");
    agent.says("ready 100%\n");
    becomes(&weir, "ready", "");
    weir.command(&["drain", "app", &a.address().to_string()]).succeeded();
    let good = weir.metric("weir_agent_checks_total", &labels);
    weir.reaches("weir_agent_checks_total", &labels, good + 2.0);
    assert_eq!(state(&weir).0, "draining");
    weir.command(&["enable", "app", &a.address().to_string()]).succeeded();
    // What it has said applies until it says something else, or is no longer asked.
    agent.says("down\n");
    becomes(&weir, "down", "its agent");
    agent.says("what do you mean?\n");
    let bad = [("backend", labels[0].1), ("result", "bad")];
    weir.reaches("weir_agent_checks_total", &bad, 2.0);
    assert_eq!(state(&weir).0, "down");
    weir.reloads(&config(""));
    becomes(&weir, "ready", "");
    assert_eq!(shares(&weir, 20), (10, 10));
}

#[test]
fn an_agent_that_is_not_there_or_never_ends_its_line_changes_nothing() {
    let flood = free_address();
    let listener = listen_at(flood);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            while stream.write_all(&[b'd'; 4096]).is_ok() {}
        }
    });
    let gone = free_address();
    for (agent, why) in [(flood, "and no end of line"), (gone, "connection refused")] {
        let (a, b) = (named("a"), elsewhere("b"));
        let table = format!(r#"agent = {{ port = {}, interval = "100ms" }}"#, agent.port());
        let weir = Setup::of(&config(&table)).with("a", a.address()).with("b", b.address()).start();
        let address = a.address().to_string();
        weir.reaches("weir_agent_checks_total", &[("backend", &address), ("result", "bad")], 2.0);
        let status = weir.admin().reads("/v1/pools/app").json();
        let detail = status["backends"][0]["agent"]["history"][0]["detail"].as_str().unwrap_or_default();
        assert!(detail.contains(why), "{status}");
        assert_eq!(shares(&weir, 20), (10, 10));
    }
}
