//! Go's own client.

use std::path::Path;

use weir_tests::dialogue::{PATIENCE, client_program, run_tool};

use super::secure;

/// `tests/go/nethttp`, which `xtask/setup.sh` builds.
#[test]
fn go_net_http_gets_everything_right_over_one_connection_of_http_2() {
    for behind in secure::BEHIND {
        let site = secure::Site::start(behind);
        let (base, address, ca) = (site.url(""), site.address().to_string(), site.authority.path("ca.pem"));
        // With what Go says of its connections, should there be more than one.
        let program = client_program("bin/nethttp");
        let arguments = ["GODEBUG=http2debug=1", &program.to_string_lossy(), &base, &address, &ca];
        let finished = run_tool(Path::new("/usr/bin/env"), &arguments, b"", PATIENCE * 6);
        assert_eq!(finished.stdout.trim(), "ok", "{behind:?}\n{}\n{}", finished.stderr, site.weir.story());
        site.spoke("HTTP/2.0");
    }
}
