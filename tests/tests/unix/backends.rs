//! Backends at Unix sockets: whatever is spoken with one at an address.

use std::time::Duration;

use weir_tests::dialogue::{
    After, Authority, Backend, Door, PATIENCE, ScriptedBackend, Setup, Weir, fingerprint, free_address,
    pattern, run_tool, until, weir_binary,
};
use weir_tests::versions::{Behind, Client, Front, Part, VersionedBackend, run};

use super::fresh;

fn config(backends: &[&str], more: &str) -> String {
    let backends: Vec<String> = backends.iter().map(|name| format!("\"unix:{name}\"")).collect();
    format!(
        "[log]\naccess = \"@dir/access.log\"\n[listener.web]\nbind = \"@web\"\npool = \"app\"\n\
         [pool.app]\nbackends = [{}]\n{more}\n",
        backends.join(", ")
    )
}

const OFF: &str = "health = \"off\"";

fn ask(weir: &Weir) -> String {
    let mut client = weir.client("web");
    client.sends("GET /hello HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    let answer = client.receives_response();
    format!("{} {}", answer.status, answer.text())
}

fn state(weir: &Weir, name: &str) -> String {
    let backends = weir.admin().reads("/v1/pools/app").json()["backends"].clone();
    let all = backends.as_array().expect("backends");
    let found = all.iter().find(|it| it["address"] == format!("unix:{name}"));
    let found = found.unwrap_or_else(|| panic!("{name} is not in {backends}"));
    assert!(found["resolved"].is_null() || found["resolved"] == found["address"], "{found}");
    found["state"].as_str().expect("a state").to_owned()
}

#[test]
fn requests_are_balanced_over_a_path_and_an_abstract_name_and_connections_are_kept() {
    let (path, name) = (fresh("/"), fresh("@"));
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let doors = [Door::from_unix(&path, a.address()), Door::from_unix(&name, b.address())];
    let weir = Setup::of(&config(&[&path, &name], OFF)).start();
    let mut client = weir.client("web");
    for round in 0..20 {
        client.sends("GET /hello HTTP/1.1\r\nhost: a\r\n\r\n");
        let expected = if round % 2 == 0 { "a" } else { "b" };
        assert_eq!(client.receives_status(200).text(), expected);
    }
    // Kept by each worker for itself.
    for door in &doors {
        assert!(door.connections() <= 2, "{} connections for 10 requests", door.connections());
    }
    for name in [&path, &name] {
        let label = format!("unix:{name}");
        let labels = [("pool", "app"), ("backend", label.as_str())];
        assert_eq!(weir.metric("weir_backend_requests_total", &labels), 10.0);
        assert_eq!(state(&weir, name), "ready");
    }
    let lines = weir.lines_of("access.log", 20);
    let logged = |name: &str| lines.iter().filter(|line| line.contains(&format!("\"unix:{name}\""))).count();
    assert_eq!((logged(&path), logged(&name)), (10, 10));
    let explained = weir.command(&["explain", "http", "GET", "http://a/hello"]);
    assert!(explained.stdout.contains(&format!("unix:{path}")), "{explained:?}");
}

#[test]
fn bodies_pass_whole_in_every_version_over_and_without_tls() {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    run(Duration::from_secs(60), async {
        for behind in Behind::OVER_STREAMS {
            let backend = VersionedBackend::start(free_address(), behind, &authority, "shop");
            let name = fresh("@");
            let _door = Door::from_unix(&name, backend.address());
            let mut more = String::from(OFF);
            more += &format!("\nprotocol = \"{}\"", behind.protocol());
            if behind.is_tls() {
                more += "\ntls = { ca = \"@dir/ca.pem\", server_name = \"shop.example\" }";
            }
            let weir = authority.setup(&config(&[&name], &more)).start();
            let address = weir.address("web");
            let mut client =
                Client::connect(Front::Http1, &authority, address, "shop.example").await.expect("connects");
            let body = pattern(3, 3 << 20);
            let parts = vec![Part::Content(body.clone().into())];
            let answer = client.ask("POST", "/echo", &[], parts).await;
            let answer = answer.unwrap_or_else(|failed| panic!("{behind:?}: {failed:?}\n{}", weir.story()));
            assert_eq!(fingerprint(&answer.content), fingerprint(&body), "{behind:?}");
        }
    });
}

#[test]
fn bytes_of_tcp_pass_both_ways_with_their_ends_and_behind_the_proxy_header_of_the_client() {
    for version in ["v1", "v2"] {
        let backend = ScriptedBackend::start();
        let name = fresh("/");
        let _door = Door::from_unix(&name, backend.address());
        let weir = Setup::of(&format!(
            "[listener.front]\nprotocol = \"tcp\"\nbind = \"@front\"\npool = \"app\"\n\
             [pool.app]\nbackends = [\"unix:{name}\"]\nsend_proxy = \"{version}\"\n{OFF}\n"
        ))
        .start();
        let mut client = weir.client("front");
        let mut wire = backend.accepts();
        let (from, to) = (client.socket().local_addr().unwrap(), weir.address("front"));
        match version {
            "v1" => wire.receives_exactly(format!(
                "PROXY TCP4 127.0.0.1 127.0.0.1 {} {}\r\n",
                from.port(),
                to.port()
            )),
            _ => wire.receives_exactly(
                [
                    &b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x01"[..],
                    &from.port().to_be_bytes()[..],
                    &to.port().to_be_bytes()[..],
                ]
                .concat(),
            ),
        }
        // More than pipes and sockets hold: it is spliced.
        for client_first in [true, false] {
            let (first, second) =
                if client_first { (&mut client, &mut wire) } else { (&mut wire, &mut client) };
            let sent = pattern(1, 2 << 20);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    first.sends(&sent);
                    first.half_closes();
                });
                assert!(second.receives(sent.len()) == sent, "{version}");
                second.receives_end();
            });
        }
        until("the session to end", || {
            (weir.metric("weir_connections", &[("listener", "front")]) == 0.0).then_some(())
        });
    }
}

