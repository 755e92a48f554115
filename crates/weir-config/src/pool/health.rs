//! `[pool.NAME.health]`: how Weir finds out which backends are up.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_balance::LastResort;

use super::passive::{self, Passive};
use crate::fields::{Fields, Value};
use crate::keys::{
    Each, HOUR, Key, Kind, Limit, Row, Shape, Word, count, duration, factor, list_or, map, millis, seconds,
    table as below, text, text_or, word,
};
use crate::protocol::Protocol;
use crate::report::{Findings, quote};
use crate::setting::{Part, Section as _, Setting as _, one, table, words};
use crate::units::{Refused, refuse, show_duration};
use crate::uses::Uses;
use crate::values::host::HOST_FIELD;
use crate::values::http::FIELD_VALUE;
use crate::values::path::PROBE_PATH;
use crate::values::probe::{
    AWAITED, EXPECTED, Expected, GRPC_SERVICE, Octets, PROBE_FIELD, PROBE_METHOD, SENT,
};

/// Most steps of a conversation.
const MOST_STEPS: usize = 32;

table! {
    /// How it is known which backends are up.
    pub struct Health at "[pool.NAME.health]" {
        /// What a probe does.
        check: Check;
        /// Port of the backend's address that probes go to.
        port: Option<u32> =
            count(Limit::optional(1, 65_535, "leave it out to probe the backend's own port"))
                .default("the backend's own")
                .also(&["check_port", "probe_port"]);
        /// Where probes ask, of pools that a listener of the kernel plane forwards to by `dsr` or `ipip`.
        at: Option<ProbedAt> =
            Key::new(Kind::Word(ProbedAt::WORDS, None))
                .default("\"vip\" unless `port` is none of the listener's, then \"backend\"")
                .also(&["connect_ip", "through", "via", "tunnel", "transparent", "so_mark", "fwmark"]);
        /// Between probes while nothing changes.
        interval: Duration =
            duration(Limit::new(seconds(2), millis(10), HOUR, "shorter probes are load, not knowledge"))
                .also(&["inter"]);
        /// Between probes while the state is changing.
        fast_interval: Duration =
            duration(Limit::new(millis(200), millis(10), HOUR, "never above `interval`"))
                .also(&["fastinter"]);
        /// Between probes while the backend is down and they stay bad.
        down_interval: Option<Duration> =
            duration(Limit::optional(millis(10), HOUR, "never below `timeout`: one probe ends before the next begins"))
                .default("as `interval`")
                .also(&["downinter"]);
        /// For one probe.
        timeout: Duration =
            duration(Limit::new(
                seconds(1),
                millis(1),
                HOUR,
                "never above `interval`: one probe ends before the next begins",
            ));
        /// Good probes in a row that bring a backend up.
        rise: u32 = count(Limit::new(2, 1, 100, "one good probe at least"));
        /// Bad probes in a row that take it down.
        fall: u32 = count(Limit::new(3, 1, 100, "one bad probe at least"));
        /// Which backends are tried, a few exchanges at a time, when probes say that all are down.
        last_resort: LastResort = word(LAST_RESORTS, "late").also(&["panic"]);
        /// Below this share of healthy ordinary backends all of them are used, healthy or not; where none is
        /// up that are all that can be tried, whatever `last_resort` says.
        panic_below: Option<f64> =
            factor(Limit::optional(0.01, 1.0, "a share of the pool, from 0.01 to 1"))
                .default("off")
                .also(&["panic_threshold", "healthy_panic_threshold"]);
        /// What becomes of sessions on a backend that its probes or its agent find down.
        on_down: OnDown =
            word(OnDown::WORDS, "keep").also(&["on_marked_down", "on-marked-down"]);
        /// A program beside each backend that is asked how much work it wants.
        agent: Option<Agent> =
            below(Agent::TABLE).default("off").also(&["agent_check", "agent-check"]);
        /// Ejection by the outcome of real traffic.
        passive: Option<Passive> = Key::new(Kind::TableOrOff(Passive::TABLE));
    }
}

