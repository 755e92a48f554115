//! `allow` and `deny`: from an order to lists in which the most specific entry decides.

use std::net::IpAddr;

use super::ledger::NginxLedger;
use super::tree::NginxDirective;

/// NginxClients that an `allow` or `deny` is about.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NginxClients {
    All,
    Unix,
    /// An address in its bits, the length of its prefix, and the text.
    Network {
        is_v6: bool,
        bits: u128,
        prefix: u32,
        text: String,
    },
}

impl NginxClients {
    fn of(text: &str) -> Option<NginxClients> {
        match text {
            "all" => return Some(NginxClients::All),
            "unix:" => return Some(NginxClients::Unix),
            _ => {}
        }
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let (is_v6, bits, width) = match address.parse().ok()? {
            IpAddr::V4(address) => (false, u128::from(address.to_bits()), 32),
            IpAddr::V6(address) => (true, address.to_bits(), 128),
        };
        let prefix = prefix.unwrap_or(width);
        if prefix > width {
            return None;
        }
        // The bits behind the prefix are not looked at.
        let kept = if prefix == 0 { 0 } else { bits >> (width - prefix) << (width - prefix) };
        let text = match is_v6 {
            true => std::net::Ipv6Addr::from_bits(kept).to_string(),
            false => std::net::Ipv4Addr::from_bits(u32::try_from(kept).ok()?).to_string(),
        };
        let text = if prefix == width { text } else { format!("{text}/{prefix}") };
        Some(NginxClients::Network { is_v6, bits: kept, prefix, text })
    }

    /// Whether all of the other's clients are of this.
    fn covers(&self, other: &NginxClients) -> bool {
        match (self, other) {
            (NginxClients::All, _) => true,
            (
                NginxClients::Network { is_v6, bits, prefix, .. },
                NginxClients::Network { is_v6: other_v6, bits: other_bits, prefix: other_prefix, .. },
            ) => {
                let width = if *is_v6 { 128 } else { 32 };
                is_v6 == other_v6
                    && prefix <= other_prefix
                    && (*prefix == 0 || bits >> (width - prefix) == other_bits >> (width - prefix))
            }
            (a, b) => a == b,
        }
    }

    fn text(&self) -> String {
        match self {
            NginxClients::All => "all".to_owned(),
            NginxClients::Unix => "unix:".to_owned(),
            NginxClients::Network { text, .. } => text.clone(),
        }
    }
}

/// Who gets in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientLists {
    /// Nobody does.
    pub refuses_all: bool,
    /// `allow_address`
    pub allow: Vec<String>,
    /// `deny_address`
    pub deny: Vec<String>,
}

impl ClientLists {
    /// Whether everybody gets in.
    pub fn is_open(&self) -> bool {
        *self == ClientLists::default()
    }
}

/// The lists that decide as these directives do: nginx takes the first that is for a client, and lets those
/// pass that none is for.
pub fn lists(directives: &[&NginxDirective], ledger: &mut NginxLedger) -> ClientLists {
    let mut seen: Vec<(bool, NginxClients)> = Vec::new();
    let mut is_over = false;
    for directive in directives {
        let allows = directive.name == "allow";
        let Some(clients) = NginxClients::of(directive.word(0)) else {
            ledger.unsupported(directive, "no network and no address: left out");
            continue;
        };
        let is_shadowed = is_over || seen.iter().any(|(_, other)| other.covers(&clients));
        match (is_shadowed, allows) {
            (true, _) => ledger.exact(directive, "never reached: an earlier one is for the same clients"),
            (false, true) => ledger.exact(directive, "`allow_address`"),
            (false, false) => {
                ledger.exact(directive, "`deny_address`, or all that `allow_address` does not have")
            }
        }
        if !is_shadowed {
            is_over = clients == NginxClients::All;
            seen.push((allows, clients));
        }
    }
    let of = |wanted: bool| -> Vec<String> {
        let those =
            seen.iter().filter(|(allows, clients)| *allows == wanted && *clients != NginxClients::All);
        those.map(|(_, clients)| clients.text()).collect()
    };
    let (mut allow, deny) = (of(true), of(false));
    let denies_rest = seen.contains(&(false, NginxClients::All));
    if denies_rest {
        let refuses_all = allow.is_empty();
        // Whom no entry has is refused by the list of those who are allowed.
        return ClientLists { refuses_all, allow, deny: if refuses_all { Vec::new() } else { deny } };
    }
    if deny.is_empty() {
        return ClientLists::default();
    }
    if !allow.is_empty() {
        allow.extend(
            ["0.0.0.0/0", "::/0", "unix:"].map(str::to_owned).into_iter().filter(|text| !deny.contains(text)),
        );
        allow.dedup();
    }
    ClientLists { refuses_all: false, allow, deny }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::tree::{DirectiveNumbers, parse};

    fn of(text: &str) -> ClientLists {
        let tree = parse("", text, &mut DirectiveNumbers::default()).unwrap();
        lists(&tree.iter().collect::<Vec<_>>(), &mut NginxLedger::default())
    }

    #[test]
    fn the_first_that_is_for_a_client_decides() {
        let lists = |allow: &[&str], deny: &[&str]| ClientLists {
            refuses_all: false,
            allow: allow.iter().map(|&text| text.to_owned()).collect(),
            deny: deny.iter().map(|&text| text.to_owned()).collect(),
        };
        assert_eq!(of("allow 10.0.0.0/8; deny all;"), lists(&["10.0.0.0/8"], &[]));
        assert_eq!(of("deny 10.6.6.6; allow 10.0.0.0/8; deny all;"), lists(&["10.0.0.0/8"], &["10.6.6.6"]));
        assert_eq!(of("deny 192.0.2.0/24;"), lists(&[], &["192.0.2.0/24"]));
        assert_eq!(
            of("allow 10.0.0.0/8; deny 10.1.0.0/16; deny all;"),
            lists(&["10.0.0.0/8"], &[]),
            "shadowed"
        );
        assert_eq!(
            of("allow 10.0.0.1; deny 10.0.0.0/8;"),
            lists(&["10.0.0.1", "0.0.0.0/0", "::/0", "unix:"], &["10.0.0.0/8"])
        );
        assert!(of("deny all;").refuses_all && of("deny all; allow 10.0.0.1;").refuses_all);
        assert!(of("allow all; deny 10.0.0.1;").is_open() && of("").is_open());
        assert_eq!(of("allow 10.1.2.3/8; deny all;"), lists(&["10.0.0.0/8"], &[]));
    }
}
