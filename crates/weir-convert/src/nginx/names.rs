//! `server_name`: which server a request's host is for, as conditions in an order.

use super::expression::{Compared, literal, translate};
use super::ledger::NginxLedger;
use super::tree::NginxDirective;

/// How a name is compared, in the order in which nginx asks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameKind {
    /// This host.
    Exact(String),
    /// Hosts that end so, with the dot.
    Ending(String),
    /// Hosts that begin so, with the dot.
    Beginning(String),
    /// An expression of Weir's, with its `~`.
    Expression(String),
}

impl NameKind {
    fn rank(&self) -> (usize, usize) {
        match self {
            NameKind::Exact(_) => (0, 0),
            // The longest first.
            NameKind::Ending(text) => (1, usize::MAX - text.len()),
            NameKind::Beginning(text) => (2, usize::MAX - text.len()),
            NameKind::Expression(_) => (3, 0),
        }
    }

    /// As `host` of a route has it.
    fn pattern(&self) -> String {
        match self {
            NameKind::Exact(host) => host.clone(),
            NameKind::Ending(end) => format!("*{end}"),
            NameKind::Beginning(front) => format!("~^{}", literal(front)),
            NameKind::Expression(expression) => expression.clone(),
        }
    }

    /// Whether no host is of both.
    fn is_apart_from(&self, other: &NameKind) -> bool {
        match (self, other) {
            (NameKind::Exact(a), NameKind::Exact(b)) => a != b,
            (NameKind::Exact(host), NameKind::Ending(end))
            | (NameKind::Ending(end), NameKind::Exact(host)) => !host.ends_with(end.as_str()),
            (NameKind::Ending(a), NameKind::Ending(b)) => {
                !a.ends_with(b.as_str()) && !b.ends_with(a.as_str())
            }
            (NameKind::Exact(host), NameKind::Beginning(front))
            | (NameKind::Beginning(front), NameKind::Exact(host)) => !host.starts_with(front.as_str()),
            (NameKind::Beginning(a), NameKind::Beginning(b)) => {
                !a.starts_with(b.as_str()) && !b.starts_with(a.as_str())
            }
            _ => false,
        }
    }
}

/// A server's turn: these hosts go to it, if none of an earlier turn did. Without hosts: all that are left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTurn {
    /// Hosts as conditions of a route.
    pub hosts: Vec<String>,
    /// The server, as a place in the list of all servers.
    pub server: usize,
}

/// The names of a server.
fn names_of(server: &NginxDirective, ledger: &mut NginxLedger) -> Vec<NameKind> {
    let mut names = Vec::new();
    for directive in server.inner().iter().filter(|directive| directive.name == "server_name") {
        ledger.exact(directive, "`host` of its routes");
        for word in &directive.words {
            let lower = word.to_ascii_lowercase();
            let found = match word.strip_prefix('~') {
                Some(expression) => match translate(expression, false, Compared::Text) {
                    Ok(translated) if translated.is_same => {
                        vec![NameKind::Expression(format!("~{}", translated.text))]
                    }
                    Ok(_) => {
                        let note = format!(
                            "`{word}` takes more than linear time: left out, SUCH HOSTS GET THE DEFAULT SERVER"
                        );
                        ledger.unsupported(directive, note);
                        continue;
                    }
                    Err(why) => {
                        let note = format!(
                            "`{word}` has no counterpart ({why}): left out, SUCH HOSTS GET THE DEFAULT SERVER"
                        );
                        ledger.unsupported(directive, note);
                        continue;
                    }
                },
                None => plain_names(&lower),
            };
            match found.iter().all(|name| is_taken(&name.pattern())) {
                true => names.extend(found),
                false => ledger.unsupported(directive, format!("Weir would not take `{word}`: left out")),
            }
            // Others, such as `_` and the empty one, are of no request: the default server takes them.
        }
    }
    names
}

/// What a name without an expression stands for.
fn plain_names(name: &str) -> Vec<NameKind> {
    if let Some(rest) = name.strip_prefix("*.") {
        vec![NameKind::Ending(format!(".{rest}"))]
    } else if let Some(rest) = name.strip_suffix(".*") {
        vec![NameKind::Beginning(format!("{rest}."))]
    } else if let Some(rest) = name.strip_prefix('.') {
        vec![NameKind::Exact(rest.to_owned()), NameKind::Ending(format!(".{rest}"))]
    } else if is_host(name) {
        vec![NameKind::Exact(name.to_owned())]
    } else {
        Vec::new()
    }
}

