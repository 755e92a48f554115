//! h2load: its command line and what it prints.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::LoadResult;
use crate::contender::Tools;
use crate::metric::Metric;

/// The protocol that h2load uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// HTTP/1.1 in the clear.
    Http1,
    /// HTTP/1.1 over TLS.
    Http1Tls,
    /// HTTP/2 over TLS.
    Http2,
    /// HTTP/3.
    Http3,
}

impl Protocol {
    fn option(self) -> &'static str {
        match self {
            Self::Http1 | Self::Http1Tls => "--h1",
            Self::Http2 => "--alpn-list=h2",
            Self::Http3 => "--h3",
        }
    }

    /// Whether it needs a certificate.
    pub fn is_encrypted(self) -> bool {
        self != Self::Http1
    }

    fn scheme(self) -> &'static str {
        if self.is_encrypted() { "https" } else { "http" }
    }
}

/// How long it runs: `-D` seconds or `-n` requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// By the clock.
    Seconds(u32),
    /// By count.
    Requests(u32),
}

impl Extent {
    /// `seconds`, unless each of `connections` could make more than `each` requests in that time. With a time
    /// limit, h2load reports nothing of a connection that the server has closed, and waits for the end: nginx
    /// 1.30 treats a connection as a flood after 7,800 small HTTP/3 requests, one at a time.
    pub fn of(seconds: u32, connections: u32, each: Option<u32>) -> Extent {
        // The highest rate of any load balancer in run 16, whose requests came one at a time: 39,101 a
        // second. A run that is slower ends by the clock before a connection has made `each` requests.
        const A_SECOND: u64 = 40_000;
        let all = each.map(|each| u64::from(each) * u64::from(connections));
        match all.filter(|all| *all <= A_SECOND * u64::from(seconds)).map(u32::try_from) {
            Some(Ok(all)) => Extent::Requests(all),
            _ => Extent::Seconds(seconds),
        }
    }
}

pub fn command(
    tools: &Tools,
    target: SocketAddr,
    extent: Extent,
    protocol: Protocol,
    connections: u32,
    streams: u32,
    path: &str,
) -> Vec<String> {
    let extent = match extent {
        Extent::Seconds(seconds) => format!("-D{seconds}"),
        Extent::Requests(requests) => format!("-n{requests}"),
    };
    [tools.peers.as_str(), "run", "h2load", "--", protocol.option()]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("-c{connections}"), format!("-m{streams}"), extent])
        .chain([format!("{}://{target}{path}", protocol.scheme())])
        .collect()
}

/// Reads h2load's report.
pub fn parse(printed: &str) -> io::Result<LoadResult> {
    let problem = || io::Error::other(format!("h2load printed something else than its report:\n{printed}"));
    let mut result = LoadResult::default();
    let (mut finished, mut rate) = (None, 0.0);
    let mut columns: Vec<&str> = Vec::new();
    for line in printed.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("finished in ") {
            let mut parts = rest.split(", ");
            finished = parts.next().and_then(microseconds);
            let per_second = parts.next().and_then(|part| part.strip_suffix(" req/s"));
            rate = per_second.and_then(|number| number.parse().ok()).ok_or_else(problem)?;
        } else if let Some(rest) = line.strip_prefix("requests: ") {
            count(rest, &mut result).ok_or_else(problem)?;
        } else if let Some(rest) = line.strip_prefix("traffic: ") {
            let bytes = rest.split_once('(').and_then(|(_, rest)| rest.split_once(')'));
            result.bytes = bytes.and_then(|(bytes, _)| bytes.parse().ok()).ok_or_else(problem)?;
        } else if line.starts_with("min ") {
            columns = line.split_ascii_whitespace().collect();
        } else if let Some(rest) = line.strip_prefix("request ") {
            let times = rest.split_ascii_whitespace().skip_while(|word| *word == ":");
            for (column, time) in columns.iter().zip(times) {
                put(&mut result, column, time);
            }
        }
    }
    let finished = finished.ok_or_else(problem)? / 1e6;
    // With a time limit, the rate is over the time asked for; the time that is printed as finished also
    // includes the shutdown.
    result.seconds = if rate > 0.0 { result.requests as f64 / rate } else { finished };
    if !result.errors.is_empty() {
        let lines =
            printed.lines().filter(|line| line.starts_with("requests:") || line.starts_with("status"));
        result.problem = Some(lines.collect::<Vec<&str>>().join("; "));
    }
    Ok(result)
}

