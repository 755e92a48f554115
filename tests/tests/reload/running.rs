//! What is under way goes on over a reload; what is new is in force when `weir reload` returns (R1, R2).

use weir_tests::dialogue::{After, Backend, ScriptedBackend, Setup, Wire, until};

use super::{ask, named};

fn config(listeners: &str, backends: &str) -> String {
    format!(
        r#"
        [runtime]
        drain = "20s"
        {listeners}
        [pool.app]
        backends = [{backends}]
        health = {{ check = "off", passive = "off" }}
        "#
    )
}

const WEB: &str = "[listener.web]\nbind = \"@web\"\npool = \"app\"\n";
const OTHER: &str = "[listener.other]\nbind = \"@other\"\npool = \"app\"\n";

#[test]
fn after_a_reload_returns_every_new_connection_sees_the_new_config() {
    let (a, b) = (named("a"), named("b"));
    let mut weir = Setup::of(&config(WEB, "\"@a\"")).with("a", a.address()).with("b", b.address()).start();
    for round in 0..30 {
        let (name, backends) = if round % 2 == 0 { ("b", "\"@b\"") } else { ("a", "\"@a\"") };
        weir.reloads(&config(WEB, backends));
        // More connections than workers, so that each worker is asked.
        for _ in 0..8 {
            assert_eq!(ask(&weir, "web").text(), name, "round {round}");
        }
    }
}

#[test]
fn a_listener_moves_between_one_address_and_all_on_the_same_port() {
    let app = named("a");
    let listener = |transport: &str, host: &str, port: u16| {
        format!(
            "[listener.{transport}]\nprotocol = \"{transport}\"\nbind = \"{host}:{port}\"\npool = \"app\"\n"
        )
    };
    let front = weir_tests::dialogue::free_address();
    let both = |host: &str| {
        let listeners = listener("tcp", host, front.port()) + &listener("udp", host, front.port());
        config(&listeners, "\"@a\"")
    };
    let mut weir = Setup::of(&both("127.0.0.1")).with("a", app.address()).start();
    weir.knows("front", front);
    for host in ["0.0.0.0", "127.0.0.1"] {
        weir.reloads(&both(host));
        assert_eq!(ask(&weir, "front").text(), "a", "after a move to {host}");
    }
}

#[test]
fn a_kept_connection_sees_the_new_config_with_its_next_request() {
    let (a, b) = (named("a"), named("b"));
    let mut weir = Setup::of(&config(WEB, "\"@a\"")).with("a", a.address()).with("b", b.address()).start();
    let mut client = weir.client("web");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "a");
    weir.reloads(&config(WEB, "\"@b\""));
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).text(), "b");
}

#[test]
fn a_request_under_way_ends_at_the_backend_it_began_with_though_that_is_removed() {
    let slow = ScriptedBackend::start();
    let b = named("b");
    let mut weir =
        Setup::of(&config(WEB, "\"@slow\"")).with("slow", slow.address()).with("b", b.address()).start();
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello");
    let mut wire = slow.accepts();
    wire.receives_request_head();
    wire.receives_exactly("hello");
    weir.reloads(&config(WEB, "\"@b\""));
    assert_eq!(ask(&weir, "web").text(), "b");
    client.sends("world");
    wire.receives_exactly("world");
    wire.sends("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfirst");
    client.receives_until("first");
    weir.reloads(&config(WEB, "\"@b\", \"@slow\""));
    wire.sends(" part");
    client.receives_exactly(" part");
}

#[test]
fn a_listener_comes_and_goes() {
    let a = named("a");
    let mut weir = Setup::of(&config(WEB, "\"@a\"")).with("a", a.address()).start();
    weir.reloads(&config(&format!("{WEB}{OTHER}"), "\"@a\""));
    assert_eq!(ask(&weir, "other").text(), "a");
    let mut under_way = weir.client("other");
    under_way.sends("GET / HTTP/1.1\r\nhost: a\r\n");
    weir.reloads(&config(WEB, "\"@a\""));
    assert!(std::net::TcpStream::connect(weir.address("other")).is_err(), "a removed listener still accepts");
    assert_eq!(ask(&weir, "web").text(), "a");
    // What had begun on it is finished, and then its connection ends.
    under_way.sends("\r\n");
    let response = under_way.receives_status(200);
    assert!(response.closes(), "{response:?}");
    under_way.receives_end();
    // And it can come back at once.
    weir.reloads(&config(&format!("{WEB}{OTHER}"), "\"@a\""));
    assert_eq!(ask(&weir, "other").text(), "a");
}

#[test]
fn a_listener_changes_its_address_or_its_protocol() {
    let a = named("a");
    let mut weir = Setup::of(&config(WEB, "\"@a\"")).with("a", a.address()).start();
    let old = weir.address("web");
    weir.reloads(&config("[listener.web]\nbind = \"@moved\"\npool = \"app\"\n", "\"@a\""));
    assert_eq!(ask(&weir, "moved").text(), "a");
    assert!(std::net::TcpStream::connect(old).is_err());
    // The same socket, another protocol.
    weir.reloads(&config(
        "[listener.web]\nprotocol = \"tcp\"\nbind = \"@moved\"\npool = \"app\"\n",
        "\"@a\"",
    ));
    let mut client = weir.client("moved");
    client.sends("GET / HTTP/1.1\r\nhost: a\r\n\r\n");
    assert_eq!(client.receives_status(200).fields.all("via"), Vec::<&str>::new(), "a relay adds nothing");
}

