//! `filter bwlim-out` and `set-bandwidth-limit` as `bandwidth` of routes.

use std::collections::BTreeMap;

use weir_config::units::show_byte_rate;

use super::sections::Line;
use super::times::{bytes, duration};

/// The slowest rate that a response can have in Weir, in bytes per second.
const SLOWEST: u64 = 16 << 10;

/// The filters of a proxy that limit bytes per second, by their names.
#[derive(Debug, Default)]
pub struct Filters {
    by_name: BTreeMap<String, Result<Amount, String>>,
    /// Whether rules of requests and rules of responses set them.
    is_set_twice: bool,
}

/// So many bytes in so many milliseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Amount {
    bytes: Option<u64>,
    millis: Option<u64>,
}

impl Filters {
    /// Those in the lines of a proxy.
    pub fn of(lines: &[&Line]) -> Filters {
        let is_filter = |line: &&&Line| line.word(0) == "filter" && line.word(1).starts_with("bwlim-");
        let by_name = lines.iter().filter(is_filter).map(|line| (line.word(2).to_owned(), of_each(line)));
        let sets = |kind: &str| {
            lines.iter().any(|line| line.word(0) == kind && line.word(1) == "set-bandwidth-limit")
        };
        let is_set_twice = sets("http-request") && sets("http-response");
        Filters { by_name: by_name.collect(), is_set_twice }
    }

    /// The table that `set-bandwidth-limit NAME [limit SIZE] [period TIME]` becomes, and what differs. `Err`
    /// says what there is nothing like.
    pub fn set(&self, words: &[String]) -> Result<(String, Vec<String>), String> {
        let name = words.get(2).map_or("", String::as_str);
        let default =
            self.by_name.get(name).ok_or_else(|| format!("there is no filter `{name}`"))?.clone()?;
        let own = amount(words.get(3..).unwrap_or_default(), ("limit", "period"))?;
        let bytes = own.bytes.or(default.bytes).ok_or("no limit is said")?;
        let millis = own.millis.or(default.millis).filter(|millis| *millis > 0).ok_or("no period is said")?;
        let rate = bytes.saturating_mul(1000) / millis;
        let slowest = (rate < SLOWEST).then(|| "the slowest is 16KiB/s".to_owned());
        let twice = "what a rule of requests sets holds over what one of responses sets";
        let twice = self.is_set_twice.then(|| twice.to_owned());
        let table = format!("{{ to_client = \"{}\" }}", show_byte_rate(rate.max(SLOWEST)));
        Ok((table, slowest.into_iter().chain(twice).collect()))
    }
}

/// What a filter lets each response have. `Err` says what there is nothing like.
pub fn of_filter(line: &Line) -> Result<(), String> {
    of_each(line).map(drop)
}

fn of_each(line: &Line) -> Result<Amount, String> {
    if line.word(1) == "bwlim-in" {
        return Err("`bandwidth` of a route limits what goes to clients".to_owned());
    }
    let words = line.from(3);
    if words.iter().any(|word| word == "key" || word == "table") {
        return Err("`bandwidth` of a route limits each response, and not several together".to_owned());
    }
    amount(words, ("default-limit", "default-period"))
}

fn amount(words: &[String], (limit, period): (&str, &str)) -> Result<Amount, String> {
    let mut amount = Amount::default();
    for pair in words.chunks(2) {
        let [word, text] = pair else { return Err(format!("`{}` says nothing", pair.join(" "))) };
        let unread = || format!("`{word} {text}` is not the same for every request");
        match word.as_str() {
            of if of == limit => amount.bytes = Some(bytes(text).ok_or_else(unread)?),
            of if of == period => amount.millis = Some(duration(text, 1).ok_or_else(unread)?.0),
            // It keeps HAProxy from many small pieces, of which Weir sends none.
            "min-size" => {}
            _ => return Err(format!("there is nothing like `{word}`")),
        }
    }
    Ok(amount)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Line {
        let words = text.split(' ').map(str::to_owned).collect();
        Line { number: 1, negated: false, words }
    }

    fn set(filter: &str, rule: &str) -> Result<String, String> {
        let filter = line(filter);
        let words: Vec<String> = rule.split(' ').map(str::to_owned).collect();
        Filters::of(&[&filter]).set(&words).map(|(table, _)| table)
    }

    #[test]
    fn a_limit_and_its_period_are_a_rate() {
        let each = "filter bwlim-out slow default-limit 256k default-period 500ms min-size 1k";
        let rule = "http-response set-bandwidth-limit slow";
        assert_eq!(set(each, rule).as_deref(), Ok("{ to_client = \"512KiB/s\" }"));
        let own = format!("{rule} limit 1m period 2s");
        assert_eq!(set(each, &own).as_deref(), Ok("{ to_client = \"512KiB/s\" }"));
        let named = "filter bwlim-out slow default-limit 1k default-period 1s";
        assert_eq!(set(named, rule).as_deref(), Ok("{ to_client = \"16KiB/s\" }"));
        for other in [
            "filter bwlim-in slow default-limit 1m default-period 1s",
            "filter bwlim-out slow limit 1m key src table st",
            "filter bwlim-out other default-limit 1m default-period 1s",
        ] {
            set(other, rule).expect_err(other);
        }
        set(each, "http-response set-bandwidth-limit slow limit res.hdr(x)").expect_err("it varies");
    }
}
