//! `weir flows`

use std::fmt::Write as _;

use clap::Args;
use hyper::Method;
use weir_control::kernel::Flows;

use crate::arguments::Running;
use crate::client::ask_and_print;
use crate::exit::Exit;
use crate::table::table;

/// Which flows are shown: those that all that is given holds for.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Only flows of this listener
    #[arg(long, value_name = "NAME")]
    listener: Option<String>,
    /// Only flows to this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Only flows to this backend, with or without a port
    #[arg(long, value_name = "ADDRESS", value_parser = place)]
    backend: Option<String>,
    /// Only flows of this client, with or without a port
    #[arg(long, value_name = "ADDRESS", value_parser = place)]
    client: Option<String>,
    /// Only flows at this stage
    #[arg(long, value_parser = ["opening", "open", "over", "direct"])]
    stage: Option<String>,
    /// Maximum number of flows to list; the others are counted
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    limit: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    running: Running,
}

/// Prints the flows that the kernel plane of the running Weir remembers.
pub fn flows(arguments: &Arguments) -> Result<Exit, Exit> {
    let mut path = format!("/v1/flows?limit={}", arguments.limit);
    for (name, value) in [
        ("listener", &arguments.listener),
        ("pool", &arguments.pool),
        ("backend", &arguments.backend),
        ("client", &arguments.client),
        ("stage", &arguments.stage),
    ] {
        if let Some(value) = value {
            let _ = write!(path, "&{name}={value}");
        }
    }
    ask_and_print(&arguments.running, Method::GET, &path, None, arguments.json, |body| {
        Ok(words(&serde_json::from_value(body)?))
    })
}

fn words(flows: &Flows) -> String {
    let heads = ["protocol", "stage", "silent", "client", "listener", "address", "pool", "backend", "sees"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    rows.extend(flows.flows.iter().map(|it| {
        vec![
            it.protocol.clone(),
            it.stage.clone(),
            format!("{:.0}s", it.silent_seconds),
            it.client.to_string(),
            name(&it.listener),
            it.destination.to_string(),
            name(&it.pool),
            it.backend.to_string(),
            it.seen_as.map_or_else(String::new, |address| address.to_string()),
        ]
    }));
    let mut out = String::new();
    if rows.len() > 1 {
        out.push_str(&table(&rows, |_, text| text));
        out.push('\n');
    }
    let (shown, matching, all) = (flows.flows.len(), flows.matching, flows.all);
    let _ = writeln!(out, "{shown} shown of {matching} that match, {all} in all");
    out
}

/// Parses an address with or without a port.
fn place(text: &str) -> Result<String, String> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let is_address = text.parse::<std::net::SocketAddr>().is_ok() || bare.parse::<std::net::IpAddr>().is_ok();
    is_address.then(|| text.to_owned()).ok_or_else(|| "expected one like 10.0.0.1 or 10.0.0.1:80".to_owned())
}
