//! Several logs at once: who writes to which, what a log leaves out, and that no line is lost on the way.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_tests::dialogue::{After, Backend, NO_HEALTH, ONE_POOL, Sets, Setup, Signal, Weir, Wire, until};

const SEVERAL: &str = r#"
    [log]
    access = "@dir/main.log"
    line = "$listener $target"
    [access_log.audit]
    target = "@dir/audit.log"
    fields = { who = "$header.x-user" }
    [access_log.failed]
    target = "@dir/failed.log"
    line = "$status $target $end"
    status = ["4xx", "5xx"]
    except_done = true
    [access_log.sample]
    target = "@dir/sample.log"
    line = "$request_id $status"
    share = 0.2
    keep_errors = true
    [listener.web]
    bind = "@web"
    pool = "app"
    [[listener.web.route]]
    path = "/pay/*"
    access_logs = "audit"
    pool = "app"
    [[listener.web.route]]
    path = "/healthz"
    access_log = false
    respond = { status = 200 }
    [[listener.web.route]]
    path = "/gone"
    respond = { status = 410 }
    [[listener.web.route]]
    path = "/broken"
    pool = "nobody"
    [listener.other]
    bind = "@other"
    access_logs = ["main", "failed"]
    pool = "app"
    [listener.relay]
    protocol = "tcp"
    bind = "@relay"
    access_logs = "audit"
    pool = "app"
    [listener.quiet]
    protocol = "tcp"
    bind = "@quiet"
    access_log = false
    pool = "app"
    [pool.app]
    backends = ["@app"]
    health = "off"
    [pool.nobody]
    backends = ["@nobody"]
    health = "off"
    retry = { attempts = 0 }
"#;

fn ask(weir: &Weir, listener: &str, path: &str, more: &str) -> u16 {
    let mut client = weir.client(listener);
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{more}\r\n"));
    client.receives_response().status
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn each_listener_and_route_writes_to_the_logs_that_it_names() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(SEVERAL).with("app", backend.address()).start();
    for (listener, path, status) in [
        ("web", "/", 200),
        ("web", "/pay/1", 200),
        ("web", "/healthz", 200),
        ("web", "/gone", 410),
        ("web", "/broken", 502),
        ("other", "/o", 200),
        ("relay", "/r", 200),
        ("quiet", "/q", 200),
    ] {
        assert_eq!(ask(&weir, listener, path, "x-user: ann\r\n"), status, "{path}");
    }
    assert_eq!(sorted(weir.lines_of("main.log", 4)), ["other /o", "web /", "web /broken", "web /gone"]);
    assert_eq!(sorted(weir.lines_of("failed.log", 2)), ["410 /gone responded", "502 /broken connect_failed"]);
    let audit = weir.lines_of("audit.log", 5);
    let told = audit.iter().map(|line| {
        let line: Value = serde_json::from_str(line).expect("JSON");
        let text = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
        format!("{} {} {}", text("listener"), text("path"), text("who"))
    });
    assert_eq!(
        sorted(told.collect()),
        ["relay - -", "web / ann", "web /broken ann", "web /gone ann", "web /pay/1 ann"]
    );
    weir.reaches("weir_access_log_missing_total", &[("log", "failed"), ("reason", "filter")], 2.0);
    assert_eq!(weir.metric("weir_access_log_missing_total", &[("log", "main"), ("reason", "filter")]), 0.0);
    let explained = |path: &str| {
        let url = format!("http://{}{path}", weir.address("web"));
        weir.command(&["explain", "http", "GET", &url]).succeeded().to_owned()
    };
    assert!(explained("/pay/1").contains("logs     audit\n"), "{}", explained("/pay/1"));
    assert!(explained("/healthz").contains("logs     none\n"), "{}", explained("/healthz"));
    assert!(explained("/").contains("logs     main, audit, failed, sample\n"), "{}", explained("/"));
}

