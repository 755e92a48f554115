//! sysbench: its command lines, and what it prints.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::LoadResult;
use crate::cluster::{ACCOUNT, DATABASE, PASSWORD};
use crate::contender::Tools;
use crate::metric::Metric;

/// Rows of its table.
const ROWS: u32 = 10_000;

/// A workload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// One of its own scripts.
    #[serde(default = "point_select")]
    pub workload: String,
    /// Connections, each with one query in flight.
    pub threads: u32,
    /// Over TLS.
    #[serde(default)]
    pub tls: bool,
    /// Further options, as its command line has them.
    #[serde(default)]
    pub options: Vec<String>,
}

fn point_select() -> String {
    "oltp_point_select".to_owned()
}

/// The files that sysbench reads from its working directory for TLS, and their names at a member. It requires
/// a client certificate, although no server asks for one.
pub const TLS_FILES: [(&str, &str); 3] =
    [("cacert.pem", "ca.pem"), ("client-cert.pem", "client-cert.pem"), ("client-key.pem", "client-key.pem")];

fn access(tools: &Tools, target: SocketAddr, workload: &str) -> Vec<String> {
    let mut command = [tools.peers.as_str(), "run", "sysbench", "--", workload].map(str::to_owned).to_vec();
    command.extend([
        "--db-driver=mysql".to_owned(),
        format!("--mysql-host={}", target.ip()),
        format!("--mysql-port={}", target.port()),
        format!("--mysql-user={ACCOUNT}"),
        format!("--mysql-password={PASSWORD}"),
        format!("--mysql-db={DATABASE}"),
        "--tables=1".to_owned(),
        format!("--table-size={ROWS}"),
    ]);
    command
}

/// The command that makes and fills the table, once, over `target`.
pub fn prepare_command(tools: &Tools, target: SocketAddr) -> Vec<String> {
    let mut command = access(tools, target, "oltp_common");
    command.push("prepare".to_owned());
    command
}

/// The command that does `work` over `target`. Over TLS it must run where [`TLS_FILES`] are.
pub fn command(tools: &Tools, target: SocketAddr, seconds: u32, work: &Work) -> Vec<String> {
    let mut command = access(tools, target, &work.workload);
    command.extend([
        format!("--threads={}", work.threads),
        format!("--time={seconds}"),
        "--events=0".to_owned(),
        "--histogram=on".to_owned(),
    ]);
    command.extend(work.tls.then(|| "--mysql-ssl=on".to_owned()));
    command.extend(work.options.iter().cloned());
    command.push("run".to_owned());
    command
}

/// Parses the output of a run. Err quotes it if a figure is missing.
///
/// Requests are queries. The 95th percentile is sysbench's own, accurate to a bucket of its histogram; the
/// median and 99th percentile are read from the same histogram.
pub fn parse(printed: &str) -> io::Result<LoadResult> {
    parse_figures(printed).ok_or_else(|| {
        io::Error::other(format!("sysbench printed no result where one was expected:\n{printed}"))
    })
}

fn parse_figures(printed: &str) -> Option<LoadResult> {
    let seconds = number(printed, "total time:")?;
    let transactions: u64 = field(printed, "transactions:")?.parse().ok()?;
    let mut result =
        LoadResult { requests: field(printed, "queries:")?.parse().ok()?, seconds, ..LoadResult::default() };
    result.figures.insert(Metric::TRANSACTION_RATE, transactions as f64 / seconds);
    result.figures.insert(Metric::QUERY_RATE, result.requests as f64 / seconds);
    // The heading keeps the names of these figures apart from those of the other sections.
    let latency = &printed[printed.find("Latency (ms):")?..];
    let named = [
        (Metric::LATENCY_MIN, "min:"),
        (Metric::LATENCY_MEAN, "avg:"),
        (Metric::LATENCY_P95, "95th percentile:"),
        (Metric::LATENCY_MAX, "max:"),
    ];
    for (metric, name) in named {
        result.figures.insert(metric, number(latency, name)? * 1000.0);
    }
    let buckets = histogram(printed);
    for (metric, fraction) in [(Metric::LATENCY_P50, 0.50), (Metric::LATENCY_P99, 0.99)] {
        result.figures.extend(percentile(&buckets, fraction).map(|found| (metric, found * 1000.0)));
    }
    for (kind, name) in [("query", "ignored errors:"), ("reconnect", "reconnects:")] {
        result.fail(kind, field(printed, name)?.parse().ok()?);
    }
    Some(result)
}

/// The text after `name` on the first line that begins with it.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let rest = text.lines().find_map(|line| line.trim_start().strip_prefix(name))?;
    rest.split_ascii_whitespace().next()
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
    use std::collections::BTreeMap;

    /// Figure 8 of seed 002 (MySQL Router, 10 threads, 60 s), with a histogram as sysbench 1.0.20 prints it
    /// before.
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
        assert_eq!((found.requests, found.seconds), (35_720, 60.0611));
        assert_eq!(found.errors, BTreeMap::from([("reconnect".to_owned(), 2)]));
        let expected = [
            (Metric::TRANSACTION_RATE, 594.727),
            (Metric::QUERY_RATE, 594.727),
            (Metric::LATENCY_MIN, 640.0),
            (Metric::LATENCY_MEAN, 16_800.0),
            (Metric::LATENCY_P50, 16_120.0),
            (Metric::LATENCY_P95, 42_610.0),
            (Metric::LATENCY_P99, 99_330.0),
            (Metric::LATENCY_MAX, 2_982_610.0),
        ];
        for (metric, value) in expected {
            assert!((found.figures[&metric] - value).abs() < 0.01, "{metric:?}: {found:?}");
        }
        assert_eq!(found.figures.len(), expected.len());
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
        let tools = Tools {
            lab: String::new(),
            peers: "peers".to_owned(),
            peers_root: String::new(),
            weir: String::new(),
        };
        let target = SocketAddr::from(([127, 0, 0, 1], 6446));
        let work: Work = toml::from_str("threads = 10").unwrap();
        let plain = command(&tools, target, 60, &work).join(" ");
        for words in
            ["run sysbench -- oltp_point_select", "--threads=10 --time=60 --events=0", "--mysql-port=6446"]
        {
            assert!(plain.contains(words), "{plain}");
        }
        let work: Work = toml::from_str("threads = 10\ntls = true\noptions = ['--skip-trx=on']").unwrap();
        let encrypted = command(&tools, target, 60, &work).join(" ");
        assert!(encrypted.ends_with(" --mysql-ssl=on --skip-trx=on run"), "{encrypted}");
    }
}
