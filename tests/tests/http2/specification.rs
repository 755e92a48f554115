//! h2spec, the conformance suite of RFC 7540 and 7541.

use std::time::Duration;

use weir_tests::dialogue::{After, Backend, Setup, Weir, run_tool, tool};

use super::BOTH;

/// Runs all cases; gives their closing line, and the names of those that failed.
fn h2spec(weir: &Weir) -> (String, String) {
    let port = weir.address("web").port().to_string();
    let arguments = ["--strict", "--timeout", "5", "--host", "127.0.0.1", "--port", &port];
    let program = tool("h2spec", "golang-go");
    let finished = run_tool(&program, &arguments, b"", Duration::from_secs(300));
    let text = finished.stdout;
    let closing = text.lines().rfind(|line| line.contains(" tests, ")).unwrap_or_default().to_owned();
    let failures = text.split_once("Failures:").map_or("", |(_, failures)| failures);
    (closing, failures.to_owned())
}

/// A backend that takes its time: an answer that overtakes the next frame of a case ends the stream before
/// the case has begun.
fn unhurried() -> Backend {
    Backend::serving(|_, wire| {
        std::thread::sleep(Duration::from_millis(50));
        wire.answers(200, &[], "some content that takes several frames where a window is small");
        After::Keep
    })
}

fn weir_speaking(versions: &str, backend: &Backend) -> Weir {
    let config = BOTH.replace(r#"["h1", "h2"]"#, versions);
    Setup::of(&config).with("app", backend.address()).start()
}

#[test]
fn every_case_of_h2spec_passes_in_strict_mode() {
    let backend = unhurried();
    let weir = weir_speaking(r#"["h2"]"#, &backend);
    let (closing, failures) = h2spec(&weir);
    println!("{closing}");
    assert!(closing.ends_with(" 0 failed"), "{closing}\n{failures}");
    let number = |word: &str| -> u32 {
        let before = closing.split(word).next().unwrap_or_default().trim();
        before.rsplit([' ', ',']).next().and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    // One case skips itself where a server lets clients send a stream more than that case can open.
    assert!(number("tests") >= 146 && number("passed") >= 145 && number("skipped") <= 1, "{closing}");
}

#[test]
fn beside_http1_only_a_broken_preface_is_answered_otherwise_than_h2spec_expects() {
    // What does not begin as HTTP/2 is HTTP/1.1 there, and answered 400 in its words.
    let backend = unhurried();
    let weir = weir_speaking(r#"["h1", "h2"]"#, &backend);
    let (closing, failures) = h2spec(&weir);
    assert!(closing.ends_with(" 1 failed"), "{closing}\n{failures}");
    assert!(failures.contains("Sends invalid connection preface"), "{failures}");
}
