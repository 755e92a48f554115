//! Every key of the table is read, has an effect, and is written again.

use crate::keys::{Built, Kind, all_tables};
use crate::parse;

use super::*;

/// Says every key that is built, each with something other than its default where that can be told apart.
const EVERYTHING: &str = r#"
        runtime = { workers = 1, drain = "1s", memory = "1GiB" }
        admin = { bind = "127.0.0.1:1", token_file = "t" }
        log = { access = "stderr", format = "combined", level = "debug" }
        cache = { memory = "32MiB" }
        [listener.a]
        protocol = "http"
        bind = "127.0.0.1:80"
        pool = "p"
        accept_proxy = "10.0.0.0/8"
        trusted_proxies = "10.0.0.0/8"
        max_connections = 5
        max_connections_per_client = 4
        merge_slashes = true
        abort_on_close = true
        rate_limit = { rate = "5/10s", burst = 7, key = "listener", at = "edge", dry_run = true, status = 503 }
        concurrency_limit = { max = 9, key = "cookie:c" }
        deny_address = "10.0.0.0/8"
        allow_address = "10.1.0.0/16"
        deny_method = "DELETE"
        allow_method = "!TRACE"
        deny_path = "/a/*"
        allow_path = "*.html"
        deny_user_agent = "*bot*"
        allow_user_agent = "~^Mozilla"
        compress = { codings = ["gzip", "br", "zstd"], types = ["text/html", "font/*"], min = "2KiB", level = { zstd = 4, br = 5, gzip = 6 } }
        http = ["h2", "h3"]
        timeout = { client_idle = "1s", header = "1s", handshake = "1s", connect = "1s", backend = "1s", client_body = "1s" }
        limits = { request_line = "1KiB", header = "2KiB", header_count = 9, min_body_rate = "1B/s", streams = 9, control_frames = 99 }
        [listener.a.tls]
        certificates = [{ cert = "c.pem", key = "c.key", ocsp = "c.ocsp" }]
        client_ca = "ca.pem"
        client_auth = "optional"
        min_version = "1.3"
        ciphers = "strong"
        tickets = false
        acme = { directory = "https://ca.example/d", domains = ["a.example"], contact = "mailto:a@a.example", challenges = "tls-alpn-01", ca = "ca.pem", store = "s" }
        [[listener.a.route]]
        name = "r"
        host = "h"
        path = "/p/*"
        method = "GET"
        header = { x = "1" }
        pool = "p"
        add_request_header = { y = "1" }
        add_response_header = { z = "1" }
        rewrite = { prefix = "/q/" }
        body_limit = "1B"
        rate_limit = [{ rate = "1/m", ipv4_prefix = 24, ipv6_prefix = 56, keys = 1000 }, { rate = "1/s", key = "header:X-User", at = "origin" }]
        concurrency_limit = [{ max = 9, at = "origin", dry_run = true, status = 503 }, { max = 8, key = "route" }]
        deny_address = "11.0.0.0/8"
        allow_address = "11.1.0.0/16"
        deny_method = "DELETE"
        allow_method = "!TRACE"
        deny_path = "/a/*"
        allow_path = "*.html"
        deny_user_agent = "*bot*"
        allow_user_agent = "~^Mozilla"
        sqli = "block"
        sqli_body = "1KiB"
        compress = false
        [listener.a.route.cache]
        ttl = "1m"
        ttl_max = "1h"
        negative_ttl = "5s"
        query_without = "utm_*"
        query_sort = true
        key_headers = "x-tenant"
        key_cookies = "lang"
        set_cookie = "strip"
        stale_while_revalidate = "30s"
        stale_if_error = "2h"
        object_max = "1MiB"
        collapse_timeout = "2s"
        honour_client = false
        [[listener.a.route]]
        host = "k"
        pool = "p"
        [listener.a.route.cache]
        ignore_query = true
        [[listener.a.route]]
        host = "l"
        pool = "p"
        [listener.a.route.cache]
        query_only = ["id", "page"]
        [[listener.a.route]]
        host = "i"
        redirect = { to = "/", status = 301 }
        [[listener.a.route]]
        host = "j"
        respond = { status = 404, body = "b", content_type = "text/html" }
        [listener.b]
        protocol = "tcp"
        bind = "127.0.0.1:81"
        pool = "q"
        [[listener.b.route]]
        sni = "s"
        pool = "q"
        [listener.c]
        bind="127.0.0.1:82"
        pool="p"
        # Without spaces: `early_data` cannot be without it, so it is not taken out below.
        http=["h3"]
        [listener.c.tls]
        certificates=[{cert="c.pem",key="c.key"}]
        early_data = true
        [pool.q]
        backends = ["a:1"]
        tls = { ca = "ca.pem", cert = "b.pem", key = "b.key", server_name = "n", verify = true }
        [pool.p]
        backends = [{ address = "a:1", weight = 3, max_connections = 2, backup = true }, "b:1"]
        balance = "hash"
        hash = { key = "path", bounded = 2.0 }
        send_proxy = "v1"
        retry = { attempts = 1, on = "connect", non_idempotent = true }
        queue = { max = 1, timeout = "2s" }
        sticky = { cookie = "c" }
        slow_start = "1s"
        keep_alive = { max = 1, idle = "1s" }
        [pool.p.health]
        check = "http"
        path = "/h"
        host = "h"
        expect_status = "200"
        interval = "5s"
        fast_interval = "1s"
        timeout = "2s"
        rise = 3
        fall = 4
        passive = { errors = 1, within = "1s", eject = "1s", max_ejected = 0.1 }
        last_resort = "all"
    "#;

