//! What processes have used according to the kernel: processor time, memory, and how busy each core was.
//!
//! Everything is read from `/proc`. Processor time comes from `schedstat`, which counts nanoseconds of every
//! thread. The clock ticks of `stat` are ten milliseconds long and only show the split into user and system
//! time.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::time::Duration;

/// Processor time used so far by a set of processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// User and system time of all threads.
    pub running: Duration,
    /// Time their threads were ready to run but another process had the core. High values mean a noisy
    /// machine.
    pub waiting: Duration,
    /// Clock ticks in user mode (10 ms each on Linux).
    pub user_ticks: u64,
    /// Clock ticks in the kernel.
    pub system_ticks: u64,
}

impl CpuTime {
    /// What was used since `earlier`; zero for a part that went backwards because a thread ended in between.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            running: self.running.saturating_sub(earlier.running),
            waiting: self.waiting.saturating_sub(earlier.waiting),
            user_ticks: self.user_ticks.saturating_sub(earlier.user_ticks),
            system_ticks: self.system_ticks.saturating_sub(earlier.system_ticks),
        }
    }

    /// Share of the time spent in user mode, 0 to 1; `None` when no tick was counted.
    pub fn user_share(&self) -> Option<f64> {
        let ticks = self.user_ticks + self.system_ticks;
        (ticks > 0).then(|| self.user_ticks as f64 / ticks as f64)
    }
}

/// Sums the processor time of every thread of `processes`. A process or thread that is gone counts as zero.
pub fn cpu_time(processes: &[u32]) -> CpuTime {
    let mut sum = CpuTime::default();
    for process in processes {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
            let (running, waiting) = parse_schedstat(&text).unwrap_or_default();
            sum.running += running;
            sum.waiting += waiting;
        }
        let Ok(text) = fs::read_to_string(format!("/proc/{process}/stat")) else { continue };
        let Some(fields) = fields_after_name(&text) else { continue };
        let field = |index: usize| fields.get(index).and_then(|text| text.parse().ok()).unwrap_or(0);
        sum.user_ticks += field(11);
        sum.system_ticks += field(12);
    }
    sum
}

/// Processor time of every thread of `processes`, by thread id.
pub fn thread_times(processes: &[u32]) -> BTreeMap<u32, Duration> {
    let mut times = BTreeMap::new();
    for process in processes {
        let Ok(threads) = fs::read_dir(format!("/proc/{process}/task")) else { continue };
        for thread in threads.flatten() {
            let id = thread.file_name().to_str().and_then(|name| name.parse().ok());
            let text = fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
            if let (Some(id), Some((running, _))) = (id, parse_schedstat(&text)) {
                times.insert(id, running);
            }
        }
    }
    times
}

/// Processor time of all children of this process that have ended and been waited for. Its steps are 10 ms,
/// so it shows how full a core was, not what a request cost.
pub fn ended_children_time() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let ticks = fields_after_name(&text).and_then(|fields| {
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        Some(field(13)? + field(14)?)
    });
    // Linux gives user space 100 ticks a second on every architecture this lab runs on.
    ticks
        .map(|ticks| Duration::from_millis(ticks * 10))
        .ok_or_else(|| io::Error::other("/proc/self/stat is cut short"))
}

/// Sums resident memory (bytes) of `processes`. Pages that several of them share count once for each.
pub fn resident_bytes(processes: &[u32]) -> u64 {
    processes
        .iter()
        .filter_map(|process| fs::read_to_string(format!("/proc/{process}/status")).ok())
        .filter_map(|text| parse_resident(&text))
        .sum()
}

/// `root` and all its descendants, `root` first.
pub fn process_tree(root: u32) -> io::Result<Vec<u32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = fields_after_name(&text).and_then(|fields| fields.get(1)?.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (process, parent)));
    }
    let mut tree = vec![root];
    let mut next = 0;
    while next < tree.len() {
        let parent = tree[next];
        tree.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(process, _)| *process));
        next += 1;
    }
    Ok(tree)
}

