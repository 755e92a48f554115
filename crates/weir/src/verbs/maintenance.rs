//! `weir maintenance`

use hyper::Method;
use serde_json::Value;
use weir_admin::maintenance::Switch;

use crate::arguments::{InMaintenance, OnOff};
use crate::client::ask_and_print;
use crate::exit::Exit;

/// Switches maintenance on or off for a part of the running Weir, or shows what is in maintenance.
pub fn maintenance(arguments: &InMaintenance) -> Result<Exit, Exit> {
    let InMaintenance { state, listener, route, pool, json, running } = arguments;
    let (method, body) = match state {
        None => (Method::GET, None),
        Some(state) => {
            let state = match state {
                OnOff::On => "on".to_owned(),
                OnOff::Off => "off".to_owned(),
            };
            let switch =
                Switch { state, listener: listener.clone(), route: route.clone(), pool: pool.clone() };
            let body = serde_json::to_value(switch).map_err(|error| Exit::Failed.saying(error))?;
            (Method::POST, Some(body))
        }
    };
    ask_and_print(running, method, "/v1/maintenance", body.as_ref(), *json, |body| {
        Ok(words(&serde_json::from_value::<Vec<Value>>(body["maintenance"].clone())?))
    })
}

fn words(parts: &[Value]) -> String {
    if parts.is_empty() {
        return "nothing is in maintenance".to_owned();
    }
    let untouched = |part: &Value| {
        let all = part["untouched"].as_array().map_or(&[][..], Vec::as_slice);
        let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
        let each = all
            .iter()
            .map(|it| format!("listener {}, which speaks {}", text(it, "listener"), text(it, "protocol")));
        each.collect::<Vec<_>>().join(" and ")
    };
    let name = |part: &Value| {
        let text = |key: &str| part[key].as_str().map(|name| format!("{key} {name}"));
        match (text("route"), text("listener"), text("pool")) {
            (Some(route), Some(listener), _) => format!("{route} of {listener}"),
            (Some(part), ..) | (_, Some(part), _) | (.., Some(part)) => part,
            (None, None, None) => "everything that speaks HTTP".to_owned(),
        }
    };
    let whole = |part: &Value| match untouched(part).as_str() {
        "" => name(part),
        others => format!("{} (not for {others})", name(part)),
    };
    format!("in maintenance: {}", parts.iter().map(whole).collect::<Vec<_>>().join(", "))
}
