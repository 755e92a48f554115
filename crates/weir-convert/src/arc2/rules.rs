//! One `[[proxy_rules]]`: a domain, its backends, and what is done to its requests.

use std::fmt::Write as _;

use super::bag::Bag;
use super::locations::{self, Pool};
use super::paths::{self, Outcome, PathRoute};
use super::{Match, Notes, globals, line, quoted, texts};

/// A rule, as far as it was understood.
pub struct Rule {
    pub domain: String,
    /// The name of its pool.
    pub pool: String,
    /// The outcomes of its requests, in order; the last one matches every path.
    pub steps: Vec<PathRoute>,
    pub ignore_query: bool,
    pub logging: bool,
    pub sql_injection: bool,
    pub compression: bool,
    /// Patterns as Weir writes them in lists of texts.
    pub disallowed_user_agents: Vec<String>,
    pub https_only: bool,
    pub locations: Pool,
}

/// Takes a rule that begins at `line`.
pub fn read(index: usize, line: usize, mut bag: Bag, globals: &globals::Globals, notes: &mut Notes) -> Rule {
    let domain = domain(index, line, &mut bag, notes);
    let (paths, path_notes) = paths::read(&mut bag, globals.caching);
    notes.verdicts.append(path_notes);
    let mut switch = |key: &str, master: bool, note: &str| match bag.flag(key) {
        None => false,
        Some(taken) => {
            let on = taken.value && master;
            let why = match (taken.value, master) {
                (true, true) => format!("on, and so is the master switch: {note}"),
                (true, false) => "on, but the master switch is off: off".to_owned(),
                (false, _) => "off".to_owned(),
            };
            notes.exact(&taken, why);
            on
        }
    };
    let logging = switch(
        "enable_logging",
        globals.logging,
        "`log.access`; routes of a domain without it say `access_log = false`",
    );
    let sql_injection =
        switch("enable_sql_injection_protection", globals.sql_injection, "`sqli = \"block\"`");
    let compression =
        switch("enable_compression", globals.compression, "`compress` with Brotli, as ARC2 does");
    let ignore_query = bag.flag("ignore_query_string").is_some_and(|taken| {
        let note = if taken.value { "`cache.ignore_query`" } else { "the query is part of the cache's key" };
        notes.exact(&taken, note);
        taken.value
    });
    transformations(&mut bag, notes);
    let disallowed_user_agents = user_agents(&mut bag, notes);
    let (locations, https_only) = locations::read(&mut bag, globals, notes);
    notes.leftover(bag);
    Rule {
        pool: pool_name(&domain, index),
        domain,
        steps: paths,
        ignore_query,
        logging,
        sql_injection,
        compression,
        disallowed_user_agents,
        https_only,
        locations,
    }
}

fn domain(index: usize, line: usize, bag: &mut Bag, notes: &mut Notes) -> String {
    match bag.text("domain") {
        Some(taken) => {
            notes.exact(&taken, "`host` of its routes");
            taken.value.trim_end_matches('.').to_ascii_lowercase()
        }
        None => {
            let name = format!("proxy_rules[{index}].domain");
            notes.verdicts.unsupported(line, &name, "missing: the rule takes no request");
            format!("missing-{index}.invalid")
        }
    }
}

/// A pool name that Weir accepts.
fn pool_name(domain: &str, index: usize) -> String {
    let name: String = domain
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' })
        .take(48)
        .collect();
    let name = name.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    let name = if name.is_empty() { "rule" } else { name };
    // Several rules may be for the same domain.
    match index {
        0 => name.to_owned(),
        _ => format!("{name}-{index}"),
    }
}

