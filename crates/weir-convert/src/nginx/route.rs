//! A route of the converted file, and what several routes have in common.

use std::fmt::Write as _;

use weir_config::quoted;

use super::request_test::RouteTest;
use crate::write::line;

/// A route.
#[derive(Clone, Debug, Default)]
pub struct NewRoute {
    /// What stands above it as a comment.
    pub comment: String,
    /// Which requests it takes.
    pub test: RouteTest,
    /// Its other keys, each with its value as TOML.
    keys: Vec<(&'static str, String)>,
}

impl NewRoute {
    /// A route without an action.
    pub fn of(test: RouteTest, comment: impl Into<String>) -> NewRoute {
        NewRoute { comment: comment.into(), test, keys: Vec::new() }
    }

    /// A route that answers with a status and nothing else.
    pub fn answering(test: RouteTest, comment: impl Into<String>, status: u16) -> NewRoute {
        let mut route = NewRoute::of(test, comment);
        route.set("respond", format!("{{ status = {status} }}"));
        route
    }

    /// The same for other requests.
    pub fn for_test(&self, test: RouteTest) -> NewRoute {
        NewRoute { test, ..self.clone() }
    }

    /// Sets a key to a value that is TOML.
    pub fn set(&mut self, key: &'static str, value: impl Into<String>) {
        let value = value.into();
        match self.keys.iter_mut().find(|(own, _)| *own == key) {
            Some((_, old)) => *old = value,
            None => self.keys.push((key, value)),
        }
    }

    /// Sets a key to a text.
    pub fn set_text(&mut self, key: &'static str, value: &str) {
        self.set(key, quoted(value));
    }

    /// The value of a key, as TOML.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.keys.iter().find(|(own, _)| *own == key).map(|(_, value)| value.as_str())
    }

    /// Takes a key out.
    pub fn unset(&mut self, key: &str) {
        self.keys.retain(|(own, _)| *own != key);
    }

    /// The status that it answers with by itself.
    pub fn own_status(&self) -> Option<u16> {
        let (_, rest) = self.get("respond")?.split_once("status = ")?;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
    }

    /// Whether it forwards.
    pub fn is_forwarding(&self) -> bool {
        self.get("pool").is_some()
    }

    /// Its lines, without the name of its table.
    pub fn lines(&self) -> String {
        let mut body = String::new();
        for (key, value) in self.test.keys() {
            line(&mut body, key, value);
        }
        for (key, value) in &self.keys {
            line(&mut body, key, value);
        }
        body
    }
}

/// Keys that are never taken out of a route, because they say what it does.
const OWN: [&str; 5] = ["pool", "respond", "redirect", "rewrite", "pool_map"];

/// What all routes that forward have in common, if there are several: it stands once, in a table that they
/// take over.
pub fn in_common(routes: &mut [NewRoute], name: &str) -> String {
    let forwarding: Vec<usize> = (0..routes.len()).filter(|at| routes[*at].is_forwarding()).collect();
    let [first, others @ ..] = forwarding.as_slice() else { return String::new() };
    if others.is_empty() {
        return String::new();
    }
    let same = |(key, value): &(&'static str, String)| {
        !OWN.contains(key) && others.iter().all(|at| routes[*at].get(key) == Some(value))
    };
    let common: Vec<(&'static str, String)> =
        routes[*first].keys.iter().filter(|pair| same(pair)).cloned().collect();
    if common.len() < 2 {
        return String::new();
    }
    let mut table = format!("\n[shared.{name}]\n");
    for (key, value) in &common {
        line(&mut table, key, value);
    }
    for at in forwarding {
        routes[at].keys.retain(|(key, _)| !common.iter().any(|(other, _)| other == key));
        routes[at].set_text("use", name);
    }
    table
}

/// Writes routes of a listener.
pub fn write_routes(listener: &str, routes: &[NewRoute], body: &mut String) {
    for route in routes {
        body.push('\n');
        if !route.comment.is_empty() {
            let comment: String =
                route.comment.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            let _ = writeln!(body, "# {comment}");
        }
        let _ = writeln!(body, "[[listener.{listener}.route]]");
        body.push_str(&route.lines());
    }
}

/// The lines of a table that Weir takes, and why it would refuse the others, each by itself. `before` and
/// `after` make a whole config of a line.
pub fn taken_lines(lines: &str, before: &str, after: &str) -> (String, Vec<String>) {
    let why_not = |lines: &str| {
        let report = weir_config::check_text("", &format!("{before}{lines}{after}")).err()?;
        let problem =
            report.problems.iter().find(|problem| problem.severity == weir_config::Severity::Error)?;
        Some(problem.message.clone())
    };
    if why_not(lines).is_none() {
        return (lines.to_owned(), Vec::new());
    }
    let (mut taken, mut refused) = (String::new(), Vec::new());
    for line in lines.lines() {
        match why_not(&format!("{line}\n")) {
            None => {
                taken.push_str(line);
                taken.push('\n');
            }
            Some(why) => refused.push(why),
        }
    }
    (taken, refused)
}

/// Why Weir would refuse a route, if it would. `around` has the tables of pools, maps and logs that it names.
pub fn refusal(route: &NewRoute, around: &str) -> Option<String> {
    let mut text = "[listener.x]\nbind = \"127.0.0.1:1\"\n\
                    tls = { certificates = [{ cert = \"c\", key = \"k\" }], client_ca = \"a\" }\n"
        .to_owned();
    write_routes("x", std::slice::from_ref(route), &mut text);
    text.push_str(around);
    let report = weir_config::check_text("", &text).err()?;
    let problem = report.problems.iter().find(|problem| problem.severity == weir_config::Severity::Error)?;
    Some(match problem.hint.is_empty() {
        true => problem.message.clone(),
        false => format!("{}: {}", problem.message, problem.hint),
    })
}
