//! HAProxy's configuration.
//!
//! A `frontend` becomes a listener for each way in which it accepts clients (TLS or not), a `backend` a pool.
//! Rules are followed one after the other in HAProxy; here they become routes of which the first that
//! matches holds ([`routes`]). Each line gets one verdict, the worst of all that is said of it ([`ledger`]),
//! because a line of `defaults` is looked at by every proxy that takes it over. A rule whose condition can't
//! be asked by a route is never followed without it.
//!
//! Start reading at [`convert`]. Sources: HAProxy's configuration manual, versions 2.6 to 3.0.

mod acls;
mod actions;
mod answers;
mod asks;
mod balancing;
mod bandwidth;
mod binds;
mod changes;
mod checks;
mod choices;
mod criteria;
mod destinations;
mod expressions;
mod fill;
mod fronts;
mod globals;
mod headers;
mod health;
mod ledger;
mod logs;
mod maps;
mod matching;
mod monitors;
mod networks;
mod old;
mod options;
mod output;
mod pages;
mod paths;
mod peers;
mod persist;
mod pools;
mod proxies;
mod rewrites;
mod routes;
mod rules;
mod samples;
mod sections;
mod servers;
mod site;
mod stats;
mod tables;
mod tcp;
mod tcp_responses;
mod texts;
mod times;
mod tracks;
mod trust;
mod values;
mod words;

pub(super) use self::sections::looks_like;

use std::fmt::Write as _;

use self::globals::Globals;
use self::ledger::Ledger;
use self::peers::Peers;
use self::proxies::Proxy;
use self::site::Site;
use crate::{Converted, NotConverted, SourceFiles};

/// Converts a file.
pub(super) fn convert(text: &str, source: &dyn SourceFiles) -> Result<Converted, NotConverted> {
    let mut ledger = Ledger::default();
    let mut sections = sections::sections(text, &mut ledger)?;
    fill::fill_in(&mut sections, &mut ledger);
    let proxies = Proxy::all(&sections);
    if proxies.is_empty() {
        return Err(NotConverted {
            message: "this file of HAProxy has no `frontend`, no `backend` and no `listen`".to_owned(),
            hint: "convert it together with the files that have them: `cat` them into one".to_owned(),
        });
    }
    let globals = Globals::of(&sections, source.new_folder(), &mut ledger);
    let peers = Peers::of(&sections, &globals.localpeer, &source.host_name());
    let mut site = Site::new(&sections, &proxies, (&globals, &peers), source, ledger);
    let tables = site.read();
    if !tables.contains("[listener.") {
        let lost = site.ledger.first_unsupported();
        return Err(NotConverted {
            message: "no `frontend` and no `listen` of this file becomes a listener".to_owned(),
            hint: lost.unwrap_or_else(|| {
                "Weir accepts nobody without one: convert it with the file that has it".to_owned()
            }),
        });
    }
    let mut body = String::new();
    globals.write(&mut body);
    if let Some(bind) = &site.admin {
        let _ = writeln!(body, "\n[admin]\nbind = {}", output::said(bind));
    }
    site.logs.write(&mut body);
    globals::resolvers(&sections, &mut body, &mut site.ledger);
    globals::cache(&sections, &mut body, &mut site.ledger);
    peers.write(&sections, site.shares, &globals, (&mut body, &mut site.ledger));
    site.maps.write(&mut body);
    body.push_str(&tables);
    let used: Vec<String> = site.lists();
    globals::others(&sections, &used, &globals.folder, &mut site.ledger);
    site.judge();
    let Site { ledger, mut files, maps, .. } = site;
    files.extend(maps.files().iter().cloned());
    let body = body.trim_start_matches('\n').to_owned();
    Ok(Converted { from: "HAProxy", body, files, directives: ledger.into_verdicts().in_order() })
}

#[cfg(test)]
mod tests;
