//! Classifies a text of one or several statements: what it needs, does and leaves behind.
//!
//! Unknown means primary: a statement runs elsewhere only if all of it is known to be a read. For several
//! statements in one text, the verdict covers the whole text.

use crate::hint;
use crate::lexer::ExecutableComment;
use crate::reading::{Part, Reading};
use crate::verb::part;
use crate::verdict::{
    BeyondReadOnly, Completion, LeftBehind, OpenTransaction, ReadsBack, Resend, RoleWanted, RouteReason,
    SessionFacts, SplitAccess, StatementKind, StatementVerdict, TableUse, TransactionStep,
};

/// Classifies a whole text from `COM_QUERY` or `COM_STMT_PREPARE`.
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
    // Checked here too, so that a verb whose words are skipped cannot miss it.
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

/// Classifies a text of which only the beginning is available, because it is longer than the session buffers.
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

/// Adds the next statement of the same text; `statements` is how many come before it.
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
        // The rest of what it asks is about the preceding statement in this same text.
        _ => next.reads_back.without(ReadsBack::ABOUT_THE_LAST),
    };
    if next.step.may_switch_autocommit_on() && total.step != TransactionStep::None {
        // The next statement keeps the characteristics (such as READ ONLY) of a transaction that ends this
        // way.
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

/// How far a text goes beyond a READ ONLY transaction if `next` follows the statements of `total`.
fn beyond(total: &Part, next: &Part) -> BeyondReadOnly {
    let is_open = !total.leaves_read_only && next.beyond_read_only() == BeyondReadOnly::Nothing;
    match total.beyond_read_only() {
        BeyondReadOnly::Nothing if is_open || !next.may_change() => BeyondReadOnly::Nothing,
        BeyondReadOnly::Nothing if total.ends_at_once => BeyondReadOnly::AtOnce,
        BeyondReadOnly::Nothing => BeyondReadOnly::Later,
        found => found,
    }
}

/// Whether a statement may end READ ONLY mode. AND CHAIN, and BEGIN without an access mode, only begin the
/// next transaction in the same mode as the one before.
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

/// Where a statement may run, given its own reason, the session's state and the listener.
fn place(own: RouteReason, beyond: BeyondReadOnly, facts: &SessionFacts) -> (RoleWanted, RouteReason) {
    let own = if facts.is_in_own_schema { among_own_tables(own) } else { own };
    let reason = match (facts.access, facts.transaction) {
        (SplitAccess::ReadWrite, _) => RouteReason::ReadWriteListener,
        (SplitAccess::ReadOnly, _) => RouteReason::ReadOnlyListener,
        (SplitAccess::Auto, OpenTransaction::ReadWrite) => RouteReason::InTransaction,
        // The transaction has ended by the time the statement does its main work.
        (SplitAccess::Auto, OpenTransaction::ReadOnly) if beyond == BeyondReadOnly::AtOnce => own,
        (SplitAccess::Auto, OpenTransaction::ReadOnly) => RouteReason::InReadOnlyTransaction,
        (SplitAccess::Auto, OpenTransaction::None) if own.wants() == RoleWanted::Primary => own,
        // It opens a transaction in any case, and that one is explicitly READ ONLY.
        (SplitAccess::Auto, OpenTransaction::None) if own == RouteReason::ReadOnlyTransaction => own,
        (SplitAccess::Auto, OpenTransaction::None) if !facts.autocommit => RouteReason::AutocommitOff,
        (SplitAccess::Auto, OpenTransaction::None) => own,
    };
    (reason.wants(), reason)
}

/// The reason of a text if its names without a schema may be tables with state of the individual server.
fn among_own_tables(own: RouteReason) -> RouteReason {
    if own == RouteReason::PlainRead { RouteReason::ServerState } else { own }
}

impl StatementVerdict {
    /// The verdict on the same text if it was read in a schema whose tables show state of the individual
    /// server, whatever schema the session is in by now.
    pub fn among_own_tables(&self) -> StatementVerdict {
        StatementVerdict { own_reason: among_own_tables(self.own_reason), ..*self }
    }

    /// The verdict on the same text with other session facts. `self` must come from [`SessionFacts::default`]
    /// with the same dialect.
    pub fn under(&self, facts: &SessionFacts) -> StatementVerdict {
        let (wants, reason) = place(self.own_reason, self.beyond_read_only, facts);
        let is_alone = facts.transaction == OpenTransaction::None && facts.autocommit;
        let resend = if is_alone { self.resend } else { Resend::Never };
        StatementVerdict { wants, reason, resend, ..*self }
    }
}

impl RouteReason {
    /// The role of the servers where a statement with this reason may run.
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

    /// Whether a statement with this reason changes, or locks, more than the state of its own connection. For
    /// an unknown function or routine, [`StatementVerdict::leaves`] says so instead.
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
