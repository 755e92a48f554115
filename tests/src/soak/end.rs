//! What is left when all clients have left.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::SoakPlan;
use super::chaos::Chaos;
use super::judge::{Excuses, judge};
use super::report::SoakReport;
use super::site::LIMIT;
use super::sql_ledger::check_sql;
use super::usage::{self, Holding};
use crate::dialogue::Sample;
use crate::storm::check_ledger;

/// Gauges that are zero where nobody asks for anything.
const RETURN_TO_ZERO: [&str; 10] = [
    "weir_memory_in_use_bytes",
    "weir_sessions",
    "weir_connections",
    "weir_backend_in_flight",
    "weir_backend_connections",
    "weir_queue_depth",
    "weir_buffer_files",
    "weir_buffer_file_bytes",
    "weir_cache_lingering_bytes",
    "weir_cache_background_fetches",
];
/// Longest time until they are: longer than every timer of the config.
const SETTLED_AFTER: Duration = Duration::from_secs(45);
/// How long a process may take to give its threads and probes' sockets back.
const CALM_AFTER: Duration = Duration::from_secs(40);
/// Words of the program's log that tell of a mistake of Weir's own.
const OWN_MISTAKES: [&str; 4] = ["panicked", "panic", " bug", "assertion"];

/// Looks at what is left, ends Weir, and judges.
pub(super) fn concludes(mut chaos: Chaos, plan: &SoakPlan, first: &Holding, is_whole: bool) -> SoakReport {
    let elapsed = chaos.begun.elapsed();
    if !is_whole {
        chaos.failures.add("the thread of the clients panicked".to_owned());
    }
    counts_return_to_zero(&mut chaos);
    let survivor = chaos.pid();
    let page = chaos.site.weir.admin().metrics();
    let config = chaos.variant.config();
    let foreign = usage::foreign_series(&page, &config, &chaos.site.backend_names());
    if let Some(first) = foreign.first() {
        chaos.failures.add(format!("{} series of what is no longer there, such as {first}", foreign.len()));
    }
    for name in ["weir_panics_total", "weir_cache_background_refused_total"] {
        let count: f64 = page.iter().filter(|it| it.name == name).map(|it| it.value).sum();
        if count > 0.0 {
            chaos.failures.add(format!("{name} is {count}"));
        }
    }
    let trend = usage::trend(&chaos.holdings, survivor);
    if let Some((first, last)) = trend.filter(|trend| usage::has_grown(*trend)) {
        chaos.failures.add(format!("resident memory grew from {first} to {last} bytes under the same load"));
    }
    let sql = {
        let ledger = chaos.shared.sql_ledger.lock().unwrap_or_else(PoisonError::into_inner);
        check_sql(&chaos.site.sql, &ledger)
    };
    let [left, fresh] = compares_with_a_fresh_one(&mut chaos, first);
    ends(&mut chaos);
    let log = chaos.site.weir.stderr();
    for line in log.lines().filter(|line| OWN_MISTAKES.iter().any(|word| line.contains(word))) {
        chaos.failures.add(format!("log: {line}"));
    }
    let (failures, wrong) = chaos.shared.take_failures();
    let log = chaos.site.weir.dir().join("judge.log");
    let stalls = chaos.shared.stalls();
    let excuses =
        Excuses { disturbed: &chaos.disturbances, sql_changes: &chaos.sql_changes, stalls: &stalls };
    let judged = judge(&log, &failures, excuses, chaos.begun);
    for what in judged.unexplained.iter().chain(&wrong) {
        chaos.failures.add(what.clone());
    }
    let answered = std::mem::take(&mut *chaos.shared.answered.lock().unwrap_or_else(PoisonError::into_inner));
    chaos.failures.merge(check_ledger(&chaos.site.ledger, &answered));
    chaos.failures.merge(sql);
    checks_limit(&mut chaos, elapsed);
    let report = SoakReport::new(&mut chaos, plan, &judged, trend, [left, fresh]);
    if let Some(keep) = plan.keep.as_ref().filter(|_| plan.keep_always || report.failed() > 0) {
        let all: Vec<String> = judged.unexplained.iter().chain(&wrong).cloned().collect();
        let (all, explained) = (all.join("\n"), judged.explained.join("\n"));
        keeps(&chaos, keep, &format!("{}\n{all}\n\nexplained:\n{explained}\n", report.text()));
    }
    report
}

