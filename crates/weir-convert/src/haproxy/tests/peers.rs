//! Peers, and the tables that are shared with them.

use super::{DirectiveVerdict, NoFiles, checked, converted, verdict};
use crate::{SourceFiles, haproxy::convert};

/// Two tables, of which one is shared, with peers as in these lines.
fn with(peers: &str) -> String {
    format!(
        "global\n localpeer two\ndefaults\n mode http\n{peers}frontend web\n bind :80\n\
         stick-table type ip size 1m store http_err_rate(1m)\n http-request track-sc0 src table all\n\
         http-request track-sc1 src\n\
         http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt 9 }}\n\
         http-request deny deny_status 429 if {{ sc_http_err_rate(1) gt 3 }}\n default_backend app\n\
         backend all\n stick-table type ip size 1m store http_req_rate(10s) peers mates\n\
         backend app\n server a 10.0.0.1:80\n"
    )
}

#[test]
fn limits_of_a_shared_table_are_counted_together_and_all_others_by_each_alone() {
    let text =
        with("peers mates\n peer one 10.0.0.1:1024\n peer two 10.0.0.2:1024\n peer three [::1]:1024\n");
    let body = checked(&text);
    assert!(
        body.contains(
            "[peers]\nbind = \"10.0.0.2:1024\"\naddresses = [\"10.0.0.1:1024\", \"10.0.0.2:1024\", \"[::1]:1024\"]\nsecret_file = \"/etc/weir/peers.secret\"\n"
        ),
        "{body}"
    );
    assert!(body.contains("# The secret is yours to make"), "{body}");
    assert!(
        body.contains(
            "rate_limit = [{ rate = \"9/10s\", burst = 9 }, { rate = \"3/1m\", burst = 3, statuses = \"4xx\", share = false }]"
        ),
        "{body}"
    );
    for (line, expected, told) in [
        (2, DirectiveVerdict::Exact, "which of the `peers`"),
        (5, DirectiveVerdict::Approximate, "WRITE /etc/weir/peers.secret BEFORE WEIR STARTS"),
        (6, DirectiveVerdict::Exact, "`peers.addresses`"),
        (7, DirectiveVerdict::Exact, "`peers.bind`"),
        (11, DirectiveVerdict::Approximate, "each Weir counts alone (`share = false`)"),
        (18, DirectiveVerdict::Approximate, "all Weirs count together (`[peers]`)"),
    ] {
        let (verdict, note) = verdict(&text, line);
        assert!(verdict == expected && note.contains(told), "line {line}: {verdict:?} {note}");
    }
}

#[test]
fn a_table_of_the_peers_themselves_is_shared() {
    let text = "defaults\n mode http\npeers mates\n bind :1024 ssl crt /etc/a.pem\n default-server ssl ca-file /etc/ca.pem\n \
                server one\n server two two.example:1024\n table rates type ip size 1m store http_req_rate(10s)\n\
                frontend web\n bind :80\n http-request track-sc0 src table mates/rates\n\
                http-request deny deny_status 429 if { sc0_http_req_rate(mates/rates) gt 9 }\n default_backend app\n\
                backend app\n server a 10.0.0.1:80\n";
    let body = checked(text);
    assert!(body.contains("[peers]\nbind = \"0.0.0.0:1024\"\naddresses = \"two.example:1024\"\n"), "{body}");
    assert!(body.contains("rate_limit = { rate = \"9/10s\", burst = 9 }"), "{body}");
    let (of_bind, told) = verdict(text, 4);
    assert!(of_bind == DirectiveVerdict::Approximate && told.contains("encrypted by the secret"), "{told}");
}

