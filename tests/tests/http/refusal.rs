//! How the tests of refused requests check that a refusal is one: answered, closed, counted, and never
//! forwarded.

use weir_tests::dialogue::{Backend, Broken, Wire};

use super::plain;

/// A request that must be refused: its name, its bytes, and the statuses that are right.
pub struct Case {
    name: String,
    bytes: Vec<u8>,
    statuses: &'static [u16],
}

/// A case that must be answered with 400.
pub fn case(name: &str, bytes: impl AsRef<[u8]>) -> Case {
    case_of(name, bytes, &[400])
}

/// A case with statuses of its own.
pub fn case_of(name: &str, bytes: impl AsRef<[u8]>, statuses: &'static [u16]) -> Case {
    Case { name: name.to_owned(), bytes: bytes.as_ref().to_vec(), statuses }
}

/// Whether a backend may see a part of the refused request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// The mistake is in the head: not one byte.
    Nothing,
    /// The mistake is in the body, whose head may be on its way: never a whole request.
    NeverWhole,
}

/// Every case is answered with its status and closed, counted as rejected, and not one byte of it reaches a
/// backend.
pub fn never_forwarded(cases: &[Case]) {
    check(cases, Reach::Nothing);
}

/// Every case is refused and closed, and no backend ever gets it as a whole request.
pub fn never_completed(cases: &[Case]) {
    check(cases, Reach::NeverWhole);
}

fn check(cases: &[Case], reach: Reach) {
    let backend = Backend::saying("fence");
    let weir = plain(&backend);
    let rejected = || weir.metric("weir_rejected_total", &[("listener", "web")]);
    let before = rejected();
    let mut problems = Vec::new();
    for case in cases {
        if let Err(problem) = refused(weir.client("web"), case) {
            problems.push(format!(
                "{}: {problem}\n    sent {:?}",
                case.name,
                String::from_utf8_lossy(&case.bytes)
            ));
        }
    }
    // Whatever was forwarded before this request has reached the backend before it, or at least been sent.
    let mut fence = weir.client("web");
    fence.sends("GET /fence HTTP/1.1\r\nhost: fence\r\n\r\n");
    fence.receives_status(200);
    for request in backend.requests() {
        if request.target != "/fence" {
            problems.push(format!("the backend received {:?}", request.head));
        }
    }
    if reach == Reach::Nothing && !backend.broken().is_empty() {
        problems.push(format!("the backend received parts of requests: {:?}", backend.broken()));
    }
    let counted = rejected() - before;
    if counted < cases.len() as f64 {
        problems.push(format!("weir_rejected_total moved by {counted}, expected {}", cases.len()));
    }
    assert!(problems.is_empty(), "{} problems:\n{}\n{}", problems.len(), problems.join("\n"), weir.story());
}

fn refused(client: Wire, case: &Case) -> Result<(), String> {
    let mut client = client.with_patience(std::time::Duration::from_secs(3));
    // A refusal may come, and the connection close, before all was sent.
    let _ = client.tries_to_send(&case.bytes);
    let response = match client.tries_to_receive_response("GET") {
        Ok(response) => response,
        Err((Broken::Waited(_), None)) => return Err("no answer; it waits for more".to_owned()),
        Err((broken, partial)) => return Err(format!("no answer: {broken} ({partial:?})")),
    };
    if !case.statuses.contains(&response.status) {
        return Err(format!("answered {}, expected one of {:?}", response.status, case.statuses));
    }
    if !response.closes() {
        return Err(format!("answered {} without `connection: close`", response.status));
    }
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| client.receives_to_the_end()));
    match ended {
        Ok(extra) if extra.is_empty() => Ok(()),
        Ok(extra) => Err(format!("sent more behind its refusal: {:?}", String::from_utf8_lossy(&extra))),
        Err(_) => Err(format!("answered {} and left the connection open", response.status)),
    }
}
