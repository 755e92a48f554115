//! `location`: in the order in which nginx asks, so that the first that matches is the one it would take.

use super::expression::{Compared, Translated, literal, translate};
use super::request_test::RequestTest;
use super::tree::NginxDirective;

/// How a location is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocationKind {
    /// `= /path`
    Exact(String),
    /// `/path`, or `^~ /path`
    Prefix(String),
    /// `~ expression`
    Expression(Translated),
    /// An expression that Weir cannot have; why. It could be for every request.
    Unknown(String),
    /// A path whose last slash is missing: nginx leads to the one with it.
    Slash(String),
}

/// A location in its place.
#[derive(Clone, Debug)]
pub struct PlacedLocation<'c> {
    /// The location, and before it those around it, outermost first.
    pub chain: Vec<&'c NginxDirective>,
    /// How it is compared.
    pub kind: LocationKind,
    /// Its path as a condition of a route, first; then what else must hold (`true`) and must not (`false`).
    pub tests: Vec<(bool, RequestTest)>,
}

impl<'c> PlacedLocation<'c> {
    /// The location itself.
    pub fn own(&self) -> &'c NginxDirective {
        self.chain[self.chain.len() - 1]
    }
}

/// A location with what its words say.
struct ReadLocation<'c> {
    directive: &'c NginxDirective,
    kind: LocationKind,
    /// `^~`
    before_expressions: bool,
}

/// What of a level comes before the expressions of the level around it, and what comes after them.
#[derive(Default)]
struct Ordered<'c> {
    before: Vec<PlacedLocation<'c>>,
    after: Vec<PlacedLocation<'c>>,
}

/// The path of a location, split off its `=`, `~`, `~*`, `^~`.
pub fn words_of(location: &NginxDirective) -> (&str, &str) {
    match location.words.as_slice() {
        [only] => {
            for modifier in ["=", "^~", "~*", "~"] {
                if let Some(rest) = only.strip_prefix(modifier) {
                    return (modifier, rest);
                }
            }
            ("", only)
        }
        [modifier, path, ..] => (modifier, path),
        [] => ("", ""),
    }
}

/// All locations among the directives of a server, in order.
pub fn in_order(block: &[NginxDirective]) -> Vec<PlacedLocation<'_>> {
    let ordered = level(block, &[], &[]);
    ordered.before.into_iter().chain(ordered.after).collect()
}

fn read(directive: &NginxDirective) -> Option<ReadLocation<'_>> {
    let (modifier, path) = words_of(directive);
    if path.starts_with('@') {
        return None;
    }
    let kind = match modifier {
        "=" => LocationKind::Exact(path.to_owned()),
        "~" | "~*" => match translate(path, modifier == "~*", Compared::Path) {
            Ok(translated) => LocationKind::Expression(translated),
            Err(why) => LocationKind::Unknown(why),
        },
        _ => LocationKind::Prefix(path.to_owned()),
    };
    Some(ReadLocation { directive, kind, before_expressions: modifier == "^~" })
}

