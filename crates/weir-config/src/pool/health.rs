//! `[pool.NAME.health]`: how it is known which backends are up.

use std::time::Duration;

use weir_balance::LastResort;

use crate::fields::{Fields, Value};
use crate::keys::{
    Each, HOUR, Key, Kind, Limit, Row, Shape, Word, count, duration, factor, list_or, millis, seconds, text,
    text_or, word,
};
use crate::protocol::Protocol;
use crate::report::{Findings, quote};
use crate::setting::{Part, Section as _, one, table};
use crate::units::{Refused, refuse, show_duration};
use crate::uses::Uses;
use crate::values::host::HOST_FIELD;
use crate::values::path::PROBE_PATH;

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
        /// Between probes while nothing changes.
        interval: Duration =
            duration(Limit::new(seconds(2), millis(10), HOUR, "shorter probes are load, not knowledge"))
                .also(&["inter"]);
        /// Between probes while the state is changing.
        fast_interval: Duration =
            duration(Limit::new(millis(200), millis(10), HOUR, "never above `interval`"))
                .also(&["fastinter"]);
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
        last_resort: LastResort = word(LAST_RESORTS, "late").also(&["panic", "panic_threshold"]);
        /// Ejection by the outcome of real traffic.
        passive: Option<Passive> = Key::new(Kind::TableOrOff(Passive::TABLE));
    }
}

/// What a probe does.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// Asks for a path, and looks at the status.
    Http(HttpProbe),
    /// Connects.
    Tcp,
    /// Logs in.
    Mysql,
    /// Never probes: every backend counts as up.
    Off,
}

table! {
    /// `GET path`, and the status must be in one of the ranges.
    #[derive(Eq)]
    pub struct HttpProbe {
        /// Path (and query) of an HTTP probe.
        path: String = text_or(&PROBE_PATH, "/").also(&["uri", "url"]);
        /// Host field of an HTTP probe.
        host: Option<String> = text(&HOST_FIELD).default("the backend's address");
        /// Statuses of a good HTTP probe, as inclusive ranges.
        expect_status: Vec<(u16, u16)> =
            list_or(Each::Text(&STATUS_RANGE), &["200-399"]).also(&["status", "expect"]);
    }
}

table! {
    /// Ejects a backend for a while when real traffic fails on it. On unless it is `"off"`.
    #[derive(Copy)]
    pub struct Passive at "passive = { … }" {
        /// Failures that eject.
        errors: u32 = count(Limit::new(5, 1, 1_000_000, "one failure at least")).also(&["max_fails"]);
        /// Within this time.
        within: Duration =
            duration(Limit::new(seconds(10), millis(100), HOUR, "a window of failures"))
                .also(&["window"]);
        /// The first ejection lasts this long.
        eject: Duration =
            duration(Limit::new(seconds(10), millis(100), HOUR, "a backend must get its chance again"))
                .also(&["fail_timeout"]);
        /// Never more than this share of the pool is ejected.
        max_ejected: f64 = factor(Limit::new(0.5, 0.0, 1.0, "a share of the pool, from 0 to 1"));
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
                    Word::new("http", "`GET path`, and look at the status"),
                    Word::new("tcp", "connect"),
                    Word::new("mysql", "log in to the server"),
                    Word::new("off", "never probe: every backend counts as up"),
                ],
                None,
            ))
            .default(
                "\"http\" where only HTTP listeners use the pool, \"off\" where only udp ones do, \"mysql\" where only mysql ones do, else \"tcp\"",
            )
            .also(&["type", "protocol", "mode"])
            .named("check", "What a probe does."),
        ),
        Row::Part(HttpProbe::ROWS),
    ];

    fn of(fields: &Fields) -> Check {
        match fields.word("check") {
            "http" => Check::Http(HttpProbe::of(fields)),
            "off" => Check::Off,
            "mysql" => Check::Mysql,
            _ => Check::Tcp,
        }
    }

    fn put(&self, fields: &mut Fields) {
        let word = match self {
            Check::Http(_) => "http",
            Check::Tcp => "tcp",
            Check::Mysql => "mysql",
            Check::Off => "off",
        };
        fields.put("check", Some(Value::Word(word)));
        if let Check::Http(probe) = self {
            probe.put(fields);
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

fn show_range((first, last): (u16, u16)) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

fn status_range(text: &str) -> Result<(u16, u16), Refused> {
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

/// Says what `check` is where a pool does not say it, and that no default is longer than its interval.
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

/// A pool's `health`: times that fit into each other, and keys that fit the kind of probe.
pub(super) fn check(fields: &Fields, health: &Health, pool: &str, uses: &Uses, findings: &mut Findings<'_>) {
    times(fields, health, findings);
    if !fields.is_bad("check") {
        keys_of_the_check(fields, health, pool, uses, findings);
    }
    let Some(passive) = fields.table("passive") else { return };
    if let Some(entry) = passive.get("max_ejected")
        && matches!(entry.value, Value::Factor(0.0))
    {
        findings.warning(
            entry.at,
            "no backend is ever ejected",
            "say `passive = \"off\"`, or a larger share",
        );
    }
}

fn times(fields: &Fields, health: &Health, findings: &mut Findings<'_>) {
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

fn keys_of_the_check(fields: &Fields, health: &Health, pool: &str, uses: &Uses, findings: &mut Findings<'_>) {
    let said = fields.get("check");
    let kind = match health.check {
        Check::Http(_) => return,
        Check::Tcp => "tcp",
        Check::Mysql => "mysql",
        Check::Off => "off",
    };
    for name in ["path", "host", "expect_status"] {
        let Some(entry) = fields.get(name) else { continue };
        let hint = match said {
            None => {
                let other = uses.first(pool, |protocol| protocol != Protocol::Http);
                let why =
                    other.map_or_else(String::new, |other| format!(", because {}", other.speaks(findings)));
                format!("add `check = \"http\"`; by default it is \"{kind}\" here{why}")
            }
            Some(check) => format!("`check` is \"{kind}\" ({})", findings.place(check.at)),
        };
        findings.error(entry.key, format!("`{name}` is for `check = \"http\"`"), hint);
    }
    if kind == "off" {
        for name in ["port", "interval", "fast_interval", "timeout", "rise", "fall", "last_resort"] {
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
