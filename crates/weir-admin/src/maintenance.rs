//! `GET` and `POST /v1/maintenance`

use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::api::{Error, ok};
use weir_control::control::Control;
use weir_state::maintenance::Scope;

/// What to switch on or off.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// `on` or `off`.
    pub state: String,
    /// Name of a listener.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// Name of a route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Name of a pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

pub(crate) fn switch(control: &Control, request: Switch) -> Result<Response, Error> {
    let on = match request.state.as_str() {
        "on" => true,
        "off" => false,
        other => {
            return Err(Error::bad_request(format!("`{other}` is no state: expected `on` or `off`")));
        }
    };
    let scope = match (request.listener, request.route, request.pool) {
        (None, None, None) => Scope::All,
        (listener, Some(route), None) => Scope::Route { listener, route },
        (Some(listener), None, None) => Scope::Listener(listener),
        (None, None, Some(pool)) => Scope::Pool(pool),
        (_, _, Some(_)) => {
            return Err(Error::bad_request("`pool` stands alone: expected `listener`, `route` or `pool`"));
        }
    };
    control.switch_maintenance(scope, on)?;
    Ok(show(control))
}

/// Shows what is in maintenance.
pub(crate) fn show(control: &Control) -> Response {
    let parts: Vec<Value> = control.maintenance().iter().map(|scope| shown(control, scope)).collect();
    ok(&json!({ "maintenance": parts, "note": "lasts over reloads and upgrades, until it is switched off" }))
}

fn shown(control: &Control, scope: &Scope) -> Value {
    let untouched = control.untouched_by(scope);
    let untouched = untouched.iter().map(|it| json!({ "listener": it.listener, "protocol": it.protocol }));
    let untouched: Vec<Value> = untouched.collect();
    match scope {
        Scope::All => json!({ "all": true }),
        Scope::Listener(listener) => json!({ "listener": listener }),
        Scope::Route { listener: None, route } => json!({ "route": route }),
        Scope::Route { listener: Some(listener), route } => json!({ "listener": listener, "route": route }),
        Scope::Pool(pool) if !untouched.is_empty() => json!({ "pool": pool, "untouched": untouched }),
        Scope::Pool(pool) => json!({ "pool": pool }),
    }
}
