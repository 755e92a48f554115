//! A backend that comes, goes or changes at run time concerns its own pool and nothing else.

use std::fmt::Write as _;
use std::time::Duration;

use weir_tests::dialogue::{Authority, Backend, Setup, Weir, processor_time_of, until};

fn add(weir: &Weir, pool: &str, address: &str) {
    let body = format!(r#"{{"address": "{address}"}}"#);
    let answer = weir.admin().calls("POST", &format!("/v1/pools/{pool}/backends"), &[], &body);
    assert_eq!(answer.status(), 201, "{:?}\n{}", answer.response, weir.story());
}

fn remove(weir: &Weir, pool: &str, address: &str) {
    let answer = weir.admin().calls("DELETE", &format!("/v1/pools/{pool}/backends/{address}"), &[], "");
    assert_eq!(answer.status(), 200, "{:?}\n{}", answer.response, weir.story());
}

#[test]
fn a_backend_is_added_and_removed_though_every_file_for_tls_is_gone() {
    const CONFIG: &str = r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        tls = { certificates = [{ cert = "@dir/web.pem", key = "@dir/web.key" }], client_ca = "@dir/ca.pem" }
        [pool.app]
        backends = ["@a"]
        health = "off"
        tls = { ca = "@dir/ca.pem", cert = "@dir/web.pem", key = "@dir/web.key", server_name = "app.example" }
        [pool.other]
        backends = ["@b"]
        health = "off"
        tls = { ca = "@dir/ca.pem", server_name = "app.example" }
    "#;
    let authority = Authority::new().signs("web", &["web.example"]);
    let weir = authority.setup(CONFIG).start();
    for file in ["web.pem", "web.key", "ca.pem"] {
        std::fs::remove_file(weir.dir().join(file)).expect("remove");
    }
    for pool in ["app", "other"] {
        add(&weir, pool, "127.0.0.1:81");
        remove(&weir, pool, "127.0.0.1:81");
    }
    assert_eq!(weir.metric("weir_config_generation", &[]), 5.0);
}

#[test]
fn probes_of_other_backends_go_on_as_if_nothing_had_happened() {
    let (probed, other) = (Backend::saying("probed"), Backend::saying("other"));
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@a"]
        health = { check = "http", interval = "1h", timeout = "60s", rise = 1 }
        [pool.other]
        backends = ["@b"]
        health = { check = "http", interval = "1h", timeout = "60s", rise = 1 }
        "#,
    )
    .with("a", probed.address())
    .with("b", other.address())
    .start();
    let is_known = |backend: &Backend| backend.served() == 1;
    until("the first probes", || (is_known(&probed) && is_known(&other)).then_some(()));
    let newcomer = Backend::saying("newcomer");
    let address = newcomer.address().to_string();
    for round in 1..=5 {
        add(&weir, "app", &address);
        until("the newcomer to be probed", || (newcomer.served() == round).then_some(()));
        remove(&weir, "app", &address);
    }
    assert_eq!((probed.served(), other.served()), (1, 1));
}

#[test]
fn a_backend_that_another_pool_has_too_is_up_or_down_there_as_its_probes_say() {
    let a = Backend::saying("a");
    let dead = Backend::saying("dead").dies();
    let weir = Setup::of(
        r#"
        [listener.web]
        bind = "@web"
        pool = "app"
        [pool.app]
        backends = ["@a", "@dead"]
        health = { check = "tcp", interval = "2s", fast_interval = "50ms", fall = 2 }
        [pool.other]
        backends = ["@a"]
        health = { check = "tcp", interval = "2s", fast_interval = "50ms", fall = 2 }
        "#,
    )
    .with("a", a.address())
    .with("dead", dead)
    .start();
    let state = |pool: &str| {
        let status = weir.admin().reads(&format!("/v1/pools/{pool}")).json();
        let backends = status["backends"].as_array().expect("backends").clone();
        let of_dead = backends.into_iter().find(|backend| backend["address"] == dead.to_string());
        of_dead.map(|backend| backend["state"].as_str().expect("a state").to_owned())
    };
    until("the dead backend to be known", || (state("app")? == "down").then_some(()));
    add(&weir, "other", &dead.to_string());
    assert_eq!(state("other").as_deref(), Some("down"), "it is known at once, without a probe of its own");
    // The pool that it is removed from has no part in its probes any more, the other one has.
    remove(&weir, "app", &dead.to_string());
    let _alive = Backend::serving_at(dead, |_, wire| {
        wire.answers(200, &[], "alive");
        weir_tests::dialogue::After::Keep
    });
    until("the backend to be up again", || (state("other")? == "ready").then_some(()));
    remove(&weir, "other", &dead.to_string());
    add(&weir, "other", &dead.to_string());
    assert_eq!(state("other").as_deref(), Some("ready"));
}

/// Processor time of one backend coming and going, with this many pools of a hundred.
fn cost_with(pools: usize) -> Duration {
    const CHANGES: u32 = 20;
    let mut text = String::from("[listener.web]\nbind = \"@web\"\npool = 'p0'\n");
    for pool in 0..pools {
        let backends: Vec<String> = (1..=100).map(|last| format!("'10.1.{pool}.{last}:80'")).collect();
        let _ = writeln!(
            text,
            "[pool.p{pool}]\nbackends = [{}]\nhealth = 'off'\nbalance = 'maglev'",
            backends.join(", ")
        );
    }
    let weir = Setup::of(&text).start();
    let pid = weir.pid();
    let before = processor_time_of(pid);
    for _ in 0..CHANGES {
        add(&weir, "p0", "10.9.9.9:80");
        remove(&weir, "p0", "10.9.9.9:80");
    }
    (processor_time_of(pid) - before) / CHANGES
}

#[test]
fn what_one_backend_costs_does_not_grow_with_the_number_of_other_pools() {
    // Every pool has a table of 65,537 slots to be filled: once for the pool that is changed, or thirty
    // times.
    let (alone, among_many) = (cost_with(1), cost_with(30));
    assert!(among_many < 5 * alone, "{alone:?} alone, {among_many:?} among 30 pools");
}
