//! HTTP: a client's session, and the life of one exchange.

mod answer;
mod attempt;
mod date;
mod drive;
pub(crate) mod exchange;
mod failure;
mod forward;
pub mod key;
mod ledger;
mod linger;
mod pump;
mod respond;
mod retry;
pub mod route;
pub(crate) mod session;
pub mod sticky;
mod tunnel;
mod upload;

use weir_http::{Limits, Method, ResponseHead};

/// The status in the bytes of a backend's answer to a probe: `Ok(None)` while its head is not whole.
///
/// # Errors
/// The answer is not one that an exchange could use; says what was found and expected.
pub fn probe_status(answer: &[u8]) -> Result<Option<u16>, String> {
    let mut head = ResponseHead::new();
    match weir_http::parse_response(answer, &Limits::default(), Method::Get, &mut head) {
        Ok(weir_http::Progress::Complete { .. }) => Ok(Some(head.status())),
        Ok(weir_http::Progress::Partial) => Ok(None),
        Err(violation) => Err(violation.to_string()),
    }
}

/// The path that routes are compared with, for explanations.
///
/// # Errors
/// The path would be refused with 400; says why.
pub fn normalised_path(path: &str) -> Result<String, String> {
    let normal = weir_http::path::normalise(path.as_bytes()).map_err(|violation| violation.to_string())?;
    Ok(String::from_utf8_lossy(&normal).into_owned())
}
