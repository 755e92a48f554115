//! What reloads, starts and ends leave in the kernel: nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};
use weir_tests::dialogue::{Signal, Weir, until, until_within};
use weir_tests::network::{Network, PATIENCE};

use super::{config, start};

/// Objects of BPF by kind and number; the kernel gives no number twice.
type Objects = BTreeSet<(&'static str, u32)>;

/// What the running process has open: all that it loaded and pinned.
fn held(weir: &Weir) -> Objects {
    let directory = format!("/proc/{}/fdinfo", weir.pid());
    let mut objects = Objects::new();
    for entry in std::fs::read_dir(&directory).unwrap_or_else(|problem| panic!("{directory}: {problem}")) {
        let Ok(text) = std::fs::read_to_string(entry.expect("an entry").path()) else { continue };
        for kind in ["prog_id", "map_id", "link_id"] {
            let line = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':'));
            objects.extend(line.and_then(|number| Some((kind, number.trim().parse().ok()?))));
        }
    }
    objects
}

/// What of these is still there.
fn alive(objects: &Objects) -> Objects {
    let programs = loaded_programs().filter_map(|one| Some(("prog_id", one.ok()?.id())));
    let maps = loaded_maps().filter_map(|one| Some(("map_id", one.ok()?.id())));
    let links = loaded_links().filter_map(|one| Some(("link_id", one.ok()?.id())));
    programs.chain(maps).chain(links).filter(|one| objects.contains(one)).collect()
}

/// Files below the directory, by name.
fn pinned(network: &Network) -> BTreeSet<String> {
    let found = std::process::Command::new("find").arg(network.bpf_directory()).output().expect("find");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

/// The kernel frees some objects a moment after the last who held them has gone.
fn only_these_are_alive(ever: &Objects, expected: &Objects) {
    until_within(Duration::from_secs(10), "everything else has gone", || {
        (alive(ever) == *expected).then_some(())
    });
}

#[test]
fn a_hundred_reloads_and_ten_starts_leave_no_program_no_map_and_no_link_behind() {
    let (network, mut weir) = start(3, "balance = \"round-robin\"");
    let pinned_at_first = pinned(&network);
    let mut ever = held(&weir);
    // Where tcx is missing (before Linux 6.6), filters of clsact stand in for links.
    let has_links = pinned_at_first.iter().any(|path| path.contains("/links/"));
    assert!(
        has_links || pinned_at_first.iter().any(|path| path.contains("/filters/")),
        "{pinned_at_first:?}"
    );
    for kind in ["prog_id", "map_id", "link_id"].into_iter().take(if has_links { 3 } else { 2 }) {
        assert!(ever.iter().any(|(one, _)| *one == kind), "no {kind} is seen: {ever:?}");
    }
    let texts = [
        config(&network, 2, "balance = \"maglev\"\nhash = { key = \"flow\" }"),
        config(&network, 1, "balance = \"least-connections\""),
        config(&network, 3, "balance = \"round-robin\""),
    ];
    for round in 0..100 {
        weir.reloads(&texts[round % texts.len()]);
        ever.extend(held(&weir));
    }
    only_these_are_alive(&ever, &held(&weir));
    for round in 0..10 {
        match round % 3 {
            0 => {
                weir.signals(Signal::KILL);
                weir.starts_again();
            }
            1 => {
                let old = weir.pid();
                weir.signals_pid(old, Signal::USR2);
                until_within(PATIENCE * 4, "the old process to end", || {
                    (!weir.is_running(old)).then_some(())
                });
                until("the new process to answer", || weir.admin().tries_to_read("/v1/status"));
                // What ends is the process that this test started.
                weir.signals(Signal::KILL);
                weir.starts_again();
            }
            _ => {
                weir.signals(Signal::TERM);
                weir.starts_again();
            }
        }
        ever.extend(held(&weir));
        only_these_are_alive(&ever, &held(&weir));
    }
    weir.reloads(&texts[2]);
    assert_eq!(pinned(&network), pinned_at_first);
    ever.extend(held(&weir));
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
    only_these_are_alive(&ever, &Objects::new());
}
