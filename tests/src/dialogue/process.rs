//! What the kernel says about a process.

use std::fs;
use std::time::Duration;

/// What a process has used so far and holds now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time of all its threads.
    pub cpu: Duration,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Most resident memory it ever had, bytes.
    pub peak_bytes: u64,
    /// Open file descriptors, count.
    pub descriptors: usize,
    /// Threads, count.
    pub threads: usize,
}

/// Reads `/proc/PID`; `None` when there is no such process (any more).
pub fn usage_of(pid: u32) -> Option<Usage> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold spaces; fields are counted from behind it (proc(5): utime is field
    // 14).
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    Some(Usage {
        // Linux reports these in USER_HZ, which is 100 on every architecture we run on.
        cpu: Duration::from_millis(ticks * 10),
        resident_bytes: number("VmRSS:")? * 1024,
        peak_bytes: number("VmHWM:")? * 1024,
        descriptors: fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count(),
        threads: usize::try_from(number("Threads:")?).ok()?,
    })
}

/// Time that all threads of a process were on a processor, in nanoseconds instead of the hundredths of a
/// second of [`Usage::cpu`]; threads that have ended are left out.
pub fn processor_time_of(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of_thread = |thread: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    Duration::from_nanos(threads.filter_map(of_thread).sum())
}

/// Ids of the processes whose command line contains `needle`, zombies left out, in ascending order.
pub fn processes_mentioning(needle: &str) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(entries) = fs::read_dir("/proc") else { return found };
    for entry in entries.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A zombie's command line is empty, so it is never found here.
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        if command.windows(needle.len()).any(|window| window == needle.as_bytes()) {
            found.push(pid);
        }
    }
    found.sort_unstable();
    found
}
