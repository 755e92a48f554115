//! Checks that the lab's own virtual users and k6 agree: both simulate the same users against the same
//! servers, in turn.
//!
//! There are two servers. One answers at once: there the latencies of k6 and the lab's generator differ by
//! what each adds itself, and the server's counters say how many requests were really made. The other takes a
//! known time, far above what either adds: there both must report that time.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crate::backend::{BackendKind, counters, slow};
use crate::contender::Tools;
use crate::load::{Load, LoadResult, UserTool, plan_of};
use crate::measure;
use crate::metric::Metric;
use crate::process::{Output, Placement, Running};
use crate::statistics::median;

/// Pause of each user, as published (milliseconds).
const PAUSE_MS: u32 = 1000;
/// Totals of requests may differ by this share.
const REQUESTS_DIFFER: f64 = 0.005;
/// Medians may differ by this share if the server's time is what is measured.
const LATENCY_DIFFERS: f64 = 0.05;

/// What is compared.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Numbers of users.
    pub users: Vec<u32>,
    /// Rounds; k6 and the lab's own take turns in each.
    pub rounds: u32,
    /// Length of each turn (seconds).
    pub seconds: u32,
    /// Where the servers run.
    pub server: Placement,
    /// Where the users run.
    pub load: Placement,
}

/// The result of one tool's turn.
struct Turn {
    tool: UserTool,
    kind: BackendKind,
    users: u32,
    result: LoadResult,
    /// Requests that the server answered, if it counts them.
    served: Option<u64>,
    cpu: Duration,
    /// Greatest memory of the tool's processes seen (bytes).
    memory_bytes: u64,
}

/// Runs `plan` in `directory`; reports progress on standard error. Returns the table, and whether both agree.
pub fn run(plan: &Plan, tools: &Tools, directory: &Path) -> io::Result<(String, bool)> {
    let mut turns = Vec::new();
    for round in 1..=plan.rounds {
        for users in &plan.users {
            for kind in [BackendKind::Http, BackendKind::Slow] {
                for tool in [UserTool::K6, UserTool::Own] {
                    eprintln!(
                        "round {round}/{}: {users} users by {}, {} server",
                        plan.rounds,
                        name(tool),
                        told(kind)
                    );
                    turns.push(turn(plan, tools, directory, tool, kind, *users)?);
                }
            }
        }
    }
    Ok(table(plan, &turns))
}

fn name(tool: UserTool) -> &'static str {
    if tool == UserTool::K6 { "k6" } else { "own" }
}

fn told(kind: BackendKind) -> String {
    if kind == BackendKind::Slow { format!("{} ms", slow::DELAY.as_millis()) } else { "instant".to_owned() }
}

fn turn(
    plan: &Plan,
    tools: &Tools,
    directory: &Path,
    tool: UserTool,
    kind: BackendKind,
    users: u32,
) -> io::Result<Turn> {
    let command = [tools.lab.as_str(), "backend", "--kind", kind.name()].map(str::to_owned);
    let mut server =
        Running::start("server", plan.server, &command, &directory.join("server.log"), Output::Piped)?;
    let mut line = String::new();
    if let Some(output) = server.take_output() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let address: SocketAddr =
        line.trim().rsplit(' ').next().and_then(|address| address.parse().ok()).ok_or_else(|| {
            io::Error::other(format!("the server said `{line}` where its address was expected"))
        })?;
    let load = Load::Users { users, pause_ms: PAUSE_MS, tool };
    let command = load.command(tools, address, plan.seconds);
    let ended_before = measure::ended_children_time()?;
    let running =
        Running::start(name(tool), plan.load, &command, &directory.join("load.log"), Output::Piped)?;
    let (printed, memory_bytes) = finish_watched(running, load.patience(plan.seconds))?;
    let cpu = measure::ended_children_time()?.saturating_sub(ended_before);
    let served = if kind == BackendKind::Http { Some(counters(address)?.requests) } else { None };
    Ok(Turn { tool, kind, users, result: load.result(&printed)?, served, cpu, memory_bytes })
}

/// Waits for `running` to end. Returns its output and its greatest memory use.
fn finish_watched(running: Running, patience: Duration) -> io::Result<(String, u64)> {
    let (process, over, most) = (running.id(), AtomicBool::new(false), AtomicU64::new(0));
    let printed = thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let processes = measure::process_tree(process).unwrap_or_default();
                most.fetch_max(measure::resident_bytes(&processes), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(200));
            }
        });
        let printed = running.finish(patience);
        over.store(true, Ordering::Relaxed);
        printed
    })?;
    Ok((printed, most.load(Ordering::Relaxed)))
}

/// The medians of one tool's turns at one server with one number of users.
struct Row {
    requests: f64,
    served: Option<f64>,
    mean_us: f64,
    p50_us: f64,
    p95_us: f64,
    cpu_us: f64,
    memory_bytes: f64,
    errors: u64,
}

fn row(turns: &[Turn], tool: UserTool, kind: BackendKind, users: u32) -> Option<Row> {
    let mine = || turns.iter().filter(|turn| (turn.tool, turn.kind, turn.users) == (tool, kind, users));
    let middle = |of: &dyn Fn(&Turn) -> Option<f64>| median(&mine().filter_map(of).collect::<Vec<f64>>());
    let figure = |metric| middle(&|turn: &Turn| turn.result.figures.get(&metric).copied());
    Some(Row {
        requests: middle(&|turn| Some(turn.result.requests as f64))?,
        served: middle(&|turn| turn.served.map(|served| served as f64)),
        mean_us: figure(Metric::LATENCY_MEAN)?,
        p50_us: figure(Metric::LATENCY_P50)?,
        p95_us: figure(Metric::LATENCY_P95)?,
        cpu_us: middle(&|turn| Some(turn.cpu.as_secs_f64() * 1e6 / turn.result.requests as f64))?,
        memory_bytes: middle(&|turn| Some(turn.memory_bytes as f64))?,
        errors: mine().map(|turn| turn.result.error_count()).sum(),
    })
}

