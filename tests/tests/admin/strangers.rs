//! The command line where things are not as it expects: another program at the admin address, a config that
//! is not for its eyes, an output that takes nothing.

use std::process::{Command, Stdio};

use std::sync::atomic::{AtomicBool, Ordering};

use weir_tests::dialogue::{After, Backend, ONE_POOL, PATIENCE, Setup, Signal, run_tool, until, weir_binary};

use super::two;

/// `reload` said "done", `drain` that the backend was drained, `status --json` printed `null`; all with 0.
#[test]
fn what_answers_and_is_no_weir_is_said_and_nothing_is_claimed_to_be_done() {
    for says in ["<html>It works</html>", "{}"] {
        let other = Backend::saying(says);
        let admin = other.address().to_string();
        for verb in [
            &["status"][..],
            &["reload"],
            &["drain", "app", "127.0.0.1:1"],
            &["enable", "app", "127.0.0.1:1"],
            &["add", "app", "127.0.0.1:1"],
            &["remove", "app", "127.0.0.1:1"],
            &["limits", "clear", "--all"],
            &["map", "set", "hosts", "a", "b"],
        ] {
            let finished = run_tool(&weir_binary(), &[verb, &["--admin", &admin]].concat(), b"", PATIENCE);
            assert!(finished.code == 1 && finished.stdout.is_empty(), "{says} {verb:?}: {finished:?}");
            assert!(finished.stderr.contains("version"), "{says} {verb:?}: {finished:?}");
        }
    }
    let other = Backend::saying("<html>It works</html>");
    let admin = other.address().to_string();
    for verb in [&["status", "--json"][..], &["cache", "purge", "--all"], &["maintenance", "on"]] {
        let finished = run_tool(&weir_binary(), &[verb, &["--admin", &admin]].concat(), b"", PATIENCE);
        assert!(finished.code == 1 && finished.stdout.is_empty(), "{verb:?}: {finished:?}");
    }
}

/// Each verb waited for a minute, and `reload` for two.
#[test]
fn a_weir_that_takes_connections_and_hangs_is_said_after_a_few_seconds() {
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    let backend = a.address().to_string();
    let verbs: [&[&str]; 11] = [
        &["status"],
        &["status", "--json"],
        &["reload"],
        &["drain", "app", &backend],
        &["enable", "app", &backend],
        &["add", "app", "127.0.0.1:1"],
        &["explain", "http", "GET", "http://a/"],
        &["cache", "purge", "--all"],
        &["limits", "show"],
        &["map", "show", "hosts"],
        &["maintenance", "on"],
    ];
    weir.signals(Signal::STOP);
    // At most half of what it was.
    let all: Vec<_> = std::thread::scope(|scope| {
        let asking: Vec<_> = verbs.iter().map(|verb| scope.spawn(|| weir.command(verb))).collect();
        asking.into_iter().map(|asked| asked.join().expect("it ends")).collect()
    });
    weir.signals(Signal::CONT);
    let admin = weir.admin().address().to_string();
    for (verb, finished) in verbs.iter().zip(all) {
        assert!(finished.code == 1 && finished.stdout.is_empty(), "{verb:?}: {finished:?}");
        for text in [&admin, "has answered nothing for", "not even /livez", "is stopped"] {
            assert!(finished.stderr.contains(text), "{verb:?}, no word of {text:?}: {finished:?}");
        }
        assert_eq!(finished.stderr.lines().count(), 1, "{verb:?}: {finished:?}");
    }
}

#[test]
fn an_answer_that_takes_long_is_waited_for_where_others_come() {
    let is_asked = AtomicBool::new(false);
    let slow = Backend::serving(move |request, wire| {
        if request.target == "/livez" {
            is_asked.store(true, Ordering::Relaxed);
            wire.answers(200, &[], "");
        } else {
            until("the other question", || is_asked.load(Ordering::Relaxed).then_some(()));
            wire.answers(200, &[], "{\"slow\": 1}");
        }
        After::Close
    });
    let admin = slow.address().to_string();
    let finished = run_tool(&weir_binary(), &["status", "--json", "--admin", &admin], b"", PATIENCE);
    assert!(finished.code == 0 && finished.stdout.contains("slow"), "{finished:?}");
}

/// Who may not read the config of the machine could not ask a Weir whose address they knew.
#[test]
fn who_names_the_admin_address_needs_no_config_file() {
    let (a, b) = (Backend::saying("a"), Backend::saying("b"));
    let weir = two(&a, &b);
    let admin = weir.admin().address().to_string();
    let elsewhere = weir.dir().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("a folder");
    let off = "[admin]\nbind = 'off'\n[listener.x]\nbind = '127.0.0.1:1'\npool = 'x'\n[pool.x]\nbackends = ['a:2']\n";
    std::fs::write(elsewhere.join("weir.toml"), off).expect("write");
    for config in ["", "/nonexistent/weir.toml"] {
        let asked = Command::new(weir_binary())
            .args(["status", "--admin", &admin])
            .current_dir(&elsewhere)
            .env("WEIR_CONFIG", config)
            .output()
            .expect("it starts");
        assert!(asked.status.success(), "{config:?}: {asked:?}");
    }
    // One that is named has to be there: it was to say something.
    let named = ["status", "--admin", &admin, "--config", "/nonexistent/weir.toml"];
    assert_eq!(run_tool(&weir_binary(), &named, b"", PATIENCE).code, 1);
}

/// Half a file with exit code 0 was taken for a whole one; and a panic ended whoever said a mistake there.
#[test]
fn what_an_output_does_not_take_is_a_failure_and_a_reader_that_has_left_is_none() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(ONE_POOL).with("app", backend.address()).start();
    let full = || Stdio::from(std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device"));
    let bad = weir.dir().join("bad.toml");
    std::fs::write(&bad, "[listener.web]\nbnd = 1\n").expect("write");
    let (good, bad) = (weir.config_path(), bad.display().to_string());
    for (arguments, code) in [
        (&["status", "--json", "--config", &good][..], 1),
        (&["man"][..], 1),
        (&["completions", "bash"][..], 1),
        (&["check", &good][..], 1),
        (&["check", &bad][..], 2),
    ] {
        let mut command = Command::new(weir_binary());
        let ended = command.args(arguments).stdout(full()).stderr(full()).status().expect("it starts");
        assert_eq!(ended.code(), Some(code), "{arguments:?}: a full disk");
        let left = || {
            let (read, write) = std::io::pipe().expect("a pipe");
            drop(read);
            Stdio::from(write)
        };
        let ended = command.stdout(left()).stderr(left()).status().expect("it starts");
        let code = if code == 1 { 0 } else { code };
        assert_eq!(ended.code(), Some(code), "{arguments:?}: nobody reads");
    }
}