/// Orders the locations of a block. `chain` are the locations around it, `outer` what must hold for it.
fn level<'c>(
    block: &'c [NginxDirective],
    chain: &[&'c NginxDirective],
    outer: &[(bool, RequestTest)],
) -> Ordered<'c> {
    let read: Vec<ReadLocation<'c>> =
        block.iter().filter(|directive| directive.name == "location").filter_map(read).collect();
    let has_expressions =
        read.iter().any(|it| matches!(it.kind, LocationKind::Expression(_) | LocationKind::Unknown(_)));
    let mut prefixes: Vec<(&str, &ReadLocation<'c>)> = read
        .iter()
        .filter_map(|it| match &it.kind {
            LocationKind::Prefix(path) => Some((path.as_str(), it)),
            _ => None,
        })
        .collect();
    prefixes.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    let placed = |it: &ReadLocation<'c>, kind: LocationKind, own: Vec<(bool, RequestTest)>| {
        let chain = chain.iter().copied().chain([it.directive]).collect();
        let around = outer.iter().filter(|test| is_needed(&own, test)).cloned().collect::<Vec<_>>();
        PlacedLocation { chain, kind, tests: own.into_iter().chain(around).collect() }
    };
    let mut ordered = Ordered::default();
    for it in &read {
        if let LocationKind::Exact(path) = &it.kind {
            ordered.before.push(placed(
                it,
                it.kind.clone(),
                vec![(true, RequestTest::path(exact_path(path)))],
            ));
        }
    }
    for (path, it) in &prefixes {
        if let Some(without) = slash_missing(path, it.directive, &read) {
            let own = vec![(true, RequestTest::path(exact_path(without)))];
            ordered.before.push(placed(it, LocationKind::Slash((*path).to_owned()), own));
        }
    }
    // What stands in each prefix: its own locations, and itself behind them.
    let mut slots: Vec<(bool, Vec<PlacedLocation<'c>>)> = Vec::new();
    for (path, it) in &prefixes {
        let longer: Vec<(bool, RequestTest)> = prefixes
            .iter()
            .filter(|(other, _)| other.len() > path.len() && other.starts_with(path))
            .map(|(other, _)| (false, RequestTest::path(prefix_path(other))))
            .collect();
        let inner_chain: Vec<&NginxDirective> = chain.iter().copied().chain([it.directive]).collect();
        let mut inner_outer = vec![(true, RequestTest::path(prefix_path(path)))];
        inner_outer.extend(longer.iter().cloned());
        inner_outer.extend(outer.iter().cloned());
        let inner = level(it.directive.inner(), &inner_chain, &inner_outer);
        ordered.before.extend(inner.before);
        let mut slot = inner.after;
        let early = it.before_expressions && has_expressions;
        slot.push(placed(it, it.kind.clone(), vec![(true, RequestTest::path(prefix_path(path)))]));
        if early {
            leave_to_expressions(&mut slot, &longer, &prefixes);
        }
        slots.push((early, slot));
    }
    let (early, late): (Vec<_>, Vec<_>) = slots.into_iter().partition(|(early, _)| *early);
    ordered.before.extend(early.into_iter().flat_map(|(_, slot)| slot));
    for it in &read {
        let own = match &it.kind {
            LocationKind::Expression(translated) => {
                vec![(true, RequestTest::path(format!("~{}", translated.text)))]
            }
            LocationKind::Unknown(_) => Vec::new(),
            _ => continue,
        };
        let inner_chain: Vec<&NginxDirective> = chain.iter().copied().chain([it.directive]).collect();
        let mut inner_outer = own.clone();
        inner_outer.extend(outer.iter().cloned());
        let inner = level(it.directive.inner(), &inner_chain, &inner_outer);
        ordered.before.extend(inner.before);
        ordered.before.extend(inner.after);
        ordered.before.push(placed(it, it.kind.clone(), own));
    }
    ordered.after.extend(late.into_iter().flat_map(|(_, slot)| slot));
    ordered
}