#[test]
fn every_key_of_the_table_changes_the_config_and_is_written_again() {
    let config = parse("everything", EVERYTHING).unwrap_or_else(|report| panic!("{report}"));
    let written = to_toml(&config);
    for table in all_tables() {
        for key in table.keys.iter().filter(|key| key.built == Built::Yes) {
            let as_key = written.contains(&format!("{} = ", key.name));
            let as_header = written.lines().any(|line| line.starts_with('[') && line.contains(key.name));
            assert!(as_key || as_header, "`{}` of {} is not in\n{written}", key.name, table.path);
        }
    }
    assert_eq!(parse("written", &written), Ok(config));
}

#[test]
fn without_any_one_of_its_keys_the_config_is_another() {
    let whole = parse("everything", EVERYTHING).unwrap();
    let mut compared = 0;
    for (name, rest) in
        EVERYTHING.split('\n').filter_map(|line| line.trim().split_once(" = ").map(|(name, _)| (name, line)))
    {
        let required = all_tables().iter().any(|table| table.key(name).is_some_and(|key| key.required));
        if required
            || matches!(name, "protocol" | "pool" | "host" | "redirect" | "respond" | "check" | "path")
            || matches!(name, "client_ca")
        {
            continue;
        }
        let without = EVERYTHING.replacen(rest, "", 1);
        let without = parse("without", &without).unwrap_or_else(|report| panic!("without {name}:\n{report}"));
        assert_ne!(whole, without, "`{name}` has no effect");
        compared += 1;
    }
    assert!(compared > 25, "only {compared} keys were compared");
}

#[test]
fn every_key_that_is_not_built_is_refused_by_name() {
    let mut refused = 0;
    for (header, path) in [
        ("[listener.a]\nbind = \"127.0.0.1:1\"\n", "[listener.NAME]"),
        (
            "[listener.a]\nbind = \"127.0.0.1:1\"\n[[listener.a.route]]\nrespond = {}\n",
            "[[listener.NAME.route]]",
        ),
        ("[listener.a]\nbind = \"127.0.0.1:1\"\n[pool.p]\nbackends = [\"a:1\"]\n", "[pool.NAME]"),
    ] {
        let table = all_tables().into_iter().find(|table| table.path == path).unwrap();
        for key in table.keys.iter().filter(|key| key.built != Built::Yes) {
            for value in ["\"x\"", "[\"x\"]", "{ a = 1 }", "1", "[]"] {
                let report = parse("a.toml", &format!("{header}{} = {value}\n", key.name)).unwrap_err();
                assert_eq!(report.problems.len(), 1, "{report}");
                let message = &report.problems[0].message;
                assert!(
                    message.contains(key.name) && message.ends_with("is not built yet in this version"),
                    "{message}"
                );
                refused += 1;
            }
        }
    }
    assert!(refused >= 10, "only {refused} cases were tried");
    let unread = |table: &&crate::keys::Table| {
        table.keys.iter().any(|key| matches!(key.kind, Kind::Unread(_)) && key.built == Built::Yes)
    };
    assert!(!all_tables().iter().any(unread), "a key that is built must be read");
}
