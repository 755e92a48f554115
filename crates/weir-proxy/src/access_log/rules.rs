//! Which lines a log gets, their form, and the header before them.

use std::time::{Duration, SystemTime};

use weir_balance::stable_hash;
use weir_config::{AccessTarget, LogLines, SyslogAddress, SyslogForm};
use weir_screen::AnswerStatus;
use weir_stats::table::End;
use weir_template::Variable;

use super::form::{Form, Said};
use super::record::Record;
use super::render::Renderer;

/// What a log does with a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineVerdict {
    Written,
    /// It does not meet the log's conditions.
    Filtered,
    /// It is not in the log's sample.
    Unsampled,
}

/// The settings for the lines of a log.
#[derive(Debug)]
pub struct Rules {
    form: Form,
    status: Vec<AnswerStatus>,
    slower_than: Option<Duration>,
    except_done: bool,
    /// Lines whose hash is below this are written; `None` for all.
    share: Option<u64>,
    keep_errors: bool,
    header: Option<Header>,
}

impl Rules {
    pub fn of(target: &AccessTarget, lines: &LogLines) -> Rules {
        Rules {
            form: Form::of(lines),
            status: lines.status.clone(),
            slower_than: lines.slower_than,
            except_done: lines.except_done,
            // A product above the largest number becomes the largest number.
            share: (lines.share < 1.0).then(|| (lines.share * 2f64.powi(64)) as u64),
            keep_errors: lines.keep_errors,
            header: Header::of(target, lines),
        }
    }

    /// The variables in lines that are not fixed parts of a record.
    pub fn variables(&self) -> Vec<&Variable> {
        self.form.variables()
    }

    /// Whether a line for this record is written.
    pub fn judge(&self, record: &Record<'_>) -> LineVerdict {
        let has_conditions = !self.status.is_empty() || self.slower_than.is_some() || self.except_done;
        let is_failed = !matches!(record.end, End::Done | End::Responded);
        let is_wanted = || {
            record.status.is_some_and(|status| self.status.iter().any(|it| it.takes(status)))
                || self.slower_than.is_some_and(|least| record.timers.total > least)
                || (self.except_done && is_failed)
        };
        if has_conditions && !is_wanted() {
            return LineVerdict::Filtered;
        }
        let is_error = is_failed || record.status.is_some_and(|status| status >= 500);
        match self.share {
            Some(share) if !(self.keep_errors && is_error) && draw(record) >= share => LineVerdict::Unsampled,
            _ => LineVerdict::Written,
        }
    }

    /// Appends a line.
    pub fn line(&self, renderer: &mut Renderer, out: &mut Vec<u8>, said: Said<'_>) {
        if let Some(header) = &self.header {
            header.put(renderer, out, said.record.time);
        }
        self.form.put(renderer, out, said);
        out.push(b'\n');
    }
}

/// A number for sampling that is the same in all logs and processes that write about a request; a new one for
/// records without a request id.
fn draw(record: &Record<'_>) -> u64 {
    match record.request_id {
        Some(id) => number_of(id),
        None => {
            let since = record.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            stable_hash(format!("{} {}", record.client, since.as_nanos()).as_bytes())
        }
    }
}

/// Uses other bits than a `split` and a `mirror` do: otherwise a sample of the lines would come from one side
/// of the split.
pub fn number_of(request_id: &[u8]) -> u64 {
    stable_hash(request_id).rotate_left(32)
}

/// The header before each syslog message.
#[derive(Debug)]
pub struct Header {
    before: Box<[u8]>,
    after: Box<[u8]>,
    form: SyslogForm,
}

impl Header {
    pub fn of(target: &AccessTarget, lines: &LogLines) -> Option<Header> {
        let AccessTarget::Syslog(address) = target else { return None };
        let is_local = matches!(address, SyslogAddress::Unix(_));
        let usual = if is_local { SyslogForm::Rfc3164 } else { SyslogForm::Rfc5424 };
        let form = lines.syslog.form.unwrap_or(usual);
        let (priority, name, process) = (lines.syslog.priority(), &lines.syslog.app_name, std::process::id());
        let host = host_name();
        let (before, after) = match form {
            SyslogForm::Rfc5424 => (format!("<{priority}>1 "), format!(" {host} {name} {process} access - ")),
            // Where syslog(3) writes, the host is not named.
            SyslogForm::Rfc3164 if is_local => (format!("<{priority}>"), format!(" {name}[{process}]: ")),
            SyslogForm::Rfc3164 => (format!("<{priority}>"), format!(" {host} {name}[{process}]: ")),
        };
        Some(Header { before: before.into_bytes().into(), after: after.into_bytes().into(), form })
    }

    pub fn put(&self, renderer: &mut Renderer, out: &mut Vec<u8>, time: SystemTime) {
        out.extend_from_slice(&self.before);
        match self.form {
            SyslogForm::Rfc5424 => renderer.calendar.rfc3339(out, time),
            SyslogForm::Rfc3164 => renderer.calendar.rfc3164(out, time),
        }
        out.extend_from_slice(&self.after);
    }
}

/// The name of this machine; `-` if it has none that is allowed in a message.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim_ascii();
    match !name.is_empty() && name.len() <= 255 && name.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => name.to_owned(),
        false => "-".to_owned(),
    }
}
