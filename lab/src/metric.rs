//! The figures a measurement can give: their names, units and which way is better.
//!
//! One catalogue for all scenarios, whatever tool a figure comes from, so that one report and one comparison
//! serve every load balancer and every load. A runner with a figure of its own adds a line here.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Which way a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Smaller figures are better.
    Lower,
    /// Greater figures are better.
    Higher,
    /// The figure only describes; neither is better.
    Neither,
}

/// What a figure counts. Samples hold the unit named here; a report may show a larger one of the same kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds; shown as ms or s when large.
    Microseconds,
    /// Seconds.
    Seconds,
    /// Bytes; shown as KiB or MiB.
    Bytes,
    /// Bits per second; shown as Mbit/s or Gbit/s.
    BitsPerSecond,
    /// Seconds of processor time per 10^9 bytes.
    SecondsPerGigabyte,
    /// Events per second.
    PerSecond,
    /// Hundredths.
    Percent,
    /// A plain number.
    Count,
}

/// One figure: a line of the catalogue.
#[derive(Debug, PartialEq, Eq)]
pub struct Definition {
    /// What scenarios and samples call it.
    pub name: &'static str,
    /// What a reader sees.
    pub title: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// Which way is better.
    pub direction: Direction,
}

macro_rules! catalogue {
    ($($constant:ident, $name:literal, $title:literal, $unit:ident, $direction:ident;)*) => {
        const CATALOGUE: &[Definition] = &[$(
            Definition { name: $name, title: $title, unit: Unit::$unit, direction: Direction::$direction },
        )*];
        #[allow(dead_code, reason = "some figures are only named in scenarios' files")]
        impl Metric {
            $(#[doc = $title] pub const $constant: Self = Self(&Definition {
                name: $name, title: $title, unit: Unit::$unit, direction: Direction::$direction,
            });)*
        }
    };
}

catalogue! {
    // As the load measured it.
    RATE, "rate", "requests per second", PerSecond, Higher;
    CONNECTION_RATE, "connection-rate", "connections per second", PerSecond, Higher;
    TRANSACTION_RATE, "transaction-rate", "transactions per second", PerSecond, Higher;
    QUERY_RATE, "query-rate", "queries per second", PerSecond, Higher;
    THROUGHPUT, "throughput", "throughput", BitsPerSecond, Higher;
    LATENCY_MIN, "latency-min", "least latency", Microseconds, Lower;
    LATENCY_MEAN, "latency-mean", "mean latency", Microseconds, Lower;
    LATENCY_P50, "latency-p50", "median latency", Microseconds, Lower;
    LATENCY_P90, "latency-p90", "p90 latency", Microseconds, Lower;
    LATENCY_P95, "latency-p95", "p95 latency", Microseconds, Lower;
    LATENCY_P99, "latency-p99", "p99 latency", Microseconds, Lower;
    LATENCY_P999, "latency-p999", "p99.9 latency", Microseconds, Lower;
    LATENCY_MAX, "latency-max", "greatest latency", Microseconds, Lower;
    REQUESTS, "requests", "requests answered", Count, Neither;
    ERROR_SHARE, "error-share", "errors", Percent, Lower;
    // Used by the load balancer.
    CPU_PER_REQUEST, "cpu-per-request", "CPU per request", Microseconds, Lower;
    MACHINE_CPU_PER_REQUEST, "machine-cpu-per-request", "CPU of the whole machine per request", Microseconds, Lower;
    MACHINE_CPU_PER_GIGABYTE, "machine-cpu-per-gigabyte", "CPU of the whole machine per GB", SecondsPerGigabyte, Lower;
    CPU_PER_GIGABYTE, "cpu-per-gigabyte", "CPU per GB", SecondsPerGigabyte, Lower;
    CPU_SHARE, "cpu-share", "CPU (of one core)", Percent, Neither;
    MEMORY, "memory", "resident memory", Bytes, Lower;
    MEMORY_PER_CONNECTION, "memory-per-connection", "memory per connection", Bytes, Lower;
    // Shows whether the figures can be trusted.
    LOAD_CPU_SHARE, "load-cpu-share", "CPU of load and backends (of their core)", Percent, Neither;
    LOAD_LATENESS, "load-lateness", "p99 delay of requests in the load generator", Microseconds, Neither;
    WAIT_SHARE, "wait-share", "time waiting for its core", Percent, Neither;
    USER_SHARE, "user-share", "share of CPU in user mode", Percent, Neither;
    WORKERS, "workers", "threads at work", Count, Neither;
    CLIENT_REUSE, "client-reuse", "requests per client connection", Count, Neither;
    BACKEND_REUSE, "backend-reuse", "requests per backend connection", Count, Neither;
    BACKEND_SHARE, "backend-share", "requests that reached a backend", Percent, Neither;
    SERVER_STATEMENTS, "server-statements", "statements that servers see per query", Count, Lower;
    SERVED_UNEVENLY, "served-unevenly", "busiest backend over idlest", Count, Neither;
    // Failover.
    OUTAGE, "outage", "time without a good write", Seconds, Lower;
    WRITES_BACK, "writes-back", "event to first good write", Seconds, Lower;
    FAILOVER_DELAY, "failover-delay", "first good write after the database took writes", Seconds, Lower;
    RECEIPT_NOTICED, "receipt-noticed", "event to when it was noticed, by the receipt", Seconds, Lower;
    RECEIPT_DELAY, "receipt-delay", "writes sent on after the database took some, by the receipt", Seconds, Lower;
    PARKED, "parked", "statements that waited, by the receipt", Count, Neither;
    READER_STALL, "reader-stall", "longest stall of an unrelated reader", Seconds, Lower;
    WRITES, "writes", "writes acknowledged", Count, Neither;
    UNKNOWN_WRITES, "unknown-writes", "writes of unknown fate", Count, Lower;
    DOUBLED_WRITES, "doubled-writes", "writes carried out twice", Count, Lower;
    LOST_WRITES, "lost-writes", "acknowledged writes lost", Count, Lower;
    FAILED_WRITES, "failed-writes", "writes that failed", Count, Lower;
    FAILED_AFTER_RETURN, "failed-after-return", "writes that failed once the member came back", Count, Lower;
    FAILED_READS, "failed-reads", "reads that failed", Count, Lower;
    FAILED_PRIMARY_READS, "failed-primary-reads", "reads from the primary that failed", Count, Lower;
    MISPLACED_WRITES, "misplaced-writes", "writes carried out by another than the primary", Count, Lower;
    // The guest counts instructions if its clock has no meaning.
    INSTRUCTIONS, "instructions", "instructions per operation", Count, Lower;
}

