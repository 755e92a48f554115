//! Conditions as routes of Weir can ask them.
//!
//! A rule's condition is an OR of ANDs of ACLs that may be negated. A route holds if each of its keys does
//! (a list holds if one of it does), nothing in its `not` does, and something in its `any` does. So each AND
//! becomes a route, or a few, if it asks twice for the same thing.

use super::output::{inline, said, said_all};
use super::paths::{covers, exclude};

/// One key of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// One of these hosts.
    Host(Vec<String>),
    /// One of these paths.
    Path(Vec<String>),
    /// One of these methods.
    Method(Vec<String>),
    /// One of these networks.
    ClientIp(Vec<String>),
    /// A value by name: a header field, a cookie, a parameter, a map.
    Named(Family, String, String),
    /// One of these server names, of TLS within TCP.
    Sni(Vec<String>),
}

/// What is asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `header`
    Header,
    /// `cookie`
    Cookie,
    /// `query`
    Query,
    /// `map`
    Map,
}

impl Family {
    const fn key(self) -> &'static str {
        match self {
            Family::Header => "header",
            Family::Cookie => "cookie",
            Family::Query => "query",
            Family::Map => "map",
        }
    }
}

impl Ask {
    const fn key(&self) -> &'static str {
        match self {
            Ask::Host(_) => "host",
            Ask::Path(_) => "path",
            Ask::Method(_) => "method",
            Ask::ClientIp(_) => "client_ip",
            Ask::Named(family, ..) => family.key(),
            Ask::Sni(_) => "sni",
        }
    }

    /// Whether both would be the same entry of a table.
    fn same_place(&self, other: &Ask) -> bool {
        match (self, other) {
            (Ask::Named(a, name, _), Ask::Named(b, other, _)) => a == b && name == other,
            (Ask::Named(..), _) | (_, Ask::Named(..)) => false,
            _ => self.key() == other.key(),
        }
    }

    /// The list, where it has one.
    fn list(&self) -> Option<&[String]> {
        match self {
            Ask::Host(list) | Ask::Path(list) | Ask::Method(list) | Ask::ClientIp(list) | Ask::Sni(list) => {
                Some(list)
            }
            Ask::Named(..) => None,
        }
    }

    fn list_mut(&mut self) -> Option<&mut Vec<String>> {
        match self {
            Ask::Host(list) | Ask::Path(list) | Ask::Method(list) | Ask::ClientIp(list) | Ask::Sni(list) => {
                Some(list)
            }
            Ask::Named(..) => None,
        }
    }

    /// One that holds where either does, if a single one can.
    fn or(&self, other: &Ask) -> Option<Ask> {
        if self == other {
            return Some(self.clone());
        }
        let more = other.list().filter(|_| self.same_place(other))?;
        let mut both = self.clone();
        let list = both.list_mut()?;
        for one in more {
            if !list.contains(one) {
                list.push(one.clone());
            }
        }
        Some(both)
    }

    /// Whether it asks for the path.
    pub const fn is_path(&self) -> bool {
        matches!(self, Ask::Path(_))
    }
}

/// Alternatives of which one must hold, as few as possible.
pub fn merged(alternatives: Vec<Ask>) -> Vec<Ask> {
    let mut merged: Vec<Ask> = Vec::new();
    for ask in alternatives {
        match merged.iter_mut().find_map(|known| known.or(&ask).map(|both| (known, both))) {
            Some((known, both)) => *known = both,
            None => merged.push(ask),
        }
    }
    merged
}

/// An AND: of each group one must hold, and none of `nots`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct All {
    /// Groups of alternatives; none of them is empty.
    pub groups: Vec<Vec<Ask>>,
    /// What must not hold.
    pub nots: Vec<Ask>,
}

impl All {
    /// Whether it holds for everything.
    pub fn is_always(&self) -> bool {
        self.groups.is_empty() && self.nots.is_empty()
    }

    /// Both together; `None` if they can't hold together.
    pub fn and(&self, other: &All) -> Option<All> {
        let mut both = self.clone();
        for group in &other.groups {
            if !both.groups.contains(group) {
                both.groups.push(group.clone());
            }
        }
        for ask in &other.nots {
            if !both.nots.contains(ask) {
                both.nots.push(ask.clone());
            }
        }
        let denied = |group: &Vec<Ask>| group.iter().all(|ask| both.nots.contains(ask));
        if both.groups.iter().any(denied) { None } else { both.simplified() }
    }

