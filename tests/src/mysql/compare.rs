//! Runs the same sessions on a server directly and through Weir, statement by statement, and compares every
//! byte of the answers.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::BEFORE_PAIR;
use super::client::{Client, Login, query};
use super::data::{data_of, renewal_of};
use super::packets::{Answer, Asked, execution, forget_first_changes};
use super::programs::{Leaving, Program, Step};
use super::servers::{Mysqld, Pair};
use crate::dialogue::{Draws, PATIENCE, Setup, Weir};

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Sessions, in all.
    pub programs: u64,
    /// Concurrent sessions per thread.
    pub at_once: usize,
    /// Threads.
    pub threads: usize,
    /// Steps of a session, at most.
    pub most_steps: u64,
    /// Seed of all draws.
    pub seed: u64,
}

/// The results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Sessions that ended.
    pub programs: u64,
    /// Answers that were compared.
    pub answers: u64,
    /// Answers in which Weir says that it no longer knows what was asked about.
    pub not_known: u64,
    /// Answers about what such a refusal left behind; they are those after an error.
    pub about_that: u64,
    /// Writes in a READ ONLY transaction that a replica refused as read-only, and statements that were
    /// refused for a different one of two reasons.
    pub refused_by_replica: u64,
    /// What differed, with the seed that repeats it, and the program.
    pub different: Vec<String>,
}

/// `ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION`.
const IN_READ_ONLY_TRANSACTION: u16 = 1792;
/// `ER_TABLE_NOT_LOCKED`.
const NOT_LOCKED: u16 = 1100;
/// `ER_MALFORMED_PACKET`.
const MALFORMED_PACKET: u16 = 1835;
/// `ER_OPTION_PREVENTS_STATEMENT`.
const ON_READ_ONLY_SERVER: u16 = 1290;
/// Weir's own error for a statement that only the primary may execute while the session is kept at a replica.
const KEPT_AWAY: u16 = 1836;

/// The beginning of `ER_STMT_HAS_NO_OPEN_CURSOR`.
const NO_CURSOR: &[u8] = b"\xff\x8d\x05#HY000The statement (";

/// Number of differences after which the search stops.
const MOST_DIFFERENT: usize = 20;

impl Found {
    fn add(&mut self, other: Found) {
        self.programs += other.programs;
        self.answers += other.answers;
        self.not_known += other.not_known;
        self.about_that += other.about_that;
        self.refused_by_replica += other.refused_by_replica;
        self.different.extend(other.different);
    }
}

/// Sessions of one batch. After a batch the data are reset, and nothing of its sessions may be left.
const BATCH: u64 = 250;

/// Starts a Weir in front of a pair, for programs. Each session logs in with an empty password, which counts
/// as a full login, and all come from one address: with the default limits they would wait for each other.
pub fn weir_for_programs(behind: &Pair) -> Weir {
    Setup::of(&format!("{BEFORE_PAIR}full_logins = 100000\nfull_logins_per_client = 100000\n"))
        .with("primary", behind.primary.address)
        .with("replica", behind.replica.address)
        .start()
}

