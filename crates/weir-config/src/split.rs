//! `split` of a route: shares of its requests that go to other pools.

use weir_template::Template;

use crate::fields::{Fields, Value};
use crate::keys::{Each, Key, Kind, Limit, Shape, factor, text};
use crate::named_pool;
use crate::protocol::{Protocol, spoken};
use crate::report::Findings;
use crate::setting::{Section as _, table};
use crate::units::Refused;
use crate::values::NAME;
use crate::values::template::split_template;

/// The text by which requests are split.
static SPLIT_KEY: Shape = Shape::new("what to split by", "$cookie.session", split_key);

table! {
    /// Which requests of a route go to other pools than its `pool`: a new version beside the old one.
    pub struct Split at "split = { … }" {
        /// A text with variables: requests with the same value go to the same pool, whichever worker or Weir
        /// takes them. One for which it is empty goes to the route's `pool`.
        by: Option<Template> =
            text(&SPLIT_KEY)
                .default("`$request_id`: each request by itself")
                .also(&["key", "hash", "sticky", "split_clients"]);
        /// The other pools, each with its share.
        to: Vec<SplitPool> =
            Key::new(Kind::Many(Each::Table(SplitPool::TABLE))).required().also(&["pools", "weights", "backends"]);
    }
}

table! {
    /// A pool that gets a share.
    pub struct SplitPool at "to = [{ … }]" {
        /// Its name.
        pool: String = text(&NAME).required().also(&["name", "backend", "upstream"]);
        /// Share of the requests that it gets.
        share: f64 =
            factor(Limit::new(0.05, 0.0, 1.0, "a share of the requests; all of them together are 1"))
                .also(&["weight", "percent", "fraction", "ratio"]);
    }
}

fn split_key(text: &str) -> Result<String, Refused> {
    split_template(text).map(|template| template.as_written().to_owned())
}

/// The pools that the split of a route names.
pub(crate) fn pools(route: &Fields) -> impl Iterator<Item = &str> {
    let split = route.get("split").and_then(|_| route.table("split"));
    split.into_iter().flat_map(|split| split.tables("to")).filter_map(|(_, pool)| pool.text("pool"))
}

/// Reports pools that don't exist or are the route's own, shares that exceed the whole, and keys that
/// contradict a split.
pub(crate) fn check(root: &Fields, findings: &mut Findings<'_>) {
    for listener in root.named("listener") {
        if spoken(listener).is_some_and(|protocol| protocol != Protocol::Http) {
            continue;
        }
        for (_, route) in listener.tables("route") {
            of_route(root, route, findings);
        }
    }
}

fn of_route(root: &Fields, route: &Fields, findings: &mut Findings<'_>) {
    let Some((entry, split)) = route.get("split").zip(route.table("split")) else { return };
    if route.lacks("pool") {
        let hint = "the rest of the requests, and those whose pool can't serve, need a `pool`";
        findings.error(entry.key, "`split` needs `pool`", hint);
    }
    if let Some(cache) = route.get("cache").filter(|cache| !matches!(cache.value, Value::Off)) {
        let hint = format!(
            "an answer of one pool would be given to who is another's ({}); take one of the two out",
            findings.place(entry.key)
        );
        findings.error(cache.key, "`cache` cannot stand beside `split`", hint);
    }
    let (mut sum, mut seen) = (0.0, Vec::new());
    for (_, to) in split.tables("to") {
        named_pool::exists(root, to, "pool", findings);
        if let Some(Value::Factor(share)) = to.holds("share").as_deref() {
            sum += share;
        }
        let Some(name) = to.text("pool") else { continue };
        if route.text("pool") == Some(name) || seen.contains(&name) {
            let hint = "each pool has one share, and the route's own `pool` the rest";
            findings.error(to.at("pool"), format!("pool `{name}` is in the split already"), hint);
        }
        seen.push(name);
    }
    if sum > 1.0 + 1e-9 {
        let hint = "expected 1 at the most: what is missing is the share of the route's `pool`";
        // Floating-point sums of decimals have trailing digits that nobody wrote.
        let sum = (sum * 1e6).round() / 1e6;
        findings.error(split.at("to"), format!("the shares are {sum} together"), hint);
    }
}
