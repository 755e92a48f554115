//! Disks that fail, hang or lie below the bodies that wait in files.

use std::fs::OpenOptions;

use weir_tests::dialogue::{Backend, ScriptedBackend, Setup, Weir, pattern, tool, until};

use super::{
    BIG, MIB, backend, begins, config, counted, files_of, folder, nothing_is_left, occupied,
    others_are_served, refused, summed,
};

/// Somebody truncates the file, as a disk that breaks would, while the request waits in line.
#[test]
fn what_can_not_be_read_back_is_an_error_of_ours_and_not_the_backends_fault() {
    let backend = ScriptedBackend::start();
    let (weir, mut first, mut other) = occupied(&backend);
    let mut client = begins(&weir, 8 * MIB);
    client.sends(pattern(1, 8 * MIB));
    weir.reaches("weir_queued_total", &[("pool", "app")], 1.0);
    let path = files_of(weir.pid()).pop().expect("its file");
    let file = OpenOptions::new().write(true).open(path).expect("opened");
    // What is written behind the cut leaves a hole, which is read without an error.
    let written = || file.metadata().expect("its length").len() as f64;
    until("all to be written", || (written() == weir.metric("weir_buffer_file_bytes", &[])).then_some(()));
    file.set_len(MIB as u64).expect("shorter");
    first.answers(200, &[], "");
    assert_eq!(other.receives_response().status, 200);
    assert!(first.receives_to_the_end().len() < 2 * MIB);
    client.receives_status(500);
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "buffer_lost")], 1.0);
    assert_eq!((refused(&weir, "lost"), counted(&weir, "weir_backend_failures_total")), (1.0, 0.0));
    nothing_is_left(&weir);
}

/// Weir under strace, which has calls to the disk fail or take long.
fn with_faults(backend: &Backend, faults: &[&str], more: &str) -> Weir {
    let strace = tool("strace", "strace").display().to_string();
    let faults: Vec<String> = faults.iter().map(|fault| format!("inject={fault}")).collect();
    let mut under = vec![strace.as_str(), "-f", "-qqq", "-o", "/dev/null", "-e", "trace=pwrite64,pread64"];
    for fault in &faults {
        under.extend(["-e", fault]);
    }
    let config = config("4GiB", "").replace("pool = \"app\"\n", &format!("pool = \"app\"\n{more}\n"));
    let setup = Setup::of(&config).with("files", folder().display());
    setup.with("app", backend.address()).under(&under).start()
}

#[test]
fn a_disk_that_hangs_keeps_only_those_waiting_whose_bodies_are_on_it() {
    let backend = backend();
    let weir = with_faults(&backend, &["pwrite64:delay_enter=2s"], "");
    let mut uploader = begins(&weir, MIB);
    uploader.sends(pattern(1, MIB));
    weir.reaches("weir_buffer_files", &[], 1.0);
    others_are_served(&weir);
    assert_eq!(weir.metric("weir_buffer_files", &[]), 1.0, "it is still on its way");
    assert!(backend.requests().iter().all(|request| request.method == "GET"));
    uploader.resets();
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "client_closed")], 1.0);
    others_are_served(&weir);
    nothing_is_left(&weir);
}

/// The client sends all it has; that nobody reads it is not its fault.
#[test]
fn who_waits_too_long_for_a_disk_that_hangs_is_told_so() {
    let backend = backend();
    let timeout = "timeout = { client_body = \"300ms\" }";
    let weir = with_faults(&backend, &["pwrite64:delay_enter=5s"], timeout);
    let mut uploader = begins(&weir, 4 * MIB);
    let _ = uploader.tries_to_send(pattern(1, 4 * MIB));
    uploader.receives_status(500);
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "buffer_lost")], 1.0);
    nothing_is_left(&weir);
}

#[test]
fn a_disk_that_fails_in_the_middle_changes_no_byte() {
    let backend = backend();
    let faults = ["pwrite64:error=EINTR:when=2+5", "pread64:error=EINTR:when=20+4"];
    let weir = with_faults(&backend, &faults, "");
    let body = pattern(2, 4 * MIB);
    for (number, faults) in [&faults[..], &["pwrite64:error=EIO:when=5"]].into_iter().enumerate() {
        let weir = if number == 0 { &weir } else { &with_faults(&backend, faults, "") };
        let mut client = begins(weir, body.len());
        client.sends(&body);
        assert_eq!(client.receives_status(200).text(), summed(&body), "{faults:?}");
        assert_eq!(refused(weir, "disk"), number as f64);
        assert_eq!(counted(weir, "weir_buffered_requests_total"), 1.0 - number as f64);
        nothing_is_left(weir);
    }
}

#[test]
fn a_response_that_can_not_be_read_back_is_broken_off() {
    let backend = backend();
    let weir = with_faults(&backend, &["pread64:error=EIO:when=20"], "");
    let mut client = weir.client("web");
    client.sends("GET /big HTTP/1.1\r\nhost: a\r\n\r\n");
    weir.reaches("weir_read_ahead_responses_total", &[("pool", "app")], 1.0);
    client.receives_until("\r\n\r\n");
    assert!(client.receives_to_the_end().len() < BIG);
    weir.reaches("weir_ends_total", &[("listener", "web"), ("reason", "buffer_lost")], 1.0);
    assert_eq!((refused(&weir, "lost"), counted(&weir, "weir_backend_failures_total")), (1.0, 0.0));
    nothing_is_left(&weir);
}