#[test]
fn probes_go_there_and_see_a_server_that_comes_and_goes() {
    let (path, other) = (fresh("/"), fresh("@"));
    let (sick, well) = (Backend::saying("a"), Backend::saying("b"));
    let _well = Door::from_unix(&other, well.address());
    let health = "health = { check = \"http\", interval = \"100ms\", fast_interval = \"20ms\", rise = 1, fall = 1, passive = \"off\" }";
    let weir = Setup::of(&config(&[&path, &other], health)).start();
    until("nobody to be found there", || (state(&weir, &path) == "down").then_some(()));
    assert_eq!(ask(&weir), "200 b");
    let door = Door::from_unix(&path, sick.address());
    until("it to be found up", || (state(&weir, &path) == "ready").then_some(()));
    until("it to be asked", || (ask(&weir) == "200 a").then_some(()));
    let probed = sick.requests().into_iter().find(|it| it.target == "/").expect("a probe");
    assert_eq!(probed.fields.one("host"), Some("localhost"));
    drop(door);
    until("it to be found down again", || (state(&weir, &path) == "down").then_some(()));
    // A probe that was under way finds its connection broken; the next one finds nobody.
    until("it to be found gone", || {
        let reason = weir.admin().reads("/v1/pools/app").json()["backends"][0]["reason"].clone();
        reason.as_str().is_some_and(|it| it.contains("no such file")).then_some(())
    });
}

#[test]
fn where_nobody_listens_another_is_tried_and_without_another_it_is_502() {
    let (gone, there) = (fresh("/"), fresh("@"));
    let backend = Backend::saying("there");
    let _door = Door::from_unix(&there, backend.address());
    let weir = Setup::of(&config(&[&gone, &there], OFF)).start();
    for _ in 0..4 {
        assert_eq!(ask(&weir), "200 there");
    }
    let alone = Setup::of(&config(&[&gone], OFF)).start();
    assert!(ask(&alone).starts_with("502 "), "{}", ask(&alone));
}

/// A socket has no reset to say that what came is not whole: an answer that ends with the connection is
/// believed, one with a length is not.
#[test]
fn an_answer_that_is_cut_is_noticed_where_it_says_its_length() {
    let cut = Backend::serving(|request, wire| {
        let length = if request.target == "/length" { "content-length: 100\r\n" } else { "" };
        wire.sends(format!("HTTP/1.1 200 OK\r\n{length}\r\nhalf"));
        After::Close
    });
    let name = fresh("@");
    let _door = Door::from_unix(&name, cut.address());
    let weir = Setup::of(&config(&[&name], OFF)).start();
    for (target, is_whole) in [("/length", false), ("/without", true)] {
        let mut client = weir.client("web");
        client.sends(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"));
        let answer = client.tries_to_receive_response("GET");
        assert_eq!(answer.is_ok(), is_whole, "{target}: {answer:?}");
    }
}

#[test]
fn operators_name_such_a_backend_as_the_config_does() {
    let (one, other) = (fresh("/"), fresh("/"));
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let _doors = [Door::from_unix(&one, a.address()), Door::from_unix(&other, b.address())];
    let weir = Setup::of(&config(&[&one, &other], OFF)).start();
    let drained = weir.command(&["drain", "app", &format!("unix:{one}")]);
    assert_eq!(drained.code, 0, "{drained:?}");
    assert_eq!(state(&weir, &one), "draining");
    for _ in 0..4 {
        assert_eq!(ask(&weir), "200 b");
    }
    assert_eq!(weir.command(&["enable", "app", &format!("unix:{one}")]).code, 0);
    until("it to be asked again", || (ask(&weir) == "200 a").then_some(()));

    let third = fresh("@");
    let c = Backend::saying("c");
    let _third = Door::from_unix(&third, c.address());
    let add = |address: &str| {
        let body = format!("{{\"address\": \"{address}\"}}");
        weir.admin().calls("POST", "/v1/pools/app/backends", &[], &body).status()
    };
    assert_eq!(add(&format!("unix:{third}")), 201);
    until("the new one to be asked", || (ask(&weir) == "200 c").then_some(()));
    assert_eq!(add("unix:relative"), 400);
    let words = ["check", &weir.config_path(), "--online"];
    let online = run_tool(&weir_binary(), &words, b"", PATIENCE);
    assert!(online.stdout.contains(&format!("app/unix:{one}")) && online.code == 0, "{online:?}");
}