/// `2000 total, 2000 started, 2000 done, 2000 succeeded, 0 failed, 0 errored, 0 timeout`
fn count(line: &str, result: &mut LoadResult) -> Option<()> {
    let of = |name: &str| -> Option<u64> {
        line.split(", ").find_map(|part| part.strip_suffix(name)?.trim().parse().ok())
    };
    let (failed, errored, timed_out) = (of("failed")?, of("errored")?, of("timeout")?);
    result.requests = of("succeeded")?;
    // Each of these counts is part of the one before it.
    result.fail("status", failed.saturating_sub(errored));
    result.fail("connection", errored.saturating_sub(timed_out));
    result.fail("timeout", timed_out);
    Some(())
}

fn put(result: &mut LoadResult, column: &str, time: &str) {
    let metric = match column {
        "min" => Metric::LATENCY_MIN,
        "mean" => Metric::LATENCY_MEAN,
        "median" => Metric::LATENCY_P50,
        "p95" => Metric::LATENCY_P95,
        "p99" => Metric::LATENCY_P99,
        "max" => Metric::LATENCY_MAX,
        _ => return,
    };
    if result.requests > 0 {
        result.figures.extend(microseconds(time).map(|time| (metric, time)));
    }
}

/// `18us`, `4.34ms`, `1.12s` in microseconds.
fn microseconds(text: &str) -> Option<f64> {
    let (number, factor) = [("us", 1.0), ("ms", 1e3), ("s", 1e6)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "starting benchmark...
finished in 3.00s, 33861.00 req/s, 3.71MB/s
requests: 67722 total, 67722 started, 67722 done, 67722 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 67722 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 7.43MB (7788030) total, 7.93MB (8313816) headers (space savings 0.00%), 1.45MB (1522248) data
                 min         max         median      p95         p99         mean        sd         +/- sd
request     :       65us      6.72ms       152us      1.34ms      4.11ms       295us       677us    94.70%
connect     :        0us         0us         0us         0us         0us         0us         0us     0.00%
";

    #[test]
    fn a_report_gives_counts_rate_and_times() {
        let result = parse(REPORT).unwrap();
        assert_eq!((result.requests, result.bytes, result.error_count()), (67_722, 7_788_030, 0));
        assert_eq!(result.seconds, 2.0);
        assert_eq!(result.figures[&Metric::LATENCY_P50], 152.0);
        assert_eq!(result.figures[&Metric::LATENCY_P99], 4110.0);
        assert_eq!(result.figures[&Metric::LATENCY_MEAN], 295.0);
    }

    #[test]
    fn few_connections_make_no_more_requests_than_they_outlive() {
        let of = |connections, each| Extent::of(2, connections, each);
        assert_eq!(of(1, Some(6000)), Extent::Requests(6000));
        assert_eq!(of(13, Some(6000)), Extent::Requests(78_000));
        assert_eq!(of(14, Some(6000)), Extent::Seconds(2), "84,000 in two seconds are out of reach");
        assert_eq!(of(1, None), Extent::Seconds(2));
        assert_eq!(of(u32::MAX, Some(u32::MAX)), Extent::Seconds(2));
    }

    #[test]
    fn failed_requests_are_told_apart() {
        let line = "requests: 30 total, 30 started, 30 done, 20 succeeded, 10 failed, 7 errored, 2 timeout";
        let good = REPORT.lines().nth(2).unwrap();
        let result = parse(&REPORT.replace(good, line)).unwrap();
        let kinds: Vec<(&str, u64)> =
            result.errors.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(kinds, [("connection", 5), ("status", 3), ("timeout", 2)]);
    }

    #[test]
    fn a_run_that_nobody_answered_has_no_latency() {
        let report = "finished in 224us, 0.00 req/s, 0B/s\n\
            requests: 30 total, 0 started, 0 done, 0 succeeded, 30 failed, 30 errored, 0 timeout\n\
            min max median p95 p99 mean sd +/- sd\nrequest : 0us 0us 0us 0us 0us 0us 0us 0.00%\n";
        let result = parse(report).unwrap();
        assert!(result.figures.is_empty());
        assert_eq!(result.errors["connection"], 30);
    }
}
