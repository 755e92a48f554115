//! Hints by which a client chooses where a statement may run: a leading comment or a query attribute.
//!
//! A hint never sends a write to a server other than the primary, nor a read out of its transaction. It only
//! adds what the text of a read does not show.

use crate::verdict::{LeftBehind, RoleWanted, RouteReason, StatementKind, StatementVerdict};

/// The name of Weir's query attribute.
const ATTRIBUTE: &[u8] = b"weir.role";
/// The name in MySQL Router, with the values `read_write`, `read_only` and `auto`.
const ROUTER_ATTRIBUTE: &[u8] = b"router.access_mode";

/// The hint in a leading comment, `/* weir: primary */` or `/* weir: secondary */`; `None` if there is none.
pub fn of_comment(text: &[u8]) -> Option<RoleWanted> {
    let comment = text.trim_ascii_start().strip_prefix(b"/*")?;
    let end = comment.windows(2).position(|two| two == b"*/")?;
    let hint = comment.get(..end)?.trim_ascii().strip_prefix(b"weir:")?;
    role(hint.trim_ascii())
}

/// The hint of a query attribute; `None` for any other attribute.
pub fn of_attribute(name: &[u8], value: &[u8]) -> Option<RoleWanted> {
    (name == ATTRIBUTE || name == ROUTER_ATTRIBUTE).then(|| role(value)).flatten()
}

fn role(word: &[u8]) -> Option<RoleWanted> {
    let is = |other: &[u8]| word.eq_ignore_ascii_case(other);
    if is(b"primary") || is(b"read_write") {
        Some(RoleWanted::Primary)
    } else if is(b"secondary") || is(b"read_only") {
        Some(RoleWanted::AnyMember)
    } else {
        None
    }
}

impl StatementVerdict {
    /// The verdict with the client's hint applied; call [`StatementVerdict::under`] on it to find where it
    /// runs.
    pub fn hinted(self, hint: Option<RoleWanted>) -> StatementVerdict {
        let own_reason = match (hint, self.own_reason) {
            (Some(RoleWanted::Primary), own) if own.wants() == RoleWanted::AnyMember => {
                RouteReason::HintedPrimary
            }
            (Some(RoleWanted::AnyMember), RouteReason::UnknownFunction | RouteReason::ServerState)
                if matches!(self.kind, StatementKind::Select | StatementKind::Show)
                    && !self.changes
                    && !self.leaves.without(LeftBehind::ANYTHING).pins() =>
            {
                RouteReason::HintedSecondary
            }
            (_, own) => own,
        };
        StatementVerdict { own_reason, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SessionFacts, classify};

    fn reason(text: &str) -> RouteReason {
        classify(text.as_bytes(), &SessionFacts::default()).reason
    }

    #[test]
    fn a_comment_before_a_read_says_where_it_may_run() {
        assert_eq!(reason("/* weir: primary */ SELECT a FROM t"), RouteReason::HintedPrimary);
        assert_eq!(reason(" /*weir:SECONDARY*/SELECT f(a) FROM t"), RouteReason::HintedSecondary);
        assert_eq!(reason("/* weir: secondary */ SELECT a FROM t"), RouteReason::PlainRead);
        for text in
            ["/* weir: nobody */ SELECT a FROM t", "SELECT /* weir: primary */ a FROM t", "/* weir: primary"]
        {
            assert_eq!(of_comment(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn no_hint_sends_a_write_or_a_lock_to_a_secondary() {
        for text in [
            "UPDATE t SET a = 1",
            "SELECT a FROM t FOR UPDATE",
            "CALL p()",
            "SELECT @a := 1",
            "SET a = 1",
            // For these, the unknown function is the first reason.
            "SELECT f(a) FROM t FOR UPDATE",
            "SELECT f(1), GET_LOCK('a', 1)",
            "SELECT f(1) INTO @a",
            "WITH x AS (SELECT f(1)) UPDATE t SET a = 1",
        ] {
            let hinted = reason(&format!("/* weir: secondary */ {text}"));
            assert_eq!(hinted.wants(), RoleWanted::Primary, "{text}");
        }
    }

    #[test]
    fn attributes_are_weirs_own_and_routers() {
        assert_eq!(of_attribute(b"weir.role", b"primary"), Some(RoleWanted::Primary));
        assert_eq!(of_attribute(b"router.access_mode", b"read_only"), Some(RoleWanted::AnyMember));
        assert_eq!(of_attribute(b"router.access_mode", b"auto"), None);
        assert_eq!(of_attribute(b"role", b"primary"), None);
    }
}