    /// The same with fewer paths, as far as some are excluded by others or say the same; `None` if no path is
    /// left.
    fn simplified(mut self) -> Option<All> {
        let lists: Vec<Vec<String>> =
            self.groups.iter().filter_map(|group| paths_of(group)).cloned().collect();
        let denied: Vec<String> = self
            .nots
            .iter()
            .filter_map(|ask| paths_of(std::slice::from_ref(ask)))
            .flatten()
            .cloned()
            .collect();
        let possible = |path: &String| {
            lists.iter().all(|list| list.iter().any(|other| !exclude(path, other)))
                && !denied.iter().any(|other| covers(other, path))
        };
        for group in &mut self.groups {
            if let [Ask::Path(list)] = group.as_mut_slice() {
                list.retain(&possible);
                if list.is_empty() {
                    return None;
                }
            }
        }
        let mut at = 0;
        while at < self.groups.len() {
            let says_nothing = paths_of(&self.groups[at]).is_some_and(|wide| {
                let others = self.groups.iter().enumerate().filter(|(other, _)| *other != at);
                let mut lists = others.filter_map(|(_, group)| paths_of(group));
                lists.any(|narrow| narrow.iter().all(|path| wide.iter().any(|wide| covers(wide, path))))
            });
            if says_nothing {
                self.groups.remove(at);
            } else {
                at += 1;
            }
        }
        let left: Vec<Vec<String>> =
            self.groups.iter().filter_map(|group| paths_of(group)).cloned().collect();
        for ask in &mut self.nots {
            if let Ask::Path(list) = ask {
                list.retain(|path| left.iter().all(|list| list.iter().any(|other| !exclude(path, other))));
            }
        }
        self.nots.retain(|ask| !matches!(ask, Ask::Path(list) if list.is_empty()));
        Some(self)
    }

    /// The condition without what it asks of the path.
    pub fn without_paths(&self) -> All {
        let mut wider = self.clone();
        wider.groups.retain(|group| !group.iter().any(Ask::is_path));
        wider.nots.retain(|ask| !ask.is_path());
        wider
    }

    /// The server names that it excludes, if it asks for nothing else.
    pub fn excluded_names(&self) -> Option<Vec<Ask>> {
        let is_name = |ask: &Ask| matches!(ask, Ask::Sni(_));
        let are_names = self.groups.is_empty() && !self.nots.is_empty() && self.nots.iter().all(is_name);
        are_names.then(|| self.nots.clone())
    }

    /// Whether the path is asked for.
    pub fn asks_path(&self) -> bool {
        self.groups.iter().flatten().chain(&self.nots).any(Ask::is_path)
    }
}

/// All routes of tcp ask for.
const TCP_ASKS: &str = "routes of tcp ask for server names (`sni`) alone";

/// [`conditions`], for TCP where it is that.
pub fn conditions_of(all: &All, pinned: Option<&str>, is_tcp: bool) -> Result<Vec<Condition>, String> {
    let is_name = |group: &Vec<Ask>| matches!(group.as_slice(), [Ask::Sni(_)]);
    if is_tcp && !(all.nots.is_empty() && all.groups.len() < 2 && all.groups.iter().all(is_name)) {
        return Err(TCP_ASKS.to_owned());
    }
    conditions(all, pinned)
}

/// As much of a condition as routes can ask, which holds for all that it holds for.
pub fn askable(all: &All, pinned: Option<&str>, is_tcp: bool) -> All {
    let mut wider = all.clone();
    if is_tcp {
        wider.nots.clear();
        wider.groups.retain(|group| matches!(group.as_slice(), [Ask::Sni(_)]));
    }
    while conditions_of(&wider, pinned, is_tcp).is_err() && wider.groups.pop().is_some() {}
    wider
}

/// The paths of a group that asks for nothing else.
fn paths_of(group: &[Ask]) -> Option<&Vec<String>> {
    match group {
        [Ask::Path(list)] => Some(list),
        _ => None,
    }
}

/// The condition of one route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// Keys of the route.
    keys: Vec<Ask>,
    any: Vec<Ask>,
    nots: Vec<Ask>,
}

impl Condition {
    /// Its entries in a route.
    pub fn entries(&self) -> Vec<(String, String)> {
        let mut entries = table(&self.keys);
        for (key, asks) in [("any", &self.any), ("not", &self.nots)] {
            let tables: Vec<String> =
                merged(asks.clone()).into_iter().map(|ask| inline(&table(&[ask]))).collect();
            match tables.as_slice() {
                [] => {}
                [one] if key == "not" => entries.push((key.to_owned(), one.clone())),
                several => entries.push((key.to_owned(), format!("[{}]", several.join(", ")))),
            }
        }
        entries
    }
}

