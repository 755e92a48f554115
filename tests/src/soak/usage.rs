//! What a process of Weir holds, and how that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

use crate::dialogue::{Sample, Usage, usage_of};

/// Growth of resident memory that is not told from noise: from the first third of a process's life to its
/// last, both a share and a size.
const NOISE: (f64, u64) = (0.2, 12 << 20);
/// So many times as many clients as usual are a crowd, and so many looks behind it they have left.
const CROWD: u64 = 5;
const AFTER_CROWD: usize = 30;
/// Descriptors of the empty pipes that the workers keep for reuse, at most: each of two has 16 (`KEPT` in
/// weir-io), and each has two ends.
const KEPT_PIPE_ENDS: usize = 2 * 16 * 2;

/// What a process holds at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Holding {
    /// Since the soak began.
    pub(super) at: Duration,
    pub(super) pid: u32,
    /// Clients at once.
    pub(super) clients: u64,
    pub(super) usage: Usage,
    /// Descriptors by what they are: `pipe`, `deleted file`, `socket`, `anon_inode` and so on.
    pub(super) kinds: BTreeMap<String, usize>,
    /// TCP sockets whose other side has ended and which are not closed.
    pub(super) close_wait: usize,
}

impl Holding {
    /// Looks at a process; `None` when there is none.
    pub(super) fn of(pid: u32, at: Duration) -> Option<Holding> {
        let usage = usage_of(pid)?;
        let mut kinds = BTreeMap::new();
        let mut sockets = BTreeSet::new();
        for entry in fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten() {
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            if let Some(inode) = target.strip_prefix("socket:[") {
                sockets.insert(inode.trim_end_matches(']').to_owned());
            }
            let kind = if target.ends_with(" (deleted)") {
                "deleted file"
            } else if target.starts_with('/') {
                "file"
            } else {
                target.split(':').next().unwrap_or_default()
            };
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
        Some(Holding { at, pid, clients: 0, usage, kinds, close_wait: close_wait(pid, &sockets) })
    }

    /// Descriptors of this kind.
    fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).copied().unwrap_or(0)
    }

    /// A line for people.
    pub(super) fn text(&self) -> String {
        let Holding { usage, kinds, close_wait, .. } = self;
        let mebibytes = usage.resident_bytes as f64 / f64::from(1 << 20);
        let kinds: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        let kinds = kinds.join(", ");
        format!("{mebibytes:.1} MiB, {} threads, {close_wait} in CLOSE_WAIT, {kinds}", usage.threads)
    }
}

/// Of these sockets those in CLOSE_WAIT, state 08 in `/proc/net/tcp` (proc(5)).
fn close_wait(pid: u32, inodes: &BTreeSet<String>) -> usize {
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let is_ours = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(3) == Some(&"08") && fields.get(9).is_some_and(|inode| inodes.contains(*inode))
    };
    lines.filter(is_ours).count()
}

/// What a process holds more, with nothing left to do, than one that has not served anybody.
pub(super) fn left_over(old: &Holding, fresh: &Holding) -> Vec<String> {
    let mut found = Vec::new();
    let mut more = |what: &str, old: usize, fresh: usize, slack: usize| {
        if old > fresh + slack {
            found.push(format!("{old} {what} in a process without clients, a fresh one has {fresh}"));
        }
    };
    let others = |it: &Holding| it.usage.descriptors.saturating_sub(it.count("pipe"));
    more("descriptors that are no pipes", others(old), others(fresh), 2);
    more("threads", old.usage.threads, fresh.usage.threads, 1);
    more("pipes", old.count("pipe"), fresh.count("pipe"), KEPT_PIPE_ENDS);
    more("deleted files", old.count("deleted file"), fresh.count("deleted file"), 0);
    more("sockets in CLOSE_WAIT", old.close_wait, 0, 0);
    found
}

/// Median resident memory of the first and of the last third of this process's life, bytes. The first tenth
/// is left out: there memory is taken for the first time. So is all up to the last crowd: on a busy machine
/// clients pile up, and an allocator does not give back all that they needed.
pub(super) fn trend(holdings: &[Holding], pid: u32) -> Option<(u64, u64)> {
    let own: Vec<&Holding> = holdings.iter().filter(|it| it.pid == pid).collect();
    let usual = median(own.iter().map(|it| it.clients).collect())?.max(1);
    let crowd = own.iter().rposition(|it| it.clients > CROWD * usual).map_or(0, |at| at + AFTER_CROWD);
    let own = own.get(crowd.max(own.len() / 10)..)?;
    let third = own.len() / 3;
    if third < 3 {
        return None;
    }
    let resident = |part: &[&Holding]| median(part.iter().map(|it| it.usage.resident_bytes).collect());
    Some((resident(&own[..third])?, resident(&own[own.len() - third..])?))
}

fn median(mut all: Vec<u64>) -> Option<u64> {
    all.sort_unstable();
    all.get(all.len() / 2).copied()
}

/// Whether memory grew by more than noise from one median to the other.
pub(super) fn has_grown((first, last): (u64, u64)) -> bool {
    last > first + NOISE.1 && last as f64 > first as f64 * (1.0 + NOISE.0)
}

/// Series of listeners, pools or backends that the config in force does not have.
pub(super) fn foreign_series(page: &[Sample], config: &str, backends: &[String]) -> Vec<String> {
    let has = |table: &str, name: &str| config.contains(&format!("[{table}.{name}]"));
    let is_foreign = |sample: &&Sample| {
        sample.labels.iter().any(|(label, value)| match label.as_str() {
            "listener" | "pool" => !has(label, value),
            "backend" => !backends.contains(value),
            _ => false,
        })
    };
    page.iter().filter(is_foreign).map(|sample| format!("{}{:?}", sample.name, sample.labels)).collect()
}
