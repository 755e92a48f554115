//! Authenticates users by name and password (RFC 7617).

use std::sync::Arc;
use std::time::Duration;

use weir_config::{Alphabet, decode_base64};
use weir_http::KnownHeader;
use weir_io::clock;
use zeroize::Zeroizing;

use super::line::{Entered, Full};
use super::passwords::{Check, Passwords};
use super::presence::{client_of, while_present};
use crate::http::exchange::Exchange;
use crate::http::failure::{Denied, Failure};
use crate::http::session::Session;

/// Longest wait for a place and for the computation of the hash, both together.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest `authorization` value that is parsed, in bytes.
const CREDENTIALS_BYTES: usize = 4096;

/// Authenticates the request of the exchange. `Ok` lets it pass, with the user in `exchange.user`.
///
/// # Errors
/// The request may not pass, or too many others are waiting.
pub(super) async fn ask(
    passwords: &Arc<Passwords>,
    session: &mut Session,
    exchange: &mut Exchange,
) -> Result<(), Failure> {
    let Some(shown) = shown(session, exchange) else { return Err(denied(passwords)) };
    let (user, password) = &*shown;
    let (hash, is_known) = passwords.hash_of(user);
    let tag = passwords.tag(user, password, &hash);
    if !is_known || !passwords.remembers(&tag) {
        let is_good = compute(passwords, (session, &*exchange), &tag, (password.clone(), hash)).await?;
        if !is_known || !is_good {
            return Err(denied(passwords));
        }
        passwords.remember(tag);
    }
    exchange.user.name.extend_from_slice(user.as_bytes());
    if let Some(name) = passwords.user_header() {
        super::put_line(&mut exchange.user.to_backend, name, user.as_bytes());
    }
    Ok(())
}

fn denied(passwords: &Passwords) -> Failure {
    let fields = passwords.challenge().into_iter().cloned().collect();
    Failure::AuthDenied(Box::new(Denied { status: 401, fields }))
}

/// Whether the password matches the hash. This is computed on a thread of its own, once there is a place and
/// it is the client's turn.
async fn compute(
    passwords: &Arc<Passwords>,
    (session, exchange): (&mut Session, &Exchange),
    tag: &[u8; 32],
    (password, hash): (Zeroizing<Vec<u8>>, Arc<str>),
) -> Result<bool, Failure> {
    let until = clock::now() + PATIENCE;
    let place = match passwords.line().enter(client_of(session, exchange)) {
        Ok(Entered::Place(place)) => place,
        Ok(Entered::InLine(in_line)) => {
            while_present(session, until, in_line.place()).await?.ok_or(Failure::AuthUnavailable)?
        }
        Err(Full::OfClient) => return Err(Failure::AuthCrowded),
        Err(Full::OfAll) => return Err(Failure::AuthUnavailable),
    };
    // Browsers send several requests at once: one before this may have had the same password.
    if passwords.remembers(tag) {
        return Ok(true);
    }
    let told = Check { place, password, hash }.spawn().map_err(|_| Failure::AuthUnavailable)?;
    while_present(session, until, told).await?.map_err(|_| Failure::AuthUnavailable)
}

/// Name and password from the request; `None` if there are none that could be valid.
fn shown(session: &Session, exchange: &Exchange) -> Option<Box<(String, Zeroizing<Vec<u8>>)>> {
    let mut lines = exchange.request.values(KnownHeader::Authorization, session.requester.received());
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    parsed(line).map(Box::new)
}

/// Parses `Basic` and base64 of `NAME:PASSWORD` (RFC 7617 section 2), in UTF-8 and without control
/// characters.
fn parsed(line: &[u8]) -> Option<(String, Zeroizing<Vec<u8>>)> {
    let (scheme, rest) = line.split_at_checked(6).filter(|_| line.len() <= CREDENTIALS_BYTES)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    let decoded = Zeroizing::new(decode_base64(rest.trim_ascii(), Alphabet::Usual)?);
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    let user = std::str::from_utf8(&decoded[..colon]).ok()?.to_owned();
    let password = Zeroizing::new(decoded[colon + 1..].to_vec());
    if decoded.iter().any(u8::is_ascii_control) || user.is_empty() {
        return None;
    }
    Some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_a_name_and_a_password_without_control_characters() {
        let of = |line: &str| parsed(line.as_bytes()).map(|(user, password)| (user, password.to_vec()));
        let ann = Some(("ann".to_owned(), b"a:b".to_vec()));
        // ann:a:b
        assert_eq!(of("Basic YW5uOmE6Yg=="), ann);
        assert_eq!(of("bAsIc   YW5uOmE6Yg"), ann);
        // No scheme, another one, no colon, no name, NUL in the password, not UTF-8.
        for line in [
            "YW5uOmE6Yg==",
            "Bearer YW5uOmE6Yg==",
            "Basic YW5u",
            "Basic OmE=",
            "Basic YW5uOmEAYg==",
            "Basic /zphYg==",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        assert_eq!(of(&format!("Basic {}", "YW5u".repeat(2000))), None);
    }
}
