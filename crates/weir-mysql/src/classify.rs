//! What a text of statements wants, does and leaves behind.
//!
//! Unknown means primary: a statement runs elsewhere only if all of it is known to be a read. What is found
//! about several statements in one text is said of the whole.

use crate::hint;
use crate::lexer::ExecutableComment;
use crate::reading::{Part, Reading};
use crate::verb::part;
use crate::verdict::{
    BeyondReadOnly, Completion, LeftBehind, OpenTransaction, ReadsBack, Resend, RoleWanted, RouteReason,
    SessionFacts, SplitAccess, StatementKind, StatementVerdict, TableUse, TransactionStep,
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
    verdict.transaction = TransactionStep::Unclear { autocommit: true, releases: false };
    verdict.resend = Resend::Never;
    verdict.changes = true;
    verdict.tables = TableUse::Used;
    let (wants, reason) = place(RouteReason::NotWhole, verdict.beyond_read_only, facts);
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
    if statements == 1 {
        total.leaves_read_only = leaves_read_only(total);
        let may_stay = matches!(total.step, TransactionStep::Unclear { .. } | TransactionStep::Autocommit(_));
        total.ends_at_once = total.leaves_read_only && !may_stay;
        total.ends_as_set = matches!(
            total.step,
            TransactionStep::Commit { chain: Completion::AsSet, .. }
                | TransactionStep::Rollback { chain: Completion::AsSet, .. }
        );
    }
    total.beyond = Some(beyond(total, next));
    total.leaves_read_only |= leaves_read_only(next);
    total.changes |= next.changes;
    if next.tables != TableUse::Unused {
        total.tables = next.tables;
    }
    total.leaves |= next.leaves;
    total.reads_back |= match statements {
        0 => next.reads_back,
        // What else it asks about is the statement before it in this text.
        _ => next.reads_back.without(ReadsBack::ABOUT_THE_LAST),
    };
    if next.step.may_switch_autocommit_on() && total.step != TransactionStep::None {
        // What a transaction that ends in this way said of itself, as READ ONLY, is kept for what comes next.
        total.leaves |= LeftBehind::NEXT_TRANSACTION;
    }
    if next.step != TransactionStep::None || total.step != TransactionStep::None {
        let steps = [total.step, next.step];
        let autocommit = steps.iter().any(TransactionStep::may_switch_autocommit_on);
        let releases = steps.iter().any(|step| step.releases(false));
        total.step = TransactionStep::Unclear { autocommit, releases };
    }
    let is_unreadable = [total.reason, next.reason].contains(&RouteReason::Unreadable);
    total.reason = if is_unreadable { RouteReason::Unreadable } else { RouteReason::SeveralStatements };
    total.kind = StatementKind::Several;
    total.local_infile |= next.local_infile;
    total.kill = total.kill.or(next.kill);
    total.resend = Resend::Never;
    total.blurs_the_rest |= next.blurs_the_rest;
}

/// What of a text is beyond a READ ONLY transaction, where `next` comes behind the statements of `total`.
fn beyond(total: &Part, next: &Part) -> BeyondReadOnly {
    let is_open = !total.leaves_read_only && next.beyond_read_only() == BeyondReadOnly::Nothing;
    match total.beyond_read_only() {
        BeyondReadOnly::Nothing if is_open || !next.may_change() => BeyondReadOnly::Nothing,
        BeyondReadOnly::Nothing if total.ends_at_once => BeyondReadOnly::AtOnce,
        BeyondReadOnly::Nothing => BeyondReadOnly::Later,
        found => found,
    }
}

/// Whether a statement may end a READ ONLY transaction, and not only begin the next as the one before: that
/// do AND CHAIN, and BEGIN without a word of it.
fn leaves_read_only(part: &Part) -> bool {
    match part.step {
        TransactionStep::None => false,
        TransactionStep::Begin { .. } => part.beyond_read_only() != BeyondReadOnly::Nothing,
        TransactionStep::Commit { chain, .. } | TransactionStep::Rollback { chain, .. } => {
            chain != Completion::Yes
        }
        _ => true,
    }
}

