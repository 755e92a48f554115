//! Numbers as a reader sees them.

use crate::metric::{Metric, Unit};
use crate::rounds::VariantOutcome;

/// A number with as many digits as are significant, long ones grouped: `0.126`, `12.35`, `52 981`.
pub fn plain(value: f64) -> String {
    let decimals = match value.abs() {
        size if size == size.trunc() && size < 1e6 => 0,
        size if size < 1.0 => 3,
        size if size < 100.0 => 2,
        size if size < 1000.0 => 1,
        _ => 0,
    };
    grouped(value, decimals)
}

/// `12345.678` with two decimals as `12 345.68`. The blanks do not break.
pub fn grouped(value: f64, decimals: usize) -> String {
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) =
        plain.split_once('.').map_or((plain.as_str(), None), |(whole, rest)| (whole, Some(rest)));
    let (sign, digits) = whole.strip_prefix('-').map_or(("", whole), |digits| ("-", digits));
    let mut text = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) && digits.len() > 4 {
            text.push('\u{a0}');
        }
        text.push(digit);
    }
    if let Some(fraction) = fraction {
        text.push('.');
        text.push_str(fraction);
    }
    text
}

/// How the figures of one metric are shown side by side: all with one factor and one unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    factor: f64,
    /// The unit, empty for plain numbers and rates.
    pub unit: &'static str,
}

impl Scale {
    /// A scale that suits all figures of `metric` in `variants`, and `others`.
    pub fn of(metric: Metric, variants: &[&VariantOutcome], others: impl Iterator<Item = f64>) -> Self {
        let samples =
            variants.iter().flat_map(|variant| &variant.outcomes).flat_map(|outcome| &outcome.samples);
        let greatest = samples.filter_map(|sample| sample.figure(metric)).chain(others).fold(0.0, f64::max);
        let (factor, unit) = metric.unit().shown_for(greatest);
        let unit = if metric.unit() == Unit::PerSecond { "" } else { unit };
        Self { factor, unit }
    }

    /// A figure in that unit, as a number.
    pub fn value(self, figure: f64) -> f64 {
        figure * self.factor
    }

    /// A figure in that unit, without naming it.
    pub fn number(self, figure: f64) -> String {
        plain(self.value(figure))
    }

    /// `CPU per request (µs)`.
    pub fn heading(self, title: &str) -> String {
        if self.unit.is_empty() { title.to_owned() } else { format!("{title} ({})", self.unit) }
    }
}

/// A ratio: `0.86`, `12.3`, `145`.
pub fn ratio(value: f64) -> String {
    let decimals = match value.abs() {
        size if size < 10.0 => 2,
        size if size < 100.0 => 1,
        _ => 0,
    };
    grouped(value, decimals)
}

/// `1 h 02 min`, `3 min 05 s`, `12 s`.
pub fn duration(seconds: u64) -> String {
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_numbers_are_grouped() {
        assert_eq!(grouped(52_981.39, 0), "52\u{a0}981");
        assert_eq!(grouped(1234.5, 1), "1234.5");
        assert_eq!(grouped(-1_234_567.0, 2), "-1\u{a0}234\u{a0}567.00");
        assert_eq!(grouped(0.126, 2), "0.13");
    }

    #[test]
    fn a_number_has_as_many_digits_as_it_is_worth() {
        assert_eq!([0.1264, 12.349, 123.46, 12_345.6].map(plain), ["0.126", "12.35", "123.5", "12\u{a0}346"]);
        assert_eq!([0.0, 9000.0].map(plain), ["0", "9000"]);
        assert_eq!([0.857, 12.34, 145.2].map(ratio), ["0.86", "12.3", "145"]);
    }

    #[test]
    fn durations_are_told_in_the_two_largest_parts() {
        assert_eq!([12, 185, 3720].map(duration), ["12 s", "3 min 05 s", "1 h 02 min"]);
    }
}
