//! `weir limits`

use hyper::Method;
use weir_admin::limits::{ClearLimits, LimitEntry, LimitList, LimitedKey};

use super::status::span;
use crate::arguments::{Cleared, ShownLimits};
use crate::client::{ask_and_print, segment};
use crate::exit::Exit;
use crate::table::table;

/// Shows the state of the running Weir's limits, and which clients or keys they refused.
pub fn show(shown: &ShownLimits) -> Result<Exit, Exit> {
    let ShownLimits { listener, route, keys, json, running } = shown;
    let mut path = format!("/v1/limits?keys={keys}");
    for (name, value) in [("listener", listener), ("route", route)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", segment(value));
        }
    }
    ask_and_print(running, Method::GET, &path, None, *json, |body| {
        let LimitList { limits } = serde_json::from_value(body)?;
        match limits.is_empty() {
            true => Ok("no listener and no route has a limit".to_owned()),
            false => Ok(limits.iter().map(in_words).collect::<Vec<_>>().join("\n")),
        }
    })
}

fn in_words(it: &LimitEntry) -> String {
    let place = match &it.route {
        Some(route) => format!("listener {}, route {route}", it.listener),
        None => format!("listener {}", it.listener),
    };
    let rule = match (&it.rate, it.max) {
        (Some(rate), _) => format!("{rate}, burst {}", it.burst.unwrap_or_default()),
        (None, max) => format!("{} at once", max.unwrap_or_default()),
    };
    let statuses = if it.statuses.is_empty() {
        String::new()
    } else {
        format!(", answers of {}", it.statuses.join(", "))
    };
    let at = if it.at == "edge" { String::new() } else { format!(", at {}", it.at) };
    let dry = if it.dry_run { ", dry run" } else { "" };
    let shared = if it.shared { ", counted together with the other Weirs" } else { "" };
    let mut out = format!("{place}: {} {rule} by {}{statuses}{at}{shared}{dry}\n", it.limit, it.key);
    let counted = match (it.keys, it.rate.is_some()) {
        (Some(keys), _) => {
            let part = 100.0 * it.tracked_count as f64 / f64::from(keys.max(1));
            format!("{} of {keys} keys in use ({part:.1}%), ", it.tracked_count)
        }
        (None, true) => String::new(),
        (None, false) => format!("{} keys with requests under way, ", it.tracked_count),
    };
    let overflow = match it.overflow_total {
        0 => String::new(),
        count => format!(", {count} times no bucket was free"),
    };
    out += &format!("  {counted}{} refused{overflow}\n", it.refused_total);
    if !it.refused.is_empty() {
        let last = if it.rate.is_some() { "let in again" } else { "under way" };
        let head = ["refused", "last", last, "who"].map(str::to_owned).to_vec();
        let rows: Vec<_> = [head].into_iter().chain(it.refused.iter().map(row)).collect();
        out += &table(&rows, |_, text| text);
    }
    out
}

/// The key is the last column, because the client decides its length.
fn row(it: &LimitedKey) -> Vec<String> {
    let who = match (&it.client, &it.key) {
        (Some(client), _) => format!("client {client}"),
        (None, Some(key)) => format!("key {key}{}", if it.cut { "…" } else { "" }),
        (None, None) => "all together".to_owned(),
    };
    let standing = match (it.let_in_after_seconds, it.under_way) {
        (Some(0.0), _) => "now".to_owned(),
        // Part of a second is shown as one second.
        (Some(wait), _) => format!("in {}", span(wait.ceil())),
        (None, under_way) => under_way.unwrap_or_default().to_string(),
    };
    vec![it.refused_total.to_string(), format!("{} ago", span(it.refused_ago_seconds)), standing, who]
}

/// Makes the running Weir's rate limits forget a client or key, and prints how many limits had counted
/// anything.
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
        let number = |name: &str| serde_json::from_value::<u64>(body[name].clone());
        Ok(match (number("cleared")?, number("limits")?) {
            (0, 1) => "nothing was owed to the one limit".to_owned(),
            (0, limits) => format!("nothing was owed to any of {limits} limits"),
            (_, 1) => "cleared in the one limit".to_owned(),
            (cleared, limits) => format!("cleared in {cleared} of {limits} limits"),
        })
    })
}
