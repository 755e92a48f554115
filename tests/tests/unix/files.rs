//! Whose the file of a Unix socket is, and who may connect to it: over reloads, upgrades and restarts.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};

use weir_tests::dialogue::{Setup, Signal, Weir, until};

use super::binds::{config, is_socket, mode};
use super::fresh;

/// A folder that everybody may write to, as a name for paths below it.
struct Folder(String);

impl Folder {
    fn new() -> Folder {
        let path = fresh("/");
        std::fs::create_dir(&path).expect("a folder");
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&path, all).expect("a mode");
        Folder(path)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.0)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A socket of another program at a path, with this mode.
fn anothers(path: &str, mode: u32) -> UnixListener {
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).expect("there is room");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
    listener
}

fn upgrades(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
}

fn ends(weir: &Weir) {
    weir.signals_pid(weir.pid(), Signal::TERM);
    until("the process to end", || weir.pids().is_empty().then_some(()));
}

/// H12: the sockets of a listener and of the admin API.
#[test]
fn what_another_has_put_there_is_not_taken_over_by_an_upgrade() {
    let folder = Folder::new();
    let (web, admin) = (folder.path("web.sock"), folder.path("admin.sock"));
    let weir =
        Setup::of(&format!("[admin]\nbind = \"unix:{admin}\"\n{}", config(&format!("\"unix:{web}\""), "")))
            .launch();
    until("the sockets to be served", || {
        (UnixStream::connect(&web).is_ok() && UnixStream::connect(&admin).is_ok()).then_some(())
    });
    let _others = [anothers(&web, 0o755), anothers(&admin, 0o755)];
    for _ in 0..2 {
        upgrades(&weir);
        assert_eq!((mode(&web), mode(&admin)), (0o755, 0o755), "they are another's");
    }
    assert!(weir.stderr().contains("is not the socket that Weir made"), "{}", weir.story());
    ends(&weir);
    for path in [&web, &admin] {
        assert!(is_socket(path), "{path} is another's");
        UnixStream::connect(path).expect("the other program listens there");
    }
}
