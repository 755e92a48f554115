//! Access logs on a disk that hangs. Needs root.

use weir_tests::dialogue::{Backend, ONE_POOL, Setup, until};
use weir_tests::hung::Hung;

/// It waited for the disk before it served anybody.
#[test]
fn a_log_on_a_disk_that_hangs_keeps_nobody_from_being_served_when_weir_starts() {
    let backend = Backend::saying("ok");
    let folder = std::env::temp_dir().join(format!("weir-hung-log-{}", backend.address().port()));
    std::fs::create_dir(&folder).expect("a folder");
    let hung = Hung::at(&folder);
    let config = format!("[log]\naccess = \"@logs/access.log\"\n{ONE_POOL}health = \"off\"\n");
    let weir = Setup::of(&config).with("app", backend.address()).with("logs", folder.display()).start();
    let mut client = weir.client("web");
    client.sends("GET /waits HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    client.receives_status(200);
    assert_eq!(weir.metric("weir_access_log_waiting", &[("log", "main")]), 1.0, "{}", weir.story());
    drop(hung);
    until("the line to be in its file", || {
        let text = std::fs::read_to_string(folder.join("access.log")).ok()?;
        text.contains("/waits").then_some(())
    });
    std::fs::remove_dir_all(&folder).expect("remove");
}
