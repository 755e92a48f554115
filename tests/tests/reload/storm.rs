//! The short form of the `reload_storm` program.

use weir_tests::dialogue::Draws;
use weir_tests::storm::{StormPlan, reload_storm};

#[test]
fn no_client_notices_reloads_and_upgrades_under_load() {
    // R1, R2, R3, scaled down.
    let seed = Draws::new().below(1 << 30);
    let report = reload_storm(StormPlan {
        requests: 20_000,
        reloads: 5,
        upgrades: 2,
        long_lived: 5,
        clients: 8,
        http2: 2,
        http3: 2,
        seed,
    });
    print!("{}", report.text());
    assert_eq!(report.failed(), 0, "{}", report.text());
    assert_eq!((report.reloads, report.upgrades), (5, 2));
    assert_eq!(report.load.done, 20_000);
}