/// Takes the keys that would change the content itself.
fn transformations(bag: &mut Bag, notes: &mut Notes) {
    for key in ["enable_minification", "enable_webp_transformation"] {
        match bag.flag(key) {
            Some(taken) if taken.value => {
                notes.unsupported(&taken, "content is passed on as the backend made it")
            }
            Some(taken) => notes.exact(&taken, "off"),
            None => {}
        }
    }
    for key in ["compression_flags", "minification_flags"] {
        if let Some(taken) = bag.text(key) {
            match key {
                "compression_flags" => {
                    notes.approximate(
                        &taken,
                        "not read: `compress` has keys of its own (`types`, `min`, `level`)",
                    );
                }
                _ => notes.approximate(&taken, "nothing is minified"),
            }
        }
    }
    if let Some(taken) = bag.number("webp_transformation_min_age") {
        notes.approximate(&taken, "nothing is made WebP of");
    }
}

fn user_agents(bag: &mut Bag, notes: &mut Notes) -> Vec<String> {
    let Some(taken) = bag.tables("disallowed_user_agents") else { return Vec::new() };
    let mut patterns = Vec::new();
    for (_, mut rule) in taken.value {
        let (agent, word) = (rule.text("user_agent"), rule.text("match_type"));
        if let (Some(agent), Some(word)) = (&agent, &word) {
            match Match::of(&word.value) {
                Some(kind) => {
                    let pattern = kind.pattern(&agent.value);
                    notes.exact(
                        agent,
                        format!("`deny_user_agent`: {}, compared without regard to case", quoted(&pattern)),
                    );
                    notes.exact(word, format!("`{}`", word.value));
                    patterns.push(pattern);
                }
                None => {
                    notes.unsupported(word, "not one of ARC2's match types: this user agent is not refused")
                }
            }
        }
        notes.leftover(rule);
    }
    patterns
}

/// Writes the listeners with their routes.
pub fn write(globals: &globals::Globals, rules: &[Rule], body: &mut String) {
    let is_logged = rules.iter().any(|rule| rule.logging);
    globals::write_listener(globals, "web", rules, body);
    for rule in rules {
        match rule.https_only && globals.email.is_some() {
            true => redirect(rule, is_logged, body),
            false => routes("web", rule, globals, is_logged, body),
        }
    }
    if globals.email.is_some() {
        globals::write_listener(globals, "secure", rules, body);
        for rule in rules {
            routes("secure", rule, globals, is_logged, body);
        }
    }
}

/// Writes the beginning of a route. `is_logged` says whether the file has an access log at all.
fn route(listener: &str, rule: &Rule, is_logged: bool, body: &mut String) {
    let _ = write!(body, "\n[[listener.{listener}.route]]\n");
    line(body, "host", quoted(&rule.domain));
    if is_logged && !rule.logging {
        line(body, "access_log", "false");
    }
}

fn redirect(rule: &Rule, is_logged: bool, body: &mut String) {
    route("web", rule, is_logged, body);
    line(body, "redirect", "{ to = \"https://$host$path$query\", status = 308 }");
}

fn routes(listener: &str, rule: &Rule, globals: &globals::Globals, is_logged: bool, body: &mut String) {
    for step in &rule.steps {
        route(listener, rule, is_logged, body);
        if !step.paths.is_empty() {
            line(body, "path", texts(&step.paths));
        }
        let Outcome::Served { ttl_seconds } = step.outcome else {
            line(body, "respond", "{ status = 403, body = \"forbidden\\n\" }");
            continue;
        };
        line(body, "pool", quoted(&rule.pool));
        if !rule.disallowed_user_agents.is_empty() {
            line(body, "deny_user_agent", texts(&rule.disallowed_user_agents));
        }
        if rule.sql_injection {
            line(body, "sqli", quoted("block"));
        }
        if globals.rate_limiting {
            line(body, "rate_limit", "{ rate = \"100/s\", burst = 200, key = \"client_ip\" }");
        }
        if globals.body_limit {
            line(body, "body_limit", quoted("2MiB"));
        }
        if rule.compression {
            line(body, "compress", "{ codings = [\"br\"] }");
        }
        if let Some(seconds) = ttl_seconds {
            let ignore = if rule.ignore_query { ", ignore_query = true" } else { "" };
            line(body, "cache", format!("{{ ttl = \"{seconds}s\"{ignore} }}"));
        }
    }
}
