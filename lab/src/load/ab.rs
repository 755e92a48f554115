//! ab (ApacheBench): its command line and what it prints.

use std::io;
use std::net::SocketAddr;

use super::LoadResult;
use crate::contender::Tools;
use crate::metric::Metric;

/// The curve of the response time (ms) by share of requests (percent).
pub const RESPONSE_TIME: &str = "response time (ms) by share of requests (%)";

pub fn command(
    tools: &Tools,
    target: SocketAddr,
    requests: u32,
    concurrency: u32,
    keep_alive: bool,
    path: &str,
) -> Vec<String> {
    // Without `-l`, ab counts an answer as failed if its length differs from that of the first, which is what
    // we want here.
    let mut command: Vec<String> =
        [tools.peers.as_str(), "run", "ab", "--", "-q"].map(str::to_owned).to_vec();
    if keep_alive {
        command.push("-k".to_owned());
    }
    command.extend([format!("-n{requests}"), format!("-c{concurrency}")]);
    // The table of percentiles, to the microsecond; what ab prints otherwise is in whole milliseconds.
    command.extend(["-e".to_owned(), "/dev/stdout".to_owned()]);
    command.push(format!("http://{target}{path}"));
    command
}

/// Reads ab's report with the table that `-e` adds.
pub fn parse(printed: &str) -> io::Result<LoadResult> {
    let problem = || io::Error::other(format!("ab printed something else than its report:\n{printed}"));
    let mut result = LoadResult::default();
    let mut problems = Vec::new();
    let mut curve = Vec::new();
    let (mut whole, mut told) = (false, false);
    for line in printed.lines().map(str::trim) {
        if let Some((share, time)) = line.split_once(',')
            && let (Ok(share), Ok(time)) = (share.parse::<f64>(), time.parse::<f64>())
        {
            curve.push((share, time));
            continue;
        }
        let Some((name, value)) = line.split_once(':') else { continue };
        let number = || value.split_ascii_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        match name {
            "Complete requests" => (result.requests, whole) = (number().ok_or_else(problem)? as u64, true),
            "Time taken for tests" => result.seconds = number().ok_or_else(problem)?,
            "Total transferred" => result.bytes = number().ok_or_else(problem)? as u64,
            "Time per request" if !told => {
                told = true;
                result.figures.insert(Metric::LATENCY_MEAN, number().ok_or_else(problem)? * 1e3);
            }
            "Non-2xx responses" => {
                result.fail("status", number().ok_or_else(problem)? as u64);
                problems.push(line.to_owned());
            }
            // `(Connect: 0, Receive: 0, Length: 3, Exceptions: 0)`
            "(Connect" => {
                for pair in line.trim_matches(['(', ')']).split(", ") {
                    let (kind, count) = pair.split_once(": ").ok_or_else(problem)?;
                    result.fail(&kind.to_lowercase(), count.parse().map_err(|_| problem())?);
                }
                problems.push(line.to_owned());
            }
            _ => {}
        }
    }
    let at = |share: f64| curve.iter().find(|(found, _)| *found == share).map(|(_, time)| time * 1e3);
    let percentiles = [
        (Metric::LATENCY_MIN, 0.0),
        (Metric::LATENCY_P50, 50.0),
        (Metric::LATENCY_P90, 90.0),
        (Metric::LATENCY_P95, 95.0),
        (Metric::LATENCY_P99, 99.0),
        (Metric::LATENCY_MAX, 100.0),
    ];
    result.figures.extend(percentiles.iter().filter_map(|(metric, share)| Some((*metric, at(*share)?))));
    result.curves.insert(RESPONSE_TIME.to_owned(), curve);
    // ab counts failed requests among the complete ones.
    result.requests = result.requests.saturating_sub(result.error_count());
    result.problem = (!problems.is_empty()).then(|| problems.join("; "));
    if whole { Ok(result) } else { Err(problem()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Benchmarking 127.0.0.1 (be patient)...Percentage served,Time in ms
0,0.323
50,0.672
99,0.957
100,4.556
..done

Server Port:            18999

Concurrency Level:      10
Time taken for tests:   0.211 seconds
Complete requests:      3000
Failed requests:        0
Total transferred:      450000 bytes
HTML transferred:       87000 bytes
Requests per second:    14224.14 [#/sec] (mean)
Time per request:       0.703 [ms] (mean)
Time per request:       0.070 [ms] (mean, across all concurrent requests)

Percentage of the requests served within a certain time (ms)
  50%      1
";

    #[test]
    fn a_report_gives_counts_times_and_the_curve() {
        let result = parse(REPORT).unwrap();
        assert_eq!((result.requests, result.bytes, result.error_count()), (3000, 450_000, 0));
        assert_eq!(result.seconds, 0.211);
        assert_eq!(result.figures[&Metric::LATENCY_MEAN], 703.0);
        assert_eq!(result.figures[&Metric::LATENCY_P50], 672.0);
        assert_eq!(result.figures[&Metric::LATENCY_P99], 957.0);
        assert_eq!(
            result.curves[RESPONSE_TIME],
            [(0.0, 0.323), (50.0, 0.672), (99.0, 0.957), (100.0, 4.556)]
        );
    }

    #[test]
    fn failed_requests_count_by_kind_and_not_as_answered() {
        let failed = "Failed requests:        7\n   (Connect: 0, Receive: 3, Length: 4, Exceptions: 0)\n\
                      Non-2xx responses:      2\n";
        let result = parse(&REPORT.replace("Failed requests:        0\n", failed)).unwrap();
        assert_eq!(result.requests, 3000 - 9);
        let kinds: Vec<(&str, u64)> =
            result.errors.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(kinds, [("length", 4), ("receive", 3), ("status", 2)]);
    }

    #[test]
    fn a_report_that_ended_early_is_no_result() {
        assert!(parse("Benchmarking 127.0.0.1 (be patient)...").is_err());
    }
}
