//! Why an attempt to obtain a certificate failed.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{Error, Problem};

use super::client::Away;
use super::order::VALIDATION;
use super::schedule::Blame;

/// How much of an authority's message is reported, in bytes: it may have any length.
const SAID_BYTES: usize = 1 << 10;
/// Longest reason, in bytes.
const REASON_BYTES: usize = 2 << 10;

/// Problem types for an account that the authority does not know, for rate limits, and for unauthorized
/// accounts (RFC 8555 section 6.7).
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";
const LIMITED: &str = "urn:ietf:params:acme:error:rateLimited";
const UNAUTHORIZED: &str = "urn:ietf:params:acme:error:unauthorized";

/// A failed attempt.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of failure.
    pub blame: Blame,
    /// What happened, in readable form: one line of limited length.
    pub reason: Arc<str>,
    /// How long the authority asked us to wait before trying again.
    pub asked_for: Option<Duration>,
}

impl Failure {
    /// A failure with this reason, which is cut if it is too long.
    pub fn new(blame: Blame, reason: impl AsRef<str>) -> Failure {
        Failure { blame, reason: cut(reason.as_ref(), REASON_BYTES).into(), asked_for: None }
    }

    pub(super) fn refused(reason: impl AsRef<str>) -> Failure {
        Failure::new(Blame::Refused, reason)
    }

    pub(super) fn store(error: &io::Error) -> Failure {
        Failure::new(Blame::Store, error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.reason)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::Api(problem) => Failure::refused(say(&problem)),
            Error::Other(inner) if inner.is::<Away>() => Failure::new(Blame::Away, inner.to_string()),
            Error::Timeout(_) => {
                Failure::new(Blame::Away, format!("the authority had not decided after {VALIDATION:?}"))
            }
            Error::Json(error) => {
                Failure::new(Blame::Away, format!("the authority's answer is not what ACME says: {error}"))
            }
            error => Failure::new(Blame::Away, error.to_string()),
        }
    }
}

/// A problem document as one line of limited length: its description and type.
pub(super) fn say(problem: &Problem) -> String {
    let kind = problem.r#type.as_deref().unwrap_or("no type");
    let kind = kind.strip_prefix("urn:ietf:params:acme:error:").unwrap_or(kind);
    let detail = problem.detail.as_deref().unwrap_or("no details");
    let below = problem.subproblems.iter().filter_map(|below| below.detail.as_deref());
    let said = below.fold(format!("{detail} ({kind})"), |said, below| format!("{said}; {below}"));
    cut(&said, SAID_BYTES)
}

/// The beginning of a text, at most this many bytes, as one line: it may come from the authority, and must
/// not look like log lines of ours.
fn cut(text: &str, most: usize) -> String {
    let end = text.floor_char_boundary(most);
    let more = if end < text.len() { "…" } else { "" };
    text[..end].replace(['\r', '\n'], " ") + more
}

/// The authority does not know the account.
pub(super) fn is_no_account(problem: &Problem) -> bool {
    problem.r#type.as_deref() == Some(NO_ACCOUNT)
}

/// The account is not authorized; it may have been deactivated.
pub(super) fn is_unauthorized(problem: &Problem) -> bool {
    problem.r#type.as_deref() == Some(UNAUTHORIZED)
}

/// There were too many requests of this kind.
pub(super) fn is_limit(problem: &Problem) -> bool {
    problem.r#type.as_deref() == Some(LIMITED) || problem.status == Some(429)
}

/// The requested resource no longer exists.
pub(super) fn is_gone(problem: &Problem) -> bool {
    is_no_account(problem) || matches!(problem.status, Some(404 | 410))
}

/// Whether a rate limit is about these domains, and not about the whole account. The problem type is the
/// same: messages about domains mention one of them, or its registered parent domain.
pub(super) fn is_limit_on(problem: &Problem, domains: &[String]) -> bool {
    let said = say(problem).to_ascii_lowercase();
    let is_other = |c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '-');
    let mut names = said.split(is_other).map(|word| word.trim_matches('.')).filter(|word| word.contains('.'));
    let is_within = |name: &str, domain: &String| {
        let domain = domain.strip_prefix("*.").unwrap_or(domain);
        domain.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    !problem.subproblems.is_empty()
        || said.contains("exact set of ")
        || names.any(|name| domains.iter().any(|domain| is_within(name, domain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(kind: &str, detail: &str) -> Problem {
        let kind = Some(format!("urn:ietf:params:acme:error:{kind}"));
        Problem { r#type: kind, detail: Some(detail.to_owned()), status: Some(429), subproblems: Vec::new() }
    }

    #[test]
    fn what_an_authority_says_is_one_line_of_a_bounded_length() {
        let long = problem("caa", &format!("first\r\nsecond {}", "\u{e4}".repeat(1 << 20)));
        let said = Failure::from(Error::Api(long)).reason;
        assert!(said.starts_with("first  second \u{e4}") && said.ends_with('…'), "{said}");
        assert!(said.len() <= SAID_BYTES + '…'.len_utf8(), "{} bytes", said.len());
        assert_eq!(&*Failure::refused("short").reason, "short");
    }

    /// As Let's Encrypt words its limits.
    #[test]
    fn a_limit_on_a_domain_is_told_from_one_on_the_account() {
        let domains = ["www.shop.example", "*.other.example"].map(str::to_owned);
        let is_on_them = |detail: &str| is_limit_on(&problem("rateLimited", detail), &domains);
        let see =
            "in the last 168h0m0s, retry after 2026-11-30 18:00:00 UTC: see https://letsencrypt.org/docs/";
        for own in [
            "too many certificates (50) already issued for \"shop.example\"",
            "too many certificates (5) already issued for this exact set of identifiers",
            "too many failed authorizations (5) for \"www.shop.example\"",
            "too many certificates already issued for: other.example.",
        ] {
            assert!(is_on_them(&format!("{own} {see}")), "{own}");
        }
        for account in [
            "too many new orders (300) from this account",
            "too many new registrations (10) from this IP address (192.0.2.1)",
            "too many certificates already issued for \"op.example\"",
        ] {
            assert!(!is_on_them(&format!("{account} {see}")), "{account}");
        }
    }
}
