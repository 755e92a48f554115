//! The state of maps, for the admin API.

use serde::{Deserialize, Serialize};
use weir_control::control::Control;
use weir_state::maps::{Map, MapAnswer};

/// One map.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MapStatus {
    /// Its name.
    pub name: String,
    /// Its file.
    pub file: String,
    /// `exact`, `prefix` or `network`.
    pub kind: String,
    /// The template of the text to look up.
    pub key: String,
    /// Lines in force.
    pub line_count: usize,
    /// Versions of the file put in force since the process began, except by reloads.
    pub applied: u64,
    /// Versions that had mistakes, or could not be read.
    pub refused: u64,
    /// Why the file's current content is not in force; `None` if it is.
    pub error: Option<String>,
}

/// The result of a lookup in a map, for `weir explain`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LookedUp {
    /// Name of the map.
    pub map: String,
    /// The text that was looked up.
    pub asked: String,
    /// The key of the matching line; `None` if no line matches.
    pub key: Option<String>,
    /// `FILE:LINE` of that line.
    pub line: Option<String>,
    /// The line's value, or the map's default; empty if there is neither.
    pub value: String,
}

impl LookedUp {
    pub(crate) fn of(map: &Map, answer: MapAnswer) -> LookedUp {
        let MapAnswer { asked, line, value } = answer;
        LookedUp {
            map: map.config.name.clone(),
            asked: text(&asked),
            line: line.as_ref().map(|(_, number)| format!("{}:{number}", map.config.path())),
            key: line.map(|(key, _)| text(&key)),
            value: text(&value),
        }
    }
}

/// The state of all maps.
pub(crate) fn of(control: &Control) -> Vec<MapStatus> {
    let snapshot = control.snapshot();
    snapshot.maps.iter().flat_map(|maps| maps.all()).map(|map| status(map)).collect()
}

pub(crate) fn status(map: &Map) -> MapStatus {
    let (applied, refused) = map.versions();
    MapStatus {
        name: map.config.name.clone(),
        file: map.config.path().to_owned(),
        kind: map.config.kind.word().to_owned(),
        key: map.key().to_owned(),
        line_count: map.content().line_count(),
        applied,
        refused,
        error: map.error(),
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
