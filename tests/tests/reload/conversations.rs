//! Exchanges that last longer than what they began under.

use std::sync::Arc;
use std::time::Duration;

use weir_tests::dialogue::{Authority, EVERY_VERSION, NO_HEALTH, Signal, Weir, free_address};
use weir_tests::versions::{Behind, Client, Front, Part, Turns, VersionedBackend, run};

fn config(drain: &str) -> String {
    format!("[runtime]\ndrain = \"{drain}\"\n{EVERY_VERSION}{NO_HEALTH}")
}

/// Waits until some turns more were taken.
async fn go_on(turns: &Turns, when: &str, weir: &Weir) {
    let wanted = turns.count() + 5;
    let reached = async {
        while turns.count() < wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(10), reached).await;
    assert!(in_time.is_ok(), "{when}: silent at turn {}\n{}", turns.count(), weir.story());
}

/// Takes turns in one exchange during `change`, and for longer than clients have to notice the end of a
/// connection; in all versions at once.
fn goes_on_over(change: impl Fn(&mut Weir) + Sync) {
    std::thread::scope(|scope| {
        for front in Front::ALL {
            let change = &change;
            scope.spawn(move || goes_on_in(front, change));
        }
    });
}

fn goes_on_in(front: Front, change: impl Fn(&mut Weir)) {
    let authority = Authority::new().signs("shop", &["shop.example"]);
    let backend = VersionedBackend::start(free_address(), Behind::Http1, &authority, "shop");
    let mut weir = authority.setup(&config("30s")).with("app", backend.address()).start();
    let address = weir.address(if front.is_tls() { "secure" } else { "plain" });
    let turns = Arc::new(Turns::default());
    run(Duration::from_secs(60), async {
        let mut client = Client::connect(front, &authority, address, "shop.example").await.expect("connects");
        let asked = client.ask("POST", "/echo", &[], vec![Part::Turns(turns.clone())]);
        let watched = async {
            go_on(&turns, &format!("{front:?} before"), &weir).await;
            change(&mut weir);
            for second in 0..4 {
                go_on(&turns, &format!("{front:?} {second} s after"), &weir).await;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            turns.stop();
        };
        let (answer, ()) = tokio::join!(asked, watched);
        let answer = answer.unwrap_or_else(|failed| panic!("{front:?}: {failed:?}"));
        assert_eq!(answer.content.len(), turns.count() * Turns::PIECE_BYTES, "{front:?}");
    });
}

#[test]
fn an_exchange_goes_on_over_a_reload_in_every_version() {
    goes_on_over(|weir| weir.reloads(&config("31s")));
}

#[test]
fn an_exchange_goes_on_in_the_old_process_of_an_upgrade_in_every_version() {
    goes_on_over(|weir| {
        let old = weir.pid();
        weir.signals_pid(old, Signal::USR2);
    });
}

#[test]
fn an_exchange_goes_on_while_the_process_waits_to_end_in_every_version() {
    goes_on_over(|weir| weir.signals(Signal::TERM));
}