fn table(plan: &Plan, turns: &[Turn]) -> (String, bool) {
    let mut text = format!(
        "Medians of {} round(s) of {} s. Latency is from the first byte sent to the last one received.\n\n\
         | users | server | by | requests | counted by the server | expected by the model | mean µs | p50 µs | p95 µs | CPU µs/request | \
         MiB | errors |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        plan.rounds, plan.seconds
    );
    let mut findings = String::new();
    let mut agree = true;
    for users in &plan.users {
        for kind in [BackendKind::Http, BackendKind::Slow] {
            let rows = [UserTool::K6, UserTool::Own].map(|tool| (tool, row(turns, tool, kind, *users)));
            for (tool, row) in &rows {
                let Some(row) = row else { continue };
                let served = row.served.map_or_else(|| "-".to_owned(), |served| format!("{served:.0}"));
                let answer_time = Duration::from_secs_f64(row.mean_us / 1e6);
                let expected = plan_of(*users, PAUSE_MS, plan.seconds).requests(answer_time);
                let _ = writeln!(
                    text,
                    "| {users} | {} | {} | {:.0} | {served} | {expected} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {} |",
                    told(kind),
                    name(*tool),
                    row.requests,
                    row.mean_us,
                    row.p50_us,
                    row.p95_us,
                    row.cpu_us,
                    row.memory_bytes / 1_048_576.0,
                    row.errors
                );
            }
            if let [(_, Some(k6)), (_, Some(own))] = &rows {
                let (finding, fine) = compare(kind, k6, own);
                agree &= fine;
                let _ = writeln!(findings, "- {users} users, {} server: {finding}", told(kind));
            }
        }
    }
    (format!("{text}\n{findings}"), agree)
}

/// How the two rows compare, in words, and whether they agree.
fn compare(kind: BackendKind, k6: &Row, own: &Row) -> (String, bool) {
    let requests = own.requests / k6.requests - 1.0;
    let latency = own.p50_us / k6.p50_us - 1.0;
    let mut fine = requests.abs() <= REQUESTS_DIFFER && k6.errors + own.errors == 0;
    let mut finding = format!("own made {:+.2} % requests", requests * 100.0);
    if kind == BackendKind::Slow {
        fine &= latency.abs() <= LATENCY_DIFFERS;
        let _ = write!(finding, ", its median is {:+.2} % from k6's", latency * 100.0);
    } else {
        fine &= own.served == Some(own.requests) && k6.served == Some(k6.requests);
        let _ = write!(finding, ", k6 itself adds {:.0} µs more to the median", k6.p50_us - own.p50_us);
    }
    let _ = write!(finding, ": {}", if fine { "agree" } else { "DISAGREE" });
    (finding, fine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(tool: UserTool, kind: BackendKind, requests: u64, p50_us: f64) -> Turn {
        let mut result = LoadResult { requests, ..LoadResult::default() };
        for metric in [Metric::LATENCY_MEAN, Metric::LATENCY_P50, Metric::LATENCY_P95] {
            result.figures.insert(metric, p50_us);
        }
        let served = (kind == BackendKind::Http).then_some(requests);
        let cpu = Duration::from_micros(requests * 200);
        Turn { tool, kind, users: 100, result, served, cpu, memory_bytes: 2 << 20 }
    }

    fn plan() -> Plan {
        let anywhere = Placement { core: None, nice: 0, realtime: false };
        Plan { users: vec![100], rounds: 1, seconds: 35, server: anywhere, load: anywhere }
    }

    fn turns() -> Vec<Turn> {
        vec![
            turn(UserTool::K6, BackendKind::Http, 3297, 210.0),
            turn(UserTool::Own, BackendKind::Http, 3299, 80.0),
            turn(UserTool::K6, BackendKind::Slow, 3240, 20_300.0),
            turn(UserTool::Own, BackendKind::Slow, 3241, 20_100.0),
        ]
    }

    #[test]
    fn generators_that_report_the_same_agree_whatever_each_adds_itself() {
        let (text, agree) = table(&plan(), &turns());
        assert!(agree, "{text}");
        assert!(
            text.contains("| 100 | instant | own | 3299 | 3299 | 3299 | 80 | 80 | 80 | 200 | 2 | 0 |"),
            "{text}"
        );
        assert!(
            text.contains("own made +0.06 % requests, k6 itself adds 130 µs more to the median: agree"),
            "{text}"
        );
        assert!(
            text.contains("100 users, 20 ms server: own made +0.03 % requests, its median is -0.99 % from"),
            "{text}"
        );
    }

    #[test]
    fn other_totals_other_latencies_errors_and_what_the_server_did_not_see_are_disagreement() {
        let disagree = |change: &dyn Fn(&mut Vec<Turn>)| {
            let mut turns = turns();
            change(&mut turns);
            let (text, agree) = table(&plan(), &turns);
            assert!(!agree && text.contains("DISAGREE"), "{text}");
        };
        disagree(&|turns| turns[2].result.requests = 3200);
        disagree(&|turns| *turns[3].result.figures.get_mut(&Metric::LATENCY_P50).unwrap() = 18_000.0);
        disagree(&|turns| turns[1].result.fail("reset", 1));
        disagree(&|turns| turns[1].served = Some(3298));
    }
}
