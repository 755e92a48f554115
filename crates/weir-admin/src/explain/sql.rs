//! Explains an SQL statement by the same classifier that sessions use.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use weir_balance::WantedRole;
use weir_config::{Bind, MysqlAccess, Passwords, Protocol, TlsMode};
use weir_mysql::hidden::names_any;
use weir_mysql::{
    ClientCharset, Completion, LeftBehind, OpenTransaction, ReadsBack, RoleWanted, RouteReason, SessionFacts,
    SplitAccess, SqlDialect, SqlMode, StatementVerdict, TransactionStep, classify,
};
use weir_proxy::compiled::CompiledSnapshot;
use weir_state::key::{Transport, flow_key};
use weir_state::{Listener, Pool, Snapshot};

use super::{Answer, choose_in, of_client, refuse_by_screens};

/// A statement, and the state of the session that would send it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlQuestion {
    /// The text of one `COM_QUERY`.
    pub statement: String,
    /// Name of the listener; default: the only one that speaks MySQL.
    #[serde(default)]
    pub listener: Option<String>,
    /// The open transaction; default none.
    #[serde(default)]
    pub transaction: Option<Transaction>,
    /// Whether autocommit is on; default true.
    #[serde(default = "on")]
    pub autocommit: bool,
    /// The session's `sql_mode`; default: none of the modes that change how a text is parsed.
    #[serde(default)]
    pub sql_mode: String,
    /// The session's `character_set_client`; default `utf8mb4`.
    #[serde(default)]
    pub charset: Option<String>,
    /// Address of the client; default 127.0.0.1.
    #[serde(default)]
    pub from: Option<IpAddr>,
}

fn on() -> bool {
    true
}

/// An open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transaction {
    /// A transaction that may write.
    ReadWrite,
    /// A transaction begun with READ ONLY.
    ReadOnly,
}

/// What a statement needs, does and leaves behind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Statement {
    /// Its kind.
    pub kind: String,
    /// Number of non-empty statements in the text.
    pub statements: u32,
    /// The server it needs: `primary` or `any`.
    pub wants: String,
    /// The reason for that.
    pub reason: Worded,
    /// The reason that follows from the text alone, whatever the session's state and the listener are.
    pub own_reason: Worded,
    /// The server that the text alone needs: `primary` or `any`.
    pub own_wants: String,
    /// State that it leaves on its connection and that can't be reproduced on another one.
    pub leaves: Vec<Worded>,
    /// Whether it pins the session to its connection until a reset.
    pub pins: bool,
    /// Whether it is refused if something else keeps the session on a server that is not the primary.
    #[serde(default)]
    pub for_the_primary_alone: bool,
    /// Information that it reads about the statement before it.
    pub reads_back: Vec<Worded>,
    /// Its effect on the transaction; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<String>,
    /// Whether it may be sent again, as long as no byte of an answer has gone to the client.
    pub resend: Worded,
}

/// A word from a closed set, and its meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worded {
    /// The word in logs and metrics.
    pub word: String,
    /// Its meaning, as a sentence.
    pub meaning: String,
}

impl Worded {
    fn of(word: &str, meaning: &str) -> Worded {
        Worded { word: word.to_owned(), meaning: meaning.to_owned() }
    }

    fn reason(reason: RouteReason) -> Worded {
        Worded::of(reason.word(), reason.meaning())
    }
}

impl Statement {
    fn of(verdict: &StatementVerdict) -> Statement {
        let left = LeftBehind::ALL.iter().filter(|(flag, ..)| verdict.leaves.has(*flag));
        let asked = ReadsBack::ALL.iter().filter(|(flag, ..)| verdict.reads_back.has(*flag));
        Statement {
            kind: verdict.kind.word().to_owned(),
            statements: verdict.statements,
            wants: verdict.wants.word().to_owned(),
            reason: Worded::reason(verdict.reason),
            own_reason: Worded::reason(verdict.own_reason),
            own_wants: verdict.own_reason.wants().word().to_owned(),
            leaves: left.map(|(_, word, meaning)| Worded::of(word, meaning)).collect(),
            pins: verdict.leaves.pins(),
            for_the_primary_alone: verdict.is_for_the_primary_alone(LeftBehind::NONE),
            reads_back: asked.map(|(_, word, meaning)| Worded::of(word, meaning)).collect(),
            transaction: step(verdict.transaction),
            resend: Worded::of(verdict.resend.word(), verdict.resend.meaning()),
        }
    }
}

