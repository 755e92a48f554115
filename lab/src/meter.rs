//! Reads the kernel's counters before and after a load: what the load balancer used, and whether the figures
//! can be trusted.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::{Duration, Instant};

use crate::load::LoadResult;
use crate::measure::{self, CpuTime};
use crate::metric::Metric;
use crate::process::Placement;
use crate::sample::Sample;

/// A thread counts as busy if it did at least this share of the busiest one's work.
const AT_WORK: f64 = 0.1;

/// Counters read before a load.
pub struct Meter {
    begin: Instant,
    processes: Vec<u32>,
    backends: Vec<u32>,
    cpu: CpuTime,
    threads: BTreeMap<u32, Duration>,
    backend_cpu: CpuTime,
    ended: Duration,
    resident_bytes: u64,
    connections_opened: Option<u64>,
}

impl Meter {
    /// Reads the counters of the load balancer's processes `proxies` with all their children, and of the
    /// processes `backends`.
    pub fn begin(proxies: &[u32], backends: &[u32]) -> io::Result<Self> {
        let mut processes = Vec::new();
        for proxy in proxies {
            processes.extend(measure::process_tree(*proxy)?);
        }
        Ok(Self {
            ended: measure::ended_children_time()?,
            resident_bytes: measure::resident_bytes(&processes),
            backend_cpu: measure::cpu_time(backends),
            connections_opened: connections_opened(),
            threads: measure::thread_times(&processes),
            // Last, so that reading the others is not charged to the load.
            cpu: measure::cpu_time(&processes),
            begin: Instant::now(),
            processes,
            backends: backends.to_vec(),
        })
    }

    /// Reads them again and records the differences in `sample`. `still_running` is a load that has not ended
    /// yet, whose time is then its own instead of an ended child's.
    pub fn end(
        &self,
        sample: &mut Sample,
        load: &LoadResult,
        placement: Placement,
        still_running: Option<u32>,
    ) -> io::Result<()> {
        let cpu = measure::cpu_time(&self.processes).since(&self.cpu);
        let seconds = if load.seconds > 0.0 { load.seconds } else { self.begin.elapsed().as_secs_f64() };
        let threads = measure::thread_times(&self.processes);
        let backend_cpu = measure::cpu_time(&self.backends).since(&self.backend_cpu).running;
        let load_cpu = match still_running {
            Some(process) => measure::cpu_time(&[process]).running,
            None => measure::ended_children_time()?.saturating_sub(self.ended),
        };
        let requests = load.requests as f64;
        let used = cpu.running.as_secs_f64();
        sample.put(Metric::CPU_PER_REQUEST, used * 1e6 / requests);
        sample.put(Metric::CPU_PER_GIGABYTE, used * 1e9 / load.bytes as f64);
        sample.put(Metric::CPU_SHARE, used * 100.0 / seconds);
        sample.put(Metric::WAIT_SHARE, cpu.waiting.as_secs_f64() * 100.0 / seconds);
        if let Some(share) = cpu.user_share() {
            sample.put(Metric::USER_SHARE, share * 100.0);
        }
        sample.put(Metric::WORKERS, at_work(&self.threads, &threads) as f64);
        sample.put(Metric::REQUESTS, requests);
        sample.put(
            Metric::ERROR_SHARE,
            load.error_count() as f64 * 100.0 / (requests + load.error_count() as f64),
        );
        if placement.core.is_some() {
            sample.put(Metric::LOAD_CPU_SHARE, (backend_cpu + load_cpu).as_secs_f64() * 100.0 / seconds);
        }
        self.end_memory(sample, load.requests);
        Ok(())
    }

    /// Records the memory in use now in `sample`; `connections` are those that are open.
    pub fn end_memory(&self, sample: &mut Sample, connections: u64) {
        let resident = measure::resident_bytes(&self.processes);
        sample.put(Metric::MEMORY, resident as f64);
        let growth = resident as f64 - self.resident_bytes as f64;
        sample.put(Metric::MEMORY_PER_CONNECTION, growth / connections as f64);
    }

    /// How many TCP connections were opened in this network since the beginning, by anyone.
    pub fn connections_opened(&self) -> Option<u64> {
        Some(connections_opened()?.saturating_sub(self.connections_opened?))
    }
}

/// Number of threads that did a substantial part of the work between two readings.
fn at_work(before: &BTreeMap<u32, Duration>, after: &BTreeMap<u32, Duration>) -> usize {
    let used = |(thread, now): (&u32, &Duration)| {
        now.saturating_sub(before.get(thread).copied().unwrap_or_default()).as_secs_f64()
    };
    let times: Vec<f64> = after.iter().map(used).collect();
    let most = times.iter().copied().fold(0.0, f64::max);
    times.iter().filter(|time| **time > 0.0 && **time >= most * AT_WORK).count()
}

fn connections_opened() -> Option<u64> {
    parse_active_opens(&fs::read_to_string("/proc/self/net/snmp").ok()?)
}

/// `ActiveOpens` of the two `Tcp:` lines, of which the first has the names and the second the values.
fn parse_active_opens(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let place = lines.next()?.split_ascii_whitespace().position(|name| name == "ActiveOpens")?;
    lines.next()?.split_ascii_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pairs: &[(u32, u64)]) -> BTreeMap<u32, Duration> {
        pairs.iter().map(|(thread, millis)| (*thread, Duration::from_millis(*millis))).collect()
    }

    #[test]
    fn threads_that_only_look_on_are_not_at_work() {
        let before = times(&[(1, 1000), (2, 0), (3, 0)]);
        let after = times(&[(1, 1001), (2, 900), (3, 800), (4, 100)]);
        assert_eq!(at_work(&before, &after), 3);
        assert_eq!(at_work(&after, &after), 0);
    }

    #[test]
    fn opened_connections_are_found_by_the_name_of_their_column() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm ActiveOpens PassiveOpens\nTcp: 1 4711 12\n";
        assert_eq!(parse_active_opens(text), Some(4711));
        assert_eq!(parse_active_opens("Udp: 1\n"), None);
    }
}
