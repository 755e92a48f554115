//! `weir cache purge`

use hyper::Method;
use serde_json::json;

use crate::arguments::Purge;
use crate::client::ask_and_print;
use crate::exit::Exit;

/// Makes the running Weir purge stored responses, and prints how many there were.
pub fn purge(purge: &Purge) -> Result<Exit, Exit> {
    let Purge { host, path, prefix, tag, all, soft, json, running } = purge;
    let mut order = json!({ "soft": soft });
    for (name, value) in [("host", host), ("path", path), ("prefix", prefix), ("tag", tag)] {
        if let Some(value) = value {
            order[name] = json!(value);
        }
    }
    if *all {
        order["all"] = json!(true);
    }
    ask_and_print(running, Method::POST, "/v1/cache/purge", Some(&order), *json, |body| {
        let what = if *soft { "made out of date" } else { "taken out" };
        Ok(match serde_json::from_value::<u64>(body["purged"].clone())? {
            1 => format!("1 response {what}"),
            count => format!("{count} responses {what}"),
        })
    })
}
