//! sysbench: its command lines, and what it prints.

use std::io;

use serde::{Deserialize, Serialize};

/// What a sysbench run reports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SysbenchResult {
    /// Transactions done.
    pub transactions: u64,
    /// Queries done.
    pub queries: u64,
    /// Errors it went on after, and reconnects.
    pub errors: u64,
    /// How long it ran (seconds).
    pub seconds: f64,
    /// Mean time of a transaction (milliseconds).
    pub mean_ms: f64,
    /// 95th percentile of the same, in sysbench's own buckets.
    pub p95_ms: f64,
    /// The longest.
    pub max_ms: f64,
    /// Median, from the histogram; `None` where that was not asked for.
    pub p50_ms: Option<f64>,
    /// 99th percentile, from the histogram.
    pub p99_ms: Option<f64>,
}

impl SysbenchResult {
    /// Transactions per second.
    pub fn transactions_per_second(&self) -> f64 {
        self.transactions as f64 / self.seconds
    }
}

/// Where sysbench's rows are and who reads them.
const ACCESS: [&str; 3] = ["--db-driver=mysql", "--mysql-host=127.0.0.1", "--tables=1"];
/// Rows of its table.
const ROWS: u32 = 10_000;

fn access(peers: &str, port: u16, workload: &str) -> Vec<String> {
    let mut command: Vec<String> =
        [peers, "run", "sysbench", "--", workload].iter().chain(&ACCESS).map(|word| (*word).to_owned()).collect();
    command.extend([
        format!("--mysql-port={port}"),
        format!("--mysql-user={}", super::ACCOUNT),
        format!("--mysql-password={}", super::PASSWORD),
        format!("--mysql-db={}", super::DATABASE),
        format!("--table-size={ROWS}"),
    ]);
    command
}

/// The command that fills the table, once, over `port`.
pub fn prepare_command(peers: &str, port: u16) -> Vec<String> {
    let mut command = access(peers, port, "oltp_common");
    command.push("prepare".to_owned());
    command
}

/// The command that runs `workload` (one of sysbench's own, such as `oltp_point_select`) over `port`.
pub fn run_command(peers: &str, port: u16, workload: &str, threads: u32, seconds: u32) -> Vec<String> {
    let mut command = access(peers, port, workload);
    command.extend([
        format!("--threads={threads}"),
        format!("--time={seconds}"),
        "--events=0".to_owned(),
        "--histogram=on".to_owned(),
        "run".to_owned(),
    ]);
    command
}

/// Understands what a run printed. Err quotes it when a figure is missing.
pub fn parse(printed: &str) -> io::Result<SysbenchResult> {
    parse_figures(printed)
        .ok_or_else(|| io::Error::other(format!("sysbench printed no result where one was expected:\n{printed}")))
}

fn parse_figures(printed: &str) -> Option<SysbenchResult> {
    let transactions = whole(printed, "transactions:")?;
    // The heading line `Latency (ms):` keeps the names of its figures apart from those of the other sections.
    let latency = &printed[printed.find("Latency (ms):")?..];
    let buckets = histogram(printed);
    Some(SysbenchResult {
        transactions,
        queries: whole(printed, "queries:")?,
        errors: whole(printed, "ignored errors:")? + whole(printed, "reconnects:")?,
        seconds: number(printed, "total time:")?,
        mean_ms: number(latency, "avg:")?,
        p95_ms: number(latency, "95th percentile:")?,
        max_ms: number(latency, "max:")?,
        p50_ms: percentile(&buckets, 0.50),
        p99_ms: percentile(&buckets, 0.99),
    })
}

/// The text after `name` on the first line that begins with it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
    rest.split_ascii_whitespace().next()
}

fn whole(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.parse().ok()
}

fn number(text: &str, name: &str) -> Option<f64> {
    field(text, name)?.trim_end_matches('s').parse().ok()
}

/// The buckets of `--histogram`: latency (milliseconds) and count, in the order of latencies.
fn histogram(printed: &str) -> Vec<(f64, u64)> {
    let bucket = |line: &str| -> Option<(f64, u64)> {
        let (value, rest) = line.split_once('|')?;
        let count = rest.split_ascii_whitespace().next_back()?;
        Some((value.trim().parse().ok()?, count.parse().ok()?))
    };
    printed.lines().filter_map(bucket).collect()
}

/// The bucket in which the nearest rank of `fraction` lies.
fn percentile(buckets: &[(f64, u64)], fraction: f64) -> Option<f64> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let rank = ((all as f64 * fraction).ceil() as u64).max(1);
    let mut below = 0;
    buckets.iter().find_map(|(value, count)| {
        below += count;
        (below >= rank).then_some(*value)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figure 8 of seed 002 (MySQL Router, 10 threads, 60 s), with a histogram as sysbench 1.0.20 prints it before.
    const FIGURE_8: &str = "\
Latency histogram (values are in milliseconds)
       value  ------------- distribution ------------- count
       0.640 |****                                     10
      16.120 |**************************************** 80
      42.610 |**                                       5
      99.330 |**                                       5

SQL statistics:
    queries performed:
        read:                            35720
        write:                           0
        other:                           0
        total:                           35720
    transactions:                        35720  (594.71 per sec.)
    queries:                             35720  (594.71 per sec.)
    ignored errors:                      0      (0.00 per sec.)
    reconnects:                          2      (0.00 per sec.)

General statistics:
    total time:                          60.0611s
    total number of events:              35720

Latency (ms):
         min:                                    0.64
         avg:                                   16.80
         max:                                 2982.61
         95th percentile:                       42.61
         sum:                               600100.34

Threads fairness:
    events (avg/stddev):           3572.0000/39.85
    execution time (avg/stddev):   60.0100/0.01
";

    #[test]
    fn the_papers_own_figure_is_understood() {
        let found = parse(FIGURE_8).unwrap();
        let expected = SysbenchResult {
            transactions: 35_720,
            queries: 35_720,
            errors: 2,
            seconds: 60.0611,
            mean_ms: 16.80,
            p95_ms: 42.61,
            max_ms: 2982.61,
            p50_ms: Some(16.120),
            p99_ms: Some(99.330),
        };
        assert_eq!(found, expected);
        assert!((found.transactions_per_second() - 594.73).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn a_percentile_is_the_bucket_of_its_nearest_rank() {
        let buckets = [(1.0, 50), (2.0, 49), (3.0, 1)];
        assert_eq!(percentile(&buckets, 0.50), Some(1.0));
        assert_eq!(percentile(&buckets, 0.51), Some(2.0));
        assert_eq!(percentile(&buckets, 0.99), Some(2.0));
        assert_eq!(percentile(&buckets, 1.0), Some(3.0));
        assert_eq!(percentile(&[], 0.5), None);
    }

    #[test]
    fn what_is_not_a_result_is_quoted() {
        let printed = "FATAL: unable to connect to MySQL server on host '127.0.0.1', port 1, aborting...";
        let error = parse(printed).unwrap_err().to_string();
        assert!(error.ends_with(printed), "{error}");
    }

    #[test]
    fn the_command_holds_the_papers_arguments() {
        let command = run_command("peers", 6446, "oltp_point_select", 10, 60).join(" ");
        for word in ["run sysbench -- oltp_point_select", "--threads=10 --time=60 --events=0", "--mysql-port=6446"] {
            assert!(command.contains(word), "{command}");
        }
    }
}