/// Processor time that all cores together have spent on work of ordinary or higher priority, including the
/// kernel's, since boot; in steps of 10 ms. Work with a positive nice value, such as a build beside a
/// measurement, does not count.
pub fn machine_time() -> io::Result<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    parse_machine(&text)
        .ok_or_else(|| io::Error::other("/proc/stat does not begin with the sum of all cores"))
}

/// First two numbers of a `schedstat` line: nanoseconds on a core, nanoseconds waiting for one.
fn parse_schedstat(text: &str) -> Option<(Duration, Duration)> {
    let mut numbers = text.split_ascii_whitespace().map(|number| number.parse::<u64>().ok());
    Some((Duration::from_nanos(numbers.next()??), Duration::from_nanos(numbers.next()??)))
}

/// The fields of `/proc/PID/stat` after the process name, state first. The name stands in brackets and may
/// itself hold brackets and spaces, so the last closing one ends it.
fn fields_after_name(text: &str) -> Option<Vec<&str>> {
    let (_, rest) = text.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().collect())
}

fn parse_resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn parse_machine(stat: &str) -> Option<Duration> {
    let sum = stat.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq; what follows is the hypervisor's or counted already.
    let ticks: Vec<u64> = sum.split_ascii_whitespace().take(7).map_while(|tick| tick.parse().ok()).collect();
    let [user, _, system, _, _, irq, softirq] = ticks[..] else { return None };
    Some(Duration::from_millis((user + system + irq + softirq) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process;
    use std::time::Instant;

    #[test]
    fn schedstat_gives_running_and_waiting_time() {
        let expected = (Duration::from_nanos(12_345_678), Duration::from_nanos(900));
        assert_eq!(parse_schedstat("12345678 900 42\n"), Some(expected));
        assert_eq!(parse_schedstat("12345678\n"), None);
    }

    #[test]
    fn a_process_name_with_brackets_and_spaces_does_not_shift_the_fields() {
        let text = "42 (a) R 1) S 7 42 42 0 -1 0 0 0 0 0 120 30 0 0";
        let fields = fields_after_name(text).unwrap();
        assert_eq!(fields[1], "7");
        assert_eq!((fields[11], fields[12]), ("120", "30"));
    }

    #[test]
    fn the_machine_works_where_it_is_neither_idle_nor_nice() {
        let stat = "cpu  100 9000 20 7000 50 3 7 99 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_machine(stat), Some(Duration::from_millis(1300)));
        assert_eq!(parse_machine("cpu0 1 2 3 4 5 6 7\n"), None);
    }

    #[test]
    fn resident_memory_is_read_in_bytes() {
        assert_eq!(parse_resident("Name:\tx\nVmRSS:\t    2048 kB\nRssAnon: 1 kB\n"), Some(2048 * 1024));
        assert_eq!(parse_resident("Name:\tkthread\n"), None);
    }

    #[test]
    fn the_processor_time_of_this_process_grows_with_its_work() {
        let before = cpu_time(&[process::id()]);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) {
            std::hint::black_box(begin.elapsed());
        }
        let used = cpu_time(&[process::id()]).since(&before);
        // Another process may have had the core for part of the time, but not all of it.
        assert!(used.running > Duration::from_millis(1), "{used:?}");
        assert!(resident_bytes(&[process::id()]) > 100_000);
    }

    #[test]
    fn the_time_of_an_ended_child_is_found_in_its_parent() {
        let before = ended_children_time().unwrap();
        let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        assert!(process::Command::new("sh").args(["-c", script]).status().unwrap().success());
        assert!(ended_children_time().unwrap() > before);
    }

    #[test]
    fn a_process_tree_holds_a_child() {
        let mut child = process::Command::new("sleep").arg("60").spawn().unwrap();
        let tree = process_tree(process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(tree[0], process::id());
        assert!(tree.contains(&child.id()));
    }
}
