//! Whose the file of a Unix socket is, and who may connect to it: over reloads, upgrades and restarts.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use weir_tests::dialogue::{PATIENCE, Setup, Signal, Weir, run_tool, tool, until, weir_binary};

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

/// A reload that ends with this code, for this reason; what is served stays.
fn refuses(weir: &mut Weir, config: &str, code: i32, why: &str) {
    weir.rewrites(config);
    let finished = weir.command(&["reload"]);
    assert!(finished.code == code && format!("{finished:?}").contains(why), "{why}: {finished:?}");
}

fn upgrades(weir: &Weir) {
    let old = weir.pid();
    weir.signals_pid(old, Signal::USR2);
    until("the old process to end", || (!weir.is_running(old)).then_some(()));
}

/// An upgrade that does not come about; gives what the log says of it.
fn upgrades_in_vain(weir: &Weir) -> String {
    let (old, before) = (weir.pid(), weir.stderr().len());
    weir.signals_pid(old, Signal::USR2);
    until("the upgrade to fail", || weir.stderr()[before..].contains("upgrade failed").then_some(()));
    assert_eq!(weir.pid(), old);
    weir.stderr()[before..].to_owned()
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

#[test]
fn a_reload_says_which_right_it_lacks_and_changes_nothing() {
    let folder = Folder::new();
    let path = folder.path("web.sock");
    let text = |binds: &str, said: &str| silent(binds, &format!("unix_socket = {{ {said} }}"));
    let bind = format!("\"unix:{path}\"");
    let mut weir = under(Setup::of(&text(&bind, "owner = \"daemon\"")), &as_nobody(",+chown")).start();
    refuses(&mut weir, &text(&bind, "owner = \"daemon\", mode = \"0666\""), 1, "CAP_FOWNER");
    assert_eq!(mode(&path), 0o660);
    assert!(ask(&path).ends_with("here"));
    // What is as it was takes no right.
    weir.reloads(&text(&format!("[{bind}, \"unix:{path}.2\"]"), "owner = \"daemon\""));
    assert!(ask(&format!("{path}.2")).ends_with("here"));
    // And an owner that is not said any more is Weir's own user.
    weir.reloads(&text(&bind, "mode = \"0660\""));
    let found = std::fs::symlink_metadata(&path).expect("a socket");
    assert_eq!((found.uid(), mode(&path)), (65534, 0o660));
    // By an upgrade as well.
    weir.reloads(&text(&bind, "owner = \"daemon\", group = \"daemon\""));
    weir.rewrites(&text(&bind, "mode = \"0600\""));
    upgrades(&weir);
    let found = std::fs::symlink_metadata(&path).expect("a socket");
    assert_eq!((found.uid(), found.gid(), mode(&path)), (65534, 65534, 0o600));
    drop(weir);
    let weir = under(Setup::of(&text(&bind, "mode = \"0660\"")), &as_nobody(""));
    let mut weir = weir.start();
    refuses(&mut weir, &text(&bind, "owner = \"daemon\""), 1, "CAP_CHOWN");
    refuses(&mut weir, &text(&bind, "group = \"daemon\""), 1, "CAP_CHOWN");
    weir.reloads(&text(&bind, "mode = \"0666\", owner = \"nobody\", group = \"nogroup\""));
    assert_eq!(mode(&path), 0o666);
}

#[test]
fn a_user_or_group_that_is_not_there_is_refused_with_its_line_by_check_reload_and_upgrade() {
    let path = fresh("/");
    let bind = format!("\"unix:{path}\"");
    let text = |said: &str| config(&bind, &format!("unix_socket = {{ {said} }}"));
    let mut weir = Setup::of(&config(&bind, "")).start();
    for (said, what) in [
        ("mode = \"0666\", owner = \"no-such-user\"", "`no-such-user` is no user of this machine"),
        ("mode = \"0666\", group = \"no-such-group\"", "`no-such-group` is no group of this machine"),
    ] {
        refuses(&mut weir, &text(said), 2, what);
        let checked = weir.command(&["check"]);
        assert!(checked.code == 2 && checked.stderr.contains(what), "{checked:?}");
        assert!(checked.stderr.contains("weir.toml:5:"), "{checked:?}");
        let log = upgrades_in_vain(&weir);
        assert!(log.contains(what), "{log}");
        assert_eq!(mode(&path), 0o660, "nothing has changed");
    }
    // Of the admin API as well; where nothing is a file nobody is missed.
    for (admin, code) in [("unix:/x/admin.sock", 2), ("127.0.0.1:9", 0)] {
        let said = format!("[admin]\nbind = \"{admin}\"\nunix_socket = {{ owner = \"no-such-user\" }}\n");
        weir.rewrites(&format!("{said}{}", config("\"unix:@name\"", "")));
        let checked = weir.command(&["check"]);
        assert_eq!(checked.code, code, "{checked:?}");
        assert_eq!(checked.stderr.contains("`no-such-user` is no user"), code == 2, "{checked:?}");
    }
}

#[test]
fn a_reload_that_cannot_change_the_file_for_it_is_anothers_is_refused_and_others_are_not() {
    let path = fresh("/");
    let bind = format!("\"unix:{path}\"");
    let mut weir = Setup::of(&config(&bind, "")).start();
    let other = anothers(&path, 0o755);
    let wider = config(&bind, "unix_socket = { mode = \"0666\" }");
    refuses(&mut weir, &wider, 1, "is not the socket that Weir made");
    assert_eq!(mode(&path), 0o755);
    // What says nothing else of it may come into force.
    weir.reloads(&config(&bind, "max_connections = 77"));
    assert!(weir.stderr().contains("WARN"), "{}", weir.story());
    drop(other);
    std::fs::remove_file(&path).expect("it is there");
    refuses(&mut weir, &wider, 1, "is not the socket that Weir made");
}

#[test]
fn an_upgrade_changes_who_may_connect_to_the_admin_api_or_fails() {
    let folder = Folder::new();
    let (web, admin) = (folder.path("web.sock"), folder.path("admin.sock"));
    let text = |said: &str, of_web: &str| {
        format!(
            "[admin]\nbind = \"unix:{admin}\"\nunix_socket = {{ {said} }}\n\
             [listener.web]\nbind = \"unix:{web}\"\nunix_socket = {{ {of_web} }}\n{WEB}"
        )
    };
    let setup = Setup::of(&text("mode = \"0666\"", "mode = \"0660\""));
    let mut weir = under(setup, &as_nobody("")).launch();
    until("the command line to be answered", || (weir.command(&["status"]).code == 0).then_some(()));
    assert_eq!(mode(&admin), 0o666);
    weir.rewrites(&text("mode = \"0600\"", "mode = \"0660\""));
    upgrades(&weir);
    assert_eq!(mode(&admin), 0o600);
    weir.rewrites(&text("mode = \"0666\", owner = \"daemon\"", "mode = \"0666\""));
    let log = upgrades_in_vain(&weir);
    assert!(log.contains("CAP_CHOWN"), "{log}");
    assert_eq!((mode(&admin), mode(&web)), (0o600, 0o660), "nothing has changed");
    assert_eq!(weir.command(&["status"]).code, 0);
    ends(&weir);
    assert!(!Path::new(&admin).exists() && !Path::new(&web).exists());
}

#[test]
fn another_spelling_of_its_own_socket_is_told_from_another_program() {
    let folder = Folder::new();
    let (path, other) = (folder.path("web.sock"), folder.path("./web.sock"));
    let mut weir = Setup::of(&config(&format!("\"unix:{path}\""), "")).start();
    let text = config(&format!("\"unix:{other}\""), "");
    let why = format!("this Weir listens there already, as unix:{path}");
    refuses(&mut weir, &text, 1, &why);
    let log = upgrades_in_vain(&weir);
    assert!(log.contains(&why), "{log}");
    assert!(ask(&path).ends_with("here"));
    ends(&weir);
    // Both at once.
    let both = config(&format!("[\"unix:{path}\", \"unix:{other}\"]"), "");
    let mut second = Setup::of(&both).launch();
    assert_eq!(second.exits().code(), Some(1));
    assert!(second.stderr().contains(&why), "{}", second.story());
    let words = ["check", "--config", &second.config_path()];
    assert_eq!(run_tool(&weir_binary(), &words, b"", PATIENCE).code, 0);
}