fn judge(total: &Part, statements: u32, facts: &SessionFacts) -> StatementVerdict {
    let beyond_read_only = total.beyond_read_only();
    let (wants, reason) = place(total.reason, beyond_read_only, facts);
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
        changes: total.changes,
        beyond_read_only,
        ends_as_set: total.ends_as_set,
        tables: total.tables,
    }
}

fn is_repeatable(total: &Part) -> bool {
    total.reason.wants() == RoleWanted::AnyMember && total.leaves.is_empty() && total.reads_back.is_empty()
}

/// Where a statement may run by its own reason, the session's state and the listener.
fn place(own: RouteReason, beyond: BeyondReadOnly, facts: &SessionFacts) -> (RoleWanted, RouteReason) {
    let own = if facts.is_in_own_schema { among_own_tables(own) } else { own };
    let reason = match (facts.access, facts.transaction) {
        (SplitAccess::ReadWrite, _) => RouteReason::ReadWriteListener,
        (SplitAccess::ReadOnly, _) => RouteReason::ReadOnlyListener,
        (SplitAccess::Auto, OpenTransaction::ReadWrite) => RouteReason::InTransaction,
        // The transaction is over when it does what it is for.
        (SplitAccess::Auto, OpenTransaction::ReadOnly) if beyond == BeyondReadOnly::AtOnce => own,
        (SplitAccess::Auto, OpenTransaction::ReadOnly) => RouteReason::InReadOnlyTransaction,
        (SplitAccess::Auto, OpenTransaction::None) if own.wants() == RoleWanted::Primary => own,
        // It opens one anyway, that says READ ONLY itself.
        (SplitAccess::Auto, OpenTransaction::None) if own == RouteReason::ReadOnlyTransaction => own,
        (SplitAccess::Auto, OpenTransaction::None) if !facts.autocommit => RouteReason::AutocommitOff,
        (SplitAccess::Auto, OpenTransaction::None) => own,
    };
    (reason.wants(), reason)
}

/// The reason of a text whose names without a schema may be of tables that each server has of its own.
fn among_own_tables(own: RouteReason) -> RouteReason {
    if own == RouteReason::PlainRead { RouteReason::ServerState } else { own }
}

impl StatementVerdict {
    /// The verdict on the same text in a schema whose tables show what each server has of its own, whatever
    /// schema its session is in by then.
    pub fn among_own_tables(&self) -> StatementVerdict {
        StatementVerdict { own_reason: among_own_tables(self.own_reason), ..*self }
    }

    /// The verdict on the same text with other facts of its session; one that was found with
    /// [`SessionFacts::default`] and the same dialect.
    pub fn under(&self, facts: &SessionFacts) -> StatementVerdict {
        let (wants, reason) = place(self.own_reason, self.beyond_read_only, facts);
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

    /// Whether what has this reason changes, or locks, more than what is its connection's own. Of a function
    /// or a routine that is not known, what a statement leaves says so.
    pub(crate) const fn changes(self) -> bool {
        match self {
            RouteReason::UserVariable
            | RouteReason::IntoVariable
            | RouteReason::UnknownFunction
            | RouteReason::HiddenCode
            | RouteReason::ServerFunction
            | RouteReason::LastResult
            | RouteReason::ConnectionId
            | RouteReason::ServerState
            | RouteReason::Setting
            | RouteReason::Effect
            | RouteReason::TemporaryTable
            | RouteReason::Handler
            | RouteReason::Prepared
            | RouteReason::Transaction
            | RouteReason::Kill
            | RouteReason::Cursor
            | RouteReason::OtherSchema
            | RouteReason::HintedPrimary
            | RouteReason::Empty => false,
            other => matches!(other.wants(), RoleWanted::Primary),
        }
    }
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
