//! `[log]` and `[access_log.NAME]`: the access logs, and the program's own log on standard error.

pub(crate) mod check;
mod line;
mod target;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use weir_screen::AnswerStatus;

use self::line::{FIELD_NAME, FIELD_VALUE, LINE};
use self::target::{ACCESS_TARGET, APP_NAME};
use crate::keys::{
    Each, HOUR, Key, Kind, Limit, duration, factor, flag, list, map, millis, table as below, text, text_or,
    word,
};
use crate::setting::{Section as _, table, words};
use crate::values::status::STATUS;

pub use self::line::LineTemplate;
pub use self::target::{AccessTarget, SyslogAddress};

table! {
    /// The access log, and the program's own log on standard error.
    pub struct Log at "[log]" {
        /// Where access-log lines go; a file is opened anew on USR1. This log is named `main`.
        access: AccessTarget = text_or(&ACCESS_TARGET, "off");
        /// What its lines look like, and which there are.
        lines: LogLines;
        /// Threshold of the program's own log.
        level: Level =
            word(Level::WORDS, "info").instead(&[
                (&["warning"], "did you mean \"warn\"?"),
                (&["notice"], "did you mean \"info\"?"),
                (&["err", "crit", "critical", "alert", "emerg"], "did you mean \"error\"?"),
            ]);
    }
}

table! {
    /// An access log beside that of `[log]`. Every listener writes to all of them, unless it says to which
    /// (`access_logs`).
    pub struct AccessLog(name) at "[access_log.NAME]" {
        /// Where its lines go; a file is opened anew on USR1.
        target: AccessTarget =
            text(&ACCESS_TARGET).required().also(&["access", "path", "file", "output"]);
        /// What its lines look like, and which there are.
        lines: LogLines;
    }
}

table! {
    /// What the lines of an access log look like, and which there are.
    pub struct LogLines {
        /// Form of a line.
        format: AccessFormat = word(AccessFormat::WORDS, "json");
        /// A line in the language of values, in place of `format`. What peers sent is escaped; what has no
        /// value is `-`.
        line: Option<LineTemplate> =
            text(&LINE)
                .default("as `format` has it")
                .also(&["log_format", "log-format", "template", "pattern"]);
        /// Fields that a JSON line has besides, by name. What has no value is left out.
        fields: BTreeMap<String, LineTemplate> =
            map(&FIELD_NAME, &FIELD_VALUE).default("none").also(&["extra_fields", "headers", "capture"]);
        /// Whether a JSON line has the fields that it has by itself; without them only those of `fields`.
        standard_fields: bool = flag(true).brief();
        /// Only lines with one of these statuses or classes (`"5xx"`). Of `status`, `slower_than` and
        /// `except_done` a line needs one that is said.
        status: Vec<AnswerStatus> =
            list(Each::Text(&STATUS)).default("every status").also(&["statuses", "status_codes", "if"]);
        /// Only lines of what took longer.
        slower_than: Option<Duration> =
            duration(Limit::optional(millis(1), HOUR, "a millisecond to an hour"))
                .default("however long it took")
                .also(&["min_duration", "minduration", "slow"]);
        /// Only lines whose `end` is neither `done` nor `responded`.
        except_done: bool = flag(false).brief().also(&["dontlog-normal", "only_failed"]);
        /// Share of the lines that are written, from 0 to 1: by a hash of the request's id, the same in all
        /// logs and processes.
        share: f64 =
            factor(Limit::new(1.0, 0.0, 1.0, "a share of the lines: 1 is all of them"))
                .brief()
                .also(&["sample", "sampling", "sample_rate"]);
        /// Whether lines that `share` would leave out are written where the status is 500 or more, or the
        /// `end` is neither `done` nor `responded`.
        keep_errors: bool = flag(false).brief();
        /// How messages of syslog are marked.
        syslog: Syslog = below(Syslog::TABLE).brief();
    }
}

