//! wrk: its command line and what it prints.

use std::io;
use std::net::SocketAddr;

use super::LoadResult;
use crate::contender::Tools;
use crate::metric::Metric;

pub fn command(
    tools: &Tools,
    target: SocketAddr,
    seconds: u32,
    connections: u32,
    path: &str,
    headers: &[String],
) -> Vec<String> {
    let mut command: Vec<String> = [tools.peers.as_str(), "run", "wrk", "--", "--latency", "-t1"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("-c{connections}"), format!("-d{seconds}s"), "--timeout".to_owned(), "5s".to_owned()])
        .collect();
    for header in headers {
        command.extend(["-H".to_owned(), header.clone()]);
    }
    command.push(format!("http://{target}{path}"));
    command
}

/// Reads wrk's report.
pub fn parse(printed: &str) -> io::Result<LoadResult> {
    let problem = || io::Error::other(format!("wrk printed something else than its report:\n{printed}"));
    let mut result = LoadResult::default();
    let mut problems = Vec::new();
    let mut totals = false;
    for line in printed.lines().map(str::trim) {
        if let Some(value) = line.strip_prefix("50%") {
            result.figures.insert(Metric::LATENCY_P50, microseconds(value.trim()).ok_or_else(problem)?);
        } else if let Some(value) = line.strip_prefix("99%") {
            result.figures.insert(Metric::LATENCY_P99, microseconds(value.trim()).ok_or_else(problem)?);
        } else if let Some(value) =
            line.strip_prefix("Latency ").and_then(|rest| rest.split_ascii_whitespace().next())
        {
            // The head of the percentiles, `Latency Distribution`, begins like the line with the mean.
            result.figures.extend(microseconds(value).map(|mean| (Metric::LATENCY_MEAN, mean)));
        } else if let Some((requests, rest)) = line.split_once(" requests in ") {
            let (seconds, bytes) = rest.split_once(", ").ok_or_else(problem)?;
            result.requests = requests.parse().map_err(|_| problem())?;
            result.seconds = microseconds(seconds).ok_or_else(problem)? / 1e6;
            result.bytes = bytes.strip_suffix(" read").and_then(binary_bytes).ok_or_else(problem)?;
            totals = true;
        } else if let Some(counts) = line.strip_prefix("Socket errors: ") {
            for (kind, count) in counts.split(", ").filter_map(|pair| pair.split_once(' ')) {
                result.fail(kind, count.parse().map_err(|_| problem())?);
            }
            problems.push(line.to_owned());
        } else if let Some(count) = line.strip_prefix("Non-2xx or 3xx responses: ") {
            result.fail("status", count.parse().map_err(|_| problem())?);
            problems.push(line.to_owned());
        }
    }
    result.problem = (!problems.is_empty()).then(|| problems.join("; "));
    if totals { Ok(result) } else { Err(problem()) }
}

/// `1.20ms`, `850.00us`, `3.01s`, `1.5m` in microseconds.
fn microseconds(text: &str) -> Option<f64> {
    let (number, factor) = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3600e6)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

/// `22.50MB` in bytes; wrk counts by 1024 and prints three digits.
fn binary_bytes(text: &str) -> Option<u64> {
    let (number, factor) = [("KB", 1_u64 << 10), ("MB", 1 << 20), ("GB", 1 << 30), ("TB", 1 << 40), ("B", 1)]
        .into_iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    number.parse::<f64>().ok().map(|number| (number * factor as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "Running 3s test @ http://127.0.0.1:8080/
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.20ms  310.00us   9.81ms   91.02%
    Req/Sec    53.40k     2.11k   57.70k    70.00%
  Latency Distribution
     50%    1.17ms
     75%    1.25ms
     90%    1.41ms
     99%    2.35ms
  159476 requests in 3.01s, 22.50MB read
Requests/sec:  52981.39
Transfer/sec:      7.48MB
";

    #[test]
    fn a_report_gives_counts_and_latencies() {
        let result = parse(REPORT).unwrap();
        assert_eq!(result.requests, 159_476);
        assert_eq!(result.bytes, 22_500 * 1024 * 1024 / 1000);
        assert!((result.seconds - 3.01).abs() < 1e-9);
        assert_eq!(result.figures[&Metric::LATENCY_P50], 1170.0);
        assert_eq!(result.figures[&Metric::LATENCY_MEAN], 1200.0);
        assert_eq!(result.figures[&Metric::LATENCY_P99], 2350.0);
        assert_eq!((result.error_count(), result.problem), (0, None));
    }

    #[test]
    fn socket_errors_and_bad_answers_count_as_errors() {
        let errors =
            "  Socket errors: connect 1, read 20, write 0, timeout 3\n  Non-2xx or 3xx responses: 7\n";
        let result = parse(&REPORT.replace("Requests/sec", &format!("{errors}Requests/sec"))).unwrap();
        assert_eq!(result.error_count(), 31);
        assert_eq!(result.errors["timeout"], 3);
        assert!(result.problem.unwrap().contains("read 20"));
    }

    #[test]
    fn a_report_without_totals_is_no_result() {
        assert!(parse("unable to connect to 127.0.0.1:1 Connection refused\n").is_err());
    }

    #[test]
    fn times_are_read_in_every_unit_wrk_prints() {
        assert_eq!(microseconds("850.50us"), Some(850.5));
        assert_eq!(microseconds("1.25s"), Some(1_250_000.0));
        assert_eq!(microseconds("2.00m"), Some(120_000_000.0));
        assert_eq!(microseconds("12"), None);
    }
}