fn counts_return_to_zero(chaos: &mut Chaos) {
    let begun = Instant::now();
    loop {
        let page = chaos.site.weir.admin().metrics();
        let is_left = |it: &&Sample| RETURN_TO_ZERO.contains(&it.name.as_str()) && it.value != 0.0;
        let left: Vec<&Sample> = page.iter().filter(is_left).collect();
        if left.is_empty() {
            return;
        }
        if begun.elapsed() > SETTLED_AFTER {
            for Sample { name, labels, value } in left {
                let when = format!("{SETTLED_AFTER:?} after all clients have left");
                chaos.failures.add(format!("{name}{labels:?} is {value} {when}"));
            }
            return;
        }
        chaos.tends();
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// What the process that has served holds, and what a fresh one does, which may have no more than the first.
fn compares_with_a_fresh_one(chaos: &mut Chaos, first: &Holding) -> [Holding; 2] {
    let (old, since) = (chaos.pid(), Instant::now());
    while !chaos.has_nobody_leaving() {
        chaos.tends();
        std::thread::sleep(Duration::from_millis(50));
    }
    let mut history = vec![look(chaos, old)];
    // Threads for what may block end some seconds behind the last of it.
    while since.elapsed() < Duration::from_secs(12) {
        std::thread::sleep(Duration::from_millis(500));
        history.push(look(chaos, old));
    }
    chaos.upgrade();
    while !chaos.has_nobody_leaving() {
        chaos.watches_leaving();
        std::thread::sleep(Duration::from_millis(50));
    }
    let new = chaos.pid();
    // What it took over is in use, or closed, by then.
    std::thread::sleep(Duration::from_secs(3));
    let begun = Instant::now();
    loop {
        // Sockets of probes come and go, so the least of what was seen counts.
        let fresh = look(chaos, new);
        let least = history.iter().min_by_key(|it| (it.usage.descriptors, it.usage.threads));
        let least = least.cloned().unwrap_or_default();
        let left = [usage::left_over(&least, &fresh), usage::left_over(&fresh, first)].concat();
        if left.is_empty() || begun.elapsed() > CALM_AFTER {
            for what in left {
                chaos.failures.add(what);
            }
            return [least, fresh];
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn look(chaos: &Chaos, pid: u32) -> Holding {
    Holding::of(pid, chaos.begun.elapsed()).unwrap_or_default()
}

fn ends(chaos: &mut Chaos) {
    chaos.ends();
    while !chaos.has_nobody_leaving() {
        chaos.watches_leaving();
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = chaos.site.weir.pids();
    if !left.is_empty() {
        chaos.failures.add(format!("processes {left:?} are left behind TERM"));
    }
}

/// No more passed than the limit allows, whose count begins anew with each process.
fn checks_limit(chaos: &mut Chaos, elapsed: Duration) {
    let passed = chaos.shared.passed.load(std::sync::atomic::Ordering::Relaxed);
    let processes = 1 + chaos.counts.get("upgrade").copied().unwrap_or(0);
    let most = LIMIT.0 * (elapsed.as_secs() + 2) + LIMIT.1 * processes;
    if passed > most {
        chaos.failures.add(format!("{passed} requests passed a rate limit of {most} in that time"));
    }
}

/// Copies what explains a failed run.
fn keeps(chaos: &Chaos, keep: &std::path::Path, text: &str) {
    let weir = &chaos.site.weir;
    let _ = std::fs::create_dir_all(keep);
    let _ = std::fs::write(keep.join("report.txt"), text);
    let _ = std::fs::write(keep.join("weir.log"), weir.stderr());
    for file in ["judge.log", "weir.toml"] {
        let _ = std::fs::copy(weir.dir().join(file), keep.join(file));
    }
    let lines = chaos.holdings.iter().map(|it| {
        format!("{:.0} s, process {}: {} clients, {}\n", it.at.as_secs_f64(), it.pid, it.clients, it.text())
    });
    let _ = std::fs::write(keep.join("holdings.txt"), lines.collect::<String>());
}
