//! Random sessions, alone and through Weir.

use weir_tests::mysql::{Mysqld, Pair, Plan, run_plan, weir_for_programs};

/// Where the programs begin that are known to agree, so that what is mended stays so; WEIR_SEED names another
/// place. Random ones are for the command `mysql_programs` (docs/internals/testing.md).
const SEED: u64 = 61_037;
/// Sessions.
const PROGRAMS: u64 = 2_000;

#[test]
fn sessions_over_shared_connections_answer_as_alone_and_leave_nothing() {
    let seed = std::env::var("WEIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED);
    let alone = Mysqld::start("alone", "");
    let pair = Pair::start("programs");
    let weir = weir_for_programs(&pair);
    let plan = Plan { programs: PROGRAMS, at_once: 6, threads: 2, most_steps: 12, seed };
    let found = run_plan(plan, &alone, weir.address("auto"), &pair, |_| true);
    println!(
        "{seed}: {} answers, {} not known, {} refused by a replica",
        found.answers, found.not_known, found.refused_by_replica
    );
    assert!(found.different.is_empty(), "{}", found.different.join("\n"));
    assert!(found.programs >= PROGRAMS && found.answers > found.programs);
    // What is not known any more is an error, never a wrong answer, and seldom.
    assert!(found.not_known * 20 < found.answers, "{} of {}", found.not_known, found.answers);
}
