//! A `runtime.buffer_directory` in which no file can be made: a config with it is refused before anything has
//! begun, and a process that has lost it serves on.

use std::path::PathBuf;

use weir_tests::dialogue::{
    Backend, PATIENCE, Setup, Signal, Weir, free_address, run_tool, until, weir_binary,
};

use super::named;

const CONFIG: &str = r#"
[runtime]
buffer_directory = "@bodies"
[listener.web]
bind = "@web"
pool = "app"
[pool.app]
backends = ["@app"]
buffer = { requests = "4KiB", requests_file = "1MiB" }
health = { check = "off" }
"#;

/// What is said of it, everywhere.
const SAID: &str = "no file can be made in";

/// A folder of the test's, which may not be there; removed when dropped.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let name = format!("weir-bodies-{}-{}", std::process::id(), free_address().port());
        let folder = Folder(std::env::temp_dir().join(name));
        folder.comes_back();
        folder
    }

    fn comes_back(&self) {
        std::fs::create_dir(&self.0).expect("a folder");
    }

    fn goes(&self) {
        std::fs::remove_dir_all(&self.0).expect("nothing is left in it");
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn check_and_start_refuse_a_folder_that_takes_no_files() {
    let folder = Folder::new();
    let file = folder.0.join("weir.toml");
    for bodies in [folder.0.join("missing"), file.clone()] {
        let config = CONFIG
            .replace("@bodies", &bodies.display().to_string())
            .replace("@web", &free_address().to_string())
            .replace("@app", &free_address().to_string());
        std::fs::write(&file, config).expect("written");
        let path = file.display().to_string();
        for words in [vec!["check", &path], vec!["run", "--config", &path]] {
            let finished = run_tool(&weir_binary(), &words, b"", PATIENCE);
            assert_eq!(finished.code, 2, "{finished:?}");
            let place = format!("{path}:3:20: {SAID}");
            assert!(finished.stderr.contains(&place), "{finished:?}");
            assert!(
                finished.stderr.contains("expected a folder that this program may make files in"),
                "{finished:?}"
            );
        }
    }
}

#[test]
fn a_process_that_has_lost_its_folder_serves_on_whatever_it_is_told() {
    let (folder, backend) = (Folder::new(), named("app"));
    let mut weir =
        Setup::of(CONFIG).with("bodies", folder.0.display()).with("app", backend.address()).start();
    let pid = weir.pid();
    uploads(&weir, &backend);
    folder.goes();
    uploads(&weir, &backend);
    let finished = weir.command(&["reload"]);
    assert!(finished.code == 2 && finished.stderr.contains(SAID), "{finished:?}");
    weir.signals(Signal::HUP);
    weir.reaches("weir_reloads_total", &[("result", "refused")], 2.0);
    weir.signals(Signal::USR2);
    until("the upgrade to fail", || {
        weir.stderr().contains("upgrade failed, this process serves on").then_some(())
    });
    assert!(weir.stderr().contains(SAID), "the new process said why\n{}", weir.story());
    uploads(&weir, &backend);
    assert_eq!(weir.pid(), pid);
    folder.comes_back();
    weir.reloads(&CONFIG.replace("4KiB", "8KiB"));
    uploads(&weir, &backend);
}

/// A body longer than memory shall hold arrives.
fn uploads(weir: &Weir, backend: &Backend) {
    let mut client = weir.client("web");
    client.sends("POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 100000\r\n\r\n");
    client.sends("x".repeat(100_000));
    assert_eq!(client.receives_status(200).text(), "app", "{}", weir.story());
    let arrived =
        backend.requests().iter().rev().find(|request| request.method == "POST").map(|it| it.body.len());
    assert_eq!(arrived, Some(100_000));
    backend.forgets();
}
