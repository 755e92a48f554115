//! `GET /v1/maps/{map}`

use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use weir_control::control::Control;

use crate::api::{Error, ok};
use crate::maps::{LookedUp, status, text};

/// Lines that are shown where nobody says how many (count).
const USUAL_LINES: usize = 1000;
/// Most lines that are shown.
const MOST_LINES: usize = 100_000;

/// What is asked of one map.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    key: Option<String>,
    limit: Option<usize>,
}

pub(crate) fn show(control: &Control, name: &str, asked: Asked) -> Result<Response, Error> {
    let snapshot = control.snapshot();
    let map = snapshot.maps.as_ref().and_then(|maps| maps.find(name));
    let none = || Error(StatusCode::NOT_FOUND, "not_found", format!("no map is named `{name}`"));
    let map = map.ok_or_else(none)?;
    if let Some(key) = asked.key {
        return Ok(ok(&LookedUp::of(map, map.answer(key.into_bytes()))));
    }
    let limit = asked.limit.unwrap_or(USUAL_LINES).min(MOST_LINES);
    let content = map.content();
    let lines: Vec<_> = content
        .lines()
        .take(limit)
        .map(|line| json!({ "key": text(line.key), "value": text(line.value), "line": line.number }))
        .collect();
    Ok(ok(&json!({ "map": status(map), "lines": lines })))
}