/// A figure of the catalogue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Metric(&'static Definition);

impl Metric {
    /// The figure of that name; `None` when the catalogue has none.
    pub fn named(name: &str) -> Option<Self> {
        CATALOGUE.iter().find(|definition| definition.name == name).map(Self)
    }

    /// What scenarios and samples call it.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// What a reader sees.
    pub fn title(self) -> &'static str {
        self.0.title
    }

    /// Which way is better.
    pub fn direction(self) -> Direction {
        self.0.direction
    }

    /// What it counts.
    pub fn unit(self) -> Unit {
        self.0.unit
    }
}

impl fmt::Debug for Metric {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl PartialOrd for Metric {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Metric {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.name().cmp(other.name())
    }
}

impl Serialize for Metric {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Metric {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| {
            let known: Vec<&str> = CATALOGUE.iter().map(|definition| definition.name).collect();
            D::Error::custom(format!("no figure is named `{name}`; there are: {}", known.join(", ")))
        })
    }
}

impl Unit {
    /// The factor and name with which figures up to `greatest` read best.
    pub fn shown_for(self, greatest: f64) -> (f64, &'static str) {
        let steps: &[(f64, f64, &str)] = match self {
            Self::Microseconds => &[(1e7, 1e-6, "s"), (1e4, 1e-3, "ms"), (0.0, 1.0, "µs")],
            Self::Bytes => &[
                (1048.0 * 1024.0, 1.0 / 1_048_576.0, "MiB"),
                (1024.0, 1.0 / 1024.0, "KiB"),
                (0.0, 1.0, "bytes"),
            ],
            Self::BitsPerSecond => &[(1e9, 1e-9, "Gbit/s"), (0.0, 1e-6, "Mbit/s")],
            Self::Seconds => &[(1.0, 1.0, "s"), (0.0, 1e3, "ms")],
            Self::SecondsPerGigabyte => &[(0.0, 1.0, "s/GB")],
            Self::PerSecond => &[(0.0, 1.0, "/s")],
            Self::Percent => &[(0.0, 1.0, "%")],
            Self::Count => &[(0.0, 1.0, "")],
        };
        let (_, factor, name) =
            steps.iter().find(|(from, ..)| greatest >= *from).unwrap_or(&steps[steps.len() - 1]);
        (*factor, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_figures_share_a_name() {
        for (index, one) in CATALOGUE.iter().enumerate() {
            assert!(!CATALOGUE[..index].iter().any(|other| other.name == one.name), "{}", one.name);
        }
    }

    #[test]
    fn a_figure_is_written_by_its_name_and_read_back() {
        let text = serde_json::to_string(&Metric::LATENCY_P99).unwrap();
        assert_eq!(text, "\"latency-p99\"");
        assert_eq!(serde_json::from_str::<Metric>(&text).unwrap(), Metric::LATENCY_P99);
        let error = serde_json::from_str::<Metric>("\"latency-p98\"").unwrap_err().to_string();
        assert!(error.starts_with("no figure is named `latency-p98`; there are: rate, "), "{error}");
    }

    #[test]
    fn large_figures_are_shown_in_larger_units() {
        assert_eq!(Unit::Microseconds.shown_for(1645.0), (1.0, "µs"));
        assert_eq!(Unit::Microseconds.shown_for(48_940.0), (1e-3, "ms"));
        assert_eq!(Unit::BitsPerSecond.shown_for(5.3e11), (1e-9, "Gbit/s"));
        assert_eq!(Unit::Bytes.shown_for(2304.0).1, "KiB");
    }
}