table! {
    /// How messages of syslog are marked, for targets that begin with `syslog`.
    #[derive(Eq)]
    pub struct Syslog at "syslog = { … }" {
        /// Facility.
        facility: Facility = word(Facility::WORDS, "local0");
        /// Severity, of every line.
        severity: Severity = word(Severity::WORDS, "info").also(&["level"]);
        /// By which name Weir is known.
        app_name: String = text_or(&APP_NAME, "weir").also(&["tag", "ident"]);
        /// Form of the header.
        form: Option<SyslogForm> =
            Key::new(Kind::Word(SyslogForm::WORDS, None))
                .default("`\"rfc3164\"` at a Unix socket, as syslog(3) writes there, else `\"rfc5424\"`")
                .also(&["format", "rfc"]);
    }
}

words! {
    /// Form of an access-log line.
    pub enum AccessFormat {
        Json = "json": "one JSON object a line",
        Combined = "combined": "the combined format of Apache and nginx",
        Haproxy = "haproxy": "HAProxy's `option httplog` and `tcplog`",
    }
}

words! {
    /// Threshold of the program log.
    pub enum Level {
        Error = "error": "what an operator must look at",
        Warn = "warn": "what may become trouble",
        Info = "info": "starts, reloads, state changes",
        Debug = "debug": "single connections",
        Trace = "trace": "everything",
    }
}

words! {
    /// Facility of a syslog message, by its number in RFC 5424 section 6.2.1.
    pub enum Facility {
        Kern = "kern": "0",
        User = "user": "1",
        Mail = "mail": "2",
        Daemon = "daemon": "3",
        Auth = "auth": "4",
        Syslog = "syslog": "5",
        Lpr = "lpr": "6",
        News = "news": "7",
        Uucp = "uucp": "8",
        Cron = "cron": "9",
        Authpriv = "authpriv": "10",
        Ftp = "ftp": "11",
        Ntp = "ntp": "12",
        Audit = "audit": "13",
        Alert = "alert": "14",
        Clock = "clock": "15",
        Local0 = "local0": "16",
        Local1 = "local1": "17",
        Local2 = "local2": "18",
        Local3 = "local3": "19",
        Local4 = "local4": "20",
        Local5 = "local5": "21",
        Local6 = "local6": "22",
        Local7 = "local7": "23",
    }
}

words! {
    /// Severity of a syslog message, by its number in RFC 5424 section 6.2.1.
    pub enum Severity {
        Emergency = "emerg": "0",
        Alert = "alert": "1",
        Critical = "crit": "2",
        Error = "err": "3",
        Warning = "warning": "4",
        Notice = "notice": "5",
        Info = "info": "6",
        Debug = "debug": "7",
    }
}

words! {
    /// Form of the header of a syslog message.
    pub enum SyslogForm {
        Rfc5424 = "rfc5424": "RFC 5424",
        Rfc3164 = "rfc3164": "RFC 3164, with the time in UTC; at a Unix socket without the host",
    }
}

/// The name of the access log in `[log]`.
pub const MAIN_LOG: &str = "main";

/// Most `[access_log.NAME]` in a file (count): each has a writer thread, and a queue of 8 MiB.
pub const MOST_ACCESS_LOGS: usize = 16;

impl Syslog {
    /// The priority value at the beginning of a message, between `<` and `>` (RFC 5424 section 6.2.1).
    pub fn priority(&self) -> u16 {
        self.facility as u16 * 8 + self.severity as u16
    }
}

impl LogLines {
    /// Whether it writes all lines, in an unchanged format.
    pub fn is_plain(&self) -> bool {
        self.line.is_none() && self.fields.is_empty() && self.standard_fields && !self.is_choosy()
    }

    /// Whether it may leave lines out.
    pub fn is_choosy(&self) -> bool {
        self.has_conditions() || self.share < 1.0
    }

    /// Whether lines have to meet a condition.
    pub fn has_conditions(&self) -> bool {
        !self.status.is_empty() || self.slower_than.is_some() || self.except_done
    }
}

/// The access logs of a config by name, with that of `[log]` first.
pub fn all<'c>(
    main: &'c Log,
    others: &'c [Arc<AccessLog>],
) -> impl Iterator<Item = (&'c str, &'c AccessTarget, &'c LogLines)> {
    let main = std::iter::once((MAIN_LOG, &main.access, &main.lines));
    main.chain(others.iter().map(|log| (log.name.as_str(), &log.target, &log.lines)))
}
