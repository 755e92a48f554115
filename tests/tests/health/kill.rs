//! One backend of three dies under load (R5); the short form of the `kill_one` program.

use weir_tests::dialogue::Draws;
use weir_tests::storm::{KillPlan, kill_and_restart};

#[test]
fn no_get_fails_and_nothing_is_executed_twice_when_backends_are_killed_under_load() {
    let seed = Draws::new().below(1 << 30);
    let program = env!("CARGO_BIN_EXE_kill_one").into();
    let report = kill_and_restart(&KillPlan { requests: 15_000, kills: 4, clients: 8, seed, program });
    print!("{}", report.text());
    assert_eq!(report.failed(), 0, "{}", report.text());
    assert_eq!(report.load.done, 15_000);
    assert!(
        report.slowest_ejection().as_millis() <= 1000,
        "out of use only after {:?}",
        report.slowest_ejection()
    );
}
