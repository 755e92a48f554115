//! A reload that can't succeed changes nothing and says so (threats H2, S8).

use weir_tests::dialogue::{Backend, Draws, Setup, Signal, Weir, free_address, tool, until};

use super::{ask, named};

const GOOD: &str = r#"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@app"]
health = { check = "off" }
"#;

fn running(backend: &Backend) -> Weir {
    Setup::of(GOOD).with("app", backend.address()).start()
}

/// The old config serves, the failure is counted and remembered, and `weir reload` exits with 2 or 1.
fn is_refused(weir: &Weir, result: &str, mentions: &[&str]) {
    let before = weir.metric("weir_reloads_total", &[("result", result)]);
    let generation = weir.metric("weir_config_generation", &[]);
    let finished = weir.command(&["reload"]);
    assert!(matches!(finished.code, 1 | 2), "exit code of a refused reload: {finished:?}");
    for text in mentions {
        assert!(
            finished.stderr.contains(text) || finished.stdout.contains(text),
            "no word of {text:?}: {finished:?}"
        );
    }
    assert_eq!(ask(weir, "web").status, 200);
    // The same by signal, which has no exit code but a metric and a log.
    let counted = weir.metric("weir_reloads_total", &[("result", result)]);
    weir.signals(Signal::HUP);
    weir.reaches("weir_reloads_total", &[("result", result)], counted + 1.0);
    assert!(counted <= before + 1.0);
    assert_eq!(ask(weir, "web").status, 200);
    assert_eq!(
        weir.metric("weir_config_generation", &[]),
        generation,
        "a refused reload changed the generation"
    );
    assert_eq!(weir.metric("weir_config_last_reload_successful", &[]), 0.0);
    let status = weir.admin().reads("/v1/status").json();
    assert_eq!(status["last_reload"]["result"], result, "{status}");
    for text in mentions {
        assert!(
            status["last_reload"]["error"].as_str().is_some_and(|error| error.contains(text)),
            "no word of {text:?}: {status}"
        );
        until("the log to say it", || weir.stderr().contains(text).then_some(()));
    }
}

#[test]
fn a_file_with_mistakes_is_refused_with_the_place_of_each() {
    let backend = named("app");
    let mut weir = running(&backend);
    weir.rewrites("[listener.web]\nbind = \"@web\"\npool = \"ap\"\nbnid = 3\n\n[pool.app]\nbackends = []\n");
    is_refused(&weir, "refused", &["weir.toml:3:", "weir.toml:4:", "weir.toml:7:", "did you mean"]);
    // A good file afterwards is taken as if nothing had happened.
    weir.reloads(&GOOD.replace("health", "slow_start = \"1s\"\nhealth"));
    assert_eq!(weir.metric("weir_config_last_reload_successful", &[]), 1.0);
    assert_eq!(ask(&weir, "web").text(), "app");
}

#[test]
fn a_file_that_is_no_toml_is_refused() {
    let backend = named("app");
    let mut weir = running(&backend);
    weir.rewrites("[listener.web\nbind = ");
    is_refused(&weir, "refused", &["weir.toml:1:"]);
}

#[test]
fn a_missing_file_changes_nothing() {
    let backend = named("app");
    let weir = running(&backend);
    // The command line reads the file itself to find the admin API, so this one is asked for by signal and
    // over the API.
    std::fs::remove_file(weir.config_path()).expect("remove the config");
    weir.signals(Signal::HUP);
    weir.reaches("weir_reloads_total", &[("result", "failed")], 1.0);
    let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
    assert!(answer.status() >= 400, "{:?}", answer.response);
    assert_eq!(answer.json()["error"]["code"], "failed");
    assert_eq!(ask(&weir, "web").text(), "app");
}

#[test]
fn a_directory_or_an_empty_file_in_place_of_the_config_changes_nothing() {
    let backend = named("app");
    let weir = running(&backend);
    std::fs::remove_file(weir.config_path()).expect("remove the config");
    std::fs::create_dir(weir.config_path()).expect("a directory in its place");
    assert!(weir.admin().calls("POST", "/v1/reload", &[], "{}").status() >= 400);
    std::fs::remove_dir(weir.config_path()).expect("remove the directory");
    std::fs::write(weir.config_path(), "").expect("an empty file in its place");
    assert!(weir.admin().calls("POST", "/v1/reload", &[], "{}").status() >= 400);
    assert_eq!(ask(&weir, "web").text(), "app");
}

#[test]
fn a_port_in_use_changes_nothing() {
    let backend = named("app");
    let mut weir = running(&backend);
    let taken = weir_tests::dialogue::listen_at(free_address());
    let address = taken.local_addr().expect("its address").to_string();
    // Two things change, one of them impossible: neither may happen.
    let config = GOOD.replace("[pool.app]", "[listener.taken]\nbind = \"@taken\"\npool = \"app\"\n[listener.fresh]\nbind = \"@fresh\"\npool = \"app\"\n[pool.app]");
    weir.knows("taken", &address);
    weir.rewrites(&config);
    is_refused(&weir, "failed", &[address.as_str(), "in use"]);
    assert!(
        std::net::TcpStream::connect(weir.address("fresh")).is_err(),
        "the other new listener was opened all the same"
    );
    drop(taken);
    let finished = weir.command(&["reload"]);
    assert_eq!(finished.code, 0, "the port is free now: {finished:?}");
    assert_eq!(ask(&weir, "taken").text(), "app");
    assert_eq!(ask(&weir, "fresh").text(), "app");
}

