//! Files of logs that can't be opened, at a start, an upgrade, a reload or a rotation, or take no more.

use std::fs;

use weir_tests::dialogue::{Backend, ONE_POOL, Setup, Signal, Weir, tool, until};

const LOGS: &str = r#"
[log]
access = "@dir/logs/access.log"
[access_log.own]
target = "@dir/logs/own.log"
line = "$target"
"#;

/// Has a folder `logs` beside the config before Weir starts.
const FOLDER: &str = "mkdir \"$(dirname \"$4\")/logs\" && exec \"$@\"";

fn setup(backend: &Backend) -> Setup {
    Setup::of(&format!("{LOGS}{ONE_POOL}health = \"off\"")).with("app", backend.address())
}

fn ask(weir: &Weir, path: &str) {
    let mut client = weir.client("web");
    client.sends(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"));
    client.receives_status(200);
}

fn waits(weir: &Weir, log: &str) -> bool {
    weir.metric("weir_access_log_waiting", &[("log", log)]) == 1.0
}

/// The folder comes, and with it every line that waited.
fn lines_come(weir: &Weir, paths: &[&str]) {
    fs::create_dir(weir.dir().join("logs")).expect("a folder");
    // Those of different workers in any order.
    let mut own = weir.lines_of("logs/own.log", paths.len());
    own.sort_unstable();
    assert_eq!(own, paths);
    let usual = weir.lines_of("logs/access.log", paths.len());
    for path in paths {
        let said = format!("\"path\":\"{path}\"");
        assert_eq!(usual.iter().filter(|line| line.contains(&said)).count(), 1, "{path}: {usual:?}");
    }
    until("nothing to wait", || (!waits(weir, "main") && !waits(weir, "own")).then_some(()));
}

/// It was refused, and a service manager did not try again.
#[test]
fn a_start_whose_logs_cannot_be_opened_serves_and_keeps_their_lines() {
    let backend = Backend::saying("ok");
    let weir = setup(&backend).start();
    assert!(waits(&weir, "main") && waits(&weir, "own"));
    for path in ["/a", "/b"] {
        ask(&weir, path);
    }
    let said = weir.stderr();
    let (folder, file) = (weir.dir().join("logs"), weir.dir().join("logs/own.log"));
    for text in [
        "weir.toml:3:",
        "No such file or directory",
        &format!("make {}", folder.display()),
        &file.display().to_string(),
        "serving all the same",
    ] {
        assert!(said.contains(text), "no word of {text:?}: {said}");
    }
    let shown = weir.command(&["status"]);
    assert!(
        shown.stdout.contains(&format!("access log `own` waits: {}: No such", file.display())),
        "{shown:?}"
    );
    lines_come(&weir, &["/a", "/b"]);
    assert!(!weir.command(&["status"]).stdout.contains("waits"));
}

/// Nobody asks: it is opened all the same, so that whoever has mended it sees so.
#[test]
fn a_log_is_opened_once_it_can_be_without_a_line() {
    let backend = Backend::saying("ok");
    let weir = setup(&backend).start();
    lines_come(&weir, &[]);
    assert!(weir.dir().join("logs/access.log").exists() && weir.dir().join("logs/own.log").exists());
}

#[test]
fn an_upgrade_goes_on_where_the_logs_cannot_be_opened_any_more() {
    let backend = Backend::saying("ok");
    let weir = setup(&backend).under(&["sh", "-c", FOLDER, "sh"]).start();
    ask(&weir, "/before");
    weir.lines_of("logs/own.log", 1);
    fs::remove_dir_all(weir.dir().join("logs")).expect("no folder");
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
    ask(&weir, "/after");
    assert!(waits(&weir, "main") && waits(&weir, "own"), "{}", weir.stderr());
    lines_come(&weir, &["/after"]);
}

/// It was refused because of the log that was open already; and a log that is not open yet would be no log.
#[test]
fn a_reload_goes_on_with_logs_that_are_open_and_is_refused_for_new_ones_that_cannot_be_opened() {
    let backend = Backend::saying("ok");
    let mut weir = setup(&backend).under(&["sh", "-c", FOLDER, "sh"]).start();
    let folder = weir.dir().join("logs");
    fs::rename(&folder, weir.dir().join("moved")).expect("another folder");
    let other = format!("{LOGS}{ONE_POOL}health = \"off\"\nslow_start = \"1s\"");
    weir.rewrites(&other);
    let reloaded = weir.command(&["reload"]);
    assert_eq!(reloaded.code, 0, "{reloaded:?}");
    assert!(reloaded.stderr.contains("can't be opened by this process as it is"), "{reloaded:?}");
    ask(&weir, "/a");
    assert_eq!(weir.lines_of("moved/own.log", 1), ["/a"]);
    weir.rewrites(&other.replace("logs/own.log", "none/own.log"));
    let refused = weir.command(&["reload"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    let none = weir.dir().join("none");
    for text in
        [format!("`own`, {}/own.log", none.display()), format!("make {}, which is not there", none.display())]
    {
        assert!(refused.stderr.contains(&text), "no word of {text:?}: {refused:?}");
    }
    ask(&weir, "/b");
    assert_eq!(weir.lines_of("moved/own.log", 2), ["/a", "/b"]);
}

/// What went to it had no name any more, and its room on the disk was never free.
#[test]
fn a_log_that_was_deleted_is_made_anew() {
    let backend = Backend::saying("ok");
    let weir = Setup::of(&format!("[log]\naccess = '@dir/access.log'\n{ONE_POOL}health = \"off\""))
        .with("app", backend.address())
        .start();
    ask(&weir, "/first");
    weir.lines_of("access.log", 1);
    fs::remove_file(weir.dir().join("access.log")).expect("deleted");
    ask(&weir, "/second");
    let lines = weir.lines_of("access.log", 1);
    assert!(lines.len() == 1 && lines[0].contains("/second"), "{lines:?}");
}

/// Lines went to the file that was moved away until the next USR1, and were gone with it.
#[test]
fn a_rotation_that_finds_no_folder_is_made_up_for_when_there_is_one() {
    let backend = Backend::saying("ok");
    let weir = setup(&backend).under(&["sh", "-c", FOLDER, "sh"]).start();
    fs::rename(weir.dir().join("logs"), weir.dir().join("moved")).expect("another folder");
    weir.signals(Signal::USR1);
    until("a word of it", || weir.stderr().contains("writing on to the old file").then_some(()));
    ask(&weir, "/old");
    assert_eq!(weir.lines_of("moved/own.log", 1), ["/old"]);
    fs::create_dir(weir.dir().join("logs")).expect("a folder");
    until("a line in the new file", || {
        ask(&weir, "/new");
        (!weir.file("logs/own.log").is_empty() && !weir.file("logs/access.log").is_empty()).then_some(())
    });
}

/// The kernel ended the process.
#[test]
fn a_limit_on_the_size_of_files_costs_lines_and_nothing_else() {
    let backend = Backend::saying("ok");
    let config = format!("[log]\naccess = '@dir/access.log'\n{ONE_POOL}health = \"off\"");
    let prlimit = tool("prlimit", "util-linux").display().to_string();
    let setup = Setup::of(&config).with("app", backend.address());
    let weir = setup.under(&[&prlimit, "--fsize=1000"]).start();
    until("a line to be lost", || {
        ask(&weir, "/");
        (weir.metric("weir_access_log_lost_total", &[]) >= 1.0).then_some(())
    });
    ask(&weir, "/");
    assert!(weir.stderr().contains("access log lines were lost"), "{}", weir.stderr());
}
