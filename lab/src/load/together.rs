//! Makes processes begin at the same moment, although starting one takes longer the more load the earlier
//! ones make.

use std::fs;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Longest time that all may take to reach their sleep.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often processes that do not sleep yet are checked.
const INTERVAL: Duration = Duration::from_millis(2);

/// Waits until each of `children` sleeps for `pause` before its work, as it was told to. Stops it there, and
/// lets all continue once the last one's pause is over. Returns how many had not reached their sleep after 20
/// s; a child that ends before is not waited for.
pub fn begin_together<'a>(children: impl Iterator<Item = &'a Child>, pause: Duration) -> usize {
    let mut awaited: Vec<Pid> =
        children.filter_map(|child| Pid::from_raw(i32::try_from(child.id()).ok()?)).collect();
    let mut held = Vec::new();
    let begin = Instant::now();
    while !awaited.is_empty() && begin.elapsed() < PATIENCE {
        let (asleep, awake): (Vec<Pid>, Vec<Pid>) = awaited.into_iter().partition(|one| sleeps(*one));
        // Children that ended have not been reaped yet, so no other process has their ids.
        held.extend(asleep.into_iter().filter(|one| kill_process(*one, Signal::STOP).is_ok()));
        awaited = awake.into_iter().filter(|one| !has_ended(*one)).collect();
        thread::sleep(INTERVAL);
    }
    // Sleep time passes while a process is stopped; a process that continues after its end begins to work at
    // once.
    thread::sleep(pause);
    for one in &held {
        let _ = kill_process(*one, Signal::CONT);
    }
    awaited.len()
}

/// Whether the process waits in the kernel's `nanosleep`, which `sleep` of the C library calls.
fn sleeps(process: Pid) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", process.as_raw_nonzero()));
    place.is_ok_and(|place| place.contains("nanosleep"))
}

fn has_ended(process: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    status.map_or(true, |status| status.rsplit(')').next().is_some_and(|rest| rest.starts_with(" Z")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::time::{SystemTime, UNIX_EPOCH};

    const PAUSE: Duration = Duration::from_secs(2);

    /// Sleeps, then says when it goes on, in seconds since 1970.
    fn sleeper() -> Child {
        let script = format!("import time; time.sleep({}); print(time.time())", PAUSE.as_secs());
        Command::new("python3").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn nobody_begins_before_the_last_ones_pause_is_over() {
        let mut children = Vec::new();
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(100));
            children.push(sleeper());
        }
        let last_start = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert_eq!(begin_together(children.iter().chain([&ended]), PAUSE), 0);
        for mut child in children {
            let mut printed = String::new();
            child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
            child.wait().unwrap();
            let begun: f64 = printed.trim().parse().unwrap();
            assert!(begun >= (last_start + PAUSE).as_secs_f64(), "{begun}, the last started {last_start:?}");
        }
    }
}