#[test]
fn counters_go_on_over_a_reload() {
    let a = named("a");
    let mut weir = Setup::of(&config(WEB, "\"@a\"")).with("a", a.address()).start();
    for _ in 0..10 {
        ask(&weir, "web");
    }
    weir.reaches("weir_requests_total", &[("listener", "web")], 10.0);
    weir.reloads(&config(&format!("{WEB}{OTHER}"), "\"@a\""));
    assert!(weir.metric("weir_requests_total", &[("listener", "web")]) >= 10.0);
    assert!(weir.metric("weir_backend_requests_total", &[("pool", "app"), ("code", "2xx")]) >= 10.0);
    assert_eq!(weir.metric("weir_reloads_total", &[("result", "applied")]), 1.0);
}

#[test]
fn a_backend_known_to_be_down_stays_down_over_a_reload() {
    // Otherwise each reload would send requests to dead backends until the probes have caught up.
    let dead = Backend::saying("dead").dies();
    let a = named("a");
    let with_checks = |slow_start: &str| {
        format!(
            "{WEB}[pool.app]\nbackends = [\"@dead\", \"@a\"]\nretry = {{ attempts = 0 }}\n{slow_start}\n\
             health = {{ check = \"tcp\", interval = \"200ms\", fast_interval = \"50ms\", timeout = \"100ms\", fall = 2, passive = \"off\" }}\n"
        )
    };
    let mut weir = Setup::of(&with_checks("")).with("a", a.address()).with("dead", dead).start();
    until("the dead backend to be known", || {
        (weir.metric("weir_backend_up", &[("backend", &dead.to_string())]) == 0.0).then_some(())
    });
    for round in 0..10 {
        weir.reloads(&with_checks(if round % 2 == 0 { "slow_start = \"1s\"" } else { "" }));
        for _ in 0..10 {
            assert_eq!(ask(&weir, "web").status, 200, "round {round}");
        }
    }
}

#[test]
fn a_reload_of_an_unchanged_file_changes_nothing() {
    let a = named("a");
    let text = config(WEB, "\"@a\"");
    let mut weir = Setup::of(&text).with("a", a.address()).start();
    let generation = weir.metric("weir_config_generation", &[]);
    weir.reloads(&text);
    assert_eq!(weir.metric("weir_config_generation", &[]), generation);
    assert_eq!(weir.metric("weir_reloads_total", &[("result", "unchanged")]), 1.0);
}

#[test]
fn a_hundred_reloads_leave_no_descriptors_threads_or_memory_behind() {
    let (a, b) = (named("a"), named("b"));
    let mut weir = Setup::of(&config(WEB, "\"@a\"")).with("a", a.address()).with("b", b.address()).start();
    let cycle = |weir: &mut weir_tests::dialogue::Weir, count: usize| {
        for round in 0..count {
            let listeners = if round % 2 == 0 { format!("{WEB}{OTHER}") } else { WEB.to_owned() };
            weir.rewrites(&config(&listeners, if round % 2 == 0 { "\"@a\", \"@b\"" } else { "\"@a\"" }));
            let answer = weir.admin().calls("POST", "/v1/reload", &[], "{}");
            assert_eq!(answer.status(), 200, "{:?}", answer.response);
            ask(weir, "web");
        }
    };
    cycle(&mut weir, 20);
    let before = weir.usage();
    cycle(&mut weir, 100);
    until("descriptors to be back where they were", || {
        (weir.usage().descriptors <= before.descriptors + 2).then_some(())
    });
    let after = weir.usage();
    assert_eq!(after.threads, before.threads);
    println!(
        "resident: {} KiB before, {} KiB after 100 reloads",
        before.resident_bytes >> 10,
        after.resident_bytes >> 10
    );
    assert!(
        after.resident_bytes < before.resident_bytes + (4 << 20),
        "memory grew by {} KiB",
        (after.resident_bytes - before.resident_bytes) >> 10
    );
}

/// Who is believed is asked for each request, not for each connection.
#[test]
fn a_kept_connection_is_believed_as_the_config_in_force_says() {
    let backend = Backend::serving(|request, wire| {
        let told = |name| request.fields.one(name).unwrap_or("none").to_owned();
        wire.answers(200, &[], format!("{} {}", told("x-forwarded-for"), told("x-forwarded-proto")));
        After::Keep
    });
    let with = |trust: &str| {
        format!(
            "[listener.web]\nbind = \"@web\"\npool = \"app\"\n{trust}\n[pool.app]\nbackends = [\"@app\"]\n"
        )
    };
    let trusting = with("trusted_proxies = [\"127.0.0.1\"]");
    let mut weir = Setup::of(&trusting).with("app", backend.address()).start();
    let mut kept = weir.client("web");
    let told = |kept: &mut Wire| {
        kept.sends(
            "GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.9\r\nx-forwarded-proto: https\r\n\r\n",
        );
        kept.receives_status(200).text()
    };
    let (believed, not) = ("192.0.2.9, 127.0.0.1 https", "127.0.0.1 http");
    assert_eq!(told(&mut kept), believed);
    weir.reloads(&with(""));
    assert_eq!([told(&mut kept), told(&mut weir.client("web"))], [not, not]);
    weir.reloads(&trusting);
    assert_eq!([told(&mut kept), told(&mut weir.client("web"))], [believed, believed]);
}
