//! The short form of the `soak` program.

use weir_tests::dialogue::Draws;
use weir_tests::soak::{SoakPlan, soak};

#[test]
fn mixed_clients_notice_nothing_of_changes_and_leave_nothing_behind() {
    let report = soak(&SoakPlan {
        seconds: 20,
        rate: 40,
        change_every_ms: 800,
        upgrades: true,
        seed: Draws::new().below(1 << 30),
        program: env!("CARGO_BIN_EXE_soak").into(),
        keep: None,
        progress: false,
    });
    print!("{}", report.text());
    assert_eq!(report.failed(), 0, "{}", report.text());
    assert!(report.changed("reload") > 0, "{}", report.text());
}
