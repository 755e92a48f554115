//! Random sessions, alone and through Weir.

use weir_tests::dialogue::Draws;
use weir_tests::mysql::{Mysqld, Pair, Plan, run_plan};

use super::before;

#[test]
fn two_thousand_sessions_over_shared_connections_answer_as_alone_and_leave_nothing() {
    let seed = Draws::new().below(1 << 32);
    let alone = Mysqld::start("alone", "");
    let pair = Pair::start("programs");
    let weir = before(&pair);
    let plan = Plan { programs: 2000, at_once: 6, threads: 2, most_steps: 12, seed };
    let found = run_plan(plan, &alone, weir.address("auto"), &pair);
    println!("{seed}: {} answers, {} not known", found.answers, found.not_known);
    assert!(found.different.is_empty(), "{}", found.different.join("\n"));
    assert!(found.programs >= 2000 && found.answers > found.programs);
    // What is not known any more is an error, never a wrong answer, and seldom.
    assert!(found.not_known * 20 < found.answers, "{} of {}", found.not_known, found.answers);
}
