//! Which listeners use a pool, which determines which of its keys have an effect.

use std::collections::BTreeMap;

use crate::auth;
use crate::fallback;
use crate::fields::Fields;
use crate::map;
use crate::mirror;
use crate::plane::{self, Plane};
use crate::protocol::{Protocol, spoken};
use crate::report::{Findings, Span};
use crate::split;

/// A listener that uses a pool, directly or by a route.
#[derive(Clone)]
pub(crate) struct Use {
    /// Its name.
    pub listener: String,
    /// The position of its protocol.
    at: Span,
    /// Its protocol; `None` when it could not be read.
    pub protocol: Option<Protocol>,
    /// The plane that it asks for.
    pub plane: Option<Plane>,
    /// The position of its plane.
    plane_at: Span,
    /// Whether its backends have its address and answer clients directly, bypassing the plane.
    pub is_answered_past: bool,
    /// Whether it passes TLS connections through unchanged.
    pub passes_tls_through: bool,
}

/// The users of each pool by the pool's name, in file order.
pub(crate) struct Uses(BTreeMap<String, Vec<Use>>);

impl Uses {
    /// The uses of all pools of a file.
    pub fn of_file(root: &Fields) -> Uses {
        let mut uses: BTreeMap<String, Vec<Use>> = BTreeMap::new();
        for listener in root.named("listener") {
            let mut by_sni = listener.tables("route").filter(|(_, route)| route.get("sni").is_some());
            let protocol = spoken(listener);
            let by = Use {
                listener: listener.name.clone(),
                at: listener.at("protocol"),
                protocol,
                plane: plane::asked(listener),
                plane_at: listener.at("plane"),
                is_answered_past: plane::is_answered_past(listener),
                passes_tls_through: protocol == Some(Protocol::Tcp)
                    && listener.lacks("tls")
                    && by_sni.next().is_some(),
            };
            let routes = listener.tables("route").map(|(_, route)| route);
            for fields in std::iter::once(listener).chain(routes) {
                let fallbacks = match protocol {
                    None | Some(Protocol::Http) => fallback::chain(root, fields),
                    Some(_) => Vec::new(),
                };
                let others = fallbacks
                    .into_iter()
                    .chain(auth::pools(fields))
                    .chain(split::pools(fields))
                    .chain(mirror::pools(fields))
                    .chain(map::pools(fields));
                for pool in fields.text("pool").into_iter().chain(others) {
                    uses.entry(pool.to_owned()).or_default().push(by.clone());
                }
            }
        }
        Uses(uses)
    }

    /// The uses of `pool`.
    pub fn of(&self, pool: &str) -> &[Use] {
        self.0.get(pool).map_or(&[], Vec::as_slice)
    }

    /// Whether the listener of that name uses `pool`.
    pub fn is_used_by(&self, pool: &str, listener: &str) -> bool {
        self.of(pool).iter().any(|place| place.listener == listener)
    }

    /// The first use of `pool` by a listener with a matching protocol.
    pub fn first(&self, pool: &str, wanted: impl Fn(Protocol) -> bool) -> Option<&Use> {
        self.of(pool).iter().find(|place| place.protocol.is_some_and(&wanted))
    }
}

impl Use {
    /// "listener `vip` is on the kernel plane (weir.toml:4:9)".
    pub fn forwards(&self, findings: &Findings<'_>) -> String {
        format!("listener `{}` is on the kernel plane ({})", self.listener, findings.place(self.plane_at))
    }

    /// "listener `vip` is on the proxy plane (weir.toml:4:9)", or that it speaks a protocol that exists only
    /// there.
    pub fn is_on(&self, findings: &Findings<'_>) -> String {
        match self.plane {
            None => self.speaks(findings),
            Some(plane) => {
                let place = findings.place(self.plane_at);
                format!("listener `{}` asks for \"{}\" ({place})", self.listener, plane.word())
            }
        }
    }

    /// "listener `vip` speaks tcp (weir.toml:3:12)".
    pub fn speaks(&self, findings: &Findings<'_>) -> String {
        let protocol = self.protocol.map_or("?", Protocol::word);
        format!("listener `{}` speaks {protocol} ({})", self.listener, findings.place(self.at))
    }
}
