//! Go's own client.

use weir_tests::dialogue::{PATIENCE, client_program, run_tool};

use super::secure;

/// `tests/go/nethttp`, which `xtask/setup.sh` builds.
#[test]
fn go_net_http_gets_everything_right_over_one_connection_of_http_2() {
    for behind in secure::BEHIND {
        let site = secure::Site::start(behind);
        let (base, address, ca) = (site.url(""), site.address().to_string(), site.authority.path("ca.pem"));
        let finished = run_tool(&client_program("bin/nethttp"), &[&base, &address, &ca], b"", PATIENCE * 6);
        assert_eq!(finished.succeeded().trim(), "ok", "{behind:?}\n{}", site.weir.story());
        site.spoke("HTTP/2.0");
    }
}
