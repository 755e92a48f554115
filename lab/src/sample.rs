//! The results of one turn of one contender, in the same form for all scenarios.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::metric::Metric;

/// What one cell (one contender, one point of the sweep, one round) measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Round, from 1.
    pub round: u32,
    /// The value of the swept parameter; `None` in a scenario without sweep.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<f64>,
    /// The figures, each in its metric's unit.
    pub figures: BTreeMap<Metric, f64>,
    /// What went wrong in the counted load, by kind (count); empty when nothing did.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub errors: BTreeMap<String, u64>,
    /// What went wrong, for a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Curves (x, y) by name, such as the response time by share of requests.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub curves: BTreeMap<String, Vec<(f64, f64)>>,
    /// Anything a reader must know about this cell; shown once with the scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
}

impl Sample {
    /// A figure, if this sample has it.
    pub fn figure(&self, metric: Metric) -> Option<f64> {
        self.figures.get(&metric).copied()
    }

    /// Records a figure, unless it is not a number, such as a rate over no time.
    pub fn put(&mut self, metric: Metric, value: f64) {
        if value.is_finite() {
            self.figures.insert(metric, value);
        }
    }

    /// Removes the contender's own usage, for one that stands for no load balancer and whose process only
    /// sleeps.
    pub fn forget_the_contender(&mut self) {
        let its_own = [Metric::CPU_PER_REQUEST, Metric::CPU_PER_GIGABYTE, Metric::CPU_SHARE, Metric::MEMORY];
        self.figures.retain(|metric, _| !its_own.contains(metric));
    }

    /// How many errors of all kinds there were.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }
}

/// The outcome of one contender in one variant of a scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Its name in the report; the same in all variants.
    pub contender: String,
    /// Its config, as folder/template under `lab/contenders`.
    pub template: String,
    /// Its name as its makers write it.
    pub title: String,
    /// What it says its version is.
    pub version: Option<String>,
    /// One per round and point it took part in.
    pub samples: Vec<Sample>,
    /// How it took part.
    pub state: Participation,
    /// Its config before ports are filled in.
    #[serde(default)]
    pub config: String,
    /// Whether it is a bound for comparison rather than a rival.
    #[serde(default)]
    pub reference: bool,
    /// What its folder says about treating it fairly.
    #[serde(default)]
    pub fairness: String,
    /// The commands of its first cell, for a reader who repeats it by hand.
    #[serde(default)]
    pub commands: Vec<String>,
}

/// Whether a contender took part.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Participation {
    /// In every round.
    #[default]
    Ran,
    /// It does not support this yet, with the reason; not a failure.
    NotBuilt(String),
    /// It failed to start, or later; with the last lines of its log.
    Failed(String),
}

impl Outcome {
    /// The samples of one point, by round.
    pub fn at(&self, at: Option<f64>) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.at == at)
    }

    /// All its samples of `metric` at one point.
    pub fn figures(&self, metric: Metric, at: Option<f64>) -> Vec<f64> {
        self.at(at).filter_map(|sample| sample.figure(metric)).collect()
    }

    /// Why it did not take part, or stopped.
    pub fn failure(&self) -> Option<&str> {
        match &self.state {
            Participation::Failed(reason) => Some(reason),
            Participation::Ran | Participation::NotBuilt(_) => None,
        }
    }
}
