//! What is counted together, and what is not.

use weir_tests::dialogue::{Setup, free_address, until};

use super::{Secret, ask, config, group, has_left, left, start};

const BY_USER: &str = r#"rate_limit = { rate = "6/1h", burst = 6, key = "header:x-user" }"#;

#[test]
fn who_is_refused_at_one_is_refused_at_the_other() {
    let secret = Secret::of("a secret of two Weirs");
    let weirs = group(2, &secret, BY_USER);
    assert!((0..6).all(|_| ask(&weirs[0], "ann") == 200));
    assert_eq!(ask(&weirs[0], "ann"), 429);
    has_left(&weirs[1], "ann", 0);
    assert_eq!((ask(&weirs[1], "ann"), ask(&weirs[1], "bob")), (429, 200));
    let shown = weirs[1].command(&["limits", "show"]).succeeded().to_owned();
    assert!(shown.contains("counted together with the other Weirs"), "{shown}");
    let status = weirs[0].command(&["status"]).succeeded().to_owned();
    assert!(status.contains("peers: 1 limits counted together, 1 of 1 listened to at "), "{status}");
    assert!(status.contains(" told\n"), "{status}");
}

#[test]
fn a_limit_holds_over_the_sum_of_three() {
    for keys in [BY_USER, r#"rate_limit = { rate = "6/1h", burst = 6, key = "listener" }"#] {
        let secret = Secret::of("a secret of three Weirs");
        let weirs = group(3, &secret, keys);
        for weir in &weirs {
            assert_eq!(ask(weir, "ann"), 200);
        }
        weirs.iter().for_each(|weir| has_left(weir, "ann", 3));
        for weir in &weirs {
            assert_eq!(ask(weir, "ann"), 200);
        }
        for weir in &weirs {
            has_left(weir, "ann", 0);
            assert_eq!(ask(weir, "ann"), 429);
        }
    }
}

/// What a client got too much while the Weirs did not yet know of each other, it owes.
#[test]
fn a_flood_at_two_at_once_is_counted_by_both_to_the_last_request() {
    let secret = Secret::of("a secret of two Weirs");
    let keys = r#"rate_limit = { rate = "1/1h", burst = 20, key = "header:x-user" }"#;
    let weirs = group(2, &secret, keys);
    let flood = |weir| (0..60).filter(|_| ask(weir, "ann") == 200).count();
    let admitted: usize = std::thread::scope(|scope| {
        let floods: Vec<_> = weirs.iter().map(|weir| scope.spawn(move || flood(weir))).collect();
        floods.into_iter().map(|flood| flood.join().unwrap()).sum()
    });
    assert!((20..=40).contains(&admitted), "{admitted}");
    // Hours until there is a token: one more than those that were taken beyond the burst.
    let hours = |weir: &weir_tests::dialogue::Weir| {
        let limits = weir.admin().reads("/v1/limits").json();
        limits["limits"][0]["refused"][0]["let_in_after_seconds"].as_f64().map(|wait| (wait / 3600.0).ceil())
    };
    for weir in &weirs {
        until(&format!("{admitted} to be known"), || (hours(weir)? == (admitted - 19) as f64).then_some(()));
    }
}

#[test]
fn answers_are_counted_together_too_so_who_guesses_at_one_is_kept_out_everywhere() {
    let keys = r#"rate_limit = { rate = "2/1h", statuses = [200], key = "client_ip" }"#;
    let secret = Secret::of("a secret of two Weirs");
    let weirs = group(2, &secret, keys);
    assert_eq!((ask(&weirs[0], ""), ask(&weirs[0], "")), (200, 200));
    has_left(&weirs[1], "", 0);
    assert_eq!(ask(&weirs[1], ""), 429);
}

#[test]
fn whom_an_operator_clears_at_one_is_cleared_at_all() {
    let secret = Secret::of("a secret of three Weirs");
    let weirs = group(3, &secret, BY_USER);
    for user in ["ann", "bob"] {
        assert!((0..6).all(|_| ask(&weirs[0], user) == 200));
    }
    weirs.iter().for_each(|weir| has_left(weir, "ann", 0));
    weirs.iter().for_each(|weir| has_left(weir, "bob", 0));
    weirs[1].command(&["limits", "clear", "--key", "ann"]).succeeded();
    weirs.iter().for_each(|weir| has_left(weir, "ann", 6));
    assert_eq!((ask(&weirs[2], "ann"), ask(&weirs[2], "bob")), (200, 429));
    weirs[2].command(&["limits", "clear", "--all"]).succeeded();
    weirs.iter().for_each(|weir| has_left(weir, "bob", 6));
}

#[test]
fn a_limit_that_is_not_shared_is_counted_alone_and_so_are_all_without_peers() {
    let keys = r#"
        rate_limit = [
          { rate = "6/1h", burst = 6, key = "header:x-user" },
          { rate = "2/1h", burst = 2, key = "listener", share = false },
        ]"#;
    let secret = Secret::of("a secret of two Weirs");
    let weirs = group(2, &secret, keys);
    assert_eq!((ask(&weirs[0], "ann"), ask(&weirs[0], "ann"), ask(&weirs[0], "ann")), (200, 200, 429));
    has_left(&weirs[1], "ann", 4);
    assert_eq!((ask(&weirs[1], "ann"), ask(&weirs[1], "ann"), ask(&weirs[1], "ann")), (200, 200, 429));
    weirs.iter().for_each(|weir| assert_eq!(weir.metric("weir_peers_limits", &[]), 1.0));
    let alone = config(&[], keys);
    let alone = alone.split("[listener.web]").nth(1).map(|rest| format!("[listener.web]{rest}")).unwrap();
    let alone = Setup::of(&alone).start();
    let shown = alone.command(&["limits", "show"]).succeeded().to_owned();
    assert!(!shown.contains("together with"), "{shown}");
    assert!(alone.admin().metrics().iter().all(|sample| !sample.name.starts_with("weir_peers_")));
}

#[test]
fn weirs_whose_limits_differ_count_alone_what_differs_and_say_so() {
    let secret = Secret::of("a secret of two Weirs");
    let addresses = [free_address(), free_address()];
    let other = BY_USER.replace("burst = 6", "burst = 5");
    let weirs =
        [start(addresses[0], &addresses, &secret, BY_USER), start(addresses[1], &addresses, &secret, &other)];
    weirs.iter().for_each(|weir| super::finds(weir, 1));
    assert!((0..6).all(|_| ask(&weirs[0], "ann") == 200));
    until("it to be said", || (weirs[1].metric("weir_peers_unknown_total", &[]) > 0.0).then_some(()));
    assert_eq!(left(&weirs[1], "ann"), 5);
}
