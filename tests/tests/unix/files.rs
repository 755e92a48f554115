//! Whose the file of a Unix socket is, and who may connect to it: over reloads, upgrades and restarts.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use weir_tests::dialogue::{Setup, Signal, Weir, tool, until};

use super::binds::{ask, config, is_socket, mode};
use super::fresh;

const WEB: &str = "[[listener.web.route]]\nrespond = { status = 200, body = \"here\" }\n";

/// As [`config`], with no log, which nobody may write.
fn silent(binds: &str, more: &str) -> String {
    format!("[listener.web]\nbind = {binds}\n{more}\n{WEB}")
}

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

/// What runs a program as nobody, with these capabilities and no others.
fn as_nobody(capabilities: &str) -> Vec<String> {
    let setpriv = tool("setpriv", "util-linux").display().to_string();
    let sets = ["inh-caps", "ambient-caps", "bounding-set"];
    let words = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"].map(str::to_owned);
    let sets = sets.map(|set| format!("--{set}=-all{capabilities}"));
    [setpriv].into_iter().chain(words).chain(sets).collect()
}

fn under(setup: Setup, wrapper: &[String]) -> Setup {
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    setup.under(&words)
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

#[test]
fn an_owner_takes_the_capability_that_the_guide_names_also_after_a_crash() {
    let folder = Folder::new();
    let path = folder.path("web.sock");
    let text =
        silent(&format!("\"unix:{path}\""), "unix_socket = { owner = \"daemon\", group = \"daemon\" }");
    let mut weir = under(Setup::of(&text), &as_nobody(",+chown")).start();
    let is_as_said = || {
        let found = std::fs::symlink_metadata(&path).expect("a socket");
        assert_eq!((found.uid(), found.gid(), mode(&path)), (1, 1, 0o660));
        assert!(ask(&path).ends_with("here"));
    };
    is_as_said();
    weir.signals(Signal::KILL);
    until("nobody to listen", || UnixStream::connect(&path).is_err().then_some(()));
    assert!(is_socket(&path), "it was left behind");
    weir.starts_again();
    is_as_said();
    upgrades(&weir);
    is_as_said();
    // A second one does not take the place of the first, which it can't ask.
    let mut second = under(Setup::of(&text), &as_nobody(",+chown")).launch();
    assert_eq!(second.exits().code(), Some(1), "{}", second.story());
    assert!(second.stderr().contains("another program listens there"), "{}", second.story());
    is_as_said();
    ends(&weir);
    assert!(!Path::new(&path).exists());
    // Nor that of another program.
    let _other = anothers(&path, 0o660);
    std::os::unix::fs::chown(&path, Some(1), Some(1)).expect("root may");
    let mut third = under(Setup::of(&text), &as_nobody(",+chown")).launch();
    assert_eq!(third.exits().code(), Some(1), "{}", third.story());
    assert!(third.stderr().contains("another program listens there"), "{}", third.story());
}
