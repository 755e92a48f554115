//! What a text of statements wants, does and leaves behind.
//!
//! Unknown means primary: a statement runs elsewhere only if all of it is known to be a read. What is found
//! about several statements in one text is said of the whole.

use crate::hint;
use crate::lexer::ExecutableComment;
use crate::reading::{Part, Reading};
use crate::verb::part;
use crate::verdict::{
    LeftBehind, OpenTransaction, ReadsBack, Resend, RoleWanted, RouteReason, SessionFacts, SplitAccess,
    StatementKind, StatementVerdict, TransactionStep,
};

/// Judges a whole text, as it came in `COM_QUERY` or `COM_STMT_PREPARE`.
///
/// Time grows with the text's length (a small statement takes well under a microsecond); does not allocate.
pub fn classify(text: &[u8], facts: &SessionFacts) -> StatementVerdict {
    let mut at = Reading::new(text, facts.dialect);
    let first = part(&mut at);
    let mut total = first.unwrap_or_else(empty);
    let mut statements = u32::from(first.is_some());
    while let Some(next) = part(&mut at) {
        add(&mut total, &next, statements);
        statements = statements.saturating_add(1);
    }
    // Asked here too, so that no verb whose words are passed over can miss it.
    if at.lexer.is_irregular() {
        total.unreadable();
    }
    let executable = at.lexer.executable();
    if executable != ExecutableComment::None {
        total.refuse(RouteReason::ExecutableComment);
    }
    if executable == ExecutableComment::Sometimes {
        total.leaves |= LeftBehind::ANYTHING;
        total.resend = Resend::Never;
    }
    judge(&total, statements, facts).hinted(hint::of_comment(text)).under(facts)
}

/// Judges a text of which only the front is at hand, because it is longer than the session holds.
pub fn classify_head(head: &[u8], facts: &SessionFacts) -> StatementVerdict {
    let mut verdict = classify(head, facts);
    verdict.own_reason = RouteReason::NotWhole;
    verdict.leaves |= LeftBehind::ANYTHING;
    verdict.reads_back |= ReadsBack::ANYTHING;
    verdict.transaction = TransactionStep::Unclear;
    verdict.resend = Resend::Never;
    let (wants, reason) = place(RouteReason::NotWhole, facts);
    StatementVerdict { wants, reason, ..verdict }
}

fn empty() -> Part {
    Part::new(StatementKind::Empty, RouteReason::Empty, Resend::Never)
}

/// Adds a further statement of the same text, behind `statements` others.
fn add(total: &mut Part, next: &Part, statements: u32) {
    if total.blurs_the_rest {
        total.leaves |= LeftBehind::ANYTHING;
    }
    total.leaves |= next.leaves;
    total.reads_back |= match statements {
        0 => next.reads_back,
        // What else it asks about is the statement before it in this text.
        _ => next.reads_back.without(ReadsBack::ABOUT_THE_LAST),
    };
    if next.step != TransactionStep::None || total.step != TransactionStep::None {
        total.step = TransactionStep::Unclear;
    }
    let is_unreadable = [total.reason, next.reason].contains(&RouteReason::Unreadable);
    total.reason = if is_unreadable { RouteReason::Unreadable } else { RouteReason::SeveralStatements };
    total.kind = StatementKind::Several;
    total.local_infile |= next.local_infile;
    total.kill = total.kill.or(next.kill);
    total.resend = Resend::Never;
    total.blurs_the_rest |= next.blurs_the_rest;
}

fn judge(total: &Part, statements: u32, facts: &SessionFacts) -> StatementVerdict {
    let (wants, reason) = place(total.reason, facts);
    let is_alone = facts.transaction == OpenTransaction::None && facts.autocommit;
    let resend = match total.resend {
        _ if !is_alone || total.leaves.has(LeftBehind::ANYTHING) => Resend::Never,
        Resend::Anywhere if !is_repeatable(total) => Resend::IfRefused,
        resend => resend,
    };
    StatementVerdict {
        wants,
        reason,
        own_reason: total.reason,
        kind: total.kind,
        statements,
        leaves: total.leaves,
        reads_back: total.reads_back,
        transaction: total.step,
        local_infile: total.local_infile,
        kill: total.kill,
        resend,
    }
}

fn is_repeatable(total: &Part) -> bool {
    total.reason.wants() == RoleWanted::AnyMember && total.leaves.is_empty() && total.reads_back.is_empty()
}

/// Where a statement may run by its own reason, the session's state and the listener.
fn place(own: RouteReason, facts: &SessionFacts) -> (RoleWanted, RouteReason) {
    let own = match own {
        RouteReason::PlainRead if facts.is_in_own_schema => RouteReason::ServerState,
        own => own,
    };
    let reason = match (facts.access, facts.transaction) {
        (SplitAccess::ReadWrite, _) => RouteReason::ReadWriteListener,
        (SplitAccess::ReadOnly, _) => RouteReason::ReadOnlyListener,
        (SplitAccess::Auto, OpenTransaction::ReadWrite) => RouteReason::InTransaction,
        (SplitAccess::Auto, OpenTransaction::ReadOnly) => RouteReason::InReadOnlyTransaction,
        (SplitAccess::Auto, OpenTransaction::None) if own.wants() == RoleWanted::Primary => own,
        // It opens one anyway, that says READ ONLY itself.
        (SplitAccess::Auto, OpenTransaction::None) if own == RouteReason::ReadOnlyTransaction => own,
        (SplitAccess::Auto, OpenTransaction::None) if !facts.autocommit => RouteReason::AutocommitOff,
        (SplitAccess::Auto, OpenTransaction::None) => own,
    };
    (reason.wants(), reason)
}

impl StatementVerdict {
    /// The verdict on the same text with other facts of its session; one that was found with
    /// [`SessionFacts::default`] and the same dialect.
    pub fn under(&self, facts: &SessionFacts) -> StatementVerdict {
        let (wants, reason) = place(self.own_reason, facts);
        let is_alone = facts.transaction == OpenTransaction::None && facts.autocommit;
        let resend = if is_alone { self.resend } else { Resend::Never };
        StatementVerdict { wants, reason, resend, ..*self }
    }
}

impl RouteReason {
    /// Where a statement may run that has this reason.
    pub const fn wants(self) -> RoleWanted {
        match self {
            RouteReason::ReadOnlyListener
            | RouteReason::InReadOnlyTransaction
            | RouteReason::HintedSecondary
            | RouteReason::PlainRead
            | RouteReason::Metadata
            | RouteReason::ReadOnlyTransaction => RoleWanted::AnyMember,
            _ => RoleWanted::Primary,
        }
    }
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