/// The kind of a probe.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// Sends an HTTP request, and checks the status, and the body if an expectation is set.
    Http(HttpProbe),
    /// Uses gRPC's health protocol.
    Grpc(GrpcProbe),
    /// Connects, and holds a conversation if one is configured.
    Tcp(TcpProbe),
    /// Logs in.
    Mysql,
    /// Never probes: every backend counts as up.
    Off,
}

table! {
    /// A request, and the status must be in one of the ranges.
    #[derive(Eq, Hash)]
    pub struct HttpProbe {
        /// Path (and query) of an HTTP probe.
        path: String = text_or(&PROBE_PATH, "/").also(&["uri", "url"]);
        /// Method of an HTTP probe; it has no body.
        method: String = text_or(&PROBE_METHOD, "GET").also(&["meth"]);
        /// Host field of an HTTP probe, `:authority` of a gRPC one.
        host: Option<String> = text(&HOST_FIELD).default("the backend's address");
        /// Further header fields of an HTTP probe, metadata of a gRPC one.
        headers: BTreeMap<String, String> =
            map(&PROBE_FIELD, &FIELD_VALUE).also(&["header", "hdr"]);
        /// Statuses of a good HTTP probe, as inclusive ranges.
        expect_status: Vec<(u16, u16)> =
            list_or(Each::Text(&STATUS_RANGE), &["200-399"]).also(&["status", "expect"]);
        /// What is in the body of a good HTTP probe, within its first 64 KiB: a text, or `~` and a regular
        /// expression; with a leading `!` what is not.
        expect_body: Option<Expected> =
            text(&EXPECTED).default("any body is good").also(&["body", "string", "rstring", "match"]);
    }
}

/// The settings of a gRPC health probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct GrpcProbe {
    /// The service; `None` for the server as a whole.
    pub service: Option<String>,
    /// `:authority`; `None` for the backend's address.
    pub host: Option<String>,
    /// Metadata.
    pub headers: BTreeMap<String, String>,
}

table! {
    /// What a gRPC probe has that an HTTP probe has not.
    pub struct GrpcKeys {
        /// Which service a gRPC probe asks about.
        service: Option<String> = text(&GRPC_SERVICE).default("the server as a whole").also(&["grpc_service"]);
    }
}

table! {
    /// A conversation, where one is written down.
    #[derive(Default, Eq, Hash)]
    pub struct TcpProbe {
        /// What a TCP probe sends and waits for, one after the other.
        steps: Vec<Step> = Key::new(Kind::Many(Each::Table(Step::TABLE))).default("none: connects and closes");
    }
}

table! {
    /// One step of a TCP probe: sends, or waits, or first the one and then the other. `\r`, `\n`, `\t`, `\\`
    /// and `\xHH` are single bytes in both.
    #[derive(Eq, Hash)]
    pub struct Step at "steps = [{ … }]" {
        /// What is sent.
        send: Option<Octets> = text(&SENT).default("nothing").also(&["send_binary", "data"]);
        /// What must come next, within 16 KiB: a text, or `~` and a regular expression.
        expect: Option<Expected> =
            text(&AWAITED).default("nothing is waited for").also(&["receive", "string", "rstring", "binary"]);
    }
}

words! {
    /// Where probes ask.
    pub enum ProbedAt {
        Vip = "vip": "at each address of such listeners, by the way that clients' packets go to that backend",
        Backend = "backend": "at the backend's own address",
    }
}

words! {
    /// What becomes of sessions on a backend that went down.
    pub enum OnDown {
        Keep = "keep": "they go on as long as they can",
        EndSessions = "end-sessions": "they are ended at once",
    }
}