#[test]
fn a_backend_whose_name_does_not_resolve_takes_nothing_down() {
    // H2: DNS down. The name may resolve later, so the file is good; that backend gets nothing and the others
    // serve.
    let backend = named("app");
    let mut weir = running(&backend);
    weir.rewrites(&GOOD.replace("[\"@app\"]", "[\"@app\", \"no-such-host.invalid:80\"]"));
    let finished = weir.command(&["reload"]);
    for _ in 0..20 {
        assert_eq!(ask(&weir, "web").text(), "app", "after {finished:?}");
    }
    assert!(matches!(finished.code, 0..=2), "{finished:?}");
}

#[test]
fn mutated_files_never_stop_the_service_and_every_error_names_file_and_line() {
    // S8, scaled down: ten thousand of these run against the parser itself.
    let backend = named("app");
    let mut weir = running(&backend);
    let mut draws = Draws::new();
    let good = std::fs::read(weir.config_path()).expect("the config");
    let mut refused = 0;
    for _ in 0..150 {
        let mut bytes = good.clone();
        for _ in 0..=draws.below(3) {
            let at = draws.below(bytes.len() as u64) as usize;
            match draws.below(4) {
                0 => bytes[at] = draws.below(256) as u8,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, b"\"[]{}=,.@#\n0a"[draws.below(13) as usize]),
                _ => bytes.truncate(at),
            }
            if bytes.is_empty() {
                bytes.push(b'x');
            }
        }
        std::fs::write(weir.config_path(), &bytes).expect("write");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        // A mutation that moves the admin API or the listener elsewhere would end the test, not the service.
        let (admin, web) = (weir.address("admin").to_string(), weir.address("web").to_string());
        if !text.contains(&admin) || !text.contains(&web) {
            continue;
        }
        let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
        if answer.status() != 200 {
            refused += 1;
            let json = answer.json();
            let message = json["error"]["message"].as_str().unwrap_or_default().to_owned();
            if answer.status() == 422 {
                assert!(message.contains("weir.toml:"), "no place in {message:?} for\n{text}");
            }
            assert_eq!(ask(&weir, "web").text(), "app", "after a refused\n{text}");
        } else {
            // It was taken: then it must serve what it says. Back to the good file, which must always be
            // taken.
            std::fs::write(weir.config_path(), &good).expect("write");
            let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
            assert_eq!(
                answer.status(),
                200,
                "the good file was refused after\n{text}\n{:?}",
                answer.response
            );
            assert_eq!(ask(&weir, "web").text(), "app", "after\n{text}");
        }
    }
    assert!(refused > 20, "only {refused} mutated files were refused; the test shows little");
    weir.reloads(GOOD);
}

#[test]
fn a_first_start_with_a_refused_file_exits_with_2_and_lists_every_mistake() {
    let mut weir = Setup::of("[listener.web]\nbind = \"nowhere\"\npool = \"none\"\n").launch();
    let status = weir.exits();
    assert_eq!(status.code(), Some(2), "{}", weir.story());
    until("both mistakes on standard error", || {
        let stderr = weir.stderr();
        (stderr.contains("weir.toml:2:") && stderr.contains("weir.toml:3:")).then_some(())
    });
}

#[test]
fn a_first_start_on_a_port_in_use_exits_with_1_and_names_it() {
    let taken = weir_tests::dialogue::listen_at(free_address());
    let address = taken.local_addr().expect("its address");
    let mut weir = Setup::of(GOOD).with("app", free_address()).with("web", address).launch();
    assert_eq!(weir.exits().code(), Some(1), "{}", weir.story());
    until("the address on standard error", || weir.stderr().contains(&address.to_string()).then_some(()));
}

/// Has the program behind it find a host without IPv6.
const NO_IPV6: &str = "
import ctypes, os, platform, struct, sys
number = {'x86_64': 41, 'aarch64': 198}[platform.machine()]
def step(code, k, then=0, other=0):
    return struct.pack('HBBI', code, then, other, k)
# socket(AF_INET6, …) fails with EAFNOSUPPORT.
steps = step(0x20, 0) + step(0x15, number, 0, 3) + step(0x20, 16) + step(0x15, 10, 0, 1)
steps += step(0x06, 0x50000 | 97) + step(0x06, 0x7fff0000)
code = ctypes.create_string_buffer(steps, len(steps))
program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(steps) // 8, ctypes.addressof(code)))
libc = ctypes.CDLL(None, use_errno=True)
word = ctypes.c_ulong
assert libc.prctl(38, word(1), word(0), word(0), word(0)) == 0
assert libc.prctl(22, word(2), ctypes.c_void_p(ctypes.addressof(program))) == 0
os.execvp(sys.argv[1], sys.argv[1:])
";

#[test]
fn a_host_without_ipv6_serves_by_ipv4_and_says_why_an_address_cannot_be_bound() {
    let backend = named("app");
    let python = tool("python3", "python3").display().to_string();
    let setup = Setup::of(GOOD).with("app", backend.address());
    let mut weir = setup.under(&[&python, "-c", NO_IPV6]).start();
    assert_eq!(ask(&weir, "web").text(), "app");
    weir.rewrites(&GOOD.replace("bind = \"@web\"", "bind = [\"@web\", \"[::1]:8\"]"));
    let refused = weir.command(&["reload"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("[::1]:8") && refused.stderr.contains("as without IPv6"), "{refused:?}");
    assert_eq!(ask(&weir, "web").text(), "app");
}