/// Runs a plan: `alone` is a single server, `through` an address of a Weir in front of `behind`. `goes_on`
/// gets the results so far after each batch, and says whether there is another one.
pub fn run_plan(
    plan: Plan,
    alone: &Mysqld,
    through: SocketAddr,
    behind: &Pair,
    mut goes_on: impl FnMut(&Found) -> bool,
) -> Found {
    let places = plan.threads * plan.at_once;
    for server in [alone, &behind.primary] {
        let mut root = server.root();
        data_of(places).iter().for_each(|sql| drop(root.does(sql)));
    }
    behind.replica.has_all_of(&behind.primary);
    let batches = plan.programs.div_ceil(BATCH * plan.threads as u64).max(1);
    let mut found = Found::default();
    for batch in 0..batches {
        let threads: Vec<Found> = std::thread::scope(|scope| {
            let one = |thread: usize| {
                let places = thread * plan.at_once..(thread + 1) * plan.at_once;
                let seed = plan.seed.wrapping_add(batch * plan.threads as u64 + thread as u64);
                let programs = BATCH.min(plan.programs);
                move || compare(alone.address, through, seed, places, programs, plan.most_steps)
            };
            let threads: Vec<_> = (0..plan.threads).map(|thread| scope.spawn(one(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        threads.into_iter().for_each(|one| found.add(one));
        if !found.different.is_empty() {
            break;
        }
        let servers = [&behind.primary, &behind.replica];
        found.different.extend(servers.into_iter().flat_map(left_on));
        for server in [alone, &behind.primary] {
            let mut root = server.root();
            (0..places).flat_map(renewal_of).for_each(|sql| drop(root.does(&sql)));
        }
        if !goes_on(&found) {
            break;
        }
    }
    found
}

/// Things that a session of `app` may have left on a server, each with a query that lists them.
const LEFT: [(&str, &str); 5] = [
    (
        "a transaction",
        "SELECT trx_mysql_thread_id, trx_state, trx_started, NOW(), PROCESSLIST_COMMAND, PROCESSLIST_TIME, \
         COALESCE(PROCESSLIST_STATE, ''), COALESCE(PROCESSLIST_INFO, '') FROM information_schema.innodb_trx \
         JOIN performance_schema.threads ON PROCESSLIST_ID = trx_mysql_thread_id WHERE PROCESSLIST_USER = 'app'",
    ),
    (
        "a lock",
        "SELECT OBJECT_TYPE, OBJECT_SCHEMA, OBJECT_NAME, LOCK_TYPE FROM performance_schema.metadata_locks AS l \
         JOIN performance_schema.threads AS t ON t.THREAD_ID = l.OWNER_THREAD_ID WHERE t.PROCESSLIST_USER = 'app'",
    ),
    ("a temporary table", "SELECT NAME FROM information_schema.innodb_temp_table_info"),
    (
        "a user variable",
        "SELECT VARIABLE_NAME, VARIABLE_VALUE FROM performance_schema.user_variables_by_thread \
         JOIN performance_schema.threads USING (THREAD_ID) \
         WHERE VARIABLE_VALUE IS NOT NULL AND PROCESSLIST_USER = 'app'",
    ),
    (
        "a setting",
        "SELECT VARIABLE_NAME, v.VARIABLE_VALUE FROM performance_schema.variables_by_thread AS v \
         JOIN performance_schema.threads USING (THREAD_ID) \
         JOIN performance_schema.global_variables AS g USING (VARIABLE_NAME) \
         WHERE v.VARIABLE_VALUE <> g.VARIABLE_VALUE AND PROCESSLIST_USER = 'app' AND VARIABLE_NAME IN \
         ('max_sort_length', 'auto_increment_increment', 'cte_max_recursion_depth', 'sql_auto_is_null')",
    ),
];

/// Waits until nothing of any session is left on a server; returns what is still there after a while.
fn left_on(server: &Mysqld) -> Vec<String> {
    let begun = Instant::now();
    let mut root = server.root();
    let mut list = |(what, sql): &(&str, &str)| loop {
        let rows = root.does(sql).rows();
        if rows.is_empty() {
            return None;
        }
        if begun.elapsed() > PATIENCE {
            return Some(format!("sessions that ended have left {what}: {rows:?}"));
        }
        // InnoDB keeps showing the same transactions if it is asked again within a tenth of a second.
        std::thread::sleep(Duration::from_millis(150));
    };
    LEFT.iter().filter_map(&mut list).collect()
}

/// A session that runs on both sides.
struct Running {
    program: Program,
    at: usize,
    alone: Side,
    through: Side,
    /// Whether the last statement was refused by Weir alone, so that a question about the statement before
    /// differs.
    is_excused: bool,
}

struct Side {
    client: Client,
    statements: [u32; 3],
}

/// Runs programs in these places, drawn from `seed`. A session that differs is abandoned.
fn compare(
    alone: SocketAddr,
    through: SocketAddr,
    seed: u64,
    places: Range<usize>,
    programs: u64,
    most_steps: u64,
) -> Found {
    let mut draws = Draws::seeded(seed);
    let mut found = Found::default();
    let mut running: Vec<Option<Running>> = places.clone().map(|_| None).collect();
    let mut places: Vec<usize> = places.collect();
    let mut begun = 0;
    while found.programs < programs && found.different.len() < MOST_DIFFERENT {
        let index = draws.below(running.len() as u64) as usize;
        let went_on = match running[index].as_mut() {
            None if begun == programs => Ok(()),
            None => {
                begun += 1;
                let program = Program::draw(&mut draws, places[index], most_steps);
                Running::begin(program, alone, through).map(|session| running[index] = Some(session))
            }
            Some(session) if session.at == session.program.steps.len() => {
                found.programs += 1;
                running[index].take().into_iter().for_each(Running::leaves);
                Ok(())
            }
            Some(session) => session.steps(&mut found),
        };
        if let Err(what) = went_on {
            found.programs += 1;
            let what = what.map(|what| format!("WEIR_SEED={seed}, session {begun} of it: {what}"));
            found.different.extend(what);
            // From here on the data of its place differ.
            running.remove(index);
            places.remove(index);
            if running.is_empty() {
                break;
            }
        }
    }
    found
}

impl Running {
    fn begin(program: Program, alone: SocketAddr, through: SocketAddr) -> Result<Running, Option<String>> {
        let log_in = |to| {
            let who = &program.who;
            let login = Login { capabilities: who.capabilities, ..Login::of("app", &who.schema) };
            let client = Client::log_in(to, &login).map_err(|why| Some(format!("login: {why:?}")))?;
            Ok::<Side, Option<String>>(Side { client, statements: [0xffff; 3] })
        };
        let (alone, through) = (log_in(alone)?, log_in(through)?);
        Ok(Running { program, at: 0, alone, through, is_excused: false })
    }

    fn leaves(self) {
        if self.program.leaving == Leaving::InOrder {
            self.alone.client.quits();
            self.through.client.quits();
        }
    }

    /// Runs the next step on both sides. `Err(None)` is a known difference.
    fn steps(&mut self, found: &mut Found) -> Result<(), Option<String>> {
        let step = self.program.steps[self.at].clone();
        let alone = self.alone.sends(&step).and_then(|()| self.alone.receives(&step));
        let through = self.through.sends(&step).and_then(|()| self.through.receives(&step));
        let (mut alone, mut through) = match (alone, through) {
            (Ok(alone), Ok(through)) => (alone, through),
            (Err(_), Err(_)) if self.has_released() => {
                self.program.steps.truncate(self.at);
                return Ok(());
            }
            // For a step without an answer, only one side may have noticed by now that the connection is
            // gone.
            (Err(_), Ok(other)) | (Ok(other), Err(_)) if self.has_released() && other.packets.is_empty() => {
                self.program.steps.truncate(self.at);
                return Ok(());
            }
            (alone, through) => {
                return Err(Some(self.story(&format!("alone {alone:?}\n    through {through:?}"))));
            }
        };
        found.answers += 1;
        if matches!(step, Step::Execute { .. }) {
            [&mut alone, &mut through].into_iter().for_each(forget_parameter_lengths);
        }
        let asks_back = step.asks_back();
        if alone != through {
            let numbers = [&alone, &through].map(|answer| answer.error().map_or(0, |(code, _)| code));
            let refusal = through.error().filter(|(code, _)| *code == 1105);
            if refusal.is_some_and(|(_, message)| message.contains("is not known any more")) {
                found.not_known += 1;
                self.is_excused = true;
                if step.writes() {
                    // What it would have written would show in later sessions.
                    return Err(None);
                }
                if step.stores() {
                    // What it would have stored would show later.
                    self.program.steps.truncate(self.at + 1);
                }
            } else if numbers == [IN_READ_ONLY_TRANSACTION, ON_READ_ONLY_SERVER] {
                // A READ ONLY transaction is on a replica, which gives another reason first.
                found.refused_by_replica += 1;
                self.is_excused = true;
            } else if [ON_READ_ONLY_SERVER, KEPT_AWAY].contains(&numbers[1]) && self.may_be_at_replica() {
                // A statement that pins a session in a READ ONLY transaction keeps it at the replica, as GET
                // DIAGNOSTICS does after a read.
                found.refused_by_replica += 1;
                return Err(None);
            } else if matches!(numbers, [MALFORMED_PACKET, IN_READ_ONLY_TRANSACTION | NOT_LOCKED]) {
                // A statement that is executed on another connection is prepared there first, which a server
                // may refuse too.
                found.refused_by_replica += 1;
                self.is_excused = true;
            } else if self.is_excused && asks_back {
                found.about_that += 1;
                if step.writes() {
                    return Err(None);
                }
                if step.stores() {
                    self.program.steps.truncate(self.at + 1);
                }
            } else {
                return Err(Some(self.story(&format!("alone {alone}\n    through {through}"))));
            }
        } else if self.is_excused && asks_back && step.stores() {
            // It may have stored what only one side knows.
            self.program.steps.truncate(self.at + 1);
        } else if !asks_back && !step.passes_over() {
            self.is_excused = false;
        }
        self.at += 1;
        Ok(())
    }

    /// Whether a step was meant to end the connection.
    fn has_released(&self) -> bool {
        let mut ran = self.program.steps.iter().take(self.at);
        let releases = |sql: &str| sql.ends_with(" RELEASE") || sql == "SET completion_type = 2";
        ran.any(|step| matches!(step, Step::Query(sql) if releases(sql)))
    }

    /// Whether the session may be kept at a replica: a transaction was READ ONLY when something pinned the
    /// session, or it was pinned by a question that only the server of the statement before can answer.
    fn may_be_at_replica(&self) -> bool {
        let says = |sql: &str| sql.contains("READ ONLY") || sql.starts_with("GET DIAGNOSTICS");
        let mut ran = self.program.steps.iter().take(self.at);
        ran.any(|step| matches!(step, Step::Query(sql) if says(sql)))
    }

    fn story(&self, what: &str) -> String {
        let mut story = format!("step {} differs\n    {what}\n  of {:?}\n", self.at, self.program.who);
        for (index, step) in self.program.steps.iter().enumerate() {
            let _ = writeln!(story, "  {} {index}: {step:?}", if index == self.at { '>' } else { ' ' });
        }
        story
    }
}

/// Removes the length from the definitions of columns that are bare parameters (`SELECT ?`). A server states
/// it by what its connection has executed before, which sessions share.
fn forget_parameter_lengths(answer: &mut Answer) {
    /// The name, the original name, and the number of bytes behind them.
    const NAMES: &[u8] = b"\x01?\x01?\x0c";
    for (_, packet) in &mut answer.packets {
        // Behind the names are the character set (2 bytes), the length (4) and 6 more bytes.
        let Some(names) = packet.len().checked_sub(NAMES.len() + 12) else { continue };
        if packet.starts_with(b"\x03def") && packet[names..].starts_with(NAMES) {
            let at = names + NAMES.len() + 2;
            packet[at..at + 4].fill(0);
        }
    }
}

impl Step {
    /// Whether it is a text that changes rows.
    fn writes(&self) -> bool {
        matches!(self, Step::Query(sql) if sql.starts_with("INSERT") || sql.starts_with("UPDATE"))
    }

    /// Whether it may leave something in a variable or a cursor.
    fn stores(&self) -> bool {
        match self {
            Step::Query(sql) => sql.contains('@'),
            Step::Execute { cursor, .. } => *cursor,
            _ => false,
        }
    }

    /// Whether it leaves the results of the statement before unchanged, wherever they are.
    fn passes_over(&self) -> bool {
        matches!(
            self,
            Step::LongData(..)
                | Step::Close(_)
                | Step::ResetStatement(_)
                | Step::Ping
                | Step::Schema(_)
                | Step::Several(_)
        )
    }

    /// Whether it asks about the statement before.
    fn asks_back(&self) -> bool {
        let (Step::Query(sql) | Step::Prepare(_, sql)) = self else {
            return matches!(self, Step::Execute { .. });
        };
        [
            "LAST_INSERT_ID",
            "ROW_COUNT",
            "FOUND_ROWS",
            "WARNINGS",
            "ERRORS",
            "_count",
            "DIAGNOSTICS",
            "identity",
        ]
        .iter()
        .any(|word| sql.contains(word))
    }

    fn asked(&self) -> Asked {
        match self {
            Step::Query(_) | Step::Execute { .. } => Asked::Results,
            Step::Prepare(..) => Asked::Statement,
            Step::Fetch(..) => Asked::Rows,
            Step::LongData(..) | Step::Close(_) => Asked::Nothing,
            Step::ResetStatement(_) | Step::Ping | Step::Schema(_) | Step::Reset | Step::Several(_) => {
                Asked::One
            }
        }
    }
}

impl Side {
    fn sends(&mut self, step: &Step) -> std::io::Result<()> {
        let id = |statement: &usize| self.statements[*statement];
        let about = |command: u8, statement: &usize| [&[command][..], &id(statement).to_le_bytes()].concat();
        let payload = match step {
            Step::Query(sql) => query(sql),
            Step::Prepare(_, sql) => [b"\x16", sql.as_bytes()].concat(),
            Step::Execute { statement, cursor, values, with_types } => {
                execution(id(statement), *cursor, values, *with_types)
            }
            Step::LongData(statement, parameter, piece) => {
                [&about(0x18, statement)[..], &parameter.to_le_bytes(), piece.as_bytes()].concat()
            }
            Step::Fetch(statement, rows) => [about(0x1c, statement), rows.to_le_bytes().into()].concat(),
            Step::ResetStatement(statement) => about(0x1a, statement),
            Step::Close(statement) => about(0x19, statement),
            Step::Ping => vec![0x0e],
            Step::Schema(name) => [b"\x02", name.as_bytes()].concat(),
            Step::Reset => vec![0x1f],
            Step::Several(are_taken) => vec![0x1b, u8::from(!are_taken), 0],
        };
        self.client.sends(&payload)
    }

    fn receives(&mut self, step: &Step) -> std::io::Result<Answer> {
        let mut answer = self.client.receives(step.asked())?;
        answer.forget_what_columns_foretell();
        let changes_schema = match step {
            Step::Schema(_) => true,
            Step::Query(sql) => sql.contains("USE "),
            _ => false,
        };
        let packets = answer.packets.iter_mut();
        packets.for_each(|(_, payload)| forget_first_changes(payload, changes_schema));
        if matches!(step, Step::Ping | Step::Schema(_) | Step::ResetStatement(_))
            && answer.is_ok()
            && let Some((_, payload)) = answer.packets.first_mut()
        {
            // These keep the warnings of the statement before, and count them.
            payload[5..7].fill(0);
            if *step == Step::Ping {
                // It changes nothing: what a server reports with it is late news, such as the schemas that
                // preparing a CALL passed through.
                payload[4] &= !0x40;
                payload.truncate(7);
            }
        }
        if let (Step::Several(_), Some((_, payload))) = (step, answer.packets.first_mut()) {
            // So does this one, whose older form counts them in another place.
            let is_old = payload.len() == 5;
            let count = if is_old { 1..3 } else { 5..7 };
            payload.get_mut(count).into_iter().for_each(|count| count.fill(0));
        }
        if let Some((_, error)) = answer.packets.last_mut()
            && let Some(at) = error.windows(NO_CURSOR.len()).position(|bytes| bytes == NO_CURSOR)
        {
            // The statement's number follows it.
            error.truncate(at + NO_CURSOR.len());
        }
        match step {
            Step::Prepare(statement, _) => {
                // Each server assigns its own numbers.
                self.statements[*statement] = answer.statement().unwrap_or(0xffff);
                if answer.is_ok()
                    && let Some((_, payload)) = answer.packets.first_mut()
                {
                    payload[1..5].fill(0);
                }
            }
            Step::Close(statement) => self.statements[*statement] = 0xffff,
            _ => {}
        }
        Ok(answer)
    }
}
