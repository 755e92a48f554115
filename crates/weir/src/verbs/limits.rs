//! `weir limits clear`

use hyper::Method;
use weir_admin::limits::ClearLimits;

use crate::arguments::Cleared;
use crate::client::ask_and_print;
use crate::exit::Exit;

/// Has the running Weir forget what somebody owes its limits of rate, and says in how many that was anything.
pub fn clear(cleared: &Cleared) -> Result<Exit, Exit> {
    let Cleared { client, key, all, listener, route, json, running } = cleared;
    let order = ClearLimits {
        client: *client,
        key: key.clone(),
        all: *all,
        listener: listener.clone(),
        route: route.clone(),
    };
    let order = serde_json::to_value(order).map_err(|error| Exit::Failed.saying(error))?;
    ask_and_print(running, Method::POST, "/v1/limits/clear", Some(&order), *json, |body| {
        let number = |name: &str| body[name].as_u64().unwrap_or_default();
        Ok(match (number("cleared"), number("limits")) {
            (0, 1) => "nothing was owed to the one limit".to_owned(),
            (0, limits) => format!("nothing was owed to any of {limits} limits"),
            (_, 1) => "cleared in the one limit".to_owned(),
            (cleared, limits) => format!("cleared in {cleared} of {limits} limits"),
        })
    })
}
