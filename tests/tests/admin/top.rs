//! `weir top`, on a terminal that `script` of util-linux makes.

use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, kill_process};
use weir_tests::dialogue::{After, Backend, Signal, Weir, until, weir_binary};

use super::two;

/// What leaves the screen that programs like it have to themselves.
const LEAVES: &str = "\x1b[?1049l";

/// A terminal with `weir top` on it.
struct Terminal {
    script: Child,
    keys: ChildStdin,
    /// What was written to the screen.
    written: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    fn of(weir: &Weir, more: &str) -> Terminal {
        let (binary, admin) = (weir_binary(), weir.admin().address());
        let binary = binary.display();
        let inside = format!(
            "stty rows 40 cols 200; echo \"process $$.\"; exec {binary} top --admin {admin} --interval 100ms {more}"
        );
        let mut script = Command::new("script")
            .args(["--quiet", "--return", "--flush", "--command", &inside, "/dev/null"])
            .env("TERM", "xterm-256color")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script of util-linux");
        let keys = script.stdin.take().expect("keys");
        let mut screen = script.stdout.take().expect("a screen");
        let written = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&written);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            while let Ok(length @ 1..) = screen.read(&mut piece) {
                to.lock().expect("screen").extend_from_slice(&piece[..length]);
            }
        });
        Terminal { script, keys, written, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().expect("screen")).into_owned()
    }

    /// Waits until this was on the screen.
    fn shows(&self, text: &str) {
        until(text, || words(&self.text()).contains(text).then_some(()));
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).and_then(|()| self.keys.flush()).expect("a key");
    }

    /// Everything that was written, once it has ended; with the exit code.
    fn ends(&mut self) -> (String, Option<i32>) {
        let status = self.script.wait().expect("an end");
        self.reader.take().expect("one end").join().expect("a reader");
        (self.text(), status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}

/// What was written without what moves the cursor or colours, which stand for the blanks that it moves over.
fn words(written: &str) -> String {
    let mut pieces = written.split("\x1b[");
    let first = pieces.next().unwrap_or_default();
    let rest = pieces.map(|piece| piece.trim_start_matches(|c: char| !c.is_ascii_alphabetic()).get(1..));
    let all = std::iter::once(Some(first)).chain(rest).flatten();
    all.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" ")
}

fn answering() -> Backend {
    Backend::serving(|_, wire| {
        wire.answers(200, &[], "here");
        After::Keep
    })
}

#[test]
fn backends_are_shown_as_they_change_until_q() {
    let (a, b) = (answering(), answering());
    let weir = two(&a, &b);
    let mut terminal = Terminal::of(&weir, "");
    for text in
        ["requests/s", "web", &a.address().to_string(), &b.address().to_string(), "2 of 2 ready", "ready"]
    {
        terminal.shows(text);
    }
    drop(b);
    terminal.shows("down");
    terminal.press("q");
    let (text, code) = terminal.ends();
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(LEAVES), "the screen is not given back: {text:?}");
}

#[test]
fn a_weir_that_goes_away_is_said_and_waited_for() {
    let (a, b) = (answering(), answering());
    let mut weir = two(&a, &b);
    let mut terminal = Terminal::of(&weir, "--troubled");
    terminal.shows("2 of 2 ready");
    weir.signals(Signal::KILL);
    weir.exits();
    terminal.shows("no Weir answers at");
    terminal.press("q");
    assert_eq!(terminal.ends().1, Some(0));
}

#[test]
fn keys_are_heeded_while_weir_hangs() {
    let (a, b) = (answering(), answering());
    let weir = two(&a, &b);
    let mut terminal = Terminal::of(&weir, "");
    terminal.shows("2 of 2 ready");
    weir.signals(Signal::STOP);
    // Two looks would have come by now.
    std::thread::sleep(Duration::from_millis(250));
    terminal.press(" ");
    terminal.shows("PAUSED");
    terminal.press("q");
    assert_eq!(terminal.ends().1, Some(0));
    weir.signals(Signal::CONT);
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_before() {
    let (a, b) = (answering(), answering());
    let weir = two(&a, &b);
    let mut terminal = Terminal::of(&weir, "");
    terminal.shows("2 of 2 ready");
    let text = terminal.text();
    let (_, rest) = text.split_once("process ").expect("a number");
    let (process, _) = rest.split_once('.').expect("a number");
    let process = process.parse().ok().and_then(Pid::from_raw).expect("a number");
    kill_process(process, Signal::TERM).expect("a process of ours");
    let (text, code) = terminal.ends();
    assert!(code == Some(0) && text.contains(LEAVES), "{code:?} {text:?}");
}

#[test]
fn without_a_terminal_it_says_what_to_use() {
    let (a, b) = (answering(), answering());
    let weir = two(&a, &b);
    let finished = weir.command(&["top"]);
    assert!(finished.code == 2 && finished.stderr.contains("weir status"), "{finished:?}");
}
