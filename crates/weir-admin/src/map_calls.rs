//! `/v1/maps/{map}`: shows a map, looks values up, and changes lines.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use weir_config::LineEdit;
use weir_control::control::{Control, MapLineError};

use crate::api::{Error, ok};
use crate::maps::{LookedUp, status, text};

/// Lines shown by default (count).
const USUAL_LINES: usize = 1000;
/// Most lines that are shown.
const MOST_LINES: usize = 100_000;

/// What to show of a map.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    key: Option<String>,
    limit: Option<usize>,
}

/// Which line to change.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Meant {
    key: String,
}

/// Body of a PUT.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewValue {
    value: String,
}

impl From<MapLineError> for Error {
    fn from(error: MapLineError) -> Error {
        let (status, code) = match &error {
            MapLineError::NoMap(_) => (StatusCode::NOT_FOUND, "not_found"),
            MapLineError::Refused(_) => (StatusCode::UNPROCESSABLE_ENTITY, "refused"),
            MapLineError::Store(_) => (StatusCode::INTERNAL_SERVER_ERROR, "failed"),
        };
        Error(status, code, error.to_string())
    }
}

/// Changes, adds or removes a line.
pub(crate) async fn change(
    control: &Control,
    name: &str,
    meant: Meant,
    value: Option<NewValue>,
) -> Result<Response, Error> {
    let edited = control.change_map(name, meant.key.clone(), value.map(|new| new.value)).await?;
    let change = match edited {
        Some(LineEdit::Added) => "added",
        Some(LineEdit::Changed) => "changed",
        Some(LineEdit::Removed) => "removed",
        None => "unchanged",
    };
    let snapshot = control.snapshot();
    let map = snapshot.maps.as_ref().and_then(|maps| maps.find(name)).map(|map| status(map));
    Ok(ok(&json!({ "change": change, "key": meant.key, "map": map })))
}

pub(crate) fn show(control: &Control, name: &str, asked: Asked) -> Result<Response, Error> {
    let snapshot = control.snapshot();
    let map = snapshot.maps.as_ref().and_then(|maps| maps.find(name));
    let map = map.ok_or_else(|| MapLineError::NoMap(name.to_owned()))?;
    if let Some(key) = asked.key {
        return Ok(ok(&LookedUp::of(map, map.answer(key.into_bytes()))));
    }
    let limit = asked.limit.unwrap_or(USUAL_LINES).min(MOST_LINES);
    let content = map.content();
    let lines: Vec<_> = content
        .lines()
        .take(limit)
        .map(|line| json!({ "key": text(line.key), "value": text(&line.value), "line": line.number }))
        .collect();
    Ok(ok(&json!({ "map": status(map), "lines": lines })))
}