table! {
    /// A program beside each backend that answers with `up`, `down`, `drain`, `50%`, `maxconn:30` and the
    /// like in one line.
    #[derive(Eq)]
    pub struct Agent at "agent = { … }" {
        /// Its port, at the backend's address.
        port: u32 = count(Limit::optional(1, 65_535, "a port that it listens at")).required().also(&["agent_port"]);
        /// Between questions.
        interval: Duration =
            duration(Limit::new(seconds(2), millis(100), HOUR, "more often is load, not knowledge"))
                .also(&["inter", "agent_inter"]);
        /// What it is told first.
        send: Option<Octets> = text(&SENT).default("nothing: it speaks at once").also(&["agent_send"]);
    }
}

const LAST_RESORTS: &[Word] = &[
    Word::new("late", "those that accepted the last probe and did not answer it in time"),
    Word::new("all", "every one, whatever its probes say"),
    Word::new("off", "none: 503 at once"),
];

one!(
    LastResort,
    Value::Word(word) => LastResort::from_word(word),
    |it| Value::Word(it.word()),
    LastResort::default()
);

impl Part for Check {
    const ROWS: &'static [Row] = &[
        Row::Key(
            Key::new(Kind::Word(
                &[
                    Word::new("http", "ask for `path`, and look at the status"),
                    Word::new("grpc", "ask by gRPC's health protocol, in HTTP/2"),
                    Word::new("tcp", "connect, and go through `steps`"),
                    Word::new("mysql", "log in to the server"),
                    Word::new("off", "never probe: every backend counts as up"),
                ],
                None,
            ))
            .default(
                "\"http\" where only HTTP listeners use the pool, \"off\" where only udp ones do, \"mysql\" where only mysql ones do, \"off\" where none does, else \"tcp\"",
            )
            .also(&["type", "protocol", "mode"])
            .named("check", "What a probe does."),
        ),
        Row::Part(HttpProbe::ROWS),
        Row::Part(GrpcKeys::ROWS),
        Row::Part(TcpProbe::ROWS),
    ];

    fn of(fields: &Fields) -> Check {
        match fields.word("check") {
            "http" => Check::Http(HttpProbe::of(fields)),
            "grpc" => Check::Grpc(GrpcProbe {
                service: GrpcKeys::of(fields).service,
                host: Option::read(fields.holds("host").as_deref()),
                headers: BTreeMap::read(fields.holds("headers").as_deref()),
            }),
            "off" => Check::Off,
            "mysql" => Check::Mysql,
            _ => Check::Tcp(TcpProbe::of(fields)),
        }
    }

    fn put(&self, fields: &mut Fields) {
        fields.put("check", Some(Value::Word(self.word())));
        match self {
            Check::Http(probe) => probe.put(fields),
            Check::Grpc(probe) => {
                GrpcKeys { service: probe.service.clone() }.put(fields);
                fields.put("host", probe.host.write());
                fields.put("headers", probe.headers.write());
            }
            Check::Tcp(probe) => probe.put(fields),
            Check::Mysql | Check::Off => {}
        }
    }
}

impl Check {
    /// As written in the file.
    pub const fn word(&self) -> &'static str {
        match self {
            Check::Http(_) => "http",
            Check::Grpc(_) => "grpc",
            Check::Tcp(_) => "tcp",
            Check::Mysql => "mysql",
            Check::Off => "off",
        }
    }
}

static STATUS_RANGE: Shape =
    Shape::new("a status or a range", "200-399", |text| status_range(text).map(show_range)).or_number();

one!(
    (u16, u16),
    Value::Text(text) => status_range(text).ok(),
    |it| Value::Text(show_range(*it)),
    (200, 399)
);

