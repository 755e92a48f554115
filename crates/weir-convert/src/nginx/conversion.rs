//! What the parts of a conversion share.

use std::collections::BTreeMap;

use super::ledger::NginxLedger;
use super::logs::NginxLogs;
use super::maps::NginxMaps;
use super::pools::NewPools;
use super::route::{NewRoute, refusal};
use super::scope::NginxScope;
use super::tree::NginxDirective;
use super::variables::NginxPlace;
use crate::SourceFiles;

/// A conversion under way: what is known of the source, and what has been written.
pub struct Conversion<'c> {
    /// Verdicts.
    pub ledger: NginxLedger,
    /// Tables of values.
    pub maps: NginxMaps<'c>,
    /// Pools that were written.
    pub pools: NewPools,
    /// Access logs.
    pub logs: NginxLogs,
    /// `upstream` blocks, by name.
    pub upstreams: BTreeMap<&'c str, &'c NginxDirective>,
    /// Other files.
    pub files: &'c dyn SourceFiles,
    /// The file outside of blocks, and `http`.
    pub outer: NginxScope<'c>,
    /// Memory of the caches, in bytes, if any is said.
    pub cache_memory: Option<u64>,
}

impl<'c> Conversion<'c> {
    /// A conversion of the directives of `http`, without any verdicts yet.
    pub fn of(http: &'c [NginxDirective], files: &'c dyn SourceFiles) -> Conversion<'c> {
        let upstreams = http.iter().filter(|directive| directive.name == "upstream");
        Conversion {
            ledger: NginxLedger::default(),
            maps: NginxMaps::of(http.iter()),
            pools: NewPools::default(),
            logs: NginxLogs::default(),
            upstreams: upstreams.map(|directive| (directive.word(0), directive)).collect(),
            files,
            outer: NginxScope::default().within(http),
            cache_memory: None,
        }
    }

    /// The name of the map that gives a variable its value; it is written if it was not yet.
    pub fn map_of(&mut self, variable: &str) -> Option<String> {
        self.maps.need(variable, self.files.new_folder(), &mut self.ledger)
    }

    /// The name of a map that says `SUCCESS` of clients with a certificate.
    pub fn certificate_map(&mut self) -> String {
        let only = (".", "SUCCESS");
        self.maps.invented("client_certificate", "$client_cert_subject", only, self.files.new_folder())
    }

    /// A text in Weir's language of values, with the maps that it needs. `Err` names a variable that Weir
    /// lacks.
    pub fn template(&mut self, text: &str, place: &NginxPlace) -> Result<String, String> {
        let text = place.constant(text);
        let maps = self.maps.needed_by(&text, self.files.new_folder(), &mut self.ledger);
        NginxPlace { maps, ..place.clone() }.template(&text)
    }

    /// A path of a file, absolute where it is relative to nginx's folder.
    pub fn file(&self, path: &str) -> String {
        match (path.starts_with('/'), self.files.folder()) {
            (true, _) | (_, "") => path.to_owned(),
            (false, folder) => format!("{folder}/{path}"),
        }
    }

    /// Why Weir would refuse a route, if it would.
    pub fn refusal(&self, route: &NewRoute) -> Option<String> {
        let pools = self.pools.stubs_for(&route.lines());
        refusal(route, &format!("{pools}{}{}", self.maps.stubs(), self.logs.stubs()))
    }

    /// Adds a route if Weir takes it. Otherwise requests that it was for are answered with 501, and the
    /// directive is told to be the reason.
    pub fn add(&mut self, route: NewRoute, of: &NginxDirective, routes: &mut Vec<NewRoute>) {
        let Some(why) = self.refusal(&route) else {
            routes.push(route);
            return;
        };
        let note = format!("Weir would not take it ({why}): such requests are answered with 501");
        self.ledger.unsupported(of, note);
        // What stands in a location said how the route would have been.
        if of.name == "location" {
            let note = "has no effect where the route of its location is answered with 501";
            self.ledger.void(of.inner(), note);
        }
        let closed = NewRoute::answering(route.test.clone(), route.comment.clone(), 501);
        match self.refusal(&closed) {
            None => routes.push(closed),
            Some(_) => {
                // Not even the condition can be said: everything that could have been meant is refused.
                let note =
                    "its condition cannot be said: ALL REQUESTS THAT COME THIS FAR are answered with 501";
                self.ledger.unsupported(of, note);
                routes.push(NewRoute::answering(route.test.only_hosts(), route.comment, 501));
            }
        }
    }
}