#[test]
fn a_sample_is_chosen_by_the_id_of_a_request_and_errors_are_always_in_it() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(SEVERAL).with("app", backend.address()).start();
    let mut client = weir.client("web");
    const REQUESTS: usize = 500;
    for _ in 0..2 {
        for number in 0..REQUESTS {
            client.sends(format!("GET / HTTP/1.1\r\nhost: a\r\nx-request-id: id-{number}\r\n\r\n"));
            client.receives_status(200);
        }
    }
    for _ in 0..3 {
        assert_eq!(ask(&weir, "web", "/broken", ""), 502);
    }
    let left_out = || weir.metric("weir_access_log_missing_total", &[("log", "sample"), ("reason", "share")]);
    let all = 2 * REQUESTS + 3;
    let lines = until("all lines to be written or left out", || {
        let lines: Vec<String> = weir.file("sample.log").lines().map(str::to_owned).collect();
        (lines.len() + left_out() as usize == all).then_some(lines)
    });
    let (errors, sampled): (Vec<&String>, Vec<&String>) =
        lines.iter().partition(|line| line.ends_with(" 502"));
    assert_eq!(errors.len(), 3, "{lines:#?}");
    assert!((REQUESTS / 10..REQUESTS / 2).contains(&(sampled.len() / 2)), "{} of {all}", sampled.len());
    // A request that was in the sample the first time was in it the second time.
    let (first, second) = sampled.split_at(sampled.len() / 2);
    assert_eq!(first, second);
}

#[test]
fn reloads_rotations_and_an_upgrade_lose_no_line_of_any_log() {
    let backend = Backend::saying("ok");
    let config = |audit: &str| {
        let logs = r#"
            [runtime]
            drain = "20s"
            [log]
            access = "@dir/main.log"
            [access_log.audit]
            target = "@dir/audit.log"
        "#;
        format!("{logs}\n{audit}\n{ONE_POOL}{NO_HEALTH}")
    };
    let (first, second) = (
        config("line = \"$target a\""),
        config("line = \"$target b\"\n[access_log.more]\ntarget = \"@dir/more.log\""),
    );
    let mut weir = Setup::of(&first).with("app", backend.address()).start();
    let address = weir.address("web");
    let is_over = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let crowd: Vec<_> = (0..3)
            .map(|number| {
                let is_over = &is_over;
                scope.spawn(move || {
                    let mut count = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let mut client = Wire::connect(address);
                        client.sends(format!(
                            "GET /{number}/{count} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
                        ));
                        client.receives_status(200);
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let end = Sets(&is_over);
        for round in 0..3 {
            weir.reloads(&second);
            for log in ["main", "audit"] {
                let place = weir.dir().join(format!("{log}.log"));
                fs::rename(&place, place.with_extension(format!("log.{round}"))).expect("rotate");
            }
            weir.signals(Signal::USR1);
            weir.reloads(&first);
        }
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
        until("the old process to be gone", || (!weir.is_running(old)).then_some(()));
        drop(end);
        crowd.into_iter().map(|one| one.join().expect("no request fails")).sum::<usize>()
    });
    for log in ["main", "audit"] {
        until(&format!("all {asked} lines of {log}"), || {
            let names = (0..3).map(|round| format!("{log}.log.{round}")).chain([format!("{log}.log")]);
            let lines: usize = names.map(|name| weir.file(&name).lines().count()).sum();
            assert!(lines <= asked, "{lines} lines of {asked} requests");
            (lines == asked).then_some(())
        });
    }
}

#[test]
fn a_log_of_what_took_long_and_one_of_its_own_fields_alone() {
    let config = r#"
        [log]
        access = "@dir/hour.log"
        slower_than = "1h"
        [access_log.moment]
        target = "@dir/moment.log"
        line = "$target"
        slower_than = "20ms"
        [access_log.own]
        target = "@dir/own.log"
        fields = { who = "$header.x-user", how = "$method" }
        standard_fields = false
        [listener.web]
        bind = "@web"
        pool = "app"
        access_logs = ["main", "moment", "own"]
        [pool.app]
        backends = ["@app"]
        health = "off"
    "#;
    // Longer than the limit however fast the machine is, and far below an hour however slow.
    let backend = Backend::serving(|_, wire| {
        std::thread::sleep(Duration::from_millis(40));
        wire.answers(200, &[], "late");
        After::Keep
    });
    let weir = Setup::of(config).with("app", backend.address()).start();
    assert_eq!(ask(&weir, "web", "/a", "x-user: ann\r\n"), 200);
    assert_eq!(ask(&weir, "web", "/b", ""), 200);
    assert_eq!(sorted(weir.lines_of("moment.log", 2)), ["/a", "/b"]);
    let own = sorted(weir.lines_of("own.log", 2));
    assert_eq!(own, [r#"{"how":"GET","who":"ann"}"#, r#"{"how":"GET"}"#]);
    weir.reaches("weir_access_log_missing_total", &[("log", "main"), ("reason", "filter")], 2.0);
    assert_eq!(weir.file("hour.log"), "");
}
