//! The short form of the `soak` program, and what it has found.

use weir_tests::dialogue::{Authority, Draws, Setup, Signal, until, usage_of};
use weir_tests::soak::{SoakPlan, soak};

use super::{ask, named};

#[test]
fn mixed_clients_notice_nothing_of_changes_and_leave_nothing_behind() {
    let report = soak(&SoakPlan {
        seconds: 20,
        rate: 40,
        change_every_ms: 800,
        upgrades: true,
        seed: Draws::new().below(1 << 30),
        program: env!("CARGO_BIN_EXE_soak").into(),
        keep: None,
        keep_always: false,
        progress: false,
    });
    print!("{}", report.text());
    assert_eq!(report.failed(), 0, "{}", report.text());
    assert!(report.changed("reload") > 0, "{}", report.text());
}

#[test]
fn a_process_holds_nothing_of_those_that_ended_before_it() {
    // Sockets to the workers of every earlier process were handed on from process to process, for ever.
    let backend = named("a");
    let config = r#"
        [runtime]
        workers = 4
        [listener.web]
        bind = "@web"
        http = ["h1", "h2", "h3"]
        pool = "app"
        tls = { certificates = [{ cert = "@dir/site.pem", key = "@dir/site.key" }] }
        [pool.app]
        backends = ["@app"]
        health = "off"
        "#;
    let authority = Authority::new().signs("site", &["a.test"]);
    let weir = authority.setup(config).with("app", backend.address()).start();
    let upgraded = || {
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until("the old process to end", || (!weir.is_running(old)).then_some(()));
        weir.pid()
    };
    upgraded();
    let second = usage_of(upgraded()).expect("running").descriptors;
    (0..3).for_each(|_| {
        upgraded();
    });
    let last = upgraded();
    until(&format!("process {last} to have {second} descriptors, as one after two upgrades"), || {
        (usage_of(last)?.descriptors <= second).then_some(())
    });
}

#[test]
fn a_listener_that_was_removed_right_before_an_upgrade_comes_back_right_behind_it() {
    // The old process still held the address, and the reload failed: "Address already in use".
    let backend = named("a");
    let without = "[listener.web]\nbind = \"@web\"\npool = \"app\"\n[pool.app]\nbackends = [\"@app\"]\n\
                   health = \"off\"\n";
    let with = format!("{without}[listener.extra]\nbind = \"@extra\"\npool = \"app\"\n");
    let mut weir = Setup::of(&with).with("app", backend.address()).start();
    weir.reloads(without);
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let admin = weir.admin();
    until("the new process to answer", || {
        let answer = admin.tries_to_read("/v1/status")?;
        (answer.status() == 200 && answer.json()["pid"] != old).then_some(())
    });
    weir.reloads(&with);
    assert_eq!(ask(&weir, "extra").text(), "a");
}