/// Whether Weir takes a condition on the host.
fn is_taken(host: &str) -> bool {
    let route = format!("[[listener.x.route]]\nhost = {}\nrespond = {{}}\n", weir_config::quoted(host));
    weir_config::check_text("", &format!("[listener.x]\nbind = \"127.0.0.1:1\"\n{route}")).is_ok()
}

/// Whether a name can be of a request.
fn is_host(name: &str) -> bool {
    name.contains(|c: char| c.is_ascii_alphanumeric())
        && !name.contains(['*', '$', '"', '/', ' '])
        && (!name.contains(':') || name.starts_with('['))
}

/// A server's first name, as `$server_name` has it; empty if it has none.
pub fn first_name(server: &NginxDirective) -> String {
    let directive = server.inner().iter().find(|directive| directive.name == "server_name");
    let name = directive.map_or("", |directive| directive.word(0));
    name.strip_prefix('.').unwrap_or(name).to_owned()
}

/// The turns of the servers of a listener: nginx takes exact names, then the longest `*.x`, then the longest
/// `x.*`, then expressions in their order, then the default server. A server has several turns only where
/// another one stands between them.
pub fn turns(
    servers: &[(usize, &NginxDirective)],
    default: usize,
    ledger: &mut NginxLedger,
) -> Vec<HostTurn> {
    let mut entries: Vec<(NameKind, usize)> = Vec::new();
    for (number, server) in servers {
        for name in names_of(server, ledger) {
            // Of two servers with the same name the first has it.
            if !entries.iter().any(|(other, _)| *other == name) {
                entries.push((name, *number));
            }
        }
    }
    entries.sort_by_key(|(name, _)| name.rank());
    let mut turns: Vec<(usize, Vec<NameKind>)> = Vec::new();
    for (name, server) in entries {
        let own = turns.iter().rposition(|(of, _)| *of == server);
        let fits = own.filter(|at| {
            turns[at + 1..].iter().flat_map(|(_, names)| names).all(|other| name.is_apart_from(other))
        });
        match fits {
            Some(at) => turns[at].1.push(name),
            None => turns.push((server, vec![name])),
        }
    }
    // The default server comes last anyway: what no other one could take need not be named.
    for at in (0..turns.len()).rev() {
        let (later, of_default) = (&turns[at + 1..], turns[at].0 == default);
        let others = || later.iter().filter(|(server, _)| *server != default).flat_map(|(_, names)| names);
        if of_default && turns[at].1.iter().all(|name| others().all(|other| name.is_apart_from(other))) {
            turns.remove(at);
        }
    }
    let named = turns
        .into_iter()
        .map(|(server, names)| HostTurn { hosts: names.iter().map(NameKind::pattern).collect(), server });
    named.chain([HostTurn { hosts: Vec::new(), server: default }]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::tree::{DirectiveNumbers, parse};

    fn shown(names: &[&str], default: usize) -> Vec<String> {
        let text: String = names.iter().map(|names| format!("server {{ server_name {names}; }}")).collect();
        let tree = parse("", &text, &mut DirectiveNumbers::default()).unwrap();
        let servers: Vec<(usize, &NginxDirective)> = tree.iter().enumerate().collect();
        let turns = turns(&servers, default, &mut NginxLedger::default());
        turns.iter().map(|turn| format!("{} {}", turn.server, turn.hosts.join(" "))).collect()
    }

    #[test]
    fn servers_take_turns_in_the_order_in_which_nginx_compares_names() {
        assert_eq!(shown(&["a.example", "b.example www.b.example"], 0), ["1 b.example www.b.example", "0 "]);
        assert_eq!(
            shown(&["*.example", "a.example", "~^a\\.", "a.*"], 2),
            ["1 a.example", "0 *.example", "3 ~^a\\.", "2 "]
        );
        // The default server has a name that another one's wildcard would take.
        assert_eq!(shown(&["shop.example", "*.example"], 0), ["0 shop.example", "1 *.example", "0 "]);
        // One server on both sides of another.
        assert_eq!(
            shown(&["_", "a.x.example *.example", "*.x.example"], 0),
            ["1 a.x.example", "2 *.x.example", "1 *.example", "0 "]
        );
        assert_eq!(shown(&[".example"], 0), ["0 "]);
    }
}
