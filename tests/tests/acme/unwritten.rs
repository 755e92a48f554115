//! A store that can't be written: authorities count what they issue, so nothing is ordered to be thrown away.

use std::path::PathBuf;

use weir_tests::dialogue::Weir;

use super::{CONFIG, Pebble, Ports, asked, certificate, comes_to, is_issued, mirror, orders, setup, shown};

/// The file that the certificate is to be in.
fn file(weir: &Weir) -> PathBuf {
    PathBuf::from(certificate(weir, "secure")["file"].as_str().expect("a file"))
}

/// How often an authority has looked whether a domain is ours.
fn looks(weir: &Weir) -> f64 {
    weir.metric("weir_requests_total", &[("listener", "plain")])
}

#[test]
fn nothing_is_ordered_that_there_is_no_room_for() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble = Pebble::away(ports, false);
    let weir = setup(CONFIG, ports, &pebble, &backend).start();
    comes_to(&weir, "away", 1.0);
    // No file can be made where a folder is, whoever tries.
    let next = file(&weir).with_extension("next");
    std::fs::create_dir_all(next.join("full")).expect("a folder");
    pebble.starts();
    comes_to(&weir, "store", 1.0);
    assert_eq!(looks(&weir), 0.0, "an order was placed: {}", weir.stderr());
    std::fs::remove_dir_all(next).expect("remove");
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert!(looks(&weir) >= 2.0 && orders(&weir, "issued") == 1.0, "at least one for each domain");
}

#[test]
fn what_came_and_cannot_be_written_is_served_and_not_ordered_again() {
    let (ports, backend) = (Ports::free(), mirror());
    let mut pebble = Pebble::away(ports, false);
    let mut weir = setup(CONFIG, ports, &pebble, &backend).start();
    comes_to(&weir, "away", 1.0);
    let file = file(&weir);
    std::fs::create_dir_all(file.join("in the way")).expect("a folder");
    pebble.starts();
    comes_to(&weir, "store", 1.0);
    assert!(asked(&weir, &pebble, "shop.example").succeeded().ends_with("status 200"));
    let (before, first) = (shown(&weir, "shop.example"), looks(&weir));
    // A reload tries again, and another one has other listeners serve it.
    assert_eq!(weir.command(&["reload"]).code, 0);
    comes_to(&weir, "store", 2.0);
    weir.reloads(&CONFIG.replace("health = \"off\"", "health = \"off\"\nretry = { attempts = 0 }"));
    comes_to(&weir, "store", 3.0);
    assert_eq!((shown(&weir, "shop.example"), looks(&weir)), (before.clone(), first));
    let order = certificate(&weir, "secure")["acme"].clone();
    let said = order["error"].as_str().unwrap_or_default();
    assert!(order["state"] == "failing" && said.contains("is served, and can't be written"), "{order}");
    std::fs::remove_dir_all(&file).expect("remove");
    assert_eq!(weir.command(&["reload"]).code, 0);
    is_issued(&weir, "secure");
    assert_eq!((shown(&weir, "shop.example"), looks(&weir)), (before, first));
    let written = std::fs::read_to_string(&file).expect("it is there");
    assert!(written.contains("PRIVATE KEY") && !written.ends_with(' '), "{} bytes", written.len());
}