fn step(step: TransactionStep) -> Option<String> {
    let ends = |verb: &str, chain: Completion, release: Completion| {
        let next = if chain == Completion::Yes { ", and begins the next one" } else { "" };
        let close = if release == Completion::Yes { ", and the server closes the connection" } else { "" };
        format!("{verb}{next}{close}")
    };
    Some(match step {
        TransactionStep::None => return None,
        TransactionStep::Begin { read_only: false } => "begins one".to_owned(),
        TransactionStep::Begin { read_only: true } => "begins one that says READ ONLY".to_owned(),
        TransactionStep::Commit { chain, release } => ends("commits", chain, release),
        TransactionStep::Rollback { chain, release } => ends("rolls back", chain, release),
        TransactionStep::ImplicitCommit => "commits on the way".to_owned(),
        TransactionStep::Autocommit(Some(true)) => "autocommit on, which commits".to_owned(),
        TransactionStep::Autocommit(Some(false)) => {
            "autocommit off: any statement opens a transaction".to_owned()
        }
        TransactionStep::Autocommit(None) => "autocommit, on or off".to_owned(),
        TransactionStep::Unclear { .. } => "the server's answer tells".to_owned(),
    })
}

/// Explains one statement.
pub(super) fn explain(compiled: &CompiledSnapshot, question: &SqlQuestion) -> Result<Answer, String> {
    let (listener, reason) = listener_for(&compiled.snapshot, question.listener.as_deref())?;
    let pool = listener.config.pool.as_deref().and_then(|name| compiled.snapshot.pool(name));
    let pool = pool.ok_or_else(|| format!("listener `{}` has no pool", listener.config.name))?;
    let access = listener.config.mysql().map_or(MysqlAccess::ReadWrite, |mysql| mysql.access);
    let (text, facts) = (question.statement.as_bytes(), facts(question, access));
    let mut verdict = classify(text, &facts);
    if names_any(text, facts.dialect, |name| pool.has_code_behind(name)) {
        verdict = verdict.with_hidden_code(&facts);
    }

    let mut answer = Answer::of(listener, reason);
    answer.statement = Some(Statement::of(&verdict));
    let client = question.from.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    answer.screens = of_client(compiled, listener, client);
    if refuse_by_screens(&mut answer) {
        return Ok(answer);
    }
    let (wanted, place) = match verdict.wants {
        RoleWanted::Primary => (WantedRole::Primary, "the primary"),
        RoleWanted::AnyMember => (WantedRole::Read, "a server that reads go to"),
    };
    answer.action = match (staying(listener, pool), question.transaction) {
        (Some(why), _) => format!("forward to pool {}, {place}; {why}", pool.config.name),
        (None, Some(_)) => format!("stay with the server of the transaction, {place}"),
        (None, None) => format!("forward to pool {}, {place}", pool.config.name),
    };
    let destination = || listener.config.bind.iter().find_map(Bind::inet).map(|bind| bind.first);
    let key = flow_key(&pool.config, Transport::Tcp, SocketAddr::new(client, 0), destination);
    answer.pool = Some(choose_in(pool, key, None, Some(wanted)));
    Ok(answer)
}

/// The session state for the classifier.
fn facts(question: &SqlQuestion, access: MysqlAccess) -> SessionFacts {
    let charset = question.charset.as_deref().map_or(ClientCharset::Utf8, ClientCharset::named);
    SessionFacts {
        access: match access {
            MysqlAccess::Auto => SplitAccess::Auto,
            MysqlAccess::ReadWrite => SplitAccess::ReadWrite,
            MysqlAccess::ReadOnly => SplitAccess::ReadOnly,
        },
        transaction: match question.transaction {
            None => OpenTransaction::None,
            Some(Transaction::ReadWrite) => OpenTransaction::ReadWrite,
            Some(Transaction::ReadOnly) => OpenTransaction::ReadOnly,
        },
        autocommit: question.autocommit,
        dialect: SqlDialect { charset, mode: SqlMode::read(&question.sql_mode) },
        is_in_own_schema: false,
    }
}

/// Why all statements of a session go to one server, if they do.
fn staying(listener: &Listener, pool: &Pool) -> Option<&'static str> {
    let passes = listener.config.tls.as_ref().is_some_and(|tls| tls.mode == TlsMode::Passthrough);
    let relays = pool.config.mysql.as_ref().is_some_and(|mysql| mysql.passwords == Passwords::Relay);
    match (passes, relays) {
        (true, _) => Some("its session stays there, for statements are not seen in passthrough"),
        (false, true) => Some("its session stays there, for it has logged in there (passwords = \"relay\")"),
        (false, false) => None,
    }
}

fn listener_for<'s>(snapshot: &'s Snapshot, wanted: Option<&str>) -> Result<(&'s Listener, String), String> {
    let is_one = |listener: &&std::sync::Arc<Listener>| listener.config.protocol() == Protocol::Mysql;
    let all: Vec<&Listener> = snapshot.listeners.iter().filter(is_one).map(|it| &**it).collect();
    let names = || all.iter().map(|it| it.config.name.as_str()).collect::<Vec<_>>().join(", ");
    match (wanted, all.as_slice()) {
        (_, []) => Err("there is no MySQL listener".to_owned()),
        (Some(name), all) => match all.iter().find(|it| it.config.name == name) {
            Some(found) => Ok((found, "named in the question".to_owned())),
            None => Err(format!("no MySQL listener is named `{name}`, expected one of {}", names())),
        },
        (None, [only]) => Ok((only, "the only MySQL listener".to_owned())),
        (None, _) => Err(format!("expected `listener` to name one of {}", names())),
    }
}
