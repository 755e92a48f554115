//! Scenarios: what is measured, on whom, under which load. Each is a TOML file in `lab/scenarios/`.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::backend::BackendKind;
use crate::load::Load;

/// The figure a scenario is about. Smaller is better for all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Processor time of the load balancer per request (microseconds).
    CpuPerRequest,
    /// Processor time of the load balancer per 10^9 bytes (seconds).
    CpuPerGigabyte,
    /// 99th percentile of the latency (microseconds); only means something under a load of fixed rate.
    Latency,
    /// Growth of its resident memory per open connection (KiB).
    MemoryPerConnection,
}

/// One scenario.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The file's name without its extension.
    #[serde(skip)]
    pub name: String,
    /// One line for a person.
    pub title: String,
    /// The figure it is about.
    pub measure: Measure,
    /// What runs behind the load balancer.
    pub backend: BackendKind,
    /// Who is measured, as folder/template under `lab/contenders`. The first one that runs is what the others are
    /// compared with.
    pub contenders: Vec<String>,
    /// What is done to it.
    pub load: Load,
}

/// Reads all scenarios of `directory`, sorted by name. Err names the file that cannot be understood.
pub fn read_all(directory: &Path) -> io::Result<Vec<Scenario>> {
    let mut scenarios = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let text = fs::read_to_string(&path)?;
        let mut scenario: Scenario = toml::from_str(&text)
            .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))?;
        scenario.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        scenarios.push(scenario);
    }
    scenarios.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(scenarios)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn shipped() -> Vec<Scenario> {
        read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")).unwrap()
    }

    #[test]
    fn every_shipped_scenario_is_understood_and_begins_with_weir() {
        let scenarios = shipped();
        assert!(scenarios.iter().any(|scenario| scenario.name == "http1"));
        for scenario in &scenarios {
            assert!(scenario.contenders[0].starts_with("weir/"), "{}", scenario.name);
            assert!(scenario.contenders.len() > 1, "{}", scenario.name);
        }
    }

    #[test]
    fn every_contender_a_scenario_names_has_its_template() {
        let lab = Path::new(env!("CARGO_MANIFEST_DIR"));
        let named: HashSet<String> = shipped().into_iter().flat_map(|scenario| scenario.contenders).collect();
        for name in named {
            crate::contender::Contender::read(lab, &name).unwrap();
        }
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        let text = "title = 't'\nmeasure = 'cpu-per-request'\nbackend = 'http'\ncontenders = []\n\
                    load = { kind = 'idle', conections = 1 }\n";
        assert!(toml::from_str::<Scenario>(text).is_err());
    }
}
