//! The classifier against another parser: `sqlparser`'s tree of a statement says whether it writes, locks or
//! leaves something, and no such statement may be one for any member.

mod generate;

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;

use generate::{Draws, Statements};
use sqlparser::ast::{Expr, ObjectName, Query, Select, SetExpr, Statement, Visit, Visitor};
use sqlparser::dialect::MySqlDialect;
use sqlparser::parser::Parser;
use weir_mysql::{RoleWanted, SessionFacts, classify};

/// Texts that are drawn; `sqlparser` knows all but a twentieth of them.
const TEXTS: usize = 6_000;

#[expect(clippy::disallowed_methods, reason = "tests may draw and be told a seed; the crate may not")]
fn seed() -> u64 {
    let given = std::env::var("WEIR_SEED").ok();
    let seed = match given {
        Some(text) => text.parse().expect("WEIR_SEED is a decimal number"),
        None => RandomState::new().hash_one("weir"),
    };
    println!("repeat with WEIR_SEED={seed}");
    seed
}

#[test]
fn what_another_parser_takes_for_a_write_or_a_lock_never_goes_to_any_member() {
    let mut draws = Draws(seed());
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut wrong = Vec::new();
    let mut count = |what| *counts.entry(what).or_default() += 1;
    for number in 0..TEXTS {
        let dirty_once_in = [12, 40, 0][number % 3];
        let text = Statements { draws: &mut draws, dirty_once_in }.text();
        let wants = classify(text.as_bytes(), &SessionFacts::default()).wants;
        let Ok(statements) = Parser::parse_sql(&MySqlDialect {}, &text) else {
            count("not read by sqlparser");
            continue;
        };
        match (effect(&statements), wants) {
            (None, RoleWanted::AnyMember) => count("reads"),
            (None, RoleWanted::Primary) if dirty_once_in == 0 => {
                wrong.push(format!("a read that wants the primary: {text}"));
            }
            (None, RoleWanted::Primary) => count("reads that want the primary"),
            (Some(what), RoleWanted::Primary) => count(what),
            (Some(what), RoleWanted::AnyMember) => wrong.push(format!("{what} for any member: {text}")),
        }
    }
    println!("{counts:#?}");
    assert!(wrong.is_empty(), "{} of {TEXTS}:\n{}", wrong.len(), wrong[..wrong.len().min(20)].join("\n\n"));
    for what in ["reads", "a write", "locked rows", "INTO", "a user variable", "a function", "several"] {
        assert!(counts.get(what).is_some_and(|count| *count > 20), "hardly any text has {what}");
    }
}

/// What keeps a text from being a read that leaves nothing, by its tree; `None` for a read.
fn effect(statements: &[Statement]) -> Option<&'static str> {
    let [statement] = statements else { return Some("several") };
    let mut finder = Finder;
    match statement.visit(&mut finder) {
        ControlFlow::Break(what) => Some(what),
        ControlFlow::Continue(()) => None,
    }
}

struct Finder;

impl Visitor for Finder {
    type Break = &'static str;

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<&'static str> {
        match statement {
            Statement::Query(_) | Statement::Explain { .. } | Statement::ExplainTable { .. } => {
                ControlFlow::Continue(())
            }
            Statement::Insert(_) | Statement::Update(_) | Statement::Delete(_) => {
                ControlFlow::Break("a write")
            }
            _ => ControlFlow::Break("another statement"),
        }
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<&'static str> {
        match *query.body {
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                ControlFlow::Break("a write")
            }
            _ if !query.locks.is_empty() => ControlFlow::Break("locked rows"),
            _ => ControlFlow::Continue(()),
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<&'static str> {
        if select.into.is_some() { ControlFlow::Break("INTO") } else { ControlFlow::Continue(()) }
    }

    fn pre_visit_expr(&mut self, expression: &Expr) -> ControlFlow<&'static str> {
        match expression {
            Expr::Function(function) if !is_built_in(&function.name) => ControlFlow::Break("a function"),
            Expr::Identifier(name) if name.quote_style.is_none() && name.value.starts_with('@') => {
                ControlFlow::Break("a user variable")
            }
            _ => ControlFlow::Continue(()),
        }
    }
}

/// Whether a function is one of those that the generator takes for built in and harmless.
fn is_built_in(name: &ObjectName) -> bool {
    let [part] = name.0.as_slice() else { return false };
    let Some(name) = part.as_ident().filter(|name| name.quote_style.is_none()) else { return false };
    let dirty = [
        "f",
        "get_lock",
        "release_lock",
        "is_free_lock",
        "last_insert_id",
        "row_count",
        "found_rows",
        "connection_id",
        "load_file",
        "nextval",
        "md5",
        "sha1",
    ];
    !dirty.contains(&name.value.to_ascii_lowercase().as_str())
}
