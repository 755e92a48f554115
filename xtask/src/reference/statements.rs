//! The reference page of statements: the words that say how MySQL statements are classified and handled.

use std::fmt::Write as _;

use weir_mysql::{LeftBehind, ReadsBack, Resend, RouteReason, StatementKind};

/// `docs/reference/statements.md`, whole.
pub fn page() -> String {
    let mut text = "# Statements of MySQL\n\n\
        The words of `weir explain sql` and of `POST /v1/explain`. Generated from \
        `crates/weir-mysql/src/verdict.rs`; do not edit.\n\n\
        ## Why it goes where it goes\n\n\
        The first that holds, from the top. `any` is any member that serves reads, by `reads` of the pool.\n\n"
        .to_owned();
    let reasons = RouteReason::ALL.iter().map(|it| (it.word(), it.wants().word(), it.meaning()));
    text.push_str("| word | wants | meaning |\n|---|---|---|\n");
    for (word, wants, meaning) in reasons {
        let _ = writeln!(text, "| `{word}` | {wants} | {meaning} |");
    }
    text.push_str("\n## What it leaves on its connection\n\n");
    table(&mut text, LeftBehind::ALL.iter().map(|(_, word, meaning)| (*word, *meaning)));
    let brief: Vec<_> = LeftBehind::FOR_THE_NEXT.words().map(|word| format!("`{word}`")).collect();
    let brief = brief.join(" and ");
    let _ = writeln!(
        text,
        "\nOnly the next statement can ask for {brief}; with any other the session keeps its connection until it is reset."
    );
    text.push_str("\n## What it asks of the statement before it\n\n");
    table(&mut text, ReadsBack::ALL.iter().map(|(_, word, meaning)| (*word, *meaning)));
    text.push_str(
        "\n## Whether it may be sent again\n\nWhile no byte of an answer has gone to the client.\n\n",
    );
    table(&mut text, Resend::ALL.iter().map(|it| (it.word(), it.meaning())));
    text.push_str("\n## Kinds\n\n");
    table(&mut text, StatementKind::ALL.iter().map(|it| (it.word(), it.meaning())));
    text
}

fn table<'w>(text: &mut String, rows: impl Iterator<Item = (&'w str, &'w str)>) {
    text.push_str("| word | meaning |\n|---|---|\n");
    for (word, meaning) in rows {
        let _ = writeln!(text, "| `{word}` | {meaning} |");
    }
}