/// The entries of a table that asks for all of these, which have a place each.
fn table(asks: &[Ask]) -> Vec<(String, String)> {
    let mut entries: Vec<(String, String)> = Vec::new();
    let mut named: Vec<(&'static str, Vec<(String, String)>)> = Vec::new();
    for ask in asks {
        match ask {
            Ask::Named(family, name, value) => {
                let entry = (name.clone(), said(value));
                match named.iter_mut().find(|(key, _)| *key == family.key()) {
                    Some((_, list)) => list.push(entry),
                    None => named.push((family.key(), vec![entry])),
                }
            }
            _ => entries.push((ask.key().to_owned(), said_all(ask.list().unwrap_or_default()))),
        }
    }
    entries.extend(named.into_iter().map(|(key, list)| (key.to_owned(), inline(&list))));
    entries
}

/// Most routes that one AND is spread over.
const MOST_ROUTES: usize = 32;

/// The routes that together hold where an AND does; they exclude each other only by their order. A path that
/// is `pinned` stands as the route's own, so that its groups have numbers.
///
/// `Err` says what a route can't ask.
pub fn conditions(all: &All, pinned: Option<&str>) -> Result<Vec<Condition>, String> {
    let own = pinned.map(|path| vec![Ask::Path(vec![path.to_owned()])]);
    let with_own = All { groups: own.iter().cloned().collect(), nots: Vec::new() };
    let Some(mut all) = all.and(&with_own) else { return Ok(Vec::new()) };
    all.groups.retain(|group| Some(group) != own.as_ref());
    let mut first = Condition { nots: all.nots.clone(), ..Condition::default() };
    first.keys.extend(pinned.map(|path| Ask::Path(vec![path.to_owned()])));
    let mut left = Vec::new();
    for group in &all.groups {
        match group.as_slice() {
            [one] if !first.keys.iter().any(|key| key.same_place(one)) => first.keys.push(one.clone()),
            _ => left.push(group),
        }
    }
    // Those that ask for something that has its place already can stand in `any` alone.
    let taken =
        |group: &[Ask]| group.iter().filter(|ask| first.keys.iter().any(|key| key.same_place(ask))).count();
    left.sort_by_key(|group| std::cmp::Reverse(taken(group)));
    let mut routes = vec![first.clone()];
    for (at, group) in left.iter().enumerate() {
        if at == 0 {
            routes.iter_mut().for_each(|route| route.any.clone_from(group));
            continue;
        }
        let mut spread = Vec::new();
        for route in &routes {
            for ask in *group {
                if route.keys.iter().any(|key| key.same_place(ask)) {
                    return Err(format!("one route cannot ask for `{}` so often at once", ask.key()));
                }
                let mut route = route.clone();
                route.keys.push(ask.clone());
                spread.push(route);
            }
        }
        if spread.len() > MOST_ROUTES {
            return Err(format!("it would take more than {MOST_ROUTES} routes"));
        }
        routes = spread;
    }
    Ok(routes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> Ask {
        Ask::Path(vec![text.to_owned()])
    }

    fn host(text: &str) -> Ask {
        Ask::Host(vec![text.to_owned()])
    }

    fn written(all: &All) -> Vec<String> {
        let routes = conditions(all, None).unwrap_or_else(|problem| panic!("{problem}"));
        routes.iter().map(|route| inline(&route.entries())).collect()
    }

    #[test]
    fn what_must_hold_at_once_is_one_route() {
        let all = All {
            groups: vec![vec![path("/a*")], vec![host("x")], vec![path("*.php")]],
            nots: vec![path("/a/b.php"), path("/b.php"), path("/a/c*"), host("y")],
        };
        assert_eq!(
            written(&all),
            [
                r#"{ path = "/a*", host = "x", any = [{ path = "*.php" }], not = [{ path = ["/a/b.php", "/a/c*"] }, { host = "y" }] }"#
            ]
        );
    }

    #[test]
    fn alternatives_of_different_kinds_stand_in_any_and_more_are_spread() {
        let all =
            All { groups: vec![vec![path("/a"), host("x")], vec![host("y"), path("/b")]], nots: vec![] };
        assert_eq!(
            written(&all),
            [
                r#"{ host = "y", any = [{ path = "/a" }, { host = "x" }] }"#,
                r#"{ path = "/b", any = [{ path = "/a" }, { host = "x" }] }"#,
            ]
        );
        let thrice =
            All { groups: vec![vec![path("/a*")], vec![path("*b")], vec![path("*c*")]], nots: vec![] };
        conditions(&thrice, None).expect_err("three paths at once");
    }

    #[test]
    fn what_excludes_itself_is_nothing() {
        let api = All { groups: vec![vec![path("/a")]], nots: vec![] };
        let other = All { groups: vec![], nots: vec![path("/a")] };
        assert_eq!(api.and(&other), None);
        assert_eq!(api.and(&api), Some(api.clone()));
        assert_eq!(
            merged(vec![path("/a"), host("x"), path("/b")]),
            [Ask::Path(vec!["/a".to_owned(), "/b".to_owned()]), host("x")]
        );
    }
}