pub(super) fn show_range((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

pub(super) fn status_range(text: &str) -> Result<(u16, u16), Refused> {
    let message = format!("{} is not a status or a range of them", quote(text));
    let number = |text: &str| {
        (text.len() == 3).then(|| text.parse::<u16>().ok()).flatten().filter(|n| (100..=599).contains(n))
    };
    if let [class @ b'1'..=b'5', b'x' | b'X', b'x' | b'X'] = text.as_bytes() {
        let class = char::from(*class);
        return refuse(message, format!("did you mean \"{class}00-{class}99\"?"));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first.trim()), number(last.trim())) {
        (Some(first), Some(last)) if first <= last => Ok((first, last)),
        (Some(first), Some(last)) => refuse(message, format!("did you mean \"{last}-{first}\"?")),
        _ => refuse(message, "expected statuses from 100 to 599, such as \"200\" or \"200-399\""),
    }
}

/// Fills in the default of `check`, and makes sure that no default is longer than its interval.
pub(super) fn assume(pool: &mut Fields, check: &'static str) {
    // `health = "off"` is short for a table that neither probes nor ejects.
    let said_off = matches!(pool.value("health"), Some(Value::Off));
    if said_off && let Some(entry) = pool.entries.iter_mut().find(|entry| entry.name == "health") {
        let mut off = Fields::new(Health::TABLE, entry.at);
        off.assume("passive", Value::Off);
        entry.value = Value::Table(off);
    }
    let Some(health) = pool.below_or_assumed("health", Health::TABLE) else { return };
    health.assume("check", Value::Word(if said_off { "off" } else { check }));
    let Some(Value::Duration(interval)) = health.holds("interval").map(|value| value.into_owned()) else {
        return;
    };
    for name in ["fast_interval", "timeout"] {
        if let Some(Value::Duration(default)) = health.unsaid(name) {
            health.assume(name, Value::Duration(default.min(interval)));
        }
    }
}

/// Checks a pool's `health`: times must be consistent, and keys must fit the kind of probe.
pub(super) fn check(fields: &Fields, health: &Health, pool: &str, uses: &Uses, findings: &mut Findings<'_>) {
    times(fields, health, findings);
    // The default check follows from the pool's users.
    let is_known = fields.get("check").is_some() || !uses.of(pool).is_empty();
    if is_known && !fields.is_bad("check") {
        keys_of_the_check(fields, health, pool, uses, findings);
    }
    if let Some(fields) = fields.table("passive") {
        passive::check(fields, findings);
    }
    panic(fields, pool, uses, findings);
    asks_vip(fields, pool, uses, findings);
}

/// Reports `at = "vip"` if packets reach no backend by its listener's address.
fn asks_vip(fields: &Fields, pool: &str, uses: &Uses, findings: &mut Findings<'_>) {
    let Some(entry) = fields.get("at").filter(|entry| matches!(entry.value, Value::Word("vip"))) else {
        return;
    };
    if uses.of(pool).iter().any(|by| by.is_answered_past) {
        return;
    }
    let hint = format!(
        "no listener forwards to `{pool}` by `forward = \"dsr\"` or `\"ipip\"` on the kernel plane: its backends have their own address alone"
    );
    findings.error(entry.at, "no probe can ask at the listener's address", hint);
}

/// Reports contradictions with `panic_below`.
fn panic(fields: &Fields, pool: &str, uses: &Uses, findings: &mut Findings<'_>) {
    let Some(entry) = fields.get("panic_below") else { return };
    if let Some(last) = fields.get("last_resort") {
        let hint = format!("where none is up, `panic_below` ({}) has all tried", findings.place(entry.at));
        match last.value {
            Value::Word("all") | Value::Bad => {}
            _ => findings.error(last.at, "`last_resort` contradicts `panic_below`", hint),
        }
    }
    if let Some(by) = uses.first(pool, |protocol| protocol == Protocol::Mysql) {
        let hint = format!("a server that is down may be behind the others, and {}", by.speaks(findings));
        findings.error(entry.key, "`panic_below` is not for MySQL servers", hint);
    }
}

fn times(fields: &Fields, health: &Health, findings: &mut Findings<'_>) {
    if let Some(down) = health.down_interval.filter(|down| *down < health.timeout)
        && !fields.is_bad("timeout")
    {
        let hint = format!(
            "`timeout` is {}; one probe must end before the next begins",
            show_duration(health.timeout)
        );
        let message = format!("`down_interval` ({}) is below `timeout`", show_duration(down));
        findings.error(fields.at("down_interval"), message, hint);
    }
    if fields.is_bad("interval") {
        return;
    }
    let interval = health.interval;
    let said = match fields.get("interval") {
        Some(entry) => format!("`interval` is {} ({})", show_duration(interval), findings.place(entry.at)),
        None => format!("`interval` is {} by default", show_duration(interval)),
    };
    let rows = [
        ("timeout", health.timeout, "one probe must end before the next begins"),
        ("fast_interval", health.fast_interval, "fast is at most that"),
    ];
    for (name, value, why) in rows {
        if fields.get(name).is_some() && !fields.is_bad(name) && value > interval {
            let hint = format!("{said}; {why}");
            findings.error(fields.at(name), format!("`{name}` is above `interval`"), hint);
        }
    }
}

/// The checks for which a key is meant.
const OF_CHECKS: [(&str, &[&str]); 8] = [
    ("path", &["http"]),
    ("method", &["http"]),
    ("host", &["http", "grpc"]),
    ("headers", &["http", "grpc"]),
    ("expect_status", &["http"]),
    ("expect_body", &["http"]),
    ("service", &["grpc"]),
    ("steps", &["tcp"]),
];

fn keys_of_the_check(fields: &Fields, health: &Health, pool: &str, uses: &Uses, findings: &mut Findings<'_>) {
    let said = fields.get("check");
    let kind = health.check.word();
    for (name, checks) in OF_CHECKS {
        let Some(entry) = fields.get(name).filter(|_| !checks.contains(&kind)) else { continue };
        let hint = match said {
            None => {
                let other = uses.first(pool, |protocol| protocol.usual_check() != checks[0]);
                let why =
                    other.map_or_else(String::new, |other| format!(", because {}", other.speaks(findings)));
                format!("add `check = \"{}\"`; by default it is \"{kind}\" here{why}", checks[0])
            }
            Some(check) => format!("`check` is \"{kind}\" ({})", findings.place(check.at)),
        };
        let checks = checks.iter().map(|check| format!("\"{check}\"")).collect::<Vec<_>>().join(" or ");
        findings.error(entry.key, format!("`{name}` is for `check = {checks}`"), hint);
    }
    if let Check::Http(HttpProbe { method, expect_body: Some(_), .. }) = &health.check
        && method == "HEAD"
    {
        let hint = format!("`method` is HEAD ({})", findings.place(fields.at("method")));
        findings.error(fields.at("expect_body"), "an answer to HEAD has no body", hint);
    }
    steps(fields, findings);
    if kind == "off" {
        let names = [
            "port",
            "at",
            "interval",
            "fast_interval",
            "down_interval",
            "timeout",
            "rise",
            "fall",
            "last_resort",
            "panic_below",
        ];
        for name in names {
            if let Some(entry) = fields.get(name) {
                let hint = match said {
                    Some(check) => format!("`check` is \"off\" ({})", findings.place(check.at)),
                    None => "`check` is \"off\" by default where only udp listeners use the pool".to_owned(),
                };
                findings.warning(entry.key, format!("`{name}` has no effect"), hint);
            }
        }
    }
}

/// Checks the conversation of a TCP probe.
fn steps(fields: &Fields, findings: &mut Findings<'_>) {
    for (at, step) in fields.tables("steps") {
        if step.lacks("send") && step.lacks("expect") {
            findings.error(at, "a step does nothing", "expected `send`, `expect` or both");
        }
    }
    let list = fields.list("steps");
    match (fields.get("steps"), list.last()) {
        (Some(entry), _) if list.len() > MOST_STEPS => {
            findings.error(
                entry.at,
                format!("{} steps are too many", list.len()),
                format!("expected at most {MOST_STEPS}"),
            );
        }
        (_, Some((at, Value::Table(last)))) if last.lacks("expect") && list.len() == 1 => {
            let hint = "without an `expect` a probe is good as soon as the kernel took the connection";
            findings.warning(*at, "nobody looks at what comes", hint);
        }
        _ => {}
    }
}
