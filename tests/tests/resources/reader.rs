//! Nobody reads what Weir says on standard error.

use weir_tests::dialogue::{Backend, ONE_POOL, Setup, Signal};

/// A pipe as it is where whoever read it hangs: full, and with both ends open.
const FULL_PIPE: &str = "mkfifo full && exec 2<>full && head -c 65536 /dev/zero >&2 && exec \"$@\"";

#[test]
fn a_log_that_nobody_reads_stops_neither_traffic_nor_control_nor_the_end() {
    let backend = Backend::saying("ok");
    let setup = Setup::of(ONE_POOL).with("app", backend.address());
    let mut weir = setup.under(&["sh", "-c", FULL_PIPE, "sh"]).start();
    for _ in 0..3 {
        // Each has a line.
        weir.signals(Signal::HUP);
        let finished = weir.command(&["reload"]);
        assert_eq!(finished.code, 0, "{finished:?}");
        let mut client = weir.client("web");
        client.sends("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        client.receives_status(200);
    }
    assert_eq!(weir.metric("weir_log_dropped_total", &[]), 0.0, "there is room for some in memory");
    assert_eq!(weir.stderr(), "", "the test reads another pipe");
    weir.signals(Signal::TERM);
    assert!(weir.exits().success());
}