#[test]
fn certificates_that_both_sides_verify_are_those_of_the_weirs() {
    let peers = |bind: &str, server: &str| {
        with(&format!(
            "peers mates\n default-bind {bind}\n default-server {server}\n peer one 10.0.0.1:1024\n peer two 10.0.0.2:1024\n"
        ))
    };
    let bind = "ssl crt /etc/two.pem ca-file /etc/ca.pem crl-file /etc/crl.pem verify required";
    let text =
        peers(bind, "ssl crt /etc/two.pem ca-file /etc/ca.pem verify required verifyhost weirs.example");
    assert!(
        checked(&text).contains(
            "[peers.tls]\ncert = \"/etc/two.pem\"\nkey = \"/etc/two.pem\"\nca = \"/etc/ca.pem\"\ncrl = \"/etc/crl.pem\"\nname = \"weirs.example\"\n"
        )
    );
    let (of_bind, told) = verdict(&text, 6);
    assert!(of_bind == DirectiveVerdict::Approximate && told.contains("`peers.tls`"), "{told}");
    for server in ["ssl verify none", "ssl crt /etc/two.pem ca-file /etc/ca.pem"] {
        let text = peers(bind, server);
        assert!(!checked(&text).contains("[peers.tls]"));
        let (_, told) = verdict(&text, 6);
        assert!(told.contains("the `name` that all are for"), "{told}");
    }
}

/// A machine with a name.
struct Host(&'static str);

impl SourceFiles for Host {
    fn matching(&self, pattern: &str) -> Vec<String> {
        NoFiles.matching(pattern)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        NoFiles.read(path)
    }

    fn folder(&self) -> &str {
        ""
    }

    fn host_name(&self) -> String {
        self.0.to_owned()
    }
}

#[test]
fn which_peer_it_is_says_the_file_or_the_name_of_the_host_and_else_the_operator_is_asked() {
    let peers = "peers mates\n peer one 10.0.0.1:1024\n peer two 10.0.0.2:1024\n";
    let bind = |text: &str, host: &'static str| {
        let body = convert(text, &Host(host)).expect("converted").body;
        body.lines().skip_while(|line| *line != "[peers]").nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(bind(&with(peers), "one"), "bind = \"10.0.0.2:1024\"");
    let unsaid = with(peers).replace(" localpeer two\n", "");
    assert_eq!(bind(&unsaid, "one"), "bind = \"10.0.0.1:1024\"");
    assert_eq!(bind(&unsaid, "other"), "bind = \"0.0.0.0:1024\"");
    let (_, told) = verdict(&unsaid, 4);
    assert!(told.contains("which of them this Weir is, is not known here"), "{told}");
    let several = unsaid.replace("10.0.0.2:1024", "10.0.0.1:1025");
    assert_eq!(bind(&several, "other"), "bind = \"10.0.0.1:1024\"");
    let (unknown, told) = verdict(&several, 4);
    assert!(unknown == DirectiveVerdict::Unsupported && told.contains("SET `peers.bind`"), "{told}");
}

#[test]
fn peers_that_share_no_limit_are_left_out_and_say_so() {
    for (peers, expected, told) in [
        (
            "peers other\n peer two 10.0.0.2:1024\n",
            DirectiveVerdict::Approximate,
            "no table of theirs has rates",
        ),
        ("peers mates\n disabled\n peer two 10.0.0.2:1024\n", DirectiveVerdict::Exact, "it is disabled"),
    ] {
        let text = with(peers);
        let body = checked(&text);
        assert!(!body.contains("[peers]") && !body.contains("share ="), "{body}");
        let (verdict, note) = verdict(&text, 5);
        assert!(verdict == expected && note.contains(told), "{verdict:?} {note}");
    }
    let unused =
        with("peers mates\n peer two 10.0.0.2:1024\n").replace("sc_http_req_rate(0)", "sc_http_err_rate(1)");
    assert!(!checked(&unused).contains("[peers]"));
    // Two groups: Weirs have one.
    let two = with("peers mates\n peer two 10.0.0.2:1024\npeers more\n peer two 10.0.0.2:1025\n")
        .replace("http_err_rate(1m)", "http_err_rate(1m) peers more");
    assert!(checked(&two).contains("statuses = \"4xx\", share = false }"));
    let (second, told) = verdict(&two, 7);
    assert!(second == DirectiveVerdict::Unsupported && told.contains("one group"), "{told}");
    assert_eq!(converted(&two).body.matches("[peers]").count(), 1);
}
