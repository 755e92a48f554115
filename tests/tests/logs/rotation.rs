//! The packaged rules for logrotate(8), with logrotate itself.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use weir_tests::dialogue::{PATIENCE, Setup, Weir, Wire, run_tool, tool, until};

const RULES: &str = include_str!("../../../packaging/weir.logrotate");

const CONFIG: &str = r#"
[log]
access = "@dir/access.log"
line = "$path"
[listener.web]
bind = "@web"
[[listener.web.route]]
respond = { status = 200, body = "ok\n" }
"#;

/// Clients that ask at once.
const CLIENTS: u32 = 3;
/// Times that logs are rotated while they ask.
const ROTATIONS: u32 = 4;
/// Requests of each client between two rotations, at least.
const BETWEEN: u32 = 50;

/// The packaged rules for a folder of the test's, and in place of systemd a program that takes its words and
/// signals the test's Weir. The files belong to whoever runs the test.
struct Rotation {
    rules: String,
    path: String,
}

impl Rotation {
    fn of(weir: &Weir) -> Rotation {
        let dir = weir.dir();
        let owner = fs::metadata(dir).expect("a folder");
        let user = name_of(owner.uid(), "/etc/passwd");
        let group = name_of(owner.gid(), "/etc/group");
        let mut rules = RULES.to_owned();
        for (packaged, own) in [
            ("/var/log/weir/", format!("{}/", dir.display())),
            ("su weir weir", format!("su {user} {group}")),
            ("create 0640 weir weir", format!("create 0640 {user} {group}")),
        ] {
            assert!(rules.contains(packaged), "{packaged}");
            rules = rules.replace(packaged, &own);
        }
        let bin = dir.join("bin");
        fs::create_dir(&bin).expect("a folder");
        let systemctl = bin.join("systemctl");
        let script = format!(
            "#!/bin/sh\n[ \"$*\" = 'kill -s USR1 --kill-whom=main weir' ] || exit 1\nkill -USR1 {} && echo x >>{}\n",
            weir.pid(),
            dir.join("signals").display()
        );
        fs::write(&systemctl, script).expect("written");
        fs::set_permissions(&systemctl, fs::Permissions::from_mode(0o755)).expect("for all to run");
        let written = dir.join("rules");
        fs::write(&written, rules).expect("written");
        fs::set_permissions(&written, fs::Permissions::from_mode(0o644)).expect("for nobody else to write");
        Rotation { rules: written.display().to_string(), path: format!("{}:/usr/bin:/bin", bin.display()) }
    }

    /// Rotates the logs now, and waits until logrotate has ended.
    fn rotates(&self, weir: &Weir) {
        let state = weir.dir().join("state");
        let mut command = Command::new(tool("logrotate", "logrotate"));
        command.env("PATH", &self.path).args(["--force", "--state"]).arg(state).arg(&self.rules);
        let output = command.output().expect("logrotate runs");
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The name of this number in `/etc/passwd` or `/etc/group`.
fn name_of(number: u32, file: &str) -> String {
    let text = fs::read_to_string(file).expect("it can be read");
    let mut entries = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = entries.find(|fields| fields.get(2).is_some_and(|it| *it == number.to_string()));
    found.and_then(|fields| fields.first().map(|name| (*name).to_owned())).expect("it has a name")
}

/// The lines of all logs, rotated and compressed ones among them.
fn lines(weir: &Weir) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(weir.dir()).expect("a folder") {
        let entry = entry.expect("an entry");
        if !entry.file_name().to_string_lossy().starts_with("access.log") {
            continue;
        }
        let path = entry.path();
        let text = match path.extension().is_some_and(|it| it == "gz") {
            true => {
                let path = path.display().to_string();
                let unpack = "import gzip, sys; sys.stdout.buffer.write(gzip.open(sys.argv[1]).read())";
                let said = run_tool(&tool("python3", "python3"), &["-c", unpack, &path], b"", PATIENCE);
                said.succeeded().to_owned()
            }
            false => fs::read_to_string(&path).expect("it can be read"),
        };
        found.extend(text.lines().map(str::to_owned));
    }
    found.sort();
    found
}

#[test]
fn no_line_is_lost_while_logrotate_does_what_the_package_says() {
    let weir = Setup::of(CONFIG).start();
    let rotation = Rotation::of(&weir);
    let (asked, ends) = (AtomicU32::new(0), AtomicBool::new(false));
    let sent: Vec<u32> = std::thread::scope(|scope| {
        let (weir, asked, ends) = (&weir, &asked, &ends);
        let clients: Vec<_> =
            (0..CLIENTS).map(|number| scope.spawn(move || asks(weir, number, asked, ends))).collect();
        for _ in 0..ROTATIONS {
            let before = asked.load(Ordering::Relaxed);
            until("requests", || (asked.load(Ordering::Relaxed) >= before + CLIENTS * BETWEEN).then_some(()));
            // An empty file stays where it is, and lines come some time after their requests.
            let has_lines = || fs::metadata(weir.dir().join("access.log")).is_ok_and(|it| it.len() > 0);
            until("lines in the file", || has_lines().then_some(()));
            rotation.rotates(weir);
        }
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().map(|client| client.join().expect("it asks")).collect()
    });
    let mut expected: Vec<String> = (0..CLIENTS)
        .zip(sent)
        .flat_map(|(client, count)| (0..count).map(move |number| format!("/{client}-{number}")))
        .collect();
    expected.sort();
    until("every line, once", || (lines(&weir) == expected).then_some(()));
    let signals = fs::read_to_string(weir.dir().join("signals")).expect("signalled");
    assert_eq!(signals.lines().count(), ROTATIONS as usize);
    let log = |name: &str| weir.dir().join(name);
    let current = fs::metadata(log("access.log")).expect("a new file");
    assert_eq!(current.mode() & 0o777, 0o640);
    assert!(log("access.log.1").exists() && log("access.log.2.gz").exists(), "one stays as it is for a day");
}

/// Asks on one connection until the test ends; returns how often.
fn asks(weir: &Weir, client: u32, asked: &AtomicU32, ends: &AtomicBool) -> u32 {
    let mut wire: Wire = weir.client("web");
    let mut count = 0;
    while !ends.load(Ordering::Relaxed) {
        wire.sends(format!("GET /{client}-{count} HTTP/1.1\r\nhost: a\r\n\r\n"));
        wire.receives_status(200);
        count += 1;
        asked.fetch_add(1, Ordering::Relaxed);
    }
    count
}
