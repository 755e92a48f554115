//! `weir map`

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use crate::arguments::Running;
use crate::client::{ask_and_print, segment};
use crate::exit::Exit;
use crate::table::table;

/// What `weir map` does.
#[derive(Debug, Subcommand)]
pub enum MapVerb {
    /// Show the entries of a map, or look up a text in it
    Show(Shown),
    /// Add or replace an entry in the map's file; takes effect at once
    Set(Set),
    /// Remove an entry from the map's file; takes effect at once
    Remove(Gone),
}

/// Of which map, and how it is shown.
#[derive(Args, Debug)]
pub struct About {
    /// Map name
    map: String,
}

#[derive(Args, Debug)]
pub struct Shown {
    #[command(flatten)]
    about: About,
    /// Text to look up, in the same way as the key of a request
    text: Option<String>,
    /// Maximum number of entries to show
    #[arg(long, default_value_t = 1000, value_name = "N", conflicts_with = "text")]
    limit: usize,
    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
pub struct Set {
    #[command(flatten)]
    about: About,
    /// Key of the entry
    key: String,
    /// Value of the entry
    value: String,
    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
pub struct Gone {
    #[command(flatten)]
    about: About,
    /// Key of the entry
    key: String,
    #[command(flatten)]
    how: How,
}

#[derive(Args, Debug)]
struct How {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    running: Running,
}

/// Shows or changes a map of the running Weir.
pub fn map(verb: &MapVerb) -> Result<Exit, Exit> {
    let (about, how, method, query, body) = match verb {
        MapVerb::Show(Shown { about, text: Some(text), how, .. }) => {
            (about, how, Method::GET, format!("key={}", segment(text)), None)
        }
        MapVerb::Show(Shown { about, text: None, limit, how }) => {
            (about, how, Method::GET, format!("limit={limit}"), None)
        }
        MapVerb::Set(Set { about, key, value, how }) => {
            (about, how, Method::PUT, format!("key={}", segment(key)), Some(json!({ "value": value })))
        }
        MapVerb::Remove(Gone { about, key, how }) => {
            (about, how, Method::DELETE, format!("key={}", segment(key)), None)
        }
    };
    let path = format!("/v1/maps/{}?{query}", segment(&about.map));
    ask_and_print(&how.running, method, &path, body.as_ref(), how.json, |body| {
        // An answer without this is not Weir's.
        let says = |what: &str| serde_json::from_value::<String>(body[what].clone()).map(drop);
        match verb {
            MapVerb::Show(Shown { text: Some(_), .. }) => says("value")?,
            MapVerb::Show(_) => says_lines(&body)?,
            MapVerb::Set(_) | MapVerb::Remove(_) => says("change")?,
        }
        Ok(match verb {
            MapVerb::Show(Shown { text: Some(_), .. }) => looked_up(&body),
            MapVerb::Show(_) => lines(&body),
            MapVerb::Set(_) => changed(&body, "says so already"),
            MapVerb::Remove(_) => changed(&body, "has no such line"),
        })
    })
}

fn says_lines(body: &Value) -> serde_json::Result<()> {
    serde_json::from_value::<Vec<Value>>(body["lines"].clone()).map(drop)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn looked_up(body: &Value) -> String {
    let value = text(&body["value"]);
    match (body["key"].as_str(), value) {
        (Some(key), value) => format!("{value}\n  by `{key}` ({})", text(&body["line"])),
        (None, "") => "no line has it, and there is no default".to_owned(),
        (None, default) => format!("{default}\n  no line has it: the default"),
    }
}

fn lines(body: &Value) -> String {
    let shown = body["lines"].as_array().map_or(&[][..], Vec::as_slice);
    let row = |line: &Value| vec![text(&line["key"]).to_owned(), text(&line["value"]).to_owned()];
    let rows: Vec<_> = shown.iter().map(row).collect();
    let map = &body["map"];
    let count = map["line_count"].as_u64().unwrap_or_default();
    let mut out = if rows.is_empty() { String::new() } else { table(&rows, |_, text| text) };
    out += &format!("{} of {count} lines of {}", rows.len(), text(&map["file"]));
    if let Some(error) = map["error"].as_str() {
        out += &format!("\nthe file as it is now is not in force: {error}");
    }
    out
}

fn changed(body: &Value, unchanged: &str) -> String {
    let (change, key, file) = (text(&body["change"]), text(&body["key"]), text(&body["map"]["file"]));
    match change {
        "unchanged" => format!("`{key}`: {file} {unchanged}"),
        change => format!("`{key}` {change} in {file}, and in force"),
    }
}
