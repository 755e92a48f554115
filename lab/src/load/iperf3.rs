//! iperf3 with many streams, spread over endpoints.
//!
//! An iperf3 server runs one test at a time, and all connections of a test, control and data, must reach the
//! same server. A load balancer that sends every connection to the next endpoint would separate them. So each
//! endpoint has a virtual address of its own, and the streams are distributed over as many iperf3 clients as
//! there are endpoints: the spread that round robin gives to long-lived streams.

use std::io;
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use serde::Deserialize;

use super::LoadResult;
use crate::addresses::after;
use crate::metric::Metric;
use crate::process;

/// Runs one iperf3 for each of `endpoints` addresses from that of `target` on, with `streams` streams in all;
/// `peers` is `lab/peers`. The streams go towards the endpoints, as iperf3's do unless told otherwise.
///
/// An iperf3 that fails counts as an error and the others go on. Err when none ends well.
pub fn run(
    peers: &str,
    target: SocketAddr,
    endpoints: u16,
    streams: u32,
    seconds: u64,
) -> io::Result<LoadResult> {
    let shares = dealt(streams, endpoints);
    let mut clients = Vec::new();
    for (index, share) in (0..).zip(shares).filter(|(_, share)| *share > 0) {
        let arguments = ["run", "iperf3", "--", "--json", "-c"].map(str::to_owned);
        let client = process::bound_to_this_one()
            .arg(peers)
            .args(arguments)
            .arg(after(target.ip(), index).to_string())
            .args(["-p".to_owned(), target.port().to_string(), "-P".to_owned(), share.to_string()])
            .args(["-t".to_owned(), seconds.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        clients.push(client);
    }
    let printed: Vec<String> = clients.into_iter().map(printed).collect::<io::Result<_>>()?;
    summed_up(&printed.iter().map(|text| parse(text)).collect::<Vec<_>>())
}

fn printed(client: Child) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&client.wait_with_output()?.stdout).into_owned())
}

/// Distributes `streams` over `endpoints`; the first ones get what is left over.
fn dealt(streams: u32, endpoints: u16) -> Vec<u32> {
    let endpoints = u32::from(endpoints.max(1));
    (0..endpoints).map(|index| (streams + endpoints - 1 - index) / endpoints).collect()
}

/// The part of iperf3's report that is used.
#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default)]
    end: End,
    /// What went wrong.
    error: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct End {
    sum_received: Option<Sum>,
    #[serde(default)]
    streams: Vec<serde::de::IgnoredAny>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
struct Sum {
    bytes: u64,
    bits_per_second: f64,
}

/// The receiver's totals and the number of streams; or iperf3's error message.
fn parse(printed: &str) -> Result<(Sum, usize), String> {
    let document: Document = serde_json::from_str(printed)
        .map_err(|error| format!("iperf3 printed `{printed}` where its report was expected: {error}"))?;
    match (document.error, document.end.sum_received) {
        (None, Some(sum)) => Ok((sum, document.end.streams.len())),
        (error, _) => Err(format!("iperf3: {}", error.unwrap_or_else(|| "no sum in its report".to_owned()))),
    }
}

fn summed_up(parts: &[Result<(Sum, usize), String>]) -> io::Result<LoadResult> {
    let well: Vec<&(Sum, usize)> = parts.iter().filter_map(|part| part.as_ref().ok()).collect();
    let complaint = parts.iter().find_map(|part| part.as_ref().err()).cloned();
    if well.is_empty() {
        return Err(io::Error::other(complaint.unwrap_or_else(|| "no iperf3 was started".to_owned())));
    }
    let bits: f64 = well.iter().map(|(sum, _)| sum.bits_per_second).sum();
    let bytes: u64 = well.iter().map(|(sum, _)| sum.bytes).sum();
    let mut result = LoadResult {
        requests: well.iter().map(|(_, streams)| *streams as u64).sum(),
        bytes,
        seconds: bytes as f64 * 8.0 / bits,
        problem: complaint,
        ..LoadResult::default()
    };
    result.figures.insert(Metric::THROUGHPUT, bits);
    result.fail("test", parts.len() as u64 - well.len() as u64);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_dealt_out_as_round_robin_does() {
        assert_eq!(dealt(100, 3), [34, 33, 33]);
        assert_eq!(dealt(2, 3), [1, 1, 0]);
        assert_eq!(dealt(7, 1), [7]);
    }

    const REPORT: &str = r#"{"start": {}, "intervals": [], "end": {"streams": [{"sender": {}}, {"sender": {}}],
        "sum_sent": {"bytes": 9, "seconds": 1, "bits_per_second": 72},
        "sum_received": {"start": 0, "end": 2.0, "seconds": 2.0, "bytes": 500, "bits_per_second": 2000.0, "sender": true}}}"#;

    #[test]
    fn what_the_receiving_side_counted_is_what_counts() {
        let sum = Sum { bytes: 500, bits_per_second: 2000.0 };
        assert_eq!(parse(REPORT), Ok((sum, 2)));
    }

    #[test]
    fn clients_add_up_and_one_that_fails_is_an_error() {
        let failed = parse(r#"{"start": {}, "end": {}, "error": "error - unable to connect to server"}"#);
        let result = summed_up(&[parse(REPORT), parse(REPORT), failed]).unwrap();
        assert_eq!((result.requests, result.bytes, result.seconds), (4, 1000, 2.0));
        assert_eq!(result.figures[&Metric::THROUGHPUT], 4000.0);
        assert_eq!(result.errors["test"], 1);
        assert_eq!(result.problem.as_deref(), Some("iperf3: error - unable to connect to server"));
    }

    #[test]
    fn clients_that_all_fail_are_an_error() {
        assert!(summed_up(&[parse("not json")]).unwrap_err().to_string().contains("`not json`"));
    }
}
