//! Tests of lines that the config defines, of which lines a log gets, and of several logs at once.

use std::collections::BTreeMap;

use proptest::prelude::*;
use weir_config::{Config, LogLines};
use weir_stats::table::{End, Rejected};
use weir_template::{Source, Variable};

use super::super::captured::Asked;
use super::super::form::Form;
use super::super::rules::Header;
use super::*;

/// Fields of a request by name.
struct Sent(BTreeMap<&'static str, Vec<u8>>);

impl Source for Sent {
    fn put(&self, variable: &Variable, out: &mut Vec<u8>) {
        match variable {
            Variable::Header(name) => out.extend_from_slice(self.0.get(&**name).map_or(b"", |it| it)),
            Variable::Host => out.extend_from_slice(b"shop.example"),
            Variable::Query => out.extend_from_slice(b"?id=\"1\""),
            _ => {}
        }
    }
}

fn config(log: &str) -> Config {
    let text = format!(
        "{log}\n[listener.web]\nbind = '127.0.0.1:80'\npool = 'app'\n[pool.app]\nbackends = ['10.0.0.1:80']\n"
    );
    weir_config::parse("weir.toml", &text).unwrap_or_else(|report| panic!("{report}"))
}

fn lines(keys: &str) -> LogLines {
    config(&format!("[log]\naccess = 'stdout'\n{keys}")).log.lines
}

fn rendered(keys: &str, record: &Record<'_>, sent: BTreeMap<&'static str, Vec<u8>>) -> String {
    let form = Form::of(&lines(keys));
    let mut asked = Asked::default();
    asked.add(form.variables());
    let mut captured = Captured::default();
    captured.note_request(&asked, &Sent(sent));
    let mut out = Vec::new();
    form.put(&mut Renderer::default(), &mut out, Said { record, captured: &captured });
    String::from_utf8(out).unwrap()
}

#[test]
fn a_line_says_what_it_is_written_to_say_and_a_dash_for_what_is_not_there() {
    let line = r#"line = '$client_ip:$client_port - [$time_common] "$method $target $protocol" $status $bytes_sent "$header.x-a" $host$query'"#;
    assert_eq!(
        rendered(line, &request(), BTreeMap::from([("x-a", b"1 \"2\"".to_vec())])),
        r#"192.0.2.7:40312 - [21/Nov/2026:22:05:09 +0000] "GET /api/cart?id=\x221\x22 HTTP/1.1" 200 2750 "1 \x222\x22" shop.example?id=\x221\x22"#
    );
    assert_eq!(
        rendered(line, &relayed(), BTreeMap::new()),
        r#"2001:db8::1:5 - [21/Nov/2026:22:05:09 +0000] "- - TCP" - 2750 "-" shop.example?id=\x221\x22"#
    );
    let facts = "line = '$time $time_unix $listener $route $pool $backend $backend_protocol $bytes_received $body_bytes_sent $retries $client_header $queue $connect $backend_header $total $end $cache $hedge $sqli $would_reject $tls_version $tls_cipher $server_name $request_id'";
    assert_eq!(
        rendered(facts, &request(), BTreeMap::new()),
        "2026-11-21T22:05:09.123Z 1795298709.123 web api app 10.0.0.1:8080 HTTP/2.0 431 2500 1 0.000120 0.000000 0.030250 0.069000 1.109999 done - - - - - - - 0f3c"
    );
    let mut would_reject = Reasons::default();
    would_reject.add(Rejected::RateLimited);
    would_reject.add(Rejected::DeniedPath);
    let noted = Record { would_reject, sqli: Some("query: a b"), ..request() };
    assert_eq!(
        rendered("line = '$would_reject $sqli'", &noted, BTreeMap::new()),
        "denied_path,rate_limited query:\\x20a\\x20b"
    );
}

#[test]
fn fields_of_its_own_stand_behind_those_of_every_line_or_alone() {
    let fields = "fields = { tenant = '$header.x-tenant', from = 'weir/$host', none = '$header.x-none', '@s' = '$status' }";
    let sent = || BTreeMap::from([("x-tenant", b"a\"\xff\n".to_vec())]);
    let line = rendered(fields, &request(), sent());
    assert!(
        line.ends_with(
            r#""user_agent":"curl/8","@s":200,"from":"weir/shop.example","tenant":"a\"\u00ff\u000a"}"#
        ),
        "{line}"
    );
    let alone = format!("{fields}\nstandard_fields = false");
    assert_eq!(
        rendered(&alone, &request(), sent()),
        r#"{"@s":200,"from":"weir/shop.example","tenant":"a\"\u00ff\u000a"}"#
    );
    let nothing = "fields = { a = '$header.x-none' }\nstandard_fields = false";
    assert_eq!(rendered(nothing, &request(), BTreeMap::new()), "{}");
}

/// The field up to `ender`, with its escapes undone, and the rest; `-` stands for an empty field.
fn field(rest: &str, ender: char) -> (Vec<u8>, &str) {
    let (field, rest) = rest.split_once(ender).unwrap_or_else(|| panic!("no {ender:?} in {rest:?}"));
    if field == "-" {
        return (Vec::new(), rest);
    }
    let mut bytes = Vec::new();
    let mut left = field.as_bytes();
    while let Some((first, behind)) = left.split_first() {
        left = behind;
        match first {
            b'\\' => {
                let hex = std::str::from_utf8(&behind[1..3]).unwrap();
                bytes.push(u8::from_str_radix(hex, 16).unwrap());
                left = &behind[3..];
            }
            byte => bytes.push(*byte),
        }
    }
    (bytes, rest)
}

proptest! {
    #[test]
    fn whatever_peers_send_each_value_ends_where_the_line_has_it_end(
        a in prop::collection::vec(any::<u8>(), 0..24),
        b in prop::collection::vec(any::<u8>(), 0..24),
        c in ".{0,12}",
        d in "[ |\"\\[\\];,a-]{0,12}",
    ) {
        let sent = BTreeMap::from([
            ("a", a.clone()), ("b", b.clone()), ("c", c.clone().into_bytes()), ("d", d.clone().into_bytes()),
        ]);
        let line = r#"line = '$header.a $status "$header.b" [$header.c] $header.d|$header.a;$header.d $end'"#;
        let line = rendered(line, &request(), sent.clone());
        prop_assert!(line.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{line:?}");
        let dashed = |value: &[u8]| if value == b"-" { Vec::new() } else { value.to_vec() };
        let (first, rest) = field(&line, ' ');
        prop_assert_eq!(first, dashed(&a));
        let rest = rest.strip_prefix("200 \"").unwrap();
        let (quoted, rest) = field(rest, '"');
        prop_assert_eq!(quoted, dashed(&b));
        let (bracketed, rest) = field(rest.strip_prefix(" [").unwrap(), ']');
        prop_assert_eq!(bracketed, dashed(c.as_bytes()));
        let (before_bar, rest) = field(rest.strip_prefix(' ').unwrap(), '|');
        prop_assert_eq!(before_bar, dashed(d.as_bytes()));
        let (before_semicolon, rest) = field(rest, ';');
        prop_assert_eq!(before_semicolon, dashed(&a));
        let (last, rest) = field(rest, ' ');
        prop_assert_eq!(last, dashed(d.as_bytes()));
        prop_assert_eq!(rest, "done");

        let fields = "fields = { a = '$header.a', b = 'x$header.b', c = '$header.c$header.d' }\nstandard_fields = false";
        let json = rendered(fields, &request(), sent);
        let is_object = json.starts_with('{') && json.ends_with('}');
        prop_assert!(is_object, "{json}");
        prop_assert!(json.bytes().all(|byte| byte >= b' '), "{json:?}");
        prop_assert_eq!(quotes_outside_escapes(json.as_bytes()) % 4, 0);
    }
}

#[test]
fn a_log_gets_the_lines_that_it_asks_for_and_the_sample_is_the_same_everywhere() {
    let judged =
        |keys: &str, record: &Record<'_>| Rules::of(&AccessTarget::Stdout, &lines(keys)).judge(record);
    let slow = request();
    let failed = Record { status: Some(502), end: End::ConnectFailed, ..request() };
    let answered = Record { status: Some(301), end: End::Responded, ..request() };
    let fast = Record { timers: Timers::default(), ..request() };
    for (keys, expected) in [
        ("", [true, true, true, true]),
        ("status = ['5xx', 301]", [false, true, true, false]),
        ("slower_than = '1s'", [true, true, true, false]),
        ("except_done = true", [false, true, false, false]),
        ("status = '3xx'\nexcept_done = true", [false, true, true, false]),
        ("share = 0.0", [false, false, false, false]),
        ("share = 0.0\nkeep_errors = true", [false, true, false, false]),
    ] {
        let written = [&slow, &failed, &answered, &fast].map(|it| judged(keys, it) == LineVerdict::Written);
        assert_eq!(written, expected, "{keys}");
    }
    let ids: Vec<String> = (0..10_000).map(|number| format!("id-{number}")).collect();
    let sampled = |share: &str| -> Vec<bool> {
        let rules = Rules::of(&AccessTarget::Stdout, &lines(&format!("share = {share}")));
        let is_in = |id: &String| {
            rules.judge(&Record { request_id: Some(id.as_bytes()), ..request() }) == LineVerdict::Written
        };
        ids.iter().map(is_in).collect()
    };
    let (tenth, half) = (sampled("0.1"), sampled("0.5"));
    let count = tenth.iter().filter(|is_in| **is_in).count();
    assert!((800..1200).contains(&count), "{count} of 10000");
    assert!(tenth.iter().zip(&half).all(|(small, large)| !small || *large), "a sample lies in a larger one");
}

#[test]
fn a_message_of_syslog_has_the_header_of_its_rfc() {
    let header = |target: &str, syslog: &str| {
        let config = config(&format!("[log]\naccess = '{target}'\nsyslog = {{ {syslog} }}"));
        let header = Header::of(&config.log.access, &config.log.lines).unwrap();
        let mut out = Vec::new();
        header.put(&mut Renderer::default(), &mut out, request().time);
        String::from_utf8(out).unwrap()
    };
    let pid = std::process::id();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host = host.trim_ascii();
    assert_eq!(
        header("syslog:udp:192.0.2.1:514", ""),
        format!("<134>1 2026-11-21T22:05:09.123Z {host} weir {pid} access - ")
    );
    assert_eq!(
        header("syslog", "facility = 'daemon', severity = 'notice', app_name = 'edge'"),
        format!("<29>Nov 21 22:05:09 edge[{pid}]: ")
    );
    assert_eq!(
        header("syslog:tcp:192.0.2.1:601", "form = 'rfc3164'"),
        format!("<134>Nov 21 22:05:09 {host} weir[{pid}]: ")
    );
}

#[test]
fn a_log_that_goes_and_comes_back_is_the_same_one_and_loses_nothing() {
    let (main, audit) = (Scratch::new("main"), Scratch::new("audit"));
    let with_audit = config(&format!(
        "[log]\naccess = '{}'\n[access_log.audit]\ntarget = '{}'\nline = '$end'",
        main.0.display(),
        audit.0.display()
    ));
    let without = config(&format!("[log]\naccess = '{}'", main.0.display()));
    let log = AccessLog::start(&with_audit.log, &with_audit.access_logs).unwrap();
    let logs = Logs::compile(&with_audit, &with_audit.listeners[0], &log).unwrap();
    assert_eq!(logs.names(None), ["main", "audit"]);
    let worker = log.for_worker();
    let (cells, captured) = (ListenerCells::default(), Captured::default());
    let write = || worker.write_to(&logs, None, &request(), &captured, &cells);
    write();
    log.reconfigure(&without.log, &without.access_logs).unwrap();
    // A session that began before the reload still writes to both.
    write();
    worker.flush();
    assert!(Logs::compile(&without, &without.listeners[0], &log).is_none());
    assert!(log.finish(LONG));
    // The file is rotated while the log is not in the config.
    let rotated = Scratch(audit.0.with_extension("1"));
    std::fs::rename(&audit.0, &rotated.0).unwrap();
    log.reopen();
    log.reconfigure(&with_audit.log, &with_audit.access_logs).unwrap();
    let again = Logs::compile(&with_audit, &with_audit.listeners[0], &log).unwrap();
    let same = again.of(None).zip(logs.of(None)).all(|(one, other)| Arc::ptr_eq(one, other));
    assert!(same, "it was opened a second time");
    write();
    worker.flush();
    assert!(log.finish(LONG));
    assert_eq!((main.lines(), rotated.lines(), audit.lines()), (3, 2, 1));
    assert_eq!(std::fs::read_to_string(&rotated.0).unwrap(), "done\ndone\n");
}

#[test]
fn a_log_that_cannot_be_opened_leaves_all_as_they_were() {
    let main = Scratch::new("whole");
    let good = config(&format!("[log]\naccess = '{}'", main.0.display()));
    let log = AccessLog::start(&good.log, &good.access_logs).unwrap();
    let bad = config("[log]\naccess = 'off'\n[access_log.audit]\ntarget = '/nonexistent/audit.log'");
    let error = log.reconfigure(&bad.log, &bad.access_logs).unwrap_err();
    assert!(error.to_string().contains("`audit`"), "{error}");
    assert!(log.for_worker().enabled());
}
