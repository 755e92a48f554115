//! wrk and ab: many requests, none may fail.

use weir_tests::dialogue::{PATIENCE, run_tool, tool};

use super::super::http::plain;
use super::site;

#[test]
fn wrk_sees_no_errors() {
    let backend = site();
    let weir = plain(&backend);
    let url = format!("http://{}/", weir.address("web"));
    let finished = run_tool(&tool("wrk", "wrk"), &["-t1", "-c32", "-d2s", &url], b"", PATIENCE * 2);
    let text = finished.succeeded();
    assert!(text.contains("Requests/sec"), "{text}");
    assert!(!text.contains("Socket errors") && !text.contains("Non-2xx"), "{text}");
}

#[test]
fn ab_sees_no_failures_with_and_without_keep_alive() {
    let backend = site();
    let weir = plain(&backend);
    let url = format!("http://{}/", weir.address("web"));
    for keep in [true, false] {
        let mut arguments = vec!["-q", "-n", "5000", "-c", "20", "-s", "10"];
        if keep {
            arguments.push("-k");
        }
        arguments.push(&url);
        let finished = run_tool(&tool("ab", "apache2-utils"), &arguments, b"", PATIENCE * 3);
        let text = finished.succeeded();
        let number = |name: &str| -> Option<u64> {
            text.lines().find(|line| line.starts_with(name))?.split_whitespace().last()?.parse().ok()
        };
        assert_eq!(number("Complete requests:"), Some(5000), "{text}");
        assert_eq!(number("Failed requests:"), Some(0), "{text}");
        assert!(!text.contains("Non-2xx"), "{text}");
        if keep {
            assert!(number("Keep-Alive requests:").is_some_and(|kept| kept >= 4900), "{text}");
        }
    }
}
