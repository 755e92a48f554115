//! What an authority says is shown to people.

use weir_tests::dialogue::free_address;

use super::renewal::{before, front};
use super::{CONFIG, Pebble, Ports, certificate, comes_to, mirror, setup};

/// An authority that has its own words steer the terminal of whoever looks.
#[test]
fn words_of_an_authority_do_not_steer_the_terminal_of_who_reads_them() {
    let (ports, backend) = (Ports::free(), mirror());
    let pebble = Pebble::running(ports);
    let address = free_address();
    let refusing = r#"[[listener.ca.route]]
path = "/sign-me-up"
respond = { status = 403, content_type = "application/problem+json", body = '{"type": "urn:ietf:params:acme:error:unauthorized", "detail": "\u001b]0;title\u0007first\nweir: second"}' }
[[listener.ca.route]]
path = "/dir""#;
    let config = front(address, "2100-01-01T00:00:00Z", "2100-01-02T00:00:00Z")
        .replace("[[listener.ca.route]]\npath = \"/dir\"", refusing);
    let _authority = before(&pebble, address, &config);
    let weir = setup(CONFIG, ports, &pebble, &backend)
        .with("directory", format!("https://localhost:{}/dir", address.port()))
        .start();
    comes_to(&weir, "refused", 1.0);
    let said = certificate(&weir, "secure")["acme"]["error"].clone();
    assert!(said.as_str().is_some_and(|said| said.contains("title") && !said.contains('\n')), "{said}");
    let status = weir.command(&["status"]);
    let shown = status.succeeded();
    assert!(shown.contains("\\u{1b}]0;title\\u{7}first weir: second"), "{shown:?}");
    assert!(!shown.contains(['\u{1b}', '\u{7}']), "{shown:?}");
}
