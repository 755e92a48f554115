//! Weirs that come, go, reload and are upgraded.

use std::sync::atomic::{AtomicBool, Ordering};

use weir_tests::dialogue::{Signal, Weir, free_address, until};

use super::{Secret, ask, config, finds, group, has_left, start};

const BY_USER: &str = r#"rate_limit = { rate = "60/1h", burst = 60, key = "header:x-user" }"#;

#[test]
fn one_that_was_killed_and_comes_again_learns_what_all_have_counted() {
    let secret = Secret::of("a secret of three Weirs");
    let mut weirs = group(3, &secret, BY_USER);
    for (weir, user) in weirs.iter().zip(["ann", "bob", "eve"]) {
        assert!((0..60).all(|_| ask(weir, user) == 200));
    }
    for weir in &weirs {
        ["ann", "bob", "eve"].iter().for_each(|user| has_left(weir, user, 0));
    }
    weirs[2].signals(Signal::KILL);
    weirs[2].starts_again();
    ["ann", "bob", "eve"].iter().for_each(|user| has_left(&weirs[2], user, 0));
    assert_eq!(ask(&weirs[2], "eve"), 429, "what it had counted itself comes back from the others");
    // And it is one of them again.
    assert!((0..60).all(|_| ask(&weirs[2], "joe") == 200));
    weirs.iter().for_each(|weir| has_left(weir, "joe", 0));
}

#[test]
fn a_reload_keeps_what_was_counted_and_counts_on_together() {
    let secret = Secret::of("a secret of three Weirs");
    let addresses = [free_address(), free_address(), free_address()];
    let both = &addresses[..2];
    let mut weirs: Vec<Weir> = both.iter().map(|at| start(*at, both, &secret, BY_USER)).collect();
    weirs.iter().for_each(|weir| finds(weir, 1));
    assert!((0..10).all(|_| ask(&weirs[0], "ann") == 200));
    has_left(&weirs[1], "ann", 50);
    // A third Weir, and another limit beside the one that stays. One after the other, as sites do it.
    let more = r#"
        rate_limit = [
          { rate = "60/1h", burst = 60, key = "header:x-user" },
          { rate = "600/1h", burst = 600, key = "listener" },
        ]"#;
    weirs[0].reloads(&config(&addresses, more));
    assert!((0..10).all(|_| ask(&weirs[0], "ann") == 200));
    has_left(&weirs[1], "ann", 40);
    weirs[1].reloads(&config(&addresses, more));
    weirs.push(start(addresses[2], &addresses, &secret, more));
    for weir in &weirs {
        finds(weir, 2);
        has_left(weir, "ann", 40);
    }
    let limits = weirs[2].command(&["limits", "show"]).succeeded().to_owned();
    assert_eq!(limits.matches("together with").count(), 2, "{limits}");
    // The second one has learned of the new limit only after the first had counted for it.
    let tracked = |weir: &Weir| {
        let limits = weir.admin().reads("/v1/limits").json();
        limits["limits"].as_array().unwrap().iter().filter(|limit| limit["tracked_count"] == 1).count()
    };
    weirs.iter().for_each(|weir| until("all to know both limits", || (tracked(weir) == 2).then_some(())));
    // Another secret for all of them: they are strangers until the last one has it.
    std::fs::write(&secret.0, "another secret of three").unwrap();
    for weir in &mut weirs {
        weir.command(&["reload"]).succeeded();
    }
    weirs.iter().for_each(|weir| finds(weir, 2));
    assert!((0..10).all(|_| ask(&weirs[0], "ann") == 200));
    weirs.iter().for_each(|weir| has_left(weir, "ann", 50));
    // Without peers it counts alone.
    let alone = config(&[], more);
    let alone = alone.split("[listener.web]").nth(1).map(|rest| format!("[listener.web]{rest}")).unwrap();
    weirs[2].reloads(&alone);
    has_left(&weirs[2], "ann", 60);
    weirs[..2].iter().for_each(|weir| finds(weir, 1));
}

/// Sends USR2 and waits until another process answers.
fn upgrade(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    let admin = weir.admin();
    until("the new process to answer", || {
        let pid = admin.tries_to_read("/v1/status")?.json()["pid"].as_u64()?;
        (pid != u64::from(old)).then_some(())
    });
}

#[test]
fn an_upgrade_under_traffic_loses_no_count_and_the_others_follow_the_new_process() {
    let secret = Secret::of("a secret of two Weirs");
    let weirs = group(2, &secret, BY_USER);
    assert!((0..60).all(|_| ask(&weirs[0], "ann") == 200));
    assert!((0..60).all(|_| ask(&weirs[1], "bob") == 200));
    has_left(&weirs[0], "bob", 0);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut asked = 0;
            while !ends.load(Ordering::Relaxed) || asked < 100 {
                let status = ask(&weirs[0], &format!("user {asked}"));
                assert_eq!(status, 200);
                asked += 1;
            }
        });
        for _ in 0..2 {
            upgrade(&weirs[0]);
            finds(&weirs[0], 1);
            has_left(&weirs[0], "ann", 0);
            has_left(&weirs[0], "bob", 0);
        }
        ends.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
    });
    assert_eq!((ask(&weirs[0], "ann"), ask(&weirs[0], "bob")), (429, 429));
    assert!((0..60).all(|_| ask(&weirs[1], "eve") == 200));
    has_left(&weirs[0], "eve", 0);
    assert!((0..60).all(|_| ask(&weirs[0], "joe") == 200));
    has_left(&weirs[1], "joe", 0);
}

#[test]
fn a_weir_that_is_its_only_peer_keeps_its_counts_over_an_upgrade() {
    let secret = Secret::of("a secret of one Weir");
    let at = free_address();
    let weir = start(at, &[at], &secret, BY_USER);
    assert!((0..60).all(|_| ask(&weir, "ann") == 200));
    upgrade(&weir);
    has_left(&weir, "ann", 0);
    assert_eq!((ask(&weir, "ann"), ask(&weir, "bob")), (429, 200));
}