/// Leaves what is of a longer prefix without `^~` to the expressions, which are asked before it.
fn leave_to_expressions(
    slot: &mut [PlacedLocation<'_>],
    longer: &[(bool, RequestTest)],
    prefixes: &[(&str, &ReadLocation<'_>)],
) {
    let is_plain = |test: &RequestTest| {
        prefixes.iter().any(|(other, it)| !it.before_expressions && test.path == [prefix_path(other)])
    };
    for location in slot {
        let own = &location.tests;
        let more =
            longer.iter().filter(|test| is_plain(&test.1) && !own.contains(test) && is_needed(own, test));
        location.tests = own.iter().chain(more).cloned().collect();
    }
}

/// Whether a condition on the path can make a difference beside the first of `tests`, the location's own.
fn is_needed(tests: &[(bool, RequestTest)], (holds, other): &(bool, RequestTest)) -> bool {
    let own = tests.first().and_then(|(_, test)| test.path.first());
    let (Some(own), Some(other)) = (own, other.path.first().and_then(|path| path.strip_suffix('*'))) else {
        return true;
    };
    if own.starts_with('~') || other.starts_with('~') {
        return true;
    }
    let (own, is_prefix) = match own.strip_suffix('*') {
        Some(prefix) => (prefix, true),
        None => (own.as_str(), false),
    };
    match holds {
        true => !own.starts_with(other),
        false => own.starts_with(other) || (is_prefix && other.starts_with(own)),
    }
}

/// The path whose missing slash nginx adds by a redirect: that of a location with a slash at its end that
/// forwards, unless another location is for exactly that path.
fn slash_missing<'p>(path: &'p str, location: &NginxDirective, all: &[ReadLocation<'_>]) -> Option<&'p str> {
    let without = path.strip_suffix('/').filter(|without| !without.is_empty())?;
    let forwards = |directive: &NginxDirective| {
        matches!(
            directive.name.as_str(),
            "proxy_pass" | "grpc_pass" | "fastcgi_pass" | "uwsgi_pass" | "scgi_pass" | "memcached_pass"
        )
    };
    let has_own = all.iter().any(|other| match &other.kind {
        LocationKind::Exact(path) | LocationKind::Prefix(path) => path == without,
        _ => false,
    });
    (location.inner().iter().any(forwards) && !has_own).then_some(without)
}

/// A path as Weir compares it: what is not a plain character is percent-encoded.
pub fn encoded(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        let stays = byte.is_ascii_alphanumeric() || b"-._~!$&'()+,;=:@/*".contains(&byte);
        match stays {
            true => out.push(char::from(byte)),
            false => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn exact_path(path: &str) -> String {
    let path = encoded(path);
    if path.contains('*') { format!("~^{}$", literal(&path)) } else { path }
}

fn prefix_path(path: &str) -> String {
    let path = encoded(path);
    if path.contains('*') { format!("~^{}", literal(&path)) } else { format!("{path}*") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nginx::tree::{DirectiveNumbers, parse};

    fn shown(text: &str) -> Vec<String> {
        let tree = parse("", text, &mut DirectiveNumbers::default()).unwrap();
        let placed = in_order(&tree);
        let show = |it: &PlacedLocation<'_>| {
            let tests: Vec<String> = it
                .tests
                .iter()
                .map(|(holds, test)| format!("{}{}", if *holds { "" } else { "!" }, test.path.join(",")))
                .collect();
            tests.join(" ")
        };
        placed.iter().map(show).collect()
    }

    #[test]
    fn exact_paths_come_first_then_expressions_then_the_longest_prefix() {
        let text = "location / {} location ~ \\.png$ {} location /a/ {} location = /x {} location /a/b {} location ~* ^/A {}";
        assert_eq!(shown(text), ["/x", "~\\.png$", "~(?i)^/A", "/a/b*", "/a/*", "/*"]);
    }

    #[test]
    fn a_prefix_before_expressions_is_so_only_where_it_is_the_longest() {
        let text =
            "location ^~ /a/ {} location /a/b/ {} location ^~ /a/b/c/ {} location ~ x {} location / {}";
        assert_eq!(shown(text), ["/a/b/c/*", "/a/* !/a/b/*", "~x", "/a/b/*", "/*"]);
    }

    #[test]
    fn a_location_in_another_is_asked_within_it() {
        let text =
            "location /a/ { location ~ \\.png$ {} location /a/b/ {} } location /a/c/ {} location ~ ^/a {}";
        assert_eq!(shown(text), ["~\\.png$ /a/* !/a/c/*", "~^/a", "/a/c/*", "/a/b/*", "/a/*"]);
    }

    #[test]
    fn a_missing_slash_is_added_by_those_that_forward() {
        let text = "location /a/ { proxy_pass http://x; } location /b/ {} location /c/ { proxy_pass http://x; } location = /c {}";
        assert_eq!(shown(text), ["/c", "/a", "/a/*", "/b/*", "/c/*"]);
    }
}
